//! RDMA devices as the kernel shows them: setting up software RoCE on an interface, the GID to use,
//! and the device's packet counters.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use serde::Serialize;

use crate::{Host, Loss, ProbeError};

const SHORT: Duration = Duration::from_secs(30);

/// An entry of a GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Gid {
    /// Index in the port's table, as verbs programs want it.
    pub index: u32,
    /// Address; an IPv4 address where the GID is mapped from one.
    pub address: IpAddr,
    /// The entry speaks RoCE v2; false for RoCE v1.
    pub v2: bool,
}

/// A port of an RDMA device that is ready for RoCE v2 from one address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RdmaPort {
    /// RDMA device, as in `/sys/class/infiniband`.
    pub device: String,
    /// The RoCE v2 entry of the address in use.
    pub gid: Gid,
}

/// Put software RoCE (`rdma_rxe`) on `netdev` as RDMA device `device` unless it is there already,
/// wait until its port is active, and find the RoCE v2 GID of `address`.
///
/// # Errors
/// [`ProbeError::Host`] when the kernel refuses; [`ProbeError::NotActive`]; [`ProbeError::NoGid`].
pub fn rxe_on(
    host: &dyn Host,
    device: &str,
    netdev: &str,
    address: IpAddr,
) -> Result<RdmaPort, ProbeError> {
    host.check(
        &format!(
            "test -e /sys/class/infiniband/{device} || {{ modprobe -q rdma_rxe; \
             rdma link add {device} type rxe netdev {netdev}; }}"
        ),
        SHORT,
    )?;
    await_active(host, device)?;
    find_gid(host, device, address)
}

fn await_active(host: &dyn Host, device: &str) -> Result<(), ProbeError> {
    let patience = Duration::from_secs(10);
    let state = host.check(
        &format!(
            "i=0; while [ $i -lt {} ]; do read s < /sys/class/infiniband/{device}/ports/1/state; \
             case $s in *ACTIVE) break;; esac; sleep 0.1; i=$((i + 1)); done; echo \"$s\"",
            patience.as_millis() / 100
        ),
        patience * 4,
    )?;
    if state.trim().ends_with("ACTIVE") {
        return Ok(());
    }
    Err(ProbeError::NotActive {
        host: host.name().to_owned(),
        device: device.to_owned(),
        state: state.trim().to_owned(),
        after: patience,
    })
}

/// Find the RoCE v2 entry of `address` by type and address. Its index differs between devices and
/// even between starts, so it is never assumed (nccl#1573, network-operator#222).
fn find_gid(host: &dyn Host, device: &str, address: IpAddr) -> Result<RdmaPort, ProbeError> {
    // The kernel adds a GID on its own time after the address: look more than once. Reading the
    // type of an empty entry is an error, which skips it.
    let table = format!(
        "cd /sys/class/infiniband/{device}/ports/1 && for g in gids/*; do n=${{g#gids/}}; \
         read a < gids/$n; read t < gid_attrs/types/$n && echo \"$n $a $t\"; done 2>/dev/null"
    );
    let mut last = String::new();
    for _ in 0..10 {
        last = host.run(&table, SHORT)?.stdout;
        let found = gids(&last).into_iter().find(|gid| gid.v2 && gid.address == address);
        if let Some(gid) = found {
            return Ok(RdmaPort { device: device.to_owned(), gid });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Err(ProbeError::NoGid {
        host: host.name().to_owned(),
        device: device.to_owned(),
        address,
        table: if last.trim().is_empty() { "nothing".to_owned() } else { last.trim().to_owned() },
    })
}

/// Reads lines of `index gid type`.
fn gids(text: &str) -> Vec<Gid> {
    text.lines()
        .filter_map(|line| {
            let (index, rest) = line.trim().split_once(' ')?;
            let (gid, kind) = rest.split_once(' ')?;
            let v2 = match kind.trim() {
                "RoCE v2" => true,
                "IB/RoCE v1" | "RoCE v1" => false,
                _ => return None,
            };
            let address: Ipv6Addr = gid.parse().ok()?;
            let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
            Some(Gid { index: index.parse().ok()?, address, v2 })
        })
        .collect()
}

/// Packets of a software RoCE device since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxeCounters {
    /// Packets it sent.
    pub sent: u64,
    /// Packets it received.
    pub received: u64,
}

impl RxeCounters {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            received: self.received.saturating_sub(before.received),
        }
    }

    /// What two devices that spoke only to each other lost on the way.
    pub(crate) fn loss_between(self, other: Self) -> Loss {
        let of = self.sent + other.sent;
        Loss { lost: of.saturating_sub(self.received + other.received), of }
    }
}

/// The packet counters of a software RoCE device; `None` where the device has no such counters,
/// as a hardware NIC's driver names them otherwise.
///
/// # Errors
/// [`ProbeError::Host`].
pub fn rxe_counters(host: &dyn Host, device: &str) -> Result<Option<RxeCounters>, ProbeError> {
    let command =
        format!("cd /sys/class/infiniband/{device}/ports/1/hw_counters && cat sent_pkts rcvd_pkts");
    let output = host.run(&command, SHORT)?;
    let mut numbers = output.stdout.lines().map(|line| line.trim().parse().ok());
    let mut next = || numbers.next().flatten();
    Ok(next().zip(next()).map(|(sent, received)| RxeCounters { sent, received }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use proptest::prelude::*;

    const TABLE: &str = "0 fe80:0000:0000:0000:0000:00ff:fe00:0001 RoCE v2\n\
                         1 0000:0000:0000:0000:0000:ffff:0a00:0001 RoCE v2\n";
    /// A ConnectX has each address twice; the first is RoCE v1.
    const BOTH_VERSIONS: &str = "0 fe80:0000:0000:0000:0000:00ff:fe00:0001 IB/RoCE v1\n\
                                 1 fe80:0000:0000:0000:0000:00ff:fe00:0001 RoCE v2\n\
                                 2 0000:0000:0000:0000:0000:ffff:0a00:0001 IB/RoCE v1\n\
                                 6 0000:0000:0000:0000:0000:ffff:0a00:0001 RoCE v2\n";

    fn with_table(table: &str) -> Scripted {
        Scripted::new("a1")
            .answer("rdma link add", 0, "", "")
            .answer("ports/1/state", 0, "4: ACTIVE\n", "")
            .answer("gid_attrs", 1, table, "")
    }

    fn address() -> IpAddr {
        "10.0.0.1".parse().expect("valid")
    }

    #[test]
    fn the_gid_is_found_by_type_and_address() {
        for (table, index) in [(TABLE, 1), (BOTH_VERSIONS, 6)] {
            let port = rxe_on(&with_table(table), "rxe0", "eth1", address()).expect("found");
            assert_eq!((port.gid.index, port.gid.v2), (index, true));
        }
    }

    #[test]
    fn an_address_that_is_only_there_as_roce_v1_is_refused_with_the_table() {
        let table = BOTH_VERSIONS.replace("6 0000", "6 1111");
        let error = rxe_on(&with_table(&table), "rxe0", "eth1", address()).expect_err("no v2");
        let text = error.to_string();
        assert!(text.contains("10.0.0.1") && text.contains("2 0000:"), "{text}");
    }

    #[test]
    fn a_port_that_stays_down_says_so() {
        let host = Scripted::new("a1").answer("rdma link add", 0, "", "").answer(
            "ports/1/state",
            0,
            "1: DOWN\n",
            "",
        );
        let text = rxe_on(&host, "rxe0", "eth1", address()).expect_err("down").to_string();
        assert!(text.contains("rxe0") && text.contains("1: DOWN"), "{text}");
    }

    #[test]
    fn a_kernel_that_refuses_rxe_is_quoted() {
        let host =
            Scripted::new("a1").answer("rdma link add", 1, "", "error: No such file or directory");
        let text = rxe_on(&host, "rxe0", "eth1", address()).expect_err("refused").to_string();
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn what_two_devices_lost_is_what_was_sent_and_not_received() {
        let (a, b) =
            (RxeCounters { sent: 2003, received: 500 }, RxeCounters { sent: 503, received: 2003 });
        assert_eq!(a.loss_between(b), Loss { lost: 3, of: 2506 });
    }

    #[test]
    fn a_device_without_these_counters_has_none() {
        let host = Scripted::new("a1").answer("hw_counters", 1, "", "cat: sent_pkts: No such file");
        assert_eq!(rxe_counters(&host, "mlx5_0").expect("asked"), None);
        let host = Scripted::new("a1").answer("hw_counters", 0, "2003\n503\n", "");
        let counters = rxe_counters(&host, "rxe0").expect("asked");
        assert_eq!(counters, Some(RxeCounters { sent: 2003, received: 503 }));
    }

    proptest! {
        #[test]
        fn any_gid_table_is_read_without_panic(text in "(?s)(RoCE v2|[0-9a-f:]{0,40}| |\n|.){0,80}") {
            let _ = gids(&text);
        }
    }
}
