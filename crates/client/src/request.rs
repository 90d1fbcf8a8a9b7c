//! The key of an agent, and the request for a certificate for it.

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use secrecy::SecretString;

use crate::error::Error;

/// A new key, and the request for a certificate for it.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// The private key (PKCS #8, PEM). It stays on the host.
    pub key_pem: SecretString,
    /// The request (PKCS #10, PEM), signed with the key. It names no host: which one it is for, the
    /// server knows from a token, or from the certificate that is to be renewed.
    pub csr_pem: String,
}

/// Makes a new key (ECDSA on P-256) and asks for a certificate for it.
///
/// # Errors
/// [`Error::Request`] if the system has no random numbers.
pub fn certificate_request() -> Result<CertificateRequest, Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Lanekeeper agent");
    let csr_pem = params.serialize_request(&key)?.pem()?;
    Ok(CertificateRequest { key_pem: key.serialize_pem().into(), csr_pem })
}
