//! RDMA throughput and latency with perftest, and whether RDMA connects at all.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::isolation::Reach;
use crate::listener::listen;
use crate::rdma::{RxeCounters, rxe_counters};
use crate::{
    BitRate, Host, HostError, Latency, Loss, Output, ProbeError, RdmaPort, TcpServer, TcpStream,
};

/// One of perftest's programs, with how much it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Perftest {
    /// Which program.
    pub tool: &'static str,
    /// Message size, in bytes.
    pub size: u32,
    /// Messages; perftest wants at least 5.
    pub iterations: u32,
}

impl Perftest {
    /// RDMA writes one way: throughput.
    pub const fn write_bw(size: u32, iterations: u32) -> Self {
        Self { tool: "ib_write_bw", size, iterations }
    }

    /// RDMA writes to and fro: half the round trip.
    pub const fn write_lat(iterations: u32) -> Self {
        Self { tool: "ib_write_lat", size: 2, iterations }
    }

    /// Sends and receives to and fro: half the round trip.
    pub const fn send_lat(iterations: u32) -> Self {
        Self { tool: "ib_send_lat", size: 2, iterations }
    }

    fn command(&self, port: &RdmaPort, tcp_port: u16) -> String {
        let units = if self.tool.ends_with("_bw") { " --report_gbits" } else { "" };
        format!(
            "LC_ALL=C {} -F{units} -d {} -x {} -s {} -n {} -p {tcp_port}",
            self.tool, port.device, port.gid.index, self.size, self.iterations
        )
    }
}

/// One end of an RDMA connection.
#[derive(Clone, Copy, Debug)]
pub struct RdmaEndpoint<'a> {
    /// The machine.
    pub host: &'a dyn Host,
    /// Its RDMA port.
    pub port: &'a RdmaPort,
    /// Where the machine is reached by TCP, by which the ends tell each other their addresses
    /// before RDMA begins. It need not be the address of the RDMA port.
    pub exchange: IpAddr,
}

/// What one of perftest's programs measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// Message size, in bytes.
    pub size: u64,
    /// Messages sent.
    pub iterations: u64,
    /// RoCE path MTU in use, in bytes, where the program says it.
    pub path_mtu: Option<u64>,
    /// Payload, from the programs that measure it.
    pub throughput: Option<BitRate>,
    /// Time one way, from the programs that measure it.
    pub latency: Option<Latency>,
}

/// A sample, and what its packets met on the way.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// What was measured.
    pub sample: Sample,
    /// RoCE packets lost; `None` where the devices do not count packets.
    pub loss: Option<Loss>,
}

/// Two streams at once on one VF.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Converged {
    /// The RDMA stream.
    pub rdma: Measured,
    /// The TCP stream.
    pub tcp: TcpStream,
    /// How long both ran at the same time.
    pub together: Duration,
}

const TCP_PORT: u16 = 18515;

/// perftest finds out how fast the CPU counts once all is sent. Where the CPU is taken from it just
/// then it cannot, says this (`get_clock.c`), and reports times without end and no throughput, as a
/// success. Then all is done again, so often at most.
const NO_CLOCK: &str = "Correlation coefficient r^2";
const CLOCK_TRIES: usize = 3;

/// Measure from `client` to `server`. `within` bounds each run of the client, of which there are
/// more than one where its CPU's clock could not be measured; the server is stopped whatever happens.
///
/// # Errors
/// [`ProbeError::Tool`] with both ends' words; [`ProbeError::Host`] when it did not end in time.
pub fn rdma_measure(
    test: &Perftest,
    server: &RdmaEndpoint<'_>,
    client: &RdmaEndpoint<'_>,
    within: Duration,
) -> Result<Measured, ProbeError> {
    let ends = [server, client];
    let before = counters(ends)?;
    let (mut ran, mut served) = run_once(test, server, client, within)?;
    for _ in 1..CLOCK_TRIES {
        if !ran.stderr.contains(NO_CLOCK) {
            break;
        }
        (ran, served) = run_once(test, server, client, within)?;
    }
    let sample = sample_of(test, client.host, &ran, &served)?;
    let loss = counters(ends)?.zip(before).map(|(after, before)| {
        let [server, client] = [0, 1].map(|end| after[end].since(before[end]));
        server.loss_between(client)
    });
    Ok(Measured { sample, loss })
}

/// What the client and the server said.
fn run_once(
    test: &Perftest,
    server: &RdmaEndpoint<'_>,
    client: &RdmaEndpoint<'_>,
    within: Duration,
) -> Result<(Output, Output), ProbeError> {
    let mut serving =
        listen(test.tool, server.host, &test.command(server.port, TCP_PORT), TCP_PORT)?;
    let command = format!("{} {}", test.command(client.port, TCP_PORT), server.exchange);
    let ran = client.host.run(&command, within);
    let served = serving.stop()?;
    Ok((ran?, served))
}

fn counters(ends: [&RdmaEndpoint<'_>; 2]) -> Result<Option<[RxeCounters; 2]>, ProbeError> {
    let [server, client] = ends.map(|end| rxe_counters(end.host, &end.port.device));
    Ok(server?.zip(client?).map(|(server, client)| [server, client]))
}

fn sample_of(
    test: &Perftest,
    client: &dyn Host,
    ran: &Output,
    served: &Output,
) -> Result<Sample, ProbeError> {
    if ran.stderr.contains(NO_CLOCK) {
        let why =
            "it could not measure the speed of its CPU's counter; try it on a less busy machine";
        return Err(ProbeError::unreadable(test.tool, client.name(), why, &ran.stderr));
    }
    match parse(&ran.stdout) {
        Some(sample) if ran.success() => Ok(sample),
        _ if ran.success() => {
            Err(ProbeError::unreadable(test.tool, client.name(), "it has no table", &ran.stdout))
        }
        _ => Err(ProbeError::Tool {
            tool: test.tool,
            host: client.name().to_owned(),
            why: format!("{}; its server said: {}", last_words(ran), last_words(served)),
        }),
    }
}

/// perftest complains on both streams, so both are looked at and its frames are left out.
fn last_words(output: &Output) -> String {
    let lines = output.stderr.lines().chain(output.stdout.lines());
    let words: Vec<&str> = lines
        .map(str::trim)
        .filter(|line| {
            ["nable", "ailed", "ouldn't", "rror", "not found"].iter().any(|w| line.contains(w))
        })
        .collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join("; ") }
}

/// Send RDMA and TCP from `client` to `server`, whose VF is reached at `address`, at the same time:
/// a TCP stream of `duration` beside `test`.
///
/// # Errors
/// Those of [`rdma_measure`] and [`tcp_throughput`](crate::tcp_throughput).
pub fn converged(
    test: &Perftest,
    server: &RdmaEndpoint<'_>,
    client: &RdmaEndpoint<'_>,
    address: IpAddr,
    duration: Duration,
    within: Duration,
) -> Result<Converged, ProbeError> {
    let timed = |begin: Instant| (begin, Instant::now());
    std::thread::scope(|scope| {
        let tcp_server = TcpServer::start(server.host, 5201)?;
        let tcp = scope.spawn(move || {
            let begin = Instant::now();
            (tcp_server.stream_from(client.host, address, duration), timed(begin))
        });
        let begin = Instant::now();
        let rdma = rdma_measure(test, server, client, within);
        let rdma_time = timed(begin);
        let (tcp, tcp_time) = tcp.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let both_began = rdma_time.0.max(tcp_time.0);
        let one_ended = rdma_time.1.min(tcp_time.1);
        Ok(Converged {
            rdma: rdma?,
            tcp: tcp?,
            together: one_ended.saturating_duration_since(both_began),
        })
    })
}

/// Whether RDMA writes from `client` are acknowledged by `server`; for checks where they must not
/// be, and for their controls. The ends exchange their addresses at [`RdmaEndpoint::exchange`],
/// which must work in any case.
///
/// # Errors
/// [`ProbeError::Host`], [`ProbeError::NotListening`].
pub fn rdma_connects(
    server: &RdmaEndpoint<'_>,
    client: &RdmaEndpoint<'_>,
    patience: Duration,
) -> Result<Reach, ProbeError> {
    let test = Perftest::write_bw(1024, 5);
    let before = rxe_counters(client.host, &client.port.device)?;
    let mut serving =
        listen(test.tool, server.host, &test.command(server.port, TCP_PORT), TCP_PORT)?;
    let command = format!("{} {}", test.command(client.port, TCP_PORT), server.exchange);
    let ran = client.host.run(&command, patience);
    serving.stop()?;
    match ran {
        Ok(output) => Ok(reach_of(&output)),
        // The kernel's software RoCE takes a retry count of 7, which perftest asks for, as "for
        // ever": silence shows as a client that does not end.
        Err(HostError::Deadline { .. }) => {
            let after = rxe_counters(client.host, &client.port.device)?;
            Ok(unended(after.zip(before).map(|(after, before)| after.since(before)), patience))
        }
        Err(error) => Err(error.into()),
    }
}

fn reach_of(output: &Output) -> Reach {
    if output.success() && parse(&output.stdout).is_some() {
        return Reach::Answered;
    }
    let all = format!("{}\n{}", output.stdout, output.stderr);
    if all.contains("to RTR") {
        return Reach::Silent("the peer's address could not be resolved on the link".to_owned());
    }
    if all.contains("Completion with error") || all.contains("Failed status") {
        return Reach::Silent("RDMA writes were not acknowledged".to_owned());
    }
    Reach::Broke(last_words(output))
}

fn unended(packets: Option<RxeCounters>, patience: Duration) -> Reach {
    match packets {
        Some(RxeCounters { sent: 0, .. }) => {
            Reach::Broke(format!("no RDMA packet was sent in {patience:?}"))
        }
        Some(RxeCounters { sent, received: 0 }) => {
            Reach::Silent(format!("{sent} packets sent, none came back"))
        }
        Some(_) => Reach::Answered,
        None => Reach::Silent(format!("RDMA writes were not acknowledged in {patience:?}")),
    }
}

/// Reads the table that each of perftest's programs ends with: a line of column names that begins
/// with `#bytes`, then a line of as many numbers.
fn parse(text: &str) -> Option<Sample> {
    let mut lines = text.lines();
    let names = columns(lines.find(|line| line.trim_start().starts_with("#bytes"))?);
    let row = lines.find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let row = words.len() == names.len() && words.iter().all(|word| figure(word).is_some());
        row.then_some(words)
    })?;
    let column = |name: &str| names.iter().position(|column| column.starts_with(name));
    let count = |name: &str| row[column(name)?].parse::<u64>().ok();
    let named = |name: &str| column(name).and_then(|at| Some((figure(row[at])?, &names[at])));
    let size = count("#bytes")?;
    let iterations = count("#iterations")?;
    let throughput = named("BW average").and_then(|(value, column)| {
        let bits = if column.contains("[Gb/sec]") {
            value * 1e9
        } else {
            // Written [MB/sec] by older releases, and 2^20 bytes in all of them.
            value * 8.0 * 1_048_576.0
        };
        BitRate::from_bits_per_second(bits)
    });
    let average = named("t_avg").map(|(value, _)| value);
    let latency = named("t_typical").map(|(value, _)| value).or(average).map(|typical_us| {
        let or_typical = |name| named(name).map_or(typical_us, |(value, _)| value);
        Latency { min_us: or_typical("t_min"), typical_us, max_us: or_typical("t_max") }
    });
    if throughput.is_none() && latency.is_none() {
        return None;
    }
    Some(Sample { size, iterations, path_mtu: path_mtu(text), throughput, latency })
}

/// A number that measures something: finite and not negative.
fn figure(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// Column names, which may have a space inside: `BW average[Gb/sec]`, `99% percentile[usec]`.
fn columns(header: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut open = false;
    for word in header.split_whitespace() {
        match names.last_mut() {
            Some(last) if open => {
                last.push(' ');
                last.push_str(word);
            }
            _ => names.push(word.to_owned()),
        }
        open = word == "BW" || word == "tps" || word.ends_with('%');
    }
    names
}

/// ` Mtu             : 4096[B]`
fn path_mtu(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.trim_start().starts_with("Mtu "))?;
    line.split_once(':')?.1.trim().strip_suffix("[B]")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gid;
    use crate::scripted::Scripted;
    use proptest::prelude::*;

    const WRITE_BW: &str = include_str!("../samples/ib_write_bw.txt");
    const WRITE_BW_MIB: &str = include_str!("../samples/ib_write_bw-mib.txt");
    const WRITE_LAT: &str = include_str!("../samples/ib_write_lat.txt");
    const WRITE_LAT_DURATION: &str = include_str!("../samples/ib_write_lat-duration.txt");
    const SEND_LAT: &str = include_str!("../samples/ib_send_lat.txt");
    const NO_PATH: &str = " Failed to modify QP 22 to RTR\n Unable to Connect the HCA's\n";

    #[test]
    fn throughput_is_read_in_either_unit() {
        let sample = parse(WRITE_BW).expect("readable");
        assert_eq!((sample.size, sample.iterations, sample.path_mtu), (65536, 100, Some(4096)));
        assert_eq!(sample.throughput.expect("measured").to_string(), "150 Mb/s");
        assert_eq!(sample.latency, None);
        let sample = parse(WRITE_BW_MIB).expect("readable");
        assert_eq!(sample.throughput.expect("measured").to_string(), "151 Mb/s");
    }

    #[test]
    fn latency_is_read_from_both_programs() {
        let latency = |text| parse(text).expect("readable").latency.expect("measured");
        let want = Latency { min_us: 534.43, typical_us: 1369.18, max_us: 6465.43 };
        assert_eq!(latency(WRITE_LAT), want);
        assert_eq!(latency(SEND_LAT).to_string(), "1.40 ms");
    }

    #[test]
    fn a_run_by_duration_has_only_the_average() {
        let latency = parse(WRITE_LAT_DURATION).expect("readable").latency.expect("measured");
        assert_eq!(latency, Latency { min_us: 1686.81, typical_us: 1686.81, max_us: 1686.81 });
    }

    #[test]
    fn a_warning_between_the_header_and_the_row_is_passed_over() {
        let warned = WRITE_BW.replace(
            "MsgRate[Mpps]\n",
            "MsgRate[Mpps]\nConflicting CPU frequency values detected: 800.0 != 2100.0\n",
        );
        assert_ne!(warned, WRITE_BW);
        assert_eq!(parse(&warned), parse(WRITE_BW));
    }

    #[test]
    fn a_rate_that_is_no_number_is_no_result() {
        for nonsense in ["inf", "nan", "-nan"] {
            assert_eq!(parse(&WRITE_BW.replace(" 0.15 ", &format!(" {nonsense} "))), None);
        }
    }

    fn port() -> RdmaPort {
        let address = "10.0.0.1".parse().expect("valid");
        RdmaPort { device: "rxe0".to_owned(), gid: Gid { index: 1, address, v2: true } }
    }

    fn server() -> Scripted {
        Scripted::new("a2").endless("ib_write_bw").answer("/proc/net/tcp", 0, "", "").answer(
            "hw_counters",
            0,
            "503\n2003\n",
            "",
        )
    }

    fn between<T>(
        server: &Scripted,
        client: &Scripted,
        then: impl FnOnce(&RdmaEndpoint<'_>, &RdmaEndpoint<'_>) -> T,
    ) -> T {
        let port = port();
        let exchange = "10.1.0.2".parse().expect("valid");
        then(
            &RdmaEndpoint { host: server, port: &port, exchange },
            &RdmaEndpoint { host: client, port: &port, exchange },
        )
    }

    fn measure(client: &Scripted, server: &Scripted) -> Result<Measured, ProbeError> {
        let test = Perftest::write_bw(65536, 100);
        between(server, client, |s, c| rdma_measure(&test, s, c, Duration::from_secs(1)))
    }

    #[test]
    fn a_measurement_uses_the_gid_found_and_stops_its_server() {
        let server = server();
        let client = Scripted::new("a1").answer("ib_write_bw", 0, WRITE_BW, "").answer(
            "hw_counters",
            0,
            "2003\n503\n",
            "",
        );
        let measured = measure(&client, &server).expect("measured");
        assert_eq!(measured.loss, Some(Loss { lost: 0, of: 0 }));
        let commands = client.commands();
        let command = commands.iter().find(|c| c.contains("ib_write_bw")).expect("run");
        assert!(command.contains(" -x 1 ") && command.ends_with(" 10.1.0.2"), "{command}");
        assert_eq!(server.stopped(), 1);
    }

    #[test]
    fn a_client_that_fails_is_quoted_and_its_server_is_stopped() {
        let server = server();
        let client = Scripted::new("a1").answer("ib_write_bw", 1, NO_PATH, "").answer(
            "hw_counters",
            0,
            "1\n1\n",
            "",
        );
        let text = measure(&client, &server).expect_err("failed").to_string();
        assert!(text.contains("a1") && text.contains("to RTR"), "{text}");
        assert_eq!(server.stopped(), 1);
    }

    #[test]
    fn a_client_without_a_clock_is_run_again_and_its_figures_are_never_taken() {
        let server = server();
        let no_clock = "Correlation coefficient r^2: 0.214 < 0.9\n";
        let client = Scripted::new("a1").answer("ib_write_bw", 0, WRITE_BW, no_clock).answer(
            "hw_counters",
            0,
            "1\n1\n",
            "",
        );
        let text = measure(&client, &server).expect_err("no clock").to_string();
        assert!(text.contains("a1") && text.contains("less busy"), "{text}");
        let runs = client.commands().iter().filter(|it| it.contains("ib_write_bw")).count();
        assert_eq!((runs, server.stopped()), (CLOCK_TRIES, CLOCK_TRIES));
    }

    fn connects(client: &Scripted) -> Reach {
        let server = server();
        let reach = between(&server, client, |s, c| rdma_connects(s, c, Duration::from_secs(1)));
        assert_eq!(server.stopped(), 1);
        reach.expect("tried")
    }

    #[test]
    fn acknowledged_writes_are_an_answer() {
        let client = Scripted::new("a3").answer("ib_write_bw", 0, WRITE_BW, "").answer(
            "hw_counters",
            0,
            "0\n0\n",
            "",
        );
        assert_eq!(connects(&client), Reach::Answered);
    }

    #[test]
    fn an_unresolved_peer_is_silence_and_a_missing_device_is_not() {
        let client = |said: &str| {
            Scripted::new("b1").answer("ib_write_bw", 1, said, "").answer(
                "hw_counters",
                0,
                "0\n0\n",
                "",
            )
        };
        assert!(matches!(connects(&client(NO_PATH)), Reach::Silent(_)));
        let no_device = " Unable to find the Infiniband/RoCE device\n";
        assert!(matches!(connects(&client(no_device)), Reach::Broke(_)));
        let no_exchange = " Couldn't connect to 10.1.0.2:18515\n";
        assert!(matches!(connects(&client(no_exchange)), Reach::Broke(_)));
    }

    #[test]
    fn a_client_that_never_ends_is_judged_by_its_packets() {
        let packets = |sent, received| unended(Some(RxeCounters { sent, received }), TICK);
        assert!(matches!(packets(40, 0), Reach::Silent(seen) if seen.contains("40")));
        assert!(matches!(packets(0, 0), Reach::Broke(_)));
        assert_eq!(packets(40, 1), Reach::Answered);
    }

    const TICK: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(?s)(#bytes|#iterations|BW average|t_avg|[0-9.]{1,9}| |\n|.){0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn damaged_output_is_read_without_panic(at in 0..WRITE_LAT.len(), byte in "[ -~\n]") {
            let mut text = WRITE_LAT.to_owned();
            text.replace_range(at..=at, &byte);
            let _ = parse(&text);
        }
    }
}
