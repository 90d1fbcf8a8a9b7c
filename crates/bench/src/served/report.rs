//! The figures of the served control plane, as a part of the document.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Cost, Figure, Options};
use crate::BenchError;
use crate::control::load::Latencies;
use crate::machine::description;
use crate::report::measured;

fn ms(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time.as_secs_f64() * 1e3))
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Median, p99 and longest, in milliseconds.
fn three(times: &Latencies) -> String {
    [500, 990, 1000].map(|part| ms(times.at(part))).join(" | ")
}

/// Median and p99 of a histogram, as the bounds they are within, in milliseconds.
fn bounds(of: [Option<f64>; 2]) -> String {
    of.map(|bound| bound.map_or_else(|| "-".to_owned(), |bound| format!("≤ {}", bound * 1e3)))
        .join(" | ")
}

/// All figures, as Markdown.
///
/// # Errors
/// The machine cannot be described.
pub fn document(
    figures: &[Figure],
    options: &Options,
    sync: Duration,
    versions: &[(&'static str, String)],
    command: &str,
) -> Result<String, BenchError> {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: {} VMs a minute for {} s, each there for {} s.\n\n| machine | |\n|---|---|",
        measured(command)?,
        options.vms_a_minute,
        options.lasts,
        options.life
    );
    for (name, value) in description()? {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let _ = writeln!(text, "| 4 KiB on disk (`fdatasync`), median | {} ms |", ms(Some(sync)));
    for (name, version) in versions {
        let _ = writeln!(text, "| {name} | {version} |");
    }
    vms(&mut text, figures);
    placements(&mut text, figures);
    agents(&mut text, figures);
    costs(&mut text, figures);
    recovery(&mut text, figures);
    Ok(text)
}

fn vms(text: &mut String, figures: &[Figure]) {
    let _ = writeln!(
        text,
        "\n### VMs, as tenants see them\n\nMilliseconds, at the median, p99 and longest: from when a VM \
         was due to be created until its tenant is told that it is ACTIVE; from its deletion until the \
         tenant is told that it is gone; and each call that creates or deletes, from when it was due.\n\n\
         | hosts | store | ACTIVE | p50 | p99 | longest | gone, p50 | p99 | longest | calls | p50 | p99 \
         | longest | calls failed | VMs in ERROR | VMs late |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for Figure { hosts, kind, outcome, .. } in figures {
        let _ = writeln!(
            text,
            "| {hosts} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            kind.name(),
            outcome.active.count(),
            three(&outcome.active),
            three(&outcome.gone),
            outcome.calls.count(),
            three(&outcome.calls),
            outcome.failed,
            outcome.errors,
            outcome.late
        );
    }
}

fn placements(text: &mut String, figures: &[Figure]) {
    let _ = writeln!(
        text,
        "\n### Placements, as the server counts them\n\nMilliseconds, as bounds of the histograms of \
         `/v1/metrics`: finding a place (`lanekeeper_placement_seconds`), and a transaction of claims from \
         its planning until it is on disk (`lanekeeper_claims_seconds`).\n\n\
         | hosts | store | a place, p50 | p99 | claims, p50 | p99 |\n|---:|---|---:|---:|---:|---:|"
    );
    for Figure { hosts, kind, placement, claims, .. } in figures {
        let (name, placement, claims) = (kind.name(), bounds(*placement), bounds(*claims));
        let _ = writeln!(text, "| {hosts} | {name} | {placement} | {claims} |");
    }
}

fn agents(text: &mut String, figures: &[Figure]) {
    let _ = writeln!(
        text,
        "\n### Agents\n\nSeconds to enrol all hosts; signs of life a second, and milliseconds that each \
         took, without VMs and under the load; those that failed, and leases that ran out.\n\n\
         | hosts | store | enrolled in | at rest, a second | p50 | p99 | longest | failed | run out | \
         loaded, a second | p50 | p99 | longest | failed | run out |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for Figure { hosts, kind, enrolled, at_rest, loaded, .. } in figures {
        let side = |cost: &Cost| {
            let Cost { beats, rate, failed, lapsed, .. } = cost;
            format!("{rate:.0} | {} | {failed} | {lapsed}", three(beats))
        };
        let _ = writeln!(
            text,
            "| {hosts} | {} | {} | {} | {} |",
            kind.name(),
            seconds(Some(*enrolled)),
            side(at_rest),
            side(loaded)
        );
    }
}

fn costs(text: &mut String, figures: &[Figure]) {
    let _ = writeln!(
        text,
        "\n### What it costs\n\nCores used by the server, by etcd's members together, and by the load \
         (agents and tenants, one process), without VMs and under the load. MiB of memory, and in the \
         store's database: with the hosts, and after the load, of which every revision of the last ten \
         minutes is kept.\n\n\
         | hosts | store | at rest: server | etcd | load | loaded: server | etcd | load | server's memory \
         | largest member's | with hosts | after the load |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for figure in figures {
        let cores =
            |Cost { server, etcd, load, .. }: &Cost| format!("{server:.2} | {etcd:.2} | {load:.2}");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            figure.hosts,
            figure.kind.name(),
            cores(&figure.at_rest),
            cores(&figure.loaded),
            mib(figure.memory << 10),
            figure.member.map_or_else(|| "-".to_owned(), |kib| mib(kib << 10)),
            mib(figure.bytes[0]),
            mib(figure.bytes[1])
        );
    }
}

fn recovery(text: &mut String, figures: &[Figure]) {
    let _ = writeln!(
        text,
        "\n### After the server was killed\n\nSeconds from `kill -9`, after which it is started anew at \
         once: it listens; it has taken a VM; that VM is ACTIVE; every host has been heard. And leases that \
         ran out meanwhile.\n\n\
         | hosts | store | listens | takes a VM | ACTIVE | all heard | leases run out |\n\
         |---:|---|---:|---:|---:|---:|---:|"
    );
    for Figure { hosts, kind, recovery, .. } in figures {
        let [taken, active] =
            recovery.vm.map_or([None, None], |[taken, active]| [Some(taken), Some(active)]);
        let times = [Some(recovery.listens), taken, active];
        let _ = writeln!(
            text,
            "| {hosts} | {} | {} | {} | {} |",
            kind.name(),
            times.map(seconds).join(" | "),
            seconds(recovery.heard),
            recovery.lapsed
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_told_in_milliseconds_and_none_as_a_dash() {
        assert_eq!(bounds([Some(0.0025), None]), "≤ 2.5 | -");
    }
}
