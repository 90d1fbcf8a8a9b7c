//! Where a server is, what proves that it is that one, and who speaks to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret, SecretString};
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::error::Error;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server, and who speaks to it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its address, as `https://server.example:8443`.
    pub url: String,
    /// The authority (PEM) that its certificate must be of. Without one, those of this machine count.
    pub authority_pem: Option<String>,
    /// An API key, sent as a bearer token.
    pub key: Option<SecretString>,
    /// A certificate of one's own, and its key: an agent's.
    pub identity: Option<Identity>,
    /// Whether plain HTTP is allowed to other machines than this one: whoever is on the way can then
    /// read and change everything, the API key included.
    pub plain_anywhere: bool,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate (PEM), and those between it and its root.
    pub certificate_pem: String,
    /// Its private key (PEM).
    pub key_pem: SecretString,
}

impl Endpoint {
    /// A server at an address, spoken to as nobody in particular.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self { url, authority_pem: None, key: None, identity: None, plain_anywhere: false }
    }

    pub(crate) fn refused(&self, why: &str) -> Error {
        Error::Endpoint { url: self.url.clone(), why: why.to_owned() }
    }

    pub(crate) fn agent(&self) -> Result<Agent, Error> {
        let uri = self.url.parse::<Uri>().map_err(|why| self.refused(&why.to_string()))?;
        self.check(&uri).map_err(|why| self.refused(why))?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("lanekeeper/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT));
        if uri.scheme_str() == Some("https") {
            config = config.tls_config(self.tls().map_err(|why| self.refused(&why))?);
        }
        Ok(config.build().new_agent())
    }

    fn check(&self, uri: &Uri) -> Result<(), &'static str> {
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let here = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let whole = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        match uri.scheme_str() {
            Some("http" | "https") if !whole || uri.query().is_some() => {
                Err("use https://HOST:PORT, with neither a user nor a query in it")
            }
            Some("https") => Ok(()),
            Some("http") if here || self.plain_anywhere => Ok(()),
            Some("http") => Err("plain HTTP is for this machine only; use https://"),
            _ => Err("use https://HOST:PORT"),
        }
    }

    fn tls(&self) -> Result<TlsConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let identity = self.identity.as_ref().map(|identity| identity.checked(&provider));
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(self.roots()?)))
            .client_cert(identity.transpose()?)
            .unversioned_rustls_crypto_provider(provider)
            .build())
    }

    fn roots(&self) -> Result<Vec<Certificate<'static>>, String> {
        let Some(pem) = &self.authority_pem else {
            let found = rustls_native_certs::load_native_certs().certs;
            return Ok(found.iter().map(|der| Certificate::from_der(der).to_owned()).collect());
        };
        let ders =
            certificates(pem).map_err(|why| format!("the authority's certificate: {why}"))?;
        let mut store = RootCertStore::empty();
        for der in &ders {
            let added = store.add(der.clone());
            added.map_err(|why| format!("the authority's certificate: {why}"))?;
        }
        Ok(ders.iter().map(|der| Certificate::from_der(der).to_owned()).collect())
    }
}

impl Identity {
    /// As ureq takes it, and surely good: ureq itself looks only when it connects.
    fn checked(&self, provider: &CryptoProvider) -> Result<ClientCert, String> {
        let chain = certificates(&self.certificate_pem)
            .map_err(|why| format!("the certificate to be known by: {why}"))?;
        let text = self.key_pem.expose_secret().as_bytes();
        let key = PrivateKeyDer::from_pem_slice(text)
            .map_err(|why| format!("the private key to be known by: {why}"))?;
        CertifiedKey::from_der(chain.clone(), key, provider)
            .map_err(|why| format!("the certificate and key to be known by: {why}"))?;
        let key = PrivateKey::from_pem(text)
            .map_err(|why| format!("the private key to be known by: {why}"))?;
        let chain: Vec<_> = chain.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        Ok(ClientCert::new_with_certs(&chain, key))
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is none in it (PEM)".to_owned()),
        Ok(found) => Ok(found),
        Err(why) => Err(why.to_string()),
    }
}
