//! Who is at the other ends of this host's cables: what lldpd has heard by LLDP (IEEE 802.1AB), where that
//! runs. Without it nothing is known, which is no fault.

use std::collections::BTreeMap;
use std::time::Duration;

use lanekeeper_control::placement::Neighbour;
use lanekeeper_verify::{Host, LocalHost};
use serde::Deserialize;

/// How long lldpd may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// `lldpctl -f json0`: the form in which a list is one also if it has one entry (lldpctl(8)).
#[derive(Deserialize)]
struct Heard {
    lldp: Vec<Interfaces>,
}

#[derive(Deserialize)]
struct Interfaces {
    #[serde(default)]
    interface: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    #[serde(default)]
    chassis: Vec<Chassis>,
    #[serde(default)]
    port: Vec<Port>,
}

#[derive(Deserialize)]
struct Chassis {
    #[serde(default)]
    id: Vec<Text>,
    #[serde(default)]
    name: Vec<Text>,
}

#[derive(Deserialize)]
struct Port {
    #[serde(default)]
    id: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    value: String,
}

/// Neighbours by interface.
pub(crate) type Neighbours = BTreeMap<String, Neighbour>;

/// Those that lldpd has heard of.
pub(crate) fn look() -> Neighbours {
    let here = LocalHost::new("this host");
    match here.run("lldpctl -f json0", PATIENCE) {
        Ok(output) if output.success() => parse(&output.stdout),
        _ => BTreeMap::new(),
    }
}

/// The first that each interface has heard; a second is somebody behind an unmanaged switch.
fn parse(text: &str) -> BTreeMap<String, Neighbour> {
    let Ok(heard) = serde_json::from_str::<Heard>(text) else { return BTreeMap::new() };
    let mut neighbours = BTreeMap::new();
    let first = |texts: &[Text]| texts.first().map(|text| short(&text.value));
    for interface in heard.lldp.into_iter().flat_map(|it| it.interface) {
        let chassis = interface.chassis.first();
        let system = chassis.and_then(|it| first(&it.name).or_else(|| first(&it.id)));
        let port = interface.port.first().and_then(|it| first(&it.id));
        if let (Some(system), Some(port)) = (system, port) {
            neighbours.entry(interface.name).or_insert(Neighbour { system, port });
        }
    }
    neighbours
}

/// LLDP's texts have up to 255 bytes, of whatever the neighbour likes.
fn short(text: &str) -> String {
    text.chars().filter(|it| !it.is_control()).take(255).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEARD: &str = include_str!("../../samples/lldpctl.json");

    #[test]
    fn what_lldpd_has_heard_is_read_by_interface() {
        let want = Neighbour { system: "leaf7".to_owned(), port: "Ethernet1/7".to_owned() };
        assert_eq!(parse(HEARD), BTreeMap::from([("eth1".to_owned(), want)]));
        assert_eq!(parse("{ \"lldp\": [ { } ] }"), BTreeMap::new());
    }

    #[test]
    fn a_switch_without_a_name_is_known_by_its_chassis() {
        let nameless = HEARD.replace("\"name\": [{ \"value\": \"leaf7\" }],", "");
        assert_eq!(parse(&nameless)["eth1"].system, "02:11:22:33:44:55");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(?s).{0,200}", at in 0..HEARD.len()) {
            let _ = parse(&text);
            let _ = parse(HEARD.get(..at).unwrap_or_default());
        }
    }
}
