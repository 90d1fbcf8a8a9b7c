//! The NIC's threads. One that panics takes the process with it: a NIC that goes on without one of
//! its workers passes no frames and looks well, while one that ends is started again by whoever
//! watches over it, and its VMs reconnect.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Start a thread that ends well or ends the process.
///
/// # Errors
/// The system has no thread, or no memory for its stack, to give.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let thread = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || {
        // Nothing is used again after a panic, so nothing broken is seen.
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            tracing::error!(thread, "a thread of the software NIC failed; the process ends");
            std::process::abort();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const CHILD: &str = "LANEKEEPER_TEST_PANICKING_THREAD";

    #[test]
    fn a_thread_that_panics_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let thread = spawn("doomed", || panic!("as asked")).expect("started");
            let _ = thread.join();
            return;
        }
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "threads::tests::a_thread_that_panics_ends_the_process"])
            .env(CHILD, "1")
            .output()
            .expect("run");
        assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{child:?}");
    }

    #[test]
    fn a_thread_that_ends_well_ends_nothing() {
        spawn("calm", || {}).expect("started").join().expect("ended well");
    }
}
