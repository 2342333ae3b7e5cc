//! Groups as a whole: creating, pausing and deleting them, and finding those that are no longer used.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::assignment::Member;
use millstream_core::catalog::{GroupCreated, GroupState, PartitionStats, Pin};
use millstream_core::{Error, ErrorKind, GroupName, MemberId, Result, Start, TopicName, TopicSpec};
use tokio::time::Instant;

use crate::Admin;
use crate::topics::InUse;

/// Pause between two questions whether the members of a group know that it is paused.
const PAUSE_POLL: Duration = Duration::from_millis(100);
/// Time within which a member in this process has acted on the answer to a heartbeat.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// Group that has not been read with for a long time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredGroup {
    /// The group.
    pub group: GroupName,
    /// Time since the last read with it, in any partition.
    pub idle: Duration,
    /// Messages that are retained only for this group, over all partitions; see [`Pin::messages`].
    pub messages: u64,
    /// Approximate size of these messages, in bytes.
    pub bytes: u64,
}

impl Admin {
    /// Creates a group on all partitions where it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn create_group(
        &self,
        topic: &TopicName,
        group: &GroupName,
        start: Start,
    ) -> Result<GroupCreated> {
        let spec = self.backend.catalog().topic(topic).await?;
        self.backend.catalog().create_group(&spec, group, start).await
    }

    /// Returns all groups of a topic, by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        self.backend.catalog().topic(topic).await?;
        self.backend.catalog().groups(topic).await
    }

    /// Deletes a group with all its data: pending and parked messages, dead letters, members and leases. Entries that
    /// only this group retained are dropped by the next trim. It also deletes a group that exists on a log but not in
    /// the topic's list, for example one created by another program: whether somebody else reads with it cannot be
    /// determined.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist. [`ErrorKind::Exists`] if the group is in use,
    /// unless forced: the message names the users, and nothing was changed. [`ErrorKind::WrongType`] if its users
    /// cannot be determined, unless forced. Transient ones, after which the call can be repeated.
    pub async fn delete_group(&self, topic: &TopicName, group: &GroupName, in_use: InUse) -> Result<()> {
        let spec = self.backend.catalog().topic(topic).await?;
        if in_use == InUse::Refuse {
            self.refuse_in_use(&spec, group).await?;
        }
        if self.backend.catalog().delete_group(topic, group).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} does not exist"))
            .at(topic))
    }

    /// Pauses a group as a whole, over all its instances. Returns whether it was not paused before. The pause is stored
    /// with the group: waiting members receive it immediately, others with their next heartbeat (within a third of the
    /// lease's ttl), and new members at their start. Paused members read nothing and start no further handler; running
    /// handlers end, and their messages are settled. Messages that were read stay in flight, partitions keep their
    /// owners, and retries become due and wait.
    ///
    /// The pause ends only with [`resume_group`](Self::resume_group). A pause of a single instance is independent of
    /// it. Consumers of versions that do not know this pause continue.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that does not exist; [`ErrorKind::Deleted`] for a group that is
    /// being deleted; transient ones.
    pub async fn pause_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        self.backend.catalog().set_paused(topic, group, true).await
    }

    /// [Pauses](Self::pause_group) a group, and waits until all its living members know it: from then on no handler of it starts,
    /// while running ones end. Returns the members that are not known to know it when `patience` is over; empty if all do.
    ///
    /// A member knows it for certain once it has sent another heartbeat behind the one that was answered with the pause. That
    /// takes up to two thirds of the lease's ttl. The group stays paused whatever is returned.
    ///
    /// # Errors
    /// Same as [`pause_group`](Self::pause_group), also after the pause was stored.
    pub async fn pause_group_and_wait(
        &self,
        topic: &TopicName,
        group: &GroupName,
        patience: Duration,
    ) -> Result<Vec<MemberId>> {
        self.pause_group(topic, group).await?;
        let paused = Instant::now();
        // Earliest times of the first heartbeats that were answered with the pause.
        let mut told: BTreeMap<MemberId, Instant> = BTreeMap::new();
        loop {
            let asked = Instant::now();
            let roster = self.backend.members().roster(topic, group).await?;
            let mut knows = |member: &Member| {
                let ago = roster.last_heartbeats.get(&member.id).copied().unwrap_or(Duration::MAX);
                let Some(at) = asked.checked_sub(ago).filter(|at| *at > paused) else { return false };
                let first = *told.entry(member.id.clone()).or_insert(at);
                // Answers take different times; two heartbeats are a third of the ttl apart, unless something changes. Where there
                // are hardly any, the answers are those of this process.
                let at_once = self.backend.is_lasting() && asked > first + KNOWN_WITHIN;
                at_once || at > first + member.ttl / 6
            };
            let waits: Vec<MemberId> =
                roster.living().filter(|member| !knows(member)).map(|member| member.id.clone()).collect();
            if waits.is_empty() || paused.elapsed() >= patience {
                return Ok(waits);
            }
            tokio::time::sleep(PAUSE_POLL.min(patience.saturating_sub(paused.elapsed()))).await;
        }
    }

    /// Ends the pause of a group. Returns whether it was paused. Members continue as soon as they receive the change,
    /// as for [`pause_group`](Self::pause_group).
    ///
    /// # Errors
    /// Same as [`pause_group`](Self::pause_group).
    pub async fn resume_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        self.backend.catalog().set_paused(topic, group, false).await
    }

    /// Returns the stored state of a group as a whole: since when it is paused, and whether a deletion of it was
    /// interrupted.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist; transient ones.
    pub async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        self.backend.catalog().topic(topic).await?;
        self.backend.catalog().group_state(topic, group).await
    }

    /// Returns, for every partition of a topic, the group that retains most entries: the largest first.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn pins(&self, topic: &TopicName) -> Result<Vec<Pin>> {
        let spec = self.backend.catalog().topic(topic).await?;
        let mut pins = self.backend.catalog().pins(&spec).await?;
        pins.sort_by_key(|pin| (std::cmp::Reverse(pin.bytes), pin.partition));
        Ok(pins)
    }

    /// Deletes groups that retain entries of a topic, have no live members, and have not been read with for `idle` in
    /// any partition. A dry run only returns them. This never happens automatically.
    ///
    /// A group that was created and never read with does not expire, because the server does not know since when.
    /// [Delete](Self::delete_group) it by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones, after which the call can be repeated.
    pub async fn expire_groups(
        &self,
        topic: &TopicName,
        idle: Duration,
        dry_run: bool,
    ) -> Result<Vec<ExpiredGroup>> {
        let spec = self.backend.catalog().topic(topic).await?;
        let pins = self.backend.catalog().pins(&spec).await?;
        let mut expired = Vec::new();
        for group in self.backend.catalog().groups(topic).await? {
            let stats = self.backend.catalog().stats(&spec, &group).await?;
            if !keeps(&stats) {
                continue;
            }
            let Some(unread_for) = self.idle(&spec, &group).await?.filter(|found| *found >= idle) else {
                continue;
            };
            if !self.users(&spec, &group).await?.is_empty() {
                continue;
            }
            if !dry_run {
                self.backend.catalog().delete_group(topic, &group).await?;
            }
            expired.push(expired_group(group, unread_for, &pins));
        }
        Ok(expired)
    }

    /// Returns the time since the last read with a group, in any partition; `None` if there never was one.
    async fn idle(&self, spec: &TopicSpec, group: &GroupName) -> Result<Option<Duration>> {
        let mut least: Option<Duration> = None;
        for tp in spec.iter() {
            for reading in self.backend.inspect()?.consumers(&tp, group).await? {
                least = Some(least.map_or(reading.idle, |least| least.min(reading.idle)));
            }
        }
        Ok(least)
    }
}

/// Returns whether there is an entry that the group has not settled and that is retained for it.
fn keeps(stats: &[PartitionStats]) -> bool {
    stats.iter().any(|partition| partition.oldest.is_some())
}

/// Sums up the pins of a group.
fn expired_group(group: GroupName, idle: Duration, pins: &[Pin]) -> ExpiredGroup {
    let of_group = pins.iter().filter(|pin| pin.group == group);
    let (messages, bytes) =
        of_group.fold((0, 0), |(messages, bytes), pin| (messages + pin.messages, bytes + pin.bytes));
    ExpiredGroup { group, idle, messages, bytes }
}

#[cfg(test)]
mod tests {
    use millstream_core::{MessageId, Partition};

    use super::*;

    #[test]
    fn what_a_group_pins_is_added_up() {
        let pin = |partition, group: &str, messages| {
            let mut pin = Pin::new(Partition(partition), group.parse().expect("a name"), MessageId::ZERO);
            (pin.messages, pin.bytes) = (messages, 10 * messages);
            pin
        };
        let pins = [pin(0, "b", 5), pin(1, "a", 1), pin(2, "b", 2)];
        let (group, idle): (GroupName, _) = ("b".parse().expect("a name"), Duration::from_secs(60));
        let expected = ExpiredGroup { group: group.clone(), idle, messages: 7, bytes: 70 };
        assert_eq!(expired_group(group, idle, &pins), expected);
        let other: GroupName = "c".parse().expect("a name");
        assert_eq!(expired_group(other, idle, &pins).messages, 0);
    }

    #[test]
    fn who_has_settled_everything_keeps_nothing() {
        let (mut one, two) = (PartitionStats::empty(Partition(0)), PartitionStats::empty(Partition(1)));
        assert!(!keeps(&[one.clone(), two.clone()]));
        one.oldest = Some(Duration::ZERO);
        assert!(keeps(&[two, one]));
    }
}
