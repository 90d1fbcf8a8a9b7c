//! The systemd units that the program is shipped with, and their tests.

use std::path::Path;

/// `lanekeeper agent`.
pub(crate) const AGENT: &str = include_str!("../dist/lanekeeper-agent.service");
/// `lanekeeper agent vms`.
pub(crate) const VMS: &str = include_str!("../dist/lanekeeper-vms.service");
/// `lanekeeper server`.
pub(crate) const SERVER: &str = include_str!("../dist/lanekeeper-server.service");

/// Where packages put the program.
const PACKAGED: &str = "/usr/bin/lanekeeper";

/// A unit that starts this program where it is.
pub(crate) fn here(unit: &str) -> String {
    placed(unit, &std::env::current_exe().unwrap_or_else(|_| PACKAGED.into()))
}

fn placed(unit: &str, program: &Path) -> String {
    // systemd takes a quoted path, and `%` for its own.
    let path = program.display().to_string().replace('%', "%%");
    let path = if path.contains(' ') { format!("\"{path}\"") } else { path };
    unit.replacen(PACKAGED, &path, 1)
}

/// Whether this machine has a tool that a test asks.
#[cfg(test)]
pub(crate) fn is_there(tool: &str) -> bool {
    std::process::Command::new(tool).arg("--version").output().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const ALL: [(&str, &str); 3] = [
        ("lanekeeper-agent.service", AGENT),
        ("lanekeeper-vms.service", VMS),
        ("lanekeeper-server.service", SERVER),
    ];

    fn verified(file: &Path) -> (bool, String) {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(file);
        let output = command.output().expect("runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    #[test]
    fn systemd_finds_nothing_wrong_with_a_unit() {
        if !is_there("systemd-analyze") {
            println!("systemd-analyze is not installed: the units are not verified");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        for (name, unit) in ALL {
            let file = folder.path().join(name);
            std::fs::write(&file, placed(unit, Path::new("/bin/true"))).expect("written");
            let (good, said) = verified(&file);
            let of_it: Vec<&str> = said.lines().filter(|line| line.contains(name)).collect();
            assert!(good && of_it.is_empty(), "{said}");
            std::fs::write(&file, placed(unit, Path::new("/no/such/program"))).expect("written");
            assert!(!verified(&file).0, "and it does look");
        }
    }

    #[test]
    fn a_unit_starts_the_program_where_it_is() {
        let words = [" agent --config", " agent vms", " server --listen"];
        for ((_, unit), words) in ALL.iter().zip(words) {
            let unit = placed(unit, Path::new("/opt/lane keeper/100%"));
            let start = format!("ExecStart=\"/opt/lane keeper/100%%\"{words}");
            assert!(unit.contains(&start), "{unit}");
            assert!(!unit.contains(PACKAGED));
        }
    }

    #[test]
    fn vms_outlive_the_agent_that_started_them() {
        assert!(VMS.lines().any(|line| line == "KillMode=process"));
        for unit in [VMS, AGENT] {
            assert!(unit.lines().any(|line| line == "RuntimeDirectoryPreserve=yes"), "{unit}");
        }
    }

    #[test]
    fn the_agents_unit_is_before_whoever_starts_vms_and_leaves_sysfs_writable() {
        let before: Vec<&str> =
            AGENT.lines().filter_map(|line| line.strip_prefix("Before=")).collect();
        for vms in ["libvirtd.service", "virtqemud.service", "machines.target"] {
            assert!(before.iter().any(|list| list.split(' ').any(|unit| unit == vms)), "{vms}");
        }
        for line in ["Type=notify", "Restart=always", "ProtectSystem=strict"] {
            assert!(AGENT.lines().any(|found| found == line), "{line}");
        }
        let closed = |line: &str| {
            ["ProtectKernelTunables=", "PrivateDevices=", "PrivateNetwork=", "ProtectProc="]
                .iter()
                .any(|key| line.starts_with(key))
        };
        assert!(!AGENT.lines().any(closed));
    }
}
