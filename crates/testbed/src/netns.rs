//! Emulated hosts: network namespaces with veth pairs, bridges and taps, made with iproute2.
//!
//! A [`Lab`] owns all it makes and removes it when dropped; [`Lab::tear_down`] does the same and
//! tells what could not be removed. Names begin with `lk-` and the process number, so that
//! [`sweep`] can remove what a killed process has left behind.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::packages::last_lines;

/// Where iproute2 keeps a file for each namespace (ip-netns(8)).
const NAMESPACES: &str = "/run/netns";

/// Why an emulated network could not be made, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// iproute2 is not there.
    #[error("ip could not be run: {0}; install the package iproute2")]
    NoTool(std::io::Error),
    /// iproute2 refused.
    #[error("ip {command} failed: {why}")]
    Refused {
        /// What was asked.
        command: String,
        /// Its last lines.
        why: String,
    },
    /// The namespace could not be entered.
    #[error("namespace {name} could not be entered: {error}; only root may")]
    Enter {
        /// Which.
        name: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A kernel setting could not be made.
    #[error("{path}: {error}")]
    Setting {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Some of a lab is still there.
    #[error("not everything was removed: {0}")]
    LeftBehind(String),
}

/// A network namespace, by handle. The [`Lab`] it came from removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Its name as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it: what a program opens to enter it.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// A command that will run in the namespace, through `ip netns exec`.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Run a closure in the namespace: on a thread of its own, which ends with it. Sockets and taps
    /// it opens belong to the namespace for as long as they live.
    ///
    /// # Errors
    /// [`NetnsError::Enter`].
    ///
    /// # Panics
    /// When the closure does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let enter = || -> std::io::Result<()> {
            let file = File::open(self.path())?;
            Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
        };
        let entered = std::thread::scope(|scope| scope.spawn(|| enter().map(|()| work())).join());
        match entered {
            Ok(result) => {
                result.map_err(|error| NetnsError::Enter { name: self.name.clone(), error })
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// `ip -n NAME ...`, for what has no method here.
    ///
    /// # Errors
    /// [`NetnsError::NoTool`] and [`NetnsError::Refused`].
    pub fn ip(&self, arguments: &[&str]) -> Result<(), NetnsError> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments);
        ip(&all)
    }

    /// A bridge that is up and learns at once (no listening phase), asks for no group membership
    /// and sends no IPv6 of its own. `mtu` in bytes.
    ///
    /// # Errors
    /// As [`Self::ip`], and [`NetnsError::Setting`].
    pub fn add_bridge(&self, name: &str, mtu: u32) -> Result<(), NetnsError> {
        let mtu = mtu.to_string();
        self.ip(&[
            "link",
            "add",
            name,
            "mtu",
            &mtu,
            "type",
            "bridge",
            "forward_delay",
            "0",
            "mcast_snooping",
            "0",
        ])?;
        self.silence(name)?;
        self.ip(&["link", "set", name, "up"])
    }

    /// A persistent tap for one VM (with the virtio-net header, so that offloads cross it), up and
    /// in a bridge. `mtu` in bytes.
    ///
    /// # Errors
    /// As [`Self::ip`], and [`NetnsError::Setting`].
    pub fn add_tap(&self, name: &str, bridge: &str, mtu: u32) -> Result<(), NetnsError> {
        self.ip(&["tuntap", "add", "dev", name, "mode", "tap", "vnet_hdr"])?;
        self.silence(name)?;
        let mtu = mtu.to_string();
        self.ip(&["link", "set", name, "mtu", &mtu, "master", bridge, "up"])
    }

    /// Give an interface an address, as in `10.0.0.1/24`.
    ///
    /// # Errors
    /// As [`Self::ip`].
    pub fn add_address(&self, interface: &str, address: &str) -> Result<(), NetnsError> {
        self.ip(&["address", "add", address, "dev", interface])
    }

    /// Bring an interface up.
    ///
    /// # Errors
    /// As [`Self::ip`].
    pub fn set_up(&self, interface: &str) -> Result<(), NetnsError> {
        self.ip(&["link", "set", interface, "up"])
    }

    /// Set an interface's MTU, in bytes.
    ///
    /// # Errors
    /// As [`Self::ip`].
    pub fn set_mtu(&self, interface: &str, mtu: u32) -> Result<(), NetnsError> {
        self.ip(&["link", "set", interface, "mtu", &mtu.to_string()])
    }

    /// No IPv6 on an interface: no neighbour or listener reports of its own among the frames that
    /// a test counts.
    ///
    /// # Errors
    /// [`NetnsError::Setting`] and [`NetnsError::Enter`].
    pub fn silence(&self, interface: &str) -> Result<(), NetnsError> {
        let path = PathBuf::from(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"));
        // /proc/sys/net shows the namespace of the thread that opens it. Without IPv6 in the
        // kernel there is no such file and nothing to switch off.
        let write = || if path.exists() { std::fs::write(&path, "1") } else { Ok(()) };
        self.run(write)?.map_err(|error| NetnsError::Setting { path: path.clone(), error })
    }
}

/// Several namespaces and what joins them, removed together.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    namespaces: Vec<Namespace>,
}

impl Lab {
    /// A lab with nothing in it. `label` becomes part of every name: keep it short.
    pub fn new(label: &str) -> Self {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        Self {
            prefix: format!("lk-{}-{number}-{label}", std::process::id()),
            namespaces: Vec::new(),
        }
    }

    /// A lab whose names begin with `prefix` instead, for one that may outlive this process:
    /// [`sweep`] leaves it alone.
    pub fn named(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), namespaces: Vec::new() }
    }

    /// Leave everything standing; it is then another's to remove.
    pub fn keep(mut self) {
        self.namespaces.clear();
    }

    /// A new namespace with its loopback interface up.
    ///
    /// # Errors
    /// [`NetnsError::NoTool`] and [`NetnsError::Refused`].
    pub fn namespace(&mut self, label: &str) -> Result<Namespace, NetnsError> {
        let namespace = Namespace { name: format!("{}-{label}", self.prefix) };
        ip(&["netns", "add", &namespace.name])?;
        self.namespaces.push(namespace.clone());
        namespace.set_up("lo")?;
        Ok(namespace)
    }

    /// Join two namespaces with a cable: a veth pair with an end in each, both up, both without
    /// IPv6. `mtu` in bytes. It goes with either namespace.
    ///
    /// # Errors
    /// [`NetnsError`].
    pub fn cable(
        &self,
        (left, left_end): (&Namespace, &str),
        (right, right_end): (&Namespace, &str),
        mtu: u32,
    ) -> Result<(), NetnsError> {
        let mtu = mtu.to_string();
        left.ip(&[
            "link",
            "add",
            left_end,
            "mtu",
            &mtu,
            "type",
            "veth",
            "peer",
            "name",
            right_end,
            "mtu",
            &mtu,
            "netns",
            &right.name,
        ])?;
        for (namespace, end) in [(left, left_end), (right, right_end)] {
            namespace.silence(end)?;
            namespace.set_up(end)?;
        }
        Ok(())
    }

    /// Remove everything, and tell what could not be removed. The kernel keeps a namespace for as
    /// long as a process is in it: end those first.
    ///
    /// # Errors
    /// [`NetnsError::LeftBehind`].
    pub fn tear_down(mut self) -> Result<(), NetnsError> {
        self.remove()
    }

    fn remove(&mut self) -> Result<(), NetnsError> {
        let failed: Vec<String> = self
            .namespaces
            .drain(..)
            .filter_map(|namespace| ip(&["netns", "delete", &namespace.name]).err())
            .map(|error| error.to_string())
            .collect();
        if failed.is_empty() { Ok(()) } else { Err(NetnsError::LeftBehind(failed.join("; "))) }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("lab {}: {error}", self.prefix);
        }
    }
}

/// Remove the namespaces that labs of processes no longer alive have left; gives back their names.
///
/// # Errors
/// [`NetnsError::NoTool`] and [`NetnsError::Refused`].
pub fn sweep() -> Result<Vec<String>, NetnsError> {
    let names: Vec<String> = std::fs::read_dir(NAMESPACES)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
        .collect();
    for name in &names {
        ip(&["netns", "delete", name])?;
    }
    Ok(names)
}

/// The process a lab's namespace belongs to.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("lk-")?.split('-').next()?.parse().ok()
}

fn ip(arguments: &[&str]) -> Result<(), NetnsError> {
    let output = Command::new("ip").args(arguments).output().map_err(NetnsError::NoTool)?;
    if output.status.success() {
        return Ok(());
    }
    Err(NetnsError::Refused { command: arguments.join(" "), why: last_lines(&output) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exists(namespace: &Namespace) -> bool {
        namespace.path().exists()
    }

    #[test]
    fn a_cable_carries_packets_between_two_namespaces() {
        let mut lab = Lab::new("cable");
        let (a, b) = (lab.namespace("a").expect("made"), lab.namespace("b").expect("made"));
        lab.cable((&a, "wire0"), (&b, "wire0"), 9000).expect("joined");
        a.add_address("wire0", "10.9.0.1/24").expect("set");
        b.add_address("wire0", "10.9.0.2/24").expect("set");
        let heard = b
            .run(|| std::net::UdpSocket::bind("10.9.0.2:4000").expect("its own address"))
            .expect("enters");
        heard.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("set");
        a.run(|| {
            let socket = std::net::UdpSocket::bind("10.9.0.1:0").expect("its own address");
            // 8,000 bytes cross unfragmented at an MTU of 9,000.
            socket.send_to(&[7; 8000], "10.9.0.2:4000").expect("sent");
        })
        .expect("enters");
        let mut bytes = [0; 9000];
        assert_eq!(heard.recv(&mut bytes).expect("arrives"), 8000);
    }

    #[test]
    fn a_tap_is_in_its_bridge_and_up() {
        let mut lab = Lab::new("tap");
        let host = lab.namespace("host").expect("made");
        host.add_bridge("br0", 9000).expect("made");
        host.add_tap("tap0", "br0", 9000).expect("made");
        let output = host.command("cat").arg("/sys/class/net/tap0/mtu").output().expect("runs");
        // `ip netns exec` mounts a sysfs that shows the namespace.
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "9000");
        let output = host.command("ls").arg("/sys/class/net/br0/brif").output().expect("runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "tap0");
    }

    #[test]
    fn a_lab_leaves_nothing_behind() {
        let mut lab = Lab::new("gone");
        let kept = lab.namespace("a").expect("made");
        assert!(exists(&kept));
        drop(lab);
        assert!(!exists(&kept));
    }

    #[test]
    fn a_kept_lab_stays_and_is_not_swept() {
        let mut lab = Lab::named(format!("lkkept{}", std::process::id()));
        let kept = lab.namespace("a").expect("made");
        lab.keep();
        sweep().expect("sweeps");
        assert!(exists(&kept));
        ip(&["netns", "delete", kept.name()]).expect("removed");
    }

    #[test]
    fn tearing_down_tells_what_was_not_removed() {
        let mut lab = Lab::new("left");
        let namespace = lab.namespace("a").expect("made");
        ip(&["netns", "delete", namespace.name()]).expect("removed behind the lab's back");
        let error = lab.tear_down().expect_err("it is gone already");
        assert!(error.to_string().contains(namespace.name()), "{error}");
    }

    #[test]
    fn a_refusal_names_the_command_and_the_reason() {
        let mut lab = Lab::new("no");
        let namespace = lab.namespace("a").expect("made");
        let error = namespace.set_up("nothing0").expect_err("no such interface").to_string();
        assert!(error.contains("link set nothing0 up") && error.contains("Cannot find"), "{error}");
    }

    #[test]
    fn only_what_a_dead_process_left_is_swept() {
        let mut lab = Lab::new("alive");
        let alive = lab.namespace("a").expect("made");
        // Above the largest process number Linux gives out (proc(5), pid_max).
        let left = Namespace { name: "lk-4194305-0-dead".to_owned() };
        ip(&["netns", "add", left.name()]).expect("made");
        assert!(sweep().expect("sweeps").contains(&left.name));
        assert!(!exists(&left) && exists(&alive));
    }

    #[test]
    fn names_of_others_have_no_owner() {
        assert_eq!(owner("lk-12-0-a"), Some(12));
        assert_eq!(owner("lk-name"), None);
        assert_eq!(owner("blue"), None);
    }
}
