//! What each driver obeys and refuses, as one table: [`Personality::rules`]. Files named here are
//! of Linux 6.12; a tracker's issue is named where users met what the source does not show.

use lanekeeper_model::Mbps;

/// A driver whose manners a PF has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Personality {
    /// Intel 82576.
    Igb,
    /// Intel 82599, X540, X550.
    Ixgbe,
    /// Intel X710, XXV710, XL710.
    I40e,
    /// Intel E810.
    Ice,
    /// NVIDIA ConnectX, either mode of its embedded switch.
    Mlx5,
    /// Broadcom Thor.
    BnxtEn,
}

/// What happens to VFs that are made while the PF is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhileDown {
    /// Nothing of note.
    Made,
    /// They are made and a driver binds, but it finds the PF in reset, takes a random address and
    /// never has a link.
    MadeDead,
    /// Writes to `sriov_numvfs` do nothing, and say that all is well.
    Ignored,
}

/// When the mode of the embedded switch may be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EswitchRule {
    /// The driver has no devlink eswitch.
    None,
    /// Only while there are no VFs.
    BeforeVfs,
    /// To switchdev only once all VFs are there, and none of them is bound to a driver.
    VfsUnbound,
    /// Always; but setting the mode that it has is refused.
    AlwaysOther,
}

/// Which administrative link states can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkStateRule {
    /// None.
    None,
    /// All, but "enable" is taken without an effect.
    EnableIgnored,
    /// All.
    All,
}

/// Which guaranteed rates can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MinRateRule {
    /// Zero only (`EINVAL`).
    None,
    /// Any up to the link's speed.
    UpToLink,
    /// Those of all VFs together up to the link's speed, and none while DCB is on (`EOPNOTSUPP`).
    Budget,
    /// Any.
    Any,
}

/// Which ceilings can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaxRateRule {
    /// From `above` Mb/s up to the link's speed, and only while there is a link.
    LinkedUpToSpeed {
        /// Values from 1 to this are refused.
        above: u32,
    },
    /// Up to the link's speed.
    UpToLink,
    /// Any.
    Any,
}

/// What becomes of an address that a VF's driver, a guest's above all, chose by itself. Unless it is
/// unreported it is taken only while there is no administrative MAC or the VF is trusted, and the PF
/// tells it as the VF's MAC: what is read back is then not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnMac {
    /// Any is taken, and the PF does not tell. A reset clears it.
    Unreported,
    /// Until a reset; before that the next driver takes it over.
    UntilReset,
    /// Until an administrative MAC is set, be it zero; a reset does not clear it.
    UntilSet,
    /// For as long as the VF exists; it shows again when the administrative MAC is taken away.
    UntilRemade,
}

/// Where a VF's RDMA device has its node GUID from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeGuid {
    /// There is no RDMA device.
    None,
    /// From the administrative MAC, when the driver is probed; zero before one was ever set
    /// (openshift/sriov-network-operator#237).
    FromAdminMac,
    /// From the interface's MAC.
    FromOwnMac,
}

/// Knobs and limits of a personality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Rules {
    /// PF driver.
    pub driver: &'static str,
    /// VF driver.
    pub vf_driver: &'static str,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id of the PF.
    pub device: u16,
    /// Firmware version that it tells.
    pub firmware: &'static str,
    /// VFs of a PF.
    pub total_vfs: u16,
    /// Distance of one VF's routing id from the next (PCI Express Base 6.0, 9.3.3.10).
    pub stride: u16,
    /// Link speed.
    pub speed: Mbps,
    /// Anti-spoof of a VF that was just made.
    pub spoofchk_at_birth: bool,
    /// VFs made while the PF is down.
    pub while_down: WhileDown,
    /// Mode of the embedded switch.
    pub eswitch: EswitchRule,
    /// In switchdev mode spoofchk, trust, link state and a VLAN are refused.
    pub switchdev_refuses_vf_knobs: bool,
    /// In switchdev mode trust is refused.
    pub switchdev_refuses_trust: bool,
    /// Administrative link states.
    pub link_state: LinkStateRule,
    /// Guaranteed rates.
    pub min_rate: MinRateRule,
    /// Ceilings.
    pub max_rate: MaxRateRule,
    /// Service tags (802.1ad) can be set.
    pub service_tags: bool,
    /// An address that a VF's driver chose by itself.
    pub own_mac: OwnMac,
    /// A VF's network driver tells its own address when it is probed, not only once its interface
    /// is up.
    pub tells_mac_at_probe: bool,
    /// Anti-spoof without an administrative MAC drops all that the VF sends.
    pub spoofchk_needs_mac: bool,
    /// Its RDMA devices.
    pub node_guid: NodeGuid,
}

impl Personality {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Igb, Self::Ixgbe, Self::I40e, Self::Ice, Self::Mlx5, Self::BnxtEn];

    /// The table.
    pub const fn rules(self) -> Rules {
        match self {
            Self::Igb => IGB,
            Self::Ixgbe => IXGBE,
            Self::I40e => I40E,
            Self::Ice => ICE,
            Self::Mlx5 => MLX5,
            Self::BnxtEn => BNXT_EN,
        }
    }
}

const IGB: Rules = Rules {
    driver: "igb",
    vf_driver: "igbvf",
    vendor: 0x8086,
    device: 0x10c9,
    firmware: "1.4.3",
    // igb_main.c igb_probe_vfs: pci_sriov_set_totalvfs(pdev, 7).
    total_vfs: 7,
    // Intel 82576 data sheet, 9.6.3: stride 2.
    stride: 2,
    speed: Mbps(1_000),
    // igb_main.c igb_vf_configure.
    spoofchk_at_birth: true,
    // igbvf netdev.c igbvf_probe: "PF still in reset state", then a random address.
    while_down: WhileDown::MadeDead,
    // No devlink.
    eswitch: EswitchRule::None,
    switchdev_refuses_vf_knobs: false,
    switchdev_refuses_trust: false,
    // igb_main.c igb_netdev_ops: no ndo_set_vf_link_state.
    link_state: LinkStateRule::None,
    // igb_main.c igb_ndo_set_vf_bw.
    min_rate: MinRateRule::None,
    max_rate: MaxRateRule::LinkedUpToSpeed { above: 0 },
    // igb_main.c igb_ndo_set_vf_vlan.
    service_tags: false,
    // igb_main.c igb_set_vf_mac_addr, igb_ndo_get_vf_config; igb_vf_reset_msg hands it on,
    // igb_vf_reset_event clears it.
    own_mac: OwnMac::UntilReset,
    // igbvf netdev.c igbvf_probe calls igbvf_reset, which sets it (vf.c e1000_init_hw_vf).
    tells_mac_at_probe: true,
    spoofchk_needs_mac: false,
    node_guid: NodeGuid::None,
};

const IXGBE: Rules = Rules {
    driver: "ixgbe",
    vf_driver: "ixgbevf",
    vendor: 0x8086,
    device: 0x10fb,
    firmware: "0x800003df",
    // ixgbe_sriov.c ixgbe_pci_sriov_enable: 63 with one traffic class.
    total_vfs: 63,
    // Intel 82599 data sheet, 9.4.4.6: stride 2.
    stride: 2,
    speed: Mbps(10_000),
    // ixgbe_sriov.c __ixgbe_enable_sriov.
    spoofchk_at_birth: true,
    // ixgbevf_main.c ixgbevf_sw_init: "PF still in reset state", then a random address.
    while_down: WhileDown::MadeDead,
    eswitch: EswitchRule::None,
    switchdev_refuses_vf_knobs: false,
    switchdev_refuses_trust: false,
    // ixgbe_sriov.c ixgbe_ndo_set_vf_link_state: "enable - not supported", and success.
    link_state: LinkStateRule::EnableIgnored,
    // ixgbe_sriov.c ixgbe_ndo_set_vf_bw.
    min_rate: MinRateRule::None,
    max_rate: MaxRateRule::LinkedUpToSpeed { above: 10 },
    // ixgbe_sriov.c ixgbe_ndo_set_vf_vlan.
    service_tags: false,
    // ixgbe_sriov.c ixgbe_set_vf_mac_addr, ixgbe_ndo_get_vf_config; ixgbe_vf_reset_event keeps
    // it, ixgbe_vf_reset_msg hands on only what was set.
    own_mac: OwnMac::UntilSet,
    // ixgbevf_main.c ixgbevf_up_complete.
    tells_mac_at_probe: false,
    spoofchk_needs_mac: false,
    node_guid: NodeGuid::None,
};

const I40E: Rules = Rules {
    driver: "i40e",
    vf_driver: "iavf",
    vendor: 0x8086,
    device: 0x1583,
    firmware: "9.20 0x8000d8c5 1.3353.0",
    total_vfs: 64,
    stride: 1,
    speed: Mbps(40_000),
    // i40e_virtchnl_pf.c i40e_alloc_vfs.
    spoofchk_at_birth: true,
    while_down: WhileDown::Made,
    eswitch: EswitchRule::None,
    switchdev_refuses_vf_knobs: false,
    switchdev_refuses_trust: false,
    // i40e_virtchnl_pf.c i40e_ndo_set_vf_link_state.
    link_state: LinkStateRule::All,
    // i40e_virtchnl_pf.c i40e_ndo_set_vf_bw; i40e_main.c i40e_set_bw_limit.
    min_rate: MinRateRule::None,
    max_rate: MaxRateRule::UpToLink,
    // i40e_virtchnl_pf.c i40e_ndo_set_vf_port_vlan.
    service_tags: false,
    // i40e_virtchnl_pf.c i40e_check_vf_permission, i40e_vc_add_mac_addr_msg,
    // i40e_ndo_get_vf_config.
    own_mac: OwnMac::UntilSet,
    // iavf_main.c iavf_configure, when the interface is opened.
    tells_mac_at_probe: false,
    spoofchk_needs_mac: false,
    // irdma serves X722 of this driver only.
    node_guid: NodeGuid::None,
};

const ICE: Rules = Rules {
    driver: "ice",
    vf_driver: "iavf",
    vendor: 0x8086,
    device: 0x1592,
    firmware: "4.20 0x8001778b 1.3346.0",
    total_vfs: 64,
    stride: 1,
    speed: Mbps(100_000),
    // ice_vf_lib.c ice_initialize_vf_entry.
    spoofchk_at_birth: true,
    while_down: WhileDown::Made,
    // ice_eswitch.c ice_eswitch_mode_set: EOPNOTSUPP with VFs.
    eswitch: EswitchRule::BeforeVfs,
    switchdev_refuses_vf_knobs: false,
    // ice_sriov.c ice_set_vf_trust.
    switchdev_refuses_trust: true,
    // ice_sriov.c ice_set_vf_link_state.
    link_state: LinkStateRule::All,
    // ice_sriov.c ice_set_vf_bw, ice_min_tx_rate_oversubscribed.
    min_rate: MinRateRule::Budget,
    max_rate: MaxRateRule::Any,
    // ice_sriov.c ice_is_supported_port_vlan_proto: only in double VLAN mode, which is not default.
    service_tags: false,
    // ice_virtchnl.c ice_can_vf_change_mac; ice_sriov.c ice_get_vf_cfg (hw_lan_addr).
    own_mac: OwnMac::UntilSet,
    tells_mac_at_probe: false,
    spoofchk_needs_mac: false,
    // irdma utils/verbs: addrconf_addr_eui48 of the interface's address.
    node_guid: NodeGuid::FromOwnMac,
};

const MLX5: Rules = Rules {
    driver: "mlx5_core",
    vf_driver: "mlx5_core",
    vendor: 0x15b3,
    device: 0x101d,
    firmware: "22.39.1002",
    total_vfs: 16,
    stride: 1,
    speed: Mbps(100_000),
    // eswitch.c mlx5_eswitch_clear_vf_vports_info.
    spoofchk_at_birth: false,
    while_down: WhileDown::Made,
    // eswitch_offloads.c esw_offloads_start: the firmware makes no flow table with encapsulation
    // while a VF is initialised, EINVAL (one-deploy#213), nor while VFs are still being made
    // (sriov-network-operator#1015).
    eswitch: EswitchRule::VfsUnbound,
    // esw/legacy.c mlx5_eswitch_set_vport_{vlan,spoofchk,trust}; en_main.c mlx5e_set_vf_link_state.
    switchdev_refuses_vf_knobs: true,
    switchdev_refuses_trust: true,
    // eswitch.c mlx5_eswitch_set_vport_state.
    link_state: LinkStateRule::All,
    // esw/legacy.c mlx5_eswitch_set_vport_rate, in both modes.
    min_rate: MinRateRule::Any,
    max_rate: MaxRateRule::Any,
    // en_main.c mlx5e_set_vf_vlan.
    service_tags: false,
    // A VF sets the address of its own vport context; eswitch.c mlx5_eswitch_get_vport_config
    // tells the administrative one.
    own_mac: OwnMac::Unreported,
    tells_mac_at_probe: false,
    // sriov-cni#114: eswitch.c only warns "Spoofchk in set while MAC is invalid".
    spoofchk_needs_mac: true,
    // eswitch.c mlx5_esw_set_vport_mac_locked: node_guid_gen_from_mac.
    node_guid: NodeGuid::FromAdminMac,
};

const BNXT_EN: Rules = Rules {
    driver: "bnxt_en",
    vf_driver: "bnxt_en",
    vendor: 0x14e4,
    device: 0x1750,
    firmware: "224.0.110.0",
    total_vfs: 16,
    stride: 1,
    speed: Mbps(100_000),
    // bnxt_sriov.c: BNXT_VF_SPOOFCHK is set by bnxt_set_vf_spoofchk only.
    spoofchk_at_birth: false,
    // bnxt_sriov.c bnxt_sriov_configure: "Reject SRIOV config request since if is down!", returns 0
    // for 0 VFs too (systemd#40739).
    while_down: WhileDown::Ignored,
    // bnxt_vfr.c bnxt_dl_eswitch_mode_set: EINVAL for the mode that it has.
    eswitch: EswitchRule::AlwaysOther,
    switchdev_refuses_vf_knobs: false,
    switchdev_refuses_trust: false,
    // bnxt_sriov.c bnxt_set_vf_link_state.
    link_state: LinkStateRule::All,
    // bnxt_sriov.c bnxt_set_vf_bw.
    min_rate: MinRateRule::UpToLink,
    max_rate: MaxRateRule::UpToLink,
    // bnxt_sriov.c bnxt_set_vf_vlan: with BNXT_FW_CAP_DFLT_VLAN_TPID_PCP, which Thor has.
    service_tags: true,
    // bnxt_sriov.c bnxt_vf_configure_mac keeps it in vf_mac_addr, which nothing clears;
    // bnxt_get_vf_config tells it whenever the administrative one is zero.
    own_mac: OwnMac::UntilRemade,
    // bnxt.c bnxt_init_mac_addr: bnxt_approve_mac.
    tells_mac_at_probe: true,
    spoofchk_needs_mac: false,
    // bnxt_re main.c: addrconf_addr_eui48 of the interface's address.
    node_guid: NodeGuid::FromOwnMac,
};
