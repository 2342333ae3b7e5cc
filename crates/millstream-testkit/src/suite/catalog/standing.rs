//! The catalog role: the position of groups, and the entries that they keep.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use millstream_core::catalog::{PartitionStats, Pin, Start};
use millstream_core::{Due, GroupName, MessageId, Partition, Settlement, TopicPartition, TopicSpec};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};
use crate::owner::{Owner, retry, retry_as};

const HOUR: Duration = Duration::from_secs(3_600);

suite!("catalog":
    the_lag_is_exact_wherever_a_group_stands needs [Seek, Stats],
    the_age_is_that_of_the_oldest_entry_to_be_settled needs [Stats],
    the_group_that_keeps_most_is_named needs [Pins],
    nobody_is_named_where_everything_is_settled needs [Pins],
    a_message_that_moves_is_counted_at_every_moment needs [Stats];
    with an operator:
    the_lag_is_exact_among_deleted_entries needs [Stats],
    a_group_that_was_set_back_keeps_what_it_will_read_again needs [Pins],
);

async fn stats(h: &Harness, topic: &TopicSpec, group: &str) -> Result<PartitionStats, Violation> {
    let stats = h.backend.catalog().stats(topic, &GroupName::new(group)?).await?;
    stats.into_iter().next().ok_or_else(|| Violation::new("no stats of the first partition"))
}

async fn lag(h: &Harness, topic: &TopicSpec, group: &str) -> Result<Option<u64>, Violation> {
    let stats = stats(h, topic, group).await?;
    ensure!(stats.lag.is_none_or(|lag| lag == stats.lag_at_least), "two lags: {stats:?}");
    Ok(stats.lag)
}

/// Acquires the only partition for a group that starts at this position, and returns the owner.
async fn starts(h: &Harness, topic: &TopicSpec, group: &str, start: Start) -> Result<Owner, Violation> {
    let name = GroupName::new(group)?;
    h.backend.catalog().create_group(topic, &name, start).await?;
    h.own(&TopicPartition::new(topic.name.clone(), 0), &name, LONG).await
}

async fn the_lag_is_exact_wherever_a_group_stands(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let appended = h.append_each(&tp, 10).await?;
    let mut begin = starts(&h, &topic, "begin", Start::Earliest).await?;
    let mut inside = starts(&h, &topic, "inside", Start::After(appended[5])).await?;
    starts(&h, &topic, "end", Start::Latest).await?;
    equal!(lag(&h, &topic, "begin").await?, Some(10), "the lag of a group that has read nothing");
    equal!(lag(&h, &topic, "inside").await?, Some(4), "the lag of a group that began inside");
    equal!(lag(&h, &topic, "end").await?, Some(0), "the lag of a group that began at the end");
    let entries = begin.take(7).await?;
    inside.take(1).await?;
    equal!(lag(&h, &topic, "begin").await?, Some(3), "the lag behind seven entries");
    equal!(lag(&h, &topic, "inside").await?, Some(3), "the lag of the one that began inside, behind one");
    begin.ack(&entries[..3]).await?;
    begin.settle(entries[4].receipt, retry(&entries[4], LONG)).await?;
    equal!(lag(&h, &topic, "begin").await?, Some(3), "the lag after settlements");
    h.append_each(&tp, 5).await?;
    begin.seek(Start::After(appended[1])).await?;
    equal!(lag(&h, &topic, "begin").await?, Some(13), "the lag after a seek");
    begin.take(2).await?;
    equal!(lag(&h, &topic, "begin").await?, Some(11), "the lag after a seek, behind two");
    Ok(())
}

async fn the_lag_is_exact_among_deleted_entries(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let appended = h.append_each(&tp, 10).await?;
    let mut owner = starts(&h, &topic, "group", Start::Earliest).await?;
    // The deleted entry, and the number of entries read afterwards: ahead of the group, at the end, right behind it.
    let (mut left, mut next) = ((0..10).collect::<Vec<usize>>(), 0);
    for (gone, read) in [(5, 0), (9, 2), (2, 0), (1, 2), (8, 1), (0, 1), (6, 0)] {
        h.operator()?.delete_entry(&tp, appended[gone]).await?;
        left.retain(|entry| *entry != gone);
        let ahead = |next: usize| left.iter().filter(|entry| **entry >= next).count() as u64;
        equal!(lag(&h, &topic, "group").await?, Some(ahead(next)), "the lag after {gone} was deleted");
        let ever = stats(&h, &topic, "group").await?.appended;
        ensure!(ever.is_none_or(|ever| ever == 10), "{ever:?} were ever appended, expected 10");
        let entries = owner.take(read).await?;
        let last = entries.last().and_then(|entry| appended.iter().position(|id| *id == entry.receipt.id));
        next = last.map_or(next, |last| last + 1);
        equal!(lag(&h, &topic, "group").await?, Some(ahead(next)), "the lag behind {read} more");
    }
    Ok(())
}

async fn the_age_is_that_of_the_oldest_entry_to_be_settled(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let mut owner = starts(&h, &topic, "group", Start::Earliest).await?;
    equal!(stats(&h, &topic, "group").await?.oldest, None, "the age in an empty log");
    let first = h.append_n(&tp, 2).await?;
    h.clock_passes(&tp, first[0].timestamp().saturating_add(Duration::from_millis(40))).await?;
    let age =
        async || -> Result<Option<Duration>, Violation> { Ok(stats(&h, &topic, "group").await?.oldest) };
    let old = Some(Duration::from_millis(40));
    ensure!(age().await? >= old, "what is unread is {:?} old, expected {old:?} at least", age().await?);
    let entries = owner.take(2).await?;
    ensure!(age().await? >= old, "what is pending is {:?} old, expected {old:?} at least", age().await?);
    // All entries that the clock needed are behind them.
    let length = stats(&h, &topic, "group").await?.length as usize;
    let rest = owner.take(length.saturating_sub(2)).await?;
    owner.ack(&rest).await?;
    ensure!(age().await? >= old, "what is pending alone is {:?} old", age().await?);
    // What waits for a retry has the age of its first entry: parked, due, and in the retry log.
    owner.settle_all(&entries[1..], &retry_as(2, entries[1].receipt.id, HOUR)).await?;
    let mut ready = retry_as(2, entries[0].receipt.id, Duration::ZERO);
    if let Settlement::Retry { due, .. } = &mut ready {
        *due = Due::At(first[0].timestamp());
    }
    owner.settle_all(&entries[..1], &ready).await?;
    ensure!(age().await? >= old, "what is due for a retry is {:?} old", age().await?);
    owner.promote(1).await?;
    ensure!(age().await? >= old, "what is in the retry log is {:?} old", age().await?);
    let retries = owner.take_retries(1).await?;
    ensure!(age().await? >= old, "a redelivery that is pending is {:?} old", age().await?);
    owner.ack(&retries).await?;
    let parked = stats(&h, &topic, "group").await?;
    equal!(parked.oldest, None, "the age of what is to be handled while all that is left is parked");
    ensure!(parked.oldest_parked >= old, "what is parked is {:?} old", parked.oldest_parked);
    Ok(())
}

async fn the_group_that_keeps_most_is_named(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let mut slow = starts(&h, &topic, "a-slow", Start::Earliest).await?;
    let mut fast = starts(&h, &topic, "b-fast", Start::Earliest).await?;
    h.append_each(&tp, 10).await?;
    let entries = fast.take(10).await?;
    fast.ack(&entries[..8]).await?;
    let entries = slow.take(5).await?;
    slow.ack(&entries[..2]).await?;
    let pins = h.backend.catalog().pins(&topic).await?;
    ensure!(pins.len() == 1, "what keeps entries: {pins:?}");
    let Pin { partition, ref group, watermark, messages: kept, bytes, idle, .. } = pins[0];
    equal!((partition, group.as_str()), (Partition(0), "a-slow"), "partition and group");
    equal!((watermark, kept), (entries[2].receipt.id, 6), "what stays for it alone");
    ensure!(bytes > 0, "{kept} messages take no memory");
    ensure!(
        idle.is_some_and(|idle| idle < LONG),
        "it has read just now, and is said to be idle for {idle:?}"
    );
    slow.take(5).await?;
    fast.harness.trim(&fast.lease).await?;
    let kept: Vec<_> = h.backend.catalog().pins(&topic).await?.iter().map(|pin| pin.messages).collect();
    equal!(kept, [6], "what stays after a trim");
    Ok(())
}

/// An operator has moved the position back while an entry was pending: the group keeps all entries above its position,
/// and not only those from the pending one on.
async fn a_group_that_was_set_back_keeps_what_it_will_read_again(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let mut back = starts(&h, &topic, "a-back", Start::Earliest).await?;
    let mut ahead = starts(&h, &topic, "b-ahead", Start::Earliest).await?;
    let appended = h.append_each(&tp, 5).await?;
    // Behind the entry that will be pending, so that it would be the slower one without what is read again.
    let entries = ahead.take(1).await?;
    ahead.ack(&entries).await?;
    let entries = back.take(3).await?;
    back.ack(&entries[..2]).await?;
    h.operator()?.set_position(&tp, &GroupName::new("a-back")?, MessageId::ZERO).await?;
    let pins = h.backend.catalog().pins(&topic).await?;
    let kept: Vec<_> = pins.iter().map(|pin| (pin.group.as_str(), pin.watermark, pin.messages)).collect();
    equal!(kept, [("a-back", appended[0], 1)], "what stays for the group that was set back");
    Ok(())
}

async fn nobody_is_named_where_everything_is_settled(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let mut owner = starts(&h, &topic, "group", Start::Earliest).await?;
    equal!(h.backend.catalog().pins(&topic).await?, [], "what keeps entries of an empty log");
    let appended = h.append_each(&tp, 3).await?;
    let pin = h.backend.catalog().pins(&topic).await?;
    equal!(
        pin.iter().map(|pin| (pin.messages, pin.idle)).collect::<Vec<_>>(),
        [(3, None)],
        "a group that never read"
    );
    equal!((pin[0].watermark, pin[0].exact), (appended[0], true), "the oldest that stays");
    let entries = owner.take(3).await?;
    owner.ack(&entries).await?;
    equal!(h.backend.catalog().pins(&topic).await?, [], "what keeps entries that are settled");
    Ok(())
}

/// Rounds of a message that is parked, promoted and handed out again.
const ROUNDS: u32 = 60;

async fn a_message_that_moves_is_counted_at_every_moment(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let mut owner = starts(&h, &topic, "group", Start::Earliest).await?;
    let ids = h.append_n(&TopicPartition::new(topic.name.clone(), 0), 1).await?;
    let (moves_on, looks) = (AtomicBool::new(true), AtomicU32::new(0));
    let moves = async {
        let mut entries = owner.take(1).await?;
        for attempt in 2..2 + ROUNDS {
            owner.settle_all(&entries, &retry_as(attempt, ids[0], Duration::ZERO)).await?;
            owner.promote(1).await?;
            entries = owner.take_retries(1).await?;
            // In memory nothing ever waits: the other one has its turn.
            tokio::task::yield_now().await;
        }
        Ok::<_, Violation>(entries)
    };
    let moves = async {
        let moved = moves.await;
        moves_on.store(false, Ordering::SeqCst);
        moved
    };
    let counted = async {
        while moves_on.load(Ordering::SeqCst) {
            let stats = stats(&h, &topic, "group").await?;
            let found = stats.lag_at_least + stats.pending + stats.retrying;
            ensure!(found >= 1, "a message that is not settled is in no figure: {stats:?}");
            let look = looks.fetch_add(1, Ordering::SeqCst);
            // A paused clock goes on only while everybody waits, and what is due needs it to go on.
            match look % 8 {
                7 => tokio::time::sleep(Duration::from_millis(1)).await,
                _ => tokio::task::yield_now().await,
            }
        }
        Ok::<_, Violation>(())
    };
    let (moved, counted) = tokio::join!(moves, counted);
    counted?;
    ensure!(looks.load(Ordering::SeqCst) > 0, "nobody looked");
    owner.ack(&moved?).await?;
    let stats = stats(&h, &topic, "group").await?;
    equal!((stats.lag, stats.pending, stats.retrying), (Some(0), 0, 0), "figures of a settled message");
    Ok(())
}
