//! Who owns what: members, what each should own, and the leases as they are.

use std::collections::BTreeMap;

use millstream_core::inspect::Ownership;
use millstream_core::members::GroupMembers;
use millstream_core::{GroupName, MemberId, Partition, Result, TopicName};

use crate::Admin;

/// How a partition stands with its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Somebody has it, and should.
    Settled,
    /// Somebody has it, and somebody else should: it is about to change hands.
    Moving,
    /// Nobody has it, and somebody should: a takeover is under way, or its member cannot get on.
    Waiting,
    /// Somebody has it, and there is no assignment: a consumer without a group, or one that has just begun.
    Unassigned,
    /// Nobody has it, and nobody should: the group is not running.
    Idle,
}

/// A partition, with who has it and who should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPartition {
    /// The lease as it is.
    pub ownership: Ownership,
    /// Who should have it.
    pub assigned: Option<MemberId>,
    /// What follows.
    pub standing: Standing,
}

/// Everybody in a group, and every partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    /// The members, those that [ran out](GroupMembers::is_overdue) and were not dropped yet among them, and the assignment that was published last.
    pub roster: GroupMembers,
    /// All partitions, in their order.
    pub partitions: Vec<OwnedPartition>,
}

impl Owners {
    /// What each owner has, by the name that it gave. Members without partitions are there too.
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
    /// Who has each partition of a topic for a group, and who should.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that is not there; transient ones.
    pub async fn owners(&self, topic: &TopicName, group: &GroupName) -> Result<Owners> {
        let spec = self.backend.catalog.topic(topic).await?;
        let roster = self.backend.members.roster(topic, group).await?;
        let ownerships = self.backend.inspect.owners(&spec, group).await?;
        let assigned = assigned(&roster);
        let partitions = ownerships.into_iter().map(|ownership| {
            let assigned = assigned.get(&ownership.partition).cloned();
            let standing = standing(&ownership, assigned.as_ref());
            OwnedPartition { ownership, assigned, standing }
        });
        Ok(Owners { partitions: partitions.collect(), roster })
    }
}

/// Who should own each partition. Members that do not live should own nothing.
fn assigned(roster: &GroupMembers) -> BTreeMap<Partition, MemberId> {
    let lives = |id: &MemberId| roster.living().any(|member| member.id == *id);
    let of = roster.assignment.iter().filter(|(member, _)| lives(member));
    of.flat_map(|(member, partitions)| partitions.iter().map(|it| (*it, member.clone()))).collect()
}

fn standing(ownership: &Ownership, assigned: Option<&MemberId>) -> Standing {
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

    use millstream_core::leases::Holder;
    use millstream_core::members::Member;

    use super::*;

    fn lease(owner: Option<&str>) -> Ownership {
        let holder = owner.map(|owner| Holder { owner: owner.into(), epoch: 1, expires_in: Duration::MAX });
        Ownership { partition: Partition(0), holder, ttl: None, ends: 0 }
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
}
