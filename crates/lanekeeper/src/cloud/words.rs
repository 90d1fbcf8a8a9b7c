//! Words on the command line that stand for one of a few values of the API's, shown by `--help` and
//! completed by shells.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A parser of words, each as the API spells it.
pub(super) fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words)
        .try_map(|word| serde_json::from_value::<T>(Value::String(word)))
}

pub(super) const PROFILES: &[&str] = &["roce", "ethernet", "infiniband"];
pub(super) const ROCE_VERSIONS: &[&str] = &["v1", "v2"];
pub(super) const ROLES: &[&str] = &["reader", "member", "admin", "operator"];
pub(super) const RDMA: &[&str] = &["hardware", "software", "none"];
pub(super) const DISTANCES: &[&str] = &["PIX", "PXB", "PHB", "NODE", "SYS"];
pub(super) const FORMATS: &[&str] = &["qcow2", "raw"];

#[cfg(test)]
mod tests {
    use lanekeeper_control::protocol::ImageFormat;
    use lanekeeper_control::resource::{Profile, RoceVersion, Role};
    use lanekeeper_host::RdmaNeed;
    use lanekeeper_topology::Distance;

    use super::*;

    fn understood<T: DeserializeOwned>(words: &[&str]) {
        for word in words {
            let value = serde_json::from_value::<T>(Value::String((*word).to_owned()));
            assert!(value.is_ok(), "{word}");
        }
    }

    #[test]
    fn every_word_that_is_offered_is_one_of_the_apis() {
        understood::<Profile>(PROFILES);
        understood::<RoceVersion>(ROCE_VERSIONS);
        understood::<Role>(ROLES);
        understood::<RdmaNeed>(RDMA);
        understood::<Distance>(DISTANCES);
        understood::<ImageFormat>(FORMATS);
    }
}
