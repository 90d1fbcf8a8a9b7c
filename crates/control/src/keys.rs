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
//! /v1/global/KIND/ID             a resource of the operator's: a region, a flavor, an organization
//! /v1/tenant/KIND/ORGANIZATION/ID  a resource of a tenant's: a VM, a network, a key pair
//! /v1/taken/KIND/SCOPE/HASH      which resource has a name: made only if it is not there
//! /v1/numbers/WHAT/SCOPE/NUMBER  which resource has a VLAN, a subnet's address: likewise
//! /v1/once/ORGANIZATION/HASH     what a request with an idempotency key was answered
//! /v1/ends/SECOND/ORGANIZATION/HASH  that this answer is forgotten then
//! /v1/counters/WHAT              the first number of WHAT that nobody has reserved yet
//! /v1/keys/ID                    an API key: whose it is, and the hash of its secret
//! /v1/tokens/ID                  a one-time token: which host it enrols, and the hash of its secret
//! /v1/alive/REGION/HOST          an agent's lease
//! /v1/agents/REGION/HOST         which certificate is that host's
//! /v1/desired/REGION/HOST/VM     a VM as the agent of its host shall have it
//! /v1/desired/REGION/HOST/proof-RUN-VM  what a verification run asks of a VM, until it is told of
//! /v1/reports/REGION/HOST/VM     what the agent says became of it
//! ```

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest name, in bytes: that of a DNS host name (RFC 1035, 2.3.4).
const LONGEST_NAME: usize = 253;

/// What a name looks like, as a schema says it.
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:-]*$";

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

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": NAME_PATTERN, "maxLength": LONGEST_NAME})
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
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

/// Who does duties.
pub fn leaders() -> Prefix {
    Prefix(format!("{ROOT}/leaders/"))
}

/// Who does a duty.
pub fn leader(duty: &DutyName) -> Key {
    Key(format!("{ROOT}/leaders/{duty}"))
}

/// Digits of an id in a key: as many as make the order of keys that of ids.
const ID_DIGITS: usize = 16;

/// Resources of one kind that are the operator's.
pub fn global(kind: &'static str) -> Prefix {
    Prefix(format!("{ROOT}/global/{kind}/"))
}

/// One of them.
pub fn global_one(kind: &'static str, id: u64) -> Key {
    Key(format!("{ROOT}/global/{kind}/{id:0ID_DIGITS$}"))
}

/// Resources of one kind of every organization.
pub fn tenants(kind: &'static str) -> Prefix {
    Prefix(format!("{ROOT}/tenant/{kind}/"))
}

/// Resources of one kind of one organization.
pub fn tenant(kind: &'static str, organization: &OrgName) -> Prefix {
    Prefix(format!("{ROOT}/tenant/{kind}/{organization}/"))
}

/// One of them.
pub fn tenant_one(kind: &'static str, organization: &OrgName, id: u64) -> Key {
    Key(format!("{ROOT}/tenant/{kind}/{organization}/{id:0ID_DIGITS$}"))
}

/// A key that no resource of an organization comes after: its id is more than any there can be.
pub fn last_of_tenant(kind: &'static str, organization: &OrgName) -> Key {
    let nines = "9".repeat(ID_DIGITS);
    Key(format!("{ROOT}/tenant/{kind}/{organization}/{nines}"))
}

/// The kind that a resource's key is of, the organization if it is a tenant's, and its id.
pub fn resource(key: &Key) -> Option<(&str, Option<OrgName>, u64)> {
    let mut names = key.0.strip_prefix(ROOT)?.strip_prefix('/')?.split('/');
    let whose = names.next()?;
    let kind = names.next()?;
    let organization = match whose {
        "global" => None,
        "tenant" => Some(OrgName::new(names.next()?).ok()?),
        _ => return None,
    };
    Some((kind, organization, names.next()?.parse().ok()?))
}

/// A text as a name: what a tenant chose may hold anything, and may be long.
fn hashed(text: &str) -> String {
    use std::fmt::Write;
    Sha256::digest(text.as_bytes()).iter().take(16).fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// The key that only one can have who wants `text` as a `what` within `scope`.
pub fn taken(what: &'static str, scope: &str, text: &str) -> Key {
    Key(format!("{ROOT}/taken/{what}/{}/{}", hashed(scope), hashed(text)))
}

/// The key that only one can have who wants a number within `scope`: a VLAN, an address of a subnet.
///
/// # Errors
/// [`KeyError::Name`] if the scope is no name.
pub fn number(what: &'static str, scope: &str, number: u32) -> Result<Key, KeyError> {
    let below = numbers(what, scope)?;
    Ok(Key(format!("{below}{number}")))
}

/// All numbers that are taken within `scope`.
///
/// # Errors
/// [`KeyError::Name`] if the scope is no name.
pub fn numbers(what: &'static str, scope: &str) -> Result<Prefix, KeyError> {
    if is_name(scope) {
        Ok(Prefix(format!("{ROOT}/numbers/{what}/{scope}/")))
    } else {
        Err(KeyError::Name(scope.to_owned()))
    }
}

/// What a request was answered that carried an idempotency key.
pub fn once(organization: &OrgName, idempotency_key: &str) -> Key {
    Key(format!("{ROOT}/once/{organization}/{}", hashed(idempotency_key)))
}

/// That what a request was answered is forgotten at a second of the clock.
pub fn end_of_once(second: u64, organization: &OrgName, idempotency_key: &str) -> Key {
    let hash = hashed(idempotency_key);
    Key(format!("{ROOT}/ends/{second:0ID_DIGITS$}/{organization}/{hash}"))
}

/// What answers are forgotten when, the first first.
pub fn ends() -> Prefix {
    Prefix(format!("{ROOT}/ends/"))
}

/// The second at which an answer is forgotten, and where it is.
pub fn ending(key: &Key) -> Option<(u64, Key)> {
    let (second, rest) = key.0.strip_prefix(ROOT)?.strip_prefix("/ends/")?.split_once('/')?;
    Some((second.parse().ok()?, Key(format!("{ROOT}/once/{rest}"))))
}

/// Whose API key it is that has this id in its text.
///
/// # Errors
/// [`KeyError::Name`].
pub fn api_key(id: &str) -> Result<Key, KeyError> {
    is_name(id).then(|| Key(format!("{ROOT}/keys/{id}"))).ok_or(KeyError::Name(id.to_owned()))
}

/// Which host a one-time token enrols that has this id in its text.
///
/// # Errors
/// [`KeyError::Name`].
pub fn token(id: &str) -> Result<Key, KeyError> {
    is_name(id).then(|| Key(format!("{ROOT}/tokens/{id}"))).ok_or(KeyError::Name(id.to_owned()))
}

/// A counter.
pub fn counter(what: &'static str) -> Key {
    Key(format!("{ROOT}/counters/{what}"))
}

/// The leases of a region's agents.
pub fn alive(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/alive/{region}/"))
}

/// An agent's lease.
pub fn alive_one(region: &RegionName, host: &HostName) -> Key {
    Key(format!("{ROOT}/alive/{region}/{host}"))
}

/// The certificates of a region's hosts.
pub fn agents(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/agents/{region}/"))
}

/// Which certificate is a host's.
pub fn agent(region: &RegionName, host: &HostName) -> Key {
    Key(format!("{ROOT}/agents/{region}/{host}"))
}

/// All that the hosts of a region shall have.
pub fn all_desired(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/desired/{region}/"))
}

/// All that a host shall have.
pub fn desired(region: &RegionName, host: &HostName) -> Prefix {
    Prefix(format!("{ROOT}/desired/{region}/{host}/"))
}

/// A VM as its host shall have it.
pub fn desired_vm(region: &RegionName, host: &HostName, vm: u64) -> Key {
    Key(format!("{ROOT}/desired/{region}/{host}/{vm:0ID_DIGITS$}"))
}

/// What a verification run asks of a VM.
pub fn desired_proof(region: &RegionName, host: &HostName, run: u64, vm: u64) -> Key {
    Key(format!("{ROOT}/desired/{region}/{host}/proof-{run:0ID_DIGITS$}-{vm:0ID_DIGITS$}"))
}

/// Whether what a host shall have is a proof, not a VM.
pub fn is_proof(key: &Key) -> bool {
    key.last().starts_with("proof-")
}

/// What a region's agents say of their VMs.
pub fn reports(region: &RegionName) -> Prefix {
    Prefix(format!("{ROOT}/reports/{region}/"))
}

/// What a host's agent says of a VM.
pub fn report(region: &RegionName, host: &HostName, vm: u64) -> Key {
    Key(format!("{ROOT}/reports/{region}/{host}/{vm:0ID_DIGITS$}"))
}

/// The host and the VM that the key of a report is of, or of what is desired.
pub fn reported(key: &Key) -> Option<(HostName, u64)> {
    let mut names = key.0.rsplit('/');
    let vm = names.next()?.parse().ok()?;
    Some((HostName::new(names.next()?).ok()?, vm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resources_key_says_what_it_is_of() {
        let organization = OrgName::new("acme").expect("a name");
        let vm = tenant_one("vms", &organization, 42);
        assert_eq!(resource(&vm), Some(("vms", Some(organization.clone()), 42)));
        assert_eq!(resource(&global_one("regions", 7)), Some(("regions", None, 7)));
        assert_eq!(resource(&quota(&organization)), None);
        assert!(tenant("vms", &organization).holds(&vm) && tenants("vms").holds(&vm));
        assert!(tenant_one("vms", &organization, 9) < tenant_one("vms", &organization, 10));
    }

    #[test]
    fn the_end_of_an_answer_says_when_and_where_and_the_first_to_end_is_first() {
        let organization = OrgName::new("acme").expect("a name");
        let end = end_of_once(99, &organization, "mine");
        assert_eq!(ending(&end), Some((99, once(&organization, "mine"))));
        assert!(end < end_of_once(100, &organization, "a") && ends().holds(&end));
    }

    #[test]
    fn any_text_can_be_taken_and_only_by_one() {
        let ubuntu = taken("image-name", "", "Ubuntu Server 22.04 LTS/../..");
        assert_eq!(Key::parse(ubuntu.as_str()), Ok(ubuntu.clone()));
        assert_ne!(taken("image-name", "a", "b"), taken("image-name", "b", "a"));
        assert!(number("vlans", "a/b", 1).is_err());
    }

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
