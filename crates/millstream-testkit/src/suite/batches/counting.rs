//! Counting: each member counts once, and what is done stays done.

use millstream_core::batches::{BatchEventKind, MemberState};
use millstream_core::{Place, TopicPartition};

use super::{BatchUnderTest, DEAD, DONE, all_of, confirmed, spec, suite};
use crate::case::{Verdict, ensure, equal};
use crate::harness::Harness;

suite!("batches":
    each_member_counts_once_and_what_is_done_stays_done,
    a_dead_member_can_still_be_done,
    what_was_left_out_is_a_member_if_it_ends,
    a_batch_that_is_closed_counts_what_is_missing_as_dead,
    an_open_batch_is_sealed_when_it_is_closed,
    a_batch_that_others_have_closed_succeeds_with_all_that_was_left_out,
    numbers_are_found_by_their_state_page_by_page,
    batches_count_each_for_itself,
);

async fn each_member_counts_once_and_what_is_done_stays_done(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let block = batch.reserve(4, &[]).await?;
    batch.ends(&[(0, DONE), (0, DONE), (1, DEAD), (1, DEAD), (0, DEAD)]).await?;
    batch.expect([4, 1, 1, 0], "before the seal").await?;
    batch.seal(&[all_of(block)]).await?;
    for _ in 0..2 {
        let unknown = [(0, DEAD), (1, DEAD), (2, DONE), (0, DONE), (4, DONE), (9_999_999, DEAD)];
        equal!(batch.ends(&unknown).await?, Some(false), "what ends of members return, without a parent");
        batch.expect([4, 2, 1, 0], "behind a repetition").await?;
    }
    equal!(batch.ends(&[]).await?, Some(false), "what no ends return");
    let state = batch.state().await?;
    equal!((state.missing(), state.ended, state.succeeded), (1, None, false), "with one that is missing");
    Ok(())
}

async fn a_dead_member_can_still_be_done(h: Harness) -> Verdict {
    let batch = BatchUnderTest::sealed(&h, &spec(&[]), 3).await?;
    batch.ends(&[(0, DEAD), (1, DONE), (2, DEAD)]).await?;
    batch.expect([3, 1, 2, 0], "with two dead").await?;
    let ended = batch.state().await?;
    ensure!(ended.ended.is_some() && !ended.succeeded, "all have ended, two of them dead: {ended:?}");
    batch.ends(&[(0, DONE)]).await?;
    batch.expect([3, 2, 1, 0], "with one that was replayed").await?;
    ensure!(!batch.state().await?.succeeded, "one is still dead");
    batch.ends(&[(2, DONE), (0, DEAD)]).await?;
    batch.expect([3, 3, 0, 0], "with all of them replayed").await?;
    let state = batch.state().await?;
    equal!((state.ended, state.succeeded), (ended.ended, true), "when it ended, and whether all are done");
    Ok(())
}

async fn what_was_left_out_is_a_member_if_it_ends(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let (known, _) = (batch.reserve(5, &[]).await?, batch.reserve(2, &[]).await?);
    batch.reserve(1, &[confirmed(known, 4, &[0, 1, 2])]).await?;
    batch.ends(&[(0, DONE), (1, DEAD)]).await?;
    batch.expect([6, 1, 1, 2], "before the seal").await?;
    batch.seal(&[]).await?;
    batch.expect([3, 1, 1, 5], "behind the seal").await?;
    batch.ends(&[(5, DONE), (6, DEAD), (6, DONE), (4, DONE)]).await?;
    batch.expect([6, 4, 1, 2], "with three that were left out, and ended").await?;
    equal!(batch.numbers(MemberState::LeftOut, 10).await?, [2, 7], "what was left out");
    equal!(batch.numbers(MemberState::Missing, 10).await?, [3], "what is missing");
    Ok(())
}

async fn a_batch_that_is_closed_counts_what_is_missing_as_dead(h: Harness) -> Verdict {
    let kinds = [BatchEventKind::Death, BatchEventKind::Complete, BatchEventKind::Success];
    let batch = BatchUnderTest::sealed(&h, &spec(&kinds), 4).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    batch.ends(&[(1, DONE)]).await?;
    owner.nothing("some are missing").await?;
    let state = batch.role()?.close(&batch.id, true).await?;
    equal!(batch.state().await?, state, "the state, read again");
    ensure!(state.ended.is_some() && !state.succeeded, "a batch that was closed: {state:?}");
    batch.expect([4, 1, 3, 0], "of a batch that was closed").await?;
    let sent: Vec<_> = owner.take(2).await?.into_iter().map(|entry| entry.fields).collect();
    equal!(sent, kinds[..2].iter().map(|kind| batch.message(*kind, [4, 1, 3])).collect::<Vec<_>>(), "sent");
    equal!(batch.role()?.close(&batch.id, true).await?, state, "closed again");
    owner.nothing("it was closed before").await?;
    // What was counted as lost comes all the same.
    batch.ends(&[(0, DONE), (2, DONE), (3, DONE)]).await?;
    let sent = owner.take(1).await?.remove(0).fields;
    equal!(sent, batch.message(BatchEventKind::Success, [4, 4, 0]), "what is sent at last");
    Ok(())
}

async fn an_open_batch_is_sealed_when_it_is_closed(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[BatchEventKind::Complete])).await?;
    let (known, _) = (batch.reserve(3, &[]).await?, batch.reserve(3, &[]).await?);
    batch.reserve(1, &[all_of(known)]).await?;
    batch.ends(&[(0, DONE), (4, DONE)]).await?;
    let state = batch.role()?.close(&batch.id, true).await?;
    ensure!(state.sealed.is_some() && state.ended.is_some(), "a batch that was closed: {state:?}");
    batch.expect([4, 2, 2, 3], "of a batch that was closed").await?;
    equal!(batch.numbers(MemberState::Dead, 10).await?, [1, 2], "what is dead");
    let mut owner = h.owner(&batch.id.place, "group").await?;
    let sent = owner.take(1).await?.remove(0).fields;
    equal!(sent, batch.message(BatchEventKind::Complete, [4, 2, 2]), "what is sent");
    owner.nothing("there is no other event").await
}

async fn a_batch_that_others_have_closed_succeeds_with_all_that_was_left_out(h: Harness) -> Verdict {
    let kinds = [BatchEventKind::Complete, BatchEventKind::Success];
    let batch = BatchUnderTest::new(&h, &spec(&kinds)).await?;
    let (known, _) = (batch.reserve(2, &[]).await?, batch.reserve(2, &[]).await?);
    batch.reserve(1, &[all_of(known)]).await?;
    batch.ends(&[(0, DONE)]).await?;
    let state = batch.role()?.close(&batch.id, false).await?;
    equal!((state.missing(), state.left_out), (1, 3), "members that are missing, and what was left out");
    let mut owner = h.owner(&batch.id.place, "group").await?;
    owner.nothing("a member is missing").await?;
    batch.ends(&[(1, DONE)]).await?;
    let sent = owner.take(1).await?.remove(0).fields;
    equal!(sent, batch.message(BatchEventKind::Complete, [2, 2, 0]), "what is sent");
    batch.ends(&[(2, DONE), (3, DONE)]).await?;
    owner.nothing("one that was left out is not done").await?;
    batch.ends(&[(4, DONE)]).await?;
    let sent = owner.take(1).await?.remove(0).fields;
    equal!(sent, batch.message(BatchEventKind::Success, [5, 5, 0]), "what is sent at last");
    Ok(())
}

async fn numbers_are_found_by_their_state_page_by_page(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let block = batch.reserve(4_000, &[]).await?;
    // One of four is done, one dead, one left out and one missing; but for the first thousand, which are missing.
    let of = |rest: u32| (1_000..4_000).filter(move |number| number % 4 == rest);
    for (rest, end) in [(0, DONE), (1, DEAD)] {
        batch.ends(&of(rest).map(|number| (number, end)).collect::<Vec<_>>()).await?;
    }
    batch.seal(&[confirmed(block, block.to, &of(2).collect::<Vec<_>>())]).await?;
    let states = [MemberState::Done, MemberState::Dead, MemberState::LeftOut, MemberState::Missing];
    for (rest, state) in (0..4).zip(states) {
        let mut expected: Vec<_> = of(rest).collect();
        if state == MemberState::Missing {
            expected.splice(0..0, 0..1_000);
        }
        for limit in [7, 1_000, 10_000] {
            equal!(batch.numbers(state, limit).await?, expected, "{state:?}, {limit} a page");
        }
        let (page, _) = batch.role()?.numbers(&batch.id, state, 2_001, 1).await?;
        equal!(page, [2_000 + if rest == 0 { 4 } else { rest }], "{state:?} from 2,001 on");
        let (page, next) = batch.role()?.numbers(&batch.id, state, 4_000, 10).await?;
        equal!((page, next), (vec![], None), "{state:?} behind the last");
    }
    Ok(())
}

async fn batches_count_each_for_itself(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let tp = |partition| TopicPartition::new(topic.name.clone(), partition);
    let mut batches = Vec::new();
    for partition in [0, 0, 1] {
        batches.push(BatchUnderTest::at(&h, tp(partition), &spec(&[BatchEventKind::Complete])).await?);
    }
    for batch in &batches {
        let block = batch.reserve(2, &[]).await?;
        batch.seal(&[all_of(block)]).await?;
    }
    batches[0].ends(&[(0, DONE)]).await?;
    batches[1].ends(&[(0, DEAD), (1, DEAD)]).await?;
    batches[0].expect([2, 1, 0, 0], "of one").await?;
    batches[1].expect([2, 0, 2, 0], "of another one at the same place").await?;
    batches[2].expect([2, 0, 0, 0], "of one at another place").await?;
    let mut owner = h.owner(&tp(0), "group").await?;
    let sent = owner.take(1).await?.remove(0).fields;
    equal!(sent, batches[1].message(BatchEventKind::Complete, [2, 0, 2]), "what is sent");
    owner.nothing("the others have not ended").await?;
    h.owner(&tp(1), "group").await?.nothing("nothing has ended there").await?;
    equal!(super::notes(&h, &Place::from(tp(0)), 10).await?, [], "notes of batches without a parent");
    Ok(())
}
