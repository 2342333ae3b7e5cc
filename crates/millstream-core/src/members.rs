//! The members role: which instances of a group are alive, and which partitions each of them should own.
//!
//! Nothing here is needed for safety: that is the leases' part. A member that is wrongly thought dead, or an
//! assignment that is wrong for a while, costs a hand-over and nothing else.
//!
//! Every change (somebody joined, left or died, the topic has grown) makes a new *version* of the membership. Any
//! member that sees a version without an assignment may compute one and publish it; the first one wins. So there is
//! no leader, and all members see the same assignment.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::continuity::{Continuity, UNNAMED};
use crate::error::Result;
use crate::id::MessageId;
use crate::name::{GroupName, MemberId, TopicName};
use crate::topic::{Partition, TopicSpec};

/// One instance of a consumer, as its group knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its name. Two instances that live at the same time must not share one.
    pub id: MemberId,
    /// Unique to one start of the instance: tells a restart from a second instance of the same name. 1 to 128 bytes
    /// without spaces.
    pub incarnation: String,
    /// How long it counts as alive after a heartbeat.
    pub ttl: Duration,
    /// The most partitions that it wants; `None` means any number.
    pub max_partitions: Option<u32>,
    /// Partitions that it wants in any case while it lives: a set, read back in the order of numbers.
    pub pinned: Vec<Partition>,
    /// Which of the topics of that name it works on, by its [`TopicSpec::generation`](crate::TopicSpec::generation); `None` for
    /// whichever is there. Nobody else is told.
    pub generation: Option<u64>,
    /// Since when it has been answered without a gap: without that it drops nobody. Nobody else is told.
    pub heard: Continuity,
}

impl Member {
    /// A member without wishes.
    #[must_use]
    pub fn new(id: MemberId, incarnation: impl Into<String>, ttl: Duration) -> Self {
        let (max_partitions, pinned, heard) = (None, Vec::new(), Continuity::new(ttl));
        Self { id, incarnation: incarnation.into(), ttl, max_partitions, pinned, generation: None, heard }
    }

    /// The same member, with at most this many partitions.
    #[must_use]
    pub fn at_most(self, partitions: u32) -> Self {
        Self { max_partitions: Some(partitions), ..self }
    }

    /// The same member, of this topic and none that is created in its place.
    #[must_use]
    pub fn of(self, topic: &TopicSpec) -> Self {
        Self { generation: Some(topic.generation), ..self }
    }

    /// The same member, which has been answered for so long.
    #[must_use]
    pub fn hearing(self, heard: Continuity) -> Self {
        Self { heard, ..self }
    }

    /// The same member, with these partitions in any case.
    #[must_use]
    pub fn pinned_to(self, partitions: impl IntoIterator<Item = Partition>) -> Self {
        Self { pinned: partitions.into_iter().collect(), ..self }
    }
}

/// Grows with every change of a membership; a backend decides by how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Names the newest change that an answer has seen: a membership's or an assignment's. [`Watch::changed`] waits for
/// the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub MessageId);

/// Who should own what. A member without partitions has an entry too. Each list is a set: it is read back in the
/// order of numbers.
pub type Assignment = BTreeMap<MemberId, Vec<Partition>>;

/// The answer to a heartbeat: what a member has to know, in a size that does not grow with the group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeartbeatReply {
    /// The version of the membership.
    pub version: Version,
    /// The newest change.
    pub revision: Revision,
    /// How many members there are: those that ran out and were not dropped yet among them.
    pub members: u32,
    /// How many partitions the topic has now.
    pub partitions: u32,
    /// What this member should own; `None` while nobody has published an assignment for this version.
    pub assigned: Option<Vec<Partition>>,
    /// Whether somebody has [paused](crate::Catalog::set_paused) the whole group.
    pub paused: bool,
    /// When to come again to drop somebody, from now: when the first member of all runs out unless it is heard of again;
    /// if one has already, when the sender [judges](Continuity::judges). A heartbeat after that time finds out.
    pub next_expiry: Duration,
    /// Which server answered, for [`Continuity::advance`]: another one after a restart or fail-over. `-` if it does not
    /// say.
    pub server: String,
    /// When, by the server's clock: milliseconds since 1970.
    pub now: u64,
}

impl HeartbeatReply {
    /// An answer as a backend makes it.
    #[must_use]
    pub fn new(version: Version, revision: Revision, members: u32, partitions: u32) -> Self {
        let (next_expiry, server) = (Duration::MAX, UNNAMED.to_owned());
        let (assigned, paused, now) = (None, false, 0);
        Self { version, revision, members, partitions, assigned, paused, next_expiry, server, now }
    }
}

/// A whole group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupMembers {
    /// The version of the membership.
    pub version: Version,
    /// The newest change.
    pub revision: Revision,
    /// How many partitions the topic has; 0 if there is no such topic.
    pub partitions: u32,
    /// All members that were not dropped, in the order of their ids. Those whose ttl has passed are among them: they may
    /// come back from an outage that kept all away. See [`living`](Self::living).
    pub members: Vec<Member>,
    /// How long ago each of them was heard of, by the server's clock.
    pub heard: BTreeMap<MemberId, Duration>,
    /// The version that `assignment` was published for.
    pub assigned: Option<Version>,
    /// The assignment that was published last.
    pub assignment: Assignment,
}

impl GroupMembers {
    /// The members whose ttl has not passed since they were heard of.
    pub fn living(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !self.is_overdue(member))
    }

    /// Whether a member's ttl has passed: it is dropped once somebody [judges](Continuity::judges), unless it is heard of
    /// before.
    #[must_use]
    pub fn is_overdue(&self, member: &Member) -> bool {
        self.heard.get(&member.id).is_some_and(|ago| *ago >= member.ttl)
    }
}

/// Knows the members of groups and what they should own.
#[async_trait]
pub trait Members: Send + Sync {
    /// Says that `member` lives.
    ///
    /// Members whose ttl has passed are dropped on this occasion, if the sender [judges](Continuity::judges) by its
    /// [`Member::heard`]: after an outage of the server nobody is dropped before all have had a ttl to come back.
    ///
    /// With `joining`, an instance joins the group, and takes over the id from whoever had it. Without, an id that another
    /// incarnation has taken is an error, and so is one that nobody has: a heartbeat that comes late, after its sender
    /// has [left](Self::leave), brings nobody back. Wishes that differ from those of the heartbeat before make a new
    /// version.
    ///
    /// # Errors
    /// [`ErrorKind::NotMember`](crate::ErrorKind::NotMember) without `joining`, if the id is not in the group: it was
    /// dropped, or the server has lost it. It may join again.
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if another incarnation has taken the id: this one must stop.
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the topic is not there;
    /// [`ErrorKind::Deleted`](crate::ErrorKind::Deleted) if the group is being deleted, or was, or if the topic was and
    /// another one was created in its place since: this one must stop, and has not joined that one;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType); transient ones.
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply>;

    /// Takes `member` out of the group. Nothing happens if it is not in it, or another incarnation has its id.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()>;

    /// The whole group. Members whose ttl has passed are shown until a heartbeat drops them.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType);
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if what is stored makes no sense.
    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers>;

    /// Publishes an assignment for `version`. `false`, and nothing happens, if that is not the version of the
    /// membership any more, or has an assignment already.
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
    /// Waits up to `wait` until there is a change after `seen`; ends at once if there is one already. Whether
    /// something changed the next heartbeat tells: this may also end early, or for a change that was seen.
    ///
    /// Waiting has no effect: dropping this future is safe.
    ///
    /// # Errors
    /// Transient ones; [`ErrorKind::WrongType`](crate::ErrorKind::WrongType).
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()>;
}
