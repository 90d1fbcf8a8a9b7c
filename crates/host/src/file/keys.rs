//! "Did you mean": the nearest known key for one that the parser did not know. What is known comes
//! from the parser's own message, which lists the keys of the place where the unknown one stands.

/// The message with the nearest of the keys that it lists.
pub(crate) fn with_nearest_key(message: &str) -> String {
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
