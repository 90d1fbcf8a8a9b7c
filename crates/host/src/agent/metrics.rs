//! What the agent counts, and how Prometheus reads it (text format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::ledger::{Life, PfRecord};

/// Everything that is counted.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(super) pfs: BTreeMap<String, PfMetrics>,
    /// Events of the kernel by kind.
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) reports: u64,
}

/// What is counted of one PF.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a gauge of its own")]
pub(super) struct PfMetrics {
    pub(super) vfs: BTreeMap<&'static str, u64>,
    pub(super) claims: u64,
    pub(super) lost_claims: u64,
    pub(super) link: bool,
    pub(super) hung: bool,
    pub(super) offered: bool,
    pub(super) fought_over: bool,
    pub(super) unconfirmed: bool,
    pub(super) drift: u64,
    pub(super) drift_found: u64,
    pub(super) drift_repaired: u64,
    pub(super) step_failures: u64,
    pub(super) recoveries: u64,
    pub(super) events: u64,
    pub(super) holders_gone: u64,
    /// When it was last read, since the agent's start.
    pub(super) read_at: Option<Duration>,
    pub(super) pause_frames: Option<[u64; 8]>,
}

impl PfMetrics {
    /// Take over what the ledger says.
    pub(super) fn take(&mut self, record: Option<&PfRecord>) {
        self.vfs = LIVES.iter().map(|life| (*life, 0)).collect();
        let Some(record) = record else { return };
        for vf in record.vfs.values() {
            *self.vfs.entry(life_name(&vf.life)).or_default() += 1;
        }
        self.claims = record.claims.len() as u64;
        self.lost_claims =
            record.claims.values().filter(|claim| claim.lost.is_some()).count() as u64;
        self.unconfirmed = record.unconfirmed.is_some();
    }
}

const LIVES: [&str; 9] = [
    "absent",
    "free",
    "claimed",
    "configured",
    "bound",
    "attached",
    "detaching",
    "scrubbing",
    "quarantined",
];

fn life_name(life: &Life) -> &'static str {
    let at = match life {
        Life::Absent => 0,
        Life::Free => 1,
        Life::Claimed => 2,
        Life::Configured => 3,
        Life::Bound => 4,
        Life::Attached => 5,
        Life::Detaching => 6,
        Life::Scrubbing => 7,
        Life::Quarantined { .. } => 8,
    };
    LIVES[at]
}

/// A metric of one PF: its labels beside `pf`, and its value.
type Samples = Vec<(String, f64)>;

impl Metrics {
    /// As text; `now` is the time since the agent's start.
    pub fn render(&self, now: Duration) -> String {
        let mut text = String::new();
        let version = env!("CARGO_PKG_VERSION");
        head(&mut text, "lanekeeper_agent_info", "gauge", "The agent that runs.");
        let _ = writeln!(text, "lanekeeper_agent_info{{version=\"{version}\"}} 1");
        head(&mut text, "lanekeeper_agent_uptime_seconds", "gauge", "Time since its start.");
        let _ = writeln!(text, "lanekeeper_agent_uptime_seconds {}", now.as_secs_f64());
        head(&mut text, "lanekeeper_reports_total", "counter", "Events that the agent told.");
        let _ = writeln!(text, "lanekeeper_reports_total {}", self.reports);
        head(&mut text, "lanekeeper_kernel_events_total", "counter", "Events of the kernel.");
        for (kind, count) in &self.events {
            let _ = writeln!(text, "lanekeeper_kernel_events_total{{kind=\"{kind}\"}} {count}");
        }
        for (name, kind, help, samples) in PF_METRICS {
            head(&mut text, name, kind, help);
            for (pf, counted) in &self.pfs {
                for (labels, value) in samples(counted, now) {
                    let _ = writeln!(text, "{name}{{pf=\"{}\"{labels}}} {value}", escaped(pf));
                }
            }
        }
        text
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in f64")]
fn one(value: u64) -> Samples {
    vec![(String::new(), value as f64)]
}

fn gauge(value: bool) -> Samples {
    one(value.into())
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in f64")]
fn by_life(pf: &PfMetrics) -> Samples {
    pf.vfs.iter().map(|(life, count)| (format!(",life=\"{life}\""), *count as f64)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in f64")]
fn by_priority(pf: &PfMetrics) -> Samples {
    let frames = pf.pause_frames.into_iter().flatten().enumerate();
    frames.map(|(priority, count)| (format!(",priority=\"{priority}\""), count as f64)).collect()
}

fn age(pf: &PfMetrics, now: Duration) -> Samples {
    let age = pf.read_at.map(|read| now.saturating_sub(read).as_secs_f64());
    age.map(|age| (String::new(), age)).into_iter().collect()
}

type PfMetric = (&'static str, &'static str, &'static str, fn(&PfMetrics, Duration) -> Samples);

const PF_METRICS: [PfMetric; 17] = [
    ("lanekeeper_pf_vfs", "gauge", "VFs by where they stand in their life.", |pf, _| by_life(pf)),
    ("lanekeeper_pf_claims", "gauge", "Claims of its VFs.", |pf, _| one(pf.claims)),
    ("lanekeeper_pf_claims_lost", "gauge", "Claims whose VF is not to be had.", |pf, _| {
        one(pf.lost_claims)
    }),
    ("lanekeeper_pf_link_up", "gauge", "Whether it has a link.", |pf, _| gauge(pf.link)),
    ("lanekeeper_pf_hung", "gauge", "Whether it does not answer.", |pf, _| gauge(pf.hung)),
    ("lanekeeper_pf_offered", "gauge", "Whether claims get its free VFs.", |pf, _| {
        gauge(pf.offered)
    }),
    ("lanekeeper_pf_unconfirmed", "gauge", "Whether an apply waits to be confirmed.", |pf, _| {
        gauge(pf.unconfirmed)
    }),
    ("lanekeeper_pf_fought_over", "gauge", "Whether repairs are given up.", |pf, _| {
        gauge(pf.fought_over)
    }),
    ("lanekeeper_pf_drift", "gauge", "Differences from what it should be.", |pf, _| one(pf.drift)),
    ("lanekeeper_pf_last_reading_age_seconds", "gauge", "Time since it was last read.", age),
    ("lanekeeper_drift_found_total", "counter", "Times that drift was found.", |pf, _| {
        one(pf.drift_found)
    }),
    ("lanekeeper_drift_repaired_total", "counter", "Times that drift was repaired.", |pf, _| {
        one(pf.drift_repaired)
    }),
    ("lanekeeper_step_failures_total", "counter", "Repairs and applies that failed.", |pf, _| {
        one(pf.step_failures)
    }),
    ("lanekeeper_recoveries_total", "counter", "Times that something was recovered.", |pf, _| {
        one(pf.recoveries)
    }),
    ("lanekeeper_pf_events_total", "counter", "Events of the kernel about it.", |pf, _| {
        one(pf.events)
    }),
    ("lanekeeper_holders_gone_total", "counter", "Owned VFs that a process left.", |pf, _| {
        one(pf.holders_gone)
    }),
    ("lanekeeper_pf_pause_frames_total", "counter", "Pause frames received.", |pf, _| {
        by_priority(pf)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_follows_its_help_and_type_and_has_a_number() {
        let mut metrics = Metrics::default();
        let mut pf = PfMetrics { read_at: Some(Duration::from_secs(3)), ..PfMetrics::default() };
        pf.take(None);
        pf.pause_frames = Some([7; 8]);
        metrics.pfs.insert("od\"d\\\n".to_owned(), pf);
        metrics.events.insert("link", 2);
        let text = metrics.render(Duration::from_secs(10));
        let mut declared = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                rest.split(' ').next().expect("a name").clone_into(&mut declared);
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                let name = name.split('{').next().expect("a name");
                assert_eq!(name, declared, "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(text.contains(r#"lanekeeper_pf_vfs{pf="od\"d\\\n",life="free"} 0"#), "{text}");
        assert!(text.contains(r"seconds{pf="));
        assert!(text.contains(r#"age_seconds{pf="od\"d\\\n"} 7"#), "{text}");
        assert!(text.contains(r#"pause_frames_total{pf="od\"d\\\n",priority="3"} 7"#), "{text}");
    }
}
