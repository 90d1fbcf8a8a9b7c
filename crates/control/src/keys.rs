//! Where things are in the store. A key is built here and nowhere else, from names that were checked,
//! so that no room can write beside the layout and no name can reach out of its folder.
//!
//! ```text
//! /v1/hosts/REGION/HOST          what a host has, as its agent reported it
//! /v1/claims/REGION/HOST         what is claimed of it: all that its agent needs to see
//! /v1/placements/REGION/ID       a request and where its VMs are
//! /v1/quotas/ORGANIZATION        what an organization may use
//! /v1/usage/ORGANIZATION         what its placements use
//! /v1/leaders/DUTY               who does a duty, under a lease
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes: that of a DNS host name (RFC 1035, 2.3.4).
const LONGEST_NAME: usize = 253;

/// A key or a name that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not a name.
    #[error(
        "'{0}' is not a name; use 1 to {LONGEST_NAME} of a-z, A-Z, 0-9, '.', '_', ':' and '-', \
         starting with a letter or digit"
    )]
    Name(String),
    /// Not a key.
    #[error("'{0}' is not a key; a key is '/' and a name, once or more often")]
    Key(String),
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(inner)
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// A name.
            ///
            /// # Errors
            /// [`KeyError::Name`] if it is empty, too long, or has other characters in it.
            pub fn new(text: &str) -> Result<Self, KeyError> {
                if is_name(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(KeyError::Name(text.to_owned()))
                }
            }

            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = KeyError;
            fn from_str(text: &str) -> Result<Self, KeyError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = KeyError;
            fn try_from(text: String) -> Result<Self, KeyError> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    )*};
}

names! {
    /// A host's name.
    HostName
    /// A region's name: hosts are placed on within one.
    RegionName
    /// An organization, by the id that its quota and its usage go by.
    OrgName
    /// A request that was placed: a VM, or a group of them.
    PlacementId
    /// A task that one server at a time does.
    DutyName
    /// Who holds a duty.
    ServerName
    /// A PF, by the name its host's file gives it, or a software NIC by its own.
    PfName
    /// A fabric: PFs of two hosts reach one another if theirs is the same.
    FabricName
    /// A leaf switch.
    LeafName
    /// A pod.
    PodName
    /// A GPU model.
    GpuModel
}

/// A key of the store: `/` and a name, once or more often.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(String);

impl Key {
    /// A key as a store gave it back. To make one, use the functions of this module.
    ///
    /// # Errors
    /// [`KeyError::Key`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        match text.strip_prefix('/') {
            Some(names) if names.split('/').all(is_name) => Ok(Self(text.to_owned())),
            _ => Err(KeyError::Key(text.to_owned())),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last of its names.
    pub fn last(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// All keys that begin with some names: a key and `/` at its end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix(String);

impl Prefix {
    /// All keys below `key`.
    pub fn below(key: &Key) -> Self {
        Self(format!("{key}/"))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a key is below it.
    pub fn holds(&self, key: &Key) -> bool {
        key.0.starts_with(&self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What every key begins with; another layout would have another.
const ROOT: &str = "/v1";

/// Every key there is.
pub fn everything() -> Prefix {
    Prefix(format!("{ROOT}/"))
}

/// All hosts of a region, as their agents reported them.
pub fn hosts(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/hosts/{region}/"))
}

/// What one host has.
pub fn host(region: &RegionName, host: &HostName) -> Key {
    Key(format!("{ROOT}/hosts/{region}/{host}"))
}

/// What is claimed of the hosts of a region.
pub fn claims(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/claims/{region}/"))
}

/// What is claimed of one host.
pub fn claims_of(region: &RegionName, host: &HostName) -> Key {
    Key(format!("{ROOT}/claims/{region}/{host}"))
}

/// All placements of a region.
pub fn placements(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/placements/{region}/"))
}

/// One placement.
pub fn placement(region: &RegionName, id: &PlacementId) -> Key {
    Key(format!("{ROOT}/placements/{region}/{id}"))
}

/// The quotas of all organizations.
pub fn quotas() -> Prefix {
    Prefix(format!("{ROOT}/quotas/"))
}

/// What one organization may use.
pub fn quota(organization: &OrgName) -> Key {
    Key(format!("{ROOT}/quotas/{organization}"))
}

/// What all organizations use.
pub fn usages() -> Prefix {
    Prefix(format!("{ROOT}/usage/"))
}

/// What one organization uses.
pub fn usage(organization: &OrgName) -> Key {
    Key(format!("{ROOT}/usage/{organization}"))
}

/// Who does a duty.
pub fn leader(duty: &DutyName) -> Key {
    Key(format!("{ROOT}/leaders/{duty}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_reach_out_of_its_folder() {
        for name in ["", "/", "a/b", "..", "../claims", "-a", "a b", "ä", &"a".repeat(254)] {
            assert_eq!(HostName::new(name), Err(KeyError::Name(name.to_owned())), "{name}");
        }
        for name in ["a", "host-1.rack_2", "3f:00", &"a".repeat(253)] {
            assert_eq!(HostName::new(name).map(String::from), Ok(name.to_owned()));
        }
    }

    #[test]
    fn a_key_is_read_back_as_it_was_made() {
        let region = RegionName::new("north").expect("a name");
        let name = HostName::new("h1").expect("a name");
        let key = claims_of(&region, &name);
        assert_eq!(Key::parse(key.as_str()), Ok(key.clone()));
        assert_eq!(key.last(), "h1");
        assert!(claims(&region).holds(&key));
        assert!(!hosts(&region).holds(&key));
        for text in ["", "/", "a", "/a/", "//a", "/a//b", "/a b"] {
            assert_eq!(Key::parse(text), Err(KeyError::Key(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_region_whose_name_begins_as_anothers_does_is_another() {
        let region = |name| RegionName::new(name).expect("a name");
        let there = host(&region("north2"), &HostName::new("h1").expect("a name"));
        assert!(!hosts(&region("north")).holds(&there));
    }

    #[test]
    fn a_name_that_is_none_is_refused_in_json_too() {
        assert!(serde_json::from_str::<HostName>("\"a/b\"").is_err());
        assert_eq!(serde_json::from_str::<HostName>("\"ab\"").ok(), HostName::new("ab").ok());
    }
}
