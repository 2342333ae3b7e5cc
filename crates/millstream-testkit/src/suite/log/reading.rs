//! Append and fetch: complete, in order, and byte for byte.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::TopicPartition;
use millstream_core::log::Append;
use millstream_core::wire::Fields;

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{BRIEF, Harness, LARGE, foreign, large, message};
use crate::owner::{ids, retry};

suite!("log":
    entries_come_back_in_order_byte_for_byte,
    ids_grow_strictly_and_name_the_entries,
    a_batch_spans_partitions,
    a_bad_entry_does_not_stop_the_batch,
    what_many_append_at_once_is_all_kept,
    no_more_than_max_is_handed_out,
    groups_read_independently,
    what_is_pending_comes_first_and_in_order,
    the_next_owner_gets_what_the_last_one_left,
    pending_entries_page_through_once,
    a_reader_that_starts_over_returns_what_is_pending_again,
    deliveries_count_every_handing_out,
    retries_are_read_beside_a_backlog,
    large_entries_come_whole_in_order_and_once,
);

async fn entries_come_back_in_order_byte_for_byte(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let large: Fields = vec![("payload".into(), vec![0xa5; 100_000].into())];
    let appended = [message(0), foreign(), large, message(0), message(1)];
    h.append(&tp, appended.clone()).await?;
    let entries = owner.take(appended.len()).await?;
    for (n, (entry, fields)) in entries.iter().zip(&appended).enumerate() {
        ensure!(entry.fields == *fields, "entry {n} came back with other fields or in another order");
    }
    owner.nothing("everything was handed out").await
}

async fn ids_grow_strictly_and_name_the_entries(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let mut appended = h.append_n(&tp, 20).await?;
    appended.extend(h.append_n(&tp, 20).await?);
    ensure!(appended.is_sorted_by(|a, b| a < b), "ids do not grow strictly: {appended:?}");
    let entries = owner.take(40).await?;
    equal!(ids(&entries), appended, "ids that were handed out");
    Ok(())
}

async fn a_batch_spans_partitions(h: Harness) -> Verdict {
    let topic = h.topic(3).await?;
    let partitions: Vec<TopicPartition> = topic.iter().collect();
    // Interleaved, so that the order within each partition is not the order of runs.
    let batch: Vec<_> = (0..9).map(|n| Append::new(partitions[n % 3].clone(), message(n))).collect();
    let results = h.backend.log().append(&batch).await;
    equal!(results.len(), batch.len(), "results");
    let mut appended = Vec::new();
    for result in results {
        appended.push(result?);
    }
    for (at, tp) in partitions.iter().enumerate() {
        let mut owner = h.owner(tp, "group").await?;
        let entries = owner.take(3).await?;
        equal!(ids(&entries), [at, at + 3, at + 6].map(|at| appended[at].id), "ids in {tp}");
        for (entry, n) in entries.iter().zip([at, at + 3, at + 6]) {
            equal!(entry.fields, message(n), "fields in {tp}");
        }
        owner.nothing("the rest belongs to other partitions").await?;
    }
    Ok(())
}

/// A store that cannot keep an entry without fields rejects it; one that can delivers it.
async fn a_bad_entry_does_not_stop_the_batch(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let entry = |fields| Append::new(tp.clone(), fields);
    let batch = [entry(message(0)), entry(Fields::new()), entry(message(2))];
    let results = h.backend.log().append(&batch).await;
    equal!(results.len(), 3, "results");
    ensure!(results[0].is_ok(), "the entry before the bad one failed: {:?}", results[0]);
    ensure!(results[2].is_ok(), "the entry behind the bad one failed: {:?}", results[2]);
    let kept: Vec<_> =
        results.iter().zip(&batch).filter(|(result, _)| result.is_ok()).map(|(_, e)| &e.fields).collect();
    let entries = owner.take(kept.len()).await?;
    let fields: Vec<_> = entries.iter().map(|entry| &entry.fields).collect();
    equal!(fields, kept, "what was handed out");
    owner.nothing("a failed entry is not appended").await
}

async fn what_many_append_at_once_is_all_kept(h: Harness) -> Verdict {
    const TASKS: usize = 8;
    const EACH: usize = 10;
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appenders: Vec<_> = (0..TASKS)
        .map(|task| {
            let (h, tp) = (h.clone(), tp.clone());
            tokio::spawn(async move {
                let mut mine = Vec::new();
                for n in 0..EACH {
                    mine.extend(h.append(&tp, [message(task * EACH + n)]).await?);
                }
                Ok::<_, Violation>(mine)
            })
        })
        .collect();
    let mut appended = BTreeSet::new();
    for appender in appenders {
        let mine = appender.await.map_err(|error| Violation::new(error.to_string()))??;
        ensure!(mine.is_sorted_by(|a, b| a < b), "the ids of one appender do not grow: {mine:?}");
        appended.extend(mine);
    }
    equal!(appended.len(), TASKS * EACH, "different ids");
    let entries = owner.take(TASKS * EACH).await?;
    equal!(ids(&entries), Vec::from_iter(appended), "ids that were handed out");
    let payloads: BTreeSet<_> = entries.iter().map(|entry| entry.fields.clone()).collect();
    equal!(payloads.len(), TASKS * EACH, "different messages");
    Ok(())
}

async fn no_more_than_max_is_handed_out(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 40).await?;
    let first = owner.take(10).await?;
    for entry in &first {
        owner.settle(entry.receipt, retry(entry, Duration::ZERO)).await?;
    }
    owner.promote(10).await?;
    // New entries and retries together, then the same as pending.
    for phase in ["new", "pending"] {
        for max in [1, 2, 7] {
            let fetched = owner.fetch(max, Duration::ZERO).await?;
            let came = fetched.entries.len() + fetched.ghosts.len();
            ensure!((1..=max).contains(&came), "{came} {phase} entries for a max of {max}");
        }
        owner.reopen().await?;
    }
    Ok(())
}

async fn groups_read_independently(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut first = h.owner(&tp, "first").await?;
    let mut second = h.owner(&tp, "second").await?;
    let appended = h.append_n(&tp, 10).await?;
    let entries = first.take(10).await?;
    first.ack(&entries).await?;
    equal!(ids(&second.take(10).await?), appended, "what the second group reads after the first is done");
    second.reopen().await?;
    equal!(ids(&second.take(10).await?), appended, "what is pending for the second group");
    first.nothing("it is done").await
}

async fn what_is_pending_comes_first_and_in_order(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 6).await?;
    let entries = owner.take(6).await?;
    owner.ack(&entries[1..3]).await?;
    let new = h.append_n(&tp, 3).await?;
    owner.reopen().await?;
    let fetched = owner.fetch(100, Duration::ZERO).await?;
    ensure!(fetched.pending, "a new reader did not start with what is pending");
    let left = [appended[0], appended[3], appended[4], appended[5]];
    equal!(ids(&fetched.entries), left, "what is pending");
    for (entry, n) in fetched.entries.iter().zip([0, 3, 4, 5]) {
        equal!(entry.fields, message(n), "the fields of a pending entry");
    }
    let fetched = owner.fetch(100, Duration::ZERO).await?;
    equal!(ids(&fetched.entries), new, "what comes behind what is pending");
    ensure!(!fetched.pending, "new entries are called pending");
    Ok(())
}

async fn the_next_owner_gets_what_the_last_one_left(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let appended = h.append_n(&tp, 5).await?;
    let entries = owner.take(5).await?;
    owner.settle(entries[0].receipt, retry(&entries[0], Duration::ZERO)).await?;
    owner.promote(1).await?;
    let retried = owner.take(1).await?;
    owner.ack(&entries[1..2]).await?;
    let mut next = h.takeover(&owner.lease).await?;
    let mut receipts = Vec::new();
    // The backend may read one source after the other.
    while receipts.len() < 4 {
        let fetched = next.fetch(100, Duration::ZERO).await?;
        ensure!(fetched.pending, "the next owner got {} of 4 pending entries first", receipts.len());
        ensure!(!fetched.entries.is_empty(), "an empty page after {} of 4 pending entries", receipts.len());
        receipts.extend(fetched.entries.iter().map(|entry| entry.receipt));
    }
    receipts.sort_unstable();
    let mut left: Vec<_> = entries[2..].iter().chain(&retried).map(|entry| entry.receipt).collect();
    left.sort_unstable();
    equal!(receipts, left, "what the next owner gets, {} was acked", appended[1]);
    Ok(())
}

async fn pending_entries_page_through_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 25).await?;
    owner.take(25).await?;
    owner.reopen().await?;
    let mut came = Vec::new();
    while came.len() < 25 {
        let fetched = owner.fetch(10, Duration::ZERO).await?;
        ensure!(fetched.pending, "{} of 25 pending entries came, then it was over", came.len());
        ensure!(!fetched.entries.is_empty(), "an empty page after {} of 25 pending entries", came.len());
        // As an owner works: entries are settled while others are still unread.
        owner.ack(&fetched.entries).await?;
        came.extend(ids(&fetched.entries));
    }
    equal!(came, appended, "pending entries, page by page");
    owner.nothing("everything was handed out and acked").await
}

async fn a_reader_that_starts_over_returns_what_is_pending_again(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    owner.nothing("everything was handed out").await?;
    owner.ack(&entries[..1]).await?;
    for _ in 0..2 {
        owner.reader.start_over();
        let fetched = owner.fetch(10, Duration::ZERO).await?;
        ensure!(fetched.pending, "the reader did not start over");
        equal!(ids(&fetched.entries), appended[1..], "pending entries");
    }
    let next = h.append_n(&tp, 1).await?;
    let fetched = owner.fetch(10, h.deadline()).await?;
    equal!((fetched.pending, ids(&fetched.entries)), (false, next), "new entries after the pending ones");
    Ok(())
}

async fn deliveries_count_every_handing_out(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    for expected in 1..=4 {
        for entry in owner.take(2).await? {
            equal!(entry.deliveries, expected, "deliveries of {:?}", entry.receipt);
        }
        owner.reopen().await?;
    }
    Ok(())
}

async fn retries_are_read_beside_a_backlog(h: Harness) -> Verdict {
    for max in [1, 8] {
        let tp = h.partition().await?;
        let mut owner = h.owner(&tp, "group").await?;
        h.append_n(&tp, 41).await?;
        let first = owner.take(1).await?;
        owner.settle_all(&first, &retry(&first[0], Duration::ZERO)).await?;
        owner.promote(1).await?;
        let mut read = 0;
        loop {
            ensure!(read < 20, "with a max of {max}, {read} of 40 new entries came before the due retry");
            let fetched = owner.fetch(max, Duration::ZERO).await?;
            let (retries, new): (Vec<_>, Vec<_>) =
                fetched.entries.iter().partition(|e| e.receipt.source == millstream_core::log::Source::Retry);
            read += new.len();
            if !retries.is_empty() {
                break;
            }
            ensure!(!new.is_empty(), "nothing was handed out beside a backlog");
        }
        // Also in the other order: the backlog continues.
        let rest = owner.take(40 - read).await?;
        equal!(rest.len(), 40 - read, "the rest of the backlog");
    }
    Ok(())
}

/// Exceeds the bytes of one page, so several calls are needed.
async fn large_entries_come_whole_in_order_and_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let large: Vec<Fields> = (0..LARGE).map(large).collect();
    let appended = h.append(&tp, large.clone()).await?;
    for what in ["new", "pending"] {
        let mut entries = Vec::new();
        while entries.len() < LARGE {
            let fetched = owner.fetch(100, Duration::ZERO).await?;
            ensure!(fetched.pending == (what == "pending"), "{what} entries that say otherwise");
            ensure!(!fetched.entries.is_empty(), "an empty page after {} {what} entries", entries.len());
            entries.extend(fetched.entries);
        }
        equal!(ids(&entries), appended, "{what} entries");
        let whole = entries.iter().zip(&large).all(|(entry, fields)| entry.fields == *fields);
        ensure!(whole, "{what} entries came back with other fields");
        owner.nothing("everything was handed out").await?;
        owner.reopen().await?;
    }
    Ok(())
}
