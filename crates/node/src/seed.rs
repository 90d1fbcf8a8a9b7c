//! What a guest is told at its first boot, as cloud-init's NoCloud data source has it: its name, who may
//! log in, and each port by its MAC, so that two ports never swap. The network is told as version 2
//! (cloud-init's documentation, "Networking config Version 2"), one key or list item a line, which the
//! small guest reads with awk.

use std::fmt::Write;

use lanekeeper_control::protocol::{DesiredPort, DesiredVm};
use lanekeeper_vmm::Seed;

use crate::error::NodeError;

/// The seed of a VM.
///
/// # Errors
/// [`NodeError::Refused`] for a name that no host or interface can have, and for a key that is none:
/// they would end up as other lines of the seed.
pub fn seed(vm: &DesiredVm) -> Result<Seed, NodeError> {
    host_name(&vm.name)?;
    let mut meta_data = format!("instance-id: vm-{}\nlocal-hostname: \"{}\"\n", vm.vm, vm.name);
    if let Some(key) = &vm.public_key {
        let key = key.trim();
        if key.is_empty() || key.chars().any(char::is_control) {
            let why = "it is not one line of authorized_keys (sshd(8))";
            return Err(NodeError::refused("public_key", key, why));
        }
        // A JSON string is one of YAML, too (YAML 1.2, 1.3).
        let _ = writeln!(meta_data, "public-keys:\n  - {}", serde_json::Value::from(key));
    }
    let user_data = vm.user_data.clone().unwrap_or_else(|| "#cloud-config\n{}\n".to_owned());
    Ok(Seed { user_data, meta_data, network_config: Some(network(&vm.ports)?) })
}

fn network(ports: &[DesiredPort]) -> Result<String, NodeError> {
    let mut text = "version: 2\nethernets:\n".to_owned();
    for port in ports {
        interface_name(&port.name)?;
        let DesiredPort { name, mac, mtu, .. } = port;
        let _ = writeln!(
            text,
            "  \"{name}\":\n    match:\n      macaddress: \"{mac}\"\n    set-name: \"{name}\"\n    mtu: {mtu}"
        );
        if !port.addresses.is_empty() {
            text.push_str("    addresses:\n");
        }
        for it in &port.addresses {
            let _ = writeln!(text, "      - \"{}/{}\"", it.address, it.prefix);
        }
        if !port.routes.is_empty() {
            text.push_str("    routes:\n");
        }
        for route in &port.routes {
            let (to, via) = (route.to, route.via);
            let _ = writeln!(
                text,
                "      - to: \"{}/{}\"\n        via: \"{via}\"",
                to.address, to.prefix
            );
        }
    }
    Ok(text)
}

/// RFC 1123, 2.1: labels of letters, digits and hyphens.
fn host_name(name: &str) -> Result<(), NodeError> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Linux has room for 64 bytes (uname(2), `__NEW_UTS_LEN`).
    if name.len() <= 64 && name.split('.').all(label) {
        return Ok(());
    }
    let why = "use a host name: up to 64 letters, digits, '-' and '.'";
    Err(NodeError::refused("name", name, why))
}

/// What Linux takes (IFNAMSIZ is 16 with the final zero) and a VM's port can be called.
fn interface_name(name: &str) -> Result<(), NodeError> {
    let fits = (1..=15).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-');
    if fits {
        return Ok(());
    }
    let why = "use 1 to 15 of a-z, 0-9 and '-', beginning with a letter";
    Err(NodeError::refused("port name", name, why))
}

#[cfg(test)]
mod tests {
    use lanekeeper_control::protocol::{PortAddress, Route};

    use super::*;
    use crate::samples::{port, vm};

    #[test]
    fn each_port_is_named_by_its_mac_with_addresses_routes_and_mtu() {
        let mut vm = vm(3);
        let to = PortAddress { address: [10, 8, 0, 0].into(), prefix: 16 };
        vm.ports[0].routes = vec![Route { to, via: [10, 9, 0, 254].into() }];
        vm.ports.push(DesiredPort { addresses: Vec::new(), ..port("rail1", 4) });
        let seed = seed(&vm).expect("sound");
        let want = r#"version: 2
ethernets:
  "rail0":
    match:
      macaddress: "02:00:00:00:01:03"
    set-name: "rail0"
    mtu: 4500
    addresses:
      - "10.9.0.3/24"
    routes:
      - to: "10.8.0.0/16"
        via: "10.9.0.254"
  "rail1":
    match:
      macaddress: "02:00:00:00:01:04"
    set-name: "rail1"
    mtu: 4500
"#;
        assert_eq!(seed.network_config.as_deref(), Some(want));
        assert_eq!(seed.meta_data, "instance-id: vm-3\nlocal-hostname: \"vm3\"\n");
        assert!(seed.user_data.starts_with("#cloud-config\n"));
    }

    #[test]
    fn a_key_is_quoted_and_user_data_is_passed_on_as_it_is() {
        let mut vm = vm(3);
        vm.public_key = Some("ssh-ed25519 AAAA me \"quoted\" # here\n".to_owned());
        vm.user_data = Some("#!/bin/sh\necho hi\n".to_owned());
        let seed = seed(&vm).expect("sound");
        assert!(
            seed.meta_data.ends_with("- \"ssh-ed25519 AAAA me \\\"quoted\\\" # here\"\n"),
            "{}",
            seed.meta_data
        );
        assert_eq!(Some(seed.user_data), vm.user_data);
    }

    #[test]
    fn names_and_keys_that_would_be_other_lines_of_the_seed_are_refused() {
        for name in ["", "a b", "a\nb", "-a", "a..b", "ä", "a: {b}", &"a".repeat(64)] {
            let mut vm = vm(3);
            vm.name = name.to_owned();
            let error = seed(&vm).expect_err(name).to_string();
            assert!(error.starts_with("name "), "{error}");
        }
        for name in ["", "Rail0", "rail 0", "a:\n", "0rail", &"r".repeat(16)] {
            let mut vm = vm(3);
            vm.ports[0].name = name.to_owned();
            assert!(seed(&vm).is_err(), "{name}");
        }
        let mut vm = vm(3);
        vm.public_key = Some("ssh-ed25519 AAAA\nlocal-hostname: other".to_owned());
        assert!(seed(&vm).is_err());
    }
}
