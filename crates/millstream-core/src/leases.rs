//! The leases role: who owns a resource now, with a token that fences everybody before.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::Continuity;
use crate::error::{Error, ErrorKind, Result};
use crate::name::GroupName;
use crate::topic::TopicPartition;

/// What can be owned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// A partition, as far as one group is concerned.
    Partition {
        /// The partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
    },
}

impl Resource {
    /// Partition `topic_partition` of `group`.
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

/// Proves one grant: `<epoch>:<nonce>`. Backends compare it for equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The token of a grant.
    #[must_use]
    pub fn new(epoch: u64, nonce: &str) -> Self {
        Self(format!("{epoch}:{nonce}").into())
    }

    /// The token as it stands in the store.
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

/// The right to act on a resource until its ttl passes without a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// What is owned.
    pub resource: Resource,
    /// What every fenced call shows.
    pub token: Token,
    /// Grows with every grant of this resource, also over a fail-over. Hand it to stores of your own and let
    /// them refuse smaller ones.
    pub epoch: u64,
    /// How long the lease lives after a grant or renewal.
    pub ttl: Duration,
    /// The epochs of owners before this one that ended in a row without giving the lease back, oldest first: their
    /// processes died, or were cut off for too long. An entry that was pending at several of these ends may be what the
    /// owners died over. An owner that gives the lease back before it has found out keeps them here, and the next one is
    /// given the same. At most [`MAX_ENDS`].
    pub ends: Vec<u64>,
}

/// The most ends in a row that are remembered; of more the newest.
pub const MAX_ENDS: usize = 32;

impl Lease {
    /// A grant, as a backend makes it.
    #[must_use]
    pub fn new(resource: Resource, epoch: u64, nonce: &str, ttl: Duration) -> Self {
        Self { resource, token: Token::new(epoch, nonce), epoch, ttl, ends: Vec::new() }
    }

    /// The same lease, after these ends.
    #[must_use]
    pub fn after_ends(self, ends: Vec<u64>) -> Self {
        Self { ends, ..self }
    }

    /// The partition and group of a lease on a partition.
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

    /// The error of every fenced call after this lease was lost.
    #[must_use]
    pub fn fenced(&self) -> Error {
        Error::new(ErrorKind::Fenced, format!("lease on {} is lost (epoch {})", self.resource, self.epoch))
    }
}

/// The answer to a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is yours.
    Granted(Lease),
    /// Somebody has it.
    Held(Holder),
}

/// Who has a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name that the owner gave.
    pub owner: String,
    /// The epoch of its grant.
    pub epoch: u64,
    /// When the lease ends unless it is renewed, from now.
    pub expires_in: Duration,
}

/// Grants, renews and ends leases.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Asks for a resource.
    ///
    /// `nonce` is unique to this request and makes it idempotent: asked again with the same nonce after a lost
    /// reply, the same lease is given. `owner` is shown to people and decides nothing.
    ///
    /// A lease that ran out and was never given back is granted only if `heard` [judges](Continuity::judges): else it
    /// counts as held for as long as that takes. What was given back, or never owned, anybody is granted.
    ///
    /// The epoch is larger than every epoch granted for this resource before, also if the store lost its
    /// newest writes in a fail-over. A grant of a lease that was never given back adds its epoch to [`Lease::ends`]; the
    /// same request asked again is given the same.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        heard: &Continuity,
    ) -> Result<Acquired>;

    /// Lets leases live for another ttl. One result per lease, [`ErrorKind::Fenced`] for those that somebody
    /// else was granted since. A lease that merely ran out is revived as long as nobody took it.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>>;

    /// Gives a resource back. From then on the token is good for nothing. The next grant has the [ends](Lease::ends) of
    /// `lease`.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if it was somebody else's already.
    async fn release(&self, lease: &Lease) -> Result<()>;

    /// Withdraws the end that was counted for this lease: its owner lost it, but has not ended. Nothing happens if none
    /// was.
    ///
    /// # Errors
    /// Transient ones, after which it can be asked again; [`ErrorKind::WrongType`].
    async fn withdraw_end(&self, lease: &Lease) -> Result<()>;

    /// Who has the resource now.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`].
    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>>;
}
