//! Notes: left by the step that settles a member, and by a batch for its parent.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::batches::{
    BATCH_HEADER, BatchEventKind, BatchMember, BatchParent, BatchSpec, Demand, MAX_ENDS, Noted,
};
use millstream_core::log::{Entry, Settled};
use millstream_core::results::{MessageResult, ResultRequest, StoredResult};
use millstream_core::schedule::RetryAction;
use millstream_core::{Envelope, ErrorKind, GroupName, MessageId, Reason, Settlement, wire};

use super::super::cancels::{self, removes};
use super::super::log::results;
use super::{BatchUnderTest, DEAD, DONE, all_of, expect_notes, member, noted, notes, role, spec, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};
use crate::owner::{dead, hold, retry};

suite!("batches":
    a_batch_leaves_a_note_for_its_parent,
    a_settlement_leaves_a_note_of_each_member,
    a_note_is_left_beside_a_result needs [Results],
    a_retry_leaves_no_note_until_its_end,
    a_stale_settlement_leaves_no_note,
    a_former_owner_leaves_no_note,
    a_parked_retry_that_is_cancelled_leaves_a_note needs [Cancels],
    a_parked_retry_that_is_killed_leaves_a_note needs [SettleRetries],
    notes_are_returned_oldest_first_until_they_are_forgotten,
);

fn acked(member: &BatchMember) -> Settlement {
    Settlement::AckWith(noted(member, MessageResult::Done))
}

fn given_up(member: &BatchMember, entry: &Entry) -> Settlement {
    let mut settlement = dead(Reason::Exhausted, 3, entry.receipt.id);
    if let Settlement::DeadLetter { result, .. } = &mut settlement {
        *result = Some(noted(member, MessageResult::dead(&Reason::Exhausted, 3, "gave up")));
    }
    settlement
}

async fn a_batch_leaves_a_note_for_its_parent(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let parents = [member(&tp, 3), member(&tp, 4), member(&tp, 5), member(&tp, 6)];
    let mut batches = Vec::new();
    // The first of them sends nothing: the note is left all the same.
    for (at, parent) in parents.iter().enumerate() {
        let kinds = if at == 0 { &[][..] } else { &[BatchEventKind::Complete] };
        let parent = BatchParent::Batch(parent.clone());
        let spec = BatchSpec { parent: Some(parent.clone()), ..spec(kinds) };
        let batch = BatchUnderTest::at(&h, tp.clone(), &spec).await?;
        let block = batch.reserve(2, &[]).await?;
        equal!(batch.ends(&[(0, DONE)]).await?, Some(false), "what the end of a member returns, open");
        batch.seal(&[all_of(block)]).await?;
        equal!(batch.state().await?.parent, Some(parent), "the parent");
        batches.push(batch);
    }
    expect_notes(&h, &tp, &[], "of batches that have not ended").await?;
    equal!(
        batches[0].ends(&[(0, DONE)]).await?,
        Some(false),
        "what the end of a member returns before the end"
    );
    equal!(batches[0].ends(&[(1, DEAD)]).await?, Some(true), "what the end of the last member returns");
    expect_notes(&h, &tp, &[(&parents[0], DEAD)], "of a batch that has ended").await?;
    equal!(batches[0].ends(&[(1, DEAD)]).await?, Some(true), "what a repetition returns");
    equal!(batches[1].ends(&[(1, DONE)]).await?, Some(true), "what the end of the last member returns");
    let expected = [(&parents[0], DEAD), (&parents[1], DONE)];
    expect_notes(&h, &tp, &expected, "of two batches").await?;
    equal!(batches[0].ends(&[(1, DONE)]).await?, Some(true), "what the end of a dead member returns");
    batches[2].role()?.close(&batches[2].id, true).await?;
    let expected = [(&parents[0], DEAD), (&parents[1], DONE), (&parents[0], DONE), (&parents[2], DEAD)];
    expect_notes(&h, &tp, &expected, "of a dead member that was replayed, and a batch that was closed")
        .await?;
    // An empty one.
    let parent = Some(BatchParent::Batch(parents[3].clone()));
    let spec = BatchSpec { parent, ..BatchSpec::default() };
    let batch = BatchUnderTest::new(&h, &spec).await?;
    batch.seal(&[]).await?;
    expect_notes(&h, &batch.id.place, &[(&parents[3], DONE)], "of an empty batch").await
}

async fn a_settlement_leaves_a_note_of_each_member(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 6).await?;
    let entries = owner.take(6).await?;
    let members: Vec<_> = (0..6).map(|at| member(&tp, 10 * at)).collect();
    let too_large = MessageResult::failed("reply_too_large", 1, "");
    let replied = MessageResult::Replied(Bytes::from_static(b"reply"));
    let settlements = [
        acked(&members[0]),
        Settlement::AckWith(noted(&members[1], replied)),
        Settlement::Ack,
        given_up(&members[3], &entries[3]),
        Settlement::AckWith(noted(&members[4], too_large)),
        Settlement::AckWith(noted(&members[5], MessageResult::failed("discarded", 1, ""))),
    ];
    let batch: Vec<_> = entries.iter().map(|entry| entry.receipt).zip(settlements).collect();
    let settled = h.backend.log().settle(&owner.lease, &batch).await?;
    equal!(settled, Settled { applied: 6, stale: 0 }, "settlements with members and without");
    let expected = [(0, DONE), (1, DONE), (3, DEAD), (4, DONE), (5, DEAD)];
    let expected = expected.map(|(at, end)| (&members[at], end));
    expect_notes(&h, &tp, &expected, "of a batch of settlements").await?;
    let other = h.partition().await?;
    expect_notes(&h, &other, &[], "of another partition").await?;
    let (_, group) = owner.lease.partition()?;
    if let Some(letters) = h.letters(&tp, group).await? {
        equal!(letters.len(), 1, "dead letters");
    }
    owner.reopen().await?;
    owner.nothing("everything is settled").await
}

async fn a_note_is_left_beside_a_result(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    h.append_n(&tp, 1).await?;
    let (member, number) = (member(&tp, 2), results::number());
    let demand = Demand { result: Some(ResultRequest::new(number, LONG)), ..Demand::from(member.clone()) };
    for (owner, text) in [(&mut one, "first"), (&mut other, "second")] {
        let entries = owner.take(1).await?;
        let stored = StoredResult::new(demand.clone(), results::replied(text));
        owner.settle_all(&entries, &Settlement::AckWith(Box::new(stored))).await?;
    }
    // The second result replaces nothing, and the note is left all the same: the batch counts.
    expect_notes(&h, &tp, &[(&member, DONE), (&member, DONE)], "of two groups").await?;
    results::expect(&h, &tp, number, Some(&results::replied("first")), "of a member").await
}

async fn a_retry_leaves_no_note_until_its_end(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let member = member(&tp, 1);
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &hold(2, Duration::ZERO)).await?;
    owner.settle_all(&entries, &retry(&entries[0], Duration::ZERO)).await?;
    owner.promote(1).await?;
    let again = owner.take_retries(1).await?;
    expect_notes(&h, &tp, &[], "of a message that is retried").await?;
    owner.settle_all(&again, &acked(&member)).await?;
    expect_notes(&h, &tp, &[(&member, DONE)], "of a retry that is done").await
}

async fn a_stale_settlement_leaves_no_note(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &acked(&member(&tp, 0))).await?;
    let late = member(&tp, 1);
    for settlement in [acked(&late), given_up(&late, &entries[0])] {
        let settled = owner.settle(entries[0].receipt, settlement).await?;
        equal!(settled, Settled { applied: 0, stale: 1 }, "of what is settled");
        expect_notes(&h, &tp, &[(&member(&tp, 0), DONE)], "of a stale settlement").await?;
    }
    Ok(())
}

async fn a_former_owner_leaves_no_note(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut former = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 1).await?;
    let entries = former.take(1).await?;
    let mut next = h.takeover(&former.lease).await?;
    let member = member(&tp, 1);
    for settlement in [acked(&member), given_up(&member, &entries[0])] {
        let settled = h.backend.log().settle(&former.lease, &[(entries[0].receipt, settlement)]).await;
        refused(settled, ErrorKind::Fenced, "a settlement of a former owner")?;
        expect_notes(&h, &tp, &[], "of a former owner").await?;
    }
    let again = next.take(1).await?;
    next.settle_all(&again, &given_up(&member, &again[0])).await?;
    expect_notes(&h, &tp, &[(&member, DEAD)], "of the owner").await
}

async fn a_parked_retry_that_is_cancelled_leaves_a_note(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (place, member) = (cancels::place(&tp)?, member(&tp, 1));
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &retry(&entries[0], LONG)).await?;
    let request = removes(Some(*noted(&member, cancels::cancelled())));
    let id = entries[0].receipt.id.to_string();
    for _ in 0..2 {
        cancels::role(&h)?.cancel(&place, &id, &request).await?;
        expect_notes(&h, &tp, &[(&member, DEAD)], "of a retry that was cancelled").await?;
    }
    Ok(())
}

async fn a_parked_retry_that_is_killed_leaves_a_note(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (any, mut other) = (member(&tp, 1), member(&tp, 2));
    other.group = Some(GroupName::new("other")?);
    let mut owner = h.owner(&tp, "group").await?;
    let mut origins = Vec::new();
    for member in [Some(&any), Some(&other), None] {
        let mut message = Envelope::new("x");
        if let Some(member) = member {
            message.headers.append(BATCH_HEADER, member.to_string());
        }
        origins.extend(h.append(&tp, [wire::encode(&message)]).await?);
        let entries = owner.take(1).await?;
        owner.settle_all(&entries, &retry(&entries[0], LONG)).await?;
    }
    let (schedule, group) = (h.backend.schedule(), GroupName::new("group")?);
    for killed in [true, false] {
        let settled = schedule.settle_retries(&tp, &group, &origins, RetryAction::Kill).await?;
        equal!(settled, [killed; 3], "retries that were killed");
        // The second one counts for another group alone.
        expect_notes(&h, &tp, &[(&any, DEAD)], "of retries that were killed").await?;
    }
    Ok(())
}

async fn notes_are_returned_oldest_first_until_they_are_forgotten(h: Harness) -> Verdict {
    const MANY: usize = MAX_ENDS + 5;
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, MANY).await?;
    let members: Vec<_> = (0..).take(MANY).map(|at| member(&tp, at)).collect();
    let entries = owner.take(MANY).await?;
    let batch: Vec<_> = entries.iter().map(|it| it.receipt).zip(members.iter().map(acked)).collect();
    for part in batch.chunks(250) {
        h.backend.log().settle(&owner.lease, part).await?;
    }
    let place = tp.clone().into();
    let numbers = async |limit| {
        let notes = notes(&h, &place, limit).await?;
        let number = |said: Option<Noted>| match said {
            Some(Noted::Ended(_, ended)) => Some(ended.number as usize),
            _ => None,
        };
        let found: Vec<_> = notes.into_iter().map(|note| (note.id, number(note.said))).collect();
        Ok::<Vec<(MessageId, Option<usize>)>, Violation>(found)
    };
    let all = numbers(MANY).await?;
    ensure!(all.len() == MAX_ENDS, "{} notes, {MAX_ENDS} are the most", all.len());
    ensure!(all.iter().enumerate().all(|(at, (_, number))| *number == Some(at)), "out of order: {all:?}");
    equal!(numbers(3).await?, all[..3], "the first three");
    let behind = role(&h)?.notes(&place, Some(all[2].0), 2).await?.into_iter().map(|note| note.id);
    equal!(behind.collect::<Vec<_>>(), [all[3].0, all[4].0], "the two behind them");
    let ids: Vec<_> = all.iter().map(|(id, _)| *id).collect();
    role(&h)?.forget(&place, &[ids[0], ids[2]]).await?;
    equal!(numbers(2).await?, [all[1], all[3]], "what is left in front");
    for _ in 0..2 {
        role(&h)?.forget(&place, &ids).await?;
        let left: Vec<_> = numbers(MANY).await?.into_iter().map(|(_, number)| number).collect();
        let expected: Vec<_> = (MAX_ENDS..MANY).map(Some).collect();
        equal!(left, expected, "what is left");
    }
    role(&h)?.forget(&place, &[]).await?;
    equal!(numbers(10).await?.len(), 5, "notes, with none forgotten");
    Ok(())
}
