//! Our code against a real kernel's devlink and rtnetlink: in a guest with netdevsim, the kernel's
//! own simulated NIC, which has an embedded switch, takes every setting of a VF, and has as many VFs
//! as one asks for. Each test runs this program again in the guest, where the kernel is.

mod device;
mod line;
mod stage;

use std::process::Command;

use device::{Device, refusal};
use lanekeeper_hw::inventory::{RepresentorState, VfAttributes};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_hw::{HardwareError, SriovHardware};
use lanekeeper_model::{
    Dscp, EswitchMode, Guid, LinkState, MacAddr, Mbps, Mtu, Pcp, RateLimits, RoceSetting, Trust,
    VfIndex, VfSettings, VlanId, VlanProtocol, VlanTag,
};
use stage::in_guest;

/// What the length of an attribute can say.
const LONGEST_ATTRIBUTE: usize = 65_535;

fn vf(number: u32) -> VfIndex {
    VfIndex::new(number).expect("valid")
}

fn rates(min: u32, max: u32) -> RateLimits {
    RateLimits { min: Mbps(min), max: Mbps(max) }
}

/// Settings of a VF that are no other's, each knob in each of its positions somewhere.
fn settings(vf: VfIndex) -> VfSettings {
    let number = u32::from(vf);
    let odd = number % 2 == 1;
    VfSettings {
        mac: MacAddr([0x02, 0x1a, 0, 0, (number >> 8) as u8, number as u8]),
        vlan: VlanTag {
            id: VlanId::new(1 + number).expect("valid"),
            pcp: Pcp::new(number % 8).expect("valid"),
            protocol: if odd { VlanProtocol::Dot1Ad } else { VlanProtocol::Dot1Q },
        },
        spoofchk: odd,
        trust: !odd,
        link_state: [LinkState::Enable, LinkState::Disable, LinkState::Auto][number as usize % 3],
        rate: rates(10 + number, 1_000 + number),
        ..VfSettings::scrubbed()
    }
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn every_setting_of_256_vfs_takes_one_message_each_and_a_second_time_none() {
    in_guest("every_setting_of_256_vfs_takes_one_message_each_and_a_second_time_none", || {
        let device = Device::with_vfs(256);
        let write = || {
            let reading = device.read();
            assert_eq!(reading.vfs.len(), 256, "{:?}", reading.warnings);
            device.exchanges();
            for had in &reading.vfs {
                let has = had.attributes.expect("the kernel tells of it");
                let message = VfMessage::between(&has, &settings(had.vf));
                device.linux().send_vf(Device::pf(), had.vf, &message).expect("set");
            }
            device.exchanges().iter().filter(|exchange| exchange.sets_a_link()).count()
        };
        assert_eq!(write(), 256);
        for has in device.read().vfs {
            let wanted = settings(has.vf);
            let wanted = VfAttributes {
                mac: wanted.mac,
                vlan: wanted.vlan,
                rate: wanted.rate,
                spoofchk: Some(wanted.spoofchk),
                trust: Some(wanted.trust),
                link_state: Some(wanted.link_state),
                ..VfAttributes::default()
            };
            assert_eq!(has.attributes, Some(wanted), "VF {}", has.vf);
        }
        assert_eq!(write(), 0);
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn vfs_whose_list_is_longer_than_its_length_can_say_are_all_read() {
    in_guest("vfs_whose_list_is_longer_than_its_length_can_say_are_all_read", || {
        let longest = |device: &Device| {
            device.exchanges().iter().map(|exchange| exchange.answer).max().unwrap_or(0)
        };
        // With counters 256 VFs are too long.
        let device = Device::with_vfs(256);
        device.linux().vf_counters(Device::pf(), vf(255)).expect("the last VF's counters");
        let length = longest(&device);
        assert!(length > LONGEST_ATTRIBUTE, "{length} bytes");
        drop(device);
        // Without them it takes some more.
        let device = Device::with_vfs(400);
        for number in [0, 255, 256, 399] {
            let message = VfMessage { rate: Some(rates(0, 100 + number)), ..VfMessage::default() };
            device.linux().send_vf(Device::pf(), vf(number), &message).expect("set");
        }
        device.exchanges();
        let reading = device.read();
        let length = longest(&device);
        assert!(length > LONGEST_ATTRIBUTE, "{length} bytes");
        let told = reading.vfs.iter().filter_map(|vf| vf.attributes);
        let max: Vec<u32> = told.map(|has| has.rate.max.0).collect();
        assert_eq!(max.len(), 400);
        for (number, max) in (0..).zip(max) {
            let limited = [0, 255, 256, 399].contains(&number);
            assert_eq!(max, if limited { 100 + number } else { 0 }, "VF {number}");
        }
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn both_rates_travel_in_one_message() {
    in_guest("both_rates_travel_in_one_message", || {
        let device = Device::with_vfs(2);
        let rate_of = |number: usize| device.read().vfs[number].attributes.expect("told").rate;
        for rate in [rates(5, 0), rates(5, 30), rates(0, 30), rates(0, 0)] {
            let message = VfMessage { rate: Some(rate), ..VfMessage::default() };
            device.exchanges();
            device.linux().send_vf(Device::pf(), vf(1), &message).expect("set");
            assert_eq!(device.exchanges().len(), 1);
            assert_eq!(rate_of(1), rate);
            assert_eq!(rate_of(0), rates(0, 0));
        }
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn the_eswitch_goes_to_switchdev_with_a_representor_for_each_vf_and_back() {
    in_guest("the_eswitch_goes_to_switchdev_with_a_representor_for_each_vf_and_back", || {
        let device = Device::with_vfs(4);
        let linux = device.linux();
        let legacy = device.read();
        assert_eq!(legacy.eswitch, Some(EswitchMode::Legacy));
        assert!(legacy.vfs.iter().all(|vf| vf.representor.is_none()), "{:?}", legacy.vfs);
        let own = legacy.netdev.expect("an interface").name;

        for _ in 0..2 {
            linux.set_eswitch(Device::pf(), EswitchMode::Switchdev).expect("set, or is so already");
            let reading = device.read();
            assert_eq!(reading.eswitch, Some(EswitchMode::Switchdev));
            assert_eq!(reading.netdev.expect("an interface").name, own);
            for vf in reading.vfs {
                let name = vf.representor.expect("a representor");
                let port = format!("/sys/class/net/{name}/phys_port_name");
                let port = std::fs::read_to_string(port).expect("its port");
                assert_eq!(port.trim(), format!("pf0vf{}", vf.vf));
            }
        }

        linux.set_eswitch(Device::pf(), EswitchMode::Legacy).expect("set back");
        let back = device.read();
        assert_eq!(back.eswitch, Some(EswitchMode::Legacy));
        assert!(back.vfs.iter().all(|vf| vf.representor.is_none()), "{:?}", back.vfs);
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn a_representor_opens_and_closes_with_its_mtu_in_one_message() {
    in_guest("a_representor_opens_and_closes_with_its_mtu_in_one_message", || {
        let device = Device::with_vfs(2);
        let linux = device.linux();
        let set = |state| linux.set_representor(Device::pf(), vf(1), state);
        let open = RepresentorState { up: true, mtu: 9_000 };
        let error = refusal(set(open));
        assert!(matches!(error, HardwareError::Unsupported { .. }), "{error}");

        linux.set_eswitch(Device::pf(), EswitchMode::Switchdev).expect("set");
        let other = device.read().vfs[0].representor_state;
        for state in [open, RepresentorState { up: false, mtu: 1_500 }] {
            device.exchanges();
            set(state).expect("set");
            let sets = device.exchanges();
            assert_eq!(sets.iter().filter(|exchange| exchange.sets_a_link()).count(), 1);
            let vfs = device.read().vfs;
            assert_eq!(vfs[1].representor_state, Some(state));
            assert_eq!(vfs[0].representor_state, other);
        }
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn what_the_driver_cannot_do_is_refused_by_name_and_the_rest_of_the_message_is_not_blamed() {
    let name =
        "what_the_driver_cannot_do_is_refused_by_name_and_the_rest_of_the_message_is_not_blamed";
    in_guest(name, || {
        let device = Device::with_vfs(2);
        let linux = device.linux();
        let unsupported = |message: VfMessage| {
            let error = refusal(linux.send_vf(Device::pf(), vf(1), &message));
            match error {
                HardwareError::Unsupported { driver, what, .. } => (driver, what),
                other => panic!("{other}"),
            }
        };
        let mac = MacAddr([0x02, 0x1a, 0, 0, 0, 9]);
        // netdevsim has no GUIDs, as no Ethernet driver but mlx5 has.
        let (driver, what) = unsupported(VfMessage {
            mac: Some(mac),
            node_guid: Some(Guid(0x021a_00ff_fe00_0009)),
            ..VfMessage::default()
        });
        assert_eq!(driver, "netdevsim");
        assert_eq!(what, "set node GUID 021a:00ff:fe00:0009 on VF 1");

        // In switchdev mode netdevsim takes no rate over rtnetlink.
        linux.set_eswitch(Device::pf(), EswitchMode::Switchdev).expect("set");
        let rate = Some(rates(100, 1_000));
        let (_, what) = unsupported(VfMessage { mac: Some(mac), rate, ..VfMessage::default() });
        assert_eq!(what, "set rates 100 to 1000 Mb/s on VF 1");
        let has = device.read().vfs[1].attributes.expect("told");
        assert_eq!((has.mac, has.rate), (mac, rates(0, 0)));
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn a_refusal_has_the_kernels_own_words() {
    in_guest("a_refusal_has_the_kernels_own_words", || {
        let device = Device::with_vfs(1);
        let linux = device.linux();
        linux.set_eswitch(Device::pf(), EswitchMode::Switchdev).expect("set");
        // The kernel leaves no mode in which there are groups of rates.
        let group = format!("netdevsim/{}/somebodys", device.name());
        let added =
            Command::new("devlink").args(["port", "function", "rate", "add", &group]).status();
        assert!(added.expect("devlink runs").success());
        let error = refusal(linux.set_eswitch(Device::pf(), EswitchMode::Legacy));
        let text = error.to_string();
        assert!(text.contains("(os error 16)") && text.contains("Rate node(s) exists"), "{text}");
        assert_eq!(device.read().eswitch, Some(EswitchMode::Switchdev));
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn vfs_are_never_changed_from_one_number_to_another() {
    in_guest("vfs_are_never_changed_from_one_number_to_another", || {
        let device = Device::with_vfs(4);
        let linux = device.linux();
        let error = refusal(linux.write_num_vfs(Device::pf(), 2)).to_string();
        assert!(error.contains("write 0 first"), "{error}");
        assert_eq!(device.read().num_vfs, 4);
        linux.write_num_vfs(Device::pf(), 0).expect("removed");
        let reading = device.read();
        assert_eq!(reading.num_vfs, 0);
        assert!(reading.vfs.iter().all(|vf| vf.attributes.is_none()), "{:?}", reading.vfs);
    });
}

#[test]
#[ignore = "long: builds a kernel module and boots a guest"]
fn a_pf_tells_what_it_has_and_a_part_that_the_driver_lacks_is_no_fault() {
    in_guest("a_pf_tells_what_it_has_and_a_part_that_the_driver_lacks_is_no_fault", || {
        let device = Device::with_vfs(1);
        let linux = device.linux();
        let set = |setting: &RoceSetting| linux.set_roce(Device::pf(), setting);
        let mtu = RoceSetting::Mtu(Mtu::new(4_200).expect("valid"));
        set(&mtu).expect("the MTU is set");
        linux.set_up(Device::pf(), true).expect("it goes up");
        for on in [true, false] {
            let pause = RoceSetting::GlobalPause(on);
            set(&pause).expect("link-level pause is set");
            let reading = device.read();
            assert_eq!(reading.roce, [pause, mtu.clone()]);
            // devlink's versions: what is stored runs, too.
            assert_eq!(reading.firmware.as_deref(), Some("10.20.30"));
            assert_eq!(reading.pending_reset, None);
            assert!(reading.netdev.expect("an interface").up);
            let unread = reading.warnings.iter().find(|warning| warning.contains("cannot read"));
            assert_eq!(unread, None);
        }
        linux.set_up(Device::pf(), false).expect("it goes down");
        assert!(!device.read().netdev.expect("an interface").up);

        assert_eq!(linux.pause_frames(Device::pf()).expect("no DCB is no fault"), None);
        for lacking in [
            RoceSetting::Trust(Trust::Dscp),
            RoceSetting::Pfc([Pcp::new(3).expect("valid")].into()),
            RoceSetting::Ets([50, 50, 0, 0, 0, 0, 0, 0]),
            RoceSetting::CnpDscp(Dscp::new(48).expect("valid")),
        ] {
            let error = refusal(set(&lacking));
            assert!(matches!(error, HardwareError::Unsupported { .. }), "{lacking:?}: {error}");
        }
    });
}
