//! Network interfaces of a PCI function: which of several is the PF's own, which are its VFs'
//! representors, what one is set to and who else manages it.

use std::path::Path;

use lanekeeper_model::{Mbps, VfIndex};

use super::tree::{self, Tree};
use crate::inventory::Netdev;

const IFF_UP: u32 = 1;

/// What an interface is, by its port's name (`ndo_get_phys_port_name`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// `p0`: the wire's own.
    Uplink,
    /// No name: the interface of a NIC that has no embedded switch, or whose switch is off.
    Plain,
    /// `pf0vf5`, of this host; `c1pf0vf5`, of another host that a DPU serves.
    Vf { elsewhere: bool, vf: u32 },
    /// `pf0`, `pf0sf88` and whatever comes.
    Other,
}

/// `^p\d+$` is the uplink and `^(c\d+)?pf\d+vf\d+$` a VF (sriovnet PR#72); all share one PCI device.
fn role(port: Option<&str>) -> Role {
    let Some(port) = port else { return Role::Plain };
    if port.strip_prefix('p').is_some_and(|number| number.parse::<u32>().is_ok()) {
        return Role::Uplink;
    }
    let controller = port.strip_prefix('c').and_then(|rest| {
        let (number, rest) = rest.split_once('p')?;
        number.parse::<u32>().ok().map(|_| rest)
    });
    let parse = |name: &str| {
        let (pf, vf) = name.strip_prefix('f')?.split_once("vf")?;
        pf.parse::<u32>().ok()?;
        vf.parse().ok()
    };
    let vf = controller.or_else(|| port.strip_prefix('p')).and_then(parse);
    vf.map_or(Role::Other, |vf| Role::Vf { elsewhere: controller.is_some(), vf })
}

/// The interfaces that a PCI device made.
#[derive(Debug)]
pub(super) struct Interfaces {
    named: Vec<(Role, String)>,
}

impl Interfaces {
    /// Those of this device.
    pub(super) fn of(device: &Path) -> Self {
        let folder = device.join("net");
        let mut named: Vec<(Role, String)> = tree::names(&folder)
            .into_iter()
            .map(|name| {
                let port = tree::text(&folder.join(&name).join("phys_port_name"));
                (role(port.as_deref()), name)
            })
            .collect();
        named.sort();
        Self { named }
    }

    /// Name of the device's own interface.
    pub(super) fn own(&self) -> Option<&str> {
        let own = self.named.iter().find(|(role, _)| matches!(role, Role::Uplink | Role::Plain));
        own.map(|(_, name)| name.as_str())
    }

    /// Name of a VF's representor: this host's before another's.
    pub(super) fn representor(&self, vf: VfIndex) -> Option<&str> {
        let wanted = u32::from(vf);
        let found = self
            .named
            .iter()
            .find(|(role, _)| matches!(role, Role::Vf { vf, .. } if *vf == wanted));
        found.map(|(_, name)| name.as_str())
    }

    /// Whether any VF's representor is among them.
    pub(super) fn has_representors(&self) -> bool {
        self.named.iter().any(|(role, _)| matches!(role, Role::Vf { .. }))
    }

    /// Those of other devices with the same switch, for a driver whose representors hang on none
    /// (bnxt_en).
    pub(super) fn add_of_switch(&mut self, tree: &Tree, switch: &str) {
        let class = tree.path("sys/class/net");
        for name in tree::names(&class) {
            let folder = class.join(&name);
            let known = self.named.iter().any(|(_, known)| *known == name);
            if known || tree::text(&folder.join("phys_switch_id")).as_deref() != Some(switch) {
                continue;
            }
            let role = role(tree::text(&folder.join("phys_port_name")).as_deref());
            // Another port's uplink shares the switch and is not this PF's.
            if matches!(role, Role::Vf { .. }) {
                self.named.push((role, name));
            }
        }
        self.named.sort();
    }
}

/// An interface as it is; `None` if it went while it was read, or is no Ethernet's.
pub(super) fn read(tree: &Tree, folder: &Path, name: &str) -> Option<Netdev> {
    let folder = folder.join(name);
    let index = tree::value(&folder.join("ifindex"))?;
    Some(Netdev {
        name: name.to_owned(),
        index,
        mac: tree::value(&folder.join("address"))?,
        mtu: tree::value(&folder.join("mtu"))?,
        up: tree::hex(&folder.join("flags"))? & IFF_UP != 0,
        // Reading it of an interface that is down is EINVAL.
        carrier: tree::value::<u8>(&folder.join("carrier")) == Some(1),
        // -1 while there is no link.
        speed: tree::value(&folder.join("speed")).map(Mbps),
        manager: manager(tree, index),
    })
}

/// Who else sets an interface: both write down what they manage, by number.
fn manager(tree: &Tree, index: u32) -> Option<String> {
    let says = |path: String, key: &str| {
        let file = tree::text(&tree.path(&path))?;
        file.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned))
    };
    let device = format!("run/NetworkManager/devices/{index}");
    if says(device, "managed=").is_some_and(|managed| managed == "true" || managed == "1") {
        return Some("NetworkManager".to_owned());
    }
    // `unmanaged`, `initialized` and `pending` are of links that no .network file matches yet.
    let state = says(format!("run/systemd/netif/links/{index}"), "ADMIN_STATE=")?;
    let managed = matches!(state.as_str(), "configuring" | "configured" | "failed");
    managed.then(|| "systemd-networkd".to_owned())
}

/// Name of the bond that an interface is in.
pub(super) fn bond(folder: &Path) -> Option<String> {
    folder.join("bonding_slave").exists().then(|| tree::target(&folder.join("master"))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_says_by_its_name_what_it_is() {
        assert_eq!(role(None), Role::Plain);
        assert_eq!(role(Some("p1")), Role::Uplink);
        assert_eq!(role(Some("pf0vf5")), Role::Vf { elsewhere: false, vf: 5 });
        assert_eq!(role(Some("c1pf0vf5")), Role::Vf { elsewhere: true, vf: 5 });
        for odd in ["pf0", "pf0sf88", "p", "px", "pf0vf", "pfvf1", "cpf0vf1", "c1p0", "vf1", "0"] {
            assert_eq!(role(Some(odd)), Role::Other, "{odd}");
        }
    }
}
