//! The QEMU Machine Protocol, client side (docs/interop/qmp-spec of the QEMU source).
//!
//! One thread reads: replies go to the call with their `id`, events into a bounded log. Each call
//! has a deadline; a connection that says something which is no QMP, or closes, fails every call
//! that waits and every later one, with the reason.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::wire::{self, Wire, WireError};

/// Longest message taken, in bytes. `query-qmp-schema` answers with 0.2 MB, more than all else.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Events kept for [`Qmp::wait_event`]; the oldest go first.
const EVENTS_KEPT: usize = 1024;

/// Why a call had no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QmpError {
    /// QEMU does not do it.
    #[error("QEMU refused {command}: {reason}")]
    Refused {
        /// What was asked.
        command: String,
        /// Its description of the error.
        reason: String,
    },
    /// No reply, or no event, in time.
    #[error("QEMU did not answer {what} within {after:?}")]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The connection is of no use any more.
    #[error("the connection to QEMU is broken: {0}")]
    Broken(String),
}

/// Something that QEMU tells of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// As in `DEVICE_DELETED`.
    pub name: String,
    /// Its data; `Null` if it has none.
    pub data: Value,
}

/// A place in the stream of events, from [`Qmp::mark`].
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

impl Mark {
    /// Before the first event.
    pub const START: Self = Self(0);
}

/// A connection in command mode.
#[derive(Debug)]
pub struct Qmp {
    shared: Arc<Shared>,
    writer: Mutex<UnixStream>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that wait, by id. What nobody waits for any more is dropped on arrival.
    waiting: BTreeSet<u64>,
    replies: HashMap<u64, Value>,
    events: VecDeque<Event>,
    /// Number of the first event in `events`, counted from the first ever.
    first_event: u64,
    broken: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something, the connection breaks, or the deadline is over (`None`).
    fn wait_for<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<Result<T, QmpError>> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(Ok(found));
            }
            if let Some(why) = &state.broken {
                return Some(Err(QmpError::Broken(why.clone())));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Qmp {
    /// Connect to a socket that may not be there yet, and leave negotiation mode. `gone` ends the
    /// wait early: it says that QEMU is no more.
    ///
    /// # Errors
    /// [`QmpError::Deadline`] and [`QmpError::Broken`].
    pub fn connect(
        path: &Path,
        within: Duration,
        gone: impl Fn() -> bool,
    ) -> Result<Self, QmpError> {
        let deadline = Instant::now() + within;
        let stream = wire::connect(path, deadline, gone)
            .map_err(|error| from_wire(error, "the connection", within))?;
        Self::on(stream, within)
    }

    fn on(stream: UnixStream, within: Duration) -> Result<Self, QmpError> {
        let deadline = Instant::now() + within;
        let io = |error: std::io::Error| QmpError::Broken(error.to_string());
        let reader = stream.try_clone().map_err(io)?;
        let mut wire = Wire::new(reader, MESSAGE_LIMIT);
        let greeting = wire
            .read_until(b'\n', Some(deadline))
            .map_err(|error| from_wire(error, "the greeting", within))?;
        let said = serde_json::from_slice::<Value>(&greeting).unwrap_or_default();
        if said.get("QMP").is_none() {
            return Err(QmpError::Broken(format!("no QMP greeting: {}", beginning(&greeting))));
        }
        let shared = Arc::new(Shared::default());
        let readers = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("qmp".to_owned())
            .spawn(move || read(&mut wire, &readers))
            .map_err(io)?;
        let qmp = Self { shared, writer: Mutex::new(stream), next_id: AtomicU64::new(1) };
        qmp.execute("qmp_capabilities", &json!({}), within)?;
        Ok(qmp)
    }

    /// Run a command and wait for its result.
    ///
    /// # Errors
    /// [`QmpError`]. After [`QmpError::Deadline`] the command may still be carried out.
    pub fn execute(
        &self,
        command: &str,
        arguments: &Value,
        within: Duration,
    ) -> Result<Value, QmpError> {
        let deadline = Instant::now() + within;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = json!({ "execute": command, "arguments": arguments, "id": id });
        self.shared.lock().waiting.insert(id);
        let reply = self
            .send(&message, command, within, deadline)
            .and_then(|()| self.reply(id, command, within, deadline));
        self.shared.lock().waiting.remove(&id);
        let reply = reply?;
        if let Some(error) = reply.get("error") {
            let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(QmpError::Refused {
                command: command.to_owned(),
                reason: reason.to_owned(),
            });
        }
        Ok(reply.get("return").cloned().unwrap_or(Value::Null))
    }

    fn send(
        &self,
        message: &Value,
        command: &str,
        within: Duration,
        deadline: Instant,
    ) -> Result<(), QmpError> {
        let line = format!("{message}\n");
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let result = wire::write(&mut writer, line.as_bytes(), deadline);
        if result.is_err() {
            // Part of it may be out: what comes after would be read as its rest.
            let _ = writer.shutdown(Shutdown::Both);
        }
        result.map_err(|error| from_wire(error, command, within))
    }

    fn reply(
        &self,
        id: u64,
        command: &str,
        within: Duration,
        deadline: Instant,
    ) -> Result<Value, QmpError> {
        self.shared
            .wait_for(deadline, |state| state.replies.remove(&id))
            .unwrap_or_else(|| Err(QmpError::Deadline { what: command.to_owned(), after: within }))
    }

    /// The end of the events so far: what comes later is what [`Qmp::wait_event`] looks at.
    pub fn mark(&self) -> Mark {
        let state = self.shared.lock();
        Mark(state.first_event + state.events.len() as u64)
    }

    /// The first event after `mark` that `wanted` agrees to. Take the mark before the command that
    /// causes the event.
    ///
    /// # Errors
    /// [`QmpError::Deadline`], with `what` in its text, and [`QmpError::Broken`].
    pub fn wait_event(
        &self,
        mark: Mark,
        what: &str,
        within: Duration,
        mut wanted: impl FnMut(&Event) -> bool,
    ) -> Result<Event, QmpError> {
        let deadline = Instant::now() + within;
        let mut next = mark.0;
        let found = self.shared.wait_for(deadline, |state| {
            let skip = usize::try_from(next.saturating_sub(state.first_event)).ok()?;
            next = state.first_event + state.events.len() as u64;
            state.events.iter().skip(skip).find(|event| wanted(event)).cloned()
        });
        found.unwrap_or_else(|| Err(QmpError::Deadline { what: what.to_owned(), after: within }))
    }
}

/// How an unplug ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unplugged {
    /// QEMU has let go of the device.
    Gone,
    /// It has not, and why as far as it is known: the guest refused, or took too long.
    Still(String),
}

impl Qmp {
    /// Ask the guest to release a device, and wait until QEMU has let go of it
    /// (`DEVICE_DELETED`). `call` is for the command, `within` for the guest.
    ///
    /// # Errors
    /// [`QmpError`], but for a guest that takes too long.
    pub fn unplug(
        &self,
        id: &str,
        call: Duration,
        within: Duration,
    ) -> Result<Unplugged, QmpError> {
        let mark = self.mark();
        match self.execute("device_del", &json!({ "id": id }), call) {
            // Asked before, and the guest was not done with it: wait on.
            Err(QmpError::Refused { reason, .. })
                if reason.contains("already in the process of unplug") => {}
            other => drop(other?),
        }
        let event = self.wait_event(mark, "DEVICE_DELETED", within, |event| {
            let ours = event.data["device"] == json!(id);
            ours && matches!(event.name.as_str(), "DEVICE_DELETED" | "DEVICE_UNPLUG_GUEST_ERROR")
        });
        match event {
            Ok(event) if event.name == "DEVICE_DELETED" => Ok(Unplugged::Gone),
            Ok(_) => Ok(Unplugged::Still("the guest refused".to_owned())),
            Err(error @ QmpError::Deadline { .. }) => Ok(Unplugged::Still(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // Ends the reading thread. A connection that is closed already is as good.
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.shutdown(Shutdown::Both);
    }
}

/// The reading thread: until the connection closes or says something that is no QMP.
fn read(wire: &mut Wire, shared: &Shared) {
    let why = loop {
        match wire.read_until(b'\n', None) {
            Ok(line) => {
                if let Err(why) = take(&line, &mut shared.lock()) {
                    break why;
                }
                shared.changed.notify_all();
            }
            Err(error) => break error.to_string(),
        }
    };
    shared.lock().broken = Some(why);
    shared.changed.notify_all();
}

fn take(line: &[u8], state: &mut State) -> Result<(), String> {
    let message: Value = serde_json::from_slice(line)
        .map_err(|error| format!("not JSON ({error}): {}", beginning(line)))?;
    if let Some(name) = message.get("event").and_then(Value::as_str) {
        if state.events.len() == EVENTS_KEPT {
            state.events.pop_front();
            state.first_event += 1;
        }
        let data = message.get("data").cloned().unwrap_or(Value::Null);
        state.events.push_back(Event { name: name.to_owned(), data });
    } else if message.get("return").is_some() || message.get("error").is_some() {
        match message.get("id").and_then(Value::as_u64) {
            Some(id) if state.waiting.contains(&id) => {
                state.replies.insert(id, message);
            }
            // Came after its call's deadline.
            Some(_) => {}
            // QEMU could not read what was sent, so it knows no id.
            None => return Err(format!("a reply without an id: {}", beginning(line))),
        }
    } else {
        return Err(format!("neither reply nor event: {}", beginning(line)));
    }
    Ok(())
}

fn beginning(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(200).collect()
}

fn from_wire(error: WireError, what: &str, within: Duration) -> QmpError {
    match error {
        WireError::Deadline => QmpError::Deadline { what: what.to_owned(), after: within },
        other => QmpError::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(10);
    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

    /// A QEMU that answers each line it reads with what `answer` makes of it (id, command).
    fn qemu(answer: impl Fn(u64, &str) -> String + Send + 'static) -> Qmp {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        std::thread::spawn(move || {
            writeln!(theirs, "{GREETING}").expect("greets");
            let lines = BufReader::new(theirs.try_clone().expect("clones")).lines();
            for line in lines.map_while(Result::ok) {
                let message: Value = serde_json::from_str(&line).expect("the client sends JSON");
                let id = message["id"].as_u64().expect("the client sends an id");
                let command = message["execute"].as_str().expect("a command");
                let reply = match command {
                    "qmp_capabilities" => format!("{{\"return\": {{}}, \"id\": {id}}}\n"),
                    _ => answer(id, command),
                };
                if reply == "close" || theirs.write_all(reply.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Qmp::on(ours, LONG).expect("negotiates")
    }

    fn call(qmp: &Qmp, within: Duration) -> Result<Value, QmpError> {
        qmp.execute("query-status", &json!({}), within)
    }

    #[test]
    fn events_between_command_and_reply_are_kept_and_the_reply_is_found() {
        let qmp = qemu(|id, _| {
            format!(
                "{{\"event\": \"STOP\"}}\n\
                 {{\"return\": {{\"status\": \"paused\"}}, \"id\": {id}}}\n\
                 {{\"event\": \"RESUME\", \"data\": {{\"n\": 1}}}}\n"
            )
        });
        let mark = qmp.mark();
        assert_eq!(call(&qmp, LONG).expect("answers")["status"], "paused");
        let resume = qmp.wait_event(mark, "RESUME", LONG, |event| event.name == "RESUME");
        assert_eq!(resume.expect("came").data["n"], 1);
        let stop = qmp.wait_event(mark, "STOP", LONG, |event| event.name == "STOP");
        assert_eq!(stop.expect("came").data, Value::Null);
    }

    #[test]
    fn an_event_before_the_mark_does_not_count() {
        let qmp =
            qemu(|id, _| format!("{{\"event\": \"STOP\"}}\n{{\"return\": {{}}, \"id\": {id}}}\n"));
        call(&qmp, LONG).expect("answers");
        let found = qmp.wait_event(qmp.mark(), "STOP", SHORT, |event| event.name == "STOP");
        assert_eq!(found, Err(QmpError::Deadline { what: "STOP".to_owned(), after: SHORT }));
    }

    #[test]
    fn a_refusal_carries_the_command_and_qemus_reason() {
        let qmp = qemu(|id, _| {
            format!(
                "{{\"error\": {{\"class\": \"GenericError\", \"desc\": \"no\"}}, \"id\": {id}}}\n"
            )
        });
        let want = QmpError::Refused { command: "query-status".into(), reason: "no".into() };
        assert_eq!(call(&qmp, LONG), Err(want));
    }

    #[test]
    fn silence_ends_at_the_deadline_and_a_late_reply_harms_nobody() {
        let late = Arc::new(Mutex::new(None));
        let held = Arc::clone(&late);
        let qmp = qemu(move |id, _| {
            let reply = |id, n| format!("{{\"return\": {n}, \"id\": {id}}}\n");
            match held.lock().expect("whole").replace(id) {
                None => String::new(),
                Some(first) => reply(first, 1) + &reply(id, 2),
            }
        });
        assert!(matches!(call(&qmp, SHORT), Err(QmpError::Deadline { .. })));
        assert_eq!(call(&qmp, LONG), Ok(json!(2)));
        assert!(qmp.shared.lock().replies.is_empty(), "the late reply was kept for ever");
    }

    #[test]
    fn garbage_breaks_the_connection_at_once_with_what_was_said() {
        let qmp = qemu(|_, _| "Segmentation fault\n".to_owned());
        for _ in 0..2 {
            let error = call(&qmp, LONG).expect_err("that was no reply").to_string();
            assert!(error.contains("Segmentation fault"), "{error}");
        }
    }

    #[test]
    fn json_that_is_no_qmp_breaks_the_connection() {
        for line in ["[1, 2]\n", "{}\n", "{\"return\": {}}\n", "{\"event\": 3}\n"] {
            let qmp = qemu(move |_, _| line.to_owned());
            assert!(matches!(call(&qmp, LONG), Err(QmpError::Broken(_))), "{line}");
        }
    }

    #[test]
    fn a_close_fails_the_call_at_once_and_every_waiter_with_it() {
        let qmp = Arc::new(qemu(|_, _| "close".to_owned()));
        let (mark, waiter) = (qmp.mark(), Arc::clone(&qmp));
        let waiting = std::thread::spawn(move || waiter.wait_event(mark, "X", LONG, |_| true));
        let begin = Instant::now();
        assert!(matches!(call(&qmp, LONG), Err(QmpError::Broken(_))));
        assert!(matches!(waiting.join().expect("no panic"), Err(QmpError::Broken(_))));
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn something_that_is_no_qemu_is_told_by_its_greeting() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        writeln!(theirs, "SSH-2.0-OpenSSH").expect("sent");
        let error = Qmp::on(ours, LONG).expect_err("no QMP").to_string();
        assert!(error.contains("SSH-2.0"), "{error}");
    }

    #[test]
    fn calls_from_several_threads_each_get_their_own_reply() {
        let qmp =
            Arc::new(qemu(|id, command| format!("{{\"return\": \"{command}\", \"id\": {id}}}\n")));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let qmp = Arc::clone(&qmp);
                std::thread::spawn(move || {
                    for number in 0..50 {
                        let command = format!("c-{thread}-{number}");
                        assert_eq!(qmp.execute(&command, &json!({}), LONG), Ok(json!(command)));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("each got its own");
        }
    }

    #[test]
    fn a_flood_of_events_does_not_grow_memory() {
        let qmp = qemu(|id, _| {
            "{\"event\": \"E\"}\n".repeat(3 * EVENTS_KEPT)
                + &format!("{{\"return\": {{}}, \"id\": {id}}}\n")
        });
        let mark = qmp.mark();
        call(&qmp, LONG).expect("answers");
        assert_eq!(qmp.shared.lock().events.len(), EVENTS_KEPT);
        assert!(qmp.wait_event(mark, "E", LONG, |_| true).is_ok());
    }
}
