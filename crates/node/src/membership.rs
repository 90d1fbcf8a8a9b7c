//! Who this host is to its server: a certificate that was given for a one-time token, and its key. They
//! are one file of the state folder, so that there is never one of them without the other.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lanekeeper_client::{Client, Endpoint, Identity, certificate_request};
use lanekeeper_control::keys::{HostName, RegionName};
use lanekeeper_control::protocol::{Enrol, Enrolled};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::NodeError;
use crate::journal::replace;

/// After this a certificate is renewed, of which the server's are good for three times as long.
const RENEW_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// A host's place among those of a server.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// The server's address.
    pub server: String,
    /// The host it is.
    pub host: HostName,
    /// Where that host is.
    pub region: RegionName,
    certificate: String,
    key: String,
    authority: String,
    /// Seconds from 1970 to when the certificate was given.
    since: u64,
}

/// Without its key.
impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, host, region, since, .. } = self;
        f.debug_struct("Membership")
            .field("server", server)
            .field("host", host)
            .field("region", region)
            .field("since", since)
            .finish_non_exhaustive()
    }
}

impl Membership {
    /// The one that is in a state folder, if there is one.
    ///
    /// # Errors
    /// [`NodeError::File`], also for a file that is none.
    pub fn load(folder: &Path) -> Result<Option<Self>, NodeError> {
        let path = path(folder);
        match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            text => {
                let text = text.map_err(NodeError::file(&path, "read"))?;
                let read = serde_json::from_slice(&text).map(Some);
                read.map_err(|error| NodeError::file(&path, "understand")(error.into()))
            }
        }
    }

    /// Become the host that a token was made for, and keep that in the state folder. `authority_pem` is
    /// what the server's certificate must be of; without it those of this machine count, and from then
    /// on the one that the server names.
    ///
    /// # Errors
    /// [`NodeError::Server`], and then the token is as good as it was unless the answer was lost;
    /// [`NodeError::File`].
    pub fn enrol(
        folder: &Path,
        server: &str,
        authority_pem: Option<String>,
        token: &str,
    ) -> Result<Self, NodeError> {
        fs::create_dir_all(folder).map_err(NodeError::file(folder, "make"))?;
        let client = Client::new(&Endpoint { authority_pem, ..Endpoint::new(server) })?;
        let request = certificate_request()?;
        let enrol = Enrol { token: token.to_owned(), csr: request.csr_pem };
        let given = client.post("/v1/agent/enrol", &enrol)?.body;
        Self::of(server, given, &request.key_pem).kept(folder)
    }

    /// Another certificate in place of this one, if it is time.
    ///
    /// # Errors
    /// Those of [`Membership::enrol`].
    pub(crate) fn renewed(
        &self,
        folder: &Path,
        client: &Client,
    ) -> Result<Option<Self>, NodeError> {
        if now().saturating_sub(self.since) < RENEW_AFTER.as_secs() {
            return Ok(None);
        }
        let request = certificate_request()?;
        let given = client.post("/v1/agent/renew", &json!({ "csr": request.csr_pem }))?.body;
        Self::of(&self.server, given, &request.key_pem).kept(folder).map(Some)
    }

    /// Who speaks to the server as this host.
    pub(crate) fn client(&self) -> Result<Client, NodeError> {
        let identity = Identity {
            certificate_pem: self.certificate.clone(),
            key_pem: self.key.clone().into(),
        };
        Ok(Client::new(&Endpoint {
            authority_pem: Some(self.authority.clone()),
            identity: Some(identity),
            ..Endpoint::new(&self.server)
        })?)
    }

    fn of(server: &str, given: Enrolled, key: &SecretString) -> Self {
        let Enrolled { host, region, certificate, authority } = given;
        let (server, key) = (server.to_owned(), key.expose_secret().to_owned());
        Self { server, host, region, certificate, key, authority, since: now() }
    }

    fn kept(self, folder: &Path) -> Result<Self, NodeError> {
        let path = path(folder);
        let text = serde_json::to_vec(&self)
            .map_err(|error| NodeError::file(&path, "encode")(error.into()))?;
        replace(&path, &text)?;
        Ok(self)
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("membership.json")
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::{Receiver, channel};

    use lanekeeper_control::placement::{HostReport, Scalars};
    use lanekeeper_control::protocol::{Heartbeat, VmReports};

    use super::*;
    use crate::link::{Https, Link, LinkError};

    /// A server that gives these answers (status, body) in turn, and tells what it was asked.
    fn server(answers: Vec<(u16, String)>) -> (String, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (tell, asked) = channel();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().expect("a caller");
                let mut reader = BufReader::new(stream.try_clone().expect("clones"));
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).expect("a line");
                    if line.trim().is_empty() {
                        break;
                    }
                    let lower = line.to_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().expect("a number");
                    }
                    head += &line;
                }
                let mut text = vec![0; length];
                reader.read_exact(&mut text).expect("a body");
                let first = head.lines().next().unwrap_or_default().to_owned();
                let text = String::from_utf8(text).expect("text");
                tell.send(format!("{first} {text}")).expect("is heard");
                let kind =
                    if status >= 400 { "application/problem+json" } else { "application/json" };
                let answer = format!(
                    "HTTP/1.1 {status} Any\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
                     Connection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).expect("answered");
            }
        });
        (url, asked)
    }

    fn given(certificate: &str) -> String {
        let host = json!({
            "host": "h1", "region": "north", "certificate": certificate, "authority": "the authority",
        });
        host.to_string()
    }

    fn aged(mut membership: Membership, folder: &Path) -> Membership {
        membership.since -= RENEW_AFTER.as_secs();
        membership.kept(folder).expect("kept")
    }

    #[test]
    fn a_host_is_enrolled_once_and_its_key_is_kept_from_others() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Membership::load(folder.path()).expect("looks").is_none());
        let (url, asked) = server(vec![(200, given("first"))]);
        let membership =
            Membership::enrol(folder.path(), &url, None, "lk_1_secret").expect("enrolled");
        let asked = asked.recv().expect("asked");
        assert!(
            asked.starts_with("POST /v1/agent/enrol") && asked.contains("lk_1_secret"),
            "{asked}"
        );
        assert!(
            asked.contains("BEGIN CERTIFICATE REQUEST") && !asked.contains("PRIVATE"),
            "{asked}"
        );
        let again = Membership::load(folder.path()).expect("reads").expect("is there");
        assert_eq!((again.host.as_str(), &again.key), ("h1", &membership.key));
        assert!(!format!("{again:?}").contains("PRIVATE"));
        let mode = fs::metadata(path(folder.path())).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_token_that_is_refused_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let problem = json!({ "title": "No", "detail": "this token was used" }).to_string();
        let (url, _asked) = server(vec![(403, problem)]);
        let error = Membership::enrol(folder.path(), &url, None, "lk_1_x").expect_err("refused");
        assert!(error.to_string().contains("this token was used"), "{error}");
        assert!(Membership::load(folder.path()).expect("looks").is_none());
    }

    #[test]
    fn a_certificate_is_renewed_when_it_is_time_and_not_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let (url, asked) = server(vec![(200, given("first")), (200, given("second"))]);
        let first = Membership::enrol(folder.path(), &url, None, "lk_1_x").expect("enrolled");
        let client = Client::new(&Endpoint::new(&url)).expect("a client");
        assert!(first.renewed(folder.path(), &client).expect("not yet").is_none());
        let old = aged(first, folder.path());
        let second = old.renewed(folder.path(), &client).expect("renewed").expect("it is time");
        assert_eq!(second.certificate, "second");
        assert_ne!(second.key, old.key);
        let asked: Vec<_> = asked.iter().take(2).collect();
        assert!(asked[1].starts_with("POST /v1/agent/renew"), "{asked:?}");
        let kept = Membership::load(folder.path()).expect("reads").expect("is there");
        assert_eq!(kept.certificate, "second");
    }

    #[test]
    fn each_call_is_the_one_of_the_protocol() {
        let desired = json!({ "revision": 7, "vms": [] }).to_string();
        let lease = json!({ "lease_seconds": 9 }).to_string();
        let problem =
            json!({ "title": "No", "detail": "two PFs are reported as nic0" }).to_string();
        let (url, asked) = server(vec![
            (204, String::new()),
            (200, lease),
            (200, desired),
            (204, String::new()),
            (422, problem),
        ]);
        let link = Https::new(Client::new(&Endpoint::new(&url)).expect("a client"));
        let report =
            HostReport { pod: None, scalars: Scalars::default(), gpus: None, pfs: Vec::new() };
        link.inventory(&report).expect("taken");
        assert_eq!(link.heartbeat(&Heartbeat::default()).expect("taken").lease_seconds, 9);
        assert_eq!(link.desired(5, Duration::from_secs(2)).expect("told").revision, 7);
        link.report(&VmReports::default()).expect("taken");
        let refused = link.inventory(&report).expect_err("refused");
        assert!(matches!(&refused, LinkError::Refused(why) if why.contains("nic0")), "{refused}");
        let asked: Vec<_> = asked.iter().take(4).collect();
        let first = |at: usize| asked[at].split(" HTTP").next().unwrap_or_default().to_owned();
        assert_eq!(first(0), "PUT /v1/agent/inventory");
        assert_eq!(first(1), "POST /v1/agent/heartbeat");
        assert_eq!(first(2), "GET /v1/agent/desired?after=5&wait=2");
        assert_eq!(first(3), "PUT /v1/agent/vms");
        let gone = link.heartbeat(&Heartbeat::default()).expect_err("nobody is there");
        assert!(matches!(gone, LinkError::Unreachable(_)), "{gone}");
    }
}
