//! Ownership of partitions: members, the assignment, and the current leases.

use std::collections::BTreeMap;

use millstream_core::inspect::Ownership;
use millstream_core::log::Source;
use millstream_core::members::{GroupMembers, Member};
use millstream_core::running::{RunningMessage, WaitingMessage};
use millstream_core::{GroupName, MemberId, MessageId, Partition, Result, TopicName};

use crate::Admin;
use crate::stats::readable;

/// Name under which entries of an owned partition are pending, whoever owns it.
const OWNER: &str = "owner";

/// State of a partition in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The assigned member owns it.
    Settled,
    /// Another member than the assigned one owns it: it is about to move.
    Moving,
    /// It is assigned and has no owner: a takeover is running, or the assigned member cannot proceed.
    Waiting,
    /// It has an owner and no assignment: the owner is a consumer without a group, or one that has just started.
    Unassigned,
    /// It has neither owner nor assignment: the group is not running.
    Idle,
    /// It is not known, since lease or fence [cannot be read](Ownership::unreadable).
    Unknown,
}

/// Partition, with its owner and the assigned member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPartition {
    /// Current lease.
    pub ownership: Ownership,
    /// Member that the partition is assigned to.
    pub assigned: Option<MemberId>,
    /// State that follows from both.
    pub standing: Standing,
}

/// Members of a group, and all partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Members, including those that [ran out](GroupMembers::is_overdue) and were not dropped yet, and the assignment
    /// that was published last.
    pub roster: GroupMembers,
    /// All partitions, in order.
    pub partitions: Vec<OwnedPartition>,
    /// Reasons of what cannot be read: of members and assignment, which are then missing in `roster`, or of all owners.
    pub unreadable: Vec<String>,
}

impl Owners {
    /// Returns the reasons of everything that is unknown because it cannot be read; none if all is known.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        let of_partitions = self.partitions.iter().filter_map(|it| it.ownership.unreadable.as_deref());
        self.unreadable.iter().map(String::as_str).chain(of_partitions)
    }

    /// Returns the member that holds an entry of a partition which is pending under this name: the owner of the partition, or in shared
    /// mode the member itself. `None` if the partition has no owner now.
    #[must_use]
    pub fn holder<'a>(&'a self, partition: Partition, consumer: &'a str) -> Option<&'a str> {
        if consumer != OWNER {
            return Some(consumer);
        }
        let owned = self.partitions.iter().find(|it| it.ownership.partition == partition)?;
        owned.ownership.holder.as_ref().map(|holder| holder.owner.as_str())
    }

    /// Returns the messages that have been in their handlers for a while, longest first, with the members that run them: as each
    /// said with its last heartbeat. Members that [ran out](GroupMembers::is_overdue) are left out.
    #[must_use]
    pub fn running(&self) -> Vec<(&Member, &RunningMessage)> {
        let mut all: Vec<_> = self
            .roster
            .living()
            .flat_map(|it| it.running.messages.iter().map(move |one| (it, one)))
            .collect();
        all.sort_by_key(|(_, one)| one.since);
        all
    }

    /// Returns how many messages run that members did not name, since they run too many.
    #[must_use]
    pub fn running_unnamed(&self) -> u64 {
        self.roster.living().map(|it| it.running.more).sum()
    }

    /// Returns messages that have waited for units of limits for a while, longest first, with the members that have read them: as each
    /// said with its last heartbeat.
    #[must_use]
    pub fn waiting(&self) -> Vec<(&Member, &WaitingMessage)> {
        let of = |it| move |one| (it, one);
        let mut all: Vec<_> =
            self.roster.living().flat_map(|it| it.running.waiting.iter().map(of(it))).collect();
        all.sort_by_key(|(_, one)| one.message.since);
        all
    }

    /// Returns how many messages wait for limits that members did not name, since there are too many.
    #[must_use]
    pub fn waiting_unnamed(&self) -> u64 {
        self.roster.living().map(|it| it.running.more_waiting).sum()
    }

    /// Returns what a message of a pending entry waits for, and since when, if a member has named it.
    #[must_use]
    pub fn waits(&self, partition: Partition, source: Source, entry: MessageId) -> Option<&WaitingMessage> {
        let is = |it: &RunningMessage| (it.partition, it.source, it.entry) == (partition, source, entry);
        self.waiting().into_iter().map(|(_, it)| it).find(|it| is(&it.message))
    }

    /// Returns who runs a message of a pending entry, and since when.
    #[must_use]
    pub fn runs(
        &self,
        partition: Partition,
        source: Source,
        entry: MessageId,
    ) -> Option<(&Member, &RunningMessage)> {
        let is = |it: &RunningMessage| (it.partition, it.source, it.entry) == (partition, source, entry);
        // The longest of a pack; of two members the newer one.
        let mut found = None;
        for member in self.roster.living() {
            if let Some(one) = member.running.messages.iter().find(|it| is(it))
                && found.is_none_or(|(_, before): (_, &RunningMessage)| before.since < one.since)
            {
                found = Some((member, one));
            }
        }
        found
    }

    /// Returns the partitions of each owner, by the owner's name. Includes members without partitions.
    #[must_use]
    pub fn by_owner(&self) -> BTreeMap<String, Vec<Partition>> {
        let mut by: BTreeMap<String, Vec<Partition>> =
            self.roster.members.iter().map(|member| (member.id.to_string(), Vec::new())).collect();
        for partition in &self.partitions {
            if let Some(holder) = &partition.ownership.holder {
                by.entry(holder.owner.clone()).or_default().push(partition.ownership.partition);
            }
        }
        by
    }
}

impl Admin {
    /// Returns the owner and the assigned member of each partition of a topic, for a group, as far as they can be read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; transient ones.
    pub async fn owners(&self, topic: &TopicName, group: &GroupName) -> Result<Owners> {
        let spec = self.backend.catalog().topic(topic).await?;
        let mut unreadable = Vec::new();
        let roster = readable(&mut unreadable, self.backend.members().roster(topic, group).await)?;
        let roster = roster.unwrap_or_default();
        let ownerships = self.backend.inspect()?.owners(&spec, group).await?;
        let assigned = assigned(&roster);
        let partitions = ownerships.into_iter().map(|ownership| {
            let assigned = assigned.get(&ownership.partition).cloned();
            let standing = standing(&ownership, assigned.as_ref());
            OwnedPartition { ownership, assigned, standing }
        });
        Ok(Owners { partitions: partitions.collect(), roster, unreadable })
    }
}

/// Returns the assigned member of each partition. Partitions of members that are not alive count as unassigned.
fn assigned(roster: &GroupMembers) -> BTreeMap<Partition, MemberId> {
    let lives = |id: &MemberId| roster.living().any(|member| member.id == *id);
    let of = roster.assignment.iter().filter(|(member, _)| lives(member));
    of.flat_map(|(member, partitions)| partitions.iter().map(|it| (*it, member.clone()))).collect()
}

fn standing(ownership: &Ownership, assigned: Option<&MemberId>) -> Standing {
    if ownership.unreadable.is_some() {
        return Standing::Unknown;
    }
    match (&ownership.holder, assigned) {
        (Some(holder), Some(member)) if holder.owner == member.as_str() => Standing::Settled,
        (Some(_), Some(_)) => Standing::Moving,
        (None, Some(_)) => Standing::Waiting,
        (Some(_), None) => Standing::Unassigned,
        (None, None) => Standing::Idle,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_core::Timestamp;
    use millstream_core::leases::Holder;
    use millstream_core::running::Running;

    use super::*;

    fn lease(owner: Option<&str>) -> Ownership {
        let holder = owner.map(|owner| Holder::new(owner, 1, Duration::MAX));
        let mut ownership = Ownership::free(Partition(0));
        ownership.holder = holder;
        ownership
    }

    #[test]
    fn a_partition_stands_as_lease_and_assignment_say() {
        let member: MemberId = "a".parse().expect("an id");
        let cases = [
            (Some("a"), true, Standing::Settled),
            (Some("ab"), true, Standing::Moving),
            (None, true, Standing::Waiting),
            (Some("a"), false, Standing::Unassigned),
            (None, false, Standing::Idle),
        ];
        for (owner, should, expected) in cases {
            assert_eq!(standing(&lease(owner), Some(&member).filter(|_| should)), expected);
        }
    }

    #[test]
    fn a_partition_whose_lease_cannot_be_read_does_not_count_as_free() {
        let mut unknown = lease(None);
        unknown.unreadable = Some("why".to_owned());
        assert_eq!(standing(&unknown, None), Standing::Unknown);
    }

    #[test]
    fn who_is_dead_should_own_nothing() {
        let mut roster = GroupMembers::default();
        let ids = ["a", "b"].map(|id| id.parse::<MemberId>().expect("an id"));
        roster.members.push(Member::new(ids[0].clone(), "1", Duration::from_secs(1)));
        for (id, partition) in ids.iter().zip(0..) {
            roster.assignment.insert(id.clone(), vec![Partition(partition)]);
        }
        let assigned = assigned(&roster);
        assert_eq!(assigned.into_iter().collect::<Vec<_>>(), [(Partition(0), ids[0].clone())]);
    }

    #[test]
    fn what_a_member_said_that_ran_out_does_not_run() {
        let (ttl, entry) = (Duration::from_secs(1), MessageId::new(5, 0));
        let message = |since| RunningMessage {
            partition: Partition(3),
            source: Source::Log,
            entry,
            origin: entry,
            attempt: 1,
            since: Timestamp::from_millis(since),
        };
        let mut owners = Owners { roster: GroupMembers::default(), partitions: vec![], unreadable: vec![] };
        for (name, since, ago) in [("a", 30, ttl / 2), ("b", 10, ttl), ("c", 20, ttl / 2)] {
            let id: MemberId = name.parse().expect("an id");
            let messages = vec![message(since), message(since + 5)];
            let running = Running { messages, more: 4, ..Running::default() };
            owners.roster.members.push(Member::new(id.clone(), name, ttl).running(running));
            owners.roster.last_heartbeats.insert(id, ago);
        }
        let running: Vec<_> =
            owners.running().iter().map(|(by, it)| (by.id.to_string(), it.since.as_millis())).collect();
        let expected = [("c", 20), ("c", 25), ("a", 30), ("a", 35)];
        assert_eq!(running, expected.map(|(by, since)| (by.to_owned(), since)));
        assert_eq!(owners.running_unnamed(), 8);
        let runs = |partition, source| {
            owners
                .runs(Partition(partition), source, entry)
                .map(|(by, it)| (by.id.as_str(), it.since.as_millis()))
        };
        assert_eq!(runs(3, Source::Log), Some(("a", 30)), "two say so: the one that began last");
        assert_eq!((runs(3, Source::Retry), runs(2, Source::Log)), (None, None));
    }
}
