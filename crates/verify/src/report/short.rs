//! A report for a terminal that is too narrow for the table: paths as headings, the figures of a
//! check in one column, and what else was seen only where a check has no figure.

use std::fmt::Write as _;

use super::{Report, Row, Verdict, length, wrap};

const COLUMNS: [&str; 5] = ["between", "what", "measured", "loss", "verdict"];
const MEASURED: usize = 2;
const LOSS: usize = 3;
const VERDICT: usize = 4;
/// Before each row, so that headings stand out.
const INDENT: &str = "  ";
/// Between two columns, in characters.
const GAP: usize = 2;

type Cells = [String; COLUMNS.len()];

/// The rows, in lines of `width` characters at most wherever that is possible without breaking a
/// word. `full` is the width that the table needs.
pub(super) fn write(report: &Report, width: usize, full: usize, colour: bool) -> String {
    let layout = Layout::new(report, width);
    let mut text = layout.line(&COLUMNS.map(str::to_owned), |_, cell| cell);
    let mut path = "";
    for row in &report.rows {
        if row.path != path {
            path = &row.path;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{path}");
        }
        let good = row.verdict == Verdict::Holds;
        text += &layout.line(&cells(row), |column, cell| {
            if colour && column == VERDICT { paint(&cell, good) } else { cell }
        });
        if row.throughput.is_none() && row.latency.is_none() && !row.seen.is_empty() {
            for line in wrap(&row.seen, width.saturating_sub(2 * INDENT.len())) {
                let _ = writeln!(text, "{INDENT}{INDENT}{line}");
            }
        }
    }
    let _ = writeln!(text, "(A terminal of {full} columns or more shows all that was seen.)");
    text
}

fn cells(row: &Row) -> Cells {
    let figures =
        [row.throughput.map(|rate| rate.to_string()), row.latency.map(|time| time.to_string())];
    [
        row.between.clone(),
        row.what.clone(),
        figures.into_iter().flatten().collect::<Vec<_>>().join(", "),
        row.loss.map(|loss| loss.to_string()).unwrap_or_default(),
        row.verdict.word().to_owned(),
    ]
}

/// Green or red (ECMA-48, select graphic rendition).
fn paint(text: &str, good: bool) -> String {
    format!("\u{1b}[{}m{text}\u{1b}[0m", if good { 32 } else { 31 })
}

/// Widths of the columns in characters; one that is left out has none.
struct Layout([Option<usize>; COLUMNS.len()]);

impl Layout {
    fn new(report: &Report, width: usize) -> Self {
        let mut widths = COLUMNS.map(|name| Some(length(name)));
        for row in &report.rows {
            for (width, cell) in widths.iter_mut().zip(cells(row)) {
                *width = (*width).max(Some(length(&cell)));
            }
        }
        let mut layout = Self(widths);
        if layout.width() > width {
            layout.0[LOSS] = None;
        }
        layout
    }

    fn width(&self) -> usize {
        let columns = self.0.iter().flatten();
        INDENT.len() + columns.clone().sum::<usize>() + GAP * columns.count().saturating_sub(1)
    }

    fn line(&self, cells: &Cells, dress: impl Fn(usize, String) -> String) -> String {
        let shown = self.0.iter().zip(cells).enumerate().filter_map(|(column, (width, cell))| {
            let padding = " ".repeat((*width)?.saturating_sub(length(cell)));
            let cell = dress(column, cell.clone());
            Some(match column {
                MEASURED | LOSS => format!("{padding}{cell}"),
                VERDICT => cell,
                _ => format!("{cell}{padding}"),
            })
        });
        let line = shown.collect::<Vec<_>>().join(&" ".repeat(GAP));
        format!("{INDENT}{line}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    #[test]
    fn a_path_is_named_once_above_its_rows() {
        let mut report = run();
        report.rows.push(report.rows[1].clone());
        let text = write(&report, 80, 100, false);
        assert_eq!(text.matches("isolation").count(), 1, "{text}");
        assert!(text.contains("\nisolation\n  b1 ↛ a1"), "{text}");
    }

    #[test]
    fn what_was_seen_has_a_line_of_its_own_where_nothing_was_measured() {
        let text = write(&run(), 80, 100, false);
        assert!(text.contains("\n    3 requests unanswered\n"), "{text}");
        assert!(!text.contains("RoCE MTU 4096"), "{text}");
    }

    #[test]
    fn loss_is_left_out_where_it_does_not_fit() {
        assert!(write(&run(), 60, 100, false).contains("0 of 2506"));
        let narrow = write(&run(), 50, 100, false);
        assert!(!narrow.contains("0 of 2506") && narrow.contains("150 Mb/s"), "{narrow}");
    }

    #[test]
    fn only_verdicts_have_a_colour() {
        let text = write(&run(), 80, 100, true);
        assert_eq!(text.matches("\u{1b}[32mholds\u{1b}[0m").count(), 2, "{text:?}");
        assert_eq!(text.matches('\u{1b}').count(), 4, "{text:?}");
    }
}
