//! A connection to the server: HTTP/2 over TLS, on tokio, so that ten thousand of them need no thread
//! each. It is made when it is first needed, and anew when it has broken.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::BenchError;

/// How long a connection may take to be made, as the product's own client has it.
const CONNECT: Duration = Duration::from_secs(5);

/// What is done with a connection, for errors.
const WHAT: &str = "a call over HTTPS";

/// Something that a connection or the server did not do.
pub fn failed(said: impl std::fmt::Display) -> BenchError {
    BenchError::InProcess { what: WHAT, said: said.to_string() }
}

/// A certificate and its key, as PEM.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'p> {
    /// The certificate.
    pub certificate: &'p str,
    /// Its key.
    pub key: &'p str,
}

/// The server's authority, read once for all connections.
#[derive(Clone, Debug)]
pub struct Trust {
    roots: Arc<RootCertStore>,
}

impl Trust {
    /// Trust the authority of a PEM text.
    ///
    /// # Errors
    /// It is none.
    pub fn new(pem: &str) -> Result<Self, BenchError> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(failed)?;
        roots.add(certificate).map_err(failed)?;
        Ok(Self { roots: Arc::new(roots) })
    }

    /// What a client speaks TLS with.
    ///
    /// # Errors
    /// The identity is none.
    pub fn client(&self, identity: Option<Identity<'_>>) -> Result<Arc<ClientConfig>, BenchError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(Arc::clone(&self.roots));
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed)?;
                let chain = vec![certificate.map_err(failed)?];
                config.with_client_auth_cert(chain, key).map_err(failed)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A new connection is a whole handshake, as after a restart of either side.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// A connection.
pub struct Wire {
    server: SocketAddr,
    /// The address it comes from: each host has its own, as far as 127.0.0.0/8 goes.
    from: Ipv4Addr,
    tls: Arc<ClientConfig>,
    key: Option<String>,
    organization: Option<String>,
    sender: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Wire {
    /// To a server, from an address of loopback.
    pub fn new(server: SocketAddr, from: Ipv4Addr, tls: Arc<ClientConfig>) -> Self {
        Self { server, from, tls, key: None, organization: None, sender: Mutex::default() }
    }

    /// With an API key.
    #[must_use]
    pub fn bearing(mut self, key: &str) -> Self {
        self.key = Some(format!("Bearer {key}"));
        self
    }

    /// Within an organization that is not the key's own.
    #[must_use]
    pub fn within(mut self, organization: &str) -> Self {
        self.organization = Some(organization.to_owned());
        self
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, BenchError> {
        let socket = TcpSocket::new_v4().map_err(failed)?;
        socket.bind((self.from, 0).into()).map_err(failed)?;
        let tcp: TcpStream = socket.connect(self.server).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let name = ServerName::IpAddress(self.server.ip().into());
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(name, tcp).await;
        let io = TokioIo::new(tls.map_err(failed)?);
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), io).await.map_err(failed)?;
        // Ends when the sender is dropped, or the server has gone.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn sender(&self) -> Result<SendRequest<Full<Bytes>>, BenchError> {
        let mut kept = self.sender.lock().await;
        if let Some(sender) = kept.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        *kept = None;
        let sender = tokio::time::timeout(CONNECT, self.connect()).await.map_err(failed)??;
        *kept = Some(sender.clone());
        Ok(sender)
    }

    /// Send a request; the answer's body is still to be read.
    ///
    /// # Errors
    /// The server was not reached, or the connection broke.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, BenchError> {
        let mut request =
            Request::builder().method(method).uri(format!("https://{}{path}", self.server));
        let headers =
            [("authorization", &self.key), ("lanekeeper-organization", &self.organization)];
        for (name, value) in headers {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default().into())).map_err(failed)?;
        let mut sender = self.sender().await?;
        sender.ready().await.map_err(failed)?;
        sender.send_request(request).await.map_err(failed)
    }

    /// Send a request and read the answer: its status and its body.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(u16, Bytes), BenchError> {
        let response = self.open(method, path, body).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(failed)?;
        Ok((status, body.to_bytes()))
    }

    /// Send JSON and read JSON.
    ///
    /// # Errors
    /// As [`Self::open`]; also an answer that is none of success, or not as it should be.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, BenchError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(failed)?;
        let what = format!("{method} {path}");
        let (status, body) = self.ask(method, path, body).await?;
        let text = || String::from_utf8_lossy(&body);
        if !(200..300).contains(&status) {
            return Err(failed(format!("{what}: {status} {}", text())));
        }
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).map_err(|error| failed(format!("{what}: {error}: {}", text())))
    }
}
