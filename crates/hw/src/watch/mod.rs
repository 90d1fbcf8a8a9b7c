//! What the kernel tells by itself: devices that come, go and change drivers, links that come and
//! go. An event is a hint and no fact: it may be old when it is read, others may have been lost, and
//! what is now is for a reading to say. Whoever watches therefore reads anew now and then whatever
//! is told.

use std::fmt;
use std::time::Duration;

use lanekeeper_model::PciAddr;
use serde::{Deserialize, Serialize};

use crate::HardwareError;

/// What was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A function or an interface is there.
    Appeared,
    /// It is gone.
    Gone,
    /// It has another name or is elsewhere.
    Moved,
    /// A driver was bound to it or taken from it.
    Driver,
    /// An interface has these flags now, and something of it may be set otherwise.
    Link {
        /// Set up by its owner.
        up: bool,
        /// Has a link.
        carrier: bool,
    },
    /// Something of it changed.
    Changed,
    /// Events were lost for want of room: anything may have changed.
    Lost,
}

impl Kind {
    /// Its name without what it holds, as in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Appeared => "appeared",
            Self::Gone => "gone",
            Self::Moved => "moved",
            Self::Driver => "driver",
            Self::Link { .. } => "link",
            Self::Changed => "changed",
            Self::Lost => "lost",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What.
    pub kind: Kind,
    /// Of which PCI function, PF or VF, if of one.
    pub function: Option<PciAddr>,
    /// Of which interface, if of one.
    pub interface: Option<String>,
}

impl Event {
    /// Of a function.
    pub fn of(kind: Kind, function: impl Into<PciAddr>) -> Self {
        Self { kind, function: Some(function.into()), interface: None }
    }

    /// That events were lost.
    pub const fn lost() -> Self {
        Self { kind: Kind::Lost, function: None, interface: None }
    }
}

/// A line on which a back end tells events.
pub trait Watch: Send {
    /// What happened since the last call, as soon as there is something; nothing if `within` passes
    /// without.
    ///
    /// # Errors
    /// [`HardwareError::Host`] if the line broke. Events may have been lost then.
    fn wait(&mut self, within: Duration) -> Result<Vec<Event>, HardwareError>;
}
