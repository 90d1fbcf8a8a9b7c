//! The control plane's figures as a part of the document.

use std::fmt::Write as _;
use std::time::Duration;

use super::load::Latencies;
use super::server::Start;
use super::{Figures, Options, Row};
use crate::BenchError;
use crate::machine::description;
use crate::report::{measured, spread};
use crate::window::Spread;

fn ms(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64() * 1e3))
}

fn us(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time.as_secs_f64() * 1e6))
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Median, p99 and longest.
fn three(times: &Latencies, unit: fn(Option<Duration>) -> String) -> String {
    [500, 990, 1000].map(|part| unit(times.at(part))).join(" | ")
}

/// All figures, as Markdown.
///
/// # Errors
/// The machine cannot be described.
pub fn document(figures: &Figures, options: &Options, command: &str) -> Result<String, BenchError> {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: windows of {} s, {} for each number of callers.\n\n| machine | |\n|---|---|",
        measured(command)?,
        options.window,
        options.rounds
    );
    for (name, value) in description()? {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let _ =
        writeln!(text, "| 4 KiB on disk (`fdatasync`), median | {} ms |", ms(Some(figures.sync)));
    for (name, version) in &figures.versions {
        let _ = writeln!(text, "| {name} | {version} |");
    }
    placement(&mut text, figures);
    claims(&mut text, figures);
    ratios(&mut text, figures);
    open_loop(&mut text, figures, options);
    weights(&mut text, figures);
    Ok(text)
}

fn placement(text: &mut String, figures: &Figures) {
    let _ = writeln!(
        text,
        "\n### Placement by itself\n\nMicroseconds for an answer of the index to the varied mix, without \
         store or network; one core.\n\n\
         | hosts | GPUs taken | answers | p50 | p99 | longest | refusals | p50 | p99 | longest | \
         taking up a change |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for one in &figures.answers {
        let _ = writeln!(
            text,
            "| {} | {} % | {} | {} | {} | {} | {} |",
            one.hosts,
            one.full,
            one.placed.count(),
            three(&one.placed, us),
            one.refused.count(),
            three(&one.refused, us),
            us(Some(one.update))
        );
    }
}

fn claims(text: &mut String, figures: &Figures) {
    let _ = writeln!(
        text,
        "\n### Claims\n\nEach caller places a VM with one GPU and one VF, releases it, and begins anew. \
         Placements a second: **median** least..most (windows). Milliseconds of a placement until it \
         is on disk, over all windows.\n\n\
         | hosts | who | callers | placements a second | p50 | p99 | longest | asked again |\n\
         |---:|---|---:|---|---:|---:|---:|---:|"
    );
    for row in &figures.rows {
        let Some(rate) = Spread::of(&row.rates) else { continue };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row.hosts,
            row.who,
            row.callers,
            spread(&rate, 1.0),
            three(&row.places, ms),
            row.again
        );
    }
}

/// Of one who was asked, on one fleet: for each round the most of any number of callers.
fn most(rows: &[&Row]) -> Vec<f64> {
    let rounds = rows.iter().map(|row| row.rates.len()).min().unwrap_or(0);
    (0..rounds).map(|n| rows.iter().map(|row| row.rates[n]).fold(0.0, f64::max)).collect()
}

/// For each round how many times as many `ours` are.
fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
    Spread::of(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
}

fn ratios(text: &mut String, figures: &Figures) {
    let mut names: Vec<&str> = Vec::new();
    for row in &figures.rows {
        if !names.contains(&row.who.as_str()) {
            names.push(&row.who);
        }
    }
    let (peers, own): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| name.starts_with("Placement"));
    if peers.is_empty() || own.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n### Beside OpenStack Placement\n\nPlacements a second, Lanekeeper's ÷ Placement's, by rounds: \
         **median** least..most (rounds).\n\n\
         | hosts | Lanekeeper ÷ Placement | the most of each | one caller each |\n|---:|---|---|---|"
    );
    let mut sizes: Vec<usize> = figures.rows.iter().map(|row| row.hosts).collect();
    sizes.dedup();
    let of = |hosts, name: &str| -> Vec<&Row> {
        figures.rows.iter().filter(|row| row.hosts == hosts && row.who == name).collect()
    };
    let alone = |rows: &[&Row]| {
        rows.iter().find(|row| row.callers == 1).map_or_else(Vec::new, |row| row.rates.clone())
    };
    let cell = |ratio: Option<Spread>| ratio.map_or_else(|| "-".to_owned(), |of| spread(&of, 1.0));
    for hosts in sizes {
        for (own, peer) in own.iter().flat_map(|own| peers.iter().map(move |peer| (*own, *peer))) {
            let (ours, theirs) = (of(hosts, own), of(hosts, peer));
            let _ = writeln!(
                text,
                "| {hosts} | {own} ÷ {peer} | {} | {} |",
                cell(ratio(&most(&ours), &most(&theirs))),
                cell(ratio(&alone(&ours), &alone(&theirs)))
            );
        }
    }
}

fn open_loop(text: &mut String, figures: &Figures, options: &Options) {
    let Some(first) = figures.opened.first() else { return };
    let _ = writeln!(
        text,
        "\n### {} VMs a minute on {} hosts\n\nThe varied mix for {} s, each request released after {} s. \
         Milliseconds from when a request was due until it is on disk.\n\n\
         | who | placed | refused | p50 | p99 | longest | released | p50 | p99 | longest |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        options.vms_a_minute, first.hosts, options.lasts, options.life
    );
    for one in &figures.opened {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            one.kind.name(),
            one.outcome.places.count(),
            one.outcome.refused,
            three(&one.outcome.places, ms),
            one.outcome.releases.count(),
            three(&one.outcome.releases, ms)
        );
    }
}

fn weights(text: &mut String, figures: &Figures) {
    let start = |start: &Start| {
        [start.opened, start.loaded, start.placed].map(|time| ms(Some(time))).join(" | ")
    };
    let _ = writeln!(
        text,
        "\n### Size, and starting anew\n\nMiB in the store's database: with the hosts, with VMs on half of \
         the GPUs, and after all the load above, of which every revision is still kept.\n\n\
         | hosts | who | VMs | hosts alone | with VMs | after the load | server's memory | largest etcd \
         member's memory |\n|---:|---|---:|---:|---:|---:|---:|---:|"
    );
    for one in &figures.weights {
        let member = one.member.map_or_else(|| "-".to_owned(), |member| mib(member << 10));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {member} |",
            one.hosts,
            one.kind.name(),
            one.vms,
            mib(one.empty),
            mib(one.filled),
            mib(one.after),
            mib(one.killed.resident << 10)
        );
    }
    let _ = writeln!(
        text,
        "\nA server that starts, in milliseconds from the begin of its work: the store is open, all hosts \
         and claims are read, one more VM is placed and on disk.\n\n\
         | hosts | who | the one before | open | read | placed |\n|---:|---|---|---:|---:|---:|"
    );
    for one in &figures.weights {
        for (before, times) in [("ended", &one.ended), ("was killed", &one.killed)] {
            let _ = writeln!(
                text,
                "| {} | {} | {before} | {} |",
                one.hosts,
                one.kind.name(),
                start(times)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(callers: usize, rates: &[f64]) -> Row {
        let (who, places) = ("one".to_owned(), Latencies::default());
        Row { hosts: 100, who, callers, rates: rates.to_vec(), places, again: 0 }
    }

    #[test]
    fn the_most_is_that_of_each_round() {
        let (one, many) = (row(1, &[10.0, 30.0]), row(16, &[20.0, 20.0]));
        assert_eq!(most(&[&one, &many]), [20.0, 30.0]);
    }

    #[test]
    fn a_ratio_compares_the_same_round() {
        let spread = ratio(&[100.0, 400.0], &[10.0, 20.0]).expect("two rounds");
        assert!((spread.least - 10.0).abs() < 1e-9 && (spread.most - 20.0).abs() < 1e-9);
        assert_eq!(ratio(&[], &[1.0]), None);
    }
}
