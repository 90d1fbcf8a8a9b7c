//! Software NICs in processes of their own under a folder of their own, and commands about them.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lanekeeper_softnic::Client;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Long enough for a loaded machine; nothing waits it out unless it fails.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn lanekeeper() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lanekeeper"))
}

/// What a command said, and how it ended.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// `lanekeeper softnic` with these arguments.
pub(crate) fn softnic(arguments: &[&str]) -> Said {
    lanekeeper().arg("softnic").args(arguments).output().expect("runs").into()
}

/// The same with a standard output that nobody reads; answers with the exit code and standard error.
pub(crate) fn unread(arguments: &[&str]) -> (Option<i32>, String) {
    let output = lanekeeper().args(arguments).stdout(broken_pipe()).output().expect("runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

/// The writing end of a pipe whose reader is gone.
pub(crate) fn broken_pipe() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

/// A folder for NICs: the `--run-root` of commands about them.
pub(crate) struct Root(TempDir);

impl Root {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().expect("made");
        // As /run/lanekeeper is: all may see which NICs there are.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), readable).expect("changed");
        Self(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn text(&self) -> &str {
        self.path().to_str().expect("text")
    }

    /// Folder of a NIC, or of something else.
    pub(crate) fn join(&self, name: &str) -> String {
        format!("{}/{name}", self.text())
    }

    /// A configuration file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(format!("{name}.toml"));
        std::fs::write(&path, text).expect("written");
        path
    }

    /// Start a NIC of this name in a folder of that name, with two VFs of which VF 0 is in use.
    pub(crate) fn start(&self, name: &str) -> Nic {
        self.start_in(name, name)
    }

    pub(crate) fn start_in(&self, folder: &str, name: &str) -> Nic {
        let dir = self.path().join(folder);
        let text = format!(
            "name = \"{name}\"\nvfs = 2\nrun_dir = \"{}\"\n[vf.0]\nmac = \"02:00:00:00:00:01\"\n\
             vlan = {{ id = 100, pcp = 3 }}\n",
            dir.display()
        );
        Nic::start(&self.file(folder, &text), &dir, &[])
    }
}

/// A NIC's process. It ends with this.
pub(crate) struct Nic {
    child: Child,
    pub(crate) file: PathBuf,
    pub(crate) dir: PathBuf,
    log: PathBuf,
}

impl Nic {
    pub(crate) fn start(file: &Path, dir: &Path, options: &[&str]) -> Self {
        let log = file.with_extension("log");
        let output = File::create(&log).expect("made");
        Self::start_with(file, dir, options, output.into(), log)
    }

    /// Start it with a standard error that nobody reads.
    pub(crate) fn start_unread(file: &Path, dir: &Path) -> Self {
        Self::start_with(file, dir, &[], broken_pipe(), PathBuf::new())
    }

    fn start_with(file: &Path, dir: &Path, options: &[&str], log: Stdio, path: PathBuf) -> Self {
        let child = lanekeeper()
            .args(["softnic", "--config"])
            .arg(file)
            .args(options)
            .stderr(log)
            .spawn()
            .expect("started");
        let nic = Self { child, file: file.to_owned(), dir: dir.to_owned(), log: path };
        eventually("the NIC answers", || Client::at(dir).is_ok());
        nic
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("sent");
    }

    /// Kill it, so that its socket stays.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }

    /// End it in good order and start it again.
    pub(crate) fn restart(&mut self, options: &[&str]) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().expect("reaped").success());
        let next = Self::start(&self.file, &self.dir, options);
        *self = next;
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // It has ended already where the test ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
