//! What a request comes to on one PF: its own words, the host file's defaults, and what the NIC
//! cannot do, which is refused by field with what to do instead.

use lanekeeper_hw::inventory::{PfReading, VfReading};
use lanekeeper_model::{
    Guid, LinkState, MacAddr, Mbps, Mtu, RateLimits, RdmaNetns, RoceSetting, VfIndex, VfSettings,
    VlanProtocol, VlanTag,
};

use crate::choose::kept;
use crate::claim::lacks;
use crate::drivers::{self, Knob};
use crate::error::HostError;
use crate::ledger::ClaimRecord;
use crate::owner::Session;
use crate::request::{ClaimRequest, DriverWanted, RdmaNeed};
use crate::scrub::is_no_guid;

/// As rdma-system(8) names it.
fn netns_word(mode: RdmaNetns) -> &'static str {
    match mode {
        RdmaNetns::Shared => "shared",
        RdmaNetns::Exclusive => "exclusive",
    }
}

/// What the user of a VF's RDMA device on this host must know: a network namespace alone does not
/// hold it (rdma-cni#39).
pub(crate) fn netns_note(pf: &PfReading, device: &str) -> Option<String> {
    Some(match netns(pf)? {
        RdmaNetns::Shared => format!(
            "{device} is seen in every network namespace of this host; `netns: exclusive` in the \
             RoCE profile keeps each to one"
        ),
        RdmaNetns::Exclusive => format!(
            "{device} does not follow its interface into another network namespace: `rdma dev set \
             {device} netns NAME` moves it"
        ),
    })
}

/// Where RDMA devices are seen now.
fn netns(pf: &PfReading) -> Option<RdmaNetns> {
    pf.rdma.as_ref()?.netns
}

impl Session<'_> {
    /// What a request comes to on this PF.
    pub(crate) fn resolve(
        &self,
        request: &ClaimRequest,
        token: &str,
        pf: &PfReading,
        vf: &VfReading,
    ) -> Result<ClaimRecord, HostError> {
        let defaults =
            self.record.target.as_ref().map(|target| target.defaults.clone()).unwrap_or_default();
        let refuse = |field, value: &dyn ToString, instead: &str| HostError::NotOnThisPath {
            pf: self.name().to_owned(),
            driver: drivers::words(pf),
            field,
            value: value.to_string(),
            instead: instead.to_owned(),
        };
        let lacks = |knob| lacks(pf, &self.record, knob);
        if let Some(address) = request.addresses.first() {
            let instead = "a NIC checks MACs only (spoofchk): use the software NIC, or filter in \
                           the network";
            return Err(refuse("addresses", address, instead));
        }
        let vlan = request.vlan.or(defaults.vlan).unwrap_or_default();
        if vlan.id.is_some()
            && let Some(instead) = lacks(Knob::Vlan)
        {
            return Err(refuse("vlan", &vlan.id, &instead));
        }
        if vlan.protocol == VlanProtocol::Dot1Ad
            && let Some(instead) = lacks(Knob::ServiceTag)
        {
            return Err(refuse("vlan.protocol", &vlan.protocol, &instead));
        }
        let rate = RateLimits {
            min: request.min_rate.or(defaults.min_rate).unwrap_or_default(),
            max: request.max_rate.or(defaults.max_rate).unwrap_or_default(),
        };
        if rate.min != Mbps(0)
            && let Some(instead) = lacks(Knob::MinRate)
        {
            return Err(refuse("min_rate", &rate.min, &instead));
        }
        let link_state = request.link_state.or(defaults.link_state).unwrap_or_default();
        let link_knob = match link_state {
            LinkState::Auto => None,
            LinkState::Enable => lacks(Knob::LinkState).or_else(|| lacks(Knob::LinkEnable)),
            LinkState::Disable => lacks(Knob::LinkState),
        };
        if let Some(instead) = link_knob {
            return Err(refuse("link_state", &link_state, &instead));
        }
        let trust = request.trust.or(defaults.trust).unwrap_or(false);
        if trust && let Some(instead) = lacks(Knob::Trust) {
            return Err(refuse("trust", &trust, &instead));
        }
        let now = vf.attributes.unwrap_or_default();
        let spoofchk = match request.spoofchk.or(defaults.spoofchk) {
            Some(true) => match lacks(Knob::Spoofchk) {
                Some(instead) => return Err(refuse("spoofchk", &true, &instead)),
                None => true,
            },
            Some(false) => false,
            // On, where the driver has it.
            None => match lacks(Knob::Spoofchk) {
                Some(_) => now.spoofchk.unwrap_or(false),
                None => now.spoofchk.is_some(),
            },
        };
        if let Some(guid) = request.guid
            && let Some(instead) = lacks(Knob::Guid)
        {
            return Err(refuse("guid", &guid, &instead));
        }
        let rdma = request.rdma.or(defaults.rdma).unwrap_or_default();
        if rdma == RdmaNeed::Hardware && pf.rdma.is_none() {
            let instead = "the PF has no RDMA device: load its RDMA driver, use another NIC, or \
                           rdma: software";
            return Err(refuse("rdma", &"hardware", instead));
        }
        let driver = request.driver.or(defaults.driver).unwrap_or_default();
        if rdma == RdmaNeed::Hardware
            && driver == DriverWanted::Kernel
            && let (Some(wanted), Some(found)) = (self.wanted_netns(), netns(pf))
            && wanted != found
        {
            let (wanted, found) = (netns_word(wanted), netns_word(found));
            let instead = format!(
                "RDMA devices of this host are {found}, and the RoCE profile wants them {wanted}: \
                 set that before there are network namespaces (`rdma system set netns {wanted}`, or \
                 ib_core's netns_mode at boot), or change the profile"
            );
            return Err(refuse("rdma", &"hardware", &instead));
        }
        let pf_mtu = pf.netdev.as_ref().map_or(1_500, |netdev| netdev.mtu);
        let mtu = match request.mtu.or(defaults.mtu) {
            Some(mtu) if u32::from(mtu) > pf_mtu => {
                let instead = format!("the PF has {pf_mtu}: raise its mtu in the host file");
                return Err(refuse("mtu", &mtu, &instead));
            }
            Some(mtu) => mtu,
            None => Mtu::new(pf_mtu.clamp(Mtu::MIN, Mtu::MAX))?,
        };
        let mac = match request.mac {
            Some(mac) => self.unused(mac, vlan, pf)?,
            None => self.draw_mac(vlan, pf)?,
        };
        let settings =
            VfSettings { mac, vlan, spoofchk, addresses: Vec::new(), trust, link_state, rate, mtu };
        settings.validate()?;
        // Where the PF tells GUIDs and this VF has none, the MAC's is set with the rest.
        let untold = now.node_guid.is_none_or(|guid| !is_no_guid(guid));
        let by_mac = || Guid::from_mac(mac);
        let guid = match request.guid {
            None if rdma == RdmaNeed::Hardware && !untold => Some(by_mac()),
            given => given,
        };
        if let Some(guid) = guid {
            self.unused_guid(guid, pf)?;
        }
        Ok(ClaimRecord {
            token: token.to_owned(),
            request: kept(request),
            vf: vf.vf,
            settings,
            guid,
            rdma,
            driver,
            handed_over: false,
            lost: None,
        })
    }

    /// Where RDMA devices are to be seen, by the RoCE profile that was applied.
    fn wanted_netns(&self) -> Option<RdmaNetns> {
        let settings = self.record.target.iter().flat_map(|target| &target.roce);
        settings.into_iter().find_map(|setting| match setting {
            RoceSetting::Netns(mode) => Some(*mode),
            _ => None,
        })
    }

    fn draw_mac(&self, vlan: VlanTag, pf: &PfReading) -> Result<MacAddr, HostError> {
        // Drawn from 2^46: a second draw that is taken too says that the source is broken.
        let first = self.unused(self.owner.drawn_mac(), vlan, pf);
        first.or_else(|_| self.unused(self.owner.drawn_mac(), vlan, pf))
    }

    /// That no other VF has a GUID, and no PF.
    fn unused_guid(&self, guid: Guid, pf: &PfReading) -> Result<(), HostError> {
        let duplicate = |holder: String| Err(HostError::DuplicateGuid { guid, holder });
        if crate::file::guid_of(pf) == Some(guid) {
            return duplicate(format!("pf {}", self.name()));
        }
        for (_, record) in self.owner.ledger.read_all()? {
            let Ok(record) = record else { continue };
            if record.identity.guid == Some(guid) {
                return duplicate(format!("pf {}", record.name));
            }
            if let Some((id, claim)) =
                record.claims.iter().find(|(_, claim)| claim.guid == Some(guid))
            {
                return duplicate(format!("VF {} of pf {} ({id})", claim.vf, record.name));
            }
        }
        Ok(())
    }

    /// A MAC that no other VF of its VLAN on this host has, and no PF.
    pub(crate) fn unused(
        &self,
        mac: MacAddr,
        vlan: VlanTag,
        pf: &PfReading,
    ) -> Result<MacAddr, HostError> {
        let duplicate = |holder: String| Err(HostError::DuplicateMac { mac, holder });
        if pf.netdev.as_ref().is_some_and(|netdev| netdev.mac == mac)
            || pf.permanent_mac == Some(mac)
        {
            return duplicate(format!("pf {}", self.name()));
        }
        let lane = |settings: &VfSettings| (settings.mac, settings.vlan.id, settings.vlan.protocol);
        for (_, record) in self.owner.ledger.read_all()? {
            let Ok(record) = record else { continue };
            if record.identity.permanent_mac == Some(mac) {
                return duplicate(format!("pf {}", record.name));
            }
            let mut claims = record.claims.iter();
            let same =
                claims.find(|(_, claim)| lane(&claim.settings) == (mac, vlan.id, vlan.protocol));
            if let Some((id, claim)) = same {
                return duplicate(format!("VF {} of pf {} ({id})", claim.vf, record.name));
            }
            let parked = |vf: &VfIndex| record.vfs.get(vf).and_then(|vf| vf.parked_mac);
            if let Some(vf) = record.vfs.keys().find(|vf| parked(vf) == Some(mac)) {
                return duplicate(format!("VF {vf} of pf {}, which is free", record.name));
            }
        }
        Ok(mac)
    }
}
