//! The other steps: numbers of VFs, the embedded switch, and the binding of a VF to drivers.

use lanekeeper_model::{EswitchMode, LinkState, Mtu, PfAddr, VfAddr, VfIndex};
use rustix::io::Errno;

use super::machine::{Halt, Machine, Matter, NEW_REPRESENTOR, Pf};
use super::personality::{EswitchRule, OwnMac, WhileDown};
use super::refusal::{errno, in_words, unsupported};
use crate::inventory::{RepresentorState, TotalVfs};

impl Machine {
    /// drivers/pci/iov.c `sriov_numvfs_store`.
    pub(super) fn write_num_vfs(&mut self, addr: PfAddr, count: u16) -> Result<(), Halt> {
        let pf = self.pf(addr)?;
        let doing = format!("write {count} to sriov_numvfs");
        // There is no such file without the capability (drivers/pci/iov.c).
        let TotalVfs::UpTo(total) = pf.total else {
            let instead = "turn SR-IOV on in the NIC's firmware, then reboot";
            return Err(unsupported(pf.rules().driver, doing, instead));
        };
        if count > total {
            return Err(errno(pf, Errno::RANGE, doing, Some("the PF has fewer VFs than that")));
        }
        let now = pf.vfs.len();
        if usize::from(count) == now {
            return Ok(());
        }
        if !pf.is_driven() {
            let driver = pf.driver.as_deref().unwrap_or("no driver");
            return Err(unsupported(driver, doing, "bind the PF's own driver"));
        }
        // What follows is the driver's `sriov_configure`; this is not.
        if now != 0 && count != 0 {
            return Err(errno(pf, Errno::BUSY, doing, Some("write 0 first")));
        }
        if pf.spec.num_vfs_hangs {
            return Err(Halt::WaitsLocked);
        }
        if !pf.up && pf.rules().while_down == WhileDown::Ignored {
            return Ok(());
        }
        if count == 0 {
            // Removal of a VF waits for its VFIO user, under the PF's device lock (spdk#3205).
            if pf.vfs.iter().any(|vf| vf.holder.is_some()) {
                return Err(Halt::WaitsLocked);
            }
            pf.vfs.clear();
            pf.unborn = 0;
            return Ok(());
        }
        if pf.spec.no_room {
            let hint =
                Some("give VFs room in the BIOS (SR-IOV, above 4G), or boot with pci=realloc");
            return Err(errno(pf, Errno::NOMEM, doing, hint));
        }
        self.make_vfs(addr, count)?;
        Ok(())
    }

    pub(super) fn set_eswitch(&mut self, addr: PfAddr, mode: EswitchMode) -> Result<(), Halt> {
        let pf = self.pf(addr)?;
        let rules = pf.rules();
        let doing = format!("set the embedded switch to {mode}");
        let same = pf.eswitch == mode;
        match rules.eswitch {
            EswitchRule::None => {
                return Err(unsupported(rules.driver, doing, "leave the mode out"));
            }
            EswitchRule::BeforeVfs if !same && !pf.vfs.is_empty() => {
                return Err(unsupported(rules.driver, doing, "change it while there are no VFs"));
            }
            EswitchRule::VfsUnbound if !same && mode == EswitchMode::Switchdev => {
                if pf.seen() < pf.vfs.len() {
                    let hint = Some("wait for all VFs to be there");
                    return Err(errno(pf, Errno::INVAL, doing, hint));
                }
                if pf.vfs.iter().any(|vf| vf.driver.is_some()) {
                    let hint = Some("take the VFs from their drivers first");
                    return Err(errno(pf, Errno::INVAL, doing, hint));
                }
            }
            EswitchRule::AlwaysOther if same => {
                return Err(errno(pf, Errno::INVAL, doing, Some("it has that mode already")));
            }
            _ => {}
        }
        if !same {
            for vf in &mut pf.vfs {
                vf.representor = NEW_REPRESENTOR;
            }
        }
        pf.eswitch = mode;
        Ok(())
    }

    pub(super) fn set_representor(
        &mut self,
        addr: PfAddr,
        index: VfIndex,
        state: RepresentorState,
    ) -> Result<(), Halt> {
        let pf = self.pf(addr)?;
        let (switchdev, driver) = (pf.switchdev(), pf.rules().driver);
        let vf = pf.vf(index)?;
        if !switchdev {
            let doing = format!("set the representor of VF {index}: {state}");
            return Err(unsupported(driver, doing, "set the embedded switch to switchdev"));
        }
        vf.representor = state;
        Ok(())
    }

    pub(super) fn set_up(&mut self, addr: PfAddr, up: bool) -> Result<(), Halt> {
        let pf = self.pf(addr)?;
        pf.need_netdev(if up { "set the interface up" } else { "set the interface down" })?;
        pf.up = up;
        pf.tell_carrier();
        Ok(())
    }

    pub(super) fn set_vf_mtu(&mut self, addr: PfAddr, vf: VfIndex, mtu: Mtu) -> Result<(), Halt> {
        let pf = self.pf(addr)?;
        let most = pf.mtu;
        let driver = pf.rules().vf_driver;
        let doing = format!("set MTU {mtu} on VF {vf}");
        let Some(port) = &mut pf.vf(vf)?.port else {
            let instead = "bind its network driver first, or set it in the VM";
            return Err(unsupported(driver, doing, instead));
        };
        if mtu > most {
            let hint = Some("a VF's MTU cannot exceed its PF's");
            return Err(errno(pf, Errno::INVAL, doing, hint));
        }
        port.mtu = mtu;
        Ok(())
    }

    pub(super) fn write_driver_override(
        &mut self,
        addr: PfAddr,
        vf: VfAddr,
        driver: Option<&str>,
    ) -> Result<(), Halt> {
        let (pf, index) = self.vf_at(addr, vf, "write driver_override")?;
        pf.vf(index)?.driver_override = driver.map(str::to_owned);
        Ok(())
    }

    /// Waits for a VFIO user to let go (drivers/vfio/vfio_main.c
    /// `vfio_unregister_group_dev`: "waiting for release").
    pub(super) fn unbind(&mut self, addr: PfAddr, vf: VfAddr) -> Result<(), Halt> {
        let (pf, index) = self.vf_at(addr, vf, "unbind")?;
        let vf = pf.vf(index)?;
        if vf.holder.is_some() {
            return Err(Halt::Waits);
        }
        vf.stop();
        Ok(())
    }

    pub(super) fn bind(&mut self, addr: PfAddr, vf: VfAddr) -> Result<(), Halt> {
        let (_, index) = self.vf_at(addr, vf, "probe")?;
        self.probe(addr, index);
        Ok(())
    }

    /// A function level reset: the PF sets again what was set on the VF by it. What a guest left is
    /// cleared, except for an address that the PF's driver took for its own record.
    pub(super) fn reset(&mut self, addr: PfAddr, vf: VfAddr) -> Result<(), Halt> {
        let (pf, index) = self.vf_at(addr, vf, "reset")?;
        let kept = matches!(pf.rules().own_mac, OwnMac::UntilSet | OwnMac::UntilRemade);
        let vf = pf.vf(index)?;
        vf.own_mac = vf.own_mac.filter(|_| kept);
        vf.guest_state = false;
        Ok(())
    }

    fn vf_at(&mut self, addr: PfAddr, vf: VfAddr, doing: &str) -> Result<(&mut Pf, VfIndex), Halt> {
        let pf = self.pf(addr)?;
        let Some(index) = pf.at(vf) else {
            let hint = Some("it is no VF of this PF now");
            return Err(errno(pf, Errno::NODEV, format!("{doing} {vf}"), hint));
        };
        if let Some(refusal) = pf.next_refusal(Matter::Binding, index) {
            return Err(in_words(pf, refusal, format!("{doing} {vf}"), "not now"));
        }
        Ok((pf, index))
    }

    /// Why nothing that a VF sends would arrive now; `None` if it would.
    pub(super) fn silence(
        &mut self,
        addr: PfAddr,
        index: VfIndex,
    ) -> Result<Option<&'static str>, Halt> {
        let pf = self.pf(addr)?;
        let (rules, carrier, legacy) = (pf.rules(), pf.carrier(), !pf.switchdev());
        let vf = pf.vf(index)?;
        let unchecked = vf.spoofchk && vf.mac.is_zero() && rules.spoofchk_needs_mac;
        Ok(if vf.guest_state {
            Some("an earlier guest's state holds its queues")
        } else if vf.orphaned {
            Some("the PF was reset under it")
        } else if vf.stillborn {
            Some("it was made while the PF was down")
        } else if unchecked && legacy {
            Some("spoofchk is on without a MAC")
        } else if !legacy && !vf.representor.up {
            Some("its representor is down")
        } else if vf.link_state == LinkState::Disable {
            Some("its link is disabled")
        } else if !vf.link(carrier) {
            Some("the PF has no link")
        } else {
            None
        })
    }
}

impl Pf {
    pub(super) fn need_netdev(&self, doing: &str) -> Result<(), Halt> {
        if self.netdev_here {
            return Ok(());
        }
        let hint = Some("the PF's interface is not in this network namespace");
        Err(errno(self, Errno::NODEV, doing.to_owned(), hint))
    }
}
