//! Points in time as the API tells them: RFC 3339, in UTC, to the second.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, to the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Time(jiff::Timestamp);

impl Time {
    /// Now.
    pub fn now() -> Self {
        Self::from_second(jiff::Timestamp::now().as_second())
    }

    /// So many seconds after 1970 began.
    pub fn from_second(second: i64) -> Self {
        Self(jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }

    /// Seconds since 1970 began.
    pub fn second(self) -> i64 {
        self.0.as_second()
    }

    /// `YYYY-MM-DDTHH:MM:SS`, without a zone: the one form that clients of the Hyperstack API take.
    pub fn without_zone(self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%S").to_string()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self::from_second(time.as_second()))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339, in UTC, to the second."
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_to_the_second_in_both_forms() {
        let time = Time::from_second(1_796_000_000);
        assert_eq!(time.to_string(), "2026-11-30T00:53:20Z");
        assert_eq!(time.without_zone(), "2026-11-30T00:53:20");
        let read: Time = serde_json::from_str("\"2026-11-30T00:53:20.7Z\"").expect("a time");
        assert_eq!(read, time);
    }
}
