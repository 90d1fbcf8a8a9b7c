//! Which server a command speaks to and as whom, and the calls it makes of it.

use std::thread::sleep;
use std::time::Duration;

use lanekeeper_client::{Client, Endpoint, Error, Method};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::context::{Context, Contexts};
use crate::Failure;
use crate::output::note;

/// The variables of the environment that name a server, its authority (PEM, or a file with it) and
/// the API key.
const SERVER: &str = "LANEKEEPER_SERVER";
const AUTHORITY: &str = "LANEKEEPER_AUTHORITY";
pub(super) const API_KEY: &str = "LANEKEEPER_API_KEY";

/// How long to wait before a creation whose answer was lost is asked for again, each time.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3)];

/// Where a command works, and how it answers.
#[derive(clap::Args)]
pub(super) struct At {
    /// Context to use, whatever was chosen with `context use` or is set in the environment.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Organization to work in, with an operator's key; the key's own if not given.
    #[arg(long, global = true, value_name = "NAME", env = "LANEKEEPER_ORGANIZATION")]
    organization: Option<String>,
    /// Print the API's JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Endpoint { .. } => Self::Usage(error.to_string()),
            Error::Problem(problem) => match problem.detail {
                Some(detail) => Self::Work(detail),
                None => Self::Work(problem.to_string()),
            },
            _ => Self::Work(error.to_string()),
        }
    }
}

/// An authority's certificate: itself, or what is in the file of this name.
pub(super) fn authority(pem_or_file: &str) -> Result<String, Failure> {
    if pem_or_file.contains("-----BEGIN") {
        return Ok(pem_or_file.to_owned());
    }
    std::fs::read_to_string(pem_or_file).map_err(|error| {
        Failure::Usage(format!("{pem_or_file}, the authority's certificate: {error}"))
    })
}

/// What `set` says goes before what is kept. A kept key and authority are for the kept server: they
/// are not shown to another.
fn merged(kept: Option<Context>, set: impl Fn(&str) -> Option<String>) -> Option<Context> {
    let server = set(SERVER);
    let kept = kept.filter(|kept| server.as_ref().is_none_or(|server| *server == kept.server));
    let kept = kept.or_else(|| server.map(|server| Context { server, ..Context::default() }))?;
    Some(Context {
        authority: set(AUTHORITY).or(kept.authority),
        api_key: set(API_KEY).or(kept.api_key),
        ..kept
    })
}

impl At {
    fn context(&self) -> Result<Context, Failure> {
        let contexts = Contexts::load()?;
        let found = match &self.context {
            Some(name) => contexts.chosen(Some(name))?.cloned(),
            None => merged(contexts.chosen(None)?.cloned(), |name| {
                std::env::var(name).ok().filter(|value| !value.is_empty())
            }),
        };
        found.ok_or_else(|| {
            let add =
                "add one with 'lanekeeper context add', choose one with 'lanekeeper context use'";
            Failure::Usage(format!("no server is named: {add}, or set {SERVER}"))
        })
    }

    pub(super) fn session(&self) -> Result<Session, Failure> {
        let context = self.context()?;
        let client = Client::new(&Endpoint {
            authority_pem: context.authority.as_deref().map(authority).transpose()?,
            key: context.api_key.map(Into::into),
            ..Endpoint::new(&context.server)
        })?;
        let client = match self.organization.as_ref().or(context.organization.as_ref()) {
            Some(name) => client.within(name)?,
            None => client,
        };
        Ok(Session { client, json: self.json })
    }
}

/// A server that is spoken to.
pub(crate) struct Session {
    pub(super) client: Client,
    /// Whether the API's JSON is wanted.
    pub(super) json: bool,
}

impl Session {
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        Ok(self.client.get(path)?.body)
    }

    /// Ask for something new, once: with an idempotency key it can be asked for again when no answer
    /// comes, as often as it takes.
    pub(super) fn create(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        let key = random()?;
        let mut pauses = PAUSES.into_iter();
        loop {
            let call = self.client.call(Method::POST, path).idempotency_key(&key);
            match (call.json(body)?.send(), pauses.next()) {
                (Ok(answer), _) => return Ok(answer.body),
                (Err(error), Some(pause)) if may_be_lost(&error) => {
                    note(format!("{}; asking again", Failure::from(error)));
                    sleep(pause);
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
    }
}

/// Whether it is not known if the server has done what it was asked for.
fn may_be_lost(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. })
        || error.status().is_some_and(|status| (502..=504).contains(&status))
}

fn random() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Work(format!("the system has no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Context {
        Context {
            server: "https://one".to_owned(),
            api_key: Some("lk_kept".to_owned()),
            ..Context::default()
        }
    }

    fn key_with(environment: &[(&str, &str)], kept: Option<Context>) -> (String, Option<String>) {
        let set = |wanted: &str| {
            let mut found = environment.iter().filter(|(name, _)| *name == wanted);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        let context = merged(kept, set).expect("a server");
        (context.server, context.api_key)
    }

    #[test]
    fn the_environment_goes_before_the_context() {
        let (server, key) = key_with(&[(API_KEY, "lk_set")], Some(kept()));
        assert_eq!((server.as_str(), key.as_deref()), ("https://one", Some("lk_set")));
        let (_, key) = key_with(&[(SERVER, "https://one")], Some(kept()));
        assert_eq!(key.as_deref(), Some("lk_kept"));
        let (server, _) = key_with(&[(SERVER, "https://two")], None);
        assert_eq!(server, "https://two");
        assert!(merged(None, |_| None).is_none());
    }

    #[test]
    fn a_kept_key_is_never_shown_to_another_server() {
        let (server, key) = key_with(&[(SERVER, "https://two")], Some(kept()));
        assert_eq!((server.as_str(), key), ("https://two", None));
    }
}
