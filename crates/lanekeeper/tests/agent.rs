//! The agent as a process: what systemd, Prometheus and an operator see of it. Its host file has no
//! PF, so that nothing of this machine is touched; what it does with PFs is tested in
//! `lanekeeper-host`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(30);
const NO_PFS: &str = "version: 1\npfs: []\n";

struct Agent {
    process: Child,
    events: Receiver<serde_json::Value>,
}

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a folder"));
        std::fs::write(place.path("host.yaml"), NO_PFS).expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanekeeper"));
        command.arg("agent").arg("--config").arg(self.path("host.yaml"));
        command.arg("--state").arg(self.path("state")).env_remove("NOTIFY_SOCKET");
        command
    }

    fn start(&self, more: impl FnOnce(&mut Command)) -> Agent {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        more(&mut command);
        let mut process = command.spawn().expect("starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (teller, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).expect("each line is JSON");
                if teller.send(event).is_err() {
                    return;
                }
            }
        });
        Agent { process, events }
    }

    fn refused(&self) -> Output {
        self.command().output().expect("runs")
    }
}

impl Agent {
    fn wait_for(&self, name: &str) -> serde_json::Value {
        let until = Instant::now() + LONG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| panic!("no {name}"));
            assert_eq!(event["schema"], 1);
            if event["event"] == name {
                return event;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), signal).expect("it is there");
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.process.wait().expect("ended")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A test that failed leaves none behind.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn systemd_is_told_when_vms_may_start_and_when_it_ends() {
    let place = Place::new();
    let told = UnixDatagram::bind(place.path("notify")).expect("bound");
    told.set_read_timeout(Some(LONG)).expect("set");
    let mut agent = place.start(|command| {
        command.env("NOTIFY_SOCKET", place.path("notify"));
    });
    let state = || {
        let mut state = [0; 200];
        let length = told.recv(&mut state).expect("told");
        String::from_utf8_lossy(&state[..length]).trim().to_owned()
    };
    assert_eq!(state(), "READY=1");
    assert!(agent.end(Signal::TERM).success(), "SIGTERM is no failure");
    agent.wait_for("stopped");
    assert_eq!(state(), "STOPPING=1");
}

#[test]
fn prometheus_reads_its_metrics_on_a_socket() {
    let place = Place::new();
    let socket = place.path("agent.sock");
    let agent = place.start(|command| {
        command.arg("--listen").arg(&socket);
    });
    agent.wait_for("ready");
    let mut stream = UnixStream::connect(&socket).expect("listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.contains("\nlanekeeper_agent_info{version="), "{answer}");
}

#[test]
fn an_agent_whose_events_nobody_reads_answers_and_ends_all_the_same() {
    let place = Place::new();
    let socket = place.path("agent.sock");
    let (unread, mut full) = std::io::pipe().expect("a pipe");
    // As much as a pipe holds (pipe(7)): the next write waits for a reader.
    full.write_all(&vec![b'\n'; 64 * 1024]).expect("filled");
    let mut command = place.command();
    command.arg("--listen").arg(&socket).stdout(full).stderr(Stdio::null());
    let (_teller, events) = mpsc::channel();
    let mut agent = Agent { process: command.spawn().expect("starts"), events };
    let until = Instant::now() + LONG;
    let ready = || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.contains("lanekeeper_agent_info").then_some(())
    };
    while ready().is_none() {
        assert!(Instant::now() < until, "no answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let begun = Instant::now();
    assert!(agent.end(Signal::TERM).success());
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    drop(unread);
}

#[test]
fn a_second_agent_is_refused_with_a_word_and_a_killed_one_is_followed() {
    let place = Place::new();
    let mut first = place.start(|_| {});
    first.wait_for("ready");
    let refused = place.refused();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let word = format!("another lanekeeper agent (pid {})", first.process.id());
    assert!(said.contains(&word), "{said}");
    first.end(Signal::KILL);
    place.start(|_| {}).wait_for("ready");
}

#[test]
fn a_hang_up_reads_the_file_anew_and_a_wrong_one_changes_nothing() {
    let place = Place::new();
    let agent = place.start(|_| {});
    agent.wait_for("ready");
    std::fs::write(place.path("host.yaml"), "version: 1\npfz: []\n").expect("written");
    agent.signal(Signal::HUP);
    let why = agent.wait_for("reload_failed")["why"].to_string();
    assert!(why.contains("did you mean `pfs`"), "{why}");
    std::fs::write(place.path("host.yaml"), NO_PFS).expect("written");
    agent.signal(Signal::HUP);
    agent.wait_for("reloaded");
}

#[test]
fn a_file_that_is_wrong_at_the_start_ends_it_with_2_so_that_systemd_does_not_try_again() {
    let place = Place::new();
    std::fs::write(place.path("host.yaml"), "version: 7\npfs: []\n").expect("written");
    assert_eq!(place.refused().status.code(), Some(2));
}

#[test]
fn what_it_is_shipped_with_can_be_printed() {
    let place = Place::new();
    for (flag, has) in [
        ("--print-unit", "Type=notify"),
        ("--print-udev-rules", "ENV{NM_UNMANAGED}=\"1\""),
        ("--print-networkmanager", "managed=0"),
        ("--print-networkd", "Unmanaged=yes"),
    ] {
        let printed = place.command().arg(flag).output().expect("runs");
        let text = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.status.success() && text.lines().any(|line| line.contains(has)), "{text}");
    }
    for (words, has) in
        [(["agent", "vms"].as_slice(), "KillMode=process"), (&["server"], " server --listen")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanekeeper"));
        let printed = command.args(words).arg("--print-unit").output().expect("runs");
        let text = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.status.success() && text.lines().any(|line| line.contains(has)), "{text}");
    }
}
