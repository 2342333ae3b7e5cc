//! The envelope of a message: key, headers, payload. All bytes are preserved.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::message::steps::STEPS_HEADER;

/// Most headers that any [`Limits`] allow: an entry may have 3,000 fields, of which up to ten are not headers.
pub(super) const MAX_HEADERS: usize = 2_990;

/// Message as it is sent: the payload is bytes that Millstream never inspects.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Key that the partition is chosen by. Messages of one key keep their order.
    pub key: Option<Bytes>,
    /// Names and values beside the payload.
    pub headers: Headers,
    /// The payload.
    pub payload: Bytes,
}

impl Envelope {
    /// Creates a message without key and headers.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// Returns the same message with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Returns the same message with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Returns the number of bytes of payload, key and headers together, which counts against the limit of a buffer.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len() + self.key.as_ref().map_or(0, Bytes::len) + self.headers.size()
    }

    /// Checks the message against limits.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] that names the first limit that is exceeded.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let over = |what: &str, size: usize, limit: usize| {
            Err(Error::new(ErrorKind::TooLarge, format!("{what}: {size}, at most {limit}")))
        };
        let key = self.key.as_ref().map_or(0, Bytes::len);
        if self.payload.len() > limits.payload {
            return over("bytes of payload", self.payload.len(), limits.payload);
        }
        if key > limits.key {
            return over("bytes of key", key, limits.key);
        }
        let headers = limits.headers.min(MAX_HEADERS);
        if self.headers.len() > headers + usize::from(self.headers.get(STEPS_HEADER).is_some()) {
            return over("headers", self.headers.len(), headers);
        }
        // What the engine has added to a dead letter must not keep it from being replayed.
        let of_steps = self.headers.get(STEPS_HEADER).map_or(0, |steps| STEPS_HEADER.len() + steps.len());
        let bytes = self.headers.size() - of_steps;
        if bytes > limits.header_bytes {
            return over("bytes of headers", bytes, limits.header_bytes);
        }
        Ok(())
    }
}

/// Prints sizes only: keys and payloads may be secret.
impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("key_bytes", &self.key.as_ref().map(Bytes::len))
            .field("headers", &self.headers)
            .field("payload_bytes", &self.payload.len())
            .finish()
    }
}

/// Limits on the size of a message, checked on sending and on reading.
///
/// Redis itself stops at 512 MiB a string, long after a message has blocked all other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest payload, in bytes. Default: 1 MiB. Keep larger objects in an object store, and send their names.
    pub payload: usize,
    /// Largest key, in bytes. Default: 1 KiB.
    pub key: usize,
    /// Largest number of headers. Default: 64; at most 2,990, since entries with more than 3,000 fields are no messages.
    pub headers: usize,
    /// Largest size of all header names and values together, in bytes. Default: 8 KiB, as in most HTTP servers.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload: 1 << 20, key: 1 << 10, headers: 64, header_bytes: 8 << 10 }
    }
}

impl Limits {
    /// No limits, for what reads stored messages and decides nothing by their size: tools do not know the limits of the programs
    /// that use a topic.
    pub const NONE: Self =
        Self { payload: usize::MAX, key: usize::MAX, headers: usize::MAX, header_bytes: usize::MAX };

    /// Returns the same limits with another largest payload, in bytes.
    #[must_use]
    pub const fn with_payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }
}

/// Headers in the order they were added. A name may occur more than once, as in Kafka and HTTP.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Box<str>, Bytes)>);

impl Headers {
    /// Creates an empty list of headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header behind the others, also if the name exists already.
    pub fn append(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        self.0.push((name.into().into_boxed_str(), value.into()));
    }

    /// Removes all values of a name, and returns whether there were any.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.len();
        self.0.retain(|(other, _)| **other != *name);
        self.len() < before
    }

    /// Returns the first value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Returns the first value of a name, if it is text.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns all values of a name in their order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Bytes> {
        self.iter().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Returns all headers in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes of all names and values.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// Prints names only: values may be secret.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named_when_it_is_exceeded() {
        let limits = Limits { payload: 4, key: 4, headers: 1, header_bytes: 8 };
        let cases = [
            (Envelope::new("12345"), "bytes of payload: 5, at most 4"),
            (Envelope::new("").with_key("12345"), "bytes of key: 5, at most 4"),
            (Envelope::new("").with_header("a", "").with_header("b", ""), "headers: 2, at most 1"),
            (Envelope::new("").with_header("12345", "6789"), "bytes of headers: 9, at most 8"),
        ];
        for (envelope, says) in cases {
            let error = envelope.check(&limits).expect_err(says);
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TooLarge, says));
        }
        assert!(Envelope::new("1234").with_key("1234").with_header("1234", "5678").check(&limits).is_ok());
    }

    /// A message that could be sent and not read would be a dead letter for every consumer.
    #[test]
    fn no_limit_allows_more_headers_than_an_entry_may_have() {
        let raised = Limits::NONE;
        let with = |count: usize| {
            (0..count)
                .fold(Envelope::new("").with_key("k"), |message, n| message.with_header(n.to_string(), ""))
        };
        let error = with(10_000).check(&raised).expect_err("too many");
        assert_eq!(error.to_string(), "headers: 10000, at most 2990");
        let most = with(2_990);
        assert!(most.check(&raised).is_ok());
        let mut fields = crate::wire::encode(&most);
        fields.insert(0, ("mq:unique".into(), "id".into()));
        assert_eq!(crate::wire::decode_body(&fields, &raised).expect("a message"), most);
    }

    #[test]
    fn debug_tells_no_secrets() {
        let envelope = Envelope::new("s3cret").with_key("k3y").with_header("auth", "t0ken");
        let text = format!("{envelope:?}");
        for secret in ["s3cret", "k3y", "t0ken"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
