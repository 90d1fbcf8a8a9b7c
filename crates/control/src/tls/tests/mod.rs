//! Tests of certificates, of real handshakes on loopback, and of secrets.

mod authority;
mod handshake;
mod token;

use std::time::{Duration, SystemTime};

use lanekeeper_client::{CertificateRequest, certificate_request};

use super::{Authority, Issued};
use crate::keys::{HostName, RegionName};

fn authority() -> Authority {
    Authority::from_pem(&Authority::generate().expect("an authority")).expect("the same")
}

fn request() -> CertificateRequest {
    certificate_request().expect("a request")
}

fn names(host: &str) -> (RegionName, HostName) {
    (RegionName::new("north").expect("a name"), HostName::new(host).expect("a name"))
}

/// A certificate for `host` in region north, as if signed some time ago.
fn signed(authority: &Authority, csr: &str, host: &str, ago: Duration) -> Issued {
    let (region, host) = names(host);
    authority.sign_agent_at(csr, &region, &host, SystemTime::now() - ago).expect("signed")
}
