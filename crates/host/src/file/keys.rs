//! "Did you mean": the nearest known key for one that the parser did not know. What is known comes
//! from the parser's own message, which lists the keys of the place where the unknown one stands.

/// The message with the nearest of the keys that it lists.
pub(crate) fn with_nearest_key(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = message.contains("unknown field").then(|| quoted.next()).flatten();
    let Some(unknown) = unknown else {
        return message.to_owned();
    };
    match nearest(unknown, quoted) {
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
