//! Ids: of an entry in a partition, and of what is scheduled.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::timestamp::Timestamp;

/// Id of an entry: `1700000000000-0`. Ids of one partition grow strictly.
///
/// The first part is the server's clock in milliseconds since 1970 at the append, the second counts the entries of that
/// millisecond. Redis calls it an entry id; it corresponds to an offset in Kafka.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// Milliseconds since 1970-01-01 UTC, by the server's clock.
    pub ms: u64,
    /// Position among the entries of that millisecond.
    pub seq: u64,
}

impl MessageId {
    /// `0-0`: before every entry.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };
    /// After every entry.
    pub const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// Creates the id `ms-seq`.
    #[must_use]
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// Returns the time of the append by the server's clock, which is the first part of the id.
    #[must_use]
    pub const fn timestamp(self) -> Timestamp {
        Timestamp::from_millis(self.ms)
    }

    /// Returns the smallest id above this one ([`MessageId::MAX`] stays).
    #[must_use]
    pub const fn next(self) -> Self {
        match (self.seq.checked_add(1), self.ms.checked_add(1)) {
            (Some(seq), _) => Self { ms: self.ms, seq },
            (None, Some(ms)) => Self { ms, seq: 0 },
            (None, None) => self,
        }
    }

    /// Returns the largest id below this one ([`MessageId::ZERO`] stays).
    #[must_use]
    pub const fn previous(self) -> Self {
        match (self.seq.checked_sub(1), self.ms.checked_sub(1)) {
            (Some(seq), _) => Self { ms: self.ms, seq },
            (None, Some(ms)) => Self { ms, seq: u64::MAX },
            (None, None) => self,
        }
    }

    /// Parses an id from the bytes of a reply.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if it is not `digits-digits`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = || {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
            Error::new(ErrorKind::Protocol, format!("not a message id: {text:?}"))
        };
        let number = |digits: &[u8]| -> Option<u64> {
            if digits.is_empty() || digits.len() > 20 {
                return None;
            }
            digits.iter().try_fold(0u64, |n, d| {
                d.is_ascii_digit().then_some(())?;
                n.checked_mul(10)?.checked_add(u64::from(d - b'0'))
            })
        };
        let dash = bytes.iter().position(|b| *b == b'-').ok_or_else(bad)?;
        match (number(&bytes[..dash]), number(&bytes[dash + 1..])) {
            (Some(ms), Some(seq)) => Ok(Self { ms, seq }),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for MessageId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::from_bytes(text.as_bytes())
    }
}

/// The longest id of a scheduled message, in bytes.
pub const MAX_ID_LEN: usize = 256;

/// Id of a scheduled message, set by the caller or generated. 1 to [`MAX_ID_LEN`] bytes without control characters;
/// unique at its [`Place`](crate::Place) as long as the message waits there (or, in a delay queue, is worked on).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleId(Arc<str>);

impl ScheduleId {
    /// Checks an id.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn new(id: impl AsRef<str>) -> Result<Self> {
        let id = id.as_ref();
        let error = |why: String| Err(Error::new(ErrorKind::InvalidName, format!("schedule id {why}")));
        if id.is_empty() {
            return error("is empty".into());
        }
        if id.len() > MAX_ID_LEN {
            return error(format!("is {} bytes long, at most {MAX_ID_LEN} are allowed", id.len()));
        }
        if id.chars().any(char::is_control) {
            return error(format!("{id:?} contains a control character"));
        }
        Ok(Self(id.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for ScheduleId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ScheduleId {
    type Err = Error;
    fn from_str(id: &str) -> Result<Self> {
        Self::new(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_an_id_is_refused() {
        for bad in ["", "-", "1", "1-", "-1", "1-2-3", "+1-2", "1- 2", "18446744073709551616-0", "x-y"] {
            assert!(bad.parse::<MessageId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_ends_stay() {
        assert_eq!(MessageId::ZERO.previous(), MessageId::ZERO);
        assert_eq!(MessageId::MAX.next(), MessageId::MAX);
        assert_eq!(MessageId::new(1, u64::MAX).next(), MessageId::new(2, 0));
    }

    proptest! {
        #[test]
        fn text_and_back(ms: u64, seq: u64) {
            let id = MessageId::new(ms, seq);
            prop_assert_eq!(id.to_string().parse::<MessageId>().expect("parses"), id);
        }

        #[test]
        fn ordered_as_a_128_bit_number(a: (u64, u64), b: (u64, u64)) {
            let wide = |(ms, seq): (u64, u64)| (u128::from(ms) << 64) | u128::from(seq);
            let id = |(ms, seq)| MessageId::new(ms, seq);
            prop_assert_eq!(id(a).cmp(&id(b)), wide(a).cmp(&wide(b)));
            prop_assert!(id(a).next() > id(a) || id(a) == MessageId::MAX);
            prop_assert_eq!(id(a).next().previous(), id(a));
        }
    }

    #[test]
    fn an_id_of_what_is_scheduled_is_checked() {
        assert!(ScheduleId::new("order 42: refund, ünïcode").is_ok());
        for bad in ["".to_owned(), "a\nb".into(), "\0".into(), "x".repeat(MAX_ID_LEN + 1)] {
            assert_eq!(ScheduleId::new(&bad).expect_err("bad").kind(), ErrorKind::InvalidName, "{bad:?}");
        }
    }
}
