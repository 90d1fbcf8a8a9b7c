//! How a command ends that runs until it is told to: the first SIGINT or SIGTERM asks it to end in
//! good order, a second one ends it whatever it is doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// The signals that are waited for.
pub(crate) struct Ending {
    signals: Signals,
    told: Arc<AtomicBool>,
}

impl Ending {
    /// Take the signals over. To be called before any thread is there, so that none misses one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn register() -> std::io::Result<Self> {
        let told = Arc::new(AtomicBool::new(false));
        for signal in SIGNALS {
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&told))?;
        }
        Ok(Self { signals: Signals::new(SIGNALS)?, told })
    }

    /// Wait for the first signal.
    pub(crate) fn wait(&mut self) {
        self.signals.forever().next();
        self.told.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process};

    const CHILD: &str = "LANEKEEPER_TEST_ENDING";

    #[test]
    fn the_second_signal_ends_what_the_first_could_not() {
        if std::env::var_os(CHILD).is_some() {
            let mut ending = Ending::register().expect("taken over");
            // Straight to standard error: the test harness keeps the rest.
            eprintln!("ready");
            ending.wait();
            eprintln!("told");
            std::thread::sleep(Duration::from_secs(60));
            std::process::exit(0);
        }
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "softnic::ending::tests::the_second_signal_ends_what_the_first_could_not",
            ])
            .arg("--nocapture")
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let pid = Pid::from_child(&child);
        for word in ["ready", "told"] {
            let said = lines.by_ref().any(|line| line.expect("text") == word);
            assert!(said, "it does not say '{word}'");
            kill_process(pid, Signal::TERM).expect("sent");
        }
        assert_eq!(child.wait().expect("ended").code(), Some(1));
    }
}
