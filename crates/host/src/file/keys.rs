//! What the YAML parser says, in words for whoever wrote the file: it speaks to Rust's programmers.
//! To an unknown key it lists the keys of the place where that stands; the nearest is the one meant.

/// How the parser says it, and how we do.
const WORDS: [(&str, &str); 9] = [
    ("invalid u8", "not a whole number from 0 to 255"),
    ("invalid u16", "not a whole number from 0 to 65535"),
    ("invalid u32", "not a whole number from 0 to 4294967295"),
    ("expected sequence start", "a list is wanted here, as in [a, b]"),
    ("expected mapping start", "keys with values are wanted here, as in {key: value}"),
    ("unexpected end of input", "the file ends before its first key"),
    (", set DuplicateKeyPolicy in Options if acceptable", ": give it once"),
    ("; use from_str_multiple or from_str_multiple_with_options", ": give one, without `---`"),
    ("multiple YAML documents detected", "there are several YAML documents"),
];

/// The message in words for whoever wrote the file.
pub(crate) fn in_our_words(message: &str) -> String {
    let reword = |text: String, (theirs, ours): &(&str, &str)| text.replace(theirs, ours);
    WORDS.iter().fold(with_nearest_key(message), reword)
}

/// The message with the nearest of the keys that it lists.
fn with_nearest_key(message: &str) -> String {
    let unknown = message.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
    let Some((unknown, rest)) = unknown else {
        return message.to_owned();
    };
    let listed = rest.lines().next().and_then(|line| line.split_once("expected "));
    let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let known = listed.map(|(_, list)| list).unwrap_or_default();
    let known = known.split(|c| !is_key(c)).filter(|word| !["", "one", "of", "or"].contains(word));
    match nearest(unknown, known) {
        Some(key) => format!("{}\ndid you mean `{key}`?", message.trim_end()),
        None => message.to_owned(),
    }
}

/// The known name that `unknown` was meant to be, if it is near enough to one to be a slip.
pub(crate) fn nearest<'a>(
    unknown: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    known
        .into_iter()
        .map(|key| (strsim::damerau_levenshtein(unknown, key), key))
        .filter(|(distance, key)| *distance <= 1 + key.len() / 3)
        .min()
        .map(|(_, key)| key)
}
