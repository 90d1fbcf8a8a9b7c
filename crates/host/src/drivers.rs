//! What drivers are known to want and to lack: one table, with the source of each row. A driver
//! that is not in it is tried, and what it refuses is learnt ([`crate::ledger::PfRecord::lacks`]).

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::EswitchMode;
use serde::{Deserialize, Serialize};

/// Something that can be set on a VF and that a driver may lack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// Administrative MAC.
    Mac,
    /// Access VLAN.
    Vlan,
    /// Access VLAN with a service tag (802.1ad).
    ServiceTag,
    /// Any rate.
    Rate,
    /// A guaranteed rate.
    MinRate,
    /// Anti-spoof.
    Spoofchk,
    /// Administrative link state.
    LinkState,
    /// The one link state "enable".
    LinkEnable,
    /// Trust.
    Trust,
    /// Node and port GUID.
    Guid,
}

/// When the mode of the embedded switch is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// There is no embedded switch to set.
    NoEswitch,
    /// While there are no VFs.
    EswitchFirst,
    /// Once all VFs are there, and with none of them bound.
    VfsFirst,
    /// Whenever.
    Whenever,
}

/// One driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    /// Driver of its VFs on a host.
    pub(crate) of_vfs: Option<&'static str>,
    pub(crate) order: Order,
    /// Why the PF must be up before VFs are made, if it must.
    pub(crate) up_first: Option<&'static str>,
    /// What it lacks, and what to do instead.
    pub(crate) lacks: &'static [(Knob, &'static str)],
    /// What it lacks besides in switchdev mode.
    pub(crate) lacks_in_switchdev: &'static [(Knob, &'static str)],
}

const NO_MIN_RATE: (Knob, &str) =
    (Knob::MinRate, "it only has ceilings: leave min_rate out, or use an E810, ConnectX or Thor");
const NO_SERVICE_TAG: (Knob, &str) = (Knob::ServiceTag, "use vlan protocol 802.1Q");
const NO_GUID: (Knob, &str) =
    (Knob::Guid, "its VFs' GUIDs come from their MAC: leave guid out, and set mac");
const REPRESENTOR_TRUST: (Knob, &str) = (
    Knob::Trust,
    "in switchdev mode what a VF may send is for rules on its representor; use legacy mode for trust",
);

/// The table.
const DRIVERS: &[Driver] = &[
    Driver {
        name: "igb",
        of_vfs: Some("igbvf"),
        order: Order::NoEswitch,
        // igbvf/netdev.c igbvf_probe: "PF still in reset state", a random MAC and no link.
        up_first: Some("VFs made under an igb that is down never get a link"),
        // igb_main.c: igb_netdev_ops has no ndo_set_vf_link_state; igb_ndo_set_vf_bw and
        // igb_ndo_set_vf_vlan refuse the other two.
        lacks: &[
            (Knob::LinkState, "it has no link state of VFs: leave link_state out, or say auto"),
            NO_MIN_RATE,
            NO_SERVICE_TAG,
            NO_GUID,
        ],
        lacks_in_switchdev: &[],
    },
    Driver {
        name: "ixgbe",
        of_vfs: Some("ixgbevf"),
        order: Order::NoEswitch,
        // ixgbevf_main.c ixgbevf_sw_init: as igbvf.
        up_first: Some("VFs made under an ixgbe that is down never get a link"),
        // ixgbe_sriov.c ixgbe_ndo_set_vf_link_state takes "enable" without effect;
        // ixgbe_ndo_set_vf_bw, ixgbe_ndo_set_vf_vlan.
        lacks: &[
            (Knob::LinkEnable, "it takes 'enable' and does nothing: use auto or disable"),
            NO_MIN_RATE,
            NO_SERVICE_TAG,
            NO_GUID,
        ],
        lacks_in_switchdev: &[],
    },
    Driver {
        name: "i40e",
        of_vfs: Some("iavf"),
        order: Order::NoEswitch,
        up_first: None,
        // i40e_virtchnl_pf.c i40e_ndo_set_vf_bw, i40e_ndo_set_vf_port_vlan.
        lacks: &[NO_MIN_RATE, NO_SERVICE_TAG, NO_GUID],
        lacks_in_switchdev: &[],
    },
    Driver {
        name: "ice",
        of_vfs: Some("iavf"),
        // ice_eswitch.c ice_eswitch_mode_set: EOPNOTSUPP with VFs (sriov-network-operator PR#757).
        order: Order::EswitchFirst,
        up_first: None,
        lacks: &[NO_GUID],
        // ice_sriov.c ice_set_vf_trust: "Trusted VF is forbidden in switchdev mode".
        lacks_in_switchdev: &[REPRESENTOR_TRUST],
    },
    Driver {
        name: "mlx5_core",
        of_vfs: Some("mlx5_core"),
        // eswitch_offloads.c; sriov-network-operator#1015, PR#1017; one-deploy PR#214: legacy,
        // VFs, all of them there, unbound, then switchdev.
        order: Order::VfsFirst,
        up_first: None,
        // en_main.c mlx5e_set_vf_vlan: EPROTONOSUPPORT.
        lacks: &[NO_SERVICE_TAG],
        // esw/legacy.c and en_main.c: EOPNOTSUPP outside of legacy mode, but for rates and VLAN 0.
        lacks_in_switchdev: &[
            REPRESENTOR_TRUST,
            (
                Knob::Spoofchk,
                "in switchdev mode filter on the VF's representor (tc flower src_mac), or use legacy",
            ),
            (
                Knob::LinkState,
                "in switchdev mode set the VF's representor up or down, or use legacy mode",
            ),
            (
                Knob::Vlan,
                "in switchdev mode tag on the VF's representor (tc vlan push), or use legacy mode",
            ),
        ],
    },
    Driver {
        name: "bnxt_en",
        of_vfs: Some("bnxt_en"),
        // bnxt_vfr.c bnxt_dl_eswitch_mode_set.
        order: Order::Whenever,
        // bnxt_sriov.c bnxt_sriov_configure: "Reject SRIOV config request since if is down!"
        // (systemd#40739).
        up_first: Some("bnxt_en makes no VFs while it is down, and says nothing"),
        lacks: &[NO_GUID],
        lacks_in_switchdev: &[REPRESENTOR_TRUST],
    },
];

/// A driver that nothing is known of: the order that surprises least, and all knobs are tried.
const UNKNOWN: Driver = Driver {
    name: "",
    of_vfs: None,
    order: Order::EswitchFirst,
    up_first: None,
    lacks: &[],
    lacks_in_switchdev: &[],
};

/// What is known of a PF's driver.
pub(crate) fn of(pf: &PfReading) -> &'static Driver {
    let name = pf.driver.as_deref().unwrap_or_default();
    DRIVERS.iter().find(|driver| driver.name == name).unwrap_or(&UNKNOWN)
}

impl Driver {
    /// It is in the table.
    pub(crate) fn is_known(&self) -> bool {
        !self.name.is_empty()
    }

    /// Whether it is known to lack a knob in this mode, and then what to do instead.
    pub(crate) fn lacks(&self, knob: Knob, mode: Option<EswitchMode>) -> Option<&'static str> {
        let switchdev = match mode {
            Some(EswitchMode::Switchdev) => self.lacks_in_switchdev,
            _ => &[],
        };
        let mut all = switchdev.iter().chain(self.lacks);
        all.find(|(lacking, _)| *lacking == knob).map(|(_, instead)| *instead)
    }
}

/// The driver with the mode of its switch, for messages.
pub(crate) fn words(pf: &PfReading) -> String {
    let driver = pf.driver.as_deref().unwrap_or("no driver");
    match pf.eswitch {
        Some(EswitchMode::Switchdev) => format!("{driver} (switchdev)"),
        _ => driver.to_owned(),
    }
}
