//! A report drawn as SVG: the table in a fixed-width face, with colours that follow the reader's
//! light or dark preference, so that one file serves a README on either background.

use std::fmt::Write as _;

use super::{COLUMNS, FIGURES, Report, Verdict, length, wrap};

/// Advance of one character at the font size below, in pixels: 0.6 em, which all common
/// fixed-width faces have.
const CHARACTER: usize = 8;
const FONT_SIZE: f32 = 13.3;
const LINE: usize = 24;
/// Between two columns, in pixels.
const GAP: usize = 22;
const MARGIN: usize = 20;
/// Statements are wrapped to the table's width.
const NARROWEST: usize = 60;

/// Plain rules rather than variables: renderers other than browsers know no `var()`, and show the
/// light colours.
const STYLE: &str = "
text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}
text{fill:#1f2328}.title{font-weight:600}.dim{fill:#59636e}.good{fill:#1a7f37}.bad{fill:#cf222e;font-weight:600}
.paper{fill:#fff;stroke:#d0d7de}.head{fill:#f6f8fa}.line{stroke:#d0d7de}
@media(prefers-color-scheme:dark){
text{fill:#f0f6fc}.dim{fill:#9198a1}.good{fill:#3fb950}.bad{fill:#f85149}
.paper{fill:#0d1117;stroke:#3d444d}.head{fill:#151b23}.line{stroke:#3d444d}}
";

pub(super) fn draw(report: &Report) -> String {
    let rows: Vec<_> = report.rows.iter().map(super::Row::cells).collect();
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            let cells = rows.iter().map(|row| length(&row[column]));
            cells.chain([length(COLUMNS[column])]).max().unwrap_or(0)
        })
        .collect();
    let table = widths.iter().sum::<usize>() * CHARACTER + GAP * (COLUMNS.len() - 1);
    let statements: Vec<String> = report
        .statements
        .iter()
        .flat_map(|text| wrap(text, (table / CHARACTER).max(NARROWEST)))
        .collect();
    let width = MARGIN * 2 + table.max(NARROWEST * CHARACTER);
    let lines = 2 + rows.len() + statements.len();
    let height = MARGIN * 2 + LINE * lines + LINE / 4;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-size=\"{FONT_SIZE}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        escape(&report.title),
        width - 1,
        height - 1
    );
    let mut pen = Pen { svg: &mut svg, y: MARGIN + LINE - 8 };
    pen.text(MARGIN, "title", &report.title);
    pen.next_line();
    pen.y += LINE / 4;
    pen.band(width);
    pen.row(&widths, &COLUMNS.map(str::to_owned), |_| "dim");
    let mut path = "";
    for (row, mut cells) in report.rows.iter().zip(rows) {
        pen.next_line();
        // A path is named once, above a rule.
        if row.path == path {
            cells[0].clear();
        } else {
            pen.rule(width);
        }
        path = &row.path;
        let verdict = if row.verdict == Verdict::Holds { "good" } else { "bad" };
        pen.row(&widths, &cells, |column| match column {
            6 => "dim",
            7 => verdict,
            _ => "",
        });
    }
    pen.next_line();
    pen.rule(width);
    pen.y += LINE / 4;
    for statement in &statements {
        pen.text(MARGIN, "dim", statement);
        pen.next_line();
    }
    svg.push_str("</svg>\n");
    svg
}

struct Pen<'a> {
    svg: &'a mut String,
    /// Base line of the text, in pixels from the top.
    y: usize,
}

impl Pen<'_> {
    fn next_line(&mut self) {
        self.y += LINE;
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.svg.write_fmt(element);
        self.svg.push('\n');
    }

    fn text(&mut self, x: usize, class: &str, text: &str) {
        let y = self.y;
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>",
            escape(text)
        ));
    }

    fn row(&mut self, widths: &[usize], cells: &[String], class: impl Fn(usize) -> &'static str) {
        let mut x = MARGIN;
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let wide = width * CHARACTER;
            let (y, text, class) = (self.y, escape(cell), class(column));
            if cell.is_empty() {
            } else if FIGURES.contains(&column) {
                let end = x + wide;
                self.put(format_args!(
                    "<text class=\"{class}\" x=\"{end}\" y=\"{y}\" text-anchor=\"end\">{text}</text>"
                ));
            } else {
                self.text(x, class, cell);
            }
            x += wide + GAP;
        }
    }

    fn rule(&mut self, width: usize) {
        let y = self.y - 17;
        self.put(format_args!("<path class=\"line\" d=\"M{MARGIN} {y}.5H{}\"/>", width - MARGIN));
    }

    fn band(&mut self, width: usize) {
        let y = self.y - 17;
        self.put(format_args!(
            "<rect class=\"head\" x=\"1\" y=\"{y}\" width=\"{}\" height=\"{LINE}\"/>",
            width - 2
        ));
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cell_says_cannot_break_the_picture() {
        let mut report = super::super::tests::run();
        report.rows[0].seen = "<script> & \"quotes\"".to_owned();
        let svg = draw(&report);
        assert!(svg.contains("&lt;script&gt; &amp; &quot;quotes&quot;"));
        assert!(!svg.contains("<script"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn every_row_and_statement_is_drawn() {
        let report = super::super::tests::run();
        let svg = draw(&report);
        for row in &report.rows {
            for cell in row.cells().iter().filter(|cell| !cell.is_empty()) {
                assert!(svg.contains(&escape(cell)), "{cell}");
            }
        }
        assert!(svg.contains("Guest CPUs are emulated."));
    }
}
