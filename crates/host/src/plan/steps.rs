//! The steps of a plan, and the order that each driver wants them in.

use std::fmt;

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::{EswitchMode, Mtu, RoceSetting, VfIndex};
use serde::{Deserialize, Serialize};

use super::PlanStep;
use crate::drivers::{self, Driver, Order};
use crate::ledger::PfTarget;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Set the PF's interface up or down.
    Up(bool),
    /// Set its MTU.
    Mtu(Mtu),
    /// Whether a driver is bound to VFs as they appear.
    Autoprobe(bool),
    /// Take every VF from its driver.
    UnbindVfs,
    /// Set the mode of its embedded switch.
    Eswitch(EswitchMode),
    /// Write `sriov_numvfs`.
    NumVfs(u16),
    /// Wait until all VFs are there.
    Await(u16),
    /// Set one thing of the RoCE profile.
    Roce(RoceSetting),
    /// Open every VF's link: in switchdev mode it is the representor's.
    OpenLinks,
    /// Bring VFs that nobody owns to the safe state, one message each.
    Scrub(Vec<VfIndex>),
    /// Bring VFs back to what their owners asked for, one message each.
    Settle(Vec<VfIndex>),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up(true) => f.write_str("set the PF up"),
            Self::Up(false) => f.write_str("set the PF down"),
            Self::Mtu(mtu) => write!(f, "set the PF's MTU to {mtu}"),
            Self::Autoprobe(true) => f.write_str("let drivers take VFs as they appear"),
            Self::Autoprobe(false) => f.write_str("keep drivers off VFs as they appear"),
            Self::UnbindVfs => f.write_str("take all VFs from their drivers"),
            Self::Eswitch(mode) => write!(f, "set the embedded switch to {mode}"),
            Self::NumVfs(count) => write!(f, "write sriov_numvfs {count}"),
            Self::Await(count) => write!(f, "wait for all {count} VFs"),
            Self::Roce(setting) => write!(f, "set {} of the RoCE profile", setting.kind()),
            Self::OpenLinks => f.write_str("leave the VFs' links to their representors"),
            Self::Scrub(vfs) => write!(f, "scrub VF {}", numbers(vfs)),
            Self::Settle(vfs) => write!(f, "set VF {} as its owner asked", numbers(vfs)),
        }
    }
}

fn numbers(vfs: &[VfIndex]) -> String {
    let vfs: Vec<_> = vfs.iter().map(ToString::to_string).collect();
    vfs.join(", ")
}

/// Steps in the order that a driver wants.
pub(crate) struct Steps {
    pf: String,
    pub(crate) steps: Vec<PlanStep>,
}

impl Steps {
    /// None yet.
    pub(crate) fn new(name: &str) -> Self {
        Self { pf: name.to_owned(), steps: Vec::new() }
    }

    /// From what is to the target, VFs' own settings aside.
    pub(crate) fn towards(name: &str, target: &PfTarget, pf: &PfReading) -> Self {
        let mut steps = Self::new(name);
        let driver = drivers::of(pf);
        if pf.netdev.as_ref().is_some_and(|netdev| !netdev.up) {
            let why = driver.up_first.unwrap_or("VFs of a PF that is down pass nothing");
            steps.push(Step::Up(true), why, None);
        }
        steps.mtu(target.mtu, pf);
        if pf.autoprobe && target.vfs > 0 {
            let why = "the host's network tools would take VFs that are to be claimed";
            steps.push(Step::Autoprobe(false), why, None);
        }
        let mode = target.eswitch.filter(|mode| pf.eswitch.is_some_and(|now| now != *mode));
        steps.vfs_and_mode(target.vfs, mode, pf, driver);
        steps.roce(&target.roce, pf);
        steps
    }

    pub(crate) fn mtu(&mut self, mtu: Option<Mtu>, pf: &PfReading) {
        let now = pf.netdev.as_ref().map(|netdev| netdev.mtu);
        if let Some(mtu) = mtu
            && now.is_some_and(|now| now != u32::from(mtu))
        {
            let disturbs = "the PF's link may go down for a moment";
            self.push(Step::Mtu(mtu), "it is the most that a VF can use", Some(disturbs));
        }
    }

    pub(crate) fn roce(&mut self, wanted: &[RoceSetting], pf: &PfReading) {
        for setting in wanted {
            let has = pf.roce.iter().find(|has| has.kind() == setting.kind());
            if has.is_some_and(|has| has != setting) {
                let disturbs = "RoCE traffic of the PF and its VFs, for a moment";
                self.push(Step::Roce(setting.clone()), "the RoCE profile", Some(disturbs));
            }
        }
    }

    /// The number of VFs and the mode of the switch, in the driver's order.
    pub(crate) fn vfs_and_mode(
        &mut self,
        count: u16,
        mode: Option<EswitchMode>,
        pf: &PfReading,
        driver: &Driver,
    ) {
        let resize = pf.num_vfs != count;
        let Some(mode) = mode else {
            if !resize {
                return;
            }
            // mlx5 makes and removes VFs in legacy mode.
            if driver.order == Order::VfsFirst && pf.eswitch == Some(EswitchMode::Switchdev) {
                self.unbind(pf.num_vfs);
                self.eswitch(EswitchMode::Legacy, "mlx5 makes and removes VFs in legacy mode");
                self.resize(pf.num_vfs, count);
                self.unbind(count);
                self.eswitch(EswitchMode::Switchdev, "mlx5 takes the mode once all VFs are there");
                return;
            }
            self.resize(pf.num_vfs, count);
            return;
        };
        match driver.order {
            Order::VfsFirst if mode == EswitchMode::Switchdev => {
                if resize {
                    self.resize(pf.num_vfs, count);
                } else if count > 0 {
                    let why = "what legacy mode closed cannot be opened in switchdev mode";
                    self.push(Step::OpenLinks, why, None);
                }
                self.unbind(count);
                self.eswitch(mode, "mlx5 takes it once all VFs are there and none is bound");
            }
            Order::VfsFirst => {
                self.unbind(pf.num_vfs);
                self.eswitch(mode, "mlx5 makes and removes VFs in legacy mode");
                if resize {
                    self.resize(pf.num_vfs, count);
                }
            }
            Order::EswitchFirst => {
                if pf.num_vfs > 0 {
                    self.num_vfs(0, "the driver changes its mode only without VFs");
                }
                self.eswitch(mode, "before there are VFs");
                if count > 0 {
                    self.num_vfs(count, "as the file says");
                }
            }
            Order::Whenever | Order::NoEswitch => {
                self.eswitch(mode, "as the file says");
                if resize {
                    self.resize(pf.num_vfs, count);
                }
            }
        }
    }

    fn unbind(&mut self, count: u16) {
        if count > 0 {
            let why = "the mode changes only while no VF is bound";
            self.push(Step::UnbindVfs, why, Some("VFs that are used on this host"));
        }
    }

    fn eswitch(&mut self, mode: EswitchMode, why: &str) {
        self.push(Step::Eswitch(mode), why, Some("all traffic of the PF, for a moment"));
    }

    fn resize(&mut self, now: u16, count: u16) {
        if now > 0 {
            self.num_vfs(0, "the kernel goes from one number to another only by way of 0");
        }
        if count > 0 {
            self.num_vfs(count, "as the file says");
        }
    }

    fn num_vfs(&mut self, count: u16, why: &str) {
        let disturbs = (count == 0).then_some("every VF goes away");
        self.push(Step::NumVfs(count), why, disturbs);
        if count > 0 {
            self.push(Step::Await(count), "VFs appear one by one after the write", None);
        }
    }

    pub(crate) fn push(&mut self, step: Step, why: &str, disturbs: Option<&str>) {
        self.steps.push(PlanStep {
            pf: self.pf.clone(),
            step,
            why: why.to_owned(),
            disturbs: disturbs.map(str::to_owned),
        });
    }

    pub(super) fn makes_vfs(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.step, Step::NumVfs(count) if count > 0))
    }
}
