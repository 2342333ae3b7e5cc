//! The catalog role: topics that grow, and the number of entries between two positions.

use millstream_core::catalog::Start;
use millstream_core::topic::MAX_PARTITIONS;
use millstream_core::{
    ErrorKind, GroupName, MessageId, Retention, Timestamp, TopicName, TopicPartition, TopicSpec,
};

use super::suite;
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{Harness, LONG};
use crate::owner::ids;

suite!("catalog":
    a_topic_can_grow needs [Expand],
    a_topic_that_grows_takes_its_groups_along needs [Expand],
    a_group_follows_a_topic_that_has_grown_meanwhile needs [Expand],
    a_topic_cannot_shrink needs [Expand],
    what_is_not_there_cannot_grow needs [Expand],
    a_topic_cannot_grow_beyond_the_limit needs [Expand],
    entries_are_counted_between_two_places needs [Count],
    entries_are_counted_up_to_a_limit needs [Count],
);

async fn a_topic_can_grow(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let name = TopicName::new(h.unique("topic"))?;
    catalog.create_topic(&TopicSpec::new(name.clone(), 2)?.with_retention(Retention::Keep)).await?;
    let five = TopicSpec::new(name.clone(), 5)?.with_retention(Retention::Keep).with_earlier(vec![2]);
    for time in 0..2 {
        equal!(catalog.expand(&name, 5).await?, five, "the topic as it was expanded {time} times before");
        equal!(catalog.topic(&name).await?, five, "the topic as stored");
    }
    let seven = catalog.expand(&name, 7).await?;
    equal!(seven.partitions, 7, "partitions of a topic that has grown again");
    equal!(seven.earlier, [2, 5], "numbers of partitions that it had before");
    equal!(catalog.create_topic(&five).await?, seven, "the topic as created again, with fewer");
    Ok(())
}

async fn a_topic_that_grows_takes_its_groups_along(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let groups = [GroupName::new("first")?, GroupName::new("second")?];
    for group in &groups {
        h.backend.catalog().create_group(&topic, group, Start::Latest).await?;
    }
    // A producer may know a newer number of partitions than the catalog.
    let tp = TopicPartition::new(topic.name.clone(), 2);
    let appended = h.append_n(&tp, 3).await?;
    let grown = h.backend.catalog().expand(&topic.name, 3).await?;
    for group in &groups {
        let mut owner = h.own(&tp, group, LONG).await?;
        equal!(ids(&owner.take(3).await?), appended, "what a group reads of a new partition");
        let created = h.backend.catalog().create_group(&grown, group, Start::Earliest).await?;
        ensure!(!created.new, "a group of a topic that has grown is said to be new");
        equal!(created.partitions, [], "partitions that were left out");
    }
    Ok(())
}

/// A caller that creates a group may know the topic from before it grew, and one that expands the topic may not know
/// the group.
async fn a_group_follows_a_topic_that_has_grown_meanwhile(h: Harness) -> Verdict {
    let before = h.topic(1).await?;
    h.backend.catalog().expand(&before.name, 3).await?;
    let tp = TopicPartition::new(before.name.clone(), 2);
    let appended = h.append_n(&tp, 3).await?;
    let group = GroupName::new("group")?;
    let created = h.backend.catalog().create_group(&before, &group, Start::Latest).await?;
    ensure!(created.new && created.partitions.len() == 3, "{created:?}, expected all three partitions");
    let mut owner = h.own(&tp, &group, LONG).await?;
    equal!(ids(&owner.take(3).await?), appended, "what the group reads of a partition that came meanwhile");
    let again = h.backend.catalog().create_group(&before, &group, Start::Latest).await?;
    ensure!(!again.new && again.partitions.is_empty(), "{again:?}, and nothing was missing");
    Ok(())
}

async fn a_topic_cannot_shrink(h: Harness) -> Verdict {
    let topic = h.topic(3).await?;
    for fewer in [2, 1, 0] {
        equal!(h.backend.catalog().expand(&topic.name, fewer).await?, topic, "the topic expanded to {fewer}");
    }
    equal!(h.backend.catalog().topic(&topic.name).await?, topic, "the topic as stored");
    Ok(())
}

async fn what_is_not_there_cannot_grow(h: Harness) -> Verdict {
    let name = TopicName::new(h.unique("topic"))?;
    let expanded = h.backend.catalog().expand(&name, 4).await;
    refused(expanded, ErrorKind::NotFound, "expanding an unknown topic")?;
    refused(h.backend.catalog().topic(&name).await, ErrorKind::NotFound, "a look at it after that")
}

async fn a_topic_cannot_grow_beyond_the_limit(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let expanded = h.backend.catalog().expand(&topic.name, MAX_PARTITIONS + 1).await;
    refused(expanded, ErrorKind::InvalidConfig, "expanding a topic beyond the limit")?;
    equal!(h.backend.catalog().topic(&topic.name).await?, topic, "the topic as stored");
    Ok(())
}

async fn entries_are_counted_between_two_places(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let catalog = h.backend.catalog();
    equal!(catalog.count(&tp, Start::Earliest, None, 100).await?, 0, "entries of an empty log");
    let elsewhere = h.partition().await?;
    let mut appended = h.append_n(&tp, 3).await?;
    h.clock_passes(&elsewhere, appended[2].timestamp()).await?;
    appended.extend(h.append_n(&tp, 3).await?);
    let cases = [
        (Start::Earliest, None, 6),
        (Start::Earliest, Some(appended[1]), 2),
        (Start::Latest, None, 0),
        (Start::After(appended[1]), None, 4),
        (Start::After(appended[1]), Some(appended[4]), 3),
        (Start::After(appended[4]), Some(appended[1]), 0),
        (Start::After(appended[4]), Some(appended[4]), 0),
        (Start::After(appended[5]), None, 0),
        (Start::At(appended[3].timestamp()), None, 3),
        (Start::At(appended[3].timestamp()), Some(appended[3]), 1),
        (Start::At(Timestamp::from_millis(0)), Some(MessageId::MAX), 6),
        (Start::After(MessageId::MAX), None, 0),
    ];
    for (start, end, expected) in cases {
        let found = catalog.count(&tp, start, end, 100).await?;
        equal!(found, expected, "entries after {start:?} and up to {end:?} of {appended:?}");
    }
    Ok(())
}

async fn entries_are_counted_up_to_a_limit(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let appended = h.append_n(&tp, 10).await?;
    for (limit, expected) in [(0, 0), (1, 1), (7, 7), (9, 9), (10, 9), (u64::MAX, 9)] {
        let found = h.backend.catalog().count(&tp, Start::After(appended[0]), None, limit).await?;
        equal!(found, expected, "nine entries, counted up to {limit}");
    }
    Ok(())
}
