//! The uplink's part of the configuration file.

use std::fmt;

use lanekeeper_model::Mtu;
use serde::{Deserialize, Serialize};

/// Name of a network interface: 1 to 15 bytes without `/`, `:` or white space, and neither `.` nor
/// `..` (the kernel's `dev_valid_name`). `%`, too, is refused: the kernel would fill in a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

/// Why a text is not an interface's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an interface name; use 1 to 15 characters without '/', ':', '%' or spaces, as in eth0"
)]
pub struct InterfaceNameError(String);

impl InterfaceName {
    /// A name.
    ///
    /// # Errors
    /// [`InterfaceNameError`] for a text that no interface can have as its name.
    pub fn new(name: impl Into<String>) -> Result<Self, InterfaceNameError> {
        let name = name.into();
        let banned = |c: char| "/:%\0".contains(c) || c.is_whitespace();
        let fits = (1..=15).contains(&name.len());
        if !fits || name == "." || name == ".." || name.contains(banned) {
            return Err(InterfaceNameError(name));
        }
        Ok(Self(name))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = InterfaceNameError;
    fn try_from(name: String) -> Result<Self, InterfaceNameError> {
        Self::new(name)
    }
}

impl From<InterfaceName> for String {
    fn from(name: InterfaceName) -> Self {
        name.0
    }
}

/// What carries traffic off the host. In the file: `kind = "none"`, `kind = "tap"` with `name` and
/// perhaps `mtu`, or `kind = "packet"` with `interface`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Keys", into = "Keys")]
pub enum UplinkConfig {
    /// Nothing: VFs reach each other only.
    #[default]
    None,
    /// A TAP interface, for the host's own stack or a bridge of the host.
    Tap {
        /// Its name. It is made (and brought up) if it does not exist, and then goes when the
        /// software NIC goes.
        name: InterfaceName,
        /// MTU to give it; as it is if absent.
        mtu: Option<Mtu>,
    },
    /// An existing interface, through packet sockets: everything it receives is ours, and it is
    /// promiscuous as long as the software NIC runs.
    Packet {
        /// Its name.
        interface: InterfaceName,
    },
}

impl UplinkConfig {
    /// Interface that the uplink stands on, if any.
    pub fn interface(&self) -> Option<&InterfaceName> {
        match self {
            Self::None => None,
            Self::Tap { name, .. } => Some(name),
            Self::Packet { interface } => Some(interface),
        }
    }
}

/// The three kinds.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    None,
    Tap,
    Packet,
}

/// The keys as they stand in the file. Flat, so that the parser's errors carry the line of the
/// wrong key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<InterfaceName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<InterfaceName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<Mtu>,
}

impl TryFrom<Keys> for UplinkConfig {
    type Error = &'static str;
    fn try_from(keys: Keys) -> Result<Self, &'static str> {
        match keys {
            Keys { kind: Kind::None, name: None, interface: None, mtu: None } => Ok(Self::None),
            Keys { kind: Kind::None, .. } => Err("an uplink of kind \"none\" has no other keys"),
            Keys { kind: Kind::Tap, name: Some(name), interface: None, mtu } => {
                Ok(Self::Tap { name, mtu })
            }
            Keys { kind: Kind::Tap, .. } => {
                Err("an uplink of kind \"tap\" has `name`, perhaps `mtu`, and no other keys")
            }
            Keys { kind: Kind::Packet, name: None, interface: Some(interface), mtu: None } => {
                Ok(Self::Packet { interface })
            }
            Keys { kind: Kind::Packet, .. } => {
                Err("an uplink of kind \"packet\" has `interface` and no other keys")
            }
        }
    }
}

impl From<UplinkConfig> for Keys {
    fn from(config: UplinkConfig) -> Self {
        let (kind, name, interface, mtu) = match config {
            UplinkConfig::None => (Kind::None, None, None, None),
            UplinkConfig::Tap { name, mtu } => (Kind::Tap, Some(name), None, mtu),
            UplinkConfig::Packet { interface } => (Kind::Packet, None, Some(interface), None),
        };
        Self { kind, name, interface, mtu }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<UplinkConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn name(text: &str) -> InterfaceName {
        InterfaceName::new(text).expect("valid")
    }

    #[test]
    fn each_kind_is_read_and_written_the_same() {
        for (text, config) in [
            ("kind = \"none\"\n", UplinkConfig::None),
            (
                "kind = \"tap\"\nname = \"tap0\"\n",
                UplinkConfig::Tap { name: name("tap0"), mtu: None },
            ),
            (
                "kind = \"tap\"\nname = \"tap0\"\nmtu = 9000\n",
                UplinkConfig::Tap { name: name("tap0"), mtu: Mtu::new(9000).ok() },
            ),
            (
                "kind = \"packet\"\ninterface = \"eth1\"\n",
                UplinkConfig::Packet { interface: name("eth1") },
            ),
        ] {
            assert_eq!(parse(text).as_ref(), Ok(&config));
            assert_eq!(toml::to_string(&config).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_key_that_does_not_belong_to_the_kind_is_an_error_that_says_what_does() {
        for (text, wanted) in [
            ("kind = \"none\"\nname = \"x\"\n", "no other keys"),
            ("kind = \"tap\"\ninterface = \"x\"\n", "`name`"),
            ("kind = \"packet\"\nname = \"x\"\n", "`interface`"),
            ("kind = \"packet\"\ninterface = \"x\"\nmtu = 1500\n", "no other keys"),
            ("kind = \"packet\"\ninterfaces = \"x\"\n", "line 2"),
            ("kind = \"bridge\"\n", "bridge"),
            ("interface = \"x\"\n", "kind"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for text in
            ["", ".", "..", "a/b", "a b", "a:1", "sixteen-bytes-xx", "tab\tbed", "nul\0", "tap%d"]
        {
            assert!(InterfaceName::new(text).is_err(), "{text:?}");
        }
        assert_eq!(name("fifteen-bytes-x").as_str(), "fifteen-bytes-x");
    }
}
