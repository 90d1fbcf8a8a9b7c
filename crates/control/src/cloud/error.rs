//! Why something was not done, in words that say what to do.

use std::collections::BTreeMap;

use crate::claims::ClaimError;
use crate::keys::{Key, KeyError};
use crate::placement::Refusal;
use crate::store::{Revision, StoreError};

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloudError {
    /// There is no such thing, or it is another organization's: which of the two is nobody's business.
    #[error("there is no {noun} {which}; list the {noun}s there are")]
    NotFound {
        /// What it would be.
        noun: &'static str,
        /// Its id or its name.
        which: String,
    },
    /// A name or an address that another has.
    #[error("there is a {what} '{value}' already; choose another")]
    Taken {
        /// What it is.
        what: &'static str,
        /// The one.
        value: String,
    },
    /// A value that cannot be.
    #[error("{field} '{value}' is not usable: {why}")]
    Invalid {
        /// Where.
        field: &'static str,
        /// As it was given.
        value: String,
        /// Why, and what would be.
        why: String,
    },
    /// What the path of a VM's frames cannot do.
    #[error("{what} is refused: {path} {why}; {instead}")]
    PathCannot {
        /// What was asked for.
        what: String,
        /// Which path.
        path: &'static str,
        /// Why not.
        why: &'static str,
        /// What can be done.
        instead: &'static str,
    },
    /// Something else still needs it.
    #[error("{noun} {which} is in use by {by}; {instead}")]
    InUse {
        /// What it is.
        noun: &'static str,
        /// Which.
        which: String,
        /// By what.
        by: String,
        /// What to do.
        instead: &'static str,
    },
    /// It is not in a state for that.
    #[error("{what} {which} is {state}; {why}")]
    State {
        /// What it is.
        what: &'static str,
        /// Which.
        which: String,
        /// Its state.
        state: String,
        /// When it could be.
        why: String,
    },
    /// It was changed meanwhile.
    #[error("it was changed meanwhile; read it again and try again")]
    Stale,
    /// A range of the region's is used up.
    #[error("no {what} is free in {within}; {instead}")]
    Exhausted {
        /// Of what.
        what: &'static str,
        /// Where.
        within: String,
        /// What to do.
        instead: &'static str,
    },
    /// The caller may not do that.
    #[error("{0}")]
    Forbidden(String),
    /// No room, or no quota.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CloudError {
    /// A value that cannot be.
    pub(crate) fn invalid(
        field: &'static str,
        value: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self::Invalid { field, value: value.into(), why: why.into() }
    }

    /// There is none of that name or id.
    pub(crate) fn none(noun: &'static str, which: &(impl ToString + ?Sized)) -> Self {
        Self::NotFound { noun, which: which.to_string() }
    }

    /// Which of the keys that were wanted is another's; none of them: something was changed.
    pub(super) fn of_conflict(
        keys: &[(Key, Option<Revision>)],
        wanted: &BTreeMap<Key, (&'static str, String)>,
    ) -> Self {
        let taken = keys.iter().find_map(|(key, by)| by.and(wanted.get(key)));
        match taken {
            Some((what, value)) => Self::Taken { what, value: value.clone() },
            None => Self::Stale,
        }
    }
}

impl From<ClaimError> for CloudError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Refused(refusal) => Self::Refused(refusal),
            ClaimError::Store(error) => Self::Store(error),
            ClaimError::Taken(id) => {
                Self::Taken { what: "the placement id", value: id.to_string() }
            }
        }
    }
}

impl From<KeyError> for CloudError {
    fn from(error: KeyError) -> Self {
        let value = match &error {
            KeyError::Name(text) | KeyError::Key(text) => text.clone(),
        };
        Self::Invalid { field: "name", value, why: error.to_string() }
    }
}
