//! What is said of a configuration file that cannot be taken: its line, quoted, in words of the file
//! rather than of the program that reads it.

use strsim::levenshtein;
use toml::de::DeTable;

use crate::uplink::UplinkConfig;

/// What is wrong with a file that the parser refused.
pub(super) fn refused(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let at = error.span().map(|span| span.start);
    // What is missing altogether stands on no line.
    let at = at.filter(|_| !(message.starts_with("missing field") && in_no_table(text, at)));
    let line = at.and_then(|at| Line::holding(text, at));
    let quoted = line.as_ref().map_or("", |line| line.text);
    placed(line.as_ref(), &reworded(message, text, quoted))
}

/// What is wrong with the value of a key, as `uplink` or `vf.1.mac`; the line is that of the longest
/// part of the key that the file has.
pub(super) fn wrong_value(text: &str, key: &str, message: &str) -> String {
    let line = key_at(text, key).and_then(|at| Line::holding(text, at));
    placed(line.as_ref(), message)
}

struct Line<'t> {
    /// From 1 up.
    number: usize,
    text: &'t str,
}

impl<'t> Line<'t> {
    /// The line that holds this byte.
    fn holding(text: &'t str, at: usize) -> Option<Self> {
        let index = text.get(..at)?.matches('\n').count();
        text.lines().nth(index).map(|text| Self { number: index + 1, text: text.trim() })
    }
}

fn placed(line: Option<&Line<'_>>, message: &str) -> String {
    match line {
        Some(Line { number, text }) => format!("line {number}: {message}\n    {text}"),
        None => message.to_owned(),
    }
}

/// Whether no table of the file begins before this byte or at it.
fn in_no_table(text: &str, at: Option<usize>) -> bool {
    let (before, after) = text.split_at_checked(at.unwrap_or(0)).unwrap_or((text, ""));
    let begins_table = |line: &str| line.trim_start().starts_with('[');
    !before.lines().any(begins_table) && !begins_table(after)
}

fn key_at(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let mut at = None;
    for part in key.split('.') {
        let Some((name, value)) = table.get_key_value(part) else { break };
        at = Some(name.span().start);
        let Some(inner) = value.get_ref().as_table() else { break };
        table = inner;
    }
    at
}

fn reworded(message: &str, text: &str, line: &str) -> String {
    let (what, expected) = match message.split_once(", expected ") {
        Some((what, expected)) => (what, Some(expected)),
        None => (message, None),
    };
    match (in_backticks(what).next(), expected) {
        (Some(key), _) if what.starts_with("missing field") => format!("`{key}` is missing"),
        (Some(key), Some(expected)) if what.starts_with("unknown field") => {
            unknown_key(key, &keys_here(expected, text))
        }
        (_, Some(expected)) if line.starts_with("[vf") && what.starts_with("invalid type: map") => {
            format!("this is no table but {}; {VF_TABLE}", in_words(expected))
        }
        (_, Some(expected)) => {
            let what = what.replace("invalid type: map", "invalid type: table");
            let what = what.replace("unknown variant", "unknown value");
            format!("{what}, expected {}", in_words(expected))
        }
        (_, None) => message.to_owned(),
    }
}

const VF_TABLE: &str = "the settings of a VF are in a table of its number, as in `[vf.0]`";

/// Names of Rust's and serde's types in words of the file; others are words already.
fn in_words(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "a sequence" => "a list, as in [0, 1]",
        "a map" => "a table",
        "path string" => "a path",
        "a boolean" => "true or false",
        other => other,
    }
}

fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Keys that are known where one is not. The uplink's depend on its kind.
fn keys_here<'e>(expected: &'e str, text: &str) -> Vec<&'e str> {
    let keys: Vec<&str> = in_backticks(expected).collect();
    let kind = keys.contains(&"kind").then(|| uplink_kind(text)).flatten();
    let of_kind = kind.and_then(|kind| UplinkConfig::keys_of(&kind));
    match of_kind {
        Some(known) => keys.into_iter().filter(|key| known.contains(key)).collect(),
        None => keys,
    }
}

fn uplink_kind(text: &str) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let uplink = document.get_ref().get("uplink")?.get_ref().as_table()?;
    uplink.get("kind")?.get_ref().as_str().map(str::to_owned)
}

fn unknown_key(unknown: &str, known: &[&str]) -> String {
    let list = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let nearest = known.iter().min_by_key(|key| levenshtein(unknown, key));
    let hint = match nearest {
        _ if is_vf_number(unknown) => format!("; {VF_TABLE}"),
        Some(key) if levenshtein(unknown, key) <= 1 + key.len() / 3 => {
            format!("; did you mean `{key}`?")
        }
        _ => String::new(),
    };
    format!("unknown key `{unknown}`, here can be {list}{hint}")
}

/// `vf0`, `vf_1`, `vfs-2`: a VF, but not as the file writes it.
fn is_vf_number(key: &str) -> bool {
    let number = key.strip_prefix("vf").map(|rest| rest.trim_start_matches(['s', '_', '-']));
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
