//! The result of a verification run: rows with a verdict each, as a table, as JSON and as a picture.

mod picture;
mod short;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Color, Table};
use serde::{Serialize, Serializer};

use crate::{BitRate, Latency, Loss};

/// Whether what a row says is as it must be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum Verdict {
    /// It is.
    Holds,
    /// It is not.
    Fails {
        /// What a person can do about it.
        remedy: String,
    },
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails { .. } => "FAILS",
        }
    }
}

/// One thing that was verified.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Which path, as `VF, same host`.
    pub path: String,
    /// Between whom, as `a1 → a2`.
    pub between: String,
    /// What was done, as `ib_write_bw 64 KiB`.
    pub what: String,
    /// Payload rate.
    #[serde(rename = "throughput_bits_per_second", skip_serializing_if = "Option::is_none")]
    pub throughput: Option<BitRate>,
    /// Time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// What else was seen.
    pub seen: String,
    /// The judgement.
    pub verdict: Verdict,
}

impl Row {
    /// A row that holds and shows no figures yet.
    pub fn new(
        path: impl Into<String>,
        between: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            between: between.into(),
            what: what.into(),
            throughput: None,
            latency: None,
            loss: None,
            seen: String::new(),
            verdict: Verdict::Holds,
        }
    }

    /// With what else was seen.
    #[must_use]
    pub fn seen(mut self, seen: impl Into<String>) -> Self {
        self.seen = seen.into();
        self
    }

    /// With the verdict that it fails, and what to do about it.
    #[must_use]
    pub fn fails(mut self, remedy: impl Into<String>) -> Self {
        self.verdict = Verdict::Fails { remedy: remedy.into() };
        self
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        let shown = |figure: Option<String>| figure.unwrap_or_default();
        [
            self.path.clone(),
            self.between.clone(),
            self.what.clone(),
            shown(self.throughput.map(|rate| rate.to_string())),
            shown(self.latency.map(|time| time.to_string())),
            shown(self.loss.map(|loss| loss.to_string())),
            self.seen.clone(),
            self.verdict.word().to_owned(),
        ]
    }
}

const COLUMNS: [&str; 8] =
    ["path", "between", "what", "throughput", "latency", "loss", "seen", "verdict"];
/// Columns that hold figures, which line up at their right end.
const FIGURES: std::ops::Range<usize> = 3..6;

/// A verification run.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// What was verified.
    pub title: String,
    /// Every check, in the order in which it was made.
    pub rows: Vec<Row>,
    /// What a reader must know to judge the figures.
    pub statements: Vec<String>,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            title: &'a str,
            holds: bool,
            rows: &'a [Row],
            statements: &'a [String],
        }
        let Self { title, rows, statements } = self;
        Document { title, holds: self.holds(), rows, statements }.serialize(serializer)
    }
}

impl Report {
    /// A run in which nothing was checked yet.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new(), statements: Vec::new() }
    }

    /// Something was checked and all of it holds.
    pub fn holds(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.verdict == Verdict::Holds)
    }

    /// As a table for a terminal, followed by the remedies and the statements. Where `width`
    /// characters are too few for the table, it is a list in a shorter form.
    pub fn to_text(&self, width: Option<u16>, colour: bool) -> String {
        let table = self.table(colour).to_string();
        // Styles count as characters, so the plain table is measured.
        let full = self.table(false).lines().map(|line| length(&line)).max().unwrap_or(0);
        let rows = match width.map(usize::from) {
            Some(width) if width < full => short::write(self, width, full, colour),
            _ => format!("{table}\n"),
        };
        let mut text = format!("{}\n{rows}", self.title);
        for line in self.remedies().chain(self.statements.iter().cloned()) {
            match width {
                Some(width) => text += &wrap(&line, width.into()).join("\n"),
                None => text += &line,
            }
            text.push('\n');
        }
        text
    }

    fn table(&self, colour: bool) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header(COLUMNS);
        if colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        for row in &self.rows {
            let verdict_colour =
                if row.verdict == Verdict::Holds { Color::Green } else { Color::Red };
            table.add_row(row.cells().into_iter().enumerate().map(|(column, text)| {
                let cell = Cell::new(text);
                match column {
                    _ if FIGURES.contains(&column) => cell.set_alignment(CellAlignment::Right),
                    7 => cell.fg(verdict_colour),
                    _ => cell,
                }
            }));
        }
        table
    }

    fn remedies(&self) -> impl Iterator<Item = String> {
        self.rows.iter().filter_map(|row| match &row.verdict {
            Verdict::Holds => None,
            Verdict::Fails { remedy } => {
                let Row { path, between, what, seen, .. } = row;
                Some(format!("FAILS: {path}, {between}, {what}: {seen}. To do: {remedy}"))
            }
        })
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        // Nothing in a report has a form that JSON lacks: figures are finite by construction.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// As an SVG picture of the table, for light and dark backgrounds.
    pub fn to_svg(&self) -> String {
        picture::draw(self)
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Lines of at most `width` characters, broken between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let fits = lines.last().is_some_and(|line| length(line) + 1 + length(word) <= width);
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if fits => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn run() -> Report {
        let mut report = Report::new("Lanekeeper demo");
        let mut good = Row::new("VF, same host", "a1 → a2", "ib_write_bw 64 KiB");
        good.throughput = BitRate::from_bits_per_second(1.5e8);
        good.loss = Some(Loss { lost: 0, of: 2506 });
        report.rows.push(good.seen("RoCE MTU 4096"));
        report.rows.push(Row::new("isolation", "b1 ↛ a1", "ARP").seen("3 requests unanswered"));
        report.statements.push("Guest CPUs are emulated.".to_owned());
        report
    }

    fn failed() -> Report {
        let mut report = run();
        report.rows[1] = report.rows[1].clone().seen("it was <answered>").fails("check the VLAN");
        report
    }

    #[test]
    fn a_run_holds_only_if_something_was_checked_and_all_of_it_holds() {
        assert!(run().holds());
        assert!(!failed().holds());
        assert!(!Report::new("nothing").holds());
    }

    #[test]
    fn the_table_shows_figures_verdicts_and_statements() {
        let text = run().to_text(None, false);
        for part in ["150 Mb/s", "0 of 2506", "RoCE MTU 4096", "holds", "Guest CPUs are emulated"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_failure_is_followed_by_its_remedy() {
        let text = failed().to_text(None, false);
        assert!(text.contains("FAILS: isolation, b1 ↛ a1, ARP"), "{text}");
        assert!(text.contains("To do: check the VLAN"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_is_respected_and_no_word_is_broken() {
        let mut report = failed();
        report.statements.push("It is known. ".repeat(20));
        let text = report.to_text(Some(80), false);
        let widest = text.lines().map(length).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{text}");
        for word in ["ib_write_bw 64 KiB", "0 of 2506", "<answered>", "holds", "FAILS"] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }

    #[test]
    fn a_terminal_that_is_wide_enough_shows_the_table() {
        let table = run().to_text(None, false);
        let widest = table.lines().map(length).max().expect("lines") as u16;
        assert_eq!(run().to_text(Some(widest), false), table);
        assert_ne!(run().to_text(Some(widest - 1), false), table);
    }

    #[test]
    fn long_statements_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
    }

    #[test]
    fn colour_is_written_when_it_is_asked_for() {
        assert!(run().to_text(None, true).contains('\u{1b}'));
    }

    #[test]
    fn json_carries_raw_figures_and_the_overall_verdict() {
        let json: serde_json::Value =
            serde_json::from_str(&failed().to_json()).expect("well formed");
        assert_eq!(json["holds"], false);
        assert_eq!(json["rows"][0]["throughput_bits_per_second"], 1.5e8);
        assert_eq!(json["rows"][0]["loss"]["of"], 2506);
        assert_eq!(json["rows"][1]["verdict"]["remedy"], "check the VLAN");
    }
}
