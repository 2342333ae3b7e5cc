//! Appends with a unique id: none is stored while an entry with its id has still to be settled.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::inspect::Range;
use millstream_core::log::{Append, Appended, DedupId, UniqueIdentity};
use millstream_core::{ErrorKind, GroupName, Partition, Reason, Result, Retention, TopicPartition};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, message};
use crate::owner::{dead, retry, retry_as};

suite!("log":
    an_id_is_in_use_until_every_group_has_settled_its_entry needs [Unique],
    an_id_is_in_use_while_its_entry_is_retried needs [Unique],
    an_id_is_in_use_while_a_retry_waits_whose_entry_is_trimmed needs [Unique],
    a_dead_letter_ends_an_id_and_its_replay_takes_it_back needs [Unique, DeadLetters],
    a_group_that_is_deleted_ends_its_part needs [Unique],
    a_group_that_is_moved_behind_the_entry_ends_its_part needs [Unique, Seek],
    an_entry_that_is_trimmed_ends_its_id needs [Unique, Seek],
    without_a_group_an_entry_in_the_log_keeps_its_id needs [Unique],
    an_append_that_is_repeated_returns_its_own_entry needs [Unique],
    unique_ids_within_one_batch_count_too needs [Unique],
    unique_ids_of_other_partitions_and_other_ids_do_not_count needs [Unique],
    an_entry_of_an_earlier_partition_keeps_its_id needs [Unique],
    entries_with_unique_ids_are_stored_whole_and_in_order needs [Unique],
    of_many_unique_appends_at_once_one_is_stored needs [Unique],
    a_unique_append_without_fields_is_refused_alone needs [Unique],
);

fn item(tp: &TopicPartition, id: &[u8], at: usize) -> Result<Append> {
    item_from(tp, &[], id, at)
}

/// An entry that may be in earlier partitions.
fn item_from(tp: &TopicPartition, earlier: &[Partition], id: &[u8], at: usize) -> Result<Append> {
    let (id, send, earlier) = (DedupId::new(id.to_vec())?, fastrand::u64(..), earlier.to_vec());
    Ok(Append::new(tp.clone(), message(at)).with(UniqueIdentity { id, send, earlier }))
}

type Found<T> = std::result::Result<T, Violation>;

async fn append(h: &Harness, batch: &[Append]) -> Found<Vec<Appended>> {
    let results = h.backend.log().append(batch).await;
    equal!(results.len(), batch.len(), "results of as many entries");
    Ok(results.into_iter().collect::<Result<_>>()?)
}

/// Appends an entry with an id that is free.
async fn first(h: &Harness, tp: &TopicPartition, id: &[u8]) -> Found<Appended> {
    let first = append(h, &[item(tp, id, 1)?]).await?[0];
    ensure!(!first.is_duplicate, "an id that is not in use counts as a duplicate: {first:?}");
    Ok(first)
}

/// Expects that another entry with the id of `first` is not stored.
async fn in_use(h: &Harness, tp: &TopicPartition, id: &[u8], first: Appended, when: &str) -> Verdict {
    let again = append(h, &[item(tp, id, 2)?]).await?[0];
    equal!((again.partition, again.id, again.is_duplicate), (first.partition, first.id, true), "{when}");
    Ok(())
}

/// Expects that another entry with the id of `first` is stored.
async fn ended(h: &Harness, tp: &TopicPartition, id: &[u8], first: Appended, when: &str) -> Found<Appended> {
    let next = append(h, &[item(tp, id, 3)?]).await?[0];
    ensure!(!next.is_duplicate && next.id > first.id, "the id is still in use {when}: {next:?}");
    Ok(next)
}

async fn an_id_is_in_use_until_every_group_has_settled_its_entry(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    for id in [&b"a"[..], b"\0{}\xff ", &[7; 128]] {
        let stored = first(&h, &tp, id).await?;
        in_use(&h, &tp, id, stored, "no group has read it").await?;
        let read = one.take(1).await?;
        in_use(&h, &tp, id, stored, "one group has it pending, the other has not read it").await?;
        one.ack(&read).await?;
        in_use(&h, &tp, id, stored, "one group has settled it, the other has not read it").await?;
        let read = other.take(1).await?;
        in_use(&h, &tp, id, stored, "one group has settled it, the other has it pending").await?;
        other.ack(&read).await?;
        let next = ended(&h, &tp, id, stored, "when both groups have settled it").await?;
        in_use(&h, &tp, id, next, "the second entry is unread").await?;
        let (read, too) = (one.take(1).await?, other.take(1).await?);
        one.ack(&read).await?;
        other.ack(&too).await?;
    }
    Ok(())
}

async fn an_id_is_in_use_while_its_entry_is_retried(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    let stored = first(&h, &tp, b"a").await?;
    let (read, too) = (one.take(1).await?, other.take(1).await?);
    other.ack(&too).await?;
    one.settle_all(&read, &retry(&read[0], Duration::ZERO)).await?;
    in_use(&h, &tp, b"a", stored, "it is parked").await?;
    for attempt in 3..5 {
        one.promote(1).await?;
        in_use(&h, &tp, b"a", stored, "it is in the retry log, unread").await?;
        let read = one.take_retries(1).await?;
        in_use(&h, &tp, b"a", stored, "it is in the retry log, pending").await?;
        one.settle_all(&read, &retry_as(attempt, stored.id, Duration::ZERO)).await?;
        in_use(&h, &tp, b"a", stored, "it is parked again").await?;
    }
    one.promote(1).await?;
    let read = one.take_retries(1).await?;
    one.ack(&read).await?;
    ended(&h, &tp, b"a", stored, "when its redelivery is settled").await?;
    Ok(())
}

async fn an_id_is_in_use_while_a_retry_waits_whose_entry_is_trimmed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let stored = first(&h, &tp, b"a").await?;
    let read = owner.take(1).await?;
    owner.settle_all(&read, &retry(&read[0], Duration::ZERO)).await?;
    equal!(h.trim(&owner.lease).await?, 1, "entries that are trimmed");
    in_use(&h, &tp, b"a", stored, "it is parked, and trimmed from the log").await?;
    owner.promote(1).await?;
    in_use(&h, &tp, b"a", stored, "it is in the retry log, and trimmed from the log").await?;
    let read = owner.take_retries(1).await?;
    owner.settle_all(&read, &dead(Reason::Exhausted, 2, stored.id)).await?;
    ended(&h, &tp, b"a", stored, "when its redelivery is a dead letter").await?;
    Ok(())
}

async fn a_dead_letter_ends_an_id_and_its_replay_takes_it_back(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let dead_letters = h.backend.dead_letters()?;
    let stored = first(&h, &tp, b"a").await?;
    let read = owner.take(1).await?;
    owner.settle_all(&read, &dead(Reason::Exhausted, 1, stored.id)).await?;
    let group = GroupName::new("group")?;
    let letters = dead_letters.list(&tp, &group, Range::ALL, 9).await?.items;
    ensure!(!letters.is_empty(), "the message is not among the dead letters");
    equal!(dead_letters.replay(&tp, &group, &[letters[0].id]).await?, 1, "letters that are replayed");
    in_use(&h, &tp, b"a", stored, "its letter is replayed, and nobody else has the id").await?;
    let read = owner.take_retries(1).await?;
    owner.settle_all(&read, &dead(Reason::Exhausted, 1, stored.id)).await?;
    let next = ended(&h, &tp, b"a", stored, "when it is a dead letter").await?;
    let letters = dead_letters.list(&tp, &group, Range::ALL, 9).await?.items;
    ensure!(!letters.is_empty(), "the message is not among the dead letters");
    dead_letters.replay(&tp, &group, &[letters[0].id]).await?;
    in_use(&h, &tp, b"a", next, "the letter is replayed after another entry has its id").await?;
    let read = owner.take(2).await?;
    let of_log: Vec<_> = read.iter().filter(|entry| entry.receipt.id == next.id).cloned().collect();
    owner.ack(&of_log).await?;
    ended(&h, &tp, b"a", next, "when the entry that has it is settled, and the replayed letter is not")
        .await?;
    Ok(())
}

async fn a_group_that_is_deleted_ends_its_part(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let mut one = h.owner(&tp, "one").await?;
    for state in ["unread", "pending", "parked", "in the retry log"] {
        let mut other = h.owner(&tp, &format!("other-{}", state.len())).await?;
        let name = GroupName::new(format!("other-{}", state.len()))?;
        // What the group starts with: the entries of earlier rounds.
        for entry in other.reader.fetch(100, Duration::ZERO).await?.entries {
            other.ack(&[entry]).await?;
        }
        for entry in other.reader.fetch(100, Duration::ZERO).await?.entries {
            other.ack(&[entry]).await?;
        }
        let stored = first(&h, &tp, state.as_bytes()).await?;
        if state != "unread" {
            let read = other.take(1).await?;
            if state != "pending" {
                other.settle_all(&read, &retry(&read[0], Duration::ZERO)).await?;
            }
            if state == "in the retry log" {
                other.promote(1).await?;
            }
        }
        let read = one.take(1).await?;
        one.ack(&read).await?;
        in_use(&h, &tp, state.as_bytes(), stored, state).await?;
        ensure!(h.backend.catalog().delete_group(&topic.name, &name).await?, "the group was there");
        ended(&h, &tp, state.as_bytes(), stored, &format!("when the group is deleted that had it {state}"))
            .await?;
        let read = one.take(1).await?;
        one.ack(&read).await?;
    }
    Ok(())
}

async fn a_group_that_is_moved_behind_the_entry_ends_its_part(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let stored = first(&h, &tp, b"a").await?;
    owner.seek(Start::Latest).await?;
    let next = ended(&h, &tp, b"a", stored, "when the group is moved behind it").await?;
    let read = owner.take(1).await?;
    equal!(read[0].receipt.id, next.id, "what the group reads");
    owner.seek(Start::Latest).await?;
    let next = ended(&h, &tp, b"a", next, "when the group is moved behind it while it is pending").await?;
    let read = owner.take(1).await?;
    owner.ack(&read).await?;
    owner.seek(Start::Earliest).await?;
    in_use(&h, &tp, b"a", next, "the group is moved back in front of it").await
}

async fn an_entry_that_is_trimmed_ends_its_id(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (mut unread, mut pending) = (first(&h, &tp, b"unread").await?, first(&h, &tp, b"pending").await?);
    for round in 0..2 {
        if round == 1 {
            // Both are pending now.
            owner.take(2).await?;
        }
        in_use(&h, &tp, b"unread", unread, "it is in the log").await?;
        h.append_n(&tp, 1).await?;
        h.trim_by(&owner.lease, Retention::Length(1)).await?;
        unread = ended(&h, &tp, b"unread", unread, "when it is trimmed").await?;
        pending = ended(&h, &tp, b"pending", pending, "when it is trimmed").await?;
        owner.seek(Start::After(unread.id.previous())).await?;
    }
    Ok(())
}

async fn without_a_group_an_entry_in_the_log_keeps_its_id(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let stored = first(&h, &tp, b"a").await?;
    in_use(&h, &tp, b"a", stored, "nobody has read it").await?;
    let mut owner = h.owner(&tp, "group").await?;
    in_use(&h, &tp, b"a", stored, "the first group has not read it").await?;
    let read = owner.take(1).await?;
    owner.ack(&read).await?;
    ended(&h, &tp, b"a", stored, "when the first group has settled it").await?;
    Ok(())
}

async fn an_append_that_is_repeated_returns_its_own_entry(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let batch = [item(&tp, b"a", 1)?, item(&tp, b"b", 2)?];
    let stored = append(&h, &batch).await?;
    ensure!(stored.iter().all(|it| !it.is_duplicate), "two ids: {stored:?}");
    equal!(append(&h, &batch).await?, stored, "the same appends again");
    let read = owner.take(2).await?;
    owner.ack(&read).await?;
    equal!(append(&h, &batch).await?, stored, "the same appends again, after their entries are settled");
    let next = ended(&h, &tp, b"a", stored[0], "for another append, when its entry is settled").await?;
    let again = append(&h, &batch[..1]).await?[0];
    equal!((again.id, again.is_duplicate), (next.id, true), "the first append again");
    Ok(())
}

async fn unique_ids_within_one_batch_count_too(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    for _ in 0..2 {
        let results = append(&h, &[item(&tp, b"a", 1)?, item(&tp, b"b", 2)?, item(&tp, b"a", 3)?]).await?;
        equal!(results[2].id, results[0].id, "the second entry of an id in a batch");
        let duplicates: Vec<_> = results.iter().map(|it| it.is_duplicate).collect();
        equal!(duplicates, [false, false, true], "which are duplicates");
        let read = owner.take(2).await?;
        owner.ack(&read).await?;
    }
    owner.nothing("each id was stored once in each round").await
}

async fn unique_ids_of_other_partitions_and_other_ids_do_not_count(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [here, there] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let results = append(&h, &[item(&here, b"a", 1)?, item(&there, b"a", 2)?, item(&here, b"A", 3)?]).await?;
    ensure!(results.iter().all(|it| !it.is_duplicate), "three different ids: {results:?}");
    let partitions: Vec<_> = results.iter().map(|it| it.partition.0).collect();
    equal!(partitions, [0, 1, 0], "their partitions");
    Ok(())
}

async fn an_entry_of_an_earlier_partition_keeps_its_id(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [old, new] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let (mut of_old, mut of_new) = (h.owner(&old, "group").await?, h.owner(&new, "group").await?);
    let stored = first(&h, &old, b"a").await?;
    let moved = |id: &[u8]| item_from(&new, &[Partition(0), Partition(1)], id, 2);
    let results = append(&h, &[moved(b"a")?, moved(b"b")?, moved(b"b")?]).await?;
    equal!(
        (results[0].partition, results[0].id, results[0].is_duplicate),
        (Partition(0), stored.id, true),
        "what is in the earlier partition"
    );
    equal!((results[1].partition, results[1].is_duplicate), (Partition(1), false), "what is not");
    equal!((results[2].id, results[2].is_duplicate), (results[1].id, true), "what is by now");
    let read = of_old.take(1).await?;
    of_old.settle_all(&read, &retry(&read[0], Duration::ZERO)).await?;
    let again = append(&h, &[moved(b"a")?]).await?[0];
    equal!((again.partition, again.is_duplicate), (Partition(0), true), "what waits for a retry there");
    of_old.promote(1).await?;
    let read = of_old.take_retries(1).await?;
    of_old.ack(&read).await?;
    let next = append(&h, &[moved(b"a")?]).await?[0];
    equal!((next.partition, next.is_duplicate), (Partition(1), false), "once that is settled");
    equal!(of_new.take(2).await?.len(), 2, "entries of the new partition");
    Ok(())
}

async fn entries_with_unique_ids_are_stored_whole_and_in_order(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let mut ids = Vec::new();
    // The second time all ids are known and free.
    for round in 0..2 {
        let mut batch = Vec::new();
        for at in 0..600_usize {
            batch.push(item(&tp, &at.to_be_bytes(), round * 600 + at)?);
        }
        let results = append(&h, &batch).await?;
        ensure!(results.iter().all(|it| !it.is_duplicate), "600 entries are stored");
        let stored: Vec<_> = results.iter().map(|it| it.id).collect();
        let entries = owner.take(600).await?;
        equal!(crate::owner::ids(&entries), stored, "the entries of the log");
        for (entry, item) in entries.iter().zip(&batch) {
            equal!(entry.fields, item.stored_fields(), "the fields of an entry");
        }
        owner.ack(&entries).await?;
        ids.extend(stored);
    }
    ensure!(ids.is_sorted(), "the entries are stored in their order");
    Ok(())
}

async fn of_many_unique_appends_at_once_one_is_stored(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    for _ in 0..2 {
        let mut callers = Vec::new();
        for at in 0..16 {
            let (h, item) = (h.clone(), item(&tp, b"once", at)?);
            callers.push(tokio::spawn(async move { append(&h, &[item]).await }));
        }
        let mut places = Vec::new();
        for caller in callers {
            places.extend(caller.await.map_err(|error| Violation::new(error.to_string()))??);
        }
        equal!(places.iter().filter(|it| !it.is_duplicate).count(), 1, "appends that stored something");
        ensure!(places.iter().all(|it| it.id == places[0].id), "one id for all: {places:?}");
        let read = owner.take(1).await?;
        owner.ack(&read).await?;
    }
    owner.nothing("one entry was stored in each round").await
}

async fn a_unique_append_without_fields_is_refused_alone(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut empty = item(&tp, b"a", 1)?;
    empty.fields.clear();
    let mut results = h.backend.log().append(&[empty, item(&tp, b"a", 2)?]).await.into_iter();
    let mut next = || results.next().ok_or_else(|| Violation::new("too few results"));
    refused(next()?, ErrorKind::Encode, "an append without fields")?;
    ensure!(!next()??.is_duplicate, "the id of an append that was refused is free");
    Ok(())
}
