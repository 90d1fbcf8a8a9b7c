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

    /// Keys of the file that belong to this kind of uplink, if there is such a kind.
    pub(crate) fn keys_of(kind: &str) -> Option<&'static [&'static str]> {
        let kinds = [Kind::None, Kind::Tap, Kind::Packet];
        kinds.into_iter().find(|known| known.name() == kind).map(Kind::keys)
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
#[serde(deny_unknown_fields, expecting = "a table, as in { kind = \"tap\", name = \"tap0\" }")]
struct Keys {
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<InterfaceName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<InterfaceName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<Mtu>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tap => "tap",
            Self::Packet => "packet",
        }
    }

    /// The keys that belong to it.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::None => &["kind"],
            Self::Tap => &["kind", "name", "mtu"],
            Self::Packet => &["kind", "interface"],
        }
    }
}

impl TryFrom<Keys> for UplinkConfig {
    type Error = String;
    fn try_from(keys: Keys) -> Result<Self, String> {
        let Keys { kind, name, interface, mtu } = keys;
        let given =
            [("name", name.is_some()), ("interface", interface.is_some()), ("mtu", mtu.is_some())];
        let foreign = given.iter().find(|(key, given)| *given && !kind.keys().contains(key));
        let of_kind = format!("an uplink of kind \"{}\"", kind.name());
        match (foreign, kind, name, interface) {
            (Some((key, _)), ..) => {
                let keys: Vec<String> = kind.keys().iter().map(|key| format!("`{key}`")).collect();
                Err(format!("{of_kind} has no `{key}`; its keys: {}", keys.join(", ")))
            }
            (None, Kind::None, ..) => Ok(Self::None),
            (None, Kind::Tap, Some(name), _) => Ok(Self::Tap { name, mtu }),
            (None, Kind::Packet, _, Some(interface)) => Ok(Self::Packet { interface }),
            (None, Kind::Tap, None, _) => Err(format!(
                "`name` is missing: {of_kind} needs the TAP's name, as in name = \"tap0\""
            )),
            (None, Kind::Packet, _, None) => Err(format!(
                "`interface` is missing: {of_kind} needs an interface's name, as in interface = \"eth1\""
            )),
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
            ("kind = \"none\"\nname = \"x\"\n", "no `name`; its keys: `kind`"),
            (
                "kind = \"tap\"\ninterface = \"x\"\n",
                "no `interface`; its keys: `kind`, `name`, `mtu`",
            ),
            ("kind = \"tap\"\n", "`name` is missing"),
            ("kind = \"packet\"\nname = \"x\"\n", "no `name`; its keys: `kind`, `interface`"),
            ("kind = \"packet\"\n", "`interface` is missing"),
            ("kind = \"packet\"\ninterface = \"x\"\nmtu = 1500\n", "no `mtu`"),
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
