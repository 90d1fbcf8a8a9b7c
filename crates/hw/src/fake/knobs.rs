//! One message for one VF: its attributes are applied one after another until the first refusal,
//! each by the rules of the PF's personality.

use lanekeeper_model::{
    Guid, LinkState, MacAddr, PfAddr, RateLimits, VfIndex, VlanProtocol, VlanTag,
};
use rustix::io::Errno;

use super::machine::{Halt, Machine, Matter, Pf, Vf};
use super::personality::{LinkStateRule, MaxRateRule, MinRateRule, NodeGuid, OwnMac};
use super::pf::Knob;
use super::refusal::{errno, in_words, unsupported};
use crate::inventory::VfAttributes;
use crate::message::VfMessage;

const REPRESENTOR: &str = "do it through the VF's representor, or use legacy mode";
const NONE: &str = "do without it on this NIC";

impl Machine {
    pub(super) fn send_vf(
        &mut self,
        addr: PfAddr,
        index: VfIndex,
        message: &VfMessage,
    ) -> Result<(), Halt> {
        let pf = self.pf(addr)?;
        pf.vf(index)?;
        let told = pf.attributes(&pf.vfs[index.get()]);
        if pf.spec.repeats_hang && message.rate == Some(told.rate) {
            return Err(Halt::WaitsLocked);
        }
        if !pf.netdev_here {
            let hint = Some("the PF's interface is not in this network namespace");
            return Err(errno(pf, Errno::NODEV, format!("set VF {index}"), hint));
        }
        if let Some(refusal) = pf.next_refusal(Matter::Message, index) {
            return Err(in_words(pf, refusal, format!("set VF {index}"), "not now"));
        }
        // net/core/rtnetlink.c do_setvfinfo starts from EINVAL (systemd#37275).
        if message.is_empty() {
            let doing = format!("set nothing on VF {index}");
            return Err(errno(pf, Errno::INVAL, doing, None));
        }
        self.repeats += repeated(message, &told);
        let pf = self.pf(addr)?;
        pf.apply(index, message)?;
        let late = pf.spec.tells_late;
        if late > 0 {
            pf.vf(index)?.stale = Some((late + 1, told));
        }
        Ok(())
    }
}

/// How many attributes of a message the VF has already.
fn repeated(message: &VfMessage, told: &VfAttributes) -> usize {
    let repeats = [
        message.mac == Some(told.mac),
        message.vlan == Some(told.vlan),
        message.rate == Some(told.rate),
        message.spoofchk.is_some() && message.spoofchk == told.spoofchk,
        message.link_state.is_some() && message.link_state == told.link_state,
        message.trust.is_some() && message.trust == told.trust,
        message.node_guid.is_some() && message.node_guid == told.node_guid,
        message.port_guid.is_some() && message.port_guid == told.port_guid,
    ];
    repeats.into_iter().filter(|repeat| *repeat).count()
}

impl Pf {
    fn apply(&mut self, index: VfIndex, message: &VfMessage) -> Result<(), Halt> {
        if let Some(mac) = message.mac {
            self.set_mac(index, mac)?;
        }
        if let Some(vlan) = message.vlan {
            self.set_vlan(index, vlan)?;
        }
        if let Some(rate) = message.rate {
            self.set_rate(index, rate)?;
        }
        if let Some(on) = message.spoofchk {
            self.check_knob(Knob::Spoofchk, index, &format!("set spoofchk {} on", on_off(on)))?;
            self.vf(index)?.spoofchk = on;
        }
        if let Some(state) = message.link_state {
            self.set_link_state(index, state)?;
        }
        if let Some(on) = message.trust {
            self.set_trust(index, on)?;
        }
        if let Some(guid) = message.node_guid {
            self.check_guid(index, "node", guid)?;
            self.vf(index)?.node_guid = guid;
        }
        if let Some(guid) = message.port_guid {
            self.check_guid(index, "port", guid)?;
            self.vf(index)?.port_guid = guid;
        }
        Ok(())
    }

    fn set_mac(&mut self, index: VfIndex, mac: MacAddr) -> Result<(), Halt> {
        let refused = mac.is_multicast() || mac.is_zero() && self.spec.refuses_zero_mac;
        if refused {
            let hint = mac.is_zero().then_some("this driver takes no zero MAC back");
            let doing = format!("set MAC {mac} on VF {index}");
            return Err(errno(self, Errno::INVAL, doing, hint));
        }
        let rules = self.rules();
        let vf = self.vf(index)?;
        vf.mac = mac;
        vf.own_mac = vf.own_mac.filter(|_| rules.own_mac == OwnMac::UntilRemade);
        // eswitch.c node_guid_gen_from_mac: of a zero MAC as well, which makes 0000:00ff:fe00:0000.
        if rules.node_guid == NodeGuid::FromAdminMac {
            vf.node_guid = Guid::from_mac(mac);
        }
        Ok(())
    }

    fn set_vlan(&mut self, index: VfIndex, vlan: VlanTag) -> Result<(), Halt> {
        let rules = self.rules();
        let what = format!("set VLAN {} of {} on VF {index}", vlan.id, vlan.protocol);
        if vlan.protocol == VlanProtocol::Dot1Ad && !rules.service_tags {
            return Err(unsupported(rules.driver, what, "use 802.1Q"));
        }
        if self.switchdev() && rules.switchdev_refuses_vf_knobs {
            // esw/legacy.c: VLAN 0 is a success without an effect, "compatibility with libvirt".
            if vlan.id.is_some() {
                return Err(unsupported(rules.driver, what, REPRESENTOR));
            }
            return Ok(());
        }
        let vf = self.vf(index)?;
        vf.vlan = vlan;
        vf.trunk = false;
        Ok(())
    }

    fn set_rate(&mut self, index: VfIndex, rate: RateLimits) -> Result<(), Halt> {
        let rules = self.rules();
        let RateLimits { min, max } = rate;
        let doing = format!("set rates {min} to {max} Mb/s on VF {index}");
        if min.0 != 0 && (self.spec.lacks.contains(&Knob::MinRate)) {
            return Err(unsupported(rules.driver, doing, "leave the min rate 0"));
        }
        // net/core/rtnetlink.c rtnl_set_vf_rate.
        let crossed = max.0 != 0 && min > max;
        let link = if self.carrier() { rules.speed.0 } else { 0 };
        let others: u32 =
            self.vfs.iter().filter(|vf| vf.index != index).map(|vf| vf.rate.min.0).sum();
        let min_taken = match rules.min_rate {
            MinRateRule::None => min.0 == 0,
            MinRateRule::UpToLink => min.0 <= link,
            MinRateRule::Budget => min.0 == 0 || others.saturating_add(min.0) <= link,
            MinRateRule::Any => true,
        };
        let max_taken = match rules.max_rate {
            MaxRateRule::LinkedUpToSpeed { above } => {
                self.carrier() && max.0 <= link && (max.0 == 0 || max.0 > above)
            }
            MaxRateRule::UpToLink => max.0 <= link,
            MaxRateRule::Any => true,
        };
        if rules.min_rate == MinRateRule::Budget && min.0 != 0 && self.dcb_on() {
            return Err(unsupported(rules.driver, doing, "leave the min rate 0 while DCB is on"));
        }
        if crossed || !min_taken {
            let hint = (!crossed && rules.min_rate == MinRateRule::None)
                .then_some("this driver has no min rate; leave it 0");
            return Err(errno(self, Errno::INVAL, doing, hint));
        }
        if !max_taken {
            let hint = Some("the max rate is beyond what the link has now");
            return Err(errno(self, Errno::INVAL, doing, hint));
        }
        self.vf(index)?.rate = rate;
        Ok(())
    }

    fn set_link_state(&mut self, index: VfIndex, state: LinkState) -> Result<(), Halt> {
        let rules = self.rules();
        let what = format!("set link state {state} on");
        if rules.link_state == LinkStateRule::None {
            return Err(unsupported(rules.driver, format!("{what} VF {index}"), NONE));
        }
        self.check_knob(Knob::LinkState, index, &what)?;
        if rules.link_state != LinkStateRule::EnableIgnored || state != LinkState::Enable {
            self.vf(index)?.link_state = state;
        }
        self.tell_carrier();
        Ok(())
    }

    fn set_trust(&mut self, index: VfIndex, on: bool) -> Result<(), Halt> {
        let rules = self.rules();
        let what = format!("set trust {} on", on_off(on));
        if self.switchdev() && rules.switchdev_refuses_trust {
            let instead = "trust has no meaning there: what a VF may send is the host's rules";
            return Err(unsupported(rules.driver, format!("{what} VF {index}"), instead));
        }
        self.check_knob(Knob::Trust, index, &what)?;
        self.vf(index)?.trust = on;
        Ok(())
    }

    fn check_knob(&self, knob: Knob, index: VfIndex, what: &str) -> Result<(), Halt> {
        let rules = self.rules();
        let what = format!("{what} VF {index}");
        if self.switchdev() && rules.switchdev_refuses_vf_knobs {
            return Err(unsupported(rules.driver, what, REPRESENTOR));
        }
        if self.spec.lacks.contains(&knob) || self.spec.refuses.contains(&knob) {
            return Err(unsupported(rules.driver, what, NONE));
        }
        Ok(())
    }

    fn check_guid(&self, index: VfIndex, which: &str, guid: Guid) -> Result<(), Halt> {
        if self.spec.vf_guids {
            return Ok(());
        }
        let what = format!("set {which} GUID {guid} on VF {index}");
        let instead = "set a MAC and probe the VF's driver anew: the GUID follows from it";
        Err(unsupported(self.rules().driver, what, instead))
    }

    fn dcb_on(&self) -> bool {
        use lanekeeper_model::RoceSetting::{DscpPriority, Ets, Pfc};
        self.roce.values().any(|setting| match setting {
            Pfc(priorities) => !priorities.is_empty(),
            Ets(shares) => shares.iter().any(|share| *share != 0),
            DscpPriority(map) => !map.is_empty(),
            _ => false,
        })
    }

    /// Tell the VFs' drivers whether there is a link.
    pub(super) fn tell_carrier(&mut self) {
        let carrier = self.carrier();
        for vf in &mut self.vfs {
            let up = vf.link(carrier) && !vf.stillborn && !vf.orphaned;
            if let Some(port) = &mut vf.port {
                port.carrier = up;
            }
        }
    }

    /// What the PF's driver tells of a VF (`ndo_get_vf_config`).
    pub(super) fn attributes(&self, vf: &Vf) -> VfAttributes {
        let tells = |knob| !self.spec.lacks.contains(&knob);
        VfAttributes {
            mac: vf.shown_mac(self.rules().own_mac),
            vlan: vf.vlan,
            rate: vf.rate,
            spoofchk: tells(Knob::Spoofchk).then_some(vf.spoofchk),
            trust: tells(Knob::Trust).then_some(vf.trust),
            // net/core/rtnetlink.c rtnl_fill_vfinfo: "auto" unless the driver says otherwise.
            link_state: Some(if tells(Knob::LinkState) { vf.link_state } else { LinkState::Auto }),
            node_guid: self.spec.vf_guids.then_some(vf.node_guid),
            port_guid: self.spec.vf_guids.then_some(vf.port_guid),
        }
    }
}

impl Vf {
    pub(super) fn link(&self, carrier: bool) -> bool {
        match self.link_state {
            LinkState::Auto => carrier,
            LinkState::Enable => true,
            LinkState::Disable => false,
        }
    }

    fn shown_mac(&self, rule: OwnMac) -> MacAddr {
        let own = self.own_mac.filter(|_| rule != OwnMac::Unreported);
        match rule {
            // bnxt_sriov.c bnxt_get_vf_config: the administrative one first.
            OwnMac::UntilRemade if !self.mac.is_zero() => self.mac,
            _ => own.unwrap_or(self.mac),
        }
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
