//! TCP throughput with iperf3, read from its JSON.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::figures::whole_seconds;
use crate::listener::{Listener, listen};
use crate::{BitRate, Host, Loss, Output, ProbeError};

/// One TCP stream as its receiver saw it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TcpStream {
    /// Payload that arrived.
    pub throughput: BitRate,
    /// Segments sent again, of those that the payload needs at least.
    pub loss: Loss,
}

/// An iperf3 server that waits for one stream. Dropping it stops it.
pub struct TcpServer<'a> {
    listener: Listener<'a>,
    port: u16,
}

impl<'a> TcpServer<'a> {
    /// Start a server and wait until it listens.
    ///
    /// # Errors
    /// [`ProbeError::NotListening`], [`ProbeError::Host`].
    pub fn start(host: &'a dyn Host, port: u16) -> Result<Self, ProbeError> {
        let listener = listen("iperf3", host, &format!("LC_ALL=C iperf3 -s -1 -p {port}"), port)?;
        Ok(Self { listener, port })
    }

    /// Send to this server, which is reached at `address`, for `duration`.
    ///
    /// # Errors
    /// [`ProbeError::Tool`] when the stream broke; [`ProbeError::Host`] when it did not end in
    /// time.
    pub fn stream_from(
        mut self,
        client: &dyn Host,
        address: IpAddr,
        duration: Duration,
    ) -> Result<TcpStream, ProbeError> {
        let command = format!(
            "LC_ALL=C iperf3 -J -c {address} -p {} -t {} --connect-timeout 5000",
            self.port,
            whole_seconds(duration)
        );
        let output = client.run(&command, duration + Duration::from_secs(30))?;
        let stream = stream(client, &output);
        self.listener.stop()?;
        stream
    }
}

/// Send TCP from `client` to `server`, which is reached at `address`, for `duration`.
///
/// # Errors
/// Those of [`TcpServer::start`] and [`TcpServer::stream_from`].
pub fn tcp_throughput(
    server: &dyn Host,
    address: IpAddr,
    client: &dyn Host,
    duration: Duration,
) -> Result<TcpStream, ProbeError> {
    TcpServer::start(server, 5201)?.stream_from(client, address, duration)
}

fn stream(client: &dyn Host, output: &Output) -> Result<TcpStream, ProbeError> {
    match parse(&output.stdout) {
        Ok(stream) => Ok(stream),
        Err(Refusal::Said(why)) => {
            Err(ProbeError::Tool { tool: "iperf3", host: client.name().to_owned(), why })
        }
        Err(Refusal::Unreadable(_)) if !output.success() => {
            Err(ProbeError::tool("iperf3", client, output))
        }
        Err(Refusal::Unreadable(why)) => {
            Err(ProbeError::unreadable("iperf3", client.name(), why, &output.stdout))
        }
    }
}

#[derive(Debug, PartialEq)]
enum Refusal {
    /// iperf3's own words.
    Said(String),
    Unreadable(String),
}

#[derive(Deserialize)]
struct Document {
    error: Option<String>,
    #[serde(default)]
    start: Start,
    #[serde(default)]
    end: End,
}

#[derive(Deserialize, Default)]
struct Start {
    tcp_mss_default: Option<u64>,
    tcp_mss: Option<u64>,
}

#[derive(Deserialize, Default)]
struct End {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    bytes: u64,
    bits_per_second: f64,
    retransmits: Option<u64>,
}

fn parse(text: &str) -> Result<TcpStream, Refusal> {
    let document: Document =
        serde_json::from_str(text).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    if let Some(error) = document.error {
        return Err(Refusal::Said(error));
    }
    let missing = |what: &str| Refusal::Unreadable(format!("there is no {what}"));
    let received = document.end.sum_received.ok_or_else(|| missing("sum_received"))?;
    let sent = document.end.sum_sent.ok_or_else(|| missing("sum_sent"))?;
    let throughput = BitRate::from_bits_per_second(received.bits_per_second)
        .filter(|_| received.bytes > 0)
        .ok_or_else(|| missing("payload that arrived"))?;
    let segment = document.start.tcp_mss.or(document.start.tcp_mss_default).unwrap_or(0).max(1);
    let loss =
        Loss { lost: sent.retransmits.unwrap_or(0), of: sent.bytes.div_ceil(segment).max(1) };
    Ok(TcpStream { throughput, loss })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use proptest::prelude::*;

    const STREAM: &str = include_str!("../samples/iperf3-stream.json");
    const REFUSED: &str = include_str!("../samples/iperf3-refused.json");

    fn to() -> IpAddr {
        "10.9.0.2".parse().expect("valid")
    }

    fn listening() -> Scripted {
        Scripted::new("a2").endless("iperf3 -s").answer("/proc/net/tcp", 0, "", "")
    }

    #[test]
    fn a_stream_gives_what_arrived() {
        let stream = parse(STREAM).expect("readable");
        assert_eq!(stream.throughput.to_string(), "9.73 Gb/s");
        assert_eq!(stream.loss, Loss { lost: 0, of: 1_220_542_464_u64.div_ceil(8948) });
    }

    #[test]
    fn a_refused_stream_is_an_error_in_the_tools_words_and_the_server_is_stopped() {
        let (server, client) =
            (listening(), Scripted::new("a1").answer("iperf3 -J -c 10.9.0.2", 1, REFUSED, ""));
        let error = tcp_throughput(&server, to(), &client, Duration::from_secs(1));
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("a1") && text.contains("Connection refused"), "{text}");
        assert_eq!(server.stopped(), 1);
    }

    #[test]
    fn a_client_that_hangs_leaves_no_server_behind() {
        let (server, client) = (listening(), Scripted::new("a1").endless("iperf3 -J"));
        let error = tcp_throughput(&server, to(), &client, Duration::from_secs(1));
        assert!(matches!(error, Err(ProbeError::Host(_))), "{error:?}");
        assert_eq!(server.stopped(), 1);
    }

    #[test]
    fn a_missing_iperf3_is_named() {
        let server = Scripted::new("a2")
            .answer("iperf3 -s", 127, "", "sh: 1: iperf3: not found")
            .answer("/proc/net/tcp", 1, "", "");
        let error = tcp_throughput(&server, to(), &server, Duration::from_secs(1));
        let text = error.expect_err("missing").to_string();
        assert!(text.contains("not found") && text.contains("5201"), "{text}");
    }

    #[test]
    fn no_payload_is_no_throughput() {
        let text = STREAM.replace("1220542464", "0");
        assert!(matches!(parse(&text), Err(Refusal::Unreadable(_))));
    }

    proptest! {
        #[test]
        fn damaged_output_is_read_without_panic(at in 0..STREAM.len(), byte in "[ -~]") {
            let mut text = STREAM.to_owned();
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..=at, &byte);
            }
            let _ = parse(&text);
        }
    }
}
