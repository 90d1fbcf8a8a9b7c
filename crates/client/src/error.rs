//! Why a call has no answer: what the server said against it, or that none was reached.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A client of this server cannot be.
    #[error("{url}: {why}")]
    Endpoint {
        /// The server's address.
        url: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The server refused, and said why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No server was reached, or no whole answer came in time. Whether it did what it was asked for is
    /// not known.
    #[error("{url}: {why}")]
    Unreachable {
        /// What was called.
        url: String,
        /// What happened.
        why: String,
    },
    /// The answer is not what was asked for.
    #[error("{url}: answered with status {status}, but {why}")]
    NotJson {
        /// What was called.
        url: String,
        /// The status of the answer (RFC 9110, 15).
        status: u16,
        /// What it is instead.
        why: String,
    },
    /// What should be sent cannot be written as JSON.
    #[error("{url}: the request cannot be written as JSON: {why}")]
    Body {
        /// What was to be called.
        url: String,
        /// Why not.
        why: serde_json::Error,
    },
    /// No key or no request for a certificate could be made.
    #[error("a key and a request for a certificate could not be made: {0}")]
    Request(#[from] rcgen::Error),
}

impl Error {
    /// That no answer came.
    pub(crate) fn unreachable(url: &str, limit: Option<Duration>, error: &ureq::Error) -> Self {
        let why = match (error, limit) {
            (ureq::Error::Timeout(ureq::Timeout::Global), Some(limit)) => {
                format!("no answer within {limit:?}")
            }
            (ureq::Error::HostNotFound, _) => "there is no host of this name".to_owned(),
            _ => error.to_string(),
        };
        Self::Unreachable { url: url.to_owned(), why }
    }

    /// The status of the server's answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => problem.status,
            Self::NotJson { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// What a server says against a request (RFC 9457).
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Problem {
    /// What kind it is: a URI, `about:blank` if the status says it all.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// The kind in words.
    #[serde(default)]
    pub title: Option<String>,
    /// The status of the answer; always there in one that a [`Client`](crate::Client) gives.
    #[serde(default)]
    pub status: Option<u16>,
    /// What was wrong this time, and what to do.
    #[serde(default)]
    pub detail: Option<String>,
    /// Which time that was: a URI.
    #[serde(default)]
    pub instance: Option<String>,
    /// All else that was said.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

fn about_blank() -> String {
    "about:blank".to_owned()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.title, &self.detail) {
            (Some(title), Some(detail)) => write!(f, "{title}: {detail}"),
            (Some(text), None) | (None, Some(text)) => f.write_str(text),
            (None, None) => write!(f, "refused ({})", self.kind),
        }
    }
}
