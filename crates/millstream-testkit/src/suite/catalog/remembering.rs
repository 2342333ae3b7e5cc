//! The catalog role: clients that are still running do not restore what was deleted on purpose.

use millstream_core::catalog::{REMEMBERED, Start};
use millstream_core::members::Member;
use millstream_core::{ErrorKind, GroupName, MemberId, MessageId, TopicName, TopicPartition, TopicSpec};

use super::suite;
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};

suite!("catalog":
    a_deleted_topic_is_not_restored needs [Restore],
    a_topic_that_was_lost_is_restored needs [Restore],
    a_topic_that_is_created_again_can_be_restored needs [Restore],
    a_topic_that_is_created_again_is_another_one needs [Restore, Expand],
    who_worked_on_the_topic_before_has_no_part_in_the_next,
    a_deleted_group_is_not_restored needs [Restore, Stats],
    a_group_that_is_created_again_can_be_restored needs [Restore],
    who_waits_in_a_deleted_group_is_woken,
);

async fn a_deleted_topic_is_not_restored(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(2).await?;
    equal!(catalog.restore_topic(&topic).await?, topic, "restoring a topic that is there");
    catalog.delete_topic(&topic.name).await?;
    refused(catalog.restore_topic(&topic).await, ErrorKind::Deleted, "restoring a deleted topic")?;
    refused(catalog.topic(&topic.name).await, ErrorKind::NotFound, "a look at it")?;
    ensure!(!catalog.topics().await?.contains(&topic.name), "a deleted topic is listed again");
    ensure!(REMEMBERED > LONG, "it is forgotten sooner than a lease");
    Ok(())
}

/// The topic was not deleted: the server lost it.
async fn a_topic_that_was_lost_is_restored(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let lost = TopicSpec::new(TopicName::new(h.unique("topic"))?, 2)?.with_max_length(9);
    equal!(catalog.restore_topic(&lost).await?, lost, "the topic as restored");
    equal!(catalog.topic(&lost.name).await?, lost, "the topic as stored");
    ensure!(catalog.topics().await?.contains(&lost.name), "a restored topic is not listed");
    Ok(())
}

async fn a_topic_that_is_created_again_can_be_restored(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(2).await?;
    catalog.delete_topic(&topic.name).await?;
    let other = TopicSpec::new(topic.name.clone(), 3)?;
    let created = catalog.create_topic(&other).await?;
    equal!(created.clone().with_generation(0), other, "a topic that is created again");
    equal!(catalog.restore_topic(&created).await?, created, "the topic as restored");
    Ok(())
}

/// A client of the previous topic may expect another number of partitions.
async fn a_topic_that_is_created_again_is_another_one(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let first = h.topic(2).await?;
    equal!(first.generation, 0, "which topic of its name the first one is");
    let mut before = first.clone();
    for _ in 0..3 {
        catalog.delete_topic(&first.name).await?;
        // The spec of the previous topic has no effect.
        let created = catalog.create_topic(&before).await?;
        ensure!(created.generation > before.generation, "{} after {}", created.generation, before.generation);
        equal!(catalog.topic(&first.name).await?, created, "the topic as stored");
        equal!(catalog.create_topic(&first).await?, created, "the topic, created once more");
        refused(catalog.restore_topic(&before).await, ErrorKind::Deleted, "restoring the one before")?;
        refused(catalog.restore_topic(&first).await, ErrorKind::Deleted, "restoring the first one")?;
        before = created;
    }
    equal!(catalog.expand(&first.name, 3).await?.generation, before.generation, "which one it is, expanded");
    equal!(catalog.restore_topic(&before).await?.partitions, 3, "partitions of the topic as restored");
    Ok(())
}

async fn who_worked_on_the_topic_before_has_no_part_in_the_next(h: Harness) -> Verdict {
    let (catalog, members) = (h.backend.catalog(), h.backend.members());
    let topic = h.topic(2).await?;
    let group = GroupName::new("group")?;
    catalog.create_group(&topic, &group, Start::Earliest).await?;
    let named = |name: &str| MemberId::new(name).map(|id| Member::new(id, "first", LONG));
    let old = named("old")?.of(&topic);
    members.heartbeat(&topic.name, &group, &old, true).await?;
    catalog.delete_topic(&topic.name).await?;
    let next = catalog.create_topic(&TopicSpec::new(topic.name.clone(), 1)?).await?;
    catalog.create_group(&next, &group, Start::Earliest).await?;
    for joining in [false, true] {
        let beat = members.heartbeat(&topic.name, &group, &old, joining).await;
        refused(beat, ErrorKind::Deleted, "a heartbeat of who worked on the topic before")?;
    }
    let roster = members.roster(&topic.name, &group).await?;
    ensure!(roster.members.is_empty(), "who was refused is a member: {:?}", roster.members);
    for member in [named("new")?.of(&next), named("whichever")?] {
        equal!(members.heartbeat(&topic.name, &group, &member, true).await?.partitions, 1, "partitions");
    }
    Ok(())
}

async fn a_deleted_group_is_not_restored(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let (group, other) = (GroupName::new("group")?, GroupName::new("other")?);
    let member = Member::new(MemberId::new("member")?, "first", LONG);
    for group in [&group, &other] {
        catalog.create_group(&topic, group, Start::Earliest).await?;
        h.backend.members().heartbeat(&topic.name, group, &member, true).await?;
    }
    catalog.delete_group(&topic.name, &group).await?;
    let beat = h.backend.members().heartbeat(&topic.name, &group, &member, false).await;
    refused(beat, ErrorKind::Deleted, "a heartbeat in a deleted group")?;
    let joined = h.backend.members().heartbeat(&topic.name, &group, &member, true).await;
    refused(joined, ErrorKind::Deleted, "joining a deleted group")?;
    let restored = catalog.restore_group(&tp, &group, MessageId::ZERO).await;
    refused(restored, ErrorKind::Deleted, "restoring a deleted group")?;
    equal!(catalog.groups(&topic.name).await?, std::slice::from_ref(&other), "groups");
    let stats = catalog.stats(&topic, &group).await?;
    ensure!(stats.iter().all(|stats| stats.position.is_none()), "a deleted group stands somewhere");
    // The other group was not deleted.
    h.backend.members().heartbeat(&topic.name, &other, &member, false).await?;
    equal!(
        catalog.restore_group(&tp, &other, MessageId::ZERO).await?,
        false,
        "whether the other was missing"
    );
    Ok(())
}

async fn a_group_that_is_created_again_can_be_restored(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let group = GroupName::new("group")?;
    catalog.create_group(&topic, &group, Start::Earliest).await?;
    catalog.delete_group(&topic.name, &group).await?;
    ensure!(
        catalog.create_group(&topic, &group, Start::Earliest).await?.new,
        "a new group is said to be old"
    );
    let member = Member::new(MemberId::new("member")?, "first", LONG);
    h.backend.members().heartbeat(&topic.name, &group, &member, true).await?;
    equal!(catalog.restore_group(&tp, &group, MessageId::ZERO).await?, false, "whether it was missing");
    Ok(())
}

async fn who_waits_in_a_deleted_group_is_woken(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(1).await?;
    let group = GroupName::new("group")?;
    catalog.create_group(&topic, &group, Start::Earliest).await?;
    let member = Member::new(MemberId::new("member")?, "first", LONG);
    let pulse = h.backend.members().heartbeat(&topic.name, &group, &member, true).await?;
    let mut watch = h.backend.members().watch(&topic.name, &group).await?;
    let started = tokio::time::Instant::now();
    let delete = async {
        tokio::time::sleep(QUIET).await;
        catalog.delete_group(&topic.name, &group).await
    };
    let notified = async {
        let mut deadline = h.wait_for("a deletion");
        loop {
            watch.changed(pulse.revision, h.deadline()).await?;
            match h.backend.members().heartbeat(&topic.name, &group, &member, false).await {
                Err(error) if error.kind() == ErrorKind::Deleted => return Ok(()),
                other => drop(other?),
            }
            deadline.pause().await?;
        }
    };
    let (deleted, notified): (_, Verdict) = tokio::join!(delete, notified);
    notified?;
    ensure!(deleted?, "there was no group");
    let took = started.elapsed();
    ensure!(took < h.deadline() / 2, "it took {took:?} to learn of a deletion");
    Ok(())
}
