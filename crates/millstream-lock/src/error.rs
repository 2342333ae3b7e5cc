//! Errors of locks: one type per cause.

use std::time::Duration;

use millstream_core::leases::Holder;
use millstream_core::{Error, LockName};

/// The lock was not granted in time.
#[derive(Clone, Debug, thiserror::Error)]
#[error("lock {name} was not free within {waited:?}{}", by(.holder.as_ref()))]
#[non_exhaustive]
pub struct Busy {
    /// The lock.
    pub name: LockName,
    /// Holder at the last reply; `None` if it was free and other clients came first.
    pub holder: Option<Holder>,
    /// Time from the call to the end of the attempt.
    pub waited: Duration,
}

fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(": {} holds it, epoch {}", holder.owner, holder.epoch))
}

/// The lock was lost before the work was done.
#[derive(Clone, Debug, thiserror::Error)]
#[error("lock {name} was lost (epoch {fence})")]
#[non_exhaustive]
pub struct Lost {
    /// The lock.
    pub name: LockName,
    /// Epoch of the grant that was lost.
    pub fence: u64,
}

/// Error of an attempt to acquire a lock.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The lock was not granted in time.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The settings are invalid, or the backend failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Error of work under a lock. `E` is the error of the work itself.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The lock was not acquired; the work was not begun.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost; the work was dropped.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The work was done under the lock, and returned this error.
    #[error("{0}")]
    Work(E),
}

/// Too few servers granted a lock.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "lock {name}: {granted} of {servers} servers granted it in time, {needed} are needed \
     ({held} have another holder, {young} started too recently, {failed} did not answer)"
)]
#[non_exhaustive]
pub struct NoQuorum {
    /// The lock.
    pub name: LockName,
    /// Number of servers.
    pub servers: usize,
    /// Number of grants that are needed.
    pub needed: usize,
    /// Servers that granted the lock at the last attempt.
    pub granted: usize,
    /// Servers on which it has another holder.
    pub held: usize,
    /// Servers that started less than the longest ttl ago.
    pub young: usize,
    /// Servers that failed or did not answer in time.
    pub failed: usize,
}

/// Error of a lock over several servers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedLockError {
    /// Too few servers granted it.
    #[error(transparent)]
    NoQuorum(#[from] NoQuorum),
    /// The settings are invalid, or a backend has no locks.
    #[error(transparent)]
    Failed(#[from] Error),
}
