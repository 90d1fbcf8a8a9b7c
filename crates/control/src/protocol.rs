//! What a server and a host's agent say to each other, as JSON over mutual TLS.
//!
//! An agent is asked nothing and told everything: it fetches what its host shall have
//! ([`Desired`]), reports what its host is ([`HostReport`](crate::placement::HostReport)) and what
//! became of each VM ([`VmReport`]), and keeps its host's lease alive. It sees its own host only: which
//! host that is comes from its certificate, never from what it says.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `POST /v1/agent/enrol` (no certificate yet) | [`Enrol`] | [`Enrolled`] |
//! | `PUT /v1/agent/inventory` | [`HostReport`](crate::placement::HostReport) | 204 |
//! | `POST /v1/agent/heartbeat` | [`Heartbeat`] | [`HeartbeatAnswer`] |
//! | `GET /v1/agent/desired?after=REVISION&wait=SECONDS` | | [`Desired`]; waits for a change after `after` |
//! | `PUT /v1/agent/vms` | [`VmReports`] | 204 |
//!
//! Errors are `application/problem+json` (RFC 9457), as everywhere.

use std::fmt;
use std::net::IpAddr;

use lanekeeper_model::{MacAddr, Mbps, Mtu, VlanTag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::{HostName, RegionName};
use crate::placement::VmPlace;

/// A VM's id: unique among all VMs there ever were.
pub type VmId = u64;

/// The first call of an agent: a token that is good once, and a request for a certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrol {
    /// The one-time token that an operator made for this host.
    pub token: String,
    /// A certificate signing request (PKCS #10, PEM). Only its public key is taken from it: the name
    /// in the certificate is that of the token's host.
    pub csr: String,
}

/// Without the token.
impl fmt::Debug for Enrol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enrol").field("csr", &self.csr).finish_non_exhaustive()
    }
}

/// What an agent needs from then on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolled {
    /// The host it is.
    pub host: HostName,
    /// Where that host is.
    pub region: RegionName,
    /// Its certificate (PEM), with which it proves to be that host.
    pub certificate: String,
    /// The certificate of the authority that the servers' certificates are signed by (PEM).
    pub authority: String,
}

/// A sign of life.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The agent's version.
    pub version: String,
    /// The revision of [`Desired`] it works on, to see how far behind it is.
    pub revision: u64,
}

/// What a sign of life is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatAnswer {
    /// Seconds until the host counts as lost if no other comes. An agent sends one every third of it;
    /// one that could not for the whole of it must suppose that its VMs marked `fenced` run elsewhere.
    pub lease_seconds: u32,
}

/// All that a host shall have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Desired {
    /// What this was read at: the next call's `after`.
    pub revision: u64,
    /// Its VMs. One that the host has and that is not here is ended and everything of it removed, as if
    /// [`Power::Gone`] were asked for.
    pub vms: Vec<DesiredVm>,
    /// What verification runs ask of its VMs, each until it is told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<DesiredProof>,
}

/// That the ports of a VM are looked at: whether each is as it shall be, and reaches its peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredProof {
    /// The verification run.
    pub run: u64,
    /// The VM.
    pub vm: VmId,
    /// Whom its ports shall reach.
    pub ports: Vec<ProofPort>,
}

/// Whom one port shall reach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofPort {
    /// [`DesiredPort::port`].
    pub port: u64,
    /// The others.
    pub peers: Vec<ProofPeer>,
}

/// A port that another shall reach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofPeer {
    /// Its VM and itself, for people: `w-1/rail0`.
    pub name: String,
    /// Where it is.
    pub address: IpAddr,
    /// Its MTU.
    pub mtu: Mtu,
}

/// What looks at VMs found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofReports {
    /// One for each proof that was done.
    pub proofs: Vec<ProofReport>,
}

/// What the look at one VM found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofReport {
    /// The verification run.
    pub run: u64,
    /// The VM.
    pub vm: VmId,
    /// Each thing that was looked at.
    pub checks: Vec<ProofCheck>,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProofCheck {
    /// The port's name within its VM, as `rail0`.
    pub port: String,
    /// What was looked at, as `MTU to w-1/rail0`.
    pub check: String,
    /// What came of it.
    pub verdict: CheckVerdict,
    /// What was found.
    pub found: String,
    /// What to do, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Typical round trip in nanoseconds, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ns: Option<u64>,
}

/// What came of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    /// It is as it must be.
    Held,
    /// It is not.
    Failed,
    /// It could not be looked at.
    Skipped,
}

/// Whether a VM runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// It runs.
    On,
    /// It is there, with its disk, its VFs and its addresses, and does not run.
    Off,
    /// Nothing of it shall be left, and what it had may be given to others: its VFs scrubbed, its disk
    /// removed. Once this is so it is reported as [`VmState::Gone`], also if there never was
    /// anything of it here; only then does the server stop to ask for it.
    Gone,
}

/// A VM as it shall be on its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredVm {
    /// Its id.
    pub vm: VmId,
    /// Its name: its host name within.
    pub name: String,
    /// One more whenever anything here was changed; reports carry it back.
    pub generation: u64,
    /// Whether it runs.
    pub power: Power,
    /// How often it was reset in all: one more than the agent has done is one to do.
    pub resets: u64,
    /// GPUs, VFs (in the order of `ports`), CPUs, memory and disk of the host that are its own.
    pub place: VmPlace,
    /// What it boots.
    pub image: Image,
    /// Its ports on VFs, in the order of `place.vfs`.
    pub ports: Vec<DesiredPort>,
    /// The public key that may log in, as a line of OpenSSH's `authorized_keys`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// cloud-init's user data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Whether it may be started elsewhere once this host's lease has run out: then the agent must
    /// stop it by itself if it cannot keep the lease alive.
    #[serde(default)]
    pub fenced: bool,
}

/// What a VM boots. A name is that of a file in the host's image folder; it holds no `/`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Image {
    /// The small guest that Lanekeeper builds itself (Debian's kernel, RDMA tools, guest agent).
    Builtin,
    /// A disk with a boot loader, which is copied on write.
    Disk {
        /// The file.
        file: String,
        /// Its format, `qcow2` or `raw`.
        format: ImageFormat,
        /// Where it comes from if the host has it not yet: an `https://` or `http://` address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// What it must be, as hexadecimal digits. Required with `url`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
    },
}

/// Format of a disk image. It is never guessed: a guest could write a header that lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// QEMU's own.
    Qcow2,
    /// Byte for byte.
    Raw,
}

/// A VM's port on a VF: everything the VF is set to before the VM boots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredPort {
    /// Its id.
    pub port: u64,
    /// The interface's name within the guest (cloud-init finds it by `mac`), as `rail0`.
    pub name: String,
    /// Its MAC: administrative, and the only source that may send.
    pub mac: MacAddr,
    /// The tag of its network.
    pub vlan: VlanTag,
    /// Its addresses: the only ones that may send.
    pub addresses: Vec<PortAddress>,
    /// Its MTU.
    pub mtu: Mtu,
    /// The rate it may send at most; no limit at 0.
    pub max_rate: Mbps,
    /// The rate that is set aside for it.
    pub min_rate: Mbps,
    /// Networks that are reached by way of a router: routed RoCE v2 between subnets.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// An address within its subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of the subnet's prefix.
    pub prefix: u8,
}

/// A way to another subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The subnet that is reached.
    pub to: PortAddress,
    /// The router.
    pub via: IpAddr,
}

/// What became of VMs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmReports {
    /// One for each VM that the agent has or had; each VM's last report stands.
    pub vms: Vec<VmReport>,
}

/// What became of one VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmReport {
    /// Which.
    pub vm: VmId,
    /// The [`DesiredVm::generation`] this came of; of the last one seen if it is `gone`.
    pub generation: u64,
    /// What it is now.
    pub state: VmState,
    /// How often it was reset in all.
    pub resets: u64,
    /// What has passed its VFs on this host, as it was last counted.
    #[serde(default, skip_serializing_if = "Traffic::is_none")]
    pub traffic: Traffic,
}

/// Bytes of Ethernet frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// From the VM.
    pub sent_bytes: u64,
    /// To the VM.
    pub received_bytes: u64,
}

impl Traffic {
    /// Whether nothing has passed, or nothing was counted.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.sent_bytes = self.sent_bytes.saturating_add(more.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(more.received_bytes);
    }
}

/// What a VM is on its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VmState {
    /// Its VFs are being set, its image fetched, or it boots.
    Starting,
    /// It runs, and its guest answers or has no agent that could.
    Running,
    /// It does not run, as is desired, or because its guest has shut down.
    Stopped,
    /// It cannot be as desired; the agent tries again when its generation changes.
    Failed {
        /// Why, and what to do.
        reason: String,
    },
    /// Nothing of it is left: its VFs are scrubbed and may be given to others.
    Gone,
}
