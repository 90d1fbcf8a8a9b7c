//! One host's owner of VFs, from PF to VM and back.
//!
//! [`HostFile`] says what is wanted, a reading of `lanekeeper_hw::SriovHardware` says what is,
//! [`plan()`] is a pure function of the two and of the [`ledger`]; [`Owner`] carries plans out and
//! gives VFs away and takes them back. Whatever it is about to do it writes into the ledger first,
//! so that a crash at any instruction is finished or undone by the next start
//! ([`Owner::recover`]).
#![forbid(unsafe_code)]

pub mod agent;
mod apply;
mod choose;
mod claim;
mod drift;
mod drivers;
mod error;
pub mod file;
mod group;
mod handover;
mod health;
pub mod ledger;
mod locate;
mod near;
mod owner;
pub mod plan;
mod recover;
mod release;
mod representor;
mod request;
mod resolve;
mod restore;
mod scrub;
mod snapshot;
mod view;

pub use apply::{Applied, Confirmed};
pub use claim::VFIO;
pub use drift::Drift;
pub use error::{HostError, Preflight};
pub use file::HostFile;
pub use handover::{HostPreflight, NodeState, PreflightFacts, memlock_needed};
pub use health::{AgentSeat, FoughtOver, Health, Withheld};
pub use owner::{Owner, Patience};
pub use plan::{Finding, PfSeen, Plan, PlanStep, Step, plan};
pub use recover::{Recovered, RecoveryEvent};
pub use release::{Released, Which};
pub use request::{
    AffinityWanted, Claim, ClaimId, ClaimRequest, DriverWanted, OwnerToken, RdmaNeed, VmFacts,
};
pub use view::OwnedVfs;

/// Where ledgers are kept unless told otherwise.
pub const STATE_FOLDER: &str = "/var/lib/lanekeeper/host";
