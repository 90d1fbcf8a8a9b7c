//! What stands in a bundle for what is not to be told: one thing for another, the same each time,
//! in fields and in texts alike.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lanekeeper_model::{Guid, MacAddr};

use super::{Bundle, Told};
use crate::inventory::{Netdev, PfReading, RdmaDevice};

/// Turns the interface identifier of an EUI-64 address into the EUI-64 (RFC 4291, appendix A).
const UNIVERSAL: u64 = 0x0200_0000_0000_0000;

/// Every IP address but link-local ones is replaced by one that no host has: those kept for
/// documentation (RFC 3849) and benchmarks (RFC 2544).
pub(super) fn without_addresses(mut bundle: Bundle) -> Bundle {
    let mut mask = Mask::default();
    for rdma in readings(&mut bundle).flat_map(rdma_devices) {
        for gid in &mut rdma.gids {
            gid.address = mask.address(gid.address);
        }
    }
    mask.texts(&mut bundle);
    bundle
}

/// Every MAC address, GUID and serial number is replaced, and what is made of them: names of
/// interfaces and link-local addresses.
pub(super) fn without_identities(mut bundle: Bundle) -> Bundle {
    let mut mask = Mask::default();
    for reading in readings(&mut bundle) {
        reading.permanent_mac = reading.permanent_mac.map(|mac| mask.mac(mac));
        reading.serial = reading.serial.as_deref().map(|serial| mask.serial(serial));
        for netdev in netdevs(reading) {
            netdev.mac = mask.mac(netdev.mac);
        }
        for vf in &mut reading.vfs {
            if let Some(told) = &mut vf.attributes {
                told.mac = mask.mac(told.mac);
                told.node_guid = told.node_guid.map(|guid| mask.guid(guid));
                told.port_guid = told.port_guid.map(|guid| mask.guid(guid));
            }
        }
        for rdma in rdma_devices(reading) {
            rdma.node_guid = mask.guid(rdma.node_guid);
            for gid in &mut rdma.gids {
                gid.address = mask.link_local(gid.address);
            }
        }
    }
    mask.texts(&mut bundle);
    bundle.masked = true;
    bundle
}

fn readings(bundle: &mut Bundle) -> impl Iterator<Item = &mut PfReading> {
    bundle.pfs.values_mut().filter_map(|told| match told {
        Told::Answer(reading) => Some(reading),
        Told::Error(_) => None,
    })
}

fn netdevs(reading: &mut PfReading) -> impl Iterator<Item = &mut Netdev> {
    let vfs = reading.vfs.iter_mut().filter_map(|vf| vf.netdev.as_mut());
    reading.netdev.iter_mut().chain(vfs)
}

fn rdma_devices(reading: &mut PfReading) -> impl Iterator<Item = &mut RdmaDevice> {
    let vfs = reading.vfs.iter_mut().filter_map(|vf| vf.rdma.as_mut());
    reading.rdma.iter_mut().chain(vfs)
}

#[derive(Default)]
struct Mask {
    macs: BTreeMap<MacAddr, MacAddr>,
    guids: BTreeMap<Guid, Guid>,
    serials: BTreeMap<String, String>,
    addresses: BTreeMap<Ipv6Addr, Ipv6Addr>,
}

impl Mask {
    /// Another of the same vendor.
    fn mac(&mut self, mac: MacAddr) -> MacAddr {
        if !mac.is_station() {
            return mac;
        }
        let [_, high, middle, low] = (self.macs.len() as u32 + 1).to_be_bytes();
        let [a, b, c, ..] = mac.0;
        *self.macs.entry(mac).or_insert(MacAddr([a, b, c, high, middle, low]))
    }

    fn guid(&mut self, guid: Guid) -> Guid {
        if guid.is_zero() {
            return guid;
        }
        if let Some(mac) = mac_of(guid) {
            return Guid::from_mac(self.mac(mac));
        }
        let number = self.guids.len() as u64 + 1;
        let masked = Guid(guid.0 & 0xffff_ff00_0000_0000 | number);
        *self.guids.entry(guid).or_insert(masked)
    }

    fn serial(&mut self, serial: &str) -> String {
        let masked = format!("SERIAL{}", self.serials.len() + 1);
        self.serials.entry(serial.to_owned()).or_insert(masked).clone()
    }

    fn address(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        if address.is_unspecified() || address.is_unicast_link_local() {
            return address;
        }
        let number = self.addresses.len() as u32 + 1;
        let masked = match address.to_ipv4_mapped() {
            // 198.18.0.0/15.
            Some(_) => Ipv4Addr::from_bits(0xc612_0000 + number).to_ipv6_mapped(),
            None => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number)),
        };
        *self.addresses.entry(address).or_insert(masked)
    }

    fn link_local(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        let bits = address.to_bits();
        let guid = Guid(bits as u64 ^ UNIVERSAL);
        if !address.is_unicast_link_local() || guid.is_zero() {
            return address;
        }
        let masked = self.guid(guid).0 ^ UNIVERSAL;
        Ipv6Addr::from_bits(bits >> 64 << 64 | u128::from(masked))
    }

    /// In every text of the bundle.
    fn texts(&self, bundle: &mut Bundle) {
        let words = self.words();
        let mask = |text: &mut String| *text = replaced(text, &words);
        for told in bundle.pfs.values_mut() {
            match told {
                Told::Answer(reading) => texts_of(reading).into_iter().for_each(mask),
                Told::Error(text) => mask(text),
            }
        }
        for told in bundle.counters.values_mut().flat_map(BTreeMap::values_mut) {
            if let Told::Error(text) = told {
                mask(text);
            }
        }
        for told in bundle.pause_frames.values_mut() {
            if let Told::Error(text) = told {
                mask(text);
            }
        }
        if let Told::Error(text) = &mut bundle.pci_tree {
            mask(text);
        }
    }

    /// How a text may write what is masked, longest first: a short one may be part of a long one.
    fn words(&self) -> Vec<Word> {
        let mut words = Vec::new();
        let mut word = |text: String, masked: String, whole| {
            words.push(Word { text, masked, whole });
        };
        // Without colons as well, as in the name of an interface (enx0c42a1000001) or RDMA device.
        let bare = |text: &str| text.replace(':', "");
        for (mac, masked) in &self.macs {
            let (mac, masked) = (mac.to_string(), masked.to_string());
            word(bare(&mac), bare(&masked), false);
            word(mac, masked, false);
        }
        for (guid, masked) in &self.guids {
            let (guid, masked) = (guid.to_string(), masked.to_string());
            word(bare(&guid), bare(&masked), false);
            word(guid, masked, false);
        }
        for (serial, masked) in &self.serials {
            word(serial.clone(), masked.clone(), true);
        }
        let text = |address: &Ipv6Addr| IpAddr::from(*address).to_canonical().to_string();
        for (address, masked) in &self.addresses {
            word(text(address), text(masked), true);
        }
        words.retain(|word| !word.text.is_empty());
        words.sort_by_key(|word| std::cmp::Reverse(word.text.len()));
        words
    }
}

/// What is to be replaced in a text.
struct Word {
    text: String,
    masked: String,
    /// Only where no letter or digit stands beside it: a serial number may be as short as "1".
    whole: bool,
}

/// In one go from left to right, so that what was put in is not replaced again.
fn replaced(text: &str, words: &[Word]) -> String {
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let apart = |beside: Option<char>| !beside.is_some_and(char::is_alphanumeric);
        let fits = |word: &&Word| {
            let after = rest.strip_prefix(word.text.as_str());
            let alone = |after: &str| apart(done.chars().last()) && apart(after.chars().next());
            after.is_some_and(|after| !word.whole || alone(after))
        };
        let (put, taken) = match words.iter().find(fits) {
            Some(word) => (word.masked.as_str(), word.text.len()),
            None => (&rest[..next.len_utf8()], next.len_utf8()),
        };
        done.push_str(put);
        rest = &rest[taken..];
    }
    done
}

/// The MAC that an EUI-64 was made of (the inverse of [`Guid::from_mac`]).
fn mac_of(guid: Guid) -> Option<MacAddr> {
    let [vendor @ .., 0xff, 0xfe, _, _, _] = guid.0.to_be_bytes() else { return None };
    let [.., high, middle, low] = guid.0.to_be_bytes();
    let mac = MacAddr([vendor[0], vendor[1], vendor[2], high, middle, low]);
    mac.is_station().then_some(mac)
}

/// Texts that a reader wrote, or that a host's owner chose.
fn texts_of(reading: &mut PfReading) -> Vec<&mut String> {
    let mut texts: Vec<_> = reading.warnings.iter_mut().collect();
    texts.extend(&mut reading.pending_reset);
    texts.extend(&mut reading.slot);
    texts.extend(&mut reading.bond);
    texts.extend(reading.netdev.iter_mut().map(|netdev| &mut netdev.name));
    let mut devices: Vec<_> = reading.rdma.iter_mut().collect();
    for vf in &mut reading.vfs {
        texts.extend(vf.netdev.iter_mut().map(|netdev| &mut netdev.name));
        texts.extend(&mut vf.representor);
        texts.extend(vf.holder.iter_mut().map(|holder| &mut holder.command));
        devices.extend(&mut vf.rdma);
    }
    for RdmaDevice { name, gids, .. } in devices {
        texts.push(name);
        texts.extend(gids.iter_mut().filter_map(|gid| gid.netdev.as_mut()));
    }
    texts
}
