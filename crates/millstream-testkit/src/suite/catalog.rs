//! The catalog role: topics, groups, and their statistics.

pub(super) mod altering;
pub(super) mod deleting;
pub(super) mod dictionaries;
pub(super) mod growing;
pub(super) mod pausing;
pub(super) mod remembering;
pub(super) mod standing;

use std::time::Duration;

use millstream_core::catalog::{PartitionStats, Start};
use millstream_core::{
    ErrorKind, GroupName, MessageId, Partition, Reason, Retention, Timestamp, TopicName, TopicPartition,
    TopicSpec,
};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};
use crate::owner::{dead, ids, retry};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("catalog":
    the_first_to_create_a_topic_wins,
    an_unknown_topic_is_not_found,
    topics_are_listed_in_order,
    groups_are_listed_in_order_and_by_topic,
    a_group_starts_with_the_oldest_entry_by_default,
    a_group_can_start_with_what_comes_next,
    a_group_can_start_above_an_id,
    a_group_can_start_at_a_time,
    a_group_that_starts_beyond_the_end_reads_what_comes,
    creating_a_group_tells_whether_it_is_new,
    creating_a_group_again_leaves_it_where_it_is,
    a_group_grows_with_its_topic needs [Expand],
    a_restored_group_goes_on_above_the_id needs [Restore],
    restoring_a_group_that_is_there_does_nothing needs [Restore],
    stats_of_an_untouched_topic_are_zero needs [Stats],
    stats_agree_with_what_happened needs [Stats],
    the_position_of_a_group_is_told needs [Stats],
);

async fn the_first_to_create_a_topic_wins(h: Harness) -> Verdict {
    let name = TopicName::new(h.unique("topic"))?;
    let first = TopicSpec::new(name.clone(), 3)?.with_retention(Retention::Keep);
    equal!(h.backend.catalog().create_topic(&first).await?, first, "the topic as created");
    equal!(h.backend.catalog().create_topic(&first).await?, first, "the topic as created again");
    let other = TopicSpec::new(name.clone(), 5)?.with_retention(Retention::Consumed);
    equal!(h.backend.catalog().create_topic(&other).await?, first, "the topic as created differently");
    equal!(h.backend.catalog().topic(&name).await?, first, "the topic as stored");
    for step in [".", ".."] {
        let steps = TopicSpec::new(TopicName::new(step)?, 1)?;
        let created = h.backend.catalog().create_topic(&steps).await;
        refused(created, ErrorKind::InvalidName, &format!("a new topic {step}"))?;
        let created = h.backend.catalog().create_group(&first, &GroupName::new(step)?, Start::Earliest).await;
        refused(created, ErrorKind::InvalidName, &format!("a new group {step}"))?;
    }
    equal!(h.backend.catalog().groups(&name).await?, [], "groups of the topic");
    Ok(())
}

async fn an_unknown_topic_is_not_found(h: Harness) -> Verdict {
    let name = TopicName::new(h.unique("topic"))?;
    refused(h.backend.catalog().topic(&name).await, ErrorKind::NotFound, "a look at an unknown topic")?;
    ensure!(!h.backend.catalog().topics().await?.contains(&name), "looking at {name} created it");
    equal!(h.backend.catalog().groups(&name).await?, [], "groups of an unknown topic");
    Ok(())
}

/// Others may use the same store, so only topics created here are compared.
async fn topics_are_listed_in_order(h: Harness) -> Verdict {
    let mut created = Vec::new();
    for prefix in ["b", "a", "C", "_", "a-"] {
        let topic = TopicSpec::new(TopicName::new(h.unique(prefix))?, 1)?;
        created.push(h.backend.catalog().create_topic(&topic).await?.name);
    }
    created.sort_unstable();
    let listed = h.backend.catalog().topics().await?;
    ensure!(listed.is_sorted_by(|a, b| a < b), "topics are not in order: {listed:?}");
    let mine: Vec<_> = listed.into_iter().filter(|name| created.contains(name)).collect();
    equal!(mine, created, "topics");
    Ok(())
}

async fn groups_are_listed_in_order_and_by_topic(h: Harness) -> Verdict {
    let (topic, other) = (h.topic(1).await?, h.topic(1).await?);
    for group in ["b", "a", "C", "b"] {
        h.backend.catalog().create_group(&topic, &GroupName::new(group)?, Start::Earliest).await?;
    }
    h.backend.catalog().create_group(&other, &GroupName::new("z")?, Start::Earliest).await?;
    let listed = h.backend.catalog().groups(&topic.name).await?;
    equal!(listed.iter().map(GroupName::as_str).collect::<Vec<_>>(), ["C", "a", "b"], "groups");
    Ok(())
}

/// Appends three entries, creates the group, and appends two more. Returns which of the five the group reads. `start`
/// receives the ids of the first three.
async fn read_from(h: &Harness, start: fn(&[MessageId]) -> Start) -> Result<Vec<usize>, Violation> {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let group = GroupName::new("group")?;
    let mut appended = h.append_n(&tp, 3).await?;
    h.backend.catalog().create_group(&topic, &group, start(&appended)).await?;
    appended.extend(h.append_n(&tp, 2).await?);
    let mut owner = h.own(&tp, &group, LONG).await?;
    let mut read = Vec::new();
    loop {
        let fetched = owner.fetch(100, QUIET).await?;
        if fetched.entries.is_empty() {
            return Ok(read);
        }
        ensure!(read.len() < 100, "the same entries come again and again: {read:?}");
        for id in ids(&fetched.entries) {
            read.extend(appended.iter().position(|appended| *appended == id));
        }
    }
}

async fn a_group_starts_with_the_oldest_entry_by_default(h: Harness) -> Verdict {
    let read = read_from(&h, |_| Start::default()).await?;
    equal!(read, [0, 1, 2, 3, 4], "entries read from the earliest");
    Ok(())
}

async fn a_group_can_start_with_what_comes_next(h: Harness) -> Verdict {
    equal!(read_from(&h, |_| Start::Latest).await?, [3, 4], "entries read from the latest");
    Ok(())
}

async fn a_group_can_start_above_an_id(h: Harness) -> Verdict {
    let read = read_from(&h, |ids| Start::After(ids[1])).await?;
    equal!(read, [2, 3, 4], "entries read from above the second");
    Ok(())
}

async fn a_group_can_start_at_a_time(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let elsewhere = h.partition().await?;
    let early = h.append_n(&tp, 3).await?;
    h.clock_passes(&elsewhere, early[2].timestamp()).await?;
    let late = h.append_n(&tp, 3).await?;
    let all = [early.clone(), late.clone()].concat();
    for (name, ms, expected) in
        [("past", 0, &all), ("exact", late[0].ms, &late), ("between", early[2].ms + 1, &late)]
    {
        let group = GroupName::new(name)?;
        h.backend.catalog().create_group(&topic, &group, Start::At(AT(ms))).await?;
        let mut owner = h.own(&tp, &group, LONG).await?;
        equal!(ids(&owner.take(expected.len()).await?), expected[..], "what a group reads from {ms}");
        owner.nothing("everything was read").await?;
    }
    Ok(())
}

async fn a_group_that_starts_beyond_the_end_reads_what_comes(h: Harness) -> Verdict {
    let far: [fn(&[MessageId]) -> Start; 4] = [
        |_| Start::At(AT(u64::MAX)),
        |ids| Start::At(AT(ids[2].ms + 3_600_000)),
        |_| Start::After(MessageId::MAX),
        |ids| Start::After(ids[2].next()),
    ];
    for start in far {
        equal!(read_from(&h, start).await?, [3, 4], "entries read from beyond the end");
    }
    let (topic, group) = (h.topic(1).await?, GroupName::new("group")?);
    let tp = TopicPartition::new(topic.name.clone(), 0);
    h.backend.catalog().create_group(&topic, &group, Start::At(AT(u64::MAX))).await?;
    let appended = h.append_n(&tp, 2).await?;
    let mut owner = h.own(&tp, &group, LONG).await?;
    equal!(ids(&owner.take(2).await?), appended, "entries of a log that was empty");
    Ok(())
}

async fn creating_a_group_tells_whether_it_is_new(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    for group in ["first", "second"] {
        let group = GroupName::new(group)?;
        let created = h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
        ensure!(created.new, "the new group {group} is said to be known");
        equal!(created.partitions, [Partition(0), Partition(1)], "where {group} was created");
        let again = h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
        ensure!(!again.new, "the known group {group} is said to be new");
        equal!(again.partitions, [], "where the known group {group} was created");
    }
    Ok(())
}

async fn creating_a_group_again_leaves_it_where_it_is(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_n(&tp, 4).await?;
    let entries = owner.take(2).await?;
    owner.ack(&entries[..1]).await?;
    let topic = h.backend.catalog().topic(&tp.topic).await?;
    for start in [Start::Earliest, Start::Latest, Start::After(appended[3])] {
        let created = h.backend.catalog().create_group(&topic, &group, start).await?;
        equal!((created.new, created.partitions.len()), (false, 0), "creating it again at {start:?}");
    }
    equal!(ids(&owner.take(2).await?), appended[2..], "what comes next");
    owner.reopen().await?;
    equal!(ids(&owner.take(3).await?), appended[1..], "what is pending");
    Ok(())
}

async fn a_group_grows_with_its_topic(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let group = GroupName::new("group")?;
    h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
    h.backend.catalog().expand(&topic.name, 4).await?;
    let topic = h.backend.catalog().topic(&topic.name).await?;
    // The group has its position from the beginning: entries appended before the first request are not skipped,
    // wherever new groups start.
    let tp = TopicPartition::new(topic.name.clone(), 3);
    let appended = h.append_n(&tp, 2).await?;
    let grown = h.backend.catalog().create_group(&topic, &group, Start::Latest).await?;
    ensure!(!grown.new, "a group of a topic that has grown is said to be new");
    equal!(grown.partitions, [], "where it was missing");
    let mut owner = h.own(&tp, &group, LONG).await?;
    equal!(ids(&owner.take(2).await?), appended, "what it reads where the topic has grown");
    Ok(())
}

/// A group that never existed stands for one that was lost.
async fn a_restored_group_goes_on_above_the_id(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let group = GroupName::new("group")?;
    let appended = h.append_n(&tp, 4).await?;
    let missing = h.backend.catalog().restore_group(&tp, &group, appended[1]).await?;
    equal!(missing, true, "whether a group was missing that is restored");
    equal!(h.backend.catalog().groups(&tp.topic).await?, std::slice::from_ref(&group), "groups");
    let mut owner = h.own(&tp, &group, LONG).await?;
    equal!(ids(&owner.take(2).await?), appended[2..], "what a restored group reads");
    owner.nothing("what is not above the id was read before").await
}

async fn restoring_a_group_that_is_there_does_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_n(&tp, 4).await?;
    let entries = owner.take(2).await?;
    owner.ack(&entries).await?;
    for after in [appended[0], appended[3]] {
        let missing = h.backend.catalog().restore_group(&tp, &group, after).await?;
        equal!(missing, false, "whether a group was missing that is there");
    }
    equal!(ids(&owner.take(2).await?), appended[2..], "what comes next");
    owner.nothing("everything was handed out").await
}

/// Compares statistics, except for values that depend on time.
fn expect_stats(found: &[PartitionStats], expected: &[PartitionStats]) -> Verdict {
    let known = |(found, expected): (&PartitionStats, &PartitionStats)| {
        let mut expected = expected.clone();
        (expected.oldest, expected.oldest_parked) = (found.oldest, found.oldest_parked);
        expected
    };
    let expected: Vec<_> =
        found.iter().zip(expected).map(known).chain(expected.iter().skip(found.len()).cloned()).collect();
    equal!(found, expected, "stats");
    Ok(())
}

async fn stats_of_an_untouched_topic_are_zero(h: Harness) -> Verdict {
    let topic = h.topic(3).await?;
    let group = GroupName::new("group")?;
    h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
    let untouched = |n| {
        let mut stats = PartitionStats::empty(Partition(n));
        stats.position = Some(MessageId::ZERO);
        stats
    };
    let expected: Vec<_> = (0..3).map(untouched).collect();
    expect_stats(&h.backend.catalog().stats(&topic, &group).await?, &expected)
}

async fn stats_agree_with_what_happened(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let partitions: Vec<_> = topic.iter().collect();
    let (worker, watcher) = (GroupName::new("worker")?, GroupName::new("watcher")?);
    for group in [&worker, &watcher] {
        h.backend.catalog().create_group(&topic, group, Start::Earliest).await?;
    }
    let last = h.append_each(&partitions[0], 10).await?[9];
    h.append_each(&partitions[1], 4).await?;
    let mut owner = h.own(&partitions[0], &worker, LONG).await?;
    let entries = owner.take(8).await?;
    owner.ack(&entries[..2]).await?;
    owner.settle(entries[2].receipt, retry(&entries[2], Duration::from_secs(3_600))).await?;
    owner.settle(entries[3].receipt, retry(&entries[3], Duration::ZERO)).await?;
    owner.settle(entries[4].receipt, dead(Reason::Rejected, 1, entries[4].receipt.id)).await?;
    owner.promote(1).await?;

    let stats = |n: u32, position: MessageId, [length, lag, pending, retrying, dead]: [u64; 5]| {
        let mut stats = PartitionStats::empty(Partition(n));
        (stats.length, stats.position, stats.lag) = (length, Some(position), Some(lag));
        (stats.pending, stats.retrying, stats.dead) = (pending, retrying, dead);
        (stats.lag_at_least, stats.appended) = (lag, Some(length));
        stats
    };
    let catalog = h.backend.catalog();
    let (read, zero) = (entries[7].receipt.id, MessageId::ZERO);
    let untouched = stats(1, zero, [4, 4, 0, 0, 0]);
    let found = catalog.stats(&topic, &worker).await?;
    let mut worked = stats(0, read, [10, 2, 3, 2, 1]);
    worked.due = 1;
    expect_stats(&found, &[worked, untouched.clone()])?;
    expect_stats(
        &catalog.stats(&topic, &watcher).await?,
        &[stats(0, zero, [10, 10, 0, 0, 0]), untouched.clone()],
    )?;

    // The due retry and the remaining entries are delivered; all except the parked one are done.
    let rest = owner.take(3).await?;
    let found = catalog.stats(&topic, &worker).await?;
    expect_stats(&found, &[stats(0, last, [10, 0, 6, 1, 1]), untouched.clone()])?;
    owner.ack(&rest).await?;
    owner.ack(&entries[5..]).await?;
    let found = catalog.stats(&topic, &worker).await?;
    expect_stats(&found, &[stats(0, last, [10, 0, 0, 1, 1]), untouched])
}

async fn the_position_of_a_group_is_told(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let position = async |group: &GroupName| {
        let stats = h.backend.catalog().stats(&topic, group).await?;
        Ok::<_, Violation>(stats.first().map(|stats| stats.position))
    };
    let [oldest, newest, never] = ["oldest", "newest", "never"].map(GroupName::new);
    let (oldest, newest) = (oldest?, newest?);
    let appended = h.append_each(&tp, 4).await?;
    h.backend.catalog().create_group(&topic, &oldest, Start::Earliest).await?;
    h.backend.catalog().create_group(&topic, &newest, Start::Latest).await?;
    equal!(position(&never?).await?, Some(None), "where a group stands that is not there");
    equal!(position(&oldest).await?, Some(Some(MessageId::ZERO)), "where a group stands at the beginning");
    equal!(position(&newest).await?, Some(Some(appended[3])), "where a group stands at the end");
    let mut owner = h.own(&tp, &oldest, LONG).await?;
    let entries = owner.take(2).await?;
    equal!(position(&oldest).await?, Some(Some(appended[1])), "where a group stands that has read two");
    owner.ack(&entries).await?;
    equal!(position(&oldest).await?, Some(Some(appended[1])), "where a group stands that has settled two");
    Ok(())
}
