//! ICMP echo: reachability, round-trip time, loss, and the largest packet that passes unfragmented.

use std::net::IpAddr;
use std::time::Duration;

use crate::figures::whole_seconds;
use crate::isolation::Reach;
use crate::{Host, Latency, Loss, Output, ProbeError};

/// What to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PingPlan {
    /// How many echo requests.
    pub count: u32,
    /// Time between two of them.
    pub interval: Duration,
    /// Size of the whole IP packet, in bytes; it is never fragmented.
    pub packet: u16,
    /// How long to wait for the last answer.
    pub patience: Duration,
}

impl Default for PingPlan {
    fn default() -> Self {
        Self {
            count: 10,
            interval: Duration::from_millis(50),
            packet: 84,
            patience: Duration::from_secs(2),
        }
    }
}

impl PingPlan {
    fn command(&self, to: IpAddr) -> String {
        let family = if to.is_ipv4() { 4 } else { 6 };
        format!(
            "LC_ALL=C ping -{family} -n -M do -c {} -i {} -W {} -s {} {to}",
            self.count,
            self.interval.as_secs_f64(),
            whole_seconds(self.patience),
            u32::from(self.packet).saturating_sub(headers(to)),
        )
    }

    /// Longest this can take on a machine that still answers, slow as emulated CPUs are.
    fn deadline(&self) -> Duration {
        self.interval * self.count + self.patience + Duration::from_secs(20)
    }
}

/// IP and ICMP header, in bytes (RFC 791, RFC 792; RFC 8200, RFC 4443).
fn headers(to: IpAddr) -> u32 {
    if to.is_ipv4() { 28 } else { 48 }
}

/// What came back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ping {
    /// Requests without an answer.
    pub loss: Loss,
    /// Round-trip time; `None` when nothing came back, or a packet was too small to carry a time.
    pub round_trip: Option<Latency>,
}

/// Send echo requests.
///
/// # Errors
/// [`ProbeError::Host`]; [`ProbeError::Tool`] when ping itself could not send.
pub fn ping(from: &dyn Host, to: IpAddr, plan: &PingPlan) -> Result<Ping, ProbeError> {
    let output = from.run(&plan.command(to), plan.deadline())?;
    parse(&output.stdout).ok_or_else(|| match output.status {
        0 | 1 => {
            ProbeError::unreadable("ping", from.name(), "it has no statistics", &output.stdout)
        }
        _ => ProbeError::tool("ping", from, &output),
    })
}

/// Whether echo requests are answered at all; for checks where they must not be.
pub(crate) fn reach(from: &dyn Host, to: IpAddr, count: u32) -> Result<Reach, ProbeError> {
    let plan = PingPlan {
        count,
        interval: Duration::from_millis(200),
        patience: Duration::from_secs(1),
        ..PingPlan::default()
    };
    let output = from.run(&plan.command(to), plan.deadline())?;
    Ok(reach_of(&output))
}

fn reach_of(output: &Output) -> Reach {
    match parse(&output.stdout) {
        Some(Ping { loss, .. }) if loss.lost < loss.of => Reach::Answered,
        Some(Ping { loss, .. }) => Reach::Silent(format!("{} requests unanswered", loss.of)),
        None => Reach::Broke(output.complaint()),
    }
}

/// Send three packets of exactly `mtu` bytes, never fragmented: they pass only if every hop has at
/// least this MTU.
///
/// # Errors
/// Those of [`ping`].
pub fn largest_packet(from: &dyn Host, to: IpAddr, mtu: u16) -> Result<Ping, ProbeError> {
    ping(from, to, &PingPlan { count: 3, packet: mtu, ..PingPlan::default() })
}

/// Reads iputils' and busybox's closing lines.
fn parse(text: &str) -> Option<Ping> {
    let counts = text.lines().find(|line| line.contains("packets transmitted"))?;
    let number_before = |what: &str| -> Option<u64> {
        let (before, _) = counts.split_once(what)?;
        before.trim_end().rsplit([' ', ',']).next()?.parse().ok()
    };
    let sent = number_before("packets transmitted")?;
    // iputils: "5 received"; busybox: "5 packets received".
    let received = number_before("packets received").or_else(|| number_before("received"))?;
    let loss = Loss { lost: sent.saturating_sub(received), of: sent };
    Some(Ping { loss, round_trip: text.lines().find_map(round_trip) })
}

/// `rtt min/avg/max/mdev = 0.051/0.067/0.115/0.024 ms` or `round-trip min/avg/max = 1/2/3 ms`.
fn round_trip(line: &str) -> Option<Latency> {
    let (names, values) = line.split_once(" = ")?;
    if !names.contains("min/avg/max") {
        return None;
    }
    let (values, unit) = values.trim().split_once(' ')?;
    // What follows the unit (", pipe 2") is of no use here.
    let micros = match unit.split(',').next()?.trim() {
        "ms" => 1000.0,
        "s" => 1_000_000.0,
        _ => return None,
    };
    let mut values = values.split('/').map(|value| value.parse::<f64>().ok());
    let mut next = || values.next()?.filter(|v| v.is_finite() && *v >= 0.0).map(|v| v * micros);
    Some(Latency { min_us: next()?, typical_us: next()?, max_us: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use proptest::prelude::*;

    const ANSWERED: &str = include_str!("../samples/ping-answered.txt");
    const TOO_LONG: &str = include_str!("../samples/ping-too-long.txt");
    const SILENT: &str = include_str!("../samples/ping-silent.txt");
    const BUSYBOX: &str = "3 packets transmitted, 3 packets received, 0% packet loss\n\
                           round-trip min/avg/max = 0.100/0.200/0.300 ms\n";

    fn to() -> IpAddr {
        "10.9.0.2".parse().expect("valid")
    }

    #[test]
    fn answers_give_loss_and_round_trip() {
        let ping = parse(ANSWERED).expect("readable");
        assert_eq!(ping.loss, Loss { lost: 0, of: 5 });
        assert_eq!(ping.round_trip.expect("there").to_string(), "67.0 µs");
        assert_eq!(parse(BUSYBOX).expect("readable").loss, Loss { lost: 0, of: 3 });
    }

    #[test]
    fn silence_is_loss_and_no_error() {
        let host = Scripted::new("a1").answer("ping", 1, SILENT, "");
        let ping = ping(&host, to(), &PingPlan::default()).expect("an answer");
        assert_eq!(ping, Ping { loss: Loss { lost: 2, of: 2 }, round_trip: None });
        assert!(matches!(reach(&host, to(), 2), Ok(Reach::Silent(_))));
    }

    #[test]
    fn a_packet_above_the_mtu_is_lost() {
        let host = Scripted::new("a1").answer(" -s 8972 ", 1, TOO_LONG, "");
        let ping = largest_packet(&host, to(), 9000).expect("an answer");
        assert_eq!(ping.loss.lost, ping.loss.of);
    }

    #[test]
    fn a_ping_that_cannot_send_is_a_broken_tool_and_no_silence() {
        let host =
            Scripted::new("a1").answer("ping", 2, "", "ping: connect: Network is unreachable\n");
        let error = ping(&host, to(), &PingPlan::default()).expect_err("cannot send").to_string();
        assert!(error.contains("a1") && error.contains("unreachable"), "{error}");
        assert!(matches!(reach(&host, to(), 2), Ok(Reach::Broke(_))));
    }

    #[test]
    fn a_real_ping_of_this_machine_is_read() {
        let here = crate::LocalHost::new("here");
        let ping =
            ping(&here, "127.0.0.1".parse().expect("valid"), &PingPlan::default()).expect("sent");
        assert!(ping.loss.none());
        assert!(ping.round_trip.is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(?s).{0,300}") {
            let _ = parse(&text);
        }

        #[test]
        fn damaged_output_is_read_without_panic(at in 0..ANSWERED.len(), byte in "[ -~/,=\n]") {
            let mut text = ANSWERED.to_owned();
            text.replace_range(at..=at, &byte);
            let _ = parse(&text);
        }
    }
}
