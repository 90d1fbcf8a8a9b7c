//! devlink: the embedded switch's mode, and what the device says of its firmware (kernel documents
//! `networking/devlink/devlink-info` and `devlink-eswitch-attr`).

use std::collections::BTreeMap;

use lanekeeper_model::{EswitchMode, PfAddr};

use super::generic::{Family, body};
use super::netlink::Failure;
use super::netlink::attribute::{Attribute, Builder};

/// Name of the family.
pub(crate) const NAME: &str = "devlink";

const CMD_ESWITCH_GET: u8 = 29;
const CMD_ESWITCH_SET: u8 = 30;
const CMD_INFO_GET: u8 = 51;

const ATTR_BUS_NAME: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_ESWITCH_MODE: u16 = 25;
const ATTR_SERIAL: u16 = 99;
const ATTR_VERSION_RUNNING: u16 = 101;
const ATTR_VERSION_STORED: u16 = 102;
const ATTR_VERSION_NAME: u16 = 103;
const ATTR_VERSION_VALUE: u16 = 104;

/// Names of the version that stands for the whole firmware, best first. mlx5 has `fw.version`,
/// bnxt_en `fw`, ice and i40e `fw.mgmt`.
const FIRMWARE: [&str; 3] = ["fw.version", "fw", "fw.mgmt"];

/// What a device says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    /// Serial number of the board.
    pub(crate) serial: Option<String>,
    running: BTreeMap<String, String>,
    stored: BTreeMap<String, String>,
}

impl Info {
    /// The version that runs.
    pub(crate) fn firmware(&self) -> Option<&str> {
        FIRMWARE.iter().find_map(|name| self.running.get(*name)).map(String::as_str)
    }

    /// What is stored in the device's flash but does not run yet, in a sentence.
    pub(crate) fn pending(&self) -> Option<String> {
        let differ: Vec<String> = self
            .stored
            .iter()
            .filter_map(|(name, stored)| {
                let running = self.running.get(name)?;
                (running != stored)
                    .then(|| format!("{name} {stored} is stored, {running} still runs"))
            })
            .collect();
        (!differ.is_empty()).then(|| differ.join("; "))
    }
}

/// Mode of the embedded switch; `None` for one that this program does not know.
pub(crate) fn eswitch(family: &mut Family, pf: PfAddr) -> Result<Option<EswitchMode>, Failure> {
    let answer = family.get(CMD_ESWITCH_GET, |request| address(request, pf))?;
    let mode = body(&answer).first(ATTR_ESWITCH_MODE).and_then(Attribute::u16);
    Ok(match mode {
        Some(0) => Some(EswitchMode::Legacy),
        Some(1) => Some(EswitchMode::Switchdev),
        _ => None,
    })
}

/// Set that mode.
pub(crate) fn set_eswitch(
    family: &mut Family,
    pf: PfAddr,
    mode: EswitchMode,
) -> Result<(), Failure> {
    let number = match mode {
        EswitchMode::Legacy => 0,
        EswitchMode::Switchdev => 1,
    };
    family.set(CMD_ESWITCH_SET, |request| {
        address(request, pf);
        request.u16(ATTR_ESWITCH_MODE, number);
    })
}

/// Versions and serial number.
pub(crate) fn info(family: &mut Family, pf: PfAddr) -> Result<Info, Failure> {
    let answer = family.get(CMD_INFO_GET, |request| address(request, pf))?;
    Ok(read_info(&answer))
}

fn read_info(answer: &[u8]) -> Info {
    let mut info = Info::default();
    for attribute in body(answer) {
        let versions = match attribute.kind {
            ATTR_SERIAL => {
                info.serial = Some(attribute.text()).filter(|serial| !serial.is_empty());
                continue;
            }
            ATTR_VERSION_RUNNING => &mut info.running,
            ATTR_VERSION_STORED => &mut info.stored,
            _ => continue,
        };
        let text = |kind| attribute.nested().first(kind).map(Attribute::text);
        if let (Some(name), Some(value)) = (text(ATTR_VERSION_NAME), text(ATTR_VERSION_VALUE)) {
            versions.insert(name, value);
        }
    }
    info
}

fn address(request: &mut Builder, pf: PfAddr) {
    request.text(ATTR_BUS_NAME, "pci").text(ATTR_DEV_NAME, &pf.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(versions: &[(u16, &str, &str)]) -> Info {
        let mut answer = Builder::after(&[CMD_INFO_GET, 1, 0, 0]);
        answer.text(ATTR_SERIAL, "MT2242X00000");
        for (kind, name, value) in versions {
            answer.nest(*kind, |version| {
                version.text(ATTR_VERSION_NAME, name).text(ATTR_VERSION_VALUE, value);
            });
        }
        read_info(answer.finish())
    }

    #[test]
    fn firmware_that_is_stored_and_does_not_run_is_pending() {
        let info = told(&[
            (ATTR_VERSION_RUNNING, "fw.version", "26.41.1000"),
            (ATTR_VERSION_RUNNING, "fw.psid", "MT_0000000531"),
            (ATTR_VERSION_STORED, "fw.version", "26.42.1000"),
            (ATTR_VERSION_STORED, "fw.psid", "MT_0000000531"),
        ]);
        assert_eq!(info.serial.as_deref(), Some("MT2242X00000"));
        assert_eq!(info.firmware(), Some("26.41.1000"));
        let pending = "fw.version 26.42.1000 is stored, 26.41.1000 still runs";
        assert_eq!(info.pending().as_deref(), Some(pending));
    }

    #[test]
    fn what_is_only_stored_or_only_runs_is_not_pending() {
        let info = told(&[
            (ATTR_VERSION_RUNNING, "fw.mgmt", "7.5.4"),
            (ATTR_VERSION_STORED, "fw.undi", "1.3"),
        ]);
        assert_eq!(info.firmware(), Some("7.5.4"));
        assert_eq!(info.pending(), None);
    }

    proptest! {
        #[test]
        fn any_answer_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = read_info(&bytes).pending();
        }
    }
}
