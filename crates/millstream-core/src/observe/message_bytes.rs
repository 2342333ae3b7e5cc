//! Bytes of a message in an event.

use std::fmt;

/// Bytes of a message that an event has. [`Debug`](fmt::Debug) shows their number only, so that nobody logs them by accident.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MessageBytes<'a>(&'a [u8]);

impl<'a> MessageBytes<'a> {
    /// Wraps them.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns them.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for MessageBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::MessageBytes;

    #[test]
    fn bytes_are_not_shown() {
        let bytes = MessageBytes::new(b"secret");
        assert_eq!((format!("{bytes:?}"), bytes.as_bytes()), ("6 bytes".to_owned(), &b"secret"[..]));
    }
}
