//! `lanekeeper softnic show --roce` and `--metrics`: what software NICs have seen of RoCE, as tables; and
//! all their counters as Prometheus has them.

use std::fmt::Write as _;

use comfy_table::{Table, presets};
use lanekeeper_model::VfCounters;
use lanekeeper_softnic::{RoceCounters, RocePair, RoceReport};

use crate::output::micros;

/// What makes a table of it.
pub(super) fn describe(report: &RoceReport) -> String {
    if report.sampling == 0 {
        return "RoCE is not looked at: set roce_sampling in the NIC's file".to_owned();
    }
    let mut senders = table("sent by", &[]);
    let from_vfs = report.vfs.iter().map(|(vf, seen)| (format!("VF {vf}"), seen));
    let uplink = [("uplink".to_owned(), &report.uplink)];
    for (name, seen) in from_vfs.chain(uplink).filter(|(_, seen)| seen.packets > 0) {
        senders.add_row([vec![name], cells(seen)].concat());
    }
    let how = match report.sampling {
        1 => "every batch of frames is looked at".to_owned(),
        some => format!("estimated from one batch of frames in {some}"),
    };
    let mut text = format!("RoCE, {how}\n{senders}");
    if !report.pairs.is_empty() {
        let mut pairs = table("queue pair", &["round trip"]);
        for pair in &report.pairs {
            let round_trip = pair.rtt_ns.map_or_else(|| "-".to_owned(), micros);
            pairs.add_row([vec![called(pair)], cells(&pair.counters), vec![round_trip]].concat());
        }
        let _ = write!(text, "\n{pairs}");
    }
    if report.untracked > 0 {
        let _ = write!(text, "\n{} packets of further queue pairs", report.untracked);
    }
    text
}

fn called(pair: &RocePair) -> String {
    let from = pair.from.map_or_else(|| "uplink".to_owned(), |vf| format!("VF {vf}"));
    let RocePair { version, source, dest, qp, .. } = pair;
    format!("{from}, v{version}: {source} to {dest} QP {qp}")
}

fn table(first: &str, further: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let counted = ["packets", "bytes", "messages", "sent again", "NAKs", "CNPs", "ECN marks"];
    table.set_header([first].iter().chain(&counted).chain(further));
    table
}

fn cells(seen: &RoceCounters) -> Vec<String> {
    let naks = [
        ("sequence", seen.sequence_naks),
        ("not ready", seen.rnr_naks),
        ("refused", seen.other_naks),
    ];
    let naks: Vec<String> =
        naks.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{what} {n}")).collect();
    let naks = if naks.is_empty() { "0".to_owned() } else { naks.join("\n") };
    let [packets, bytes, messages, again, cnps, marks] =
        [seen.packets, seen.bytes, seen.messages, seen.retransmitted, seen.cnps, seen.ecn_marked]
            .map(|count| count.to_string());
    vec![packets, bytes, messages, again, naks, cnps, marks]
}

/// Counters in Prometheus' text format 0.0.4, as node_exporter's textfile collector takes it.
#[derive(Default)]
pub(super) struct Metrics {
    /// Samples by metric, each under its help.
    families: std::collections::BTreeMap<&'static str, (&'static str, Vec<String>)>,
}

impl Metrics {
    fn add(&mut self, metric: &'static str, help: &'static str, labels: &str, value: u64) {
        let family = self.families.entry(metric).or_insert_with(|| (help, Vec::new()));
        family.1.push(format!("{metric}{{{labels}}} {value}\n"));
    }

    /// What passed a VF, and what did not.
    pub(super) fn vf(&mut self, nic: &str, vf: &str, counters: &VfCounters) {
        let label = format!("nic=\"{nic}\",vf=\"{vf}\"");
        let both = [
            ("sent", &counters.tx, &counters.tx_drops),
            ("received", &counters.rx, &counters.rx_drops),
        ];
        for (direction, link, drops) in both {
            let label = format!("{label},direction=\"{direction}\"");
            self.add(
                "lanekeeper_softnic_frames_total",
                "Frames that passed a VF.",
                &label,
                link.frames,
            );
            self.add("lanekeeper_softnic_bytes_total", "Their bytes.", &label, link.bytes);
            for (reason, count) in drops {
                let label = format!("{label},reason=\"{}\"", reason.label());
                let help = "Frames that a VF held back, by reason.";
                self.add("lanekeeper_softnic_drops_total", help, &label, *count);
            }
        }
    }

    /// RoCE by sender.
    pub(super) fn roce(&mut self, nic: &str, report: &RoceReport) {
        let from_vfs = report.vfs.iter().map(|(vf, seen)| (vf.to_string(), seen));
        for (from, seen) in from_vfs.chain([("uplink".to_owned(), &report.uplink)]) {
            let label = format!("nic=\"{nic}\",from=\"{from}\"");
            let counts = [
                ("lanekeeper_roce_packets_total", "RoCE packets, by sender.", seen.packets),
                ("lanekeeper_roce_bytes_total", "Bytes of their frames.", seen.bytes),
                ("lanekeeper_roce_messages_total", "RoCE messages that ended.", seen.messages),
                (
                    "lanekeeper_roce_retransmitted_total",
                    "RoCE packets sent again.",
                    seen.retransmitted,
                ),
                (
                    "lanekeeper_roce_sequence_naks_total",
                    "A packet was missing.",
                    seen.sequence_naks,
                ),
                ("lanekeeper_roce_rnr_naks_total", "A receiver was not ready.", seen.rnr_naks),
                ("lanekeeper_roce_other_naks_total", "A request was refused.", seen.other_naks),
                ("lanekeeper_roce_cnps_total", "Congestion notifications.", seen.cnps),
                (
                    "lanekeeper_roce_ecn_marked_total",
                    "RoCE packets marked on the way.",
                    seen.ecn_marked,
                ),
            ];
            for (metric, help, count) in counts {
                self.add(metric, help, &label, count);
            }
        }
    }

    /// All of it as text.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for (metric, (help, samples)) in &self.families {
            let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} counter\n");
            for sample in samples {
                text.push_str(sample);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> RoceReport {
        let seen =
            RoceCounters { packets: 32, bytes: 4096, rnr_naks: 16, ..RoceCounters::default() };
        let pair = RocePair {
            from: lanekeeper_model::VfIndex::new(3).ok(),
            version: 2,
            source: [10, 0, 0, 1].into(),
            dest: [10, 0, 0, 2].into(),
            qp: 17,
            counters: seen,
            rtt_ns: Some(12_345),
        };
        let vf = lanekeeper_model::VfIndex::new(3).expect("in range");
        RoceReport {
            sampling: 16,
            vfs: [(vf, seen)].into(),
            uplink: RoceCounters::default(),
            pairs: vec![pair],
            untracked: 0,
        }
    }

    #[test]
    fn tables_name_senders_queue_pairs_and_that_it_is_an_estimate() {
        let text = describe(&report());
        for part in
            ["one batch of frames in 16", "VF 3", "10.0.0.2 QP 17", "not ready 16", "12.3 µs"]
        {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
        assert!(!text.contains("uplink"), "who sent nothing is left out:\n{text}");
        assert!(describe(&RoceReport::default()).contains("roce_sampling"));
    }

    #[test]
    fn metrics_have_one_help_each_however_many_samples() {
        let mut metrics = Metrics::default();
        metrics.roce("nic0", &report());
        metrics.roce("nic1", &report());
        metrics.vf("nic0", "3", &VfCounters::default());
        let text = metrics.render();
        assert_eq!(text.matches("# TYPE lanekeeper_roce_bytes_total counter\n").count(), 1);
        assert!(text.contains("lanekeeper_roce_bytes_total{nic=\"nic1\",from=\"3\"} 4096\n"));
        assert!(text.contains(
            "lanekeeper_softnic_frames_total{nic=\"nic0\",vf=\"3\",direction=\"sent\"} 0\n"
        ));
    }
}
