//! Metrics for whoever asks: `GET /metrics` over HTTP/1.1, on a loopback address or a Unix socket.
//! One request a connection, one at a time, each with little time: it must not matter to the agent
//! who asks, or how badly.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a request may take, and its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request's head. Prometheus sends a few hundred.
const MOST: usize = 8 * 1024;

/// Connections that are served at once.
const AT_ONCE: usize = 64;

/// Where metrics are to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// A loopback address with a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(address) => Err(format!(
                "{} is no loopback address: metrics are not for everybody; use 127.0.0.1:{}, or a \
                 Unix socket, and a proxy before it",
                address.ip(),
                address.port()
            )),
            Err(_) => Err(format!("'{text}' is neither 127.0.0.1:PORT nor an absolute path")),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Answer from now on, on a thread of its own, with what `metrics` gives. Where it listens.
///
/// # Errors
/// What the system says to listening there.
pub(super) fn start(
    listen: &Listen,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
) -> io::Result<Listen> {
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            let bound = listener.local_addr()?;
            spawn(move || serve(listener.incoming(), &metrics))?;
            Ok(Listen::Tcp(bound))
        }
        Listen::Unix(path) => {
            // What is left of one that was killed. Whoever else holds the seat was refused before.
            if std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket()) {
                std::fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            spawn(move || serve(listener.incoming(), &metrics))?;
            Ok(listen.clone())
        }
    }
}

/// A connection, whose patience can be set.
trait Stream: Read + Write + Send + 'static {
    fn be_patient(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn be_patient(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Stream for UnixStream {
    fn be_patient(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// Each connection on a thread of its own, so that those which say nothing keep nobody waiting. One
/// too many is closed.
fn serve<S: Stream>(
    incoming: impl Iterator<Item = io::Result<S>>,
    metrics: &Arc<dyn Fn() -> String + Send + Sync>,
) {
    let served = Arc::new(());
    for stream in incoming {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: they come back.
            std::thread::sleep(PATIENCE / 10);
            continue;
        };
        if Arc::strong_count(&served) > AT_ONCE || stream.be_patient(PATIENCE).is_err() {
            continue;
        }
        let (one, metrics) = (Arc::clone(&served), Arc::clone(metrics));
        let _ = spawn(move || {
            let _ = answer(stream, &*metrics);
            drop(one);
        });
    }
}

fn spawn(serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map(drop)
}

fn answer(mut stream: impl Read + Write, metrics: &dyn Fn() -> String) -> io::Result<()> {
    let head = head(&mut stream)?;
    let mut words = head.split([' ', '\r', '\n']);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", "text/plain; version=0.0.4", metrics()),
        ("GET" | "HEAD", _) => {
            ("404 Not Found", "text/plain", "only /metrics is here\n".to_owned())
        }
        _ => ("405 Method Not Allowed", "text/plain", "only GET is answered\n".to_owned()),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
         {allow}Connection: close\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// A request up to the empty line.
fn head(stream: &mut impl Read) -> io::Result<String> {
    let (mut head, until) = (Vec::new(), Instant::now() + PATIENCE);
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut piece)?;
        if read == 0 || head.len() + read > MOST || Instant::now() > until {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&piece[..read]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve_one() -> SocketAddr {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listen = start(&address, Arc::new(|| "lanekeeper_up 1\n".to_owned())).expect("listens");
        match listen {
            Listen::Tcp(address) => address,
            Listen::Unix(path) => panic!("{}", path.display()),
        }
    }

    fn ask(stream: &mut (impl Read + Write), request: &str) -> String {
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).expect("asked");
        stream.read_to_string(&mut answer).expect("answered");
        answer
    }

    #[test]
    fn a_request_for_metrics_gets_them_and_another_is_told_where_they_are() {
        let address = serve_one();
        let connect = || TcpStream::connect(address).expect("connects");
        let answer = ask(&mut connect(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nlanekeeper_up 1\n"), "{answer}");
        let answer = ask(&mut connect(), "GET / HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("/metrics"), "{answer}");
        let answer = ask(&mut connect(), "POST /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        let answer = ask(&mut connect(), "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.contains("Content-Length: 16") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[test]
    fn those_who_connect_and_say_nothing_hold_nobody_up() {
        let address = serve_one();
        let silent = (0..20).map(|_| TcpStream::connect(address).expect("connects"));
        let silent: Vec<TcpStream> = silent.collect();
        let begun = Instant::now();
        let mut stream = TcpStream::connect(address).expect("connects");
        let answer = ask(&mut stream, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("lanekeeper_up 1\n"), "{answer}");
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        drop(silent);
    }

    #[test]
    fn a_request_without_end_or_sense_is_closed_and_the_next_is_answered() {
        let address = serve_one();
        let endless = [b'x'; 2 * MOST];
        for request in [&endless[..], b"\xff\x00\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n"] {
            let mut stream = TcpStream::connect(address).expect("connects");
            // It may be closed before all is sent.
            let _ = stream.write_all(request);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 40"), "{answer:?}");
        }
        let mut stream = TcpStream::connect(address).expect("connects");
        let answer = ask(&mut stream, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("lanekeeper_up 1\n"), "{answer}");
    }

    #[test]
    fn a_socket_that_a_killed_agent_left_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.sock");
        drop(UnixListener::bind(&path).expect("left behind"));
        let listen = Listen::Unix(path.clone());
        start(&listen, Arc::new(|| "x 1\n".to_owned())).expect("listens");
        let mut stream = UnixStream::connect(&path).expect("connects");
        assert!(ask(&mut stream, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
        let file = folder.path().join("file");
        std::fs::write(&file, "somebody's").expect("written");
        start(&Listen::Unix(file.clone()), Arc::new(String::new)).expect_err("a file is there");
        assert_eq!(std::fs::read_to_string(file).expect("kept"), "somebody's");
    }

    #[test]
    fn an_address_that_others_can_reach_is_refused_with_what_to_use() {
        let error = "0.0.0.0:9000".parse::<Listen>().expect_err("not loopback");
        assert!(error.contains("127.0.0.1:9000"), "{error}");
        assert!("[::1]:9000".parse::<Listen>().is_ok());
        assert!("metrics.sock".parse::<Listen>().is_err());
    }
}
