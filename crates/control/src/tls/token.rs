//! Secrets that stand for somebody: API keys, and tokens that enrol one host once. A secret is shown
//! when it is made and never again; the store has its hash.
//!
//! One is `lk_ID_SECRET` (an API key) or `lke_ID_SECRET` (an enrolment token): an id to find its hash
//! by, 16 hexadecimal digits, and 256 bits from the operating system in base64url without padding (RFC
//! 4648, section 5), 43 characters. The prefix lets scanners find secrets that were published by
//! mistake.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::TlsError;

/// Bytes of a secret that are random.
const RANDOM: usize = 32;
/// Digits of an id.
const ID_DIGITS: usize = 16;

/// What a secret is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Calls to the API, until it is revoked.
    ApiKey,
    /// Enrolment of one host, once.
    Enrolment,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::ApiKey => "lk",
            Self::Enrolment => "lke",
        }
    }
}

/// A secret. It has no `Display`, and its `Debug` shows its id only.
#[derive(Clone, Debug)]
pub struct Secret {
    kind: Kind,
    id: String,
    text: SecretString,
}

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// [`TlsError::Random`] if the system has no random numbers.
    pub fn generate(kind: Kind) -> Result<Self, TlsError> {
        let mut id = [0; ID_DIGITS / 2];
        getrandom::fill(&mut id)?;
        let id = format!("{:0ID_DIGITS$x}", u64::from_be_bytes(id));
        let mut random = [0; RANDOM];
        getrandom::fill(&mut random)?;
        let prefix = kind.prefix();
        let text = format!("{prefix}_{id}_{}", BASE64_URL_SAFE_NO_PAD.encode(random));
        Ok(Self { kind, id, text: text.into() })
    }

    /// One that a client has sent.
    ///
    /// # Errors
    /// [`TlsError::Token`] if it cannot be one.
    pub fn parse(text: &str) -> Result<Self, TlsError> {
        // Base64url has '_' too, but only the last part is base64url.
        let mut parts = text.splitn(3, '_');
        let (Some(prefix), Some(id), Some(random)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(TlsError::Token);
        };
        let kind = [Kind::ApiKey, Kind::Enrolment].into_iter().find(|kind| kind.prefix() == prefix);
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = id.len() == ID_DIGITS && id.bytes().all(is_digit);
        let random = BASE64_URL_SAFE_NO_PAD.decode(random).map_err(|_| TlsError::Token)?;
        match kind {
            Some(kind) if is_id && random.len() == RANDOM => {
                Ok(Self { kind, id: id.to_owned(), text: text.into() })
            }
            _ => Err(TlsError::Token),
        }
    }

    /// What it is good for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The id that its hash is found by. It is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret itself, to be shown once to whom it was made for.
    pub fn reveal(&self) -> &str {
        self.text.expose_secret()
    }

    /// What a store keeps of it.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.reveal()).into())
    }
}

/// SHA-256 of a whole secret, its prefix and id included. A slow hash with salt, as passwords need, would
/// gain nothing: nobody can try 2^256 secrets, and it would have to be paid for at every call.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Whether a secret is the one. It takes as long whichever byte differs first.
    pub fn matches(&self, secret: &Secret) -> bool {
        self.0.ct_eq(&secret.hash().0).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

impl From<SecretHash> for String {
    fn from(hash: SecretHash) -> Self {
        BASE64_URL_SAFE_NO_PAD.encode(hash.0)
    }
}

impl TryFrom<String> for SecretHash {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or("not the hash of a secret (43 characters of base64url)")
    }
}
