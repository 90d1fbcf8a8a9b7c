//! One call and its answer: what goes into the request's head and body, and what is made of whatever
//! comes back.

use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, LOCATION,
};
use ureq::http::{HeaderMap, Method, Request, Response, request};
use ureq::{Body, RequestExt};

use crate::error::{Error, Problem};
use crate::{CALL_TIMEOUT, Client};

/// Most bytes of an answer.
const LONGEST_ANSWER: u64 = 64 << 20;
/// All that a query must not hold as it is (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Bytes of an answer that is not understood, as far as they are shown.
const SHOWN: usize = 200;

/// What a server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer<T> {
    /// Its status (RFC 9110, 15): 200 to 299.
    pub status: u16,
    /// Which version of the thing it is: for [`Call::if_match`].
    pub etag: Option<String>,
    /// Its body. One with nothing in it is JSON's `null`, which `()` and an `Option` can be read from.
    pub body: T,
}

/// A call that is being made ready.
#[must_use = "nothing is sent before send()"]
pub struct Call<'a> {
    client: &'a Client,
    url: String,
    request: request::Builder,
    body: Option<Vec<u8>>,
    timeout: Duration,
}

/// What it sends is not in it: that may be a secret.
impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("url", &self.url).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(client: &'a Client, method: Method, path: &str) -> Self {
        let request = client.request(method).header(ACCEPT, "application/json");
        let url = client.url(path);
        Self { client, url, request, body: None, timeout: CALL_TIMEOUT }
    }

    /// Sends `body`.
    ///
    /// # Errors
    /// [`Error::Body`] if it cannot be JSON.
    pub fn json(mut self, body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        match serde_json::to_vec(body) {
            Ok(bytes) => {
                self.body = Some(bytes);
                Ok(self)
            }
            Err(why) => Err(Error::Body { url: self.url, why }),
        }
    }

    /// Adds `name=value` to the query.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        let [name, value] = [name, value].map(|text| utf8_percent_encode(text, RESERVED));
        self.url = format!("{}{sign}{name}={value}", self.url);
        self
    }

    /// Makes it one that may be repeated: the server does once what it is asked for with one key.
    pub fn idempotency_key(self, key: &str) -> Self {
        self.header(HeaderName::from_static("idempotency-key"), key)
    }

    /// Does it only if the thing is still of this version ([`Answer::etag`]).
    pub fn if_match(self, etag: &str) -> Self {
        self.header(IF_MATCH, etag)
    }

    fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// How long it may take in all; [`CALL_TIMEOUT`] otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends it and waits for the answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if there is none in time, [`Error::Problem`] if the server refuses, and
    /// [`Error::NotJson`] if the answer is something else.
    pub fn send<T: DeserializeOwned>(self) -> Result<Answer<T>, Error> {
        let url = self.url.clone();
        let (status, headers, body) = self.fetch()?;
        understood(&url, status, &headers, &body)
    }

    /// Sends it and waits for the answer, which may be any text: a page, or metrics.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::Problem`], as [`Call::send`].
    pub fn send_for_text(self) -> Result<Answer<String>, Error> {
        let url = self.url.clone();
        let (status, headers, body) = self.fetch()?;
        if !(200..300).contains(&status) {
            return understood(&url, status, &headers, &body);
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answer { status, etag: None, body })
    }

    fn fetch(self) -> Result<(u16, HeaderMap, Vec<u8>), Error> {
        let failed = |error: &ureq::Error| Error::unreachable(&self.url, Some(self.timeout), error);
        let request = self.request.uri(&self.url);
        let response = match self.body {
            Some(body) => request
                .header(CONTENT_TYPE, "application/json")
                .body(body)
                .map_err(ureq::Error::from)
                .and_then(|request| self.client.run(request, self.timeout)),
            None => request
                .body(())
                .map_err(ureq::Error::from)
                .and_then(|request| self.client.run(request, self.timeout)),
        };
        let mut response = response.map_err(|error| failed(&error))?;
        let body = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec();
        let body = body.map_err(|error| failed(&error))?;
        Ok((response.status().as_u16(), std::mem::take(response.headers_mut()), body))
    }
}

impl Client {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}/{}", self.base, path.trim_start_matches('/'))
    }

    pub(crate) fn request(&self, method: Method) -> request::Builder {
        let named = HeaderName::from_static("lanekeeper-organization");
        let all = [(AUTHORIZATION, &self.authorization), (named, &self.organization)];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)))
            .fold(Request::builder().method(method), |request, (name, value)| {
                request.header(name, value)
            })
    }

    fn run(
        &self,
        request: Request<impl ureq::AsSendBody>,
        timeout: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        request.with_agent(&self.agent).configure().timeout_global(Some(timeout)).run()
    }
}

fn understood<T: DeserializeOwned>(
    url: &str,
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Answer<T>, Error> {
    if !(200..300).contains(&status) {
        return Err(refusal(url, status, headers, body));
    }
    let json: &[u8] = if body.is_empty() { b"null" } else { body };
    match serde_json::from_slice(json) {
        Ok(body) => Ok(Answer { status, etag: text(headers, &ETAG).map(str::to_owned), body }),
        Err(why) => {
            let why = format!("its body is not what was asked for: {why}; {}", beginning(body));
            Err(Error::NotJson { url: url.to_owned(), status, why })
        }
    }
}

/// What an answer says that is not one of success.
pub(crate) fn refusal(url: &str, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
    let not_json = |why| Error::NotJson { url: url.to_owned(), status, why };
    if (300..400).contains(&status) {
        let to = text(headers, &LOCATION).unwrap_or("nowhere");
        return not_json(format!("redirects are not followed; this one leads to {to}"));
    }
    let media = text(headers, &CONTENT_TYPE).unwrap_or("no type");
    if media.split(';').next().map(str::trim) != Some("application/problem+json") {
        return not_json(format!("says not why; its body is {media}: {}", beginning(body)));
    }
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => Error::Problem(Box::new(Problem { status: Some(status), ..problem })),
        Err(why) => not_json(format!("its problem is not JSON: {why}; {}", beginning(body))),
    }
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn beginning(body: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
    format!("it begins with '{}'", shown.escape_debug())
}
