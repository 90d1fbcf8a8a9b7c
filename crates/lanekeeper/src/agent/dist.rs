//! The files that the agent is shipped with, and their tests.

/// The udev rule that keeps network managers off VFs.
pub(super) const UDEV_RULES: &str = include_str!("../../dist/10-lanekeeper.rules");
/// A snippet for NetworkManager.
pub(super) const NETWORK_MANAGER: &str =
    include_str!("../../dist/10-lanekeeper-networkmanager.conf");
/// A snippet for systemd-networkd.
pub(super) const NETWORKD: &str = include_str!("../../dist/10-lanekeeper-vf.network");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::is_there;
    use std::process::Command;

    /// What the rules set for an event, as udev(7) reads them. Only what these rules use is known.
    fn marked(action: &str, subsystem: &str, physfn: bool, port: &str) -> bool {
        let glob = |pattern: &str| match pattern {
            "pf[0-9]*vf[0-9]*" => port.starts_with("pf") && port.contains("vf"),
            "c[0-9]*pf[0-9]*vf[0-9]*" => port.starts_with('c') && port.contains("vf"),
            other => panic!("a pattern that the test does not know: {other}"),
        };
        let (mut vf, mut unmanaged, mut skip) = (false, false, false);
        for line in UDEV_RULES.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let mut holds = true;
            for part in line.split(", ") {
                let quoted = part.split('"').nth(1).expect("a value");
                let key = part.split(['=', '!']).next().expect("a key");
                let equal = part.contains("==");
                match key {
                    "LABEL" => skip = false,
                    _ if skip || !holds => {}
                    "ACTION" => holds = equal == (quoted == action),
                    "SUBSYSTEM" => holds = equal == (quoted == subsystem),
                    "TEST" => holds = physfn && quoted == "device/physfn",
                    "ATTR{phys_port_name}" => holds = glob(quoted),
                    "ENV{ID_LANEKEEPER_VF}" if equal => holds = vf,
                    "ENV{ID_LANEKEEPER_VF}" => vf = true,
                    "ENV{NM_UNMANAGED}" => unmanaged = quoted == "1",
                    "ENV{ID_NET_MANAGED_BY}" => assert_eq!(quoted, "lanekeeper"),
                    "GOTO" => skip = true,
                    other => panic!("a key that the test does not know: {other}"),
                }
            }
        }
        unmanaged
    }

    #[test]
    fn a_vf_is_unmanaged_after_add_change_and_move() {
        // openshift/sriov-network-operator#414: after a move (a rename) DHCP ran on VFs.
        for action in ["add", "change", "move", "online"] {
            assert!(marked(action, "net", true, ""), "{action}");
            assert!(marked(action, "net", false, "pf0vf5"), "{action}: a representor");
            assert!(marked(action, "net", false, "c1pf0vf5"), "{action}: a DPU's representor");
        }
    }

    #[test]
    fn a_pf_and_what_is_no_interface_stay_as_they_are() {
        assert!(!marked("add", "net", false, "p0"));
        assert!(!marked("add", "net", false, ""));
        assert!(!marked("add", "pci", true, ""));
        assert!(!marked("remove", "net", true, ""));
    }

    #[test]
    fn udev_takes_every_line_of_the_rules() {
        let can = Command::new("unshare").args(["--mount", "true"]).status();
        if !is_there("udevadm") || !can.is_ok_and(|status| status.success()) {
            println!("udevadm or unshare is not to be used here: the rules are not parsed");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let said = |rules: &str| {
            std::fs::write(folder.path().join("10-lanekeeper.rules"), rules).expect("written");
            // In a mount namespace of its own, so that this machine's udev does not see them.
            let script = "mkdir -p /run/udev/rules.d && mount --bind \"$0\" /run/udev/rules.d && \
                          udevadm test --action=move /sys/class/net/lo 2>&1";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script]).arg(folder.path());
            command.env("SYSTEMD_LOG_LEVEL", "debug");
            let output = command.output().expect("runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let of_it = text.lines().filter(|line| line.contains("10-lanekeeper.rules:"));
            let of_it: Vec<String> = of_it.map(str::to_owned).collect();
            (text.contains("10-lanekeeper.rules"), of_it)
        };
        let (was_read, amiss) = said(UDEV_RULES);
        assert!(was_read && amiss.is_empty(), "{amiss:?}");
        let (_, amiss) = said(&UDEV_RULES.replacen("SUBSYSTEM!=", "SUBSISTEM!=", 1));
        assert!(!amiss.is_empty(), "and it does look");
    }
}
