//! Groups as a whole: created, reset, deleted; and those that nobody uses any more.

use std::time::Duration;

use millstream_core::catalog::{GroupCreated, GroupState, PartitionStats, Pin};
use millstream_core::{Error, ErrorKind, GroupName, Result, Start, TopicName, TopicSpec};

use crate::Admin;
use crate::topics::InUse;

/// A group that nobody has read with for a long time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredGroup {
    /// The group.
    pub group: GroupName,
    /// For how long nobody has read with it, in any partition.
    pub idle: Duration,
    /// Entries that stay for this group alone, over all partitions; see [`Pin::entries`].
    pub entries: u64,
    /// About how many bytes these take.
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
        let spec = self.backend.catalog.topic(topic).await?;
        self.backend.catalog.create_group(&spec, group, start).await
    }

    /// All groups of a topic, by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        self.backend.catalog.topic(topic).await?;
        self.backend.catalog.groups(topic).await
    }

    /// Deletes a group with everything that is kept for it: what is pending and parked, its dead letters, members and
    /// leases. What only it kept in the log is dropped by the next trim. Also one that is on a log and not in the topic's
    /// list, which others may have made: who reads there without us, nobody knows.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there; [`ErrorKind::Exists`] if somebody works in it,
    /// unless it is forced: who, is said, and nothing was done. [`ErrorKind::WrongType`] if that cannot be found out, unless
    /// it is forced. Transient ones, after which it can be asked again.
    pub async fn delete_group(&self, topic: &TopicName, group: &GroupName, in_use: InUse) -> Result<()> {
        let spec = self.backend.catalog.topic(topic).await?;
        if in_use == InUse::Refuse {
            self.refuse_in_use(&spec, group).await?;
        }
        if self.backend.catalog.delete_group(topic, group).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} does not exist")))
    }

    /// Pauses a group as a whole, over all its instances; gives back whether it was not paused before. It is kept with the
    /// group: members that wait hear of it at once, others with their next heartbeat (within a third of the lease's
    /// ttl), and who comes later begins with it. They read nothing and start no further handler; those that run end, and
    /// are settled. What was read stays in hand, partitions stay where they are, retries become due and wait.
    ///
    /// It is over with [`resume_group`](Self::resume_group) and with nothing else. What an instance pauses by itself is
    /// another pause: each holds by itself. Consumers of versions that do not know of this go on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there; [`ErrorKind::Deleted`] for a group that is being
    /// deleted; transient ones.
    pub async fn pause_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        self.backend.catalog.set_paused(topic, group, true).await
    }

    /// Ends the pause of a group; gives back whether it was paused. Members go on as soon as they hear of it, as for
    /// [`pause_group`](Self::pause_group).
    ///
    /// # Errors
    /// As [`pause_group`](Self::pause_group).
    pub async fn resume_group(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        self.backend.catalog.set_paused(topic, group, false).await
    }

    /// What is kept of a group as a whole: since when it is paused, and whether a deletion of it was not finished.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that is not there; transient ones.
    pub async fn group_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        self.backend.catalog.topic(topic).await?;
        self.backend.catalog.group_state(topic, group).await
    }

    /// Which group keeps most from being dropped, of every partition of a topic: the largest first.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn pins(&self, topic: &TopicName) -> Result<Vec<Pin>> {
        let spec = self.backend.catalog.topic(topic).await?;
        let mut pins = self.backend.catalog.pins(&spec).await?;
        pins.sort_by_key(|pin| (std::cmp::Reverse(pin.bytes), pin.partition));
        Ok(pins)
    }

    /// Deletes the groups that keep entries of a topic, in which nobody lives and which nobody has read with for `idle`,
    /// in any partition; or only names them, in a dry run. Nothing ever does this by itself.
    ///
    /// A group that was created and has never read is not expired: since when that is so, the server does not know.
    /// [Delete](Self::delete_group) it by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones, after which it can be asked again.
    pub async fn expire_groups(
        &self,
        topic: &TopicName,
        idle: Duration,
        dry_run: bool,
    ) -> Result<Vec<ExpiredGroup>> {
        let spec = self.backend.catalog.topic(topic).await?;
        let pins = self.backend.catalog.pins(&spec).await?;
        let mut expired = Vec::new();
        for group in self.backend.catalog.groups(topic).await? {
            let stats = self.backend.catalog.stats(&spec, &group).await?;
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
                self.backend.catalog.delete_group(topic, &group).await?;
            }
            expired.push(expired_group(group, unread_for, &pins));
        }
        Ok(expired)
    }

    /// For how long nobody has read with a group, in any partition; `None` if nobody ever has.
    async fn idle(&self, spec: &TopicSpec, group: &GroupName) -> Result<Option<Duration>> {
        let mut least: Option<Duration> = None;
        for tp in spec.iter() {
            for reading in self.backend.inspect.consumers(&tp, group).await? {
                least = Some(least.map_or(reading.idle, |least| least.min(reading.idle)));
            }
        }
        Ok(least)
    }
}

/// Whether there is something that the group has not settled, and that stays for it.
fn keeps(stats: &[PartitionStats]) -> bool {
    stats.iter().any(|partition| partition.oldest.is_some())
}

/// A group with all that it alone pins.
fn expired_group(group: GroupName, idle: Duration, pins: &[Pin]) -> ExpiredGroup {
    let of_group = pins.iter().filter(|pin| pin.group == group);
    let (entries, bytes) =
        of_group.fold((0, 0), |(entries, bytes), pin| (entries + pin.entries, bytes + pin.bytes));
    ExpiredGroup { group, idle, entries, bytes }
}

#[cfg(test)]
mod tests {
    use millstream_core::{MessageId, Partition};

    use super::*;

    #[test]
    fn what_a_group_pins_is_added_up() {
        let pin = |partition, group: &str, entries| {
            let mut pin = Pin::new(Partition(partition), group.parse().expect("a name"), MessageId::ZERO);
            (pin.entries, pin.bytes) = (entries, 10 * entries);
            pin
        };
        let pins = [pin(0, "b", 5), pin(1, "a", 1), pin(2, "b", 2)];
        let (group, idle): (GroupName, _) = ("b".parse().expect("a name"), Duration::from_secs(60));
        let expected = ExpiredGroup { group: group.clone(), idle, entries: 7, bytes: 70 };
        assert_eq!(expired_group(group, idle, &pins), expected);
        let other: GroupName = "c".parse().expect("a name");
        assert_eq!(expired_group(other, idle, &pins).entries, 0);
    }

    #[test]
    fn who_has_settled_everything_keeps_nothing() {
        let (mut one, two) = (PartitionStats::empty(Partition(0)), PartitionStats::empty(Partition(1)));
        assert!(!keeps(&[one.clone(), two.clone()]));
        one.oldest = Some(Duration::ZERO);
        assert!(keeps(&[two, one]));
    }
}
