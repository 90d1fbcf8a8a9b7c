//! The certificate authority that a server has of its own. It certifies servers to agents and clients,
//! and agents to servers; it is no other's, and nobody else needs to trust it.
//!
//! Its certificate and its private key are one PEM text, so that they are written, shared and replaced
//! together. One server keeps it in a file of its data directory ([`Authority::open`]); servers that
//! share a store may keep it there ([`Authority::generate`], [`Authority::from_pem`]).

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::{ExposeSecret, SecretString};

use super::certificate::{agent_uri, parse};
use super::{CertificateFacts, ServerCertificate, TlsError};
use crate::keys::{HostName, RegionName};

/// Its file in a server's data directory.
const FILE: &str = "authority.pem";

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long an authority's certificate is valid: a fleet's life, since every agent would have to learn
/// the next one.
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(365 * 20);
/// How long a server's or an agent's is.
const LIFE: Duration = DAY.saturating_mul(90);
/// How far the clock of a new agent may lag behind the server's.
const CLOCK_LAG: Duration = Duration::from_secs(3600);

/// A certificate that was just signed.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate (PEM).
    pub pem: String,
    /// What is in it.
    pub facts: CertificateFacts,
}

/// A certificate authority: see the head of this file.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("certificate", &self.certificate_pem)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority in `directory`, made if there is none. However many servers do this at once on
    /// one directory, and whenever one of them dies, all that return have the same one, and it is on the
    /// disk.
    ///
    /// # Errors
    /// [`TlsError::File`] if the file cannot be read or made, [`TlsError::Exposed`] if others may read
    /// it, and those of [`Self::from_pem`] if it was damaged.
    pub fn open(directory: &Path) -> Result<Self, TlsError> {
        let path = directory.join(FILE);
        let failed = |action| {
            let path = path.clone();
            move |source| TlsError::File { path, action, source }
        };
        if !path.try_exists().map_err(failed("read"))? {
            let draft = Self::generate()?;
            write_once(directory, &path, draft.expose_secret()).map_err(failed("made"))?;
        }
        let mode = fs::metadata(&path).map_err(failed("read"))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TlsError::Exposed { path, mode });
        }
        let text = SecretString::from(fs::read_to_string(&path).map_err(failed("read"))?);
        Self::from_pem(&text)
    }

    /// The text of a new authority: its private key and its certificate (PEM).
    ///
    /// # Errors
    /// [`TlsError::Random`] and [`TlsError::Making`].
    pub fn generate() -> Result<SecretString, TlsError> {
        let key = KeyPair::generate()?;
        let mut mark = [0; 4];
        getrandom::fill(&mut mark)?;
        // The mark tells people which of two authorities a certificate is of.
        let name = format!("Lanekeeper authority {:08x}", u32::from_be_bytes(mark));
        let mut params = params(&name, SystemTime::now(), AUTHORITY_LIFE)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(SecretString::from(key.serialize_pem() + &certificate.pem()))
    }

    /// An authority from the text that [`Self::generate`] made, or from an operator's own: a private
    /// key and the certificate of an authority (PEM).
    ///
    /// # Errors
    /// [`TlsError::Pem`] if one of the two is not there, or they are not each other's, or it is not an
    /// authority's.
    pub fn from_pem(text: &SecretString) -> Result<Self, TlsError> {
        let refused = |why: String| TlsError::Pem { what: "the certificate authority", why };
        let bytes = text.expose_secret().as_bytes();
        let certificate =
            CertificateDer::from_pem_slice(bytes).map_err(|why| refused(why.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(bytes).map_err(|why| refused(why.to_string()))?;
        let key = KeyPair::try_from(&key).map_err(|why| refused(why.to_string()))?;
        let parsed = parse(&certificate)?;
        if !parsed.is_ca() {
            return Err(refused("its certificate is not that of an authority (CA:TRUE)".into()));
        }
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(refused("its private key is not that of its certificate".into()));
        }
        let certificate_pem = certificate_pem(text.expose_secret());
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self { issuer, certificate, certificate_pem })
    }

    /// The certificate (PEM): what agents and clients trust servers by.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A new key and certificate for a server that is reached by `names`, DNS names and IP addresses.
    ///
    /// # Errors
    /// [`TlsError::Name`] for what is neither, [`TlsError::Making`] if it could not be made.
    pub fn issue_server(&self, names: &[String]) -> Result<ServerCertificate, TlsError> {
        if let Some(name) = names.iter().find(|name| ServerName::try_from(name.as_str()).is_err()) {
            return Err(TlsError::Name(name.clone()));
        }
        let key = KeyPair::generate()?;
        let mut params = params("Lanekeeper server", SystemTime::now(), LIFE)?;
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        let certificate = self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, &key)?;
        ServerCertificate::from_pem(&certificate.pem(), &key.serialize_pem())
    }

    /// A certificate for the agent of a host. Only the public key is taken from the request (PKCS #10,
    /// PEM), which must be signed by that key: who it is, its caller knows from a token or from the
    /// certificate that is to be renewed.
    ///
    /// # Errors
    /// [`TlsError::Request`] if it is not a request, [`TlsError::Making`] if it could not be signed.
    pub fn sign_agent(
        &self,
        request: &str,
        region: &RegionName,
        host: &HostName,
    ) -> Result<Issued, TlsError> {
        self.sign_agent_at(request, region, host, SystemTime::now())
    }

    pub(super) fn sign_agent_at(
        &self,
        request: &str,
        region: &RegionName,
        host: &HostName,
        now: SystemTime,
    ) -> Result<Issued, TlsError> {
        let request =
            CertificateSigningRequestParams::from_pem(request).map_err(TlsError::Request)?;
        let mut params = params("Lanekeeper agent", now, LIFE)?;
        params.subject_alt_names = vec![SanType::URI(agent_uri(region, host).try_into()?)];
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let certificate = self.sign(params, usage, &request.public_key)?;
        let facts = CertificateFacts::of(certificate.der(), &parse(certificate.der())?);
        Ok(Issued { pem: certificate.pem(), facts })
    }

    pub(super) fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        key: &impl PublicKeyData,
    ) -> Result<Certificate, rcgen::Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        params.signed_by(key, &self.issuer)
    }
}

/// What all certificates have in common. The serial number is random, 126 bits of it (RFC 5280,
/// 4.1.2.2: positive, at most 20 octets; the two bits fixed keep it positive and its length the same).
pub(super) fn params(
    name: &str,
    now: SystemTime,
    life: Duration,
) -> Result<CertificateParams, TlsError> {
    let mut serial = [0; 16];
    getrandom::fill(&mut serial)?;
    serial[0] = serial[0] & 0x3f | 0x40;
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = (now - CLOCK_LAG).into();
    params.not_after = (now + life).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// The certificate's part of a text that holds its key too.
fn certificate_pem(text: &str) -> String {
    let begin = text.find("-----BEGIN CERTIFICATE-----").unwrap_or_default();
    let end = "-----END CERTIFICATE-----";
    let length = text[begin..].find(end).map_or(0, |at| at + end.len());
    format!("{}\n", &text[begin..begin + length])
}

/// Writes a file that only its owner may read (a temporary file's mode is 0600), whole or not at all,
/// and leaves one that is there already.
fn write_once(directory: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    let mut draft = tempfile::Builder::new().prefix(".authority-").tempfile_in(directory)?;
    draft.write_all(text.as_bytes())?;
    draft.as_file().sync_all()?;
    match draft.persist_noclobber(path) {
        Ok(_) => {}
        Err(failed) if failed.error.kind() == ErrorKind::AlreadyExists => {}
        Err(failed) => return Err(failed.error),
    }
    File::open(directory)?.sync_all()
}
