//! The command line of the cloud against a server in a process of its own: what is said, on which
//! stream, with which exit code. The server has no hosts, so that no VM finds room.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::nics::{Said, lanekeeper};

/// A server, and a home directory of one who uses it.
pub(crate) struct Cloud {
    process: Child,
    pub(crate) url: String,
    dir: TempDir,
}

impl Drop for Cloud {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command of somebody without any setting, whose home this is.
pub(crate) fn at_home(home: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = lanekeeper();
    command.args(arguments).env("HOME", home).stdin(Stdio::null());
    for name in ["SERVER", "AUTHORITY", "API_KEY", "ORGANIZATION"] {
        command.env_remove(format!("LANEKEEPER_{name}"));
    }
    command.env_remove("XDG_CONFIG_HOME");
    command
}

impl Cloud {
    pub(crate) fn start() -> Self {
        let dir = TempDir::new().expect("a folder");
        let mut process = lanekeeper()
            .args(["server", "--listen", "127.0.0.1:0", "--data"])
            .arg(dir.path().join("data"))
            .env("LANEKEEPER_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let out = BufReader::new(process.stdout.take().expect("its output")).lines();
        // Address, authority, key: a server whose output is closed before ends.
        let said: Vec<String> = out.take(3).map(|line| line.expect("read")).collect();
        let url = said[0].strip_prefix("serving ").expect("its address").to_owned();
        Self { process, url, dir }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).to_str().expect("text").to_owned()
    }

    /// A command of the first operator's.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let key = std::fs::read_to_string(self.file("data/operator.key")).expect("a key");
        let mut command = at_home(self.dir.path(), arguments);
        command
            .env("LANEKEEPER_SERVER", &self.url)
            .env("LANEKEEPER_AUTHORITY", self.file("data/authority.crt"))
            .env("LANEKEEPER_API_KEY", key.trim());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        self.command(arguments).output().expect("runs").into()
    }

    /// What a command that succeeds prints.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}{}", said.out, said.err);
        said.out
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let out = self.done(&[arguments, &["--json"]].concat());
        serde_json::from_str(&out).expect("JSON")
    }

    /// What is said against a command that is refused.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{arguments:?}: {}", said.err);
        said.err
    }

    /// A region, a flavor, an image and an environment.
    pub(crate) fn with_offer() -> Self {
        let cloud = Self::start();
        for arguments in [
            "region create here --fabric f0 --vlans 100-199 --addresses 10.64.0.0/12",
            "flavor create small --vcpus 2 --ram 512 --vfs 2 --vf-rate 1000 --label for=tests",
            "image create guest --builtin --os debian --os-version 12",
            "environment create lab --region here",
        ] {
            cloud.done(&words(arguments));
        }
        cloud
    }
}

pub(crate) fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

const VM: &str = "--environment lab --flavor small --image guest";

fn vm<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["vm", "create", name], &words(VM)[..], more].concat()
}

#[test]
fn what_is_made_is_listed_and_shown_by_name_and_by_id_and_deleted() {
    let cloud = Cloud::with_offer();
    std::fs::write(cloud.file("key.pub"), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJq me\n")
        .expect("written");
    for (kind, create) in [
        ("network", "network create blue --environment lab --rails 2 --mtu 9000".to_owned()),
        ("keypair", format!("keypair import blue {} --environment lab", cloud.path("key.pub"))),
        ("flavor", "flavor create blue --vcpus 1 --ram 256".to_owned()),
        ("image", "image create blue --file disk.qcow2 --format qcow2".to_owned()),
        (
            "region",
            "region create blue --fabric f1 --vlans 1-9 --addresses 10.32.0.0/16".to_owned(),
        ),
        ("organization", "organization create blue --description Ours".to_owned()),
        ("environment", "environment create blue --region here".to_owned()),
    ] {
        let made = cloud.json(&words(&create));
        let id = made["id"].to_string();
        assert!(cloud.done(&[kind, "list"]).contains("blue"), "{kind}");
        let shown = cloud.json(&[kind, "show", "blue"]);
        assert_eq!((&shown["id"], &shown["name"]), (&made["id"], &"blue".into()), "{kind}");
        assert_eq!(cloud.json(&[kind, "show", &id])["id"], made["id"]);
        let said = cloud.done(&[kind, "delete", "blue"]);
        assert!(said.contains("'blue' is deleted"), "{said}");
        let gone = cloud.refused(&[kind, "show", "blue"]);
        assert!(gone.contains("there is no") && gone.contains("'blue'"), "{gone}");
    }
}

#[test]
fn a_list_is_a_table_and_as_json_what_the_api_has() {
    let cloud = Cloud::with_offer();
    let table = cloud.done(&["flavor", "list"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].contains("NAME") && lines[0].contains("VCPUS"), "{table}");
    assert!(lines[1].contains("small") && lines[1].contains("2 x 1000 Mb/s"), "{table}");
    let listed = cloud.json(&["flavor", "list"]);
    assert_eq!(listed["items"][0]["vfs"]["rate_mbps"], 1000);
    assert_eq!(listed["items"][0]["labels"]["for"], "tests");
}

#[test]
fn subnets_are_made_on_a_network_by_its_name() {
    let cloud = Cloud::with_offer();
    let network = cloud.json(&words("network create blue --environment lab"));
    let arguments = "subnet create --network blue --cidr 10.64.200.0/24 --rail 3";
    let subnet = cloud.json(&words(arguments));
    assert_eq!((&subnet["network"], &subnet["rail"]), (&network["id"], &3.into()));
    assert!(cloud.done(&["subnet", "list"]).contains("10.64.200.0/24"));
    cloud.done(&["subnet", "delete", &subnet["id"].to_string()]);
    assert!(!cloud.done(&["subnet", "list"]).contains("10.64.200.0/24"));
}

#[test]
fn a_vm_that_finds_no_room_fails_the_wait_in_the_servers_words_and_can_be_deleted() {
    let cloud = Cloud::with_offer();
    let said = cloud.run(&vm("w1", &["--wait", "--timeout", "30"]));
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{}", said.err);
    let shown = cloud.json(&["vm", "show", "w1"]);
    assert_eq!(shown["status"], "ERROR");
    let fault = shown["fault"]["message"].as_str().expect("a fault");
    assert!(said.err.contains(&format!("VM 'w1' ({}) is in ERROR: {fault}", shown["id"])));
    let table = cloud.done(&["vm", "show", "w1"]);
    assert!(table.contains("rail0") && table.contains("small"), "{table}");
    let said = cloud.done(&["vm", "delete", "w1", "--wait", "--timeout", "30"]);
    assert_eq!(said, "VM 'w1' is deleted\n");
    assert!(cloud.refused(&["vm", "show", "w1"]).contains("there is no VM 'w1'"));
}

#[test]
fn a_group_that_finds_no_room_fails_the_wait_and_names_the_vm() {
    let cloud = Cloud::with_offer();
    let create = [&["group", "create", "g"], &words(VM)[..], &words("--count 2 --wait")].concat();
    let said = cloud.run(&create);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("has failed: VM 'g-"), "{}", said.err);
    let table = cloud.done(&["group", "show", "g"]);
    assert!(table.contains("compact, preferred") && table.contains("ERROR"), "{table}");
    assert_eq!(cloud.done(&["group", "delete", "g", "--wait"]), "group 'g' is deleted\n");
}

#[test]
fn what_the_server_refuses_is_said_as_it_says_it() {
    let cloud = Cloud::with_offer();
    for (arguments, wanted) in [
        ("environment create lab --region here", "there is a environment 'lab' already"),
        ("environment create lab2 --region there", "there is no region 'there'"),
        ("vm stop nobody", "there is no VM 'nobody'"),
        ("vm stop 4711", "there is no VM 4711"),
        ("network create n --environment lab --mtu 100", "mtu '100'"),
        ("fleet drain h1", "h1"),
    ] {
        let said = cloud.refused(&words(arguments));
        assert!(said.starts_with("lanekeeper: ") && said.contains(wanted), "{said}");
    }
}

#[test]
fn a_name_that_two_have_is_refused_with_their_ids() {
    let cloud = Cloud::with_offer();
    cloud.done(&words("environment create other --region here"));
    let one = cloud.json(&vm("w1", &[]));
    let create = "vm create w1 --environment other --flavor small --image guest";
    let two = cloud.json(&words(create));
    let said = cloud.refused(&["vm", "show", "w1"]);
    assert!(said.contains(&format!("by its id: {}, {}", one["id"], two["id"])), "{said}");
    assert_eq!(cloud.json(&["vm", "show", &two["id"].to_string()])["id"], two["id"]);
}

#[test]
fn what_is_no_value_is_a_wrong_command_line_and_never_sent() {
    let home = TempDir::new().expect("a folder");
    for (arguments, wanted) in [
        ("network create n --environment e --profile fast", "roce, ethernet, infiniband"),
        ("network create n --environment e --cidr ten", "'ten' for '--cidr"),
        ("vm create n --environment e --flavor f --image i --network blue=two", "'two'"),
        ("region create r --fabric f --addresses 10.0.0.0/8 --vlans 5", "no range of VLANs"),
        ("organization quota acme --vms many", "'many' is neither"),
        ("vm start n --timeout 5", "--wait"),
        ("vm list", "no server is named"),
        ("vm list --context lab", "there is no context 'lab'"),
    ] {
        let said: Said = at_home(home.path(), &words(arguments)).output().expect("runs").into();
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{arguments}: {}", said.err);
        assert!(said.err.contains(wanted), "{}", said.err);
    }
}

#[test]
fn a_tenant_works_with_a_key_of_its_own_that_is_shown_once() {
    let cloud = Cloud::with_offer();
    cloud.done(&words("organization create acme"));
    let create = words("key create ci --role member --organization acme");
    let said = cloud.run(&create);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let secret = said.out.lines().last().expect("a key").to_owned();
    assert!(secret.starts_with("lk_"), "{}", said.out);
    let listed = cloud.run(&words("key list --json --organization acme"));
    assert!(listed.out.contains("\"ci\"") && !listed.out.contains(&secret), "{}", listed.out);
    let tenant = |arguments: &str| -> Said {
        let mut command = cloud.command(&words(arguments));
        command.env("LANEKEEPER_API_KEY", &secret).output().expect("runs").into()
    };
    let said = tenant("environment create own --region here --json");
    assert!(said.out.contains("\"acme\""), "{}{}", said.out, said.err);
    assert!(!cloud.done(&["environment", "list"]).contains("own"));
    let said = tenant("key list");
    assert!(said.code == Some(1) && said.err.contains("role"), "{}", said.err);
    cloud.done(&words("key delete ci --organization acme"));
    let said = tenant("environment list");
    assert!(said.code == Some(1) && !said.err.contains(&secret), "{}", said.err);
}

#[test]
fn limits_that_are_not_named_stay_as_they_are() {
    let cloud = Cloud::with_offer();
    cloud.done(&words("organization create acme"));
    cloud.done(&words("organization quota acme --vms 3 --vfs 8"));
    let now = cloud.json(&words("organization quota acme --vfs none --ram 4096"));
    assert_eq!((&now["limits"]["vms"], &now["limits"]["vfs"]), (&3.into(), &Value::Null));
    assert_eq!(now["limits"]["ram_mib"], 4096);
    let table = cloud.done(&words("organization quota --organization acme"));
    assert!(table.contains("memory, MiB") && table.contains("4096"), "{table}");
}

#[test]
fn events_are_listed_and_followed() {
    let cloud = Cloud::with_offer();
    cloud.done(&vm("w1", &[]));
    assert!(cloud.done(&["event", "list"]).contains("it is asked for"));
    let mut following = cloud
        .command(&words("event list --follow --json"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(following.stdout.take().expect("its output")).lines();
    let mut next = || -> Value {
        serde_json::from_str(&lines.next().expect("a line").expect("read")).expect("JSON")
    };
    let first = next();
    assert_eq!(first["reason"], "created");
    let new = cloud.json(&vm("w2", &[]));
    let mut seen = first["id"].as_u64();
    while {
        let event = next();
        assert!(event["id"].as_u64() > seen, "each once, in order: {event}");
        seen = event["id"].as_u64();
        event["resource"] != new["id"]
    } {}
    following.kill().expect("ended");
    following.wait().expect("ended");
}

#[test]
fn a_token_for_a_host_is_printed_alone() {
    let cloud = Cloud::with_offer();
    let said = cloud.run(&["fleet", "token", "h1"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(said.out.lines().count(), 1, "{}", said.out);
    assert!(said.err.contains("host h1"), "{}", said.err);
    assert!(cloud.done(&["fleet", "list"]).contains("VCPUS"));
}
