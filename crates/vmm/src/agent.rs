//! The QEMU guest agent, client side (docs/interop/qemu-ga-ref of the QEMU source): commands and
//! files inside a guest, over a virtio serial port and with no network.
//!
//! The agent answers one request after the other and does not number its answers, so one exchange
//! at a time holds the connection; after an exchange that had no answer in time the next begins
//! with `guest-sync-delimited`, which tells late answers from its own.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::wire::{self, Wire, WireError};

/// Longest answer taken, in bytes: the agent captures up to 16 MiB of each output stream
/// (`GUEST_EXEC_MAX_OUTPUT`), which base64 makes a third larger.
const MESSAGE_LIMIT: usize = 64 << 20;

/// Bytes of a file in one message.
const FILE_CHUNK: usize = 256 << 10;

/// How long one attempt at getting into step may take before the next is made.
const SYNC_ATTEMPT: Duration = Duration::from_millis(300);

/// What the agent runs for each command. The command is a session of its own, so that it can be
/// ended with all its children; when it has ended, children that stayed behind are ended too, since
/// they would hold its output open and the agent waits for that. `TERM` ends it early. The process
/// group stands bare after the signal: busybox's shell takes no `--` there.
const RUNNER: &str = r#"
stopped=
trap 'stopped=1; kill -9 "-$session" 2>/dev/null' TERM
setsid sh -c "$0" &
session=$!
wait "$session"; status=$?
[ "$stopped" ] && { wait "$session"; status=$?; }
kill -9 "-$session" 2>/dev/null
exit "$status"
"#;

/// Why the agent gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The agent does not do it.
    #[error("the guest agent refused {command}: {reason}")]
    Refused {
        /// What was asked.
        command: String,
        /// Its description of the error.
        reason: String,
    },
    /// No answer in time.
    #[error("the guest agent did not answer {what} within {after:?}")]
    Deadline {
        /// What was asked.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// The line to the agent is no more, or holds something that is no answer.
    #[error("the line to the guest agent is broken: {0}")]
    Broken(String),
    /// A command wrote more than the agent keeps.
    #[error(
        "the command wrote more than the guest agent keeps (16 MiB); send it to a file instead"
    )]
    Truncated,
}

/// How a command in the guest ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit status; `128 + signal` when a signal ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// A command that was started in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestPid(i64);

/// A line to the agent of one guest.
#[derive(Debug)]
pub struct Agent {
    line: Mutex<Line>,
    socket: PathBuf,
}

struct Line {
    /// `None` after [`Agent::hang_up`], until the next call.
    wire: Option<Wire>,
    in_step: bool,
    next_id: u32,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("in_step", &self.in_step).finish_non_exhaustive()
    }
}

impl Agent {
    /// Connect to QEMU's end of the line. The agent itself need not run yet: see [`Agent::ping`].
    ///
    /// # Errors
    /// [`AgentError::Deadline`] and [`AgentError::Broken`].
    pub fn connect(
        path: &Path,
        within: Duration,
        gone: impl Fn() -> bool,
    ) -> Result<Self, AgentError> {
        wire::connect(path, Instant::now() + within, gone)
            .map(|stream| Self::on(stream, path))
            .map_err(|error| from_wire(error, "the connection", within))
    }

    fn on(stream: UnixStream, socket: &Path) -> Self {
        let wire = Some(Wire::new(stream, MESSAGE_LIMIT));
        let line = Mutex::new(Line { wire, in_step: false, next_id: 1 });
        Self { line, socket: socket.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line, connected anew if it was hung up.
    fn line(&self, within: Duration) -> Result<MutexGuard<'_, Line>, AgentError> {
        let mut line = self.lock();
        if line.wire.is_none() {
            let stream = wire::connect(&self.socket, Instant::now() + within, || false)
                .map_err(|error| from_wire(error, "the connection", within))?;
            (line.wire, line.in_step) = (Some(Wire::new(stream, MESSAGE_LIMIT)), false);
        }
        Ok(line)
    }

    /// Let somebody else have the line, at which one may listen at a time. The next call takes it
    /// again, and waits for as long as somebody has it.
    pub fn hang_up(&self) {
        self.lock().wire = None;
    }

    /// Wait until the agent answers.
    ///
    /// # Errors
    /// [`AgentError::Deadline`] and [`AgentError::Broken`].
    pub fn ping(&self, within: Duration) -> Result<(), AgentError> {
        self.line(within)?.sync(within)
    }

    /// Start a command: shell text, run by `sh -c` in a session of its own, without standard input.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn start(&self, command: &str, within: Duration) -> Result<GuestPid, AgentError> {
        let arguments = json!({
            "path": "sh",
            "arg": ["-c", RUNNER, command],
            "capture-output": true,
        });
        let answer = self.call("guest-exec", &arguments, within)?;
        answer["pid"].as_i64().map(GuestPid).ok_or_else(|| unexpected("guest-exec", &answer))
    }

    /// How a command ended; `None` while it runs. The agent tells it once and then forgets.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn poll(&self, pid: GuestPid, within: Duration) -> Result<Option<Ended>, AgentError> {
        let answer = self.call("guest-exec-status", &json!({ "pid": pid.0 }), within)?;
        if answer["exited"] != json!(true) {
            return Ok(None);
        }
        if answer["out-truncated"] == json!(true) || answer["err-truncated"] == json!(true) {
            return Err(AgentError::Truncated);
        }
        let code = answer["exitcode"].as_i64().or_else(|| Some(128 + answer["signal"].as_i64()?));
        let status = code
            .and_then(|code| i32::try_from(code).ok())
            .ok_or_else(|| unexpected("guest-exec-status", &answer))?;
        let stream = |name: &str| decode("guest-exec-status", answer[name].as_str().unwrap_or(""));
        Ok(Some(Ended { status, stdout: stream("out-data")?, stderr: stream("err-data")? }))
    }

    /// End a command and its children; [`Agent::poll`] then tells how it ended.
    ///
    /// # Errors
    /// [`AgentError`]. One that has ended already is no error.
    pub fn stop(&self, pid: GuestPid, within: Duration) -> Result<(), AgentError> {
        let arguments = json!({ "path": "kill", "arg": ["-TERM", pid.0.to_string()] });
        self.call("guest-exec", &arguments, within).map(|_| ())
    }

    /// The contents of a file in the guest.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn read_file(&self, path: &str, within: Duration) -> Result<Vec<u8>, AgentError> {
        self.with_file(path, "r", within, |handle, deadline| {
            let mut contents = Vec::new();
            loop {
                let arguments = json!({ "handle": handle, "count": FILE_CHUNK });
                let answer = self.call("guest-file-read", &arguments, left(deadline))?;
                let chunk = answer["buf-b64"].as_str();
                let chunk = chunk.ok_or_else(|| unexpected("guest-file-read", &answer))?;
                contents.extend(decode("guest-file-read", chunk)?);
                if answer["eof"] == json!(true) {
                    return Ok(contents);
                }
            }
        })
    }

    /// Write a file in the guest anew.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn write_file(
        &self,
        path: &str,
        contents: &[u8],
        within: Duration,
    ) -> Result<(), AgentError> {
        self.with_file(path, "w", within, |handle, deadline| {
            for chunk in contents.chunks(FILE_CHUNK) {
                let arguments = json!({ "handle": handle, "buf-b64": BASE64.encode(chunk) });
                let answer = self.call("guest-file-write", &arguments, left(deadline))?;
                // Less than asked for: the guest's disk is full.
                if answer["count"].as_u64() != Some(chunk.len() as u64) {
                    return Err(AgentError::Refused {
                        command: format!("writing {path}"),
                        reason: format!("only {} of {} bytes fit", answer["count"], chunk.len()),
                    });
                }
            }
            let flush = json!({ "handle": handle });
            self.call("guest-file-flush", &flush, left(deadline)).map(|_| ())
        })
    }

    fn with_file<T>(
        &self,
        path: &str,
        mode: &str,
        within: Duration,
        work: impl FnOnce(&Value, Instant) -> Result<T, AgentError>,
    ) -> Result<T, AgentError> {
        let deadline = Instant::now() + within;
        let open = json!({ "path": path, "mode": mode });
        let handle = self.call("guest-file-open", &open, within)?;
        let result = work(&handle, deadline);
        let closed = self.call("guest-file-close", &json!({ "handle": handle }), left(deadline));
        let value = result?;
        closed?;
        Ok(value)
    }

    /// Ask the guest to power itself off. The agent answers only if it will not.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn power_off(&self, within: Duration) -> Result<(), AgentError> {
        let mut line = self.line(within)?;
        line.get_in_step(within)?;
        // What it might still answer is for the next sync to skip.
        line.in_step = false;
        let deadline = Instant::now() + within;
        let request = json!({ "execute": "guest-shutdown", "arguments": { "mode": "powerdown" } });
        line.send(&request, deadline).map_err(|error| from_wire(error, "guest-shutdown", within))
    }

    fn call(
        &self,
        command: &str,
        arguments: &Value,
        within: Duration,
    ) -> Result<Value, AgentError> {
        let mut line = self.line(within)?;
        line.get_in_step(within)?;
        // Until the answer is here: a panic or an error in between leaves it to be skipped.
        line.in_step = false;
        let deadline = Instant::now() + within;
        let request = json!({ "execute": command, "arguments": arguments });
        let answer = line
            .send(&request, deadline)
            .and_then(|()| line.wire()?.read_until(b'\n', Some(deadline)))
            .map_err(|error| from_wire(error, command, within))?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| {
            AgentError::Broken(format!("no JSON in answer to {command}: {error}"))
        })?;
        line.in_step = true;
        if let Some(error) = answer.get("error") {
            let reason = error["desc"].as_str().unwrap_or("no reason given").to_owned();
            return Err(AgentError::Refused { command: command.to_owned(), reason });
        }
        match answer.get("return") {
            Some(value) => Ok(value.clone()),
            None => Err(unexpected(command, &answer)),
        }
    }
}

impl Line {
    fn send(&mut self, request: &Value, deadline: Instant) -> Result<(), WireError> {
        self.wire()?.write(format!("{request}\n").as_bytes(), deadline)
    }

    fn wire(&mut self) -> Result<&mut Wire, WireError> {
        self.wire.as_mut().ok_or(WireError::Closed)
    }

    fn get_in_step(&mut self, within: Duration) -> Result<(), AgentError> {
        if self.in_step { Ok(()) } else { self.sync(within) }
    }

    /// Skips everything up to the answer to a request of this moment. 0xff, which is in no UTF-8
    /// text, makes the agent forget half a request, and comes back before the answer.
    fn sync(&mut self, within: Duration) -> Result<(), AgentError> {
        let end = Instant::now() + within;
        self.in_step = false;
        while Instant::now() < end {
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            let request =
                json!({ "execute": "guest-sync-delimited", "arguments": { "id": id } }).to_string();
            let message = [&[0xff], request.as_bytes(), b"\n"].concat();
            let attempt = end.min(Instant::now() + SYNC_ATTEMPT);
            let sent = self.wire().and_then(|wire| wire.write(&message, attempt));
            match sent.and_then(|()| self.find_answer(id, attempt)) {
                Ok(()) => {
                    self.in_step = true;
                    return Ok(());
                }
                Err(WireError::Deadline) => {}
                Err(error) => return Err(AgentError::Broken(error.to_string())),
            }
        }
        Err(AgentError::Deadline { what: "guest-sync-delimited".to_owned(), after: within })
    }

    fn find_answer(&mut self, id: u32, deadline: Instant) -> Result<(), WireError> {
        loop {
            self.wire()?.read_until(0xff, Some(deadline))?;
            let answer = self.wire()?.read_until(b'\n', Some(deadline))?;
            let answer = serde_json::from_slice::<Value>(&answer).ok();
            if answer.is_some_and(|answer| answer["return"].as_u64() == Some(u64::from(id))) {
                return Ok(());
            }
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn decode(command: &str, text: &str) -> Result<Vec<u8>, AgentError> {
    BASE64
        .decode(text)
        .map_err(|error| AgentError::Broken(format!("{command} answered no base64: {error}")))
}

fn unexpected(command: &str, answer: &Value) -> AgentError {
    let answer: String = answer.to_string().chars().take(200).collect();
    AgentError::Broken(format!("{command} answered {answer}"))
}

fn from_wire(error: WireError, what: &str, within: Duration) -> AgentError {
    match error {
        WireError::Deadline => AgentError::Deadline { what: what.to_owned(), after: within },
        other => AgentError::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(10);

    /// An agent that answers a sync as it must, and each other request with what `answer` makes
    /// of it. `asleep` is how long it is silent at first, as while the guest boots.
    fn agent(asleep: Duration, answer: impl Fn(&Value) -> Vec<u8> + Send + 'static) -> Agent {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        std::thread::spawn(move || {
            std::thread::sleep(asleep);
            let mut reader = BufReader::new(theirs.try_clone().expect("clones"));
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let clean: Vec<u8> = line.drain(..).filter(|byte| *byte != 0xff).collect();
                let request: Value = serde_json::from_slice(&clean).expect("the client sends JSON");
                let reply = if request["execute"] == "guest-sync-delimited" {
                    let id = &request["arguments"]["id"];
                    [&[0xff], format!("{{\"return\": {id}}}\n").as_bytes()].concat()
                } else {
                    answer(&request)
                };
                if theirs.write_all(&reply).is_err() {
                    return;
                }
            }
        });
        Agent::on(ours, Path::new("nowhere"))
    }

    #[test]
    fn an_agent_that_wakes_late_is_found_by_a_patient_ping_only() {
        let agent = agent(Duration::from_millis(1500), |_| Vec::new());
        assert!(matches!(agent.ping(SHORT), Err(AgentError::Deadline { .. })));
        agent.ping(LONG).expect("awake by then");
    }

    #[test]
    fn a_line_that_was_hung_up_is_for_others_and_taken_again_by_the_next_call() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("agent.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        // As QEMU does: one connection is served to its end, the next one waits.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut reader = BufReader::new(stream.try_clone().expect("clones"));
                let mut line = Vec::new();
                while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                    let clean: Vec<u8> = line.drain(..).filter(|byte| *byte != 0xff).collect();
                    let request: Value = serde_json::from_slice(&clean).expect("JSON");
                    let id = &request["arguments"]["id"];
                    let reply = format!("{{\"return\": {id}}}\n");
                    if stream.write_all(&[&[0xff], reply.as_bytes()].concat()).is_err() {
                        break;
                    }
                }
            }
        });
        let ours = Agent::connect(&socket, LONG, || false).expect("connected");
        ours.ping(LONG).expect("it answers");
        let theirs = Agent::connect(&socket, LONG, || false).expect("in the queue");
        assert!(matches!(theirs.ping(SHORT), Err(AgentError::Deadline { .. })));
        ours.hang_up();
        theirs.ping(LONG).expect("the line is theirs");
        theirs.hang_up();
        ours.ping(LONG).expect("the line is ours again");
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_next_one() {
        let (sender, requests) = mpsc::channel();
        let agent = agent(Duration::ZERO, move |request| {
            sender.send(request.clone()).expect("the test listens");
            match request["arguments"]["pid"].as_i64() {
                // Late, and in one go with the answer of the next.
                Some(1) => Vec::new(),
                _ => b"{\"return\": {\"exited\": false}}\n".to_vec(),
            }
        });
        assert!(matches!(agent.poll(GuestPid(1), SHORT), Err(AgentError::Deadline { .. })));
        assert_eq!(agent.poll(GuestPid(2), LONG), Ok(None));
        assert_eq!(requests.iter().take(2).count(), 2);
    }

    #[test]
    fn output_and_exit_status_are_decoded() {
        let agent = agent(Duration::ZERO, |_| {
            b"{\"return\": {\"exited\": true, \"exitcode\": 3, \"out-data\": \"b3V0Cg==\"}}\n"
                .to_vec()
        });
        let want = Ended { status: 3, stdout: b"out\n".to_vec(), stderr: Vec::new() };
        assert_eq!(agent.poll(GuestPid(1), LONG), Ok(Some(want)));
    }

    #[test]
    fn a_signal_counts_from_128_as_a_shell_says_it() {
        let agent = agent(Duration::ZERO, |_| {
            b"{\"return\": {\"exited\": true, \"signal\": 9}}\n".to_vec()
        });
        assert_eq!(agent.poll(GuestPid(1), LONG).expect("answers").expect("ended").status, 137);
    }

    #[test]
    fn output_cut_short_is_an_error_and_never_passed_off_as_whole() {
        let agent = agent(Duration::ZERO, |_| {
            b"{\"return\": {\"exited\": true, \"exitcode\": 0, \"out-truncated\": true}}\n".to_vec()
        });
        assert_eq!(agent.poll(GuestPid(1), LONG), Err(AgentError::Truncated));
    }

    #[test]
    fn a_refusal_carries_the_reason_and_the_line_stays_good() {
        let agent = agent(Duration::ZERO, |request| match request["arguments"]["pid"].as_i64() {
            Some(1) => {
                b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"no pid\"}}\n".to_vec()
            }
            _ => b"{\"return\": {\"exited\": false}}\n".to_vec(),
        });
        let error = agent.poll(GuestPid(1), LONG).expect_err("refused").to_string();
        assert!(error.contains("no pid"), "{error}");
        assert_eq!(agent.poll(GuestPid(2), LONG), Ok(None));
    }

    #[test]
    fn garbage_is_an_error_with_what_was_said() {
        let agent = agent(Duration::ZERO, |_| b"{\"return\": 7\n".to_vec());
        assert!(matches!(agent.poll(GuestPid(1), LONG), Err(AgentError::Broken(_))));
    }

    #[test]
    fn a_file_is_read_in_pieces_to_its_end() {
        let pieces = Mutex::new(vec![("d29ybGQ=", true), ("aGVsbG8g", false)]);
        let agent = agent(Duration::ZERO, move |request| {
            let value = match request["execute"].as_str().expect("a command") {
                "guest-file-open" => json!(1000),
                "guest-file-read" => {
                    let (text, eof) =
                        pieces.lock().expect("whole").pop().expect("none after the end");
                    json!({ "buf-b64": text, "eof": eof, "count": 1 })
                }
                _ => json!({}),
            };
            format!("{}\n", json!({ "return": value })).into_bytes()
        });
        assert_eq!(agent.read_file("/etc/x", LONG), Ok(b"hello world".to_vec()));
    }

    #[test]
    fn a_full_disk_in_the_guest_is_told() {
        let agent = agent(Duration::ZERO, |request| {
            let value = match request["execute"].as_str().expect("a command") {
                "guest-file-open" => json!(1000),
                "guest-file-write" => json!({ "count": 2, "eof": false }),
                _ => json!({}),
            };
            format!("{}\n", json!({ "return": value })).into_bytes()
        });
        let error = agent.write_file("/x", b"four", LONG).expect_err("short").to_string();
        assert!(error.contains("2 of 4"), "{error}");
    }
}
