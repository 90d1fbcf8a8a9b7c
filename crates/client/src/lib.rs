//! The client of the server's API: what agents and the command line speak to it with. It blocks, so
//! whoever calls it has a thread for it.
//!
//! - [`Client`] sends JSON and reads JSON: [`Client::get`], [`Client::post`] and so on, [`Client::wait`]
//!   for an answer that the server holds back until there is something new, and [`Client::call`] for the
//!   rest (idempotency keys, ETags, queries).
//! - [`Client::events`] reads server-sent events, and goes on where it was when the connection breaks.
//! - [`certificate_request`] makes the key of an agent and asks for a certificate for it.
//!
//! Redirects are not followed, proxies in the environment are not used, and a secret goes over plain
//! HTTP to this machine itself only, unless that is asked for.
#![forbid(unsafe_code)]

mod call;
mod endpoint;
mod error;
mod event_stream;
mod events;
mod request;

use std::fmt;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::HeaderValue;

pub use call::{Answer, Call};
pub use endpoint::{Endpoint, Identity};
pub use error::{Error, Problem};
pub use event_stream::Event;
pub use events::Events;
pub use request::{CertificateRequest, certificate_request};
pub use ureq::http::Method;

/// How long a call may take, from the name's look-up to the answer's last byte.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A server, and who speaks to it. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    /// Its address, without a `/` at the end.
    base: String,
    authorization: Option<HeaderValue>,
    organization: Option<HeaderValue>,
}

/// Neither the API key nor the private key is in it.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.base).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of a server. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Endpoint`] if the address is none, or plain HTTP to elsewhere, or the key, the authority
    /// or the identity is not what it should be.
    pub fn new(endpoint: &Endpoint) -> Result<Self, Error> {
        let authorization = endpoint.key.as_ref().map(bearer).transpose();
        Ok(Self {
            agent: endpoint.agent()?,
            base: endpoint.url.trim_end_matches('/').to_owned(),
            authorization: authorization.map_err(|why| endpoint.refused(&why))?,
            organization: None,
        })
    }

    /// The same, at work in an organization: any, with an operator's API key. Without this it is the
    /// key's own.
    ///
    /// # Errors
    /// [`Error::Endpoint`] if no organization can be called that.
    pub fn within(self, organization: &str) -> Result<Self, Error> {
        match HeaderValue::from_str(organization) {
            Ok(name) => Ok(Self { organization: Some(name), ..self }),
            Err(_) => Err(Error::Endpoint {
                why: format!("'{}' is no organization's name", organization.escape_debug()),
                url: self.base,
            }),
        }
    }

    /// Reads what is at `path`, which begins with `/`.
    ///
    /// # Errors
    /// Those of [`Call::send`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        self.call(Method::GET, path).send()
    }

    /// Reads what is at `path`, which the server may hold back for up to `hold`: a long poll. What it is
    /// asked to hold back for is in `path`.
    ///
    /// # Errors
    /// Those of [`Call::send`].
    pub fn wait<T: DeserializeOwned>(
        &self,
        path: &str,
        hold: Duration,
    ) -> Result<Answer<T>, Error> {
        self.call(Method::GET, path).timeout(hold + CALL_TIMEOUT).send()
    }

    /// Makes something new. To be able to repeat it, use [`Self::call`] with an idempotency key.
    ///
    /// # Errors
    /// Those of [`Call::send`].
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Answer<T>, Error> {
        self.call(Method::POST, path).json(body)?.send()
    }

    /// Puts something in the place of what is at `path`.
    ///
    /// # Errors
    /// Those of [`Call::send`].
    pub fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Answer<T>, Error> {
        self.call(Method::PUT, path).json(body)?.send()
    }

    /// Changes a part of what is at `path`.
    ///
    /// # Errors
    /// Those of [`Call::send`].
    pub fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Answer<T>, Error> {
        self.call(Method::PATCH, path).json(body)?.send()
    }

    /// Removes what is at `path`.
    ///
    /// # Errors
    /// Those of [`Call::send`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        self.call(Method::DELETE, path).send()
    }

    /// A call to be made more precise before it is sent.
    pub fn call(&self, method: Method, path: &str) -> Call<'_> {
        Call::new(self, method, path)
    }

    /// The events at `path`, for as long as there are any: see [`Events`].
    pub fn events(&self, path: &str) -> Events {
        Events::new(self.clone(), path)
    }
}

/// RFC 6750, 2.1.
fn bearer(key: &SecretString) -> Result<HeaderValue, String> {
    let text = SecretString::from(format!("Bearer {}", key.expose_secret()));
    let mut value = HeaderValue::from_str(text.expose_secret())
        .map_err(|_| "the API key holds characters that no key has".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
