//! Appends with a dedup id: one entry for each id within its window.

pub(super) mod numbers;

use std::sync::Arc;
use std::time::Duration;

use millstream_core::log::{Append, Appended, DedupId, DedupIdentity};
use millstream_core::{Durability, ErrorKind, Partition, Result, TopicPartition};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, message};

suite!("log":
    an_id_that_is_appended_again_gets_the_first_place needs [Dedup],
    ids_within_one_batch_count_too needs [Dedup],
    an_entry_whose_window_is_over_is_stored_again needs [Dedup],
    an_id_counts_for_its_whole_window_beside_others needs [Dedup],
    an_id_counts_for_its_window_beside_shorter_ones needs [Dedup],
    ids_of_other_partitions_and_other_ids_do_not_count needs [Dedup],
    an_id_of_an_earlier_partition_counts needs [Dedup],
    an_id_of_an_earlier_partition_counts_no_longer_than_its_window needs [Dedup],
    entries_with_ids_are_stored_whole_and_in_order needs [Dedup],
    of_many_appends_at_once_one_is_stored needs [Dedup],
    ids_of_a_deleted_topic_do_not_count needs [Dedup],
    ids_count_for_requests_that_follow_without_waiting needs [Dedup],
    an_append_with_a_window_out_of_bounds_is_refused_alone needs [Dedup],
    lengths_come_with_entries_that_have_ids needs [Dedup, Lengths],
);

fn item(tp: &TopicPartition, id: &[u8], at: usize, window: Duration) -> Result<Append> {
    item_from(tp, &[], id, at, window)
}

/// An entry that may be in earlier partitions.
fn item_from(
    tp: &TopicPartition,
    earlier: &[Partition],
    id: &[u8],
    at: usize,
    window: Duration,
) -> Result<Append> {
    let (id, earlier) = (DedupId::new(id.to_vec())?, earlier.to_vec());
    Ok(Append::new(tp.clone(), message(at)).with(DedupIdentity { id, window, earlier }))
}

async fn append(h: &Harness, batch: &[Append]) -> std::result::Result<Vec<Appended>, Violation> {
    let results = h.backend.log().append(batch).await;
    equal!(results.len(), batch.len(), "results of as many entries");
    Ok(results.into_iter().collect::<Result<_>>()?)
}

async fn stored(h: &Harness, tp: &TopicPartition) -> std::result::Result<usize, Violation> {
    let mut owner = h.owner(tp, &h.unique("group")).await?;
    let mut found = 0;
    loop {
        let some = owner.reader.fetch(100, Duration::ZERO).await?;
        if some.entries.is_empty() && !some.pending {
            return Ok(found);
        }
        found += some.entries.len();
    }
}

async fn an_id_that_is_appended_again_gets_the_first_place(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    for id in [&b"a"[..], b"\0{}\xff ", &[7; 128]] {
        let first = append(&h, &[item(&tp, id, 1, LONG)?]).await?[0];
        ensure!(!first.is_duplicate, "the first append of an id counts as a duplicate: {first:?}");
        equal!(first.partition, tp.partition, "the partition");
        for at in 2..4 {
            let again = append(&h, &[item(&tp, id, at, LONG)?]).await?[0];
            equal!(
                (again.partition, again.id, again.is_duplicate),
                (first.partition, first.id, true),
                "the same id again"
            );
        }
    }
    equal!(stored(&h, &tp).await?, 3, "entries of three ids");
    Ok(())
}

async fn ids_within_one_batch_count_too(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let batch = [item(&tp, b"a", 1, LONG)?, item(&tp, b"b", 2, LONG)?, item(&tp, b"a", 3, LONG)?];
    let results = append(&h, &batch).await?;
    equal!(results[2].id, results[0].id, "the second entry of an id in a batch");
    let duplicates: Vec<_> = results.iter().map(|it| it.is_duplicate).collect();
    equal!(duplicates, [false, false, true], "which are duplicates");
    equal!(stored(&h, &tp).await?, 2, "entries of two ids");
    Ok(())
}

async fn ids_of_a_deleted_topic_do_not_count(h: Harness) -> Verdict {
    let (catalog, topic) = (h.backend.catalog(), h.topic(1).await?);
    let tp = TopicPartition::new(topic.name.clone(), 0);
    append(&h, &[item(&tp, b"a", 1, LONG)?]).await?;
    catalog.delete_topic(&topic.name).await?;
    catalog.create_topic(&topic).await?;
    let again = append(&h, &[item(&tp, b"a", 1, LONG)?]).await?[0];
    ensure!(!again.is_duplicate, "an id counts that another topic of the name had");
    equal!(stored(&h, &tp).await?, 1, "entries of the new topic");
    Ok(())
}

async fn an_entry_whose_window_is_over_is_stored_again(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let first = append(&h, &[item(&tp, b"a", 1, BRIEF)?]).await?[0];
    h.reaches(first.id.timestamp().saturating_add(BRIEF)).await?;
    let second = append(&h, &[item(&tp, b"a", 2, BRIEF)?]).await?[0];
    ensure!(!second.is_duplicate && second.id > first.id, "after the window: {second:?}");
    let third = append(&h, &[item(&tp, b"a", 3, BRIEF)?]).await?[0];
    // On a machine that was busy since the second append, the window may be over again.
    if h.now().await?.saturating_duration_since(second.id.timestamp()) < BRIEF {
        equal!((third.id, third.is_duplicate), (second.id, true), "within the second window");
        equal!(stored(&h, &tp).await?, 2, "entries of two windows");
    }
    Ok(())
}

/// Others are appended all the time: ids must not leave with the first of them.
async fn an_id_counts_for_its_whole_window_beside_others(h: Harness) -> Verdict {
    let (tp, window) = (h.partition().await?, 2 * BRIEF);
    let mut known: Vec<(Vec<u8>, Appended)> = Vec::new();
    for round in 0..12_u8 {
        let id = vec![b'r', round];
        let first = append(&h, &[item(&tp, &id, usize::from(round), window)?]).await?[0];
        known.push((id, first));
        h.reaches(first.id.timestamp().saturating_add(window / 4)).await?;
        for (id, first) in &known {
            // With a margin for the time between the two requests.
            let fresh = h.now().await?.saturating_duration_since(first.id.timestamp()) + window / 10 < window;
            if fresh {
                let again = append(&h, &[item(&tp, id, 99, window)?]).await?[0];
                let late = h.now().await?.saturating_duration_since(first.id.timestamp()) >= window;
                ensure!(
                    late || again.id == first.id,
                    "id {id:?} was stored again within its window: {again:?}"
                );
            }
        }
    }
    Ok(())
}

/// Whoever appends with a shorter window drops nothing that counts for longer.
async fn an_id_counts_for_its_window_beside_shorter_ones(h: Harness) -> Verdict {
    let (tp, window) = (h.partition().await?, 4 * BRIEF);
    let oldest = append(&h, &[item(&tp, b"oldest", 1, window)?]).await?[0];
    // A store may divide what it knows by age. Each wait is short, for harnesses with a short deadline.
    for times in 1..=8 {
        h.reaches(oldest.id.timestamp().saturating_add(times * BRIEF)).await?;
    }
    let first = append(&h, &[item(&tp, b"a", 2, window)?]).await?[0];
    for n in 0..3_u8 {
        let other = append(&h, &[item(&tp, &[n], 3, BRIEF)?]).await?[0];
        ensure!(!other.is_duplicate, "another id: {other:?}");
        h.reaches(other.id.timestamp().saturating_add(BRIEF)).await?;
    }
    let again = append(&h, &[item(&tp, b"a", 4, window)?]).await?[0];
    let late = h.now().await?.saturating_duration_since(first.id.timestamp()) >= window;
    ensure!(late || again.id == first.id, "stored again within its window: {again:?}");
    Ok(())
}

async fn ids_of_other_partitions_and_other_ids_do_not_count(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [here, there] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let batch = [item(&here, b"a", 1, LONG)?, item(&there, b"a", 2, LONG)?, item(&here, b"A", 3, LONG)?];
    let results = append(&h, &batch).await?;
    ensure!(results.iter().all(|it| !it.is_duplicate), "three different ids: {results:?}");
    let partitions: Vec<_> = results.iter().map(|it| it.partition.0).collect();
    equal!(partitions, [0, 1, 0], "their partitions");
    equal!((stored(&h, &here).await?, stored(&h, &there).await?), (2, 1), "entries");
    Ok(())
}

async fn an_id_of_an_earlier_partition_counts(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [old, new] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let first = append(&h, &[item(&old, b"a", 1, LONG)?]).await?[0];
    let moved = |id: &[u8]| item_from(&new, &[Partition(0), Partition(1)], id, 2, LONG);
    let results = append(&h, &[moved(b"a")?, moved(b"b")?, moved(b"b")?]).await?;
    equal!(
        (results[0].partition, results[0].id, results[0].is_duplicate),
        (Partition(0), first.id, true),
        "what is in the earlier partition"
    );
    equal!((results[1].partition, results[1].is_duplicate), (Partition(1), false), "what is not");
    equal!((results[2].id, results[2].is_duplicate), (results[1].id, true), "what is by now");
    equal!((stored(&h, &old).await?, stored(&h, &new).await?), (1, 1), "entries");
    Ok(())
}

/// A store may know an id for longer than it counts.
async fn an_id_of_an_earlier_partition_counts_no_longer_than_its_window(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [old, new] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let first = append(&h, &[item(&old, b"a", 1, BRIEF)?]).await?[0];
    append(&h, &[item(&old, b"b", 2, LONG)?]).await?;
    h.reaches(first.id.timestamp().saturating_add(BRIEF)).await?;
    let moved = item_from(&new, &[Partition(0), Partition(1)], b"a", 3, BRIEF)?;
    let second = append(&h, &[moved]).await?[0];
    equal!((second.partition, second.is_duplicate), (Partition(1), false), "the window of the id is over");
    Ok(())
}

async fn entries_with_ids_are_stored_whole_and_in_order(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut batch = Vec::new();
    for at in 0..600_usize {
        batch.push(item(&tp, &at.to_be_bytes(), at, LONG)?);
    }
    let results = append(&h, &batch).await?;
    let ids: Vec<_> = results.iter().map(|it| it.id).collect();
    ensure!(
        ids.is_sorted() && results.iter().all(|it| !it.is_duplicate),
        "600 entries are stored in their order"
    );
    let mut owner = h.owner(&tp, "group").await?;
    let entries = owner.take(600).await?;
    equal!(crate::owner::ids(&entries), ids, "the entries of the log");
    for (entry, item) in entries.iter().zip(&batch) {
        equal!(entry.fields, item.fields, "the fields of an entry");
    }
    Ok(())
}

async fn of_many_appends_at_once_one_is_stored(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut callers = Vec::new();
    for at in 0..16 {
        let (h, item) = (h.clone(), item(&tp, b"once", at, LONG)?);
        callers.push(tokio::spawn(async move { append(&h, &[item]).await }));
    }
    let mut places = Vec::new();
    for caller in callers {
        places.extend(caller.await.map_err(|error| Violation::new(error.to_string()))??);
    }
    equal!(places.iter().filter(|it| !it.is_duplicate).count(), 1, "appends that stored something");
    ensure!(places.iter().all(|it| it.id == places[0].id), "one id for all: {places:?}");
    equal!(stored(&h, &tp).await?, 1, "entries");
    Ok(())
}

/// Appends batches one behind the other, with an appender if the log has one.
async fn follow(h: &Harness, batches: &[Vec<Append>]) -> std::result::Result<Vec<Vec<Appended>>, Violation> {
    let mut all = Vec::new();
    let Some(mut appender) = h.backend.log().appender(Durability::Stored) else {
        for batch in batches {
            all.push(append(h, batch).await?);
        }
        return Ok(all);
    };
    for batch in batches {
        appender.begin(Arc::new(batch.clone()));
    }
    for batch in batches {
        let results = appender.finish().await;
        equal!(results.len(), batch.len(), "results of as many entries");
        all.push(results.into_iter().collect::<Result<_>>()?);
    }
    ensure!(appender.finish().await.is_empty(), "nothing is under way any more");
    Ok(all)
}

async fn ids_count_for_requests_that_follow_without_waiting(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let partitions = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    // Each batch has the second half of the one before, and the last of its ids twice.
    let mut batches = Vec::new();
    for batch in 0..6_usize {
        let ids = (batch * 60..batch * 60 + 120).chain([batch * 60 + 119]);
        let items = ids.map(|n| item(&partitions[n % 2], format!("id {n}").as_bytes(), n, LONG));
        batches.push(items.collect::<Result<Vec<_>>>()?);
    }
    let results = follow(&h, &batches).await?;
    let mut first: Vec<Appended> = Vec::new();
    for (batch, results) in results.iter().enumerate() {
        for (at, result) in results.iter().enumerate() {
            let n = batch * 60 + at.min(119);
            match first.get(n) {
                Some(known) => equal!(
                    (result.partition, result.id, result.is_duplicate),
                    (known.partition, known.id, true),
                    "an id that was sent before"
                ),
                None => {
                    ensure!(!result.is_duplicate, "id {n} is new: {result:?}");
                    first.push(*result);
                }
            }
        }
    }
    for (partition, tp) in partitions.iter().enumerate() {
        let of: Vec<_> = first.iter().skip(partition).step_by(2).map(|it| it.id).collect();
        ensure!(of.windows(2).all(|two| two[0] < two[1]), "ids of {tp} in the order of the batches");
        equal!(stored(&h, tp).await?, 210, "entries of {tp}");
    }
    Ok(())
}

async fn an_append_with_a_window_out_of_bounds_is_refused_alone(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut empty = item(&tp, b"c", 3, LONG)?;
    empty.fields.clear();
    let batch = [item(&tp, b"a", 1, Duration::ZERO)?, item(&tp, b"b", 2, LONG)?, empty];
    let mut results = h.backend.log().append(&batch).await.into_iter();
    let mut next = || results.next().ok_or_else(|| Violation::new("too few results"));
    refused(next()?, ErrorKind::InvalidConfig, "an append with a window of zero")?;
    next()??;
    refused(next()?, ErrorKind::Encode, "an append without fields")?;
    equal!(stored(&h, &tp).await?, 1, "entries");
    Ok(())
}

async fn lengths_come_with_entries_that_have_ids(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    for expected in [false, true] {
        let measured = h.backend.log().append_measured(&[item(&tp, b"a", 1, LONG)?]).await;
        let results = measured.results.into_iter().collect::<Result<Vec<_>>>()?;
        equal!(results.iter().map(|it| it.is_duplicate).collect::<Vec<_>>(), [expected], "a duplicate");
        equal!(measured.lengths, [(tp.clone(), 1)], "the length");
    }
    Ok(())
}
