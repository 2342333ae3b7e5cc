//! The catalog role: deleting topics and groups deletes all their data and no other.

use std::time::Duration;

use millstream_core::catalog::{PartitionStats, Start};
use millstream_core::members::Member;
use millstream_core::schedule::{Due, OnConflict, Place, ScheduleId, Scheduling};
use millstream_core::{
    Capability, ErrorKind, GroupName, MemberId, Partition, Reason, TopicName, TopicPartition, TopicSpec,
};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET, message};
use crate::owner::{Owner, dead, hold, ids, retry};

suite!("catalog":
    a_deleted_topic_is_gone_with_everything,
    a_topic_is_deleted_without_its_neighbours,
    what_is_not_there_is_not_deleted,
    a_deleted_group_is_gone_with_everything,
    a_group_is_deleted_without_the_others,
    who_works_on_what_is_deleted_is_told needs [Restore],
);

/// Creates everything that a group can have: unread, pending, noted, parked, promoted and dead entries, members,
/// leases.
async fn full(h: &Harness, topic: &TopicSpec, group: &str) -> Result<Owner, Violation> {
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let name = GroupName::new(group)?;
    h.backend.catalog().create_group(topic, &name, Start::Earliest).await?;
    let mut owner = h.own(&tp, &name, LONG).await?;
    h.append_each(&tp, 6).await?;
    let entries = owner.take(5).await?;
    owner.settle(entries[0].receipt, retry(&entries[0], Duration::ZERO)).await?;
    owner.promote(1).await?;
    owner.settle(entries[1].receipt, retry(&entries[1], Duration::from_secs(3_600))).await?;
    owner.settle(entries[2].receipt, dead(Reason::Rejected, 1, entries[2].receipt.id)).await?;
    owner.settle(entries[3].receipt, hold(2, Duration::from_secs(3_600))).await?;
    let member = Member::new(MemberId::new("member")?, "first", LONG);
    h.backend.members().heartbeat(&topic.name, &name, &member, true).await?;
    let later = Scheduling {
        place: Place::from(tp),
        id: ScheduleId::new("later")?,
        due: Due::In(Duration::from_secs(3_600)),
        fields: message(7),
        on_conflict: OnConflict::default(),
    };
    h.backend.schedule().schedule(&[later]).await.remove(0)?;
    Ok(owner)
}

/// Expects that a topic created again under the old name, and its group, have no data.
async fn is_new(h: &Harness, topic: &TopicSpec, group: &GroupName) -> Verdict {
    let catalog = h.backend.catalog();
    equal!(catalog.groups(&topic.name).await?, [], "groups of a new topic");
    let created = catalog.create_group(topic, group, Start::Earliest).await?;
    equal!(created.partitions.len(), topic.partitions as usize, "partitions on which the group was created");
    is_empty(h, topic, group, 0).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    h.expect_waiting(&Place::from(tp), 0, "what is scheduled in a new topic").await
}

async fn is_empty(h: &Harness, topic: &TopicSpec, group: &GroupName, length: u64) -> Verdict {
    if h.backend.supports(Capability::Stats) {
        for stats in h.backend.catalog().stats(topic, group).await? {
            let PartitionStats { partition, pending, retrying, dead, .. } = stats;
            equal!((pending, retrying, dead), (0, 0, 0), "pending, retrying and dead in {partition}");
            equal!(
                stats.length,
                if partition == Partition(0) { length } else { 0 },
                "entries in {partition}"
            );
        }
    }
    for tp in topic.iter() {
        let length = if tp.partition == Partition(0) { length } else { 0 };
        h.expect_length(&tp, length, "entries of a new group").await?;
        let letters = h.letters(&tp, group).await?.unwrap_or_default();
        equal!(letters.len(), 0, "dead letters of a new group");
        let resource = millstream_core::Resource::partition(tp, group.clone());
        ensure!(h.backend.leases().holder(&resource).await?.is_none(), "{resource} has a holder");
    }
    let roster = h.backend.members().roster(&topic.name, group).await?;
    equal!(roster.members.len(), 0, "members of a new group");
    Ok(())
}

async fn a_deleted_topic_is_gone_with_everything(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(2).await?;
    for group in ["first", "second"] {
        drop(full(&h, &topic, group).await?);
    }
    ensure!(catalog.delete_topic(&topic.name).await?, "a topic that is there is said to be none");
    refused(catalog.topic(&topic.name).await, ErrorKind::NotFound, "a look at a deleted topic")?;
    ensure!(!catalog.topics().await?.contains(&topic.name), "a deleted topic is listed");
    ensure!(!catalog.delete_topic(&topic.name).await?, "a deleted topic is deleted again");
    let again = catalog.create_topic(&topic).await?;
    is_new(&h, &again, &GroupName::new("first")?).await
}

async fn a_topic_is_deleted_without_its_neighbours(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(2).await?;
    let name = |suffix: &str| TopicName::new(format!("{}{suffix}", topic.name));
    let mut neighbours = Vec::new();
    for suffix in ["-", ".0", "_p_0", "0"] {
        let neighbour = catalog.create_topic(&TopicSpec::new(name(suffix)?, 1)?).await?;
        neighbours.push((full(&h, &neighbour, "group").await?, neighbour));
    }
    drop(full(&h, &topic, "group").await?);
    catalog.delete_topic(&topic.name).await?;
    let group = GroupName::new("group")?;
    for (mut owner, neighbour) in neighbours {
        equal!(catalog.topic(&neighbour.name).await?, neighbour, "a topic with a name like that");
        if h.backend.supports(Capability::Stats) {
            let has = |stats: &PartitionStats| (stats.length, stats.pending, stats.retrying, stats.dead);
            let stats = catalog.stats(&neighbour, &group).await?;
            equal!(stats.iter().map(has).collect::<Vec<_>>(), [(6, 2, 2, 1)], "what {} has", neighbour.name);
        }
        equal!(owner.fetch(10, QUIET).await?.entries.len(), 2, "what its owner reads");
    }
    Ok(())
}

async fn what_is_not_there_is_not_deleted(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (unknown, group) = (TopicName::new(h.unique("topic"))?, GroupName::new("group")?);
    ensure!(!catalog.delete_topic(&unknown).await?, "an unknown topic is said to be deleted");
    let deleted = catalog.delete_group(&unknown, &group).await;
    refused(deleted, ErrorKind::NotFound, "deleting a group of an unknown topic")?;
    let topic = h.topic(1).await?;
    ensure!(!catalog.delete_group(&topic.name, &group).await?, "an unknown group is said to be deleted");
    Ok(())
}

async fn a_deleted_group_is_gone_with_everything(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(2).await?;
    let group = GroupName::new("group")?;
    drop(full(&h, &topic, "group").await?);
    ensure!(catalog.delete_group(&topic.name, &group).await?, "a group that is there is said to be none");
    equal!(catalog.groups(&topic.name).await?, [], "groups");
    ensure!(!catalog.delete_group(&topic.name, &group).await?, "a deleted group is deleted again");
    let created = catalog.create_group(&topic, &group, Start::Latest).await?;
    equal!((created.new, created.partitions.len()), (true, 2), "a group that is created again");
    is_empty(&h, &topic, &group, 6).await
}

async fn a_group_is_deleted_without_the_others(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(1).await?;
    let mut stays = full(&h, &topic, "stays").await?;
    drop(full(&h, &topic, "stay").await?);
    let (stays_name, goes) = (GroupName::new("stays")?, GroupName::new("stay")?);
    catalog.delete_group(&topic.name, &goes).await?;
    equal!(catalog.groups(&topic.name).await?, std::slice::from_ref(&stays_name), "groups");
    if h.backend.supports(Capability::Stats) {
        let has = |it: &PartitionStats| (it.length, it.lag, it.pending, it.retrying, it.dead);
        let stats = catalog.stats(&topic, &stays_name).await?;
        let stats: Vec<_> = stats.iter().map(has).collect();
        equal!(stats, [(12, Some(7), 2, 2, 1)], "what the other group has");
    }
    equal!(stays.take(8).await?.len(), 8, "what the other group goes on to read");
    equal!(h.backend.members().roster(&topic.name, &stays_name).await?.members.len(), 1, "its members");
    Ok(())
}

async fn who_works_on_what_is_deleted_is_told(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let group = GroupName::new("group")?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 2).await?;
    let entries = owner.take(1).await?;
    equal!(ids(&entries), appended[..1], "what is read before");
    catalog.delete_topic(&topic.name).await?;
    refused(owner.reader.fetch(1, QUIET).await, ErrorKind::Fenced, "a fetch of a deleted topic")?;
    let batch = [(entries[0].receipt, dead(Reason::Rejected, 1, appended[0]))];
    let late = h.backend.log().settle(&owner.lease, &batch).await;
    refused(late, ErrorKind::Fenced, "a settlement in a deleted topic")?;
    let restored = catalog.restore_group(&tp, &group, appended[0]).await;
    refused(restored, ErrorKind::NotFound, "restoring a group of a deleted topic")?;
    let member = Member::new(MemberId::new("member")?, "first", LONG);
    let beat = h.backend.members().heartbeat(&topic.name, &group, &member, true).await;
    refused(beat, ErrorKind::NotFound, "a heartbeat in a deleted topic")?;
    equal!(catalog.groups(&topic.name).await?, [], "groups of a deleted topic");
    Ok(())
}
