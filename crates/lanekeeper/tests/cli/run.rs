//! Running a NIC, and checking its file beforehand.

use std::os::unix::net::UnixStream;

use lanekeeper_softnic::driver::{VfDriver, VfOptions};

use crate::nics::{Nic, Root, SOON, eventually, softnic};

fn mtu(root: &Root) -> String {
    let said = softnic(&["show", "nic0", "0", "--json", "--run-root", root.text()]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    json[0]["vfs"][0]["settings"]["mtu"].to_string()
}

#[test]
fn what_was_set_at_run_time_is_kept_and_told_until_the_nic_is_started_afresh() {
    let root = Root::new();
    let mut nic = root.start("nic0");
    let place = ["--run-root", root.text()];
    let said = softnic(&[&["set", "nic0", "0", "--mtu", "9000"][..], &place].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    nic.restart(&[]);
    assert_eq!(mtu(&root), "9000");
    let log = nic.log();
    assert!(log.contains("kept") && log.contains("mtu") && log.contains("--fresh"), "{log}");
    nic.restart(&["--fresh"]);
    assert_eq!(mtu(&root), "1500");
    assert!(!nic.log().contains("kept"), "{}", nic.log());
    nic.restart(&[]);
    assert_eq!(mtu(&root), "1500");

    softnic(&[&["set", "nic0", "0", "--mtu", "9000"][..], &place].concat());
    let text = std::fs::read_to_string(&nic.file).expect("read");
    std::fs::write(&nic.file, text + "mtu = 4000\n").expect("written");
    nic.restart(&[]);
    assert_eq!(mtu(&root), "4000");
    assert!(nic.log().contains("dropped"), "{}", nic.log());
}

#[test]
fn a_second_front_end_of_a_vf_waits_and_the_log_says_so() {
    let root = Root::new();
    let nic = root.start("nic0");
    let socket = nic.dir.join("vf0.sock");
    let first = UnixStream::connect(&socket).expect("connects");
    eventually("the first is served", || nic.log().contains("front-end connected"));
    assert!(!nic.log().contains("another one waits"));
    let _second = UnixStream::connect(&socket).expect("connects");
    eventually("the second is told of", || nic.log().contains("another one waits"));
    drop(first);
    eventually("its turn comes", || nic.log().matches("front-end connected").count() == 2);
    assert_eq!(nic.log().matches("another one waits").count(), 1);
}

#[test]
fn a_nic_outlives_the_reader_of_its_log() {
    let root = Root::new();
    let dir = root.path().join("nic0");
    let text = format!("name = \"nic0\"\nvfs = 1\nrun_dir = \"{}\"\n", dir.display());
    let _nic = Nic::start_unread(&root.file("nic0", &text), &dir);
    let socket = dir.join("vf0.sock");
    for _ in 0..3 {
        // Each is worth two lines of log, from the thread that serves the next one, too.
        let options = VfOptions { patience: SOON, ..VfOptions::default() };
        VfDriver::connect(&socket, options).expect("connects");
    }
    let said = softnic(&["show", "nic0", "--run-root", root.text()]);
    assert!(said.out.starts_with("softnic:nic0: 1 VF, uplink none"), "{}", said.out);
}

#[test]
fn a_checked_file_is_shown_as_the_nic_would_have_it() {
    let root = Root::new();
    let text = "name = \"nic0\"\nvfs = 2\ncpus = [0]\n[uplink]\nkind = \"packet\"\n\
        interface = \"lk-none\"\n[vf.1]\nmac = \"02:00:00:00:00:01\"\nvlan = { id = 100 }\n\
        max_rate = 10000\naddresses = [\"10.0.0.2\"]\n";
    let file = root.file("nic0", text);
    let said = softnic(&["--check", file.to_str().expect("text")]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for wanted in [
        "is well-formed",
        "softnic:nic0: 2 VFs, uplink packet sockets on lk-none, 1 worker on core 0",
        "/run/lanekeeper/softnic/nic0",
        "02:00:00:00:00:01",
        "100 pcp 0",
        "10.0.0.2",
        "0..10000",
        "disable",
    ] {
        assert!(said.out.contains(wanted), "{wanted}: {}", said.out);
    }
    assert!(said.err.contains("warning") && said.err.contains("'lk-none'"), "{}", said.err);

    let file = root.file("lo", &text.replace("lk-none", "lo"));
    let said = softnic(&["--check", file.to_str().expect("text")]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}

#[test]
fn a_wrong_file_is_refused_with_its_name_and_line() {
    let root = Root::new();
    for (text, wanted) in [
        ("name = \"nic0\"\nvfs = 0\n", "line 2: vfs: 0 is out of range; use 1 to 64"),
        ("name = \"nic0\"\nvfs = 1\nrun_dir = \"here\"\n", "line 3: run_dir: 'here' is relative"),
    ] {
        let file = root.file("wrong", text);
        let file = file.to_str().expect("text");
        for option in ["--check", "--config"] {
            let said = softnic(&[option, file]);
            assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
            assert!(said.err.contains(&format!("{file}: {wanted}")), "{}", said.err);
        }
    }
}

#[test]
fn the_command_alone_shows_what_there_is() {
    let said = softnic(&[]);
    assert_eq!(said.code, Some(2));
    for wanted in ["show", "set", "scrub", "--config", "--check", "--fresh"] {
        assert!(said.err.contains(wanted), "{wanted}: {}", said.err);
    }
}
