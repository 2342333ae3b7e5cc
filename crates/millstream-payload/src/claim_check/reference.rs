//! Reference to a payload in a store.

use std::fmt;

use millstream_core::error::{Error, ErrorKind, Result};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a name.
const NAME: usize = 16;
/// Bytes of a SHA-256.
const HASH: usize = 32;

/// Reference to a payload in a [`PayloadStore`](super::PayloadStore): name of the object, length, and SHA-256.
///
/// As text, in the header `claim-check`, it is `NAME:LENGTH:SHA256` with a name of 32 hexadecimal digits, the length in bytes, and
/// a hash of 64 hexadecimal digits, all in lower case. Nothing else is parsed, so a name that a foreign producer invents has no `/` or `..`. Names are
/// random: each send has an object of its own, and nobody can guess that of another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PayloadReference {
    name: String,
    length: u64,
    hash: String,
}

/// Header that is no [`PayloadReference`]. It shows the beginning of the header, escaped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid reference to a payload: \"{0}\"")]
pub struct InvalidReference(String);

impl PayloadReference {
    /// Creates a reference to this payload, with a new name.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the system has no random numbers.
    pub fn of(payload: &[u8]) -> Result<Self> {
        let mut name = [0; NAME];
        let random = SystemRandom::new().fill(&mut name);
        random.map_err(|_| Error::new(ErrorKind::Unavailable, "the system has no random numbers"))?;
        Ok(Self { name: hex(&name), length: payload.len() as u64, hash: hash(payload) })
    }

    /// Parses the text of a reference.
    ///
    /// # Errors
    /// [`InvalidReference`].
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, InvalidReference> {
        let text = text.as_ref();
        Self::parts(text)
            .ok_or_else(|| InvalidReference(text.get(..200).unwrap_or(text).escape_ascii().to_string()))
    }

    fn parts(text: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(text).ok()?.split(':');
        let (name, length, hash) = (parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, bytes: usize| {
            text.len() == 2 * bytes && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        if parts.next().is_some() || !is_hex(name, NAME) || !is_hex(hash, HASH) || !is_number {
            return None;
        }
        Some(Self { name: name.to_owned(), length: length.parse().ok()?, hash: hash.to_owned() })
    }

    /// Returns the name of the object: 32 hexadecimal digits in lower case. It may be used as the name of a file, or a part of a key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length of the payload, in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Returns the SHA-256 of the payload, as 64 hexadecimal digits in lower case.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.hash
    }

    pub(super) fn is_of(&self, payload: &[u8]) -> bool {
        payload.len() as u64 == self.length && hash(payload) == self.hash
    }
}

impl fmt::Display for PayloadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.name, self.length, self.hash)
    }
}

fn hash(payload: &[u8]) -> String {
    hex(digest(&SHA256, payload).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_parsed_as_it_is_written_and_nothing_else_is() {
        let reference = PayloadReference::of(b"payload").expect("a reference");
        assert_eq!(PayloadReference::parse(reference.to_string()), Ok(reference.clone()));
        assert!(reference.is_of(b"payload") && !reference.is_of(b"payloaD") && !reference.is_of(b"payload "));
        assert_ne!(reference.name(), PayloadReference::of(b"payload").expect("a reference").name());

        let (name, hash) = (reference.name(), reference.sha256());
        for text in [
            String::new(),
            format!("../../../../../../../../etc/passw:7:{hash}"),
            format!("..%2f..%2f..%2f..%2f..%2f..%2fetc:7:{hash}"),
            format!("{}/:7:{hash}", &name[1..]),
            format!("{}:7:{hash}", name.to_uppercase() + "G"),
            format!("{name}:7:{hash}:"),
            format!("{name}:+7:{hash}"),
            format!("{name}::{hash}"),
            format!("{name}:99999999999999999999:{hash}"),
            format!("{name}:7:{}", &hash[1..]),
            format!("{name}:7"),
            format!(" {name}:7:{hash}"),
            format!("{name}\0:7:{hash}"),
        ] {
            assert!(PayloadReference::parse(&text).is_err(), "{text}");
        }
        assert!(PayloadReference::parse(b"\xff").is_err());
        let long = PayloadReference::parse("\n".repeat(1_000)).expect_err("not a reference").to_string();
        assert!(long.len() < 500 && !long.contains('\n'), "{long}");
    }
}
