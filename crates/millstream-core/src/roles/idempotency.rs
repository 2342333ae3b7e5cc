//! The idempotency role: markers of operations that are to take effect once.
//!
//! A marker has three states. It is absent; or *running*: a lease with a token, which its holder extends; or *done*, with
//! the result of the operation, for a retention time. Each marker is independent of all others and expires by itself.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

pub use crate::message::operation::{MAX_OPERATION_ID_LEN, Operation};
pub use crate::retention::LONGEST;

/// Largest result that a marker keeps, in bytes: 64 KiB. Every begin of the same operation returns it.
pub const MAX_RESULT_LEN: usize = 64 << 10;

/// Longest name of a holder and longest token, in bytes.
pub const MAX_HOLDER_LEN: usize = 128;

/// Right to run an operation: proof of one [begin](Idempotency::begin).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marker {
    /// The operation.
    pub operation: Operation,
    /// Token of this begin, as the caller chose it.
    pub token: String,
    /// Name of the holder.
    pub holder: String,
    /// Time for which it holds unless it is extended.
    pub ttl: Duration,
}

impl Marker {
    /// Creates the marker of a begin that was granted, as a backend returns it.
    #[must_use]
    pub fn new(operation: Operation, holder: &str, token: &str, ttl: Duration) -> Self {
        Self { operation, token: token.to_owned(), holder: holder.to_owned(), ttl }
    }

    /// Returns the error of a marker that another holder has taken over or completed.
    #[must_use]
    pub fn fenced(&self) -> Error {
        let why =
            format!("{} is not ours any more: its marker expired and another one began it", self.operation);
        Error::new(ErrorKind::Fenced, why).at(self.operation.topic())
    }
}

/// Result of [`Idempotency::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The caller runs the operation now.
    Started(Marker),
    /// The operation is done. This is the result that was stored with its completion.
    Done(Bytes),
    /// Another caller runs the operation.
    Running {
        /// Name of that holder.
        holder: String,
        /// Time until its marker expires, unless it is extended or ended before.
        expires_in: Duration,
    },
}

/// Checks what a caller passes to [`Idempotency::begin`]. Backends call this.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a token or a holder that is empty, longer than 128 bytes or has control characters, a
/// token with a space, or a ttl of less than a millisecond or above [`LONGEST`].
pub fn check_begin(holder: &str, token: &str, ttl: Duration) -> Result<()> {
    let named = |what: &str, name: &str, spaces: bool| {
        let wrong = |c: char| c.is_control() || (!spaces && c.is_whitespace());
        if name.is_empty() || name.len() > MAX_HOLDER_LEN || name.chars().any(wrong) {
            let why = format!("the {what} of a marker has 1 to 128 bytes of text, not {name:?}");
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        Ok(())
    };
    named("holder", holder, true)?;
    named("token", token, false)?;
    check_time("ttl", ttl)
}

/// Checks what a caller passes to [`Idempotency::complete`]. Backends call this.
///
/// # Errors
/// [`ErrorKind::TooLarge`] for a result above [`MAX_RESULT_LEN`], [`ErrorKind::InvalidConfig`] for a retention of less than
/// a millisecond or above [`LONGEST`].
pub fn check_complete(result: &[u8], retention: Duration) -> Result<()> {
    if result.len() > MAX_RESULT_LEN {
        let why = format!("the result has {} bytes, a marker keeps at most {MAX_RESULT_LEN}", result.len());
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    check_time("retention", retention)
}

fn check_time(what: &str, time: Duration) -> Result<()> {
    if (Duration::from_millis(1)..=LONGEST).contains(&time) {
        return Ok(());
    }
    let why = format!("the {what} of a marker is {time:?}, 1 ms to {LONGEST:?} are allowed");
    Err(Error::new(ErrorKind::InvalidConfig, why))
}

/// Keeps the markers of operations.
///
/// All times are by the server's clock. If it goes back, a running marker that would last longer than twice its ttl counts as
/// absent, and a done one stays for longer. If it goes ahead, markers expire early.
#[async_trait]
pub trait Idempotency: Send + Sync {
    /// Begins an operation, unless another caller runs it or it is done. `holder` is a name that other callers get while it
    /// runs; `token` is unique to this begin. Repeated with the same token after a lost reply, it is granted again, with a
    /// new ttl.
    ///
    /// # Errors
    /// Those of [`check_begin`]; [`ErrorKind::WrongType`] if the key holds something that is no marker; transient ones. It
    /// works on a server that is out of memory.
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun>;

    /// Extends markers, each to its ttl from now. One that has expired is revived as long as nobody else began the operation.
    ///
    /// # Errors
    /// One result for each: [`ErrorKind::Fenced`] if another caller runs the operation or has completed it, or if this one
    /// has; [`ErrorKind::WrongType`]; transient ones.
    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>>;

    /// Completes an operation: from now on, for the retention, every begin of it returns [`Begun::Done`] with this result. A
    /// marker that has expired can be completed as long as nobody else began the operation. Repeated after a lost reply, it
    /// succeeds again, and the result of the first call stays.
    ///
    /// # Errors
    /// Those of [`check_complete`]; [`ErrorKind::Fenced`] if another caller runs the operation or has completed it: its
    /// effect has then happened twice, or will; [`ErrorKind::WrongType`]; transient ones. It works on a server that is out of
    /// memory.
    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()>;

    /// Abandons an operation: the next begin starts it. Without effect if the marker has expired and nobody began the
    /// operation since.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another caller runs the operation, or if it is done; [`ErrorKind::WrongType`]; transient
    /// ones. It works on a server that is out of memory.
    async fn abandon(&self, marker: &Marker) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_marker_cannot_hold_is_refused() {
        let second = Duration::from_secs(1);
        for (holder, token, ttl) in [
            ("", "t", second),
            ("h\n", "t", second),
            ("h", "", second),
            ("h", "a b", second),
            ("h", "t", Duration::ZERO),
            ("h", "t", Duration::MAX),
        ] {
            let refused = check_begin(holder, token, ttl).expect_err("a refusal");
            assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{holder:?} {token:?} {ttl:?}");
        }
        assert!(check_begin("a name", "t", second).is_ok());
        let large = check_complete(&[0; MAX_RESULT_LEN + 1], second).expect_err("a refusal");
        assert_eq!(large.kind(), ErrorKind::TooLarge);
        assert!(check_complete(&[0; MAX_RESULT_LEN], second).is_ok());
        assert!(check_complete(b"", Duration::ZERO).is_err());
    }
}
