//! Values on the command line: how they are read, and what is said of one that cannot be.

use lanekeeper_model::{Mbps, ModelError, VfIndex};

/// A number that `make` takes.
pub(crate) fn number<T: Clone + Send + Sync + 'static>(
    make: fn(u32) -> Result<T, ModelError>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| make(whole(text)?).map_err(|error| error.to_string())
}

/// Number of a VF.
pub(crate) fn vf(text: &str) -> Result<VfIndex, String> {
    number(VfIndex::new)(text)
}

/// A rate in Mb/s.
pub(crate) fn mbps(text: &str) -> Result<Mbps, String> {
    whole(text).map(Mbps).map_err(|error| format!("{error} of Mb/s, as in 10000 for 10 Gb/s"))
}

/// Seconds that something may take: one to a day's.
pub(crate) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    match whole(text)? {
        seconds @ 1..=86_400 => Ok(std::time::Duration::from_secs(seconds.into())),
        other => Err(format!("{other} seconds are out of range; use 1 to 86400 (a day)")),
    }
}

/// `on` or `off`.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

fn whole(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::Mtu;

    #[test]
    fn what_is_wrong_is_said_with_the_value() {
        assert_eq!(number(Mtu::new)("9000"), Ok(Mtu::new(9_000).expect("in range")));
        for (refusal, value) in [
            (number(Mtu::new)("9000000").map(drop), "9000000"),
            (number(Mtu::new)("big").map(drop), "'big'"),
            (mbps("10G").map(drop), "'10G'"),
            (switch("yes").map(drop), "'yes'"),
            (vf("-1").map(drop), "'-1'"),
            (seconds("0").map(drop), "0 seconds"),
            (seconds("86401").map(drop), "86401"),
        ] {
            let text = refusal.expect_err(value);
            assert!(text.contains(value), "{text}");
        }
    }
}
