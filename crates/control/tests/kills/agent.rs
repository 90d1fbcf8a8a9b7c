//! The agent of a host that has everything at once, over the API that agents have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lanekeeper_client::{Client, Endpoint, Error, Identity, certificate_request};
use lanekeeper_control::protocol::{Desired, Enrol, Enrolled, Heartbeat};
use serde_json::Value;

use crate::obedience::obeyed;

/// How long a server may hold back what is desired: signs of life are sent between two calls.
const HOLD: Duration = Duration::from_secs(2);
/// After a call that failed.
const AGAIN: Duration = Duration::from_millis(200);

/// An agent on a thread of its own.
pub(crate) struct Agent {
    clients: Vec<Client>,
    dead: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Become a host of the servers, and say what it has.
    pub(crate) fn enrol(
        servers: &[String],
        authority: &str,
        token: &str,
        inventory: &Value,
    ) -> Self {
        let endpoint = |url: &String| Endpoint {
            authority_pem: Some(authority.to_owned()),
            ..Endpoint::new(url)
        };
        let request = certificate_request().expect("a request");
        let enrol = Enrol { token: token.to_owned(), csr: request.csr_pem };
        let stranger = Client::new(&endpoint(&servers[0])).expect("a client");
        let given: Enrolled = stranger.post("/v1/agent/enrol", &enrol).expect("enrolled").body;
        let member = |url: &String| {
            let identity = Identity {
                certificate_pem: given.certificate.clone(),
                key_pem: request.key_pem.clone(),
            };
            Client::new(&Endpoint { identity: Some(identity), ..endpoint(url) }).expect("a client")
        };
        let clients: Vec<_> = servers.iter().map(member).collect();
        clients[0].put::<()>("/v1/agent/inventory", inventory).expect("an inventory");
        let mut agent = Self { clients, dead: Arc::default(), thread: None };
        agent.run();
        agent
    }

    /// Work, as a new process of it would: nothing is remembered.
    pub(crate) fn run(&mut self) {
        let (clients, dead) = (self.clients.clone(), Arc::new(AtomicBool::new(false)));
        self.dead = Arc::clone(&dead);
        self.thread = Some(std::thread::spawn(move || {
            let (mut after, mut at) = (0, 0);
            while !dead.load(Ordering::Relaxed) {
                if let Ok(revision) = round(&clients[at % clients.len()], after, &dead) {
                    after = revision;
                } else {
                    // Another server may know.
                    at += 1;
                    std::thread::sleep(AGAIN);
                }
            }
        }));
    }

    /// End it where it is.
    pub(crate) fn kill(&mut self) {
        self.dead.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.dead.store(true, Ordering::Relaxed);
    }
}

fn round(client: &Client, after: u64, dead: &AtomicBool) -> Result<u64, Error> {
    client.post::<Value>("/v1/agent/heartbeat", &Heartbeat::default())?;
    let path = format!("/v1/agent/desired?after={after}&wait={}", HOLD.as_secs());
    let desired: Desired = client.wait(&path, HOLD)?.body;
    if !dead.load(Ordering::Relaxed) {
        client.put::<()>("/v1/agent/vms", &obeyed(&desired))?;
    }
    Ok(desired.revision)
}
