//! A software NIC as a process of a host that is short of something, or is told to end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_hw::{Hardware, HardwareError};
use lanekeeper_model::{Mtu, PfId, VfChange, VfIndex};
use lanekeeper_softnic::Client;
use lanekeeper_softnic::driver::{TxFrame, VfDriver, VfOptions};
use lanekeeper_softnic::ring::RingKind;
use rustix::process::{Pid, Signal, kill_process};

/// Long enough for a loaded machine; nothing waits it out unless it fails.
const SOON: Duration = Duration::from_secs(10);

struct Nic {
    child: Child,
    dir: PathBuf,
    _scratch: Arc<tempfile::TempDir>,
    log: PathBuf,
}

impl Nic {
    /// A NIC in a folder of its own, started by a shell after `before`.
    fn spawn(vfs: u32, keys: &str, before: &str) -> Self {
        let scratch = Arc::new(tempfile::tempdir().expect("a folder"));
        let dir = scratch.path().join("nic");
        Self::spawn_in(scratch, dir, vfs, keys, before)
    }

    fn spawn_in(
        scratch: Arc<tempfile::TempDir>,
        dir: PathBuf,
        vfs: u32,
        keys: &str,
        before: &str,
    ) -> Self {
        let (file, log) = (scratch.path().join("nic.toml"), scratch.path().join("log"));
        let head =
            format!("name = \"nic\"\nvfs = {vfs}\nrun_dir = \"{}\"\n{keys}\n", dir.display());
        let vf = |vf| format!("[vf.{vf}]\nmac = \"02:00:00:00:00:{vf:02x}\"\n");
        let text: String = std::iter::once(head).chain((0..vfs).map(vf)).collect();
        std::fs::write(&file, text).expect("written");
        let child = Command::new("sh")
            .args(["-c", &format!("{before}\nexec \"$0\" softnic --config \"$1\"")])
            .arg(env!("CARGO_BIN_EXE_lanekeeper"))
            .arg(&file)
            .stderr(std::fs::File::create(&log).expect("made"))
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        Self { child, dir, _scratch: scratch, log }
    }

    fn started(self) -> Self {
        self.eventually("it answers", || self.client().pfs().is_ok());
        self
    }

    fn client(&self) -> Client {
        Client::for_run_dir("nic".parse().expect("a name"), &self.dir)
    }

    fn socket(&self, vf: u32) -> PathBuf {
        self.dir.join(format!("vf{vf}.sock"))
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !holds() {
            assert!(Instant::now() < deadline, "{what}: not within {SOON:?}; {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().expect("ours") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end; {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers make it where they pass it")]
    fn driver(&self, vf: u32, options: VfOptions) -> Option<VfDriver> {
        let options = VfOptions { patience: SOON, ..options };
        let driver = VfDriver::connect(&self.socket(vf), options).ok()?;
        let index = VfIndex::new(vf).expect("a VF");
        let attached = || self.client().vf(&pf(), index).is_ok_and(|vf| vf.attached);
        let deadline = Instant::now() + Duration::from_secs(2);
        while !attached() {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(driver)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pf() -> PfId {
    PfId::Soft("nic".parse().expect("a name"))
}

fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.resize(64, 0xa5);
    frame
}

fn passes(a: &mut VfDriver, b: &mut VfDriver) -> bool {
    let bytes = frame(1, 0);
    a.send(0, &[TxFrame::plain(&bytes)]).expect("sent");
    b.receive_all(0, 1, SOON).expect("received") == [bytes]
}

#[test]
fn a_nic_whose_folder_is_gone_ends_in_good_order_at_sigterm() {
    let mut nic = Nic::spawn(1, "", "").started();
    std::fs::remove_dir_all(&nic.dir).expect("removed");
    kill_process(Pid::from_child(&nic.child), Signal::TERM).expect("sent");
    assert!(nic.ended().success(), "{}", nic.said());
}

#[test]
fn the_usual_soft_limit_of_descriptors_is_raised() {
    let nic = Nic::spawn(4, "queue_pairs = 8", "ulimit -Sn 100").started();
    let many = || VfOptions { pairs: 8, control: true, ..VfOptions::default() };
    let mut drivers: Vec<_> = (0..4)
        .map(|vf| nic.driver(vf, many()).unwrap_or_else(|| panic!("VF {vf}: {}", nic.said())))
        .collect();
    let [a, b, ..] = &mut drivers[..] else { unreachable!("four drivers") };
    assert!(passes(a, b));
}

#[test]
fn a_hard_limit_of_descriptors_that_is_too_low_is_refused_with_both_numbers() {
    let mut nic = Nic::spawn(4, "queue_pairs = 8", "ulimit -n 100");
    assert_eq!(nic.ended().code(), Some(1));
    let said = nic.said();
    assert!(said.contains("4 VFs of 8 queue pairs") && said.contains("may have 100;"), "{said}");
    assert!(said.contains("ulimit -Hn "), "{said}");
    assert!(!nic.dir.exists());
}

#[test]
fn a_storm_of_front_ends_leaves_the_log_readable() {
    const STORM: u32 = 500;
    let nic = Nic::spawn(2, "", "").started();
    let start = Instant::now();
    for _ in 0..STORM {
        use std::io::Read;
        let mut stream = std::os::unix::net::UnixStream::connect(nic.socket(0)).expect("connects");
        std::io::Write::write_all(&mut stream, &[0xff; 64]).expect("written");
        // Until it is hung up on.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let seconds = start.elapsed().as_secs() as usize + 1;
    nic.eventually("the rest is told of", || nic.said().contains("were left out"));
    let lines = nic.said().lines().filter(|line| line.contains("vf=0")).count();
    assert!(lines <= 12 * (seconds + 2), "{lines} lines in {seconds} s for {STORM} front-ends");
    let (mut a, mut b) = (
        nic.driver(0, VfOptions::default()).expect("served"),
        nic.driver(1, VfOptions::default()).expect("served"),
    );
    assert!(passes(&mut a, &mut b));
}

/// A file system of 64 KiB, as long as the value lives.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can mount a file system");
            return None;
        }
        std::fs::create_dir(at).expect("made");
        let made = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=700", "none"])
            .arg(at)
            .status()
            .expect("util-linux");
        assert!(made.success());
        Some(Self(at.to_owned()))
    }

    fn fill(&self) {
        // Until there is no more room.
        let _ = std::fs::write(self.0.join("fill"), vec![1; 1 << 20]);
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l".as_ref(), self.0.as_os_str()]).status();
    }
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_ends_nothing() {
    // Kept until the file system in it is gone.
    let scratch = Arc::new(tempfile::tempdir().expect("a folder"));
    let dir = scratch.path().join("small");
    let Some(small) = Small::mount(&dir) else { return };
    let nic = Nic::spawn_in(Arc::clone(&scratch), dir.clone(), 3, "", "").started();
    small.fill();
    let change = VfChange { mtu: Some(Mtu::new(1400).expect("an MTU")), ..VfChange::default() };
    let vf = VfIndex::new(2).expect("a VF");
    let error = nic.client().set_vf(&pf(), vf, &change).expect_err("no room");
    assert!(matches!(error, HardwareError::Refused { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("settings.json") && text.contains("No space left"), "{text}");
    let packed = VfOptions { kind: RingKind::Packed, ..VfOptions::default() };
    assert!(nic.driver(2, packed).is_none(), "a packed ring needs room");
    nic.eventually("the log says which file", || {
        let said = nic.said();
        said.contains(&dir.join("rings").display().to_string()) && said.contains("No space left")
    });
    let (mut a, mut b) = (
        nic.driver(0, VfOptions::default()).expect("a split ring needs none"),
        nic.driver(1, VfOptions::default()).expect("a split ring needs none"),
    );
    assert!(passes(&mut a, &mut b));
}

#[test]
fn a_nic_that_starts_on_a_full_disk_says_which_file_has_no_room() {
    // Kept until the file system in it is gone.
    let scratch = Arc::new(tempfile::tempdir().expect("a folder"));
    let dir = scratch.path().join("small");
    let Some(small) = Small::mount(&dir) else { return };
    small.fill();
    let mut nic = Nic::spawn_in(Arc::clone(&scratch), dir.clone(), 3, "", "");
    assert_eq!(nic.ended().code(), Some(1));
    let said = nic.said();
    assert!(said.contains(&dir.join("rings").display().to_string()), "{said}");
    assert!(said.contains("No space left"), "{said}");
}
