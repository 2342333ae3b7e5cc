//! Deduplication of appends: an entry with an id that was appended before is not stored again.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

/// Longest dedup id, in bytes.
pub const MAX_DEDUP_ID_LEN: usize = 128;

/// Shortest and longest window: 100 ms and 7 days.
pub const WINDOWS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7 * 86_400));

/// Id by which appends to one partition are recognised as repetitions of each other: 1 to 128 bytes of any value.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupId(Bytes);

impl DedupId {
    /// Checks an id.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] if it is empty, [`ErrorKind::TooLarge`] above [`MAX_DEDUP_ID_LEN`].
    pub fn new(id: impl Into<Bytes>) -> Result<Self> {
        Self::named(id, "dedup id")
    }

    /// Checks an id that errors call `what`: `unique id`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn named(id: impl Into<Bytes>, what: &str) -> Result<Self> {
        let id = id.into();
        match id.len() {
            0 => Err(Error::new(ErrorKind::InvalidName, format!("the {what} is empty"))),
            1..=MAX_DEDUP_ID_LEN => Ok(Self(id)),
            len => {
                let why = format!("the {what} has {len} bytes, {MAX_DEDUP_ID_LEN} are allowed");
                Err(Error::new(ErrorKind::TooLarge, why))
            }
        }
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for DedupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Producer that gives numbers to its entries, so that they are recognised when it appends them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// Id of the producer: random, so that no other has it.
    pub producer: u128,
    /// Time for which its numbers count: see [`WINDOWS`].
    pub window: Duration,
}

impl Numbering {
    /// Returns the dedup id that stands for a number, where a backend knows only those.
    ///
    /// # Errors
    /// None in practice: it has at most 53 bytes.
    pub fn id(&self, number: u64) -> Result<DedupId> {
        DedupId::new(format!("{:032x}-{number}", self.producer))
    }
}

/// Checks a window. Producers call this when they are built, backends with each append.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] unless it is within [`WINDOWS`].
pub fn check_window(window: Duration) -> Result<()> {
    let (shortest, longest) = WINDOWS;
    if (shortest..=longest).contains(&window) {
        return Ok(());
    }
    let why = format!("a dedup window of {window:?}, {shortest:?} to {longest:?} are allowed");
    Err(Error::new(ErrorKind::InvalidConfig, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_windows_have_bounds() {
        assert_eq!(DedupId::new("").map_err(|error| error.kind()), Err(ErrorKind::InvalidName));
        assert_eq!(DedupId::new(vec![0; 129]).map_err(|error| error.kind()), Err(ErrorKind::TooLarge));
        assert_eq!(format!("{:?}", DedupId::new(&b"a\xff"[..]).unwrap()), r#""a\xff""#);
        assert!(check_window(Duration::ZERO).is_err() && check_window(Duration::MAX).is_err());
        assert!(check_window(WINDOWS.0).is_ok() && check_window(WINDOWS.1).is_ok());
    }
}
