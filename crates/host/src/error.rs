//! What can be refused or go wrong above the hardware line, each with what to do.

use std::path::PathBuf;
use std::time::Duration;

use lanekeeper_hw::HardwareError;
use lanekeeper_model::{Guid, MacAddr, ModelError, PciAddr, PfAddr, VfAddr, VfIndex};
use lanekeeper_topology::Distance;

use crate::file::{FileError, SelectError};
use crate::ledger::LedgerError;
use crate::plan::Finding;
use crate::request::ClaimId;

/// What a claim finds amiss before a VM could use the VF (harvester#2819, #7348).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Preflight {
    /// Nothing took the VF.
    #[error("no driver {driver} took VF {address}; load its module (modprobe {driver})")]
    Module {
        /// The VF.
        address: VfAddr,
        /// Driver that was wanted.
        driver: String,
    },
    /// Another driver took it.
    #[error("{found} took VF {address}, not {driver}; keep it off VFs or ask for that driver")]
    WrongDriver {
        /// The VF.
        address: VfAddr,
        /// Driver that was wanted.
        driver: String,
        /// Driver that is there.
        found: String,
    },
    /// VFIO has no container device.
    #[error("/dev/vfio/vfio is missing; load vfio (modprobe vfio-pci vfio_iommu_type1)")]
    NoContainer,
    /// The VF is in no IOMMU group.
    #[error(
        "VF {address} is in no IOMMU group; turn the IOMMU on (firmware: VT-d or AMD-Vi; kernel: \
         intel_iommu=on or amd_iommu=on)"
    )]
    NoGroup {
        /// The VF.
        address: VfAddr,
    },
    /// The group has no device node.
    #[error(
        "{node} is missing though vfio-pci has the VF; check devtmpfs and the container's /dev"
    )]
    NoNode {
        /// The node.
        node: PathBuf,
    },
    /// A network driver is bound but made no interface (sriov-cni#349, plugins#1072).
    #[error("{driver} is bound to VF {address} but made no interface; see the kernel's log")]
    NoNetdev {
        /// The VF.
        address: VfAddr,
        /// Driver that is bound.
        driver: String,
    },
    /// RDMA by hardware was asked for and the VF has a zero GUID (sriov-network-operator#267).
    #[error(
        "VF {address} has no node GUID, so RDMA cannot use it; ask for a guid, update the \
         firmware, or use rdma: software"
    )]
    NoGuid {
        /// The VF.
        address: VfAddr,
    },
}

/// Why the host's owner did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The hardware line refused.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// Settings contradict each other.
    #[error(transparent)]
    Invalid(#[from] ModelError),
    /// The host file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// The ledger is wrong, or cannot be written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An entry of the file means no PF, or several.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A token that is none.
    #[error("an owner token has 8 to 128 printable ASCII characters without spaces; this {0}")]
    Token(String),
    /// A plan that cannot be carried out.
    #[error("nothing was changed: {}", sentences(.0))]
    Refused(Vec<Finding>),
    /// What was planned for is not what is there any more.
    #[error("pf {pf}: {what} since the plan was made; plan again")]
    Stale {
        /// Our name for it.
        pf: String,
        /// What changed.
        what: String,
    },
    /// A step failed; everything is as before.
    #[error("pf {pf}: {doing}: {source}; everything is as before")]
    Reverted {
        /// Our name for it.
        pf: String,
        /// Step that failed.
        doing: String,
        /// Why.
        source: Box<HostError>,
    },
    /// A step failed, and so did the way back. It is in the ledger; `recover` goes on with it.
    #[error(
        "pf {pf}: {doing}: {source}; the way back failed too: {way_back}; `lanekeeper host \
         recover` goes on with it"
    )]
    HalfWay {
        /// Our name for it.
        pf: String,
        /// Step that failed.
        doing: String,
        /// Why.
        source: Box<HostError>,
        /// Why the way back failed.
        way_back: Box<HostError>,
    },
    /// What was read back is not what was written.
    #[error("{address}: wrote {what} {wanted}, read back {found}; the driver does not keep it")]
    ReadBack {
        /// Function.
        address: PciAddr,
        /// What was set.
        what: &'static str,
        /// What was written.
        wanted: String,
        /// What was read.
        found: String,
    },
    /// VFs did not appear in time (sriov-network-operator#1015).
    #[error("{pf}: {found} of {wanted} VFs appeared within {after:?}; see the kernel's log")]
    VfsMissing {
        /// The PF.
        pf: PfAddr,
        /// How many were wanted.
        wanted: u16,
        /// How many there are.
        found: usize,
        /// How long was waited.
        after: Duration,
    },
    /// The data path of this NIC cannot do it.
    #[error("{driver} on pf {pf} cannot do {field} = {value}; {instead}")]
    NotOnThisPath {
        /// Our name for the PF.
        pf: String,
        /// Its driver, with the mode of its switch where that is the reason.
        driver: String,
        /// Field of the request.
        field: &'static str,
        /// Its value.
        value: String,
        /// What to do instead.
        instead: String,
    },
    /// The VF shares an IOMMU group.
    #[error(
        "VF {address} shares IOMMU group {group} with {}; a group is given away whole or not at \
         all: turn on ACS on the bridges above it, or use another slot", list(.members)
    )]
    SharedGroup {
        /// The VF.
        address: VfAddr,
        /// Group.
        group: u32,
        /// Every member of it.
        members: Vec<PciAddr>,
    },
    /// Somebody holds the VF.
    #[error(
        "VF {address} of claim {claim} is still held by {command} (pid {pid}); detach it there \
         first. It stays owned"
    )]
    Busy {
        /// The claim.
        claim: ClaimId,
        /// The VF.
        address: VfAddr,
        /// Process id.
        pid: u32,
        /// Process name.
        command: String,
    },
    /// Somebody holds a VF that is free by the ledger.
    #[error(
        "VF {address} is free in the ledger but {command} (pid {pid}) holds it; end that first"
    )]
    HeldByStranger {
        /// The VF.
        address: VfAddr,
        /// Process id.
        pid: u32,
        /// Process name.
        command: String,
    },
    /// Every PF that could give a VF is in trouble, as the agent sees it.
    #[error("no VF of {from} is offered now: {}; `lanekeeper agent` offers them again by itself", .why.join("; "))]
    NotOffered {
        /// Pool or PF that was asked for.
        from: String,
        /// Each PF's trouble.
        why: Vec<String>,
    },
    /// There is one agent already.
    #[error(
        "another lanekeeper agent{} works on {}; stop it first, or use another state folder",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), .folder.display()
    )]
    AgentRuns {
        /// The state folder.
        folder: PathBuf,
        /// Its process, if it said so.
        pid: Option<u32>,
    },
    /// All are taken.
    #[error("no free VF in {from}: {}", taken(*.owned, *.quarantined))]
    Exhausted {
        /// Pool or PF that was asked for.
        from: String,
        /// VFs that have owners.
        owned: usize,
        /// VFs that are quarantined.
        quarantined: usize,
    },
    /// There is no such pool or PF.
    #[error("there is no {kind} {name}{}; `lanekeeper host apply` makes it", near(.nearest.as_ref()))]
    Unknown {
        /// `pool` or `pf`.
        kind: &'static str,
        /// Name that was asked for.
        name: String,
        /// Nearest that there is.
        nearest: Option<String>,
    },
    /// Every VF that is free is too far away.
    #[error("no free VF is as near as wanted; the nearest is {nearest} ({}); free one there, or ask for it as preferred (without --strict)", .nearest.meaning())]
    TooFar {
        /// How far the nearest is.
        nearest: Distance,
    },
    /// How far things are cannot be told.
    #[error("affinity: {0}")]
    Affinity(String),
    /// One token, two requests.
    #[error(
        "the token has claim {claim} already, with another {differs}; release it or use another token"
    )]
    Conflict {
        /// The claim that it has.
        claim: ClaimId,
        /// Fields that differ.
        differs: String,
    },
    /// Another VF has the MAC.
    #[error("MAC {mac} is already that of {holder}; two VFs of one VLAN cannot share it")]
    DuplicateMac {
        /// The MAC.
        mac: MacAddr,
        /// Who has it.
        holder: String,
    },
    /// Another VF, or a PF, has the GUID.
    #[error("GUID {guid} is already that of {holder}; use another, or leave it out")]
    DuplicateGuid {
        /// The GUID.
        guid: Guid,
        /// Who has it.
        holder: String,
    },
    /// The PF is not to be found.
    #[error(
        "pf {pf} is gone: no PF of this host has {identity}; put it back or take it out of the file"
    )]
    PfGone {
        /// Our name for it.
        pf: String,
        /// What it is known by.
        identity: String,
    },
    /// Two PFs have one identity.
    #[error("{} are all {identity}; serial and MAC repeat, so give them distinct slots or MACs", pfs(.found))]
    Ambiguous {
        /// What they are known by.
        identity: String,
        /// Which.
        found: Vec<PfAddr>,
    },
    /// It has nothing that stays.
    #[error(
        "{0} has neither a permanent MAC nor a GUID, so it would not be known again; bind its driver"
    )]
    NoIdentity(PfAddr),
    /// The VF is not there.
    #[error("pf {pf} has no VF {vf} now; `lanekeeper host recover` makes it again")]
    VfMissing {
        /// Our name for the PF.
        pf: String,
        /// The VF.
        vf: VfIndex,
    },
    /// The PF tells nothing of the VF, so that nothing on it can be judged.
    #[error(
        "VF {address}: its PF tells nothing of what is set on it, so nothing can be proved; bring \
         the PF's interface back, or make the VF anew"
    )]
    Untold {
        /// The VF.
        address: VfAddr,
    },
    /// An apply waits to be confirmed.
    #[error(
        "pf {pf}: an apply waits for its confirmation; confirm it, or wait {:.0} s for the \
         roll-back", .left.as_secs_f64().ceil()
    )]
    Unconfirmed {
        /// Our name for the PF.
        pf: String,
        /// Time left.
        left: Duration,
    },
    /// A VF is asked for by its number alone.
    #[error("VF {0} of which PF? name it in `pf`, or leave `vf` out")]
    VfOfNoPf(VfIndex),
    /// Before a VM could use it.
    #[error(transparent)]
    Preflight(#[from] Preflight),
    /// No such claim, or not the token's.
    #[error("claim {0} is not known with this token; it was released, or is another's")]
    NotYours(ClaimId),
}

fn sentences(findings: &[Finding]) -> String {
    let blocking: Vec<_> = findings.iter().map(ToString::to_string).collect();
    blocking.join("; ")
}

fn taken(owned: usize, quarantined: usize) -> String {
    if owned + quarantined == 0 {
        "it has none at all; `lanekeeper host apply` makes those of the host file, and `lanekeeper \
         host recover` those that were lost"
            .to_owned()
    } else {
        format!("{owned} owned, {quarantined} quarantined; release one, or use another pool")
    }
}

fn list(members: &[PciAddr]) -> String {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    members.join(", ")
}

fn pfs(found: &[PfAddr]) -> String {
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    found.join(" and ")
}

fn near(nearest: Option<&String>) -> String {
    nearest.map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}
