//! Reading: each entry is delivered to one consumer, from every partition and source; a consumer's own entries come
//! first.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::log::Source;
use millstream_core::{ErrorKind, MessageId, Partition, TopicPartition};
use tokio::time::Instant;

use super::{Sharer, ids, only, receipts, sharers, suite};
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET, message};
use crate::owner::retry;

suite!("shared":
    each_entry_goes_to_one_consumer,
    every_partition_and_both_sources_are_read,
    a_shared_fetch_is_bounded,
    a_shared_fetch_waits_and_is_woken,
    a_new_shared_reader_begins_with_its_own_and_says_so;
    with an operator:
    a_lost_group_is_told_to_a_shared_reader needs [Restore],
);

async fn each_entry_goes_to_one_consumer(h: Harness) -> Verdict {
    let (topic, [mut a, mut b, mut c]) = sharers(&h, 1, ["a", "b", "c"]).await?;
    let appended = h.append_each(&only(&topic), 9).await?;
    let mut seen = Vec::new();
    for sharer in [&mut a, &mut b, &mut c] {
        seen.extend(sharer.take(3).await?.iter().map(|entry| entry.receipt.id));
    }
    equal!(seen, appended, "what three consumers read, one after the other");
    // Unsettled entries stay with their consumers, even if another one joins later.
    let mut d = Sharer::join(&h, &topic, "d").await?;
    for sharer in [&mut a, &mut b, &mut c, &mut d] {
        sharer.nothing("everything is held by somebody").await?;
    }
    Ok(())
}

async fn every_partition_and_both_sources_are_read(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 3, ["a", "b"]).await?;
    let mut appended = BTreeSet::new();
    for tp in topic.iter() {
        for id in h.append_each(&tp, 4).await? {
            appended.insert((tp.partition, id));
        }
    }
    let mut entries = a.take_all(5).await?;
    entries.extend(b.take_all(7).await?);
    let seen: BTreeSet<_> =
        entries.iter().map(|(partition, _, entry)| (*partition, entry.receipt.id)).collect();
    equal!(seen, appended, "what two consumers read of three partitions");
    ensure!(entries.iter().all(|(_, pending, _)| !pending), "new entries are marked as pending");

    // A failed entry comes back to any consumer.
    let (partition, _, entry) = &entries[0];
    let batch = [(entry.receipt, retry(entry, Duration::ZERO))];
    let settled = h.backend.shared()?.settle_shared(&a.member, *partition, &batch).await?;
    equal!(settled.applied, 1, "retries");
    let mut owner = h.owner(&TopicPartition { topic: topic.name, partition: *partition }, "group").await?;
    owner.promote(1).await?;
    let again = b.take_all(1).await?;
    equal!((again[0].0, again[0].2.receipt.source), (*partition, Source::Retry), "where the retry was read");
    Ok(())
}

async fn a_shared_fetch_is_bounded(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 1, ["a"]).await?;
    h.append_each(&only(&topic), 20).await?;
    for max in [1, 2, 4, 7] {
        // On a busy machine nothing may come in time.
        let mut deadline = h.wait_for("entries to be handed out");
        let count = loop {
            let read = a.fetch(max, QUIET).await?;
            match read.iter().map(|(_, fetched)| fetched.entries.len()).sum::<usize>() {
                0 => deadline.pause().await?,
                count => break count,
            }
        };
        ensure!(count <= max, "{count} entries were read, {max} asked for");
    }
    equal!(a.fetch(0, QUIET).await?.len(), 0, "partitions of which nothing was asked for");
    Ok(())
}

async fn a_shared_fetch_waits_and_is_woken(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 2, ["a"]).await?;
    let started = Instant::now();
    equal!(a.fetch(10, QUIET).await?.len(), 0, "partitions in which nothing is");
    ensure!(started.elapsed() + Duration::from_millis(2) >= QUIET, "no wait of {QUIET:?}");
    for partition in [1, 0] {
        let tp = TopicPartition::new(topic.name.clone(), partition);
        let started = Instant::now();
        let waiting = async { a.fetch(10, h.deadline() / 2).await };
        let append = async {
            tokio::time::sleep(QUIET).await;
            h.append(&tp, [message(0)]).await
        };
        let (read, appended) = tokio::join!(waiting, append);
        let (read, appended) = (read?, appended?);
        let seen: Vec<(Partition, MessageId)> =
            read.iter().flat_map(|(p, it)| it.entries.iter().map(|entry| (*p, entry.receipt.id))).collect();
        equal!(seen, [(Partition(partition), appended[0])], "what ended the wait");
        ensure!(started.elapsed() < h.deadline() / 3, "it was told late: after {:?}", started.elapsed());
    }
    Ok(())
}

async fn a_new_shared_reader_begins_with_its_own_and_says_so(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 9).await?;
    let (of_a, of_b) = (a.take(4).await?, b.take(3).await?);
    a.acks(&receipts(&of_a[..1])).await?;
    b.acks(&receipts(&of_b[..1])).await?;
    for deliveries in 2..4 {
        a.reopen().await?;
        let pending = a.take_all(3).await?;
        let entries: Vec<_> = pending.iter().map(|(_, _, entry)| entry.clone()).collect();
        equal!(ids(&entries), ids(&of_a[1..]), "what is pending under the name of a");
        ensure!(pending.iter().all(|(_, pending, _)| *pending), "it is not marked as pending");
        ensure!(entries.iter().all(|entry| entry.deliveries == deliveries), "deliveries of {entries:?}");
    }
    let new = a.take_all(2).await?;
    ensure!(new.iter().all(|(_, pending, entry)| !pending && entry.deliveries == 1), "what is new: {new:?}");
    a.nothing("everything was read").await?;
    b.nothing("its reader is not new").await
}

async fn a_lost_group_is_told_to_a_shared_reader(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 2, ["a"]).await?;
    let lost = TopicPartition::new(topic.name.clone(), 1);
    h.append_each(&lost, 1).await?;
    a.take_all(1).await?;
    h.operator()?.destroy_group(&lost, &a.member.group).await?;
    refused(a.read(10, QUIET).await, ErrorKind::GroupMissing, "a fetch of a group that was destroyed")?;
    let claim = h
        .backend
        .shared()?
        .claim(&a.member, Partition(1), &[], LONG, 10, &millstream_core::Continuity::assured())
        .await;
    refused(claim, ErrorKind::GroupMissing, "a claim in a group that was destroyed")?;
    for tp in topic.iter() {
        h.backend.catalog().restore_group(&tp, &a.member.group, MessageId::ZERO).await?;
    }
    equal!(a.take_all(1).await?[0].0, Partition(1), "where the entry was read once more");
    Ok(())
}
