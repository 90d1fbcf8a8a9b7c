//! A software NIC in a process of its own, to be killed.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lanekeeper_hw::Hardware;
use lanekeeper_model::PfId;
use lanekeeper_softnic::Client;

/// Long enough for a loaded machine; nothing waits it out unless it fails.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// VFs 0, 1, ... have the addresses 02:00:00:00:00:00 and up, and are in VLAN 5.
pub(crate) struct Process {
    child: Child,
    dir: PathBuf,
    file: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &str, vfs: u8) -> Self {
        let dir = std::env::temp_dir().join(format!("lk-restart-{name}-{}", std::process::id()));
        let file = dir.with_extension("toml");
        let nic = format!("name = \"{name}\"\nvfs = {vfs}\nrun_dir = \"{}\"\n", dir.display());
        let vf =
            |vf| format!("[vf.{vf}]\nmac = \"02:00:00:00:00:{vf:02x}\"\nvlan = {{ id = 5 }}\n");
        let text: String = std::iter::once(nic).chain((0..vfs).map(vf)).collect();
        std::fs::write(&file, text).expect("written");
        let child = spawn(&file);
        let process = Self { child, dir, file };
        process.wait_until_it_answers();
        process
    }

    pub(crate) fn kill_and_start_again(&mut self) -> Instant {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
        let killed = Instant::now();
        self.child = spawn(&self.file);
        killed
    }

    pub(crate) fn wait_until_it_answers(&self) {
        let deadline = Instant::now() + SOON;
        while self.client().pfs().is_err() {
            assert!(Instant::now() < deadline, "the software NIC does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn name(&self) -> PfId {
        let name = self.file.file_stem().expect("a name").to_string_lossy();
        let name = name.strip_prefix("lk-restart-").and_then(|rest| rest.rsplit_once('-'));
        PfId::Soft(name.expect("the name given").0.parse().expect("a name"))
    }

    pub(crate) fn client(&self) -> Client {
        let PfId::Soft(name) = self.name() else { unreachable!("a software NIC") };
        Client::for_run_dir(name, &self.dir)
    }

    pub(crate) fn socket(&self, vf: u8) -> PathBuf {
        self.dir.join(format!("vf{vf}.sock"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_file(&self.file);
    }
}

fn spawn(file: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_lanekeeper"))
        .args(["softnic", "--config"])
        .arg(file)
        .stderr(Stdio::null())
        .spawn()
        .expect("started")
}
