//! The authority: made once whatever happens, and signing for whom its caller says and no other.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use secrecy::{ExposeSecret, SecretString};

use super::{authority, names, request, signed};
use crate::tls::{AgentIdentity, Authority, CertificateFacts, ServerCertificate, TlsError};

const DAY: Duration = Duration::from_hours(24);

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

#[test]
fn an_authority_is_made_once_by_however_many_open_it() {
    let servers = 8;
    // Whether two of them find no authority at the same moment is a matter of luck.
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let start = Barrier::new(servers);
        let open = || {
            start.wait();
            Authority::open(folder.path()).expect("an authority").certificate_pem().to_owned()
        };
        let opened: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> = (0..servers).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().expect("opened")).collect()
        });
        let kept = Authority::open(folder.path()).expect("an authority");
        assert!(opened.iter().all(|pem| pem == kept.certificate_pem()));
        let files: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(files.len(), 1, "no draft is left: {files:?}");
    }
}

#[test]
fn an_authoritys_key_is_for_its_owner_only_and_not_in_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Authority::open(folder.path()).expect("an authority");
    let mode = fs::metadata(folder.path().join("authority.pem")).expect("a file").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert!(!made.certificate_pem().contains("PRIVATE"), "{}", made.certificate_pem());
}

#[test]
fn a_key_that_others_may_read_is_refused_until_they_may_not() {
    let folder = tempfile::tempdir().expect("a folder");
    Authority::open(folder.path()).expect("an authority");
    let file = folder.path().join("authority.pem");
    for (mode, good) in [(0o640, false), (0o604, false), (0o400, true)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("set");
        match Authority::open(folder.path()) {
            Ok(_) => assert!(good, "{mode:o}"),
            Err(TlsError::Exposed { mode: seen, .. }) => assert_eq!((seen, good), (mode, false)),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_damaged_authority_is_refused_and_not_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    Authority::open(folder.path()).expect("an authority");
    let file = folder.path().join("authority.pem");
    let text = fs::read_to_string(&file).expect("a file");
    fs::write(&file, &text[..text.len() / 2]).expect("cut");
    assert!(matches!(Authority::open(folder.path()), Err(TlsError::Pem { .. })));
    assert_eq!(fs::read_to_string(&file).expect("a file"), text[..text.len() / 2]);
}

#[test]
fn a_key_of_another_authority_and_a_certificate_of_none_are_refused() {
    let generate = || Authority::generate().expect("an authority");
    let part = |text: &SecretString, certificate: bool| {
        let text = text.expose_secret();
        let at = text.find("-----BEGIN CERTIFICATE").expect("a certificate");
        if certificate { text[at..].to_owned() } else { text[..at].to_owned() }
    };
    let refused = |text: String| {
        let error = Authority::from_pem(&text.into()).expect_err("refused").to_string();
        assert!(!error.contains("PRIVATE"), "{error}");
        error
    };
    let (one, two) = (generate(), generate());
    let mixed = refused(part(&one, false) + &part(&two, true));
    assert!(mixed.contains("not that of its certificate"), "{mixed}");
    let key = KeyPair::generate().expect("a key");
    let plain = CertificateParams::default().self_signed(&key).expect("a certificate");
    let plain = refused(key.serialize_pem() + &plain.pem());
    assert!(plain.contains("CA:TRUE"), "{plain}");
    refused(part(&one, true));
    refused(part(&one, false));
}

#[test]
fn servers_that_share_one_authority_sign_for_one_another() {
    let text = Authority::generate().expect("an authority");
    let [one, two] = [0, 1].map(|_| Authority::from_pem(&text).expect("an authority"));
    assert_eq!(one.certificate_pem(), two.certificate_pem());
    let shown = format!("{one:?}");
    assert!(!shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn only_the_key_is_taken_from_a_request_that_asks_for_more() {
    let key = KeyPair::generate().expect("a key");
    let mut greedy = CertificateParams::new(vec!["server.example".into()]).expect("a name");
    let uri = "lanekeeper://region/north/host/other".try_into().expect("a URI");
    greedy.subject_alt_names.push(SanType::URI(uri));
    greedy.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    greedy.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let request = greedy.serialize_request(&key).expect("a request").pem().expect("PEM");

    let issued = signed(&authority(), &request, "own", Duration::ZERO);
    let der = der(&issued.pem);
    let identity = AgentIdentity::of(&der, SystemTime::now()).expect("an agent");
    assert_eq!((identity.region, identity.host), names("own"));
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).expect("a certificate");
    assert!(!parsed.is_ca());
    let usage = parsed.extended_key_usage().expect("one").expect("one").value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any);
    assert_eq!(
        parsed.subject_alternative_name().expect("one").expect("one").value.general_names.len(),
        1
    );
}

#[test]
fn a_request_that_is_not_signed_by_its_own_key_is_refused() {
    let (region, host) = names("h1");
    let request = CertificateSigningRequestDer::from_pem_slice(request().csr_pem.as_bytes());
    let mut bytes = request.expect("a request").to_vec();
    let at = bytes.windows(5).position(|part| part == b"agent").expect("its subject");
    bytes[at] = b'A';
    let base64 = BASE64_STANDARD.encode(bytes);
    let changed = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{base64}\n-----END CERTIFICATE REQUEST-----\n"
    );
    let refused = authority().sign_agent(&changed, &region, &host).expect_err("changed");
    let signature = rcgen::Error::InvalidCertificationRequestSignature;
    assert!(matches!(&refused, TlsError::Request(why) if *why == signature), "{refused}");
    for text in ["", "nothing", authority().certificate_pem()] {
        let refused = authority().sign_agent(text, &region, &host);
        assert!(matches!(refused, Err(TlsError::Request(_))), "{text}: {refused:?}");
    }
}

#[test]
fn a_certificate_says_when_to_renew_it_and_no_two_have_the_same_serial() {
    let (authority, request) = (authority(), request());
    let [one, two] =
        [0, 1].map(|_| signed(&authority, &request.csr_pem, "h1", Duration::ZERO).facts);
    assert_ne!(one.serial, two.serial);
    assert_ne!(one.fingerprint, two.fingerprint);
    let now = SystemTime::now();
    let left = one.not_after.duration_since(now).expect("later");
    assert!(left <= 90 * DAY && left > 89 * DAY, "{left:?}");
    assert!(
        one.is_valid_at(now) && one.renew_at() > now + 59 * DAY && one.renew_at() < now + 61 * DAY
    );
}

#[test]
fn a_fingerprint_is_the_one_that_others_show() {
    let issued = signed(&authority(), &request().csr_pem, "h1", Duration::ZERO);
    let facts = CertificateFacts::read(&issued.pem).expect("a certificate");
    assert_eq!(facts, issued.facts);
    let digits = facts.fingerprint.to_string();
    let pairs = digits.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).expect("digits"));
    let bytes: Vec<u8> =
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("two digits")).collect();
    assert_eq!(bytes, others_digest(&der(&issued.pem)));
}

/// SHA-256 by another's hand than ours: rustls's provider.
fn others_digest(bytes: &[u8]) -> Vec<u8> {
    let suites = rustls::crypto::ring::default_provider().cipher_suites;
    let suite = suites.iter().find_map(|suite| match suite.suite() {
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256 => suite.tls13(),
        _ => None,
    });
    let hash = suite.expect("every provider has it").common.hash_provider.hash(bytes);
    hash.as_ref().to_vec()
}

#[test]
fn a_certificate_past_its_time_is_no_identity_though_a_session_brings_it_again() {
    let issued = signed(&authority(), &request().csr_pem, "h1", Duration::ZERO);
    let der = der(&issued.pem);
    let now = SystemTime::now();
    assert!(AgentIdentity::of(&der, now).is_ok());
    for time in [now + 91 * DAY, now - DAY] {
        assert!(matches!(AgentIdentity::of(&der, time), Err(TlsError::Untimely { .. })));
    }
}

#[test]
fn a_server_is_certified_by_names_and_addresses_only() {
    let authority = authority();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let good = names(&["server.example", "10.0.0.1", "fd00::1"]);
    assert!(authority.issue_server(&good).is_ok());
    for bad in ["", "a b", "https://server.example", "10.0.0.1:8443"] {
        let refused = authority.issue_server(&names(&["server.example", bad]));
        assert!(matches!(refused, Err(TlsError::Name(name)) if name == bad), "{bad}");
    }
}

#[test]
fn an_operators_own_certificate_needs_its_own_key() {
    let make = || {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["server.example".into()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        (certificate, key.serialize_pem())
    };
    let ((certificate, key), (_, other)) = (make(), make());
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate_file, key_file] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    fs::write(&certificate_file, &certificate).expect("written");
    fs::write(&key_file, &key).expect("written");
    let own = ServerCertificate::from_files(&certificate_file, &key_file).expect("its own");
    assert_eq!(own.facts(), &CertificateFacts::read(&certificate).expect("a certificate"));
    assert!(matches!(
        ServerCertificate::from_pem(&certificate, &other),
        Err(TlsError::Unusable(_))
    ));
    fs::remove_file(&key_file).expect("removed");
    let missing = ServerCertificate::from_files(&certificate_file, &key_file).expect_err("missing");
    assert!(missing.to_string().contains("key.pem"), "{missing}");
}
