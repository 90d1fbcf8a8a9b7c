//! RDMA devices: over netlink their GUIDs and whether network namespaces share them; from sysfs
//! their GID tables (include/uapi/rdma/rdma_netlink.h; kernel document
//! `ABI/stable/sysfs-class-infiniband`).

use std::collections::BTreeMap;
use std::path::Path;

use lanekeeper_model::{Guid, RdmaNetns};

use super::netlink::attribute::{Attribute, Attributes, Builder};
use super::netlink::{Connection, Failure};
use super::tree;
use crate::inventory::{Gid, GidKind, RdmaDevice};

/// Client number in the upper bits of a type (`RDMA_NL_NLDEV`).
const NLDEV: u16 = 5 << 10;
const CMD_GET: u16 = 1;
const CMD_SYS_GET: u16 = 6;
const CMD_SYS_SET: u16 = 7;

const ATTR_DEV_NAME: u16 = 2;
const ATTR_FW_VERSION: u16 = 5;
const ATTR_NODE_GUID: u16 = 6;
const ATTR_NETNS_MODE: u16 = 66;

/// What RDMA netlink tells of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) node_guid: Guid,
    pub(crate) firmware: Option<String>,
}

/// Every device of this network namespace, by name.
pub(crate) fn devices(kernel: &mut Connection) -> Result<BTreeMap<String, Told>, Failure> {
    let answers = kernel.dump(NLDEV | CMD_GET, &[])?;
    Ok(answers.iter().filter_map(|answer| read_device(&answer.payload)).collect())
}

fn read_device(answer: &[u8]) -> Option<(String, Told)> {
    let body = Attributes(answer);
    let firmware = body.first(ATTR_FW_VERSION).map(Attribute::text);
    let told = Told {
        node_guid: Guid(body.first(ATTR_NODE_GUID)?.u64()?),
        firmware: firmware.filter(|version| !version.is_empty()),
    };
    Some((body.first(ATTR_DEV_NAME)?.text(), told))
}

/// Where RDMA devices are seen.
pub(crate) fn netns(kernel: &mut Connection) -> Result<Option<RdmaNetns>, Failure> {
    let answer = kernel.get(NLDEV | CMD_SYS_GET, &[])?;
    Ok(match Attributes(&answer.payload).first(ATTR_NETNS_MODE).and_then(Attribute::u8) {
        Some(0) => Some(RdmaNetns::Exclusive),
        Some(1) => Some(RdmaNetns::Shared),
        _ => None,
    })
}

/// Set that. `EBUSY` once there are further network namespaces (rdma-cni#39).
pub(crate) fn set_netns(kernel: &mut Connection, mode: RdmaNetns) -> Result<(), Failure> {
    let mut request = Builder::default();
    request.u8(ATTR_NETNS_MODE, u8::from(mode == RdmaNetns::Shared));
    kernel.set(NLDEV | CMD_SYS_SET, request.finish()).map(drop)
}

/// A device's own folder, `/sys/class/infiniband/NAME`, as a device with its GID table.
pub(crate) fn read(
    folder: &Path,
    name: &str,
    told: Option<&Told>,
    netns: Option<RdmaNetns>,
) -> RdmaDevice {
    let in_sysfs = || tree::text(&folder.join("node_guid")).and_then(|guid| guid.parse().ok());
    let node_guid = told.map(|told| told.node_guid).or_else(in_sysfs).unwrap_or_default();
    RdmaDevice { name: name.to_owned(), node_guid, netns, gids: gids(&folder.join("ports/1")) }
}

/// Entries that are set. One that is not has no type: reading that is `EINVAL`.
fn gids(port: &Path) -> Vec<Gid> {
    let mut gids: Vec<Gid> = tree::names(&port.join("gids"))
        .iter()
        .filter_map(|place| {
            let address: std::net::Ipv6Addr =
                tree::text(&port.join("gids").join(place))?.parse().ok()?;
            if address.is_unspecified() {
                return None;
            }
            let kind = match tree::text(&port.join("gid_attrs/types").join(place))?.as_str() {
                "RoCE v2" => GidKind::RoceV2,
                "IB/RoCE v1" => GidKind::IbOrRoceV1,
                _ => return None,
            };
            let netdev = tree::text(&port.join("gid_attrs/ndevs").join(place));
            Some(Gid { index: place.parse().ok()?, address, kind, netdev })
        })
        .collect();
    gids.sort_by_key(|gid| gid.index);
    gids
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_answer_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = read_device(&bytes);
        }
    }
}
