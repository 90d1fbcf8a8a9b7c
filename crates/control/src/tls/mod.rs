//! Who may speak to a server, before any of it is read as HTTP: certificates, the port that demands
//! them, and the secrets that stand for somebody.
//!
//! - [`Authority`] signs the certificates of servers and agents, and nothing else does.
//! - [`Listener`] is the TLS port. Whoever has a certificate of the authority's is known by it
//!   ([`AgentIdentity`]); whoever has none is let in unknown, with an API key or as a browser; whoever
//!   shows any other is turned away.
//! - [`token`] makes API keys and one-time enrolment tokens, and keeps hashes of them.
//!
//! TLS 1.3 and 1.2 by rustls, with *ring* doing the arithmetic.

mod authority;
mod certificate;
mod listener;
pub mod token;

use std::path::PathBuf;

pub use authority::{Authority, Issued};
pub use certificate::{AgentIdentity, CertificateFacts, Fingerprint, ServerCertificate};
pub use listener::{Limits, Listener, Peer, Presented};

/// What is wrong with a certificate, a key, a request for one, or a token.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read or written.
    #[error("{path}: could not be {action}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A private key that others may read.
    #[error("{path} holds a private key and has mode {mode:03o}; run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Text that is not what it should be.
    #[error("{what}: {why}")]
    Pem {
        /// What was read.
        what: &'static str,
        /// What it lacks.
        why: String,
    },
    /// A name that no server certificate can carry.
    #[error("'{0}' is neither a DNS name nor an IP address, so no server can be certified as it")]
    Name(String),
    /// A request that is not one, or that is not signed by the key in it.
    #[error("the certificate signing request (PKCS #10, PEM) is refused: {0}")]
    Request(rcgen::Error),
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Making(#[from] rcgen::Error),
    /// rustls refuses a certificate or key.
    #[error("the certificate cannot be used for TLS: {0}")]
    Unusable(#[from] rustls::Error),
    /// An agent's certificate that names no host.
    #[error(
        "the certificate {serial} names no host: an agent's has one name, \
         lanekeeper://region/REGION/host/HOST"
    )]
    NoAgent {
        /// Its serial number.
        serial: String,
    },
    /// A certificate that is past its time, or before it.
    #[error("the certificate {serial} is not valid at this time")]
    Untimely {
        /// Its serial number.
        serial: String,
    },
    /// Not a token. What was given is not repeated: it may be a mistyped secret.
    #[error("not a token; one looks like lk_ID_SECRET or lke_ID_SECRET, as it was shown when made")]
    Token,
    /// The system gave no random numbers.
    #[error("no random numbers from the system: {0}")]
    Random(#[from] getrandom::Error),
}

#[cfg(test)]
mod tests;
