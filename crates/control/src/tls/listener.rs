//! The TLS port, as axum serves from it. Each handshake is a task of its own with a deadline, so that a
//! client that sends its first byte and no second holds up nobody; and there are only so many at once:
//! when one more comes, the oldest is given up, since an honest one takes milliseconds.
//!
//! Agents and everybody else come by the same port: a client may show a certificate and need not. One
//! that the authority has not signed, or that is past its time, or that is not an agent's ends the
//! connection: going on as unknown would hide the mistake.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate::provider;
use super::{AgentIdentity, Authority, ServerCertificate, TlsError};

/// What handshakes may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many there may be at once.
    pub handshakes: usize,
    /// How long each may take.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { handshakes: 1024, deadline: Duration::from_secs(10) }
    }
}

/// Who is at the other end: `axum::extract::ConnectInfo<Peer>` in a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Which host's agent it is, if it has shown a certificate.
    pub agent: Option<AgentIdentity>,
}

impl Connected<IncomingStream<'_, Listener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// The certificate that a port shows. Clones are of the same.
#[derive(Clone, Debug)]
pub struct Presented(Arc<RwLock<ServerCertificate>>);

impl Presented {
    /// Shows another one to those who connect from now on.
    pub fn replace(&self, certificate: ServerCertificate) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificate;
    }

    /// When to replace it.
    pub fn renew_at(&self) -> SystemTime {
        self.0.read().unwrap_or_else(PoisonError::into_inner).facts().renew_at()
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).key.clone())
    }
}

/// A TLS port. Dropping it closes it, and gives up the handshakes that are not done.
pub struct Listener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    presented: Presented,
    limits: Limits,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, Peer)>>,
    /// Those of `handshakes` that may still be under way, the oldest first.
    pending: VecDeque<AbortHandle>,
}

impl Listener {
    /// Serves TLS on a port: with `certificate`, to clients with no certificate or with one of
    /// `authority`'s.
    ///
    /// # Errors
    /// [`TlsError::Unusable`] if rustls does not take the authority's certificate.
    pub fn new(
        tcp: TcpListener,
        authority: &Authority,
        certificate: ServerCertificate,
        limits: Limits,
    ) -> Result<Self, TlsError> {
        let presented = Presented(Arc::new(RwLock::new(certificate)));
        let config = server_config(authority, presented.clone())?;
        Ok(Self {
            tcp,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            presented,
            limits,
            handshakes: JoinSet::new(),
            pending: VecDeque::new(),
        })
    }

    /// The certificate it shows, to replace it while the port is served.
    pub fn presented(&self) -> Presented {
        self.presented.clone()
    }

    fn begin(&mut self, tcp: TcpStream, address: SocketAddr) {
        if self.pending.len() >= self.limits.handshakes {
            self.pending.retain(|handshake| !handshake.is_finished());
        }
        if self.pending.len() >= self.limits.handshakes
            && let Some(oldest) = self.pending.pop_front()
        {
            tracing::debug!("too many handshakes at once: the oldest is given up");
            oldest.abort();
        }
        let shake = shake_hands(self.acceptor.clone(), tcp, address, self.limits.deadline);
        self.pending.push_back(self.handshakes.spawn(shake));
    }
}

impl axum::serve::Listener for Listener {
    type Io = TlsStream<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            // Either may be left half waited for: nothing is lost by that.
            tokio::select! {
                biased;
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(client)) = done {
                        return client;
                    }
                }
                (tcp, address) = axum::serve::Listener::accept(&mut self.tcp) => {
                    self.begin(tcp, address);
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { address: self.tcp.local_addr()?, agent: None })
    }
}

fn server_config(authority: &Authority, presented: Presented) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone())?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|why| rustls::Error::General(why.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(presented));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn shake_hands(
    acceptor: TlsAcceptor,
    tcp: TcpStream,
    address: SocketAddr,
    deadline: Duration,
) -> Option<(TlsStream<TcpStream>, Peer)> {
    // Without it an answer of two writes waits for the client's delayed acknowledgement.
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%address, %error, "TCP_NODELAY was refused");
    }
    let stream = match tokio::time::timeout(deadline, acceptor.accept(tcp)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake failed");
            return None;
        }
        Err(_) => {
            tracing::debug!(%address, ?deadline, "TLS handshake took too long");
            return None;
        }
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    match shown.map(|der| AgentIdentity::of(der, SystemTime::now())).transpose() {
        Ok(agent) => Some((stream, Peer { address, agent })),
        Err(error) => {
            tracing::warn!(%address, %error, "a client was turned away");
            None
        }
    }
}
