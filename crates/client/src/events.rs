//! Reading server-sent events for as long as a server has them: a connection that breaks or falls silent
//! is made again, and asks for what came after the last event.

use std::fmt;
use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

use ureq::http::Method;
use ureq::http::header::{ACCEPT, CONTENT_TYPE};
use ureq::{BodyReader, RequestExt};

use crate::call::{refusal, text};
use crate::error::Error;
use crate::event_stream::{Event, EventStream};
use crate::{CALL_TIMEOUT, Client};

/// How long nothing at all may come, not even a comment, before the connection counts as broken. A
/// server should send a comment at least three times as often.
const SILENCE: Duration = Duration::from_secs(45);
/// How long to wait before a reconnect if the stream does not say.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait at most, whatever the stream says and however often it failed.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Most bytes of a refusal that are read.
const LONGEST_REFUSAL: u64 = 1 << 20;

/// The events of a stream, as an iterator that waits for each.
///
/// A connection that breaks is made again by itself. If that fails, it gives an error, and tries again,
/// after a while, when it is asked for the next event. It ends when the server says that there will be
/// no more (status 204), and after an error that will not go away: a refusal with a status of 400 to
/// 499 other than 408 and 429, or an answer that is no stream of events.
pub struct Events {
    client: Client,
    path: String,
    reader: Option<BodyReader<'static>>,
    stream: EventStream,
    /// Attempts to connect since something came last, the one that it came by included once it broke.
    attempts: u32,
    /// [`SILENCE`].
    silence: Duration,
    ended: bool,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.client.url(&self.path);
        f.debug_struct("Events").field("url", &url).finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(client: Client, path: &str) -> Self {
        let path = path.to_owned();
        let stream = EventStream::default();
        Self { client, path, reader: None, stream, attempts: 0, silence: SILENCE, ended: false }
    }

    fn pause(&self) -> Duration {
        let first = self.stream.retry().unwrap_or(RETRY);
        first.saturating_mul(1 << (self.attempts - 1).min(10)).min(LONGEST_RETRY)
    }

    /// Makes a connection, unless the server says that there is nothing more.
    fn connect(&mut self) -> Result<(), Error> {
        let url = self.client.url(&self.path);
        let unreachable = |error: &ureq::Error| Error::unreachable(&url, None, error);
        let mut request =
            self.client.request(Method::GET).uri(&url).header(ACCEPT, "text/event-stream");
        if let Some(id) = self.stream.last_id() {
            request = request.header("last-event-id", id);
        }
        let request = request.body(()).map_err(|error| unreachable(&error.into()))?;
        let mut response = request
            .with_agent(&self.client.agent)
            .configure()
            .timeout_recv_response(Some(CALL_TIMEOUT))
            .timeout_per_read(Some(self.silence))
            .run()
            .map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        match status {
            200 => {}
            204 => {
                self.ended = true;
                return Ok(());
            }
            _ => {
                let body = response.body_mut().with_config().limit(LONGEST_REFUSAL).read_to_vec();
                let body = body.map_err(|error| unreachable(&error))?;
                return Err(refusal(&url, status, response.headers(), &body));
            }
        }
        let media = text(response.headers(), &CONTENT_TYPE).unwrap_or("no type");
        if media.split(';').next().map(str::trim) != Some("text/event-stream") {
            let why = format!("its body is {media}, not a stream of events");
            return Err(Error::NotJson { url, status, why });
        }
        self.reader = Some(response.into_body().into_reader());
        Ok(())
    }

    fn read(&mut self) -> Result<(), Error> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let mut bytes = [0; 8192];
        match reader.read(&mut bytes) {
            Ok(0) | Err(_) => {
                self.reader = None;
                self.attempts = self.attempts.max(1);
                self.stream = std::mem::take(&mut self.stream).resumed();
                Ok(())
            }
            Ok(count) => {
                self.attempts = 0;
                self.stream.push(&bytes[..count]).map_err(|_| Error::NotJson {
                    url: self.client.url(&self.path),
                    status: 200,
                    why: "one of its events is longer than any may be".to_owned(),
                })
            }
        }
    }
}

/// Whether trying again may help.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        _ => error.status().is_some_and(|status| status >= 500 || matches!(status, 408 | 429)),
    }
}

impl Iterator for Events {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.stream.next_event() {
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            let done = if self.reader.is_some() {
                self.read()
            } else {
                if self.attempts > 0 {
                    sleep(self.pause());
                }
                self.attempts += 1;
                self.connect()
            };
            if let Err(error) = done {
                self.ended = !is_passing(&error);
                return Some(Err(error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::Endpoint;

    #[test]
    fn a_connection_that_falls_silent_is_made_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let mut events = Client::new(&Endpoint::new(url)).expect("a client").events("/events");
        events.silence = Duration::from_millis(200);
        let server = std::thread::spawn(move || {
            // Neither connection is ever closed: the first is only silent.
            [1, 2].map(|id| {
                let (stream, _) = listener.accept().expect("a client");
                let mut request = BufReader::new(stream);
                let asked: Vec<String> = (&mut request)
                    .lines()
                    .map(|line| line.expect("a line").to_lowercase())
                    .take_while(|line| !line.is_empty())
                    .collect();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                let event = format!("{head}retry: 10\nid: {id}\ndata: {id}\n\n");
                request.get_mut().write_all(event.as_bytes()).expect("sent");
                (request, asked.contains(&"last-event-id: 1".to_owned()))
            })
        });
        let read: Vec<String> = events.take(2).map(|event| event.expect("an event").data).collect();
        assert_eq!(read, ["1", "2"]);
        let resumed = server.join().expect("a server").map(|(_, resumed)| resumed);
        assert_eq!(resumed, [false, true]);
    }
}
