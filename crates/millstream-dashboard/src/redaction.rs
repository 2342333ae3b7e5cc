//! What of messages is never shown.

use bytes::Bytes;
use millstream::TopicName;
use millstream::crates::core::steps::STEPS_HEADER;
use millstream::crates::core::{Envelope, QueueName};

/// Where a message is stored.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A topic.
    Topic(&'a TopicName),
    /// A delay queue.
    Queue(&'a QueueName),
}

/// Parts of messages that are never shown, searched or exported, nor moved to where they would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redaction {
    payload: bool,
    key: bool,
    headers: bool,
    named: Vec<String>,
}

/// Text in place of what is hidden.
const HIDDEN: &[u8] = HIDDEN_ERROR.as_bytes();
const HIDDEN_ERROR: &str = "(redacted)";

impl Redaction {
    /// Returns a redaction that hides nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Hides payloads, and the values of steps.
    #[must_use]
    pub fn payload(self) -> Self {
        Self { payload: true, ..self }
    }

    /// Hides keys.
    #[must_use]
    pub fn key(self) -> Self {
        Self { key: true, ..self }
    }

    /// Hides the values of all headers.
    #[must_use]
    pub fn headers(self) -> Self {
        Self { headers: true, ..self }
    }

    /// Hides the values of one header. Its name is compared without regard to case.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.named.push(name.into());
        self
    }

    /// Returns a redaction that hides what either of two hides.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.named.extend_from_slice(&other.named);
        self.payload |= other.payload;
        self.key |= other.key;
        self.headers |= other.headers;
        self
    }

    /// Returns whether nothing is hidden.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn hides_payload(&self) -> bool {
        self.payload
    }

    pub(crate) fn hides_key(&self) -> bool {
        self.key
    }

    pub(crate) fn hides_header(&self, name: &str) -> bool {
        // Results of steps are made of payloads.
        self.payload && name == STEPS_HEADER || self.hides_named(name)
    }

    fn hides_named(&self, name: &str) -> bool {
        self.headers || self.named.iter().any(|named| named.eq_ignore_ascii_case(name))
    }

    /// Returns whether it hides also the names in the header that has the steps of a dead letter.
    pub(crate) fn hides_steps(&self) -> bool {
        self.hides_named(STEPS_HEADER)
    }

    /// Returns whether it hides all that another one hides: what is moved from there to here stays hidden.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        (self.payload || !other.payload)
            && (self.key || !other.key)
            && (self.headers || !other.headers)
            && other.named.iter().all(|name| self.hides_header(name))
    }

    /// Returns the text in place of an error with the reason `undecodable`, if there is one: codecs quote what they cannot read,
    /// and routers the header that names the type.
    pub(crate) fn undecodable_error(&self) -> Option<&'static str> {
        (self.payload || self.headers || !self.named.is_empty()).then_some(HIDDEN_ERROR)
    }

    /// Replaces what is hidden in a message.
    pub(crate) fn apply(&self, mut envelope: Envelope) -> Envelope {
        if self.is_none() {
            return envelope;
        }
        if self.payload {
            envelope.payload = Bytes::from_static(HIDDEN);
        }
        if self.key && envelope.key.is_some() {
            envelope.key = Some(Bytes::from_static(HIDDEN));
        }
        let mut headers = millstream::Headers::new();
        for (name, value) in envelope.headers.iter() {
            let shown = if self.hides_header(name) { Bytes::from_static(HIDDEN) } else { value.clone() };
            headers.append(name, shown);
        }
        envelope.headers = headers;
        envelope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_parts_are_replaced_and_others_stay() {
        let message =
            Envelope::new("secret").with_key("k").with_header("Authorization", "t").with_header("trace", "1");
        let shown = Redaction::none().payload().header("authorization").apply(message.clone());
        let expected = Envelope::new("(redacted)").with_key("k").with_header("Authorization", "(redacted)");
        assert_eq!(shown, expected.with_header("trace", "1"));
        assert_eq!(Redaction::none().apply(message.clone()), message);
        let shown = Redaction::none().key().headers().apply(message);
        assert_eq!(shown.key, Some(Bytes::from_static(HIDDEN)));
        assert_eq!(shown.headers.get_str("trace"), Some("(redacted)"));
    }

    #[test]
    fn steps_are_hidden_with_payloads_and_their_names_with_headers() {
        let message = Envelope::new("secret").with_header(STEPS_HEADER, "a secret");
        let payload = Redaction::none().payload();
        assert_eq!(payload.apply(message).headers.get_str(STEPS_HEADER), Some("(redacted)"));
        assert!(!payload.hides_steps() && Redaction::none().headers().hides_steps());
        assert!(Redaction::none().header("Millstream-Steps").hides_steps());
        assert!(!Redaction::none().covers(&payload) && !Redaction::none().key().hides_header(STEPS_HEADER));
    }

    #[test]
    fn what_is_moved_stays_hidden_where_as_much_is_hidden() {
        let none = Redaction::none;
        for (target, source, covers) in [
            (none(), none(), true),
            (none(), none().payload(), false),
            (none(), none().key(), false),
            (none(), none().headers(), false),
            (none(), none().header("token"), false),
            (none().payload(), none(), true),
            (none().payload(), none().payload(), true),
            (none().payload(), none().payload().key(), false),
            (none().key().headers(), none().payload(), false),
            (none().headers(), none().header("token"), true),
            (none().header("Token").header("b"), none().header("token"), true),
            (none().header("token"), none().headers(), false),
            (none().header("other"), none().header("token"), false),
            (none().payload().key().headers(), none().payload().key().header("token"), true),
        ] {
            assert_eq!(target.covers(&source), covers, "{target:?} {source:?}");
        }
    }
}
