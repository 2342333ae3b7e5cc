//! Appends with numbers of their producer, and batches of several kinds.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::log::{Append, Appended, Identity, Numbering};
use millstream_core::{Durability, ErrorKind, MessageId, TopicPartition};

use super::super::suite;
use super::{append, follow, item, stored};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, message};

suite!("log":
    numbers_that_are_appended_again_get_the_first_ids needs [Dedup],
    numbers_of_other_producers_and_partitions_do_not_count needs [Dedup],
    numbers_count_for_a_window needs [Dedup],
    entries_with_numbers_are_stored_whole_and_in_order needs [Dedup],
    a_numbered_entry_that_is_refused_is_refused_alone needs [Dedup],
    a_batch_of_several_kinds_is_refused_as_a_whole needs [Lengths],
);

const PRODUCER: Numbering = Numbering { producer: 7, window: LONG };

fn numbered(tp: &TopicPartition, number: u64) -> Append {
    numbered_by(PRODUCER, tp, number)
}

fn numbered_by(numbering: Numbering, tp: &TopicPartition, number: u64) -> Append {
    let fields = message(usize::try_from(number).unwrap_or(0));
    Append::new(tp.clone(), fields).with(Identity::Number(Arc::new(numbering), number))
}

/// Appends in one request, and expects no duplicates: what a producer repeats is its own.
async fn append_numbered(h: &Harness, batch: &[Append]) -> std::result::Result<Vec<MessageId>, Violation> {
    own(batch, append(h, batch).await?)
}

fn own(batch: &[Append], results: Vec<Appended>) -> std::result::Result<Vec<MessageId>, Violation> {
    for (result, item) in results.iter().zip(batch) {
        let place = (result.partition, result.is_duplicate);
        equal!(place, (item.topic_partition.partition, false), "the place of a numbered entry");
    }
    Ok(results.into_iter().map(|it| it.id).collect())
}

/// Appends batches one behind the other, with an appender if the log has one.
async fn append_all(
    h: &Harness,
    batches: Vec<Vec<Append>>,
) -> std::result::Result<Vec<MessageId>, Violation> {
    let all = follow(h, &batches).await?;
    let ids = all.into_iter().zip(&batches).map(|(results, batch)| own(batch, results));
    Ok(ids.collect::<std::result::Result<Vec<_>, _>>()?.concat())
}

async fn numbers_that_are_appended_again_get_the_first_ids(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [here, there] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let batch: Vec<_> = (0..40).map(|n| numbered(if n % 2 == 0 { &here } else { &there }, n)).collect();
    let first = append_numbered(&h, &batch).await?;
    equal!(append_numbered(&h, &batch).await?, first, "the batch as it was");
    let of_there = batch.iter().zip(&first).filter(|(item, _)| item.topic_partition == there);
    let (rest, of_rest): (Vec<_>, Vec<MessageId>) = of_there.map(|(item, id)| (item.clone(), *id)).unzip();
    let again = append_all(&h, vec![rest, vec![numbered(&there, 40)], vec![numbered(&here, 41)]]).await?;
    equal!(again[..20], of_rest[..], "what is left of it");
    ensure!(again[20] > first[39] && again[21] > first[38], "new numbers get new ids: {again:?}");
    equal!(append_all(&h, vec![vec![numbered(&there, 40)]]).await?, again[20..21], "one alone");
    equal!((stored(&h, &here).await?, stored(&h, &there).await?), (21, 21), "entries");
    Ok(())
}

async fn numbers_of_other_producers_and_partitions_do_not_count(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [here, there] = [0, 1].map(|n| TopicPartition::new(topic.name.clone(), n));
    let first = append_numbered(&h, &[numbered(&here, 1)]).await?;
    append_numbered(&h, &[numbered(&there, 1)]).await?;
    let other = Numbering { producer: 8, ..PRODUCER };
    let second = append_numbered(&h, &[numbered_by(other, &here, 1)]).await?;
    ensure!(second[0] > first[0], "the number of another producer");
    equal!((stored(&h, &here).await?, stored(&h, &there).await?), (2, 1), "entries");
    Ok(())
}

async fn numbers_count_for_a_window(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let brief = Numbering { window: BRIEF, ..PRODUCER };
    let first = append_numbered(&h, &[numbered_by(brief, &tp, 1)]).await?[0];
    let again = append_numbered(&h, &[numbered_by(brief, &tp, 1)]).await?[0];
    let late = h.now().await?.saturating_duration_since(first.timestamp()) >= brief.window;
    ensure!(late || again == first, "within the window: {again:?} instead of {first:?}");
    // A repetition may begin the window anew.
    let end = h.now().await?.saturating_add(brief.window + BRIEF);
    h.reaches(end).await?;
    let later = append_numbered(&h, &[numbered_by(brief, &tp, 1)]).await?[0];
    ensure!(later > again, "after the window: {later:?}");
    Ok(())
}

async fn entries_with_numbers_are_stored_whole_and_in_order(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let batches: Vec<Vec<_>> =
        (0..6).map(|batch| (0..200).map(|n| numbered(&tp, 200 * batch + n)).collect()).collect();
    let ids = append_all(&h, batches.clone()).await?;
    ensure!(ids.windows(2).all(|w| w[0] < w[1]), "1200 entries are stored in their order");
    equal!(append_all(&h, batches.clone()).await?, ids, "the ids of all of them");
    let mut owner = h.owner(&tp, "group").await?;
    let entries = owner.take(1_200).await?;
    equal!(crate::owner::ids(&entries), ids, "the entries of the log");
    for (entry, item) in entries.iter().zip(batches.iter().flatten()) {
        equal!(entry.fields, item.fields, "the fields of an entry");
    }
    Ok(())
}

async fn a_numbered_entry_that_is_refused_is_refused_alone(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut batch: Vec<_> = (0..3).map(|n| numbered(&tp, n)).collect();
    batch[0].fields.clear();
    let mut results = h.backend.log().append(&batch).await.into_iter();
    let mut next = || results.next().ok_or_else(|| Violation::new("too few results"));
    refused(next()?, ErrorKind::Encode, "an entry without fields")?;
    let ids = [next()??.id, next()??.id];
    equal!(append_numbered(&h, &batch[1..]).await?, ids, "the others again");
    let never = Numbering { window: Duration::ZERO, ..PRODUCER };
    let result = h.backend.log().append(&[numbered_by(never, &tp, 1)]).await.remove(0);
    refused(result, ErrorKind::InvalidConfig, "a window of zero")?;
    equal!(stored(&h, &tp).await?, 2, "entries");
    Ok(())
}

/// A backend may divide what stands together by its neighbours, and a repetition of a part would be divided in another way.
async fn a_batch_of_several_kinds_is_refused_as_a_whole(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let other = Numbering { producer: 8, ..PRODUCER };
    let plain = Append::new(tp.clone(), message(2));
    for batch in [
        vec![item(&tp, b"a", 1, LONG)?, plain.clone()],
        vec![numbered(&tp, 1), plain, numbered(&tp, 2)],
        vec![numbered(&tp, 1), numbered_by(other, &tp, 1)],
    ] {
        let results = h.backend.log().append(&batch).await;
        equal!(results.len(), batch.len(), "results of as many entries");
        for result in results {
            refused(result, ErrorKind::Unsupported, "an entry beside one of another kind")?;
        }
        if let Some(mut appender) = h.backend.log().appender(Durability::Stored) {
            appender.begin(Arc::new(batch));
            for result in appender.finish().await {
                refused(result, ErrorKind::Unsupported, "an entry beside one of another kind")?;
            }
        }
    }
    equal!(h.backend.log().lengths(&[tp]).await?, [0], "entries");
    Ok(())
}
