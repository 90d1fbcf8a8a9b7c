//! The files that the agent is shipped with, and their tests.

use std::path::Path;

/// The systemd unit.
const UNIT: &str = include_str!("../../dist/lanekeeper-agent.service");
/// The udev rule that keeps network managers off VFs.
pub(super) const UDEV_RULES: &str = include_str!("../../dist/10-lanekeeper.rules");
/// A snippet for NetworkManager.
pub(super) const NETWORK_MANAGER: &str =
    include_str!("../../dist/10-lanekeeper-networkmanager.conf");
/// A snippet for systemd-networkd.
pub(super) const NETWORKD: &str = include_str!("../../dist/10-lanekeeper-vf.network");

/// Where packages put the program.
const PACKAGED: &str = "/usr/bin/lanekeeper";

/// The systemd unit, which starts this program where it is.
pub(super) fn unit(program: &Path) -> String {
    // systemd takes a quoted path, and `%` for its own.
    let path = program.display().to_string().replace('%', "%%");
    let path = if path.contains(' ') { format!("\"{path}\"") } else { path };
    UNIT.replacen(PACKAGED, &path, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn is_there(tool: &str) -> bool {
        Command::new(tool).arg("--version").output().is_ok()
    }

    #[test]
    fn systemd_finds_nothing_wrong_with_the_unit() {
        if !is_there("systemd-analyze") {
            println!("systemd-analyze is not installed: the unit is not verified");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("lanekeeper-agent.service");
        std::fs::write(&file, unit(Path::new("/bin/true"))).expect("written");
        let verify = |file: &Path| {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(file);
            let output = command.output().expect("runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success(), said)
        };
        let (good, said) = verify(&file);
        let of_it: Vec<&str> = said.lines().filter(|line| line.contains("lanekeeper")).collect();
        assert!(good && of_it.is_empty(), "{said}");
        std::fs::write(&file, unit(Path::new("/no/such/program"))).expect("written");
        assert!(!verify(&file).0, "and it does look");
    }

    #[test]
    fn the_unit_starts_the_program_where_it_is() {
        let unit = unit(Path::new("/opt/lane keeper/100%"));
        assert!(unit.contains("ExecStart=\"/opt/lane keeper/100%%\" agent --config"), "{unit}");
        assert!(!unit.contains(PACKAGED));
    }

    #[test]
    fn the_unit_is_before_whoever_starts_vms_and_leaves_sysfs_writable() {
        let before: Vec<&str> =
            UNIT.lines().filter_map(|line| line.strip_prefix("Before=")).collect();
        for vms in ["libvirtd.service", "virtqemud.service", "machines.target"] {
            assert!(before.iter().any(|list| list.split(' ').any(|unit| unit == vms)), "{vms}");
        }
        for line in ["Type=notify", "Restart=always", "ProtectSystem=strict"] {
            assert!(UNIT.lines().any(|found| found == line), "{line}");
        }
        let closed = |line: &str| {
            ["ProtectKernelTunables=", "PrivateDevices=", "PrivateNetwork=", "ProtectProc="]
                .iter()
                .any(|key| line.starts_with(key))
        };
        assert!(!UNIT.lines().any(closed));
    }

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
