//! What a certificate says: when to renew it, which host its agent is, and by what fingerprint a server
//! knows the one that it has enrolled.
//!
//! An agent's identity is one URI in the subject's alternative names (RFC 5280, 4.2.1.6):
//! `lanekeeper://region/REGION/host/HOST`. Names hold no `/`, so it reads in one way only.

use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::TlsError;
use crate::keys::{HostName, RegionName};

/// SHA-256 of a certificate (its DER form), as 64 hexadecimal digits. It tells one certificate from all
/// others, also from others of the same host: a server that notes it when a host is enrolled can turn
/// away every other one, which is how one is revoked.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    fn of(der: &CertificateDer<'_>) -> Self {
        let mut digits = String::new();
        for byte in Sha256::digest(der) {
            // Writing to a string cannot fail.
            let _ = write!(digits, "{byte:02x}");
        }
        Self(digits)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What there is to know of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFacts {
    /// Its serial number, in pairs of hexadecimal digits.
    pub serial: String,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// From when it is valid.
    pub not_before: SystemTime,
    /// Until when.
    pub not_after: SystemTime,
}

impl CertificateFacts {
    /// Reads the first certificate in `pem`.
    ///
    /// # Errors
    /// [`TlsError::Pem`] if there is none.
    pub fn read(pem: &str) -> Result<Self, TlsError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(not_a_certificate)?;
        Ok(Self::of(&der, &parse(&der)?))
    }

    pub(super) fn of(der: &CertificateDer<'_>, parsed: &X509Certificate<'_>) -> Self {
        let at = |seconds: i64| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        };
        Self {
            serial: parsed.raw_serial_as_string(),
            fingerprint: Fingerprint::of(der),
            not_before: at(parsed.validity().not_before.timestamp()),
            not_after: at(parsed.validity().not_after.timestamp()),
        }
    }

    /// When to ask for the next one: after two thirds of its life, so that a third is left to try in.
    pub fn renew_at(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + life * 2 / 3
    }

    /// Whether it is valid at some time.
    pub fn is_valid_at(&self, time: SystemTime) -> bool {
        (self.not_before..=self.not_after).contains(&time)
    }
}

/// Which host an agent is, as its certificate proves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentIdentity {
    /// Where its host is.
    pub region: RegionName,
    /// Its host.
    pub host: HostName,
    /// The certificate that proves it. Compare its fingerprint with that of the certificate the host was
    /// given last; and a connection may outlive it.
    pub certificate: CertificateFacts,
}

impl AgentIdentity {
    /// Reads a certificate whose signature was verified already.
    pub(super) fn of(der: &CertificateDer<'_>, now: SystemTime) -> Result<Self, TlsError> {
        let parsed = parse(der)?;
        let certificate = CertificateFacts::of(der, &parsed);
        // A session that is resumed brings its certificate along, and nobody has looked at the dates.
        if !certificate.is_valid_at(now) {
            return Err(TlsError::Untimely { serial: certificate.serial });
        }
        match names(&parsed) {
            Some((region, host)) => Ok(Self { region, host, certificate }),
            None => Err(TlsError::NoAgent { serial: certificate.serial }),
        }
    }
}

fn names(parsed: &X509Certificate<'_>) -> Option<(RegionName, HostName)> {
    let extension = parsed.subject_alternative_name().ok()??;
    let [GeneralName::URI(uri)] = extension.value.general_names.as_slice() else { return None };
    let (region, host) = uri.strip_prefix("lanekeeper://region/")?.split_once("/host/")?;
    Some((RegionName::new(region).ok()?, HostName::new(host).ok()?))
}

/// The URI that [`AgentIdentity`] is read from.
pub(super) fn agent_uri(region: &RegionName, host: &HostName) -> String {
    format!("lanekeeper://region/{region}/host/{host}")
}

pub(super) fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, TlsError> {
    x509_parser::parse_x509_certificate(der).map(|(_, parsed)| parsed).map_err(not_a_certificate)
}

fn not_a_certificate(why: impl fmt::Display) -> TlsError {
    TlsError::Pem { what: "a certificate", why: why.to_string() }
}

/// What a server shows to its clients, and the key to it.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    pub(super) key: Arc<CertifiedKey>,
    facts: CertificateFacts,
}

impl ServerCertificate {
    /// A certificate (PEM, followed by those between it and its root) and its private key (PEM).
    ///
    /// # Errors
    /// [`TlsError::Pem`] if there is no certificate or no key, [`TlsError::Unusable`] if the key is not
    /// the certificate's, or of a kind that TLS does not use.
    pub fn from_pem(certificates: &str, key: &str) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_slice_iter(certificates.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(not_a_certificate)?;
        let first = chain.first().ok_or_else(|| not_a_certificate("there is none"))?;
        let facts = CertificateFacts::of(first, &parse(first)?);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|why| TlsError::Pem { what: "a private key", why: why.to_string() })?;
        let key = Arc::new(CertifiedKey::from_der(chain, key, &provider())?);
        Ok(Self { key, facts })
    }

    /// An operator's own certificate and key, from two files.
    ///
    /// # Errors
    /// [`TlsError::File`] if one cannot be read, and those of [`Self::from_pem`].
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| TlsError::File {
                path: path.to_owned(),
                action: "read",
                source,
            })
        };
        Self::from_pem(&read(certificates)?, &read(key)?)
    }

    /// What is in it.
    pub fn facts(&self) -> &CertificateFacts {
        &self.facts
    }
}

/// The one that does the arithmetic, named so that no feature of another crate's can change it.
pub(super) fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}
