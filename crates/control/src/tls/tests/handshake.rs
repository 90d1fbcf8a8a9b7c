//! Real handshakes on loopback, between the port and the client that agents use.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use lanekeeper_client::{Client, Endpoint, Error, Identity};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, SanType};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore};
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::{authority, names, request, signed};
use crate::tls::certificate::provider;
use crate::tls::{Authority, Limits, Listener, Peer, Presented, ServerCertificate};

const HUNDRED_DAYS: Duration = Duration::from_hours(24 * 100);

/// A port that tells each client who it is.
struct Server {
    address: SocketAddr,
    presented: Presented,
    /// Ends the server when it is dropped.
    _runtime: Runtime,
}

fn serve_with(authority: &Authority, certificate: ServerCertificate, limits: Limits) -> Server {
    let runtime = Runtime::new().expect("a runtime");
    let listener = runtime.block_on(async {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Listener::new(tcp, authority, certificate, limits).expect("a TLS port")
    });
    let address = axum::serve::Listener::local_addr(&listener).expect("its address").address;
    let presented = listener.presented();
    let who = async |ConnectInfo(peer): ConnectInfo<Peer>| {
        let agent = peer.agent.map(|agent| {
            let certificate = agent.certificate.fingerprint.to_string();
            (agent.region.to_string(), agent.host.to_string(), certificate)
        });
        axum::Json(agent)
    };
    let router = Router::new().route("/who", get(who));
    let service = router.into_make_service_with_connect_info::<Peer>();
    runtime.spawn(axum::serve(listener, service).into_future());
    Server { address, presented, _runtime: runtime }
}

fn certificate_for(authority: &Authority, name: &str) -> ServerCertificate {
    authority.issue_server(&[name.to_owned()]).expect("a certificate")
}

fn serve(authority: &Authority) -> Server {
    serve_with(authority, certificate_for(authority, "127.0.0.1"), Limits::default())
}

type Who = Option<(String, String, String)>;

/// What a server makes of a client with some certificate and key.
fn who(
    server: &Server,
    trusted: &Authority,
    identity: Option<(&str, &SecretString)>,
) -> Result<Who, Error> {
    let identity = identity.map(|(certificate, key)| Identity {
        certificate_pem: certificate.to_owned(),
        key_pem: key.clone(),
    });
    let endpoint = Endpoint {
        authority_pem: Some(trusted.certificate_pem().to_owned()),
        identity,
        ..Endpoint::new(format!("https://{}", server.address))
    };
    Ok(Client::new(&endpoint)?.get("/who")?.body)
}

/// That a client with some certificate is turned away, and that one with none still is not.
fn assert_turned_away(authority: &Authority, certificate: &str, key: &SecretString) {
    let server = serve(authority);
    let error = who(&server, authority, Some((certificate, key))).expect_err("turned away");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(who(&server, authority, None).expect("let in"), None);
}

#[test]
fn an_agent_is_known_by_its_certificate_and_others_are_let_in_unknown() {
    let (authority, request) = (authority(), request());
    let server = serve(&authority);
    let issued = signed(&authority, &request.csr_pem, "h1", Duration::ZERO);
    let seen = who(&server, &authority, Some((&issued.pem, &request.key_pem))).expect("let in");
    let (region, host) = names("h1");
    let expected = (region.to_string(), host.to_string(), issued.facts.fingerprint.to_string());
    assert_eq!(seen, Some(expected));
    assert_eq!(who(&server, &authority, None).expect("let in"), None);
}

#[test]
fn a_renewed_certificate_is_the_same_host_with_another_fingerprint() {
    let (authority, old, new) = (authority(), request(), request());
    let server = serve(&authority);
    let [(_, host_before, before), (_, host_after, after)] = [old, new].map(|request| {
        let issued = signed(&authority, &request.csr_pem, "h1", Duration::ZERO);
        let seen = who(&server, &authority, Some((&issued.pem, &request.key_pem)));
        seen.expect("let in").expect("an agent")
    });
    assert_eq!(host_before, host_after);
    assert_ne!(before, after);
}

#[test]
fn an_agent_of_another_authority_is_turned_away_even_with_the_name_of_one_of_ours() {
    let request = request();
    let forged = signed(&authority(), &request.csr_pem, "h1", Duration::ZERO);
    assert_turned_away(&authority(), &forged.pem, &request.key_pem);
}

#[test]
fn an_expired_certificate_is_turned_away() {
    let (authority, request) = (authority(), request());
    let expired = signed(&authority, &request.csr_pem, "h1", HUNDRED_DAYS);
    assert_turned_away(&authority, &expired.pem, &request.key_pem);
}

#[test]
fn a_certificate_of_ours_that_is_no_agents_is_turned_away() {
    let authority = authority();
    let uri = |text: &str| SanType::URI(text.try_into().expect("a URI"));
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    let good = "lanekeeper://region/north/host/h1";
    for (names, usage) in [
        (vec![], client.clone()),
        (vec![uri("lanekeeper://region/north/host/")], client.clone()),
        (vec![uri("lanekeeper://region/north/host/a/host/b")], client.clone()),
        (vec![uri("https://region/north/host/h1")], client.clone()),
        (vec![uri(good), uri("lanekeeper://region/north/host/h2")], client.clone()),
        (vec![uri(good)], ExtendedKeyUsagePurpose::ServerAuth),
    ] {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        let certificate = authority.sign(params, usage, &key).expect("a certificate");
        assert_turned_away(&authority, &certificate.pem(), &key.serialize_pem().into());
    }
}

#[test]
fn a_client_turns_away_a_server_of_another_authority_or_of_another_name() {
    let (ours, theirs) = (authority(), authority());
    let foreign = serve_with(&ours, certificate_for(&theirs, "127.0.0.1"), Limits::default());
    let error = who(&foreign, &ours, None).expect_err("not ours").to_string();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    let elsewhere = serve_with(&ours, certificate_for(&ours, "127.0.0.2"), Limits::default());
    let error = who(&elsewhere, &ours, None).expect_err("another's name").to_string();
    assert!(error.contains("not valid for"), "{error}");
}

#[test]
fn a_server_shows_its_new_certificate_to_whoever_connects_after_it_was_replaced() {
    let (before, after) = (authority(), authority());
    let server = serve(&before);
    assert!(who(&server, &before, None).is_ok());
    let next = certificate_for(&after, "127.0.0.1");
    let renew_at = next.facts().renew_at();
    server.presented.replace(next);
    assert_eq!(server.presented.renew_at(), renew_at);
    assert!(who(&server, &before, None).is_err());
    assert!(who(&server, &after, None).is_ok());
}

#[test]
fn clients_that_never_finish_a_handshake_hold_up_nobody_and_are_given_up() {
    let authority = authority();
    let deadline = Duration::from_secs(3);
    let limits = Limits { handshakes: 4, deadline };
    let server = serve_with(&authority, certificate_for(&authority, "127.0.0.1"), limits);
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).expect("connected");
            // The beginning of a ClientHello (RFC 8446, 5.1).
            stream.write_all(&[22, 3, 1]).expect("sent");
            stream.set_read_timeout(Some(deadline * 3)).expect("set");
            stream
        })
        .collect();
    assert_eq!(who(&server, &authority, None).expect("let in"), None);
    assert!(begun.elapsed() < deadline, "it waited for the others: {:?}", begun.elapsed());
    let mut ended = slow.iter_mut().map(|stream| {
        // Nothing but the end, in whatever way.
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
        begun.elapsed()
    });
    let first = ended.next().expect("twelve of them");
    assert!(first < deadline, "the oldest made room at once: {first:?}");
    let last = ended.last().expect("twelve of them");
    assert!(last >= deadline && last < deadline * 2, "the rest had their time: {last:?}");
}

#[test]
fn a_client_chooses_among_tls_1_2_and_1_3_and_among_http_1_1_and_2() {
    let authority = authority();
    let server = serve(&authority);
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).expect("a root");
    let versions = [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ];
    for (version, expected) in versions {
        for protocol in ["h2", "http/1.1"] {
            let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            config.alpn_protocols = vec![protocol.into()];
            let name = ServerName::from(server.address.ip());
            let mut tls = ClientConnection::new(Arc::new(config), name).expect("a client");
            let mut tcp = TcpStream::connect(server.address).expect("connected");
            while tls.is_handshaking() {
                tls.complete_io(&mut tcp).expect("a handshake");
            }
            assert_eq!(tls.protocol_version(), Some(expected));
            assert_eq!(tls.alpn_protocol(), Some(protocol.as_bytes()));
        }
    }
}
