//! How things of the server are shown: each kind has one table of columns, and every command uses it.

use std::fmt::Display;

use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::Failure;
use crate::output::{harmless, print};

/// A heading, and what is under it.
pub(super) type Column<T> = (&'static str, fn(&T) -> String);

/// Something that is shown as a line of a table.
pub(super) trait Row: Sized + 'static {
    /// What a list shows of it.
    const COLUMNS: &'static [Column<Self>];
    /// What more is shown of one alone.
    const MORE: &'static [Column<Self>] = &[];
}

/// Some of them, one a line.
pub(super) fn print_rows<T: Row>(rows: &[T]) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(T::COLUMNS.iter().map(|(heading, _)| heading));
    for row in rows {
        table.add_row(T::COLUMNS.iter().map(|(_, cell)| filled(&cell(row))));
    }
    print(table.trim_fmt())
}

/// One of them, a property a line.
pub(super) fn print_one<T: Row>(one: &T) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (heading, cell) in T::COLUMNS.iter().chain(T::MORE) {
        let text = cell(one);
        if !text.is_empty() {
            table.add_row([(*heading).to_owned(), harmless(&text)]);
        }
    }
    print(table.trim_fmt())
}

fn filled(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { harmless(text) }
}

/// As JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    print(text.map_err(|error| Failure::Work(format!("it cannot be written as JSON: {error}")))?)
}

/// What the API has for it, if that is a word or a number.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        Ok(Value::Null) | Err(_) => String::new(),
        Ok(other) => other.to_string(),
    }
}

/// What is there, if anything is.
pub(super) fn maybe(value: Option<&impl Display>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// All of them, with commas between.
pub(super) fn joined<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
