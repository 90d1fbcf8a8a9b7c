//! A VF into a QEMU that runs, and out of it again, by VFIO: for a QEMU that somebody else started and
//! whose monitor we may use. It is ours no longer than a call lasts.
//!
//! A VF is out when QEMU says so (`DEVICE_DELETED`), not when it was asked: the guest's driver takes
//! its leave first, and a guest without one never does.

use std::time::Duration;

use lanekeeper_model::VfAddr;
use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError, Unplugged};

/// How long QEMU may take over a command: it opens the device and maps the VM's memory for it.
const COMMAND: Duration = Duration::from_secs(60);

/// Why a VF could not be put in or taken out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassthroughError {
    /// QEMU did not do it, or is not there.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// There is no place for one more device.
    #[error(
        "the VM has no free PCIe slot to plug a device into; start it with a spare \
         `-device pcie-root-port,id=...`, or name a bus"
    )]
    NoFreeSlot,
    /// The guest did not let go.
    #[error(
        "the VM has not let go of {id} within {after:?}; its driver must release it, or the VM be \
         stopped: {why}"
    )]
    NotReleased {
        /// Name of the device in QEMU.
        id: String,
        /// How long was waited.
        after: Duration,
        /// What QEMU said last.
        why: String,
    },
}

/// Plugs a VF in, as device `id`, behind the root port `bus` or the first one that is free. Where it
/// went.
///
/// # Errors
/// [`PassthroughError::NoFreeSlot`]; [`PassthroughError::Qmp`], among it that the name is taken, or
/// that the VF cannot be opened.
pub fn attach(
    qmp: &Qmp,
    id: &str,
    vf: VfAddr,
    bus: Option<&str>,
) -> Result<String, PassthroughError> {
    let bus = match bus {
        Some(bus) => bus.to_owned(),
        None => free_port(&qmp.execute("query-pci", &json!({}), COMMAND)?)
            .ok_or(PassthroughError::NoFreeSlot)?,
    };
    let device = json!({ "driver": "vfio-pci", "id": id, "host": vf.to_string(), "bus": bus });
    qmp.execute("device_add", &device, COMMAND)?;
    Ok(bus)
}

/// Takes the VF out again and waits until QEMU has let go of it. Whether it was there at all.
///
/// # Errors
/// [`PassthroughError::NotReleased`], after which the VM may still let go; [`PassthroughError::Qmp`].
pub fn detach(qmp: &Qmp, id: &str, within: Duration) -> Result<bool, PassthroughError> {
    if !is_there(qmp, id)? {
        return Ok(false);
    }
    match qmp.unplug(id, COMMAND, within)? {
        Unplugged::Gone => Ok(true),
        // It may have been out before the event was looked for.
        Unplugged::Still(_) if !is_there(qmp, id)? => Ok(true),
        Unplugged::Still(why) => {
            Err(PassthroughError::NotReleased { id: id.to_owned(), after: within, why })
        }
    }
}

/// Whether QEMU has a device of this name.
fn is_there(qmp: &Qmp, id: &str) -> Result<bool, QmpError> {
    let devices = qmp.execute("qom-list", &json!({ "path": "/machine/peripheral" }), COMMAND)?;
    let named = |device: &Value| device["name"] == id;
    Ok(devices.as_array().is_some_and(|devices| devices.iter().any(named)))
}

/// The first port with a name and nothing behind it (`query-pci`).
fn free_port(buses: &Value) -> Option<String> {
    let devices = buses.as_array()?.iter().filter_map(|bus| bus["devices"].as_array()).flatten();
    devices.into_iter().find_map(|device| {
        let bridge = device.get("pci_bridge")?;
        let empty = bridge["devices"].as_array().is_none_or(Vec::is_empty);
        let name = device["qdev_id"].as_str().filter(|name| !name.is_empty())?;
        empty.then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_root_port_with_nothing_behind_it_is_taken() {
        let port = |name: &str, devices: Value| json!({ "qdev_id": name, "pci_bridge": { "bus": {}, "devices": devices } });
        let nic = json!({ "qdev_id": "n0" });
        let buses = json!([{ "bus": 0, "devices": [
            nic,
            port("rp0", json!([nic])),
            port("", json!([])),
            port("rp1", json!([])),
            port("rp2", json!([])),
        ]}]);
        assert_eq!(free_port(&buses).as_deref(), Some("rp1"));
        assert_eq!(free_port(&json!([{ "bus": 0, "devices": [nic] }])), None);
        assert_eq!(free_port(&Value::Null), None);
    }
}
