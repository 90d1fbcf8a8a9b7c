//! The format of server-sent events: bytes in, events out (WHATWG HTML, 9.2.6). No I/O.

use std::collections::VecDeque;
use std::time::Duration;

/// Most bytes of one event: a server cannot fill the memory with one that never ends.
const LONGEST_EVENT: usize = 4 << 20;

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The last id that the stream has named, with this event or one before it.
    pub id: Option<String>,
    /// What kind of event it is; `message` if the stream does not say.
    pub kind: String,
    /// Its data; lines are apart by `\n`.
    pub data: String,
}

/// An event or a line is longer than any may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong;

/// What was read of a stream.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    line: Vec<u8>,
    /// The line before ended with a carriage return: a line feed now is the second half of its end.
    after_return: bool,
    /// A line was read: no byte order mark comes any more.
    begun: bool,
    kind: String,
    data: String,
    /// The last id that was read. It holds for all events until the next.
    id: Option<String>,
    /// The id of the last event that came whole, which a reconnect asks to go on after.
    last_id: Option<String>,
    /// How long to wait before a reconnect, if the stream has said so.
    retry: Option<Duration>,
    events: VecDeque<Event>,
}

impl EventStream {
    /// A stream that goes on after another broke: half an event is forgotten, what came whole is not.
    pub(crate) fn resumed(self) -> Self {
        Self {
            id: self.last_id.clone(),
            last_id: self.last_id,
            retry: self.retry,
            events: self.events,
            ..Self::default()
        }
    }

    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    pub(crate) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    self.take_line(&String::from_utf8_lossy(&line));
                }
                _ => {
                    self.after_return = false;
                    self.line.push(byte);
                }
            }
            if self.line.len() + self.data.len() > LONGEST_EVENT {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    fn take_line(&mut self, line: &str) {
        let line = if self.begun { line } else { line.trim_start_matches('\u{feff}') };
        self.begun = true;
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "id" if !value.contains('\0') => {
                self.id = Some(value.to_owned()).filter(|id| !id.is_empty());
            }
            "retry" => {
                let millis = value.parse().ok().filter(|_| !value.starts_with('+'));
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            // Comments (no field's name) and fields that nobody has defined.
            _ => {}
        }
    }

    fn dispatch(&mut self) {
        let kind = std::mem::take(&mut self.kind);
        let mut data = std::mem::take(&mut self.data);
        self.last_id.clone_from(&self.id);
        // The last line's end is not part of it; without any line there is no event.
        if data.pop().is_some() {
            let kind = if kind.is_empty() { "message".to_owned() } else { kind };
            self.events.push_back(Event { id: self.id.clone(), kind, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>, kind: &str, data: &str) -> Event {
        Event { id: id.map(str::to_owned), kind: kind.to_owned(), data: data.to_owned() }
    }

    fn all(stream: &mut EventStream) -> Vec<Event> {
        std::iter::from_fn(|| stream.next_event()).collect()
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut_and_however_its_lines_end() {
        let text =
            "\u{feff}: hello\nid: 7\nevent: vm\ndata: a\ndata:  b\n\ndata\n\nid\ndata: c:d\n\n";
        let expected = [
            event(Some("7"), "vm", "a\n b"),
            event(Some("7"), "message", ""),
            event(None, "message", "c:d"),
        ];
        for end in ["\n", "\r", "\r\n"] {
            let text = text.replace('\n', end);
            for size in 1..text.len() {
                let mut stream = EventStream::default();
                for part in text.as_bytes().chunks(size) {
                    stream.push(part).expect("short");
                }
                assert_eq!(
                    all(&mut stream),
                    expected,
                    "{size} bytes at once, lines end in {end:?}"
                );
            }
        }
    }

    #[test]
    fn half_an_event_counts_for_nothing_when_the_stream_breaks() {
        let mut stream = EventStream::default();
        stream.push(b"id: 1\ndata: one\n\nid: 2\ndata: half").expect("short");
        let mut stream = stream.resumed();
        assert_eq!(stream.last_id(), Some("1"));
        stream.push(b"data: next\n\n").expect("short");
        let expected = [event(Some("1"), "message", "one"), event(Some("1"), "message", "next")];
        assert_eq!(all(&mut stream), expected);
    }

    #[test]
    fn a_retry_is_taken_only_if_it_is_digits() {
        let mut stream = EventStream::default();
        for (line, expected) in [("250", 250), ("+9", 250), ("soon", 250), ("0", 0)] {
            stream.push(format!("retry: {line}\n").as_bytes()).expect("short");
            assert_eq!(stream.retry(), Some(Duration::from_millis(expected)), "{line}");
        }
    }

    #[test]
    fn an_event_that_never_ends_is_refused() {
        let line = format!("data: {}\n", "x".repeat(1 << 16));
        let mut stream = EventStream::default();
        let taken =
            (0..=LONGEST_EVENT >> 16).take_while(|_| stream.push(line.as_bytes()).is_ok()).count();
        assert_eq!(taken, (LONGEST_EVENT >> 16) - 1);
    }
}
