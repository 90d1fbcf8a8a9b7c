//! What each personality tells and takes of a RoCE profile.

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_model::{Dscp, Mtu, Pcp, PfAddr, RdmaNetns, RoceMode, RoceSetting, Trust};
use rustix::io::Errno;

use super::Personality;
use super::machine::{Halt, Machine, Pf};
use super::refusal::{errno, unsupported};

/// What a driver has after it was loaded: one of each kind that it knows. All take an MTU and
/// link-level pause (ethtool). Others by their `dcbnl_rtnl_ops`: ixgbe_dcb_nl.c, i40e_dcb_nl.c,
/// ice_dcb_nl.c, bnxt_dcb.c, mlx5 en_dcbnl.c; igb has none. DSCP: i40e and ixgbe store APP entries
/// of selector 5 without acting on them, so that they count as lacking it. RDMA-CM and namespaces
/// come with an RDMA device.
pub(super) fn defaults(personality: Personality) -> BTreeMap<&'static str, RoceSetting> {
    use Personality::{BnxtEn, Ice, Igb, Mlx5};
    let mut settings = vec![RoceSetting::Mtu(Mtu::ETHERNET), RoceSetting::GlobalPause(true)];
    if personality != Igb {
        settings.extend([RoceSetting::Pfc(BTreeSet::new()), RoceSetting::Ets([0; 8])]);
    }
    if matches!(personality, Ice | Mlx5 | BnxtEn) {
        settings.extend([
            RoceSetting::DscpPriority(BTreeMap::new()),
            RoceSetting::CmTos(0),
            RoceSetting::CmMode(RoceMode::V2),
            RoceSetting::Netns(RdmaNetns::Shared),
        ]);
    }
    if personality == Mlx5 {
        settings.extend([
            RoceSetting::Trust(Trust::Pcp),
            RoceSetting::Buffers([262_016, 0, 0, 0, 0, 0, 0, 0]),
            RoceSetting::Ecn(BTreeSet::new()),
            RoceSetting::CnpDscp(Dscp::CNP),
            RoceSetting::CnpPriority(Pcp::default()),
        ]);
    }
    settings.into_iter().map(|setting| (setting.kind(), setting)).collect()
}

impl Machine {
    pub(super) fn set_roce(&mut self, addr: PfAddr, wanted: &RoceSetting) -> Result<(), Halt> {
        let (namespaces, netns) = (self.namespaces, self.netns);
        let pf = self.pf(addr)?;
        let kind = wanted.kind();
        let doing = format!("set {kind} of the RoCE profile");
        if !pf.roce.contains_key(kind) {
            let instead = "leave it out of this PF's profile";
            return Err(unsupported(pf.rules().driver, doing, instead));
        }
        let dcb = matches!(
            wanted,
            RoceSetting::Pfc(_) | RoceSetting::Ets(_) | RoceSetting::DscpPriority(_)
        );
        if dcb && pf.spec.firmware_lldp {
            return Err(errno(pf, Errno::INVAL, doing, Some("turn LLDP in the firmware off")));
        }
        match wanted {
            RoceSetting::Ets(shares) => {
                let sum: u32 = shares.iter().map(|share| u32::from(*share)).sum();
                if sum != 0 && sum != 100 {
                    return Err(errno(pf, Errno::INVAL, doing, None));
                }
            }
            RoceSetting::Mtu(mtu) => pf.mtu = *mtu,
            // mlx5e_dcbnl_ieee_setapp and _delapp: the first entry turns to DSCP, the last away.
            RoceSetting::DscpPriority(map) if pf.roce.contains_key("trust") => {
                let trust = if map.is_empty() { Trust::Pcp } else { Trust::Dscp };
                pf.roce.insert("trust", RoceSetting::Trust(trust));
            }
            // drivers/infiniband/core/device.c rdma_compatdev_set: one namespace only.
            RoceSetting::Netns(mode) if *mode != netns && namespaces > 1 => {
                let hint = "set it at boot, before there are network namespaces";
                return Err(errno(pf, Errno::BUSY, doing, Some(hint)));
            }
            _ => {}
        }
        pf.roce.insert(kind, wanted.clone());
        if let RoceSetting::Netns(mode) = wanted {
            self.netns = *mode;
        }
        Ok(())
    }

    /// What a PF tells: its own settings, and the host's one of where RDMA devices are seen.
    pub(super) fn roce(&self, pf: &Pf) -> Vec<RoceSetting> {
        let told = pf.roce.values().map(|setting| match setting {
            RoceSetting::Netns(_) => RoceSetting::Netns(self.netns),
            own => own.clone(),
        });
        told.collect()
    }
}
