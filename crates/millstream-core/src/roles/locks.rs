//! The locks role: locks on named resources, with a fair queue of waiting clients.
//!
//! A lock is a lease on a name that the caller chooses. It shares the rules of [`leases`](crate::leases): the epoch
//! ([`next_epoch`](crate::leases::next_epoch)), the token, and that only a client which was answered for a ttl takes over
//! from a holder that is silent ([`Continuity`]). It differs in three points. Names are unbounded, so a released lock
//! leaves nothing of its own behind. Clients can wait in a queue. And a holder that has lost its lock never gets it back.

use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::leases::{Holder, Token};
use crate::name::LockName;
use crate::timestamp::Timestamp;

/// Highest number that [`LockRequest::fence_above`] may be: scripts count exactly up to 2^53.
pub const MAX_FENCE: u64 = 1 << 52;

/// Interval at which a waiting client repeats its request, at the latest. It keeps its place by that, and it finds a lock
/// that became free without a notice.
pub const PLACE_REFRESH: Duration = Duration::from_millis(900);

/// Time without a request after which a waiting client loses its place.
pub const PLACE_TTL: Duration = Duration::from_secs(3);

/// Time that a waiting client has to take a lock after it was called. Then the next one is called.
pub const CALL_TTL: Duration = Duration::from_millis(500);

/// Time beyond the ttl after which a holder that has not released its lock counts as dead for a client that comes anew: it does
/// not have to be answered for a ttl first.
pub const RECORD_TTL: Duration = Duration::from_secs(600);

/// Time beyond the ttl for which the record of a holder that has not released its lock is kept. Clients that wait for the lock
/// already are not deceived by a server's clock that jumps ahead by less, and neither is the holder.
pub const RECORD_KEPT: Duration = Duration::from_secs(24 * 3_600);

/// In front of the name of an election, in the name of its lock.
pub const ELECTION: &str = "leader:";

/// Returns the name of the lock of an election.
///
/// # Errors
/// [`ErrorKind::InvalidName`].
pub fn election(name: &str) -> Result<LockName> {
    LockName::new(format!("{ELECTION}{name}"))
}

/// Request for a lock. It is repeated with the same nonce while the client waits, and after a lost reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRequest {
    /// The lock.
    pub name: LockName,
    /// Name of the caller, for people to read.
    pub owner: String,
    /// Unique to this attempt: it makes the request idempotent, and it is the name of a place in the queue.
    pub nonce: String,
    /// Validity of the grant.
    pub ttl: Duration,
    /// Continuity of the caller: whether the silence of a holder counts as its end.
    pub continuity: Continuity,
    /// The epoch is higher than this, the highest number that the guarded store has seen; at most [`MAX_FENCE`].
    /// Default: 0.
    pub fence_above: u64,
    /// Whether the caller waits in the queue if the lock is not free. Default: yes.
    pub queued: bool,
    /// Arrival of the caller as an earlier reply returned it. A client that has lost its place while the server was away
    /// gets it back; a time later than the server's counts as now. Default: none.
    pub arrived: Option<u64>,
    /// Whether clients that wait for changes are notified of the grant. A release notifies them in any case. Default: no.
    pub announced: bool,
    /// Least time since the start of the server; a younger one grants nothing. Default: none.
    pub min_uptime: Option<Duration>,
}

impl LockRequest {
    /// Creates a request of a client that waits.
    #[must_use]
    pub fn new(name: LockName, owner: impl Into<String>, nonce: impl Into<String>, ttl: Duration) -> Self {
        Self {
            name,
            owner: owner.into(),
            nonce: nonce.into(),
            continuity: Continuity::new(ttl),
            ttl,
            fence_above: 0,
            queued: true,
            arrived: None,
            announced: false,
            min_uptime: None,
        }
    }

    /// Checks the limits of what a caller chooses.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`].
    pub fn check(&self) -> Result<()> {
        if self.fence_above > MAX_FENCE {
            let why = format!(
                "the fence of {} is to be above {}, at most 2^52 is possible",
                self.name, self.fence_above
            );
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        Ok(())
    }
}

/// Grant of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockGrant {
    /// The lock.
    pub name: LockName,
    /// Nonce of the request.
    pub nonce: String,
    /// Number that grows with every grant of this name. Pass it on to other stores and let them refuse smaller ones.
    pub epoch: u64,
    /// Validity after the grant or a renewal.
    pub ttl: Duration,
}

impl LockGrant {
    /// Creates a grant as a backend returns it.
    #[must_use]
    pub fn new(request: &LockRequest, epoch: u64) -> Self {
        Self { name: request.name.clone(), nonce: request.nonce.clone(), epoch, ttl: request.ttl }
    }

    /// Returns the token, which the store compares.
    #[must_use]
    pub fn token(&self) -> Token {
        Token::new(self.epoch, &self.nonce)
    }

    /// Returns the error of a renewal after the lock was lost.
    #[must_use]
    pub fn fenced(&self) -> Error {
        Error::new(ErrorKind::Fenced, format!("lock {} is lost (epoch {})", self.name, self.epoch))
    }
}

/// Reply to a client whose request was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockWait {
    /// Holder of the lock; `None` if it is free and other clients come first.
    pub holder: Option<Holder>,
    /// Number of clients that come first; 0 if the caller does not wait in the queue.
    pub ahead: u64,
    /// Arrival of the caller in microseconds since 1970, by the server's clock.
    pub arrived: u64,
    /// Time after which the lock may be free, if nothing changes.
    pub retry_in: Duration,
    /// The newest change that this reply includes.
    pub seen: LockRevision,
    /// Identity of the server, for [`Continuity::advance`]; empty if the record of the caller is recent enough.
    pub server: String,
    /// Time of the reply by the server's clock.
    pub now: Timestamp,
}

impl LockWait {
    /// Creates a reply as a backend returns it.
    #[must_use]
    pub fn new(holder: Option<Holder>, retry_in: Duration, now: Timestamp) -> Self {
        let (seen, server) = (LockRevision::default(), String::new());
        Self { holder, ahead: 0, arrived: 0, retry_in, seen, server, now }
    }
}

/// Id of the newest change of a lock. [`Locks::changed`] waits for the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRevision(pub MessageId);

/// Reply to a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockReply {
    /// The caller holds the lock.
    Granted(LockGrant),
    /// It does not, yet.
    Wait(LockWait),
    /// The server has been up for this long only, less than [`LockRequest::min_uptime`]. Nothing was done.
    TooYoung(Duration),
}

/// Result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRelease {
    /// The lock was held under this nonce, and is free now.
    Released,
    /// The nonce had a place in the queue, which is empty now.
    Left,
    /// The nonce has neither: the lock was released before, was taken over, or has ended.
    Absent,
}

/// End of a wait for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockChange {
    /// There is a newer change, and the client with this nonce is called to take the lock, if one is.
    Called(LockRevision, Option<String>),
    /// There may be a change.
    Maybe,
    /// The time is over.
    Nothing,
}

/// State of one lock, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The lock.
    pub name: LockName,
    /// The last grant that was not released; `None` if the lock is free and clients wait for it. If it was not renewed in
    /// time, [`expires_in`](Holder::expires_in) is zero: it is kept until another client may take the lock over.
    pub holder: Option<Holder>,
    /// Validity of the grant after each renewal; zero if the lock is free.
    pub ttl: Duration,
    /// Number of clients that wait for it. One that has died is counted for [`PLACE_TTL`] at most.
    pub waiting: u64,
    /// Time since the arrival of the first of them; `None` if nobody waits.
    pub first_waits: Option<Duration>,
}

impl LockState {
    /// Creates the state of a lock that nobody holds and nobody waits for.
    #[must_use]
    pub const fn new(name: LockName) -> Self {
        Self { name, holder: None, ttl: Duration::ZERO, waiting: 0, first_waits: None }
    }

    /// Whether nobody holds the lock and nobody waits for it.
    #[must_use]
    pub const fn is_unused(&self) -> bool {
        self.holder.is_none() && self.waiting == 0
    }
}

/// Position in the list of all locks. It means something to the backend that returned it, and to no other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockCursor(pub String);

/// Part of the list of all locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockPage {
    /// The locks, in no particular order.
    pub locks: Vec<LockState>,
    /// Where the next part begins; `None` at the end of the list.
    pub next: Option<LockCursor>,
}

impl LockPage {
    /// Creates a page.
    #[must_use]
    pub const fn new(locks: Vec<LockState>, next: Option<LockCursor>) -> Self {
        Self { locks, next }
    }
}

/// Grants, renews and ends locks.
#[async_trait]
pub trait Locks: Send + Sync {
    /// Requests a lock.
    ///
    /// It is granted to the first client in the queue, in the order of arrival by the server's clock, once it is free: it
    /// was released, or it expired and the caller's continuity [reaches back](Continuity::free_at) for the ttl of the
    /// holder. A client that does not queue is granted a free lock only if nobody waits.
    ///
    /// A request that is repeated with the nonce of the holder returns the same epoch, and counts as a renewal. A waiting
    /// client that sends no request for [`PLACE_TTL`], or for [`CALL_TTL`] after it was called, loses its place.
    ///
    /// The epoch is [`next_epoch`](crate::leases::next_epoch) of all locks that share a shard.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]; [`ErrorKind::InvalidConfig`] of [`LockRequest::check`].
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply>;

    /// Extends a lock by another ttl. One that merely expired is revived, as long as no other client was granted it.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if it was released, taken over or lost; transient ones; [`ErrorKind::WrongType`].
    async fn renew(&self, grant: &LockGrant) -> Result<()>;

    /// Ends an attempt, whatever its state is: releases the lock, or leaves the queue. The next client in the queue is
    /// called.
    ///
    /// # Errors
    /// Transient ones, after which it can be repeated; [`ErrorKind::WrongType`].
    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease>;

    /// Returns the current holder of a lock.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn holder(&self, name: &LockName) -> Result<Option<Holder>>;

    /// Waits up to `wait` until there is a change of a lock after `seen`: somebody is called, or the lock was released,
    /// or granted to a client that [announces](LockRequest::announced) it. It may return early, and it may miss a change:
    /// look at least every [`PLACE_REFRESH`].
    ///
    /// Waiting has no effect: dropping this future is safe.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange>;

    /// Returns the state of a lock.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn state(&self, name: &LockName) -> Result<LockState>;

    /// Returns a part of the list of all locks that are held or waited for: about `limit` of them, also none in the middle of
    /// the list. A lock that is there from the first part to the last is in one of them at least.
    ///
    /// The cost for the server is bounded by `limit`, and not by the number of locks or of other keys.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`]; [`ErrorKind::InvalidConfig`] for a cursor of another backend.
    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage>;

    /// Ends the grant with this epoch, whoever holds it, and calls the next client in the queue. Returns `false`, without an
    /// effect, if the lock has another grant, or none: so an operator ends what was seen, and not what came since.
    ///
    /// The holder is not notified. It learns of it with its next renewal; until then two clients rely on the lock, and only
    /// the fence tells them apart.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_cannot_be_counted_is_refused() {
        let mut request = LockRequest::new("a".parse().expect("name"), "me", "n", Duration::from_secs(1));
        request.fence_above = MAX_FENCE;
        request.check().expect("the limit itself");
        request.fence_above = MAX_FENCE + 1;
        assert_eq!(request.check().expect_err("above it").kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn the_token_has_epoch_and_nonce() {
        let request =
            LockRequest::new("invoice:42".parse().expect("name"), "me", "n", Duration::from_secs(1));
        let grant = LockGrant::new(&request, 7);
        assert_eq!(grant.token().as_str(), "7:n");
        assert_eq!(grant.fenced().to_string(), "lock invoice:42 is lost (epoch 7)");
    }
}
