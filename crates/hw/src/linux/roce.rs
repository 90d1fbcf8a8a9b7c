//! The RoCE profile of a PF, one thing at a time: DCB, ethtool, RDMA netlink, RDMA-CM's configfs and
//! the files of mlx5's drivers. The vendor's own driver has some in sysfs, the kernel's in debugfs;
//! what a driver has neither way is left out of a reading and refused when set.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lanekeeper_model::{Dscp, Mtu, Pcp, PfAddr, RoceMode, RoceSetting, Trust};

use super::dcb::{self, App, Dcb};
use super::netlink::{Failure, Protocol};
use super::reading::Reader;
use super::refusal::Step;
use super::tree;
use super::{Linux, ethtool, link, rdma};
use crate::HardwareError;
use crate::inventory::{Netdev, RdmaDevice};

/// Where a PF's settings are.
struct Places<'a> {
    linux: &'a Linux,
    pf: PfAddr,
    interface: &'a Netdev,
    rdma: Option<&'a RdmaDevice>,
}

/// What of a profile a PF's driver tells.
pub(super) fn read(
    reader: &mut Reader<'_>,
    netdev: Option<&Netdev>,
    rdma: Option<&RdmaDevice>,
) -> Result<Vec<RoceSetting>, HardwareError> {
    let Some(interface) = netdev else { return Ok(Vec::new()) };
    let linux = reader.linux;
    let places = Places { linux, pf: reader.pf, interface, rdma };
    let dcb = reader.ask("DCB", |_| places.dcb())?.unwrap_or_default();
    let pause = reader
        .ask("link-level pause", |linux| {
            ethtool::pause(&mut linux.family(ethtool::NAME)?, &interface.name)
        })?
        .flatten();
    let settings = [
        places.trust(&dcb).map(RoceSetting::Trust),
        dcb.dscp_priority().map(RoceSetting::DscpPriority),
        dcb.pfc().map(RoceSetting::Pfc),
        dcb.ets().map(RoceSetting::Ets),
        dcb.buffers().map(RoceSetting::Buffers),
        pause.map(RoceSetting::GlobalPause),
        places.ecn().map(RoceSetting::Ecn),
        places.cnp_dscp().map(RoceSetting::CnpDscp),
        places.cnp_priority().map(RoceSetting::CnpPriority),
        places.cm_tos().map(RoceSetting::CmTos),
        places.cm_mode().map(RoceSetting::CmMode),
        rdma.and_then(|rdma| rdma.netns).map(RoceSetting::Netns),
        Mtu::new(interface.mtu).ok().map(RoceSetting::Mtu),
    ];
    Ok(settings.into_iter().flatten().collect())
}

/// Set one thing. `step` tells of it in errors.
pub(super) fn set(
    linux: &Linux,
    step: &Step,
    interface: &Netdev,
    rdma: Option<&RdmaDevice>,
    setting: &RoceSetting,
) -> Result<(), HardwareError> {
    let places = Places { linux, pf: step.pf, interface, rdma };
    let done = match setting {
        RoceSetting::Trust(trust) => places.set_trust(*trust),
        RoceSetting::DscpPriority(map) => {
            let wanted =
                map.iter().map(|(dscp, priority)| App { dscp: *dscp, priority: *priority });
            places.set_apps(&wanted.collect())
        }
        RoceSetting::Pfc(paused) => {
            places.change_dcb(|dcb, kernel, name| dcb.set_pfc(kernel, name, paused))
        }
        RoceSetting::Ets(shares) => {
            places.change_dcb(|dcb, kernel, name| dcb.set_ets(kernel, name, *shares))
        }
        RoceSetting::Buffers(sizes) => {
            places.change_dcb(|dcb, kernel, name| dcb.set_buffers(kernel, name, *sizes))
        }
        RoceSetting::GlobalPause(on) => linux
            .family(ethtool::NAME)
            .and_then(|mut family| ethtool::set_pause(&mut family, &interface.name, *on))
            .map(|()| true),
        RoceSetting::Ecn(priorities) => places.set_ecn(priorities),
        RoceSetting::CnpDscp(dscp) => write(&places.cnp_dscp_file(), &dscp.to_string()),
        RoceSetting::CnpPriority(pcp) => write(&places.cnp_priority_file(), &pcp.to_string()),
        RoceSetting::CmTos(tos) => places.set_cm("default_roce_tos", &tos.to_string()),
        RoceSetting::CmMode(mode) => places.set_cm("default_roce_mode", cm_mode_name(*mode)),
        RoceSetting::Netns(mode) => linux
            .connect(Protocol::Rdma)
            .and_then(|mut kernel| rdma::set_netns(&mut kernel, *mode))
            .map(|()| true),
        RoceSetting::Mtu(mtu) => linux
            .connect(Protocol::Route)
            .and_then(|mut kernel| link::set_mtu(&mut kernel, interface.index, *mtu))
            .map(|()| true),
    };
    match done {
        Ok(true) => Ok(()),
        Ok(false) => Err(step.unsupported()),
        Err(failure) => Err(step.failed(failure)),
    }
}

/// What to do instead where a driver lacks something.
pub(super) fn instead(setting: &RoceSetting) -> &'static str {
    match setting {
        RoceSetting::Trust(_) => {
            "set dscp_priority: a driver with an APP table trusts dscp once that has an entry"
        }
        RoceSetting::DscpPriority(_)
        | RoceSetting::Pfc(_)
        | RoceSetting::Ets(_)
        | RoceSetting::Buffers(_) => {
            "leave it out of the profile, or use a NIC whose driver has DCB (mlx5, ice, bnxt_en)"
        }
        RoceSetting::Ecn(_) => {
            "set ROCE_CC_PRIO_MASK in the firmware, or install the vendor's driver"
        }
        RoceSetting::CnpDscp(_) | RoceSetting::CnpPriority(_) => {
            "set it in the firmware; the kernel's mlx5 driver needs debugfs mounted for it"
        }
        RoceSetting::CmTos(_) | RoceSetting::CmMode(_) => {
            "load rdma_cm and mount configfs; each needs an RDMA device on the PF"
        }
        RoceSetting::Netns(_) => "load ib_core with netns_mode set",
        RoceSetting::GlobalPause(_) | RoceSetting::Mtu(_) => "leave it out of the profile",
    }
}

impl Places<'_> {
    fn dcb(&self) -> Result<Dcb, Failure> {
        dcb::read(&mut self.linux.connect(Protocol::Route)?, &self.interface.name)
    }

    fn change_dcb(
        &self,
        change: impl FnOnce(&Dcb, &mut super::netlink::Connection, &str) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let mut kernel = self.linux.connect(Protocol::Route)?;
        let dcb = dcb::read(&mut kernel, &self.interface.name)?;
        change(&dcb, &mut kernel, &self.interface.name)
    }

    /// A file of the interface's folder.
    fn file(&self, path: &str) -> PathBuf {
        self.linux.tree.device(self.pf).join("net").join(&self.interface.name).join(path)
    }

    /// The vendor's driver has a file for it. The kernel's trust dscp as soon as the APP table has
    /// an entry by code point, and pcp again without (`mlx5e_dcbnl_ieee_setapp`, `_delapp`).
    fn trust(&self, dcb: &Dcb) -> Option<Trust> {
        match tree::text(&self.file("qos/trust")).as_deref() {
            Some("dscp") => Some(Trust::Dscp),
            Some("pcp") => Some(Trust::Pcp),
            _ if dcb.apps.as_ref()?.is_empty() => Some(Trust::Pcp),
            _ => Some(Trust::Dscp),
        }
    }

    fn set_trust(&self, trust: Trust) -> Result<bool, Failure> {
        let file = self.file("qos/trust");
        if file.exists() {
            let name = if trust == Trust::Dscp { "dscp" } else { "pcp" };
            return write(&file, name);
        }
        match (trust, self.dcb()?.apps) {
            (_, None) => Ok(false),
            (Trust::Dscp, Some(apps)) => Ok(!apps.is_empty()),
            (Trust::Pcp, Some(_)) => self.set_apps(&BTreeSet::new()),
        }
    }

    /// Bring the table to these entries: first what is missing, so that it is never empty on the
    /// way from one map to another, then away with the rest. A driver that lets a new entry take
    /// the place of an old one (mlx5) has less left to delete, so the table is read between.
    fn set_apps(&self, wanted: &BTreeSet<App>) -> Result<bool, Failure> {
        let name = &self.interface.name;
        let mut kernel = self.linux.connect(Protocol::Route)?;
        let Some(had) = dcb::read(&mut kernel, name)?.apps else { return Ok(false) };
        let missing: BTreeSet<App> = wanted.difference(&had).copied().collect();
        let mut has = had;
        if !missing.is_empty() {
            dcb::add_apps(&mut kernel, name, &missing)?;
            has = dcb::read(&mut kernel, name)?.apps.unwrap_or_default();
        }
        let stale: BTreeSet<App> = has.difference(wanted).copied().collect();
        if !stale.is_empty() {
            dcb::delete_apps(&mut kernel, name, &stale)?;
        }
        Ok(true)
    }

    /// Where congestion is noticed (np) and reacted to (rp), for each priority.
    fn ecn_files(&self, priority: Pcp) -> [PathBuf; 2] {
        ["np", "rp"].map(|point| self.file(&format!("ecn/roce_{point}/enable/{priority}")))
    }

    /// Priorities in which both points are on.
    fn ecn(&self) -> Option<BTreeSet<Pcp>> {
        if !self.file("ecn/roce_np/enable").exists() {
            return None;
        }
        let on = |file: &PathBuf| tree::value::<u8>(file) == Some(1);
        Some(priorities().filter(|priority| self.ecn_files(*priority).iter().all(on)).collect())
    }

    fn set_ecn(&self, wanted: &BTreeSet<Pcp>) -> Result<bool, Failure> {
        for priority in priorities() {
            let value = if wanted.contains(&priority) { "1" } else { "0" };
            for file in self.ecn_files(priority) {
                if tree::text(&file).as_deref() != Some(value) {
                    write(&file, value)?;
                }
            }
        }
        Ok(true)
    }

    fn cnp_dscp_file(&self) -> PathBuf {
        self.cnp_file("cnp_dscp", "np_cnp_dscp")
    }

    fn cnp_priority_file(&self) -> PathBuf {
        self.cnp_file("cnp_802p_prio", "np_cnp_prio")
    }

    /// The vendor's file, or else the kernel's (drivers/infiniband/hw/mlx5/cong.c).
    fn cnp_file(&self, vendors: &str, kernels: &str) -> PathBuf {
        let vendors = self.file(&format!("ecn/roce_np/{vendors}"));
        if vendors.exists() {
            return vendors;
        }
        let path = format!("sys/kernel/debug/mlx5/{}/cc_params/{kernels}", self.pf);
        self.linux.tree.path(&path)
    }

    fn cnp_dscp(&self) -> Option<Dscp> {
        Dscp::new(tree::value(&self.cnp_dscp_file())?).ok()
    }

    fn cnp_priority(&self) -> Option<Pcp> {
        Pcp::new(tree::value(&self.cnp_priority_file())?).ok()
    }

    fn cm(&self) -> Option<CmFolder> {
        let parent = self.linux.tree.path("sys/kernel/config/rdma_cm");
        CmFolder::enter(&parent, &self.rdma?.name)
    }

    fn cm_tos(&self) -> Option<u8> {
        tree::value(&self.cm()?.file("default_roce_tos"))
    }

    fn cm_mode(&self) -> Option<RoceMode> {
        match tree::text(&self.cm()?.file("default_roce_mode"))?.as_str() {
            "RoCE v2" => Some(RoceMode::V2),
            "IB/RoCE v1" => Some(RoceMode::V1),
            _ => None,
        }
    }

    fn set_cm(&self, file: &str, value: &str) -> Result<bool, Failure> {
        let Some(folder) = self.cm() else { return Ok(false) };
        write(&folder.file(file), value)
    }
}

fn cm_mode_name(mode: RoceMode) -> &'static str {
    match mode {
        RoceMode::V1 => "IB/RoCE v1",
        RoceMode::V2 => "RoCE v2",
    }
}

/// RDMA-CM's settings of a device. Its folder is there for as long as somebody wants it: the
/// settings stay when it goes (kernel document `ABI/testing/configfs-rdma_cm`).
struct CmFolder {
    path: PathBuf,
    ours: bool,
}

impl CmFolder {
    fn enter(parent: &Path, device: &str) -> Option<Self> {
        let path = parent.join(device);
        match fs::create_dir(&path) {
            Ok(()) => Some(Self { path, ours: true }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Some(Self { path, ours: false })
            }
            Err(_) => None,
        }
    }

    /// A setting of the first port; the devices here have one.
    fn file(&self, name: &str) -> PathBuf {
        self.path.join("ports/1").join(name)
    }
}

impl Drop for CmFolder {
    fn drop(&mut self) {
        if self.ours {
            // Nothing depends on it: the next who asks finds the folder there.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn write(file: &Path, value: &str) -> Result<bool, Failure> {
    tree::write(file, value).map(|()| true).map_err(Failure::Io)
}

fn priorities() -> impl Iterator<Item = Pcp> {
    (0..8).filter_map(|pcp| Pcp::new(pcp).ok())
}
