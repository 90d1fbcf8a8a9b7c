//! `set` and `scrub`: the NIC that was named, what was named, and nothing else.

use crate::nics::{Root, Said, softnic};

fn set(root: &Root, arguments: &[&str]) -> Said {
    softnic(&[&["set"], arguments, &["--run-root", root.text()]].concat())
}

/// What `show --json` says of VF 0.
fn settings(root: &Root, nic: &str) -> serde_json::Value {
    let said = softnic(&["show", nic, "0", "--json", "--run-root", root.text()]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    json[0]["vfs"][0]["settings"].clone()
}

#[test]
fn the_nic_of_another_name_is_never_changed() {
    let root = Root::new();
    let _nics = ["nic1", "nic2"].map(|name| root.start(name));
    let before = settings(&root, "nic2");
    let other = root.join("nic2");
    for arguments in
        [&["set", "nic1", "0", "--mtu", "9000"][..], &["scrub", "nic1", "0"], &["show", "nic1"]]
    {
        let said = softnic(&[arguments, &["--run-dir", &other]].concat());
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(said.err.contains("nic1") && said.err.contains("is softnic:nic2"), "{}", said.err);
    }
    assert_eq!(settings(&root, "nic2"), before);
    let said = softnic(&["set", "nic2", "0", "--mtu", "9000", "--run-dir", &other]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.starts_with("softnic:nic2\n"), "{}", said.out);
    assert_eq!(settings(&root, "nic2")["mtu"], 9000);
    assert_ne!(settings(&root, "nic1")["mtu"], 9000);
    let said = softnic(&["scrub", "nic1", "0", "--run-root", root.text()]);
    assert!(said.out.contains("VF 0 of softnic:nic1 is scrubbed"), "{}", said.out);
}

#[test]
fn vlan_priority_and_protocol_change_one_without_the_others() {
    let root = Root::new();
    let _nic = root.start("nic0");
    let tag = |arguments: &[&str]| {
        let said = set(&root, &[&["nic0", "0"], arguments].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let tag = &settings(&root, "nic0")["vlan"];
        (tag["id"].clone(), tag["pcp"].clone(), tag["protocol"].clone())
    };
    assert_eq!(tag(&["--vlan", "200"]), (200.into(), 3.into(), "802.1Q".into()));
    assert_eq!(tag(&["--protocol", "802.1ad"]), (200.into(), 3.into(), "802.1ad".into()));
    assert_eq!(tag(&["--pcp", "5"]), (200.into(), 5.into(), "802.1ad".into()));
    assert_eq!(tag(&["--vlan", "7"]), (7.into(), 5.into(), "802.1ad".into()));
    assert_eq!(tag(&["--vlan", "0"]), (0.into(), 0.into(), "802.1Q".into()));
    let said = set(&root, &["nic0", "0", "--pcp", "5"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("PCP 5 needs a VLAN"), "{}", said.err);
}

#[test]
fn a_vf_that_is_not_there_is_told_once_with_those_that_are() {
    let root = Root::new();
    let _nic = root.start("nic0");
    for vf in ["2", "64", "65534"] {
        for command in [&["show", "nic0", vf][..], &["scrub", "nic0", vf]] {
            let said = softnic(&[command, &["--run-root", root.text()]].concat());
            assert_eq!(said.code, Some(1), "{command:?}");
            let wanted = format!("softnic:nic0 refused: there is no VF {vf}; it has VFs 0 to 1\n");
            assert!(said.err.ends_with(&wanted), "{}", said.err);
            assert_eq!(said.err.matches("nic0").count(), 1, "{}", said.err);
        }
    }
}

#[test]
fn what_is_no_number_or_address_is_refused_in_words_of_the_command_line() {
    for (arguments, wanted) in [
        (&["set", "nic0", "x", "--mtu", "1500"][..], "'x' is not a whole number"),
        (&["set", "nic0", "0", "--max-rate", "10G"], "'10G' is not a whole number of Mb/s"),
        (&["set", "nic0", "0", "--min-rate", "fast"], "'fast' is not a whole number of Mb/s"),
        (&["set", "nic0", "0", "--addresses", "10.0.0.2/24"], "without a prefix length"),
        (&["set", "nic0", "0"], "nothing to change"),
    ] {
        let said = softnic(arguments);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(wanted) && !said.err.contains("digit"), "{}", said.err);
    }
}
