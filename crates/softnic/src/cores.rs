//! Which core a thread runs on.

use rustix::thread::CpuSet;

/// Keep the calling thread on one core.
///
/// # Errors
/// The machine has no such core, or this process may not use it.
pub(crate) fn pin(cpu: usize) -> std::io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Whether a thread of this process could be pinned there. What the kernel says when asked is the
/// only sure answer: cores go offline, and control groups keep some back.
pub(crate) fn usable(cpu: usize) -> bool {
    std::thread::spawn(move || pin(cpu).is_ok()).join().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_cannot_be_used() {
        assert!(usable(rustix::thread::sched_getcpu()));
        assert!(!usable(1_000));
        assert!(!usable(usize::MAX));
    }
}
