//! The members role: the live instances of a group, and the partitions that each of them should own.
//!
//! Safety does not depend on this role: leases ensure it. A member that is wrongly considered dead, or an assignment that
//! is wrong for a while, costs a hand-over and nothing else.
//!
//! Every change (a member joined, left or died, the topic has grown) creates a new *version* of the membership. Any
//! member that reads a version without an assignment may compute one and publish it; the first one wins. So there is no
//! leader, and all members see the same assignment.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::UNNAMED;
use crate::error::Result;
use crate::id::MessageId;
use crate::name::{GroupName, MemberId, TopicName};
use crate::timestamp::Timestamp;
use crate::topic::Partition;

pub use crate::assignment::{Assignment, Member};

/// Version of a membership. It grows with every change; a backend decides by how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Id of the newest change, of membership or assignment, that an answer includes. [`Watch::changed`] waits for the next
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub MessageId);

/// Answer to a heartbeat: everything that a member has to know, in a size that does not grow with the group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeartbeatReply {
    /// The version of the membership.
    pub version: Version,
    /// The newest change.
    pub revision: Revision,
    /// Number of members, those included whose ttl has passed and that were not dropped yet.
    pub members: u32,
    /// Number of partitions that the topic has now.
    pub partitions: u32,
    /// Partitions that this member should own; `None` while no assignment has been published for this version.
    pub assigned: Option<Vec<Partition>>,
    /// Whether the whole group is [paused](crate::Catalog::set_paused).
    pub paused: bool,
    /// Time from now until the next heartbeat that may drop a member: until the first member's ttl passes, unless that
    /// member sends a heartbeat before; if one has passed already, until the sender
    /// [judges](crate::Continuity::judges).
    pub next_expiry: Duration,
    /// Identity of the server that answered, for [`Continuity::advance`](crate::Continuity::advance): another one after a
    /// restart or fail-over. `-` if the server does not give one.
    pub server: String,
    /// Time of the answer by the server's clock.
    pub now: Timestamp,
}

impl HeartbeatReply {
    /// Creates an answer as a backend returns it.
    #[must_use]
    pub fn new(version: Version, revision: Revision, members: u32, partitions: u32) -> Self {
        let (next_expiry, server) = (Duration::MAX, UNNAMED.to_owned());
        let (assigned, paused, now) = (None, false, Timestamp::default());
        Self { version, revision, members, partitions, assigned, paused, next_expiry, server, now }
    }
}

/// State of a whole group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupMembers {
    /// The version of the membership.
    pub version: Version,
    /// The newest change.
    pub revision: Revision,
    /// Number of partitions of the topic; 0 if there is no such topic.
    pub partitions: u32,
    /// All members that were not dropped, in the order of their ids. Members whose ttl has passed are included: they may
    /// come back from an outage that affected all of them. See [`living`](Self::living).
    pub members: Vec<Member>,
    /// Time since the last heartbeat of each member, by the server's clock.
    pub last_heartbeats: BTreeMap<MemberId, Duration>,
    /// The version that `assignment` was published for.
    pub assigned: Option<Version>,
    /// The last published assignment.
    pub assignment: Assignment,
}

impl GroupMembers {
    /// Returns the members whose ttl has not passed since their last heartbeat.
    pub fn living(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !self.is_overdue(member))
    }

    /// Whether a member's ttl has passed: it is dropped once some member [judges](crate::Continuity::judges), unless it
    /// sends a heartbeat before.
    #[must_use]
    pub fn is_overdue(&self, member: &Member) -> bool {
        self.last_heartbeats.get(&member.id).is_some_and(|ago| *ago >= member.ttl)
    }
}

/// Keeps the members of groups and their assignments.
#[async_trait]
pub trait Members: Send + Sync {
    /// Records a heartbeat of `member`, and returns the state of the group.
    ///
    /// The same call drops members whose ttl has passed, if the sender [judges](crate::Continuity::judges) by its
    /// [`Member::continuity`]: after an outage of the server nobody is dropped before all have had a ttl to come back.
    ///
    /// With `joining`, an instance joins the group, and takes the id over from any instance that has it. Without
    /// `joining`, it is an error if another incarnation has taken the id, or if the id is not in the group: a heartbeat
    /// that arrives after its sender has [left](Self::leave) does not bring the member back. Preferences that differ from
    /// those of the previous heartbeat create a new version.
    ///
    /// # Errors
    /// [`ErrorKind::NotMember`](crate::ErrorKind::NotMember) without `joining`, if the id is not in the group: it was
    /// dropped, or the server has lost it. It may join again. [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if another
    /// incarnation has taken the id: this one must stop. [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the topic
    /// does not exist, also if it was deleted. [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) if the group is being deleted, or was, or if the
    /// topic was deleted and created again since: this member must stop, and has not joined the group of the new topic.
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply>;

    /// Removes `member` from the group. Does nothing if it is not in it, or another incarnation has its id.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()>;

    /// Returns the whole group. Members whose ttl has passed are included until a heartbeat drops them.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType);
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the stored data is invalid.
    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers>;

    /// Publishes an assignment for `version`. Returns `false`, and has no effect, if that is not the current version of
    /// the membership, or it has an assignment already.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool>;

    /// Opens a watch on the group's changes.
    ///
    /// # Errors
    /// Transient ones.
    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>>;
}

/// Waits for changes of one group.
#[async_trait]
pub trait Watch: Send {
    /// Waits up to `wait` until there is a change after `seen`; returns at once if there is one already. It may also
    /// return early, or for a change that was seen: the next heartbeat shows whether something changed.
    ///
    /// Waiting has no effect: dropping this future is safe.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()>;
}
