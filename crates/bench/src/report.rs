//! The figures as a document. Only the part between a section's two marks is written; what people
//! wrote around it stays.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::BenchError;
use crate::core_distance::Distance;
use crate::machine::{description, huge_page_size, package_version};
use crate::peers::{ClientKind, Load};
use crate::process::tool;
use crate::two_cores::{Comparison, Effort};
use crate::window::Spread;

/// One measurement on a single core.
#[derive(Clone, Debug)]
pub struct OneCore {
    /// Who was measured.
    pub name: &'static str,
    /// Under which load.
    pub load: Load,
    /// Frames per second.
    pub rate: Spread,
}

/// Everything that one run has measured.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The command that was typed.
    pub command: String,
    /// How much was measured.
    pub effort: Effort,
    /// Switch and client on two cores.
    pub two_cores: Vec<Comparison>,
    /// Both on one.
    pub one_core: Vec<OneCore>,
}

/// The lines of one comparison, a line for each distance at which every peer has figures.
pub fn lines(comparison: &Comparison) -> Vec<String> {
    let mut lines = Vec::new();
    for distance in Distance::ALL {
        let rates = comparison.peers.iter().map(|peer| comparison.rate(*peer, distance));
        let Some(rates) = rates.collect::<Option<Vec<_>>>() else { continue };
        let mut cells = vec![distance.name().to_owned()];
        cells.extend(rates.iter().map(|rate| spread(rate, 1e6)));
        for base in &comparison.peers[1..] {
            let ratio = comparison.ratio(comparison.peers[0], *base, distance);
            cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| spread(&ratio, 1.0)));
        }
        lines.push(format!("{} {} |", row_head(&comparison.load), cells.join(" | ")));
    }
    lines
}

fn row_head(load: &Load) -> String {
    format!("| {} | {} |", load.ring.name(), load.length)
}

/// Median, range and number of figures, in `unit`s.
pub fn spread(figures: &Spread, unit: f64) -> String {
    format!(
        "**{:.2}** {:.2}..{:.2} ({})",
        figures.median / unit,
        figures.least / unit,
        figures.most / unit,
        figures.count
    )
}

/// Put the figures into the document at `path`.
///
/// # Errors
/// It cannot be read or written, or does not hold the two marks.
pub fn write(figures: &Figures, path: &Path) -> Result<(), BenchError> {
    put("softnic", &document(figures)?, path)
}

/// Put `text` between the two marks of a section of the document at `path`.
///
/// # Errors
/// It cannot be read or written, or does not hold the two marks.
pub fn put(section: &str, text: &str, path: &Path) -> Result<(), BenchError> {
    let whole = fs::read_to_string(path).map_err(BenchError::io(path.display()))?;
    let begin = format!("<!-- lanekeeper-bench {section}: begin -->");
    let end = format!("<!-- lanekeeper-bench {section}: end -->");
    let parts = whole
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let Some((before, after)) = parts else {
        return Err(BenchError::Unexpected {
            what: path.display().to_string(),
            got: format!("no '{begin}' followed by '{end}'"),
        });
    };
    let whole = format!("{before}{begin}\n{text}{end}{after}");
    fs::write(path, whole).map_err(BenchError::io(path.display()))
}

/// When, at which commit and by which command it was measured, as the begin of a sentence.
///
/// # Errors
/// git or date fails.
pub fn measured(command: &str) -> Result<String, BenchError> {
    let date = tool("date", ["--utc", "+%Y-%m-%d %H:%M UTC"])?;
    let commit = tool("git", ["describe", "--always", "--dirty"])?;
    Ok(format!("Measured {} at commit {} by `{command}`", date.trim(), commit.trim()))
}

fn document(figures: &Figures) -> Result<String, BenchError> {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: windows of {} ms, {} for each switch at one distance.\n",
        measured(&figures.command)?,
        figures.effort.window.as_millis(),
        figures.effort.windows
    );
    let _ = writeln!(text, "| machine | |\n|---|---|");
    for (name, value) in description()? {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let _ = writeln!(text, "| Huge pages | {} KiB each |", huge_page_size()?);
    let _ = writeln!(text, "| DPDK | {} |", package_version("dpdk")?);
    let _ = writeln!(text, "| OVS-DPDK | {} |", package_version("openvswitch-switch-dpdk")?);
    for client in ClientKind::ALL {
        let of_client: Vec<_> =
            figures.two_cores.iter().filter(|one| one.load.client == client).collect();
        let Some(first) = of_client.first() else { continue };
        let peers = &first.peers;
        let subject = peers[0].name();
        let _ = writeln!(
            text,
            "\n### Client: {}\n\n\
             Switch on core {}, client on core {}. Million frames a second through the switch: \
             **median** least..most (windows). Ratios pair windows of one round. {} descriptors a \
             ring, {} frames in flight in each direction.\n",
            client.name(),
            first.load.cores[0],
            first.load.cores[1],
            first.load.ring_size,
            first.load.bursts * 32
        );
        let names = peers.iter().map(|peer| peer.name().to_owned());
        let ratios = peers[1..].iter().map(|peer| format!("{subject} ÷ {}", peer.name()));
        let heads: Vec<_> = names.chain(ratios).collect();
        let _ = writeln!(text, "| ring | bytes | cores | {} |", heads.join(" | "));
        let _ = writeln!(text, "|---|---:|---|{}", "---|".repeat(heads.len()));
        for line in of_client.iter().flat_map(|one| lines(one)) {
            let _ = writeln!(text, "{line}");
        }
    }
    if !figures.one_core.is_empty() {
        let _ = writeln!(
            text,
            "\n### Driver and device on one core\n\n\
             | ring | bytes | who | million frames a second | ns a frame, both ends |\n\
             |---|---:|---|---|---:|"
        );
        for one in &figures.one_core {
            let _ = writeln!(
                text,
                "{} {} | {} | {:.0} |",
                row_head(&one.load),
                one.name,
                spread(&one.rate, 1e6),
                1e9 / one.rate.median
            );
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_section_is_written_and_all_else_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.md");
        let mark = |section, which| format!("<!-- lanekeeper-bench {section}: {which} -->");
        let of = |one: &str, two: &str| {
            let section =
                |name, text| format!("{}\n{text}{}", mark(name, "begin"), mark(name, "end"));
            format!("before\n{}\nbetween\n{}\nafter\n", section("one", one), section("two", two))
        };
        fs::write(&path, of("1\n", "2\n")).expect("written");
        put("two", "new\n", &path).expect("put");
        assert_eq!(fs::read_to_string(&path).expect("there"), of("1\n", "new\n"));
        let error = put("three", "", &path).expect_err("no such section").to_string();
        assert!(error.contains("lanekeeper-bench three: begin"), "{error}");
    }
}
