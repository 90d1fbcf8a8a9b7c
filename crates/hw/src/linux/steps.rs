//! Single writes: each finds its PF and VF anew, does one thing, and says in full what was refused.

use std::path::Path;

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfCounters, VfIndex};

use super::netdev::{self, Interfaces};
use super::netlink::message::Said;
use super::netlink::{Failure, Protocol};
use super::reading::{vf_interface, virtual_functions};
use super::refusal::{Deed, Step};
use super::tree;
use super::vf_parts::{doing, parts};
use super::{Linux, dcb, devlink, link, pci, rdma, refusal, roce};
use crate::inventory::{Netdev, RepresentorState};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware as _};

type Done = Result<(), HardwareError>;

const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

pub(super) fn write_num_vfs(linux: &Linux, pf: PfAddr, count: u16) -> Done {
    let file = linux.pf_folder(pf)?.join("sriov_numvfs");
    let instead = "bind the PF to its network driver and turn SR-IOV on in its firmware";
    let step = step(linux, pf, Deed::NumVfs, format!("make {count} VFs"), instead);
    file_step(&step, &file, &count.to_string())
}

pub(super) fn write_autoprobe(linux: &Linux, pf: PfAddr, on: bool) -> Done {
    let file = linux.pf_folder(pf)?.join("sriov_drivers_autoprobe");
    let doing = format!("turn sriov_drivers_autoprobe {}", if on { "on" } else { "off" });
    let instead = "turn SR-IOV on in the PF's firmware";
    file_step(&step(linux, pf, Deed::NumVfs, doing, instead), &file, if on { "1" } else { "0" })
}

pub(super) fn set_up(linux: &Linux, pf: PfAddr, up: bool) -> Done {
    let doing = format!("set the PF's interface {}", if up { "up" } else { "down" });
    let step = step(linux, pf, Deed::Other, doing, NO_INTERFACE);
    let interface = interface(linux, &step)?;
    let mut kernel = linux.connect(Protocol::Route).map_err(|failure| step.failed(failure))?;
    link::set_up(&mut kernel, interface.index, up).map_err(|failure| step.failed(failure))
}

pub(super) fn set_eswitch(linux: &Linux, pf: PfAddr, mode: EswitchMode) -> Done {
    linux.pf_folder(pf)?;
    let doing = format!("set the eswitch mode to {mode}");
    let step = step(linux, pf, Deed::Eswitch, doing, "leave the eswitch mode out of the host file");
    linux
        .family(devlink::NAME)
        .and_then(|mut family| devlink::set_eswitch(&mut family, pf, mode))
        .map_err(|failure| step.failed(failure))
}

pub(super) fn send_vf(linux: &Linux, pf: PfAddr, vf: VfIndex, message: &VfMessage) -> Done {
    known_vf(linux, pf, vf)?;
    // systemd#37275: to some drivers a message with nothing in it is an error.
    if message.is_empty() {
        return Ok(());
    }
    let mut step = step(linux, pf, Deed::VfSetting, format!("set VF {vf}"), NO_INTERFACE);
    let interface = interface(linux, &step)?;
    let mut kernel = linux.connect(Protocol::Route).map_err(|failure| step.failed(failure))?;
    let Err(failure) = link::set_vf(&mut kernel, interface.index, vf, message) else {
        return Ok(());
    };
    if !matches!(failure, Failure::Silent(_)) {
        let told = link::read(&mut kernel, interface.index).unwrap_or_default();
        let has = told.vfs.into_iter().find(|(number, _)| *number == u32::from(vf));
        let parts = parts(message, &has.unwrap_or_default().1);
        (step.doing, step.instead) = doing(vf, &parts);
    }
    Err(step.failed(failure))
}

pub(super) fn set_vf_mtu(linux: &Linux, pf: PfAddr, vf: VfIndex, mtu: Mtu) -> Done {
    let device = linux.tree.device(known_vf(linux, pf, vf)?);
    let step = Step {
        driver: pci::driver(&device).or_else(|| Some(format!("VF {vf} without a driver"))),
        instead: "bind the VF to its network driver, or set the MTU inside the VM",
        ..step(linux, pf, Deed::VfMtu, format!("set MTU {mtu} on VF {vf}"), "")
    };
    let name = vf_interface(&device).ok_or_else(|| step.unsupported())?;
    let interface =
        netdev::read(&linux.tree, &device.join("net"), &name).ok_or_else(|| step.unsupported())?;
    let mut kernel = linux.connect(Protocol::Route).map_err(|failure| step.failed(failure))?;
    link::set_mtu(&mut kernel, interface.index, mtu).map_err(|failure| step.failed(failure))
}

pub(super) fn set_representor(
    linux: &Linux,
    pf: PfAddr,
    vf: VfIndex,
    state: RepresentorState,
) -> Done {
    known_vf(linux, pf, vf)?;
    let doing = format!("set the representor of VF {vf}: {state}");
    let instead = "set the embedded switch to switchdev: a VF has a representor there only";
    let step = step(linux, pf, Deed::Other, doing, instead);
    let reading = linux.read(pf)?;
    let name = reading.vf(vf).and_then(|vf| vf.representor.as_deref());
    let class = linux.tree.path("sys/class/net");
    let interface = name.and_then(|name| netdev::read(&linux.tree, &class, name));
    let interface = interface.ok_or_else(|| step.unsupported())?;
    let mut kernel = linux.connect(Protocol::Route).map_err(|failure| step.failed(failure))?;
    link::set_up_and_mtu(&mut kernel, interface.index, state.up, state.mtu)
        .map_err(|failure| step.failed(failure))
}

pub(super) fn vf_counters(
    linux: &Linux,
    pf: PfAddr,
    vf: VfIndex,
) -> Result<VfCounters, HardwareError> {
    known_vf(linux, pf, vf)?;
    let instead = "read the counters of the VF's own interface";
    let doing = format!("read counters of VF {vf}");
    let step = step(linux, pf, Deed::Read, doing, instead);
    let interface = interface(linux, &step)?;
    let mut kernel = linux.connect(Protocol::Route).map_err(|failure| step.failed(failure))?;
    link::read_counters(&mut kernel, interface.index, vf)
        .map_err(|failure| step.failed(failure))?
        .ok_or_else(|| step.unsupported())
}

/// DCB counts them with PFC (`struct ieee_pfc`, `indications`); a driver without DCB says so.
pub(super) fn pause_frames(linux: &Linux, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
    let folder = linux.pf_folder(pf)?;
    let interfaces = Interfaces::of(&folder);
    let Some(interface) = interfaces.own() else { return Ok(None) };
    let step = step(linux, pf, Deed::Read, "read its pause frames".to_owned(), NO_INTERFACE);
    let told =
        linux.connect(Protocol::Route).and_then(|mut kernel| dcb::read(&mut kernel, interface));
    match told {
        Ok(told) => Ok(told.pause_frames()),
        Err(failure) if failure.errno() == Some(refusal::EOPNOTSUPP) => Ok(None),
        Err(failure) => Err(step.failed(failure)),
    }
}

pub(super) fn write_driver_override(
    linux: &Linux,
    pf: PfAddr,
    vf: VfAddr,
    driver: Option<&str>,
) -> Done {
    let doing = match driver {
        Some(driver) => format!("keep {vf} for {driver}"),
        None => format!("let any driver have {vf}"),
    };
    let step = vf_step(linux, pf, vf, Deed::Driver, doing)?;
    // The kernel takes an empty line as "none", and so would a name of nothing but a line's end.
    if driver.is_some_and(|driver| driver.is_empty() || driver.contains(char::is_whitespace)) {
        return Err(step.failed(refused(EINVAL, "a driver's name has no white space in it")));
    }
    let text = format!("{}\n", driver.unwrap_or_default());
    file_step(&step, &linux.tree.device(vf).join("driver_override"), &text)
}

pub(super) fn unbind(linux: &Linux, pf: PfAddr, vf: VfAddr) -> Done {
    let step = vf_step(linux, pf, vf, Deed::Driver, format!("unbind {vf}"))?;
    let device = linux.tree.device(vf);
    let bound = || pci::driver(&device).is_some();
    if !bound() {
        return Ok(());
    }
    match tree::write(&device.join("driver/unbind"), &vf.to_string()) {
        Err(error) if bound() => Err(step.failed(Failure::Io(error))),
        // It went by itself between the look and the write, which is what was wanted.
        _ => Ok(()),
    }
}

pub(super) fn probe(linux: &Linux, pf: PfAddr, vf: VfAddr) -> Done {
    let step = vf_step(linux, pf, vf, Deed::Driver, format!("find a driver for {vf}"))?;
    file_step(&step, &linux.tree.path("sys/bus/pci/drivers_probe"), &vf.to_string())
}

pub(super) fn reset(linux: &Linux, pf: PfAddr, vf: VfAddr) -> Done {
    let step = Step {
        instead: "remove the VFs and make them anew",
        ..vf_step(linux, pf, vf, Deed::Reset, format!("reset {vf}"))?
    };
    file_step(&step, &linux.tree.device(vf).join("reset"), "1")
}

pub(super) fn set_roce(linux: &Linux, pf: PfAddr, setting: &RoceSetting) -> Done {
    let device = linux.pf_folder(pf)?;
    let doing = format!("set {} of the RoCE profile", setting.kind());
    let step = step(linux, pf, Deed::Roce, doing, roce::instead(setting));
    let interface = interface(linux, &step)?;
    let name = tree::names(&device.join("infiniband")).into_iter().next();
    let class = linux.tree.path("sys/class/infiniband");
    let rdma = name.map(|name| rdma::read(&class.join(&name), &name, None, None));
    roce::set(linux, &step, &interface, rdma.as_ref(), setting)
}

const NO_INTERFACE: &str =
    "bind the PF to its network driver, and keep its interface in this network namespace";

fn step(linux: &Linux, pf: PfAddr, deed: Deed, doing: String, instead: &'static str) -> Step {
    Step { pf, driver: pci::driver(&linux.tree.device(pf)), deed, doing, instead }
}

/// A step on a VF that is this PF's own: no address of anything else is written anywhere.
fn vf_step(
    linux: &Linux,
    pf: PfAddr,
    vf: VfAddr,
    deed: Deed,
    doing: String,
) -> Result<Step, HardwareError> {
    let folder = linux.pf_folder(pf)?;
    let driver = pci::driver(&linux.tree.device(vf)).or_else(|| Some("the kernel".to_owned()));
    let step = Step { pf, driver, deed, doing, instead: "bind it to a driver that can" };
    if virtual_functions(&folder).iter().any(|(_, addr)| *addr == vf) {
        return Ok(step);
    }
    Err(step.failed(refused(ENODEV, &format!("{vf} is no VF of {pf} now; read the PF again"))))
}

/// The PF's own interface.
fn interface(linux: &Linux, step: &Step) -> Result<Netdev, HardwareError> {
    let device = linux.pf_folder(step.pf)?;
    Interfaces::of(&device)
        .own()
        .and_then(|name| netdev::read(&linux.tree, &device.join("net"), name))
        .ok_or_else(|| Step { instead: NO_INTERFACE, ..step.clone() }.unsupported())
}

/// Where a VF is now.
fn known_vf(linux: &Linux, pf: PfAddr, vf: VfIndex) -> Result<VfAddr, HardwareError> {
    let folder = linux.pf_folder(pf)?;
    // One link is read, not all: a PF may have hundreds.
    let link = tree::target(&folder.join(format!("virtfn{vf}")));
    link.and_then(|addr| addr.parse().ok()).ok_or_else(|| {
        let num_vfs = virtual_functions(&folder).len();
        HardwareError::NoVf { pf: PfId::Pci(pf), vf, num_vfs }
    })
}

fn file_step(step: &Step, file: &Path, text: &str) -> Done {
    tree::write(file, text).map_err(|error| step.failed(Failure::Io(error)))
}

fn refused(errno: i32, text: &str) -> Failure {
    Failure::Refused(Said { errno, text: Some(text.to_owned()) })
}
