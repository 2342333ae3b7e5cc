//! The schedule role: what is due later.
//!
//! So far this holds retries: [`Settlement::Retry`](crate::Settlement) parks them here in the same step in
//! which it takes them off the pending list, and [`promote`](Schedule::promote) moves what is due into the
//! group's retry log.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::leases::Lease;

/// The most that one call to [`Schedule::promote`] moves: 1,000 would block a Redis server for 5–8 ms.
pub const MAX_PROMOTE: usize = 200;

/// The result of one promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promoted {
    /// How many messages became readable.
    pub moved: usize,
    /// How many parked messages had lost their body; a dead letter with
    /// [`Reason::Orphan`](crate::Reason::Orphan) tells of each.
    pub orphans: usize,
    /// When the next one is due, from now; zero if it is due already, `None` if nothing is parked.
    pub next: Option<Duration>,
}

/// Keeps messages until they are due.
#[async_trait]
pub trait Schedule: Send + Sync {
    /// Moves up to `limit` (at most [`MAX_PROMOTE`]) messages that are due, by the server's clock, to where they
    /// are read, in the order of their due times. Never one that is not due: due times are rounded up to whole
    /// milliseconds. Two promoters at once move each message once.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), or a transient error; what was moved stays moved.
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted>;
}
