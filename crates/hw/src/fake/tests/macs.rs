//! Administrative addresses, and those that a VF's driver chooses by itself.

use super::*;
use lanekeeper_model::Guid;

#[test]
fn a_mac_holds_for_a_bound_vf_once_its_driver_is_probed_anew() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 2);
        send(&fake, pf, 1, set_mac(mac(9))).expect("set");
        let before = reading(&fake, pf, 1);
        assert_eq!(before.attributes.expect("told").mac, mac(9));
        assert_ne!(before.netdev.expect("bound").mac, mac(9));
        fake.unbind(pf, before.addr).expect("unbound");
        fake.probe(pf, before.addr).expect("probed");
        assert_eq!(reading(&fake, pf, 1).netdev.expect("bound").mac, mac(9));
    }
}

#[test]
fn a_group_address_is_refused() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        assert_eq!(refusal(send(&fake, pf, 0, set_mac(MacAddr::BROADCAST))), EINVAL);
    }
}

#[test]
fn a_zero_mac_is_taken_back_except_by_a_driver_that_refuses_it() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        bind_vfio(&fake, pf, 0);
        send(&fake, pf, 0, set_mac(mac(1))).expect("set");
        send(&fake, pf, 0, set_mac(MacAddr::ZERO)).expect("taken back");

        let (fake, pf) = with_vfs(FakePf::new(personality).refusing_zero_mac(), 1);
        send(&fake, pf, 0, set_mac(mac(1))).expect("set");
        assert_eq!(refusal(send(&fake, pf, 0, set_mac(MacAddr::ZERO))), EINVAL);
        assert_eq!(attributes(&fake, pf, 0).mac, mac(1));
    }
}

/// A VF that a guest holds, unbound before it could tell an address of its own.
fn in_a_guest(personality: Personality) -> (Fake, PfAddr) {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(personality));
    fake.write_autoprobe(pf, false).expect("set");
    fake.write_num_vfs(pf, 1).expect("made");
    bind_vfio(&fake, pf, 0);
    fake.open_vf(pf, vf(0), 4711, "qemu-system-x86").expect("opened");
    (fake, pf)
}

#[test]
fn a_guest_changes_its_mac_while_none_is_set_or_it_is_trusted() {
    for personality in Personality::ALL {
        let (fake, pf) = in_a_guest(personality);
        let try_it = |last| fake.guest_sets_mac(pf, vf(0), mac(last)).expect("there");
        assert!(try_it(1), "{personality:?}: none is set");
        send(&fake, pf, 0, set_mac(mac(2))).expect("set");
        let any = personality == Personality::Mlx5;
        assert_eq!(try_it(3), any, "{personality:?}: one is set");
        send(&fake, pf, 0, set_trust(true)).expect("set");
        assert!(try_it(3), "{personality:?}: trusted");
    }
}

#[test]
fn the_pf_tells_a_guests_own_address_as_the_vfs_except_on_mlx5() {
    for personality in Personality::ALL {
        let (fake, pf) = in_a_guest(personality);
        assert!(fake.guest_sets_mac(pf, vf(0), mac(1)).expect("there"));
        let told = attributes(&fake, pf, 0).mac;
        let expected = if personality == Personality::Mlx5 { MacAddr::ZERO } else { mac(1) };
        assert_eq!(told, expected, "{personality:?}");
    }
}

#[test]
fn a_reset_clears_a_guests_address_on_igb_and_mlx5_only() {
    for personality in Personality::ALL {
        let (fake, pf) = in_a_guest(personality);
        assert!(fake.guest_sets_mac(pf, vf(0), mac(1)).expect("there"));
        fake.close_vf(pf, vf(0)).expect("closed");
        assert_eq!(fake.own_mac(pf, vf(0)).expect("there"), Some(mac(1)), "it is left");
        fake.reset(pf, reading(&fake, pf, 0).addr).expect("reset");
        let left = fake.own_mac(pf, vf(0)).expect("there");
        let cleared = matches!(personality, Personality::Igb | Personality::Mlx5);
        assert_eq!(left.is_none(), cleared, "{personality:?}");
    }
}

#[test]
fn on_igb_the_next_driver_takes_over_the_address_that_a_guest_left() {
    let (fake, pf) = in_a_guest(Personality::Igb);
    assert!(fake.guest_sets_mac(pf, vf(0), mac(1)).expect("there"));
    fake.close_vf(pf, vf(0)).expect("closed");
    let addr = reading(&fake, pf, 0).addr;
    fake.unbind(pf, addr).expect("unbound");
    fake.write_driver_override(pf, addr, Some("igbvf")).expect("overridden");
    fake.probe(pf, addr).expect("probed");
    assert_eq!(reading(&fake, pf, 0).netdev.expect("bound").mac, mac(1));
}

#[test]
fn a_zero_mac_clears_a_guests_address_except_on_bnxt_en_where_it_shows_again() {
    for personality in Personality::ALL {
        let (fake, pf) = in_a_guest(personality);
        assert!(fake.guest_sets_mac(pf, vf(0), mac(1)).expect("there"));
        send(&fake, pf, 0, set_mac(mac(2))).expect("set");
        assert_eq!(attributes(&fake, pf, 0).mac, mac(2));
        send(&fake, pf, 0, set_mac(MacAddr::ZERO)).expect("taken back");
        let shows = personality == Personality::BnxtEn;
        let expected = if shows { mac(1) } else { MacAddr::ZERO };
        assert_eq!(attributes(&fake, pf, 0).mac, expected, "{personality:?}");
    }
}

#[test]
fn network_drivers_of_igb_and_bnxt_en_tell_their_random_address_when_they_are_probed() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        let vf = reading(&fake, pf, 0);
        let random = vf.netdev.expect("bound").mac;
        let tells = matches!(personality, Personality::Igb | Personality::BnxtEn);
        let expected = if tells { random } else { MacAddr::ZERO };
        assert_eq!(vf.attributes.expect("told").mac, expected, "{personality:?}");
    }
}

#[test]
fn the_node_guid_of_mlx5_is_zero_until_a_mac_is_set_and_the_driver_probed_anew() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 1);
    let guid = |fake: &Fake| reading(fake, pf, 0).rdma.expect("a device").node_guid;
    assert!(guid(&fake).is_zero());
    send(&fake, pf, 0, set_mac(mac(1))).expect("set");
    assert!(guid(&fake).is_zero(), "not before the probe");
    let addr = reading(&fake, pf, 0).addr;
    fake.unbind(pf, addr).expect("unbound");
    fake.probe(pf, addr).expect("probed");
    assert_eq!(guid(&fake), Guid::from_mac(mac(1)));
}

#[test]
fn the_node_guid_of_ice_and_bnxt_en_is_from_the_interfaces_address() {
    for personality in [Personality::Ice, Personality::BnxtEn] {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        let vf = reading(&fake, pf, 0);
        let own = Guid::from_mac(vf.netdev.expect("bound").mac);
        assert_eq!(vf.rdma.expect("a device").node_guid, own);
    }
}

#[test]
fn guids_can_be_set_where_the_driver_has_the_knob() {
    let guid = Guid(0x1234);
    let message = VfMessage { node_guid: Some(guid), ..VfMessage::default() };
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        assert_eq!(attributes(&fake, pf, 0).node_guid, None);
        assert!(lacking(send(&fake, pf, 0, message)).contains("node GUID"));
    }
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).with_vf_guids(), 1);
    let both = VfMessage { port_guid: Some(Guid(0x5678)), ..message };
    send(&fake, pf, 0, both).expect("set");
    let told = attributes(&fake, pf, 0);
    assert_eq!((told.node_guid, told.port_guid), (Some(guid), Some(Guid(0x5678))));
}
