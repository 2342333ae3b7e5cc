//! Results of members that a batch keeps, and the note that it leaves for whoever waits for it.

use std::time::Duration;

use millstream_core::batches::{
    BATCH_HEADER, BatchId, BatchMember, BatchParent, BatchSpec, EndedMember, MAX_ENDS, MemberEnd, Noted,
};
use millstream_core::cancels::WorkPlace;
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::schedule::RetryAction;
use millstream_core::steps::WorkId;
use millstream_core::{Envelope, GroupName, MessageId, Place, Reason, Settlement, TopicPartition, wire};

use super::super::log::results::replied;
use super::{BatchUnderTest, DEAD, DONE, all_of, member, notes, number, role, spec, suite};
use crate::case::{Verdict, Violation, equal};
use crate::harness::{Harness, LONG};
use crate::owner::{dead, retry};

suite!("batches":
    results_are_kept_of_members_that_have_ended,
    the_result_of_what_is_done_stays_and_that_of_a_death_does_not,
    results_leave_with_their_batch,
    a_note_has_the_result_that_the_batch_keeps,
    a_retry_that_is_killed_leaves_a_note_without_a_result needs [SettleRetries],
    a_batch_leaves_a_note_for_who_waits_for_it,
    a_batch_is_complete_though_it_has_not_succeeded,
);

fn ended(number: u32, end: MemberEnd, result: Option<MessageResult>) -> EndedMember {
    EndedMember { result, ..EndedMember::new(number, end) }
}

fn failed(error: &str) -> MessageResult {
    MessageResult::failed("exhausted", 3, error)
}

async fn results(batch: &BatchUnderTest, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>, Violation> {
    Ok(batch.role()?.results(&batch.id, numbers).await?)
}

/// Returns what the notes of a place say.
async fn said(h: &Harness, place: &(impl Clone + Into<Place>)) -> Result<Vec<Option<Noted>>, Violation> {
    Ok(notes(h, &place.clone().into(), MAX_ENDS).await?.into_iter().map(|note| note.said).collect())
}

async fn results_are_kept_of_members_that_have_ended(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let block = batch.reserve(1_200, &[]).await?;
    let binary = MessageResult::Replied(b"\0\xff\r\n"[..].into());
    let ends = [
        ended(0, DONE, Some(replied("zero"))),
        ended(1, DEAD, Some(failed("one\nof two lines"))),
        ended(2, DONE, None),
        ended(4, DONE, Some(MessageResult::Done)),
        ended(1_199, DONE, Some(binary.clone())),
        // It was never reserved.
        ended(1_200, DONE, Some(replied("nobody"))),
    ];
    batch.role()?.end_members(&batch.id, &ends).await?;
    let asked = [1_199, 4, 3, 2, 1, 0, 1_200, 9_999_999, 0];
    let zero = Some(replied("zero"));
    let expected = [
        Some(binary),
        Some(MessageResult::Done),
        None,
        None,
        Some(failed("one\nof two lines")),
        zero.clone(),
        None,
        None,
        zero,
    ];
    equal!(results(&batch, &asked).await?, expected, "the results of an open batch");
    batch.seal(&[all_of(block)]).await?;
    equal!(results(&batch, &asked).await?, expected, "the results behind the seal");
    equal!(results(&batch, &[]).await?, [], "the results of nobody");
    // As many as are asked for at once.
    let ends: Vec<_> = (100..1_100).map(|at| ended(at, DONE, Some(replied(&at.to_string())))).collect();
    batch.role()?.end_members(&batch.id, &ends).await?;
    let found = results(&batch, &(100..1_100).collect::<Vec<_>>()).await?;
    equal!(found, ends.iter().map(|it| it.result.clone()).collect::<Vec<_>>(), "a thousand results");
    let other = BatchUnderTest::at(&h, batch.id.place.clone(), &spec(&[])).await?;
    other.reserve(3, &[]).await?;
    equal!(results(&other, &[0, 1]).await?, [None, None], "the results of another batch");
    let unknown = BatchId::new(batch.id.place.clone(), number());
    equal!(role(&h)?.results(&unknown, &[0, 1]).await?, [None, None], "the results of no batch");
    Ok(())
}

async fn the_result_of_what_is_done_stays_and_that_of_a_death_does_not(h: Harness) -> Verdict {
    let batch = BatchUnderTest::sealed(&h, &spec(&[]), 3).await?;
    let ends = [ended(0, DONE, Some(replied("first"))), ended(1, DEAD, Some(failed("gave up")))];
    batch.role()?.end_members(&batch.id, &ends).await?;
    let before = [Some(replied("first")), Some(failed("gave up")), None];
    equal!(results(&batch, &[0, 1, 2]).await?, before, "the results");
    batch.role()?.end_members(&batch.id, &ends).await?;
    equal!(results(&batch, &[0, 1, 2]).await?, before, "the results behind a repetition");
    let later = [
        ended(0, DONE, Some(replied("second"))),
        ended(0, DEAD, Some(failed("late"))),
        ended(1, DONE, Some(replied("replayed"))),
        ended(2, DEAD, None),
    ];
    batch.role()?.end_members(&batch.id, &later).await?;
    let expected = [Some(replied("first")), Some(replied("replayed")), None];
    equal!(results(&batch, &[0, 1, 2]).await?, expected, "the results of what is done");
    batch.role()?.end_members(&batch.id, &[ended(1, DEAD, Some(failed("again")))]).await?;
    equal!(results(&batch, &[1]).await?, [Some(replied("replayed"))], "the result of what was replayed");
    batch.expect([3, 2, 1, 0], "with results").await
}

async fn results_leave_with_their_batch(h: Harness) -> Verdict {
    // Long enough for a look, also on a machine whose cores are busy.
    let brief = BatchSpec { keep: Duration::from_millis(300), ..spec(&[]) };
    let batch = BatchUnderTest::sealed(&h, &brief, 1).await?;
    batch.role()?.end_members(&batch.id, &[ended(0, DONE, Some(replied("kept")))]).await?;
    equal!(results(&batch, &[0]).await?, [Some(replied("kept"))], "the result of a batch that has ended");
    let mut deadline = h.wait_for("a batch to leave");
    while batch.role()?.state(&batch.id).await?.is_some() {
        deadline.pause().await?;
    }
    equal!(results(&batch, &[0]).await?, [None], "the result of a batch that is gone");
    batch.role()?.create(&batch.id, &spec(&[])).await?;
    batch.reserve(1, &[]).await?;
    equal!(results(&batch, &[0]).await?, [None], "the result of a batch that is created again");
    Ok(())
}

/// Returns a place in a batch that keeps results, and need not exist.
fn keeping(tp: &TopicPartition, at: u32) -> BatchMember {
    BatchMember { keeps_result: true, ..member(tp, at) }
}

async fn a_note_has_the_result_that_the_batch_keeps(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    let ends = |it: &BatchMember, end| Box::new(StoredResult::new(it.clone(), end));
    let mut given_up = dead(Reason::Exhausted, 3, entries[1].receipt.id);
    if let Settlement::DeadLetter { result, .. } = &mut given_up {
        *result = Some(ends(&keeping(&tp, 1), failed("gave up")));
    }
    let settlements = [
        Settlement::AckWith(ends(&keeping(&tp, 0), replied("kept"))),
        given_up,
        Settlement::AckWith(ends(&member(&tp, 2), replied("not kept"))),
        Settlement::AckWith(ends(&keeping(&tp, 3), MessageResult::Done)),
    ];
    for (entry, settlement) in entries.iter().zip(settlements) {
        owner.settle_all(std::slice::from_ref(entry), &settlement).await?;
    }
    let of = [
        ended(0, DONE, Some(replied("kept"))),
        ended(1, DEAD, Some(failed("gave up"))),
        ended(2, DONE, None),
        ended(3, DONE, Some(MessageResult::Done)),
    ];
    let batch = member(&tp, 0).batch;
    let expected: Vec<_> = of.into_iter().map(|it| Some(Noted::Ended(batch.clone(), it))).collect();
    equal!(said(&h, &tp).await?, expected, "the notes");
    Ok(())
}

async fn a_retry_that_is_killed_leaves_a_note_without_a_result(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let group = GroupName::new("group")?;
    let of_group = BatchMember { group: Some(group.clone()), ..keeping(&tp, 1) };
    let of_other = BatchMember { group: Some(GroupName::new("other")?), ..keeping(&tp, 2) };
    let mut owner = h.owner(&tp, "group").await?;
    let mut origins = Vec::new();
    for member in [keeping(&tp, 0), of_group, of_other] {
        let mut message = Envelope::new("x");
        message.headers.append(BATCH_HEADER, member.to_string());
        origins.extend(h.append(&tp, [wire::encode(&message)]).await?);
        let entries = owner.take(1).await?;
        owner.settle_all(&entries, &retry(&entries[0], LONG)).await?;
    }
    h.backend.schedule().settle_retries(&tp, &group, &origins, RetryAction::Kill).await?;
    let batch = member(&tp, 0).batch;
    let expected = [0, 1].map(|at| Some(Noted::Ended(batch.clone(), EndedMember::new(at, DEAD))));
    equal!(said(&h, &tp).await?, expected, "the notes of members that were killed");
    Ok(())
}

/// Returns those that wait for a batch: a message, and a task.
fn waiting(tp: &TopicPartition) -> Result<[(WorkId, String); 2], Violation> {
    let message = WorkId::new(WorkPlace::Group(tp.clone(), GroupName::new("group")?), MessageId::new(7, 1));
    let shard = millstream_core::Shard::new("mails".parse()?, 3);
    // The id of a task may have any characters.
    let task = WorkId::new(WorkPlace::Shard(shard), "a b / 7");
    Ok([(message, "all are done".to_owned()), (task, "step 1".to_owned())])
}

async fn a_batch_leaves_a_note_for_who_waits_for_it(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let waiting = waiting(&tp)?;
    let mut batches = Vec::new();
    for (id, name) in &waiting {
        let parent = BatchParent::Step(id.clone(), name.clone());
        let spec = BatchSpec { parent: Some(parent.clone()), ..BatchSpec::default() };
        let batch = BatchUnderTest::at(&h, tp.clone(), &spec).await?;
        let block = batch.reserve(2, &[]).await?;
        batch.seal(&[all_of(block)]).await?;
        equal!(batch.state().await?.parent, Some(parent), "who waits for it");
        equal!(batch.ends(&[(0, DONE)]).await?, Some(false), "what the end of a member returns");
        batches.push(batch);
    }
    equal!(said(&h, &tp).await?, [], "the notes of batches that have not ended");
    equal!(batches[0].ends(&[(1, DEAD)]).await?, Some(true), "what the end of the last member returns");
    let complete = waiting.map(|(id, name)| Some(Noted::Complete(id, name)));
    equal!(said(&h, &tp).await?, complete[..1], "the notes of a batch that is complete");
    equal!(batches[0].ends(&[(1, DEAD)]).await?, Some(true), "what a repetition returns");
    equal!(said(&h, &tp).await?, complete[..1], "the notes behind a repetition");
    equal!(batches[1].ends(&[(1, DONE)]).await?, Some(true), "what the end of the last member returns");
    equal!(said(&h, &tp).await?, complete, "the notes of two batches");
    let found = notes(&h, &tp.clone().into(), MAX_ENDS).await?;
    role(&h)?.forget(&tp.clone().into(), &[found[0].id]).await?;
    equal!(said(&h, &tp).await?, complete[1..], "the notes behind one that is forgotten");
    // An empty one.
    let (id, name) = waiting_of(&complete[1])?;
    let spec = BatchSpec { parent: Some(BatchParent::Step(id, name)), ..BatchSpec::default() };
    let empty = BatchUnderTest::new(&h, &spec).await?;
    empty.seal(&[]).await?;
    equal!(said(&h, &empty.id.place).await?, complete[1..], "the notes of an empty batch");
    Ok(())
}

fn waiting_of(said: &Option<Noted>) -> Result<(WorkId, String), Violation> {
    match said {
        Some(Noted::Complete(id, name)) => Ok((id.clone(), name.clone())),
        other => Err(Violation::new(format!("nobody waits: {other:?}"))),
    }
}

/// One that somebody else has closed may have members that nobody knows: it is complete all the same.
async fn a_batch_is_complete_though_it_has_not_succeeded(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let [(id, name), _] = waiting(&tp)?;
    let parent = Some(BatchParent::Step(id.clone(), name.clone()));
    let batch = BatchUnderTest::at(&h, tp.clone(), &BatchSpec { parent, ..BatchSpec::default() }).await?;
    let (known, _) = (batch.reserve(1, &[]).await?, batch.reserve(2, &[]).await?);
    batch.reserve(0, &[all_of(known)]).await?;
    batch.role()?.close(&batch.id, false).await?;
    equal!(said(&h, &tp).await?, [], "the notes of a batch with a member that is missing");
    equal!(batch.ends(&[(0, DONE)]).await?, Some(true), "what the end of the last member returns");
    let state = batch.state().await?;
    equal!((state.ended.is_some(), state.succeeded), (true, false), "whether it has ended and succeeded");
    equal!(said(&h, &tp).await?, [Some(Noted::Complete(id, name))], "the notes");
    Ok(())
}
