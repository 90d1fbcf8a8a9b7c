//! What each personality takes and refuses in a message.

use super::*;
use lanekeeper_model::{EswitchMode, LinkState, Pcp, RoceSetting, VlanProtocol};

fn set_link(state: LinkState) -> VfMessage {
    VfMessage { link_state: Some(state), ..VfMessage::default() }
}

#[test]
fn a_message_with_nothing_in_it_is_refused() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        assert_eq!(refusal(send(&fake, pf, 0, VfMessage::default())), EINVAL);
    }
}

#[test]
fn a_vf_that_is_not_there_is_named_with_how_many_there_are() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 2);
    let answer = send(&fake, pf, 2, set_mac(mac(1)));
    assert!(matches!(answer, Err(HardwareError::NoVf { num_vfs: 2, .. })), "{answer:?}");
}

#[test]
fn what_comes_before_a_refused_attribute_stays_and_what_comes_after_is_not_done() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Igb), 1);
    let vlan = set_vlan(1000).vlan;
    let message = VfMessage { vlan, trust: Some(true), ..set_link(LinkState::Disable) };
    assert!(lacking(send(&fake, pf, 0, message)).contains("link state"));
    let told = attributes(&fake, pf, 0);
    assert_eq!((told.vlan, told.trust), (vlan.expect("given"), Some(false)));
}

#[test]
fn a_vlan_and_its_priority_are_set_and_taken_away() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        let mut vlan = set_vlan(1925).vlan.expect("given");
        vlan.pcp = Pcp::new(3).expect("valid");
        let tag = |vlan| VfMessage { vlan: Some(vlan), ..VfMessage::default() };
        send(&fake, pf, 0, tag(vlan)).expect("set");
        assert_eq!(attributes(&fake, pf, 0).vlan, vlan);
        send(&fake, pf, 0, tag(VlanTag::default())).expect("taken away");
        assert_eq!(attributes(&fake, pf, 0).vlan, VlanTag::default());
    }
}

#[test]
fn service_tags_are_for_bnxt_en_only() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        let mut message = set_vlan(7);
        message.vlan.as_mut().expect("given").protocol = VlanProtocol::Dot1Ad;
        let answer = send(&fake, pf, 0, message);
        if personality == Personality::BnxtEn {
            answer.expect("set");
        } else {
            assert!(lacking(answer).contains("802.1ad"));
        }
    }
}

#[test]
fn link_states_are_none_on_igb_all_but_enable_on_ixgbe_and_all_elsewhere() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        assert_eq!(attributes(&fake, pf, 0).link_state, Some(LinkState::Auto));
        for state in [LinkState::Disable, LinkState::Enable, LinkState::Auto] {
            let answer = send(&fake, pf, 0, set_link(state));
            let told = attributes(&fake, pf, 0).link_state.expect("told");
            match (personality, state) {
                (Personality::Igb, _) => {
                    assert!(lacking(answer).contains("igb cannot set link state"));
                    assert_eq!(told, LinkState::Auto);
                }
                (Personality::Ixgbe, LinkState::Enable) => {
                    answer.expect("taken");
                    assert_eq!(told, LinkState::Disable, "as it was");
                }
                _ => {
                    answer.expect("set");
                    assert_eq!(told, state);
                }
            }
        }
    }
}

#[test]
fn a_disabled_link_silences_a_vf_and_an_enabled_one_outlives_the_cable() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e), 2);
    send(&fake, pf, 0, set_link(LinkState::Disable)).expect("set");
    send(&fake, pf, 1, set_link(LinkState::Enable)).expect("set");
    fake.set_cable(pf, false).expect("pulled");
    assert_eq!(fake.silence(pf, vf(0)).expect("there"), Some("its link is disabled"));
    assert_eq!(fake.silence(pf, vf(1)).expect("there"), None);
    let carrier = |index| reading(&fake, pf, index).netdev.expect("bound").carrier;
    assert_eq!((carrier(0), carrier(1)), (false, true));
}

#[test]
fn a_guaranteed_rate_is_refused_by_igb_ixgbe_and_i40e() {
    use Personality::{I40e, Igb, Ixgbe};
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        let answer = send(&fake, pf, 0, set_rate(5, 30));
        if matches!(personality, Igb | Ixgbe | I40e) {
            assert_eq!(refusal(answer), EINVAL, "{personality:?}");
        } else {
            answer.expect("set");
            let rate = attributes(&fake, pf, 0).rate;
            assert_eq!((rate.min, rate.max), (Mbps(5), Mbps(30)));
        }
    }
}

#[test]
fn a_guarantee_above_the_ceiling_is_refused_by_the_kernel_itself() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 1);
    assert_eq!(refusal(send(&fake, pf, 0, set_rate(30, 5))), EINVAL);
    send(&fake, pf, 0, set_rate(30, 0)).expect("no ceiling");
}

#[test]
fn a_driver_without_guaranteed_rates_says_so() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).without(Knob::MinRate), 1);
    assert!(lacking(send(&fake, pf, 0, set_rate(5, 30))).contains("mlx5_core"));
    send(&fake, pf, 0, set_rate(0, 30)).expect("a ceiling alone");
}

#[test]
fn ceilings_end_at_the_links_speed_except_on_ice_and_mlx5() {
    for personality in Personality::ALL {
        let speed = personality.rules().speed.0;
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        send(&fake, pf, 0, set_rate(0, speed)).expect("the link's speed");
        let answer = send(&fake, pf, 0, set_rate(0, speed + 1));
        if matches!(personality, Personality::Ice | Personality::Mlx5) {
            answer.expect("set");
        } else {
            assert_eq!(refusal(answer), EINVAL, "{personality:?}");
        }
    }
}

#[test]
fn igb_and_ixgbe_take_no_rate_without_a_link_not_even_none() {
    for personality in [Personality::Igb, Personality::Ixgbe] {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        fake.set_cable(pf, false).expect("pulled");
        assert_eq!(refusal(send(&fake, pf, 0, set_rate(0, 0))), EINVAL);
    }
}

#[test]
fn ixgbe_takes_no_ceiling_of_ten_or_less() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ixgbe), 1);
    assert_eq!(refusal(send(&fake, pf, 0, set_rate(0, 10))), EINVAL);
    send(&fake, pf, 0, set_rate(0, 11)).expect("set");
}

#[test]
fn guarantees_of_ice_share_the_link_and_exclude_dcb() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 2);
    send(&fake, pf, 0, set_rate(60_000, 0)).expect("within the link");
    assert_eq!(refusal(send(&fake, pf, 1, set_rate(60_000, 0))), EINVAL);
    send(&fake, pf, 1, set_rate(40_000, 0)).expect("what is left");
    send(&fake, pf, 1, set_rate(0, 0)).expect("given back");
    fake.set_roce(pf, &RoceSetting::Pfc([Pcp::new(3).expect("valid")].into())).expect("set");
    assert!(lacking(send(&fake, pf, 1, set_rate(5, 0))).contains("DCB"));
    send(&fake, pf, 1, set_rate(0, 50)).expect("a ceiling alone");
}

#[test]
fn intels_vfs_are_born_with_spoofchk_and_others_without() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        let told = attributes(&fake, pf, 0);
        let without = matches!(personality, Personality::Mlx5 | Personality::BnxtEn);
        assert_eq!(told.spoofchk, Some(!without), "{personality:?}");
        assert_eq!(told.trust, Some(false));
    }
}

#[test]
fn spoofchk_and_trust_are_set_and_taken_away() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        for on in [true, false] {
            send(&fake, pf, 0, set_spoofchk(on)).expect("set");
            send(&fake, pf, 0, set_trust(on)).expect("set");
            let told = attributes(&fake, pf, 0);
            assert_eq!((told.spoofchk, told.trust), (Some(on), Some(on)));
        }
    }
}

#[test]
fn spoofchk_without_a_mac_silences_a_vf_of_mlx5() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        send(&fake, pf, 0, set_spoofchk(true)).expect("set");
        let silent = fake.silence(pf, vf(0)).expect("there").is_some();
        assert_eq!(silent, personality == Personality::Mlx5, "{personality:?}");
        send(&fake, pf, 0, set_mac(mac(1))).expect("set");
        assert_eq!(fake.silence(pf, vf(0)).expect("there"), None);
    }
}

#[test]
fn a_knob_that_a_driver_lacks_reads_as_none_and_is_refused() {
    for (knob, message) in [(Knob::Spoofchk, set_spoofchk(false)), (Knob::Trust, set_trust(false))]
    {
        let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).without(knob), 1);
        let told = attributes(&fake, pf, 0);
        let told = if knob == Knob::Trust { told.trust } else { told.spoofchk };
        assert_eq!(told, None);
        assert!(lacking(send(&fake, pf, 0, message)).contains("off"));
    }
}

#[test]
fn a_link_state_that_a_driver_lacks_reads_as_auto_as_the_kernel_presets_it() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).without(Knob::LinkState), 1);
    assert_eq!(attributes(&fake, pf, 0).link_state, Some(LinkState::Auto));
    lacking(send(&fake, pf, 0, set_link(LinkState::Auto)));
}

#[test]
fn a_bluefield_refuses_even_spoofchk_off_which_it_has() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).refusing(Knob::Spoofchk), 1);
    assert_eq!(attributes(&fake, pf, 0).spoofchk, Some(false));
    assert!(lacking(send(&fake, pf, 0, set_spoofchk(false))).contains("spoofchk off"));
}

fn switchdev(personality: Personality) -> (Fake, PfAddr) {
    let (fake, pf) = with_vfs(FakePf::new(personality), 2);
    fake.force_eswitch(pf, EswitchMode::Switchdev).expect("there");
    (fake, pf)
}

#[test]
fn mlx5_in_switchdev_refuses_spoofchk_trust_link_state_and_a_vlan() {
    let (fake, pf) = switchdev(Personality::Mlx5);
    for message in [set_spoofchk(false), set_trust(false), set_link(LinkState::Auto), set_vlan(7)] {
        lacking(send(&fake, pf, 0, message));
    }
    assert!(lacking(send(&fake, pf, 0, set_vlan(7))).contains("representor"));
}

#[test]
fn mlx5_in_switchdev_takes_a_mac_a_rate_and_no_vlan() {
    let (fake, pf) = switchdev(Personality::Mlx5);
    for message in [set_vlan(0), set_rate(5, 30), set_mac(mac(1))] {
        send(&fake, pf, 0, message).expect("set");
    }
    let told = attributes(&fake, pf, 0);
    assert_eq!((told.mac, told.rate.max), (mac(1), Mbps(30)));
}

#[test]
fn ice_in_switchdev_refuses_trust_alone() {
    let (fake, pf) = switchdev(Personality::Ice);
    assert!(lacking(send(&fake, pf, 0, set_trust(true))).contains("ice"));
    for message in [set_vlan(7), set_spoofchk(false), set_link(LinkState::Disable)] {
        send(&fake, pf, 0, message).expect("set");
    }
}

#[test]
fn a_representor_is_new_with_each_change_of_the_mode_and_closes_the_vfs_link() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Ice));
    fake.set_eswitch(pf, EswitchMode::Switchdev).expect("no VFs yet");
    fake.write_num_vfs(pf, 1).expect("made");
    let new = RepresentorState { up: false, mtu: 1_500 };
    assert_eq!(reading(&fake, pf, 0).representor_state, Some(new));
    assert_eq!(fake.silence(pf, vf(0)).expect("a VF"), Some("its representor is down"));
    let open = RepresentorState { up: true, mtu: 9_000 };
    fake.set_representor(pf, vf(0), open).expect("set");
    assert_eq!(reading(&fake, pf, 0).representor_state, Some(open));
    assert_eq!(fake.silence(pf, vf(0)).expect("a VF"), None);
    fake.write_num_vfs(pf, 0).expect("gone");
    fake.set_eswitch(pf, EswitchMode::Legacy).expect("no VFs");
    fake.write_num_vfs(pf, 1).expect("made");
    assert!(lacking(fake.set_representor(pf, vf(0), open)).contains("switchdev"));
}

#[test]
fn vfs_have_representors_in_switchdev_only() {
    let (fake, pf) = switchdev(Personality::Mlx5);
    let names: Vec<_> =
        fake.read(pf).expect("read").vfs.into_iter().map(|vf| vf.representor).collect();
    assert!(names[0].as_deref().is_some_and(|name| name.ends_with("pf0vf0")), "{names:?}");
    assert_ne!(names[0], names[1]);
    fake.set_eswitch(pf, EswitchMode::Legacy).expect("back");
    assert_eq!(reading(&fake, pf, 0).representor, None);
}

#[test]
fn the_embedded_switch_of_ice_changes_only_before_vfs() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Ice));
    fake.set_eswitch(pf, EswitchMode::Switchdev).expect("before VFs");
    fake.write_num_vfs(pf, 2).expect("made");
    fake.set_eswitch(pf, EswitchMode::Switchdev).expect("as it is");
    assert!(lacking(fake.set_eswitch(pf, EswitchMode::Legacy)).contains("no VFs"));
}

#[test]
fn the_embedded_switch_of_mlx5_changes_once_all_vfs_are_there_and_unbound() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).appearing_after(2), 2);
    assert_eq!(refusal(fake.set_eswitch(pf, EswitchMode::Switchdev)), EINVAL);
    fake.read(pf).expect("read");
    let vfs = fake.read(pf).expect("read").vfs;
    assert_eq!(refusal(fake.set_eswitch(pf, EswitchMode::Switchdev)), EINVAL, "bound");
    for vf in vfs {
        fake.unbind(pf, vf.addr).expect("unbound");
    }
    fake.set_eswitch(pf, EswitchMode::Switchdev).expect("now");
    assert_eq!(fake.read(pf).expect("read").eswitch, Some(EswitchMode::Switchdev));
}

#[test]
fn the_embedded_switch_of_bnxt_en_refuses_the_mode_that_it_has() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::BnxtEn), 2);
    assert_eq!(refusal(fake.set_eswitch(pf, EswitchMode::Legacy)), EINVAL);
    fake.set_eswitch(pf, EswitchMode::Switchdev).expect("with VFs too");
}

#[test]
fn igb_ixgbe_and_i40e_have_no_embedded_switch_to_set() {
    for personality in [Personality::Igb, Personality::Ixgbe, Personality::I40e] {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(personality));
        assert_eq!(fake.read(pf).expect("read").eswitch, None);
        lacking(fake.set_eswitch(pf, EswitchMode::Switchdev));
    }
}
