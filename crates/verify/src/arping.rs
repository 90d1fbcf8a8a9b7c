//! ARP requests: whether a neighbour answers on the link itself, below any routing.

use std::net::Ipv4Addr;
use std::time::Duration;

use lanekeeper_model::MacAddr;

use crate::isolation::Reach;
use crate::{Host, Loss, Output, ProbeError};

/// What answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArpReplies {
    /// Requests without an answer.
    pub loss: Loss,
    /// Every station that answered, once; two of them share one address.
    pub stations: Vec<MacAddr>,
}

/// Ask `count` times, one second apart, who has `address`, out of `netdev`.
///
/// # Errors
/// [`ProbeError::Host`]; [`ProbeError::Tool`] when arping itself could not send.
pub fn arping(
    from: &dyn Host,
    netdev: &str,
    address: Ipv4Addr,
    count: u32,
) -> Result<ArpReplies, ProbeError> {
    let output = ask(from, netdev, address, count)?;
    parse(&output.stdout).ok_or_else(|| match output.status {
        0 | 1 => ProbeError::unreadable("arping", from.name(), "it has no totals", &output.stdout),
        _ => ProbeError::tool("arping", from, &output),
    })
}

/// Whether anything answers at all; for checks where nothing must.
pub(crate) fn reach(
    from: &dyn Host,
    netdev: &str,
    address: Ipv4Addr,
    count: u32,
) -> Result<Reach, ProbeError> {
    Ok(reach_of(&ask(from, netdev, address, count)?))
}

fn ask(from: &dyn Host, netdev: &str, address: Ipv4Addr, count: u32) -> Result<Output, ProbeError> {
    let patience = count + 1;
    let command = format!("LC_ALL=C arping -c {count} -w {patience} -I {netdev} {address}");
    Ok(from.run(&command, Duration::from_secs(u64::from(patience) + 20))?)
}

fn reach_of(output: &Output) -> Reach {
    match parse(&output.stdout) {
        Some(replies) if !replies.stations.is_empty() => Reach::Answered,
        Some(replies) => Reach::Silent(format!("{} requests unanswered", replies.loss.of)),
        None => Reach::Broke(output.complaint()),
    }
}

/// Reads iputils-arping's lines.
fn parse(text: &str) -> Option<ArpReplies> {
    let number_after = |word: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(word)?.split(' ').next()?.parse().ok())
    };
    let sent = number_after("Sent ")?;
    let received = number_after("Received ")?;
    let mut stations: Vec<MacAddr> = text.lines().filter_map(station).collect();
    stations.sort_unstable();
    stations.dedup();
    Some(ArpReplies { loss: Loss { lost: sent.saturating_sub(received), of: sent }, stations })
}

/// `Unicast reply from 10.9.0.2 [4A:A1:88:39:9B:70]  0.566ms`
fn station(line: &str) -> Option<MacAddr> {
    if !line.contains(" reply from ") {
        return None;
    }
    line.split_once('[')?.1.split_once(']')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use proptest::prelude::*;

    const ANSWERED: &str = include_str!("../samples/arping-answered.txt");
    const SILENT: &str = include_str!("../samples/arping-silent.txt");
    const WHO: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

    #[test]
    fn an_answer_names_the_station() {
        let host = Scripted::new("a1").answer("arping -c 3 -w 4 -I eth1 10.9.0.2", 0, ANSWERED, "");
        let replies = arping(&host, "eth1", WHO, 3).expect("an answer");
        assert!(replies.loss.none());
        assert_eq!(replies.stations, ["4a:a1:88:39:9b:70".parse().expect("valid")]);
    }

    #[test]
    fn two_stations_with_one_address_are_both_named() {
        let text = format!("{ANSWERED}Unicast reply from 10.9.0.2 [02:00:00:00:00:01]  1ms\n");
        assert_eq!(parse(&text).expect("readable").stations.len(), 2);
    }

    #[test]
    fn silence_is_told_from_an_interface_that_is_not_there() {
        let silent = Scripted::new("b1").answer("arping", 1, SILENT, "");
        assert!(matches!(reach(&silent, "eth1", WHO, 2), Ok(Reach::Silent(_))));
        let broken =
            Scripted::new("b1").answer("arping", 2, "", "arping: Device nope not available.");
        match reach(&broken, "nope", WHO, 2).expect("ran") {
            Reach::Broke(why) => assert!(why.contains("nope"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(?s)(Sent |Received |reply from |\\[|\\]|.){0,60}") {
            let _ = parse(&text);
        }
    }
}
