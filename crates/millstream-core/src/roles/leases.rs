//! The leases role: the current owner of each resource, with a token that fences all previous owners.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::error::{Error, ErrorKind, Result};
use crate::name::GroupName;
use crate::timestamp::Timestamp;
use crate::topic::TopicPartition;

/// Resource that can be owned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// A partition, for one group.
    Partition {
        /// The partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
    },
}

impl Resource {
    /// Returns the resource of partition `topic_partition` for `group`.
    #[must_use]
    pub fn partition(topic_partition: TopicPartition, group: GroupName) -> Self {
        Self::Partition { topic_partition, group }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition { topic_partition, group } => write!(f, "{topic_partition} of {group}"),
        }
    }
}

/// Proof of one grant: `<epoch>:<nonce>`. Backends compare it for equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// Creates the token of a grant.
    #[must_use]
    pub fn new(epoch: u64, nonce: &str) -> Self {
        Self(format!("{epoch}:{nonce}").into())
    }

    /// Returns the token as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Right to act on a resource until its ttl passes without a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The resource.
    pub resource: Resource,
    /// Token that every fenced call passes.
    pub token: Token,
    /// Number that grows with every grant of this resource, also over a fail-over. Pass it on to other stores and let
    /// them refuse smaller ones.
    pub epoch: u64,
    /// Lifetime of the lease after a grant or renewal.
    pub ttl: Duration,
    /// Epochs of previous owners that ended in a row without releasing the lease, oldest first: their processes died, or
    /// were cut off for too long. An entry that was pending at several of these ends may have caused them. If an owner
    /// releases the lease before it has found the cause, the list stays here, and the next owner is given the same. At
    /// most [`MAX_ENDS`].
    pub ends: Vec<u64>,
}

/// The most ends in a row that are kept; if there are more, the newest.
pub const MAX_ENDS: usize = 32;

impl Lease {
    /// Creates a lease as a backend grants it.
    #[must_use]
    pub fn new(resource: Resource, epoch: u64, nonce: &str, ttl: Duration) -> Self {
        Self { resource, token: Token::new(epoch, nonce), epoch, ttl, ends: Vec::new() }
    }

    /// Returns the same lease with these ends.
    #[must_use]
    pub fn after_ends(self, ends: Vec<u64>) -> Self {
        Self { ends, ..self }
    }

    /// Returns the partition and group of a lease on a partition.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a lease on anything else.
    pub fn partition(&self) -> Result<(&TopicPartition, &GroupName)> {
        match &self.resource {
            Resource::Partition { topic_partition, group } => Ok((topic_partition, group)),
            #[allow(unreachable_patterns, reason = "resources other than partitions are to come")]
            other => Err(Error::new(ErrorKind::InvalidConfig, format!("a lease on {other} is no partition"))),
        }
    }

    /// Returns the error of every fenced call after this lease was lost.
    #[must_use]
    pub fn fenced(&self) -> Error {
        let error = Error::new(
            ErrorKind::Fenced,
            format!("lease on {} is lost (epoch {})", self.resource, self.epoch),
        );
        match &self.resource {
            Resource::Partition { topic_partition, .. } => error.at(topic_partition),
        }
    }
}

/// Result of a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The caller owns the resource.
    Granted(Lease),
    /// Another owner has it.
    Held(Holder),
}

/// Current owner of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Name that the owner gave when it acquired the lease.
    pub owner: String,
    /// Epoch of its grant.
    pub epoch: u64,
    /// Time from now until the lease expires unless it is renewed.
    pub expires_in: Duration,
}

impl Holder {
    /// Creates the record of an owner.
    #[must_use]
    pub fn new(owner: impl Into<String>, epoch: u64, expires_in: Duration) -> Self {
        Self { owner: owner.into(), epoch, expires_in }
    }

    /// Returns since when it has been the owner, if the backend's epochs tell it: on Redis an epoch is the time of its grant in
    /// milliseconds, at least one more than that of the grant before; the backend in memory counts from 1.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        const IN_2001: u64 = 1_000_000_000_000;
        Some(self.epoch).filter(|epoch| *epoch >= IN_2001).map(Timestamp::from_millis)
    }
}

/// Returns the time limit of a renewal of leases with this ttl: a tenth of it, at least 350 ms, at most a quarter of it.
#[must_use]
pub fn renewal_timeout(ttl: Duration) -> Duration {
    (ttl / 10).max(LEAST_PATIENCE).min(ttl / 4)
}

/// Returns the time after the sending of a granted request for which the holder may rely on a lease of this ttl: the ttl
/// less a fifth, the margin for clocks that run at different speeds and for slow dispatch.
#[must_use]
pub fn reliable(ttl: Duration) -> Duration {
    ttl - ttl / 5
}

/// Returns the epoch of a grant: `max(last + 1, now, above + 1)`, where `last` is the last one that is stored, and `now`
/// the server's time in milliseconds.
///
/// The clock makes the epoch grow even if a fail-over lost the newest grants; the stored epoch does if the clock went
/// back. `above` is what the caller knows from elsewhere, for the case that both happen; 0 if it knows nothing.
#[must_use]
pub fn next_epoch(last: u64, now: Timestamp, above: u64) -> u64 {
    now.as_millis().max(last.max(above).saturating_add(1))
}

/// Minimum time limit for a reply, unless leases are shorter than four times that: servers may be a few hundred
/// milliseconds away.
const LEAST_PATIENCE: Duration = Duration::from_millis(350);

/// Grants, renews and ends leases.
///
/// Required are all methods except [`withdraw_end`](Leases::withdraw_end).
#[async_trait]
pub trait Leases: Send + Sync {
    /// Requests a resource.
    ///
    /// `nonce` is unique to this request and makes it idempotent: a request that is repeated with the same nonce after a
    /// lost reply returns the same lease. `owner` is shown to people and has no effect.
    ///
    /// A lease that expired and was never released is granted only if `continuity` [judges](Continuity::judges); until then it
    /// counts as held, for the [time that is left](Continuity::left). A resource that was released, or never owned, is granted to any caller.
    ///
    /// The epoch is larger than every epoch granted for this resource before, also if the store lost its newest writes in
    /// a fail-over. If the previous lease was never released, the grant adds that lease's epoch to [`Lease::ends`]; a
    /// repetition of the same request returns the same list. A backend that counts no ends (see
    /// [`Capability::Ends`](crate::Capability::Ends)) leaves that list empty.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired>;

    /// Extends leases by another ttl. Returns one result per lease, [`ErrorKind::Fenced`] if another owner was granted
    /// the resource since. A lease that merely expired is revived as long as no other owner took it.
    ///
    /// The caller waits for [`renewal_timeout`] and then counts all of them as not renewed. A backend of several servers
    /// returns earlier, with errors for the leases at those that have not answered.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>>;

    /// Releases a resource. From then on the token is invalid. The next grant has the [ends](Lease::ends) of `lease`.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another owner had it already.
    async fn release(&self, lease: &Lease) -> Result<()>;

    /// Removes the end that was counted for this lease: its owner lost it, but its process has not ended. Does nothing if
    /// none was counted, which is the default: for a backend that counts no ends (see
    /// [`Capability::Ends`](crate::Capability::Ends)).
    ///
    /// # Errors
    /// Transient ones, after which the call can be repeated; [`ErrorKind::WrongType`].
    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        let _ = lease;
        Ok(())
    }

    /// Returns the current owner of the resource.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_above_everything_that_is_known() {
        let next = |last, now, above| next_epoch(last, Timestamp::from_millis(now), above);
        assert_eq!(next(0, 1_000, 0), 1_000);
        assert_eq!(next(1_000, 1_000, 0), 1_001);
        assert_eq!(next(5_000, 1_000, 0), 5_001, "the clock went back");
        assert_eq!(next(0, 1_000, 7_000), 7_001, "the grants were lost, and the clock is slow");
    }

    #[test]
    fn the_error_of_a_lost_lease_says_where() {
        let topic_partition = TopicPartition::new("orders".parse().expect("a name"), 3);
        let resource = Resource::partition(topic_partition.clone(), "billing".parse().expect("a name"));
        let error = Lease::new(resource, 7, "nonce", Duration::from_secs(1)).fenced();
        assert_eq!(error.to_string(), "lease on orders/3 of billing is lost (epoch 7)");
        assert_eq!((error.topic(), error.partition()), (Some("orders"), Some(3)));
    }
}
