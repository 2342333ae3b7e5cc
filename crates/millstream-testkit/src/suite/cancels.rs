//! Cancels: marks of messages that are to be handled no more.

use std::time::Duration;

use millstream_core::batches::BatchId;
use millstream_core::cancels::{CancelMark, CancelMarks, CancelRequest, Cancels, WorkPlace};
use millstream_core::log::ProgressRight;
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::schedule::RetryAction;
use millstream_core::{ErrorKind, GroupName, Limits, MessageId, TopicPartition, wire};
use tokio::time::Instant;

use super::log::results::{expect, number, stored};
use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, QUIET};
use crate::owner::{retry, retry_as};

suite!("cancels":
    what_nobody_has_read_has_a_mark_before_it_is_read needs [Cancels],
    an_owner_is_asked_and_answers_once needs [Cancels],
    a_former_owner_answers_nothing needs [Cancels],
    a_parked_retry_is_removed needs [Cancels, Results, SettleRetries],
    an_answer_and_a_new_mark_end_waits needs [Cancels],
    each_group_and_message_has_its_own_mark needs [Cancels],
    a_batch_is_cancelled_at_a_place needs [Cancels],
);

/// Returns the place of the group that the cases use.
pub(in crate::suite) fn place(tp: &TopicPartition) -> Result<WorkPlace, Violation> {
    Ok(WorkPlace::Group(tp.clone(), GroupName::new("group")?))
}

pub(in crate::suite) fn role(h: &Harness) -> Result<&dyn Cancels, Violation> {
    Ok(&**h.backend.cancels()?)
}

/// Returns the request of who has seen where it waits.
pub(in crate::suite) fn removes(result: Option<StoredResult>) -> CancelRequest {
    CancelRequest { removes: true, result, number: None }
}

/// Returns what became of a message that was cancelled.
pub(in crate::suite) fn cancelled() -> MessageResult {
    MessageResult::failed("cancelled", 1, "")
}

/// Returns id and mark of all that have one.
pub(in crate::suite) async fn all(
    h: &Harness,
    place: &WorkPlace,
) -> Result<Vec<(String, CancelMark)>, Violation> {
    let CancelMarks { marks, version, .. } =
        role(h)?.marks(place, 0, Duration::ZERO).await?.unwrap_or_default();
    ensure!(marks.is_empty() || version > 0, "version {version} of {marks:?}");
    Ok(marks.into_iter().map(|it| (it.id, it.mark)).collect())
}

async fn look(h: &Harness, place: &WorkPlace, id: MessageId) -> Result<Option<CancelMark>, Violation> {
    Ok(role(h)?.mark(place, &id.to_string(), Duration::ZERO).await?)
}

async fn what_nobody_has_read_has_a_mark_before_it_is_read(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, role) = (place(&tp)?, role(&h)?);
    let mut owner = h.owner(&tp, "group").await?;
    let ids = h.append_n(&tp, 3).await?;
    let read = owner.take(1).await?;
    h.backend.leases().release(&owner.lease).await?;
    equal!(look(&h, &place, ids[2]).await?, None, "the mark of what was not cancelled");
    let mark = role.cancel(&place, &ids[2].to_string(), &CancelRequest::default()).await?;
    equal!(mark, Some(CancelMark::Ahead), "of what was not read, without an owner");
    let mark = role.cancel(&place, &ids[2].to_string(), &CancelRequest::default()).await?;
    equal!(mark, Some(CancelMark::Ahead), "of the same, again");
    let mark = role.cancel(&place, &read[0].receipt.id.to_string(), &CancelRequest::default()).await?;
    equal!(mark, Some(CancelMark::Asked), "of what was read");
    // Read back to back: a page may have the second one too.
    equal!(look(&h, &place, ids[2]).await?, Some(CancelMark::Ahead), "the mark");
    let owner = h.owner(&tp, "group").await?;
    let mut expected = vec![(ids[0].to_string(), CancelMark::Asked), (ids[2].to_string(), CancelMark::Ahead)];
    let mut found = all(&h, &place).await?;
    expected.sort();
    found.sort();
    equal!(found, expected, "what the next owner reads");
    let right = ProgressRight::Owner(owner.lease.clone());
    let dropped = role.answer(&right, &ids[2].to_string(), CancelMark::Cancelled, None).await?;
    equal!(dropped, Some(CancelMark::Cancelled), "the answer of who has read it");
    equal!(look(&h, &place, ids[2]).await?, Some(CancelMark::Cancelled), "the mark behind that");
    role.share(&place).await?;
    h.backend.leases().release(&owner.lease).await?;
    let further = h.append_n(&tp, 1).await?[0].to_string();
    let mark = role.cancel(&place, &further, &CancelRequest::default()).await?;
    equal!(mark, Some(CancelMark::Asked), "of what was not read, where there are many readers");
    let nobody = WorkPlace::Group(tp.clone(), GroupName::new("nobody")?);
    let refusal = role.cancel(&nobody, &further, &CancelRequest::default()).await;
    refused(refusal, ErrorKind::GroupMissing, "a message of a group that does not exist")?;
    let mark = role.cancel(&place, "no id", &CancelRequest::default()).await;
    ensure!(mark.is_err(), "what is no id was cancelled: {mark:?}");
    Ok(())
}

async fn an_owner_is_asked_and_answers_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, role) = (place(&tp)?, role(&h)?);
    let mut owner = h.owner(&tp, "group").await?;
    let ids = h.append_n(&tp, 2).await?;
    let right = ProgressRight::Owner(owner.lease.clone());
    let (first, second) = (ids[0].to_string(), ids[1].to_string());
    let answered = role.answer(&right, &first, CancelMark::Cancelled, None).await?;
    equal!(answered, None, "an answer for what nobody has cancelled");
    equal!(look(&h, &place, ids[0]).await?, None, "the mark of that");
    equal!(
        role.cancel(&place, &first, &CancelRequest::default()).await?,
        Some(CancelMark::Asked),
        "with an owner"
    );
    equal!(
        role.cancel(&place, &second, &CancelRequest::default()).await?,
        Some(CancelMark::Asked),
        "with an owner"
    );
    let answered = role.answer(&right, &second, CancelMark::Ahead, None).await?;
    equal!(answered, Some(CancelMark::Ahead), "the second one is not read yet");
    owner.take(2).await?;
    let answered = role.answer(&right, &first, CancelMark::Ahead, None).await?;
    equal!(answered, Some(CancelMark::Asked), "ahead, and the group has read it");
    equal!(look(&h, &place, ids[0]).await?, Some(CancelMark::Asked), "behind a refused answer");
    for mark in [CancelMark::Stopped, CancelMark::Cancelled] {
        let answered = role.answer(&right, &first, mark, None).await?;
        equal!(answered, Some(CancelMark::Stopped), "the answer {mark:?}");
        equal!(look(&h, &place, ids[0]).await?, Some(CancelMark::Stopped), "behind {mark:?}");
    }
    equal!(
        role.cancel(&place, &first, &CancelRequest::default()).await?,
        Some(CancelMark::Stopped),
        "cancelled again"
    );
    let third = h.append_n(&tp, 1).await?[0].to_string();
    role.cancel(&place, &third, &CancelRequest::default()).await?;
    for id in [&first, &third] {
        role.forget(&place, id).await?;
    }
    let mut left = all(&h, &place).await?;
    left.sort();
    equal!(left, [(first, CancelMark::Stopped), (second, CancelMark::Ahead)], "what is left");
    equal!(look(&h, &place, ids[0]).await?, Some(CancelMark::Stopped), "what is answered stays");
    Ok(())
}

async fn a_former_owner_answers_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, role) = (place(&tp)?, role(&h)?);
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let id = h.append_n(&tp, 1).await?[0];
    owner.take(1).await?;
    role.cancel(&place, &id.to_string(), &CancelRequest::default()).await?;
    let next = h.takeover(&owner.lease).await?;
    let rights = [&owner, &next].map(|it| ProgressRight::Owner(it.lease.clone()));
    let late = role.answer(&rights[0], &id.to_string(), CancelMark::Cancelled, None).await;
    refused(late, ErrorKind::Fenced, "the answer of a former owner")?;
    equal!(look(&h, &place, id).await?, Some(CancelMark::Asked), "behind it");
    let answered = role.answer(&rights[1], &id.to_string(), CancelMark::Withdrawn, None).await?;
    equal!(answered, Some(CancelMark::Withdrawn), "the answer of the new owner");
    equal!(look(&h, &place, id).await?, Some(CancelMark::Withdrawn), "behind that");
    Ok(())
}

async fn a_parked_retry_is_removed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, role, number) = (place(&tp)?, role(&h)?, number());
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    for entry in &entries {
        owner.settle(entry.receipt, retry(entry, Duration::ZERO)).await?;
    }
    let id = entries[0].receipt.id.to_string();
    let result = stored(number, LONG, cancelled());
    equal!(
        role.cancel(&place, &id, &removes(Some(*result))).await?,
        Some(CancelMark::Cancelled),
        "of a parked retry"
    );
    expect(&h, &tp, number, Some(&cancelled()), "of a parked retry").await?;
    owner.promote(1).await?;
    let left = owner.take_retries(1).await?;
    let origin = wire::decode(left[0].receipt, &left[0].fields, &Limits::NONE).origin;
    equal!(origin, entries[1].receipt.id, "the retry that is left");
    owner.nothing("the other one was cancelled").await?;
    equal!(
        role.cancel(&place, &id, &CancelRequest::default()).await?,
        Some(CancelMark::Cancelled),
        "cancelled again"
    );
    // One that was asked for, and is parked by the time of the second call.
    let late = entries[1].receipt.id.to_string();
    equal!(
        role.cancel(&place, &late, &CancelRequest::default()).await?,
        Some(CancelMark::Asked),
        "of one that was handed out"
    );
    owner.settle(left[0].receipt, retry_as(3, origin, LONG)).await?;
    let mark = role.cancel(&place, &late, &CancelRequest::default()).await?;
    equal!(mark, Some(CancelMark::Asked), "parked, and not seen there");
    equal!(role.cancel(&place, &late, &removes(None)).await?, Some(CancelMark::Cancelled), "seen there");
    let group = GroupName::new("group")?;
    let parked = h.backend.schedule().settle_retries(&tp, &group, &[origin], RetryAction::Release).await?;
    equal!(parked, [false], "whether it is parked");
    Ok(())
}

async fn an_answer_and_a_new_mark_end_waits(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, role) = (place(&tp)?, role(&h)?);
    let owner = h.owner(&tp, "group").await?;
    let ids: Vec<_> = h.append_n(&tp, 2).await?.iter().map(ToString::to_string).collect();
    equal!(role.marks(&place, 0, Duration::ZERO).await?, None, "the marks, without any");
    role.cancel(&place, &ids[0], &CancelRequest::default()).await?;
    let before = Instant::now();
    equal!(role.mark(&place, &ids[0], QUIET).await?, Some(CancelMark::Asked), "while nobody answers");
    ensure!(before.elapsed() >= QUIET, "the wait ended after {:?}", before.elapsed());
    let known = role.marks(&place, 0, LONG).await?.unwrap_or_default();
    equal!(known.marks.len(), 1, "the marks, which are there");
    equal!(role.marks(&place, known.version, QUIET).await?, None, "without a further one");
    let answered = role.mark(&place, &ids[0], h.deadline());
    let changed = role.marks(&place, known.version, h.deadline());
    let change = async {
        tokio::time::sleep(QUIET).await;
        let right = ProgressRight::Owner(owner.lease.clone());
        let answered = role.answer(&right, &ids[0], CancelMark::Ahead, None).await?;
        equal!(answered, Some(CancelMark::Ahead), "an owner answers");
        tokio::time::sleep(QUIET).await;
        role.cancel(&place, &ids[1], &CancelRequest::default()).await?;
        Ok::<_, Violation>(Instant::now())
    };
    let begun = Instant::now();
    let (answered, changed, at) = tokio::join!(answered, changed, change);
    let took = at?.duration_since(begun);
    equal!(answered?, Some(CancelMark::Ahead), "what the wait returns");
    let version = changed?.map(|marks| (marks.version != known.version, marks.marks.len()));
    equal!(version, Some((true, 2)), "the marks after {took:?}");
    Ok(())
}

async fn each_group_and_message_has_its_own_mark(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let role = role(&h)?;
    let _owners = (h.owner(&tp, "group").await?, h.owner(&tp, "other").await?);
    let ids = h.append_n(&tp, 2).await?;
    let places = [place(&tp)?, WorkPlace::Group(tp.clone(), GroupName::new("other")?)];
    role.cancel(&places[0], &ids[0].to_string(), &CancelRequest::default()).await?;
    for (place, id, expected) in [
        (&places[0], ids[0], Some(CancelMark::Asked)),
        (&places[0], ids[1], None),
        (&places[1], ids[0], None),
    ] {
        equal!(look(&h, place, id).await?, expected, "the mark of {id} at {place}");
    }
    equal!(all(&h, &places[1]).await?, [], "the marks of another group");
    Ok(())
}

async fn a_batch_is_cancelled_at_a_place(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, role) = (place(&tp)?, role(&h)?);
    let other = WorkPlace::Group(tp.clone(), GroupName::new("other")?);
    let batches = [1, 2].map(|number| BatchId::new(tp.clone(), number));
    let version = role.marks(&place, 0, Duration::ZERO).await?.map_or(0, |marks| marks.version);
    let waits = role.marks(&place, version, LONG);
    let cancels = async {
        tokio::task::yield_now().await;
        role.cancel_batch(&place, &batches[0]).await
    };
    let (waited, cancelled) = tokio::join!(waits, cancels);
    cancelled?;
    equal!(waited?.map(|marks| marks.batches), Some(vec![batches[0].clone()]), "what ends a wait");
    for _ in 0..2 {
        role.cancel_batch(&place, &batches[1]).await?;
        let marks = role.marks(&place, 0, Duration::ZERO).await?.unwrap_or_default();
        let mut found = marks.batches;
        found.sort();
        equal!(found, batches, "the batches that are cancelled");
        equal!(marks.marks, [], "the marks of messages");
    }
    let elsewhere = role.marks(&other, 0, Duration::ZERO).await?.unwrap_or_default();
    equal!(elsewhere.batches, [], "for another group");
    Ok(())
}
