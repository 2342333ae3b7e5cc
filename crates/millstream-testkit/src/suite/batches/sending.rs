//! Sending: each event once, behind the seal, with the counts of that moment.

use millstream_core::batches::{BatchEventKind, BatchSpec};
use millstream_core::wire::Fields;

use super::{BatchUnderTest, DEAD, DONE, all_of, confirmed, spec, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, QUIET, foreign};
use crate::owner::Owner;

suite!("batches":
    nothing_is_sent_before_the_seal,
    each_event_is_sent_once_with_its_counts,
    progress_is_sent_in_steps_and_what_is_overtaken_is_not,
    an_empty_batch_succeeds_at_once,
    what_is_done_before_the_seal_counts_at_the_seal,
    events_without_a_message_send_none,
    a_message_is_sent_as_it_was_given,
    a_reader_that_waits_gets_the_message_of_a_batch,
);

const EVENTS: [BatchEventKind; 3] =
    [BatchEventKind::Death, BatchEventKind::Complete, BatchEventKind::Success];

/// Expects these messages, and no other.
async fn expect(owner: &mut Owner, expected: Vec<Fields>, when: &str) -> Verdict {
    let sent: Vec<_> = owner.take(expected.len()).await?.into_iter().map(|entry| entry.fields).collect();
    equal!(sent, expected, "what is sent {when}");
    owner.nothing(when).await
}

async fn nothing_is_sent_before_the_seal(h: Harness) -> Verdict {
    let kinds = [BatchEventKind::Progress(10), EVENTS[0], EVENTS[1], EVENTS[2]];
    let batch = BatchUnderTest::new(&h, &spec(&kinds)).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    let block = batch.reserve(2, &[]).await?;
    batch.ends(&[(0, DONE), (1, DEAD)]).await?;
    owner.nothing("all have ended, of a batch that is open").await?;
    batch.ends(&[(1, DONE)]).await?;
    owner.nothing("all are done, of a batch that is open").await?;
    let state = batch.state().await?;
    equal!((state.ended, state.succeeded), (None, false), "of a batch that is open");
    // Further members came before the seal.
    let more = batch.reserve(1, &[all_of(block)]).await?;
    batch.seal(&[all_of(more)]).await?;
    expect(&mut owner, vec![batch.message(BatchEventKind::Progress(60), [3, 2, 0])], "at the seal").await
}

async fn each_event_is_sent_once_with_its_counts(h: Harness) -> Verdict {
    let batch = BatchUnderTest::sealed(&h, &spec(&EVENTS), 4).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    owner.nothing("nothing has ended").await?;
    batch.ends(&[(0, DONE)]).await?;
    owner.nothing("one is done").await?;
    batch.ends(&[(1, DEAD)]).await?;
    expect(&mut owner, vec![batch.message(EVENTS[0], [4, 1, 1])], "when the first one dies").await?;
    batch.ends(&[(2, DEAD), (1, DEAD)]).await?;
    owner.nothing("another one died").await?;
    batch.ends(&[(3, DONE)]).await?;
    expect(&mut owner, vec![batch.message(EVENTS[1], [4, 2, 2])], "when all have ended").await?;
    batch.ends(&[(3, DONE), (2, DEAD)]).await?;
    batch.ends(&[(1, DONE)]).await?;
    owner.nothing("all had ended before").await?;
    batch.ends(&[(2, DONE)]).await?;
    expect(&mut owner, vec![batch.message(EVENTS[2], [4, 4, 0])], "when all are done").await?;
    batch.ends(&[(2, DONE), (0, DEAD)]).await?;
    batch.seal(&[]).await?;
    batch.role()?.close(&batch.id, true).await?;
    owner.nothing("all were sent").await?;
    // All at once, in their order.
    let at_once = BatchUnderTest::at(&h, batch.id.place.clone(), &spec(&EVENTS)).await?;
    let block = at_once.reserve(2, &[]).await?;
    at_once.ends(&[(0, DEAD), (1, DONE)]).await?;
    at_once.seal(&[all_of(block)]).await?;
    let sent = EVENTS[..2].iter().map(|kind| at_once.message(*kind, [2, 1, 1])).collect();
    expect(&mut owner, sent, "of another batch").await
}

async fn progress_is_sent_in_steps_and_what_is_overtaken_is_not(h: Harness) -> Verdict {
    let kinds = [BatchEventKind::Complete, BatchEventKind::Progress(25), BatchEventKind::Death];
    let batch = BatchUnderTest::sealed(&h, &spec(&kinds), 7).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    let progress = |percent, done, dead| batch.message(BatchEventKind::Progress(percent), [7, done, dead]);
    batch.ends(&[(0, DONE)]).await?;
    owner.nothing("14 percent").await?;
    batch.ends(&[(1, DONE)]).await?;
    expect(&mut owner, vec![progress(25, 2, 0)], "at 28 percent").await?;
    batch.ends(&[(2, DONE), (1, DONE)]).await?;
    owner.nothing("42 percent").await?;
    // From 42 to 85 percent: a half is overtaken.
    batch.ends(&[(3, DONE), (4, DONE), (5, DEAD)]).await?;
    let death = batch.message(BatchEventKind::Death, [7, 5, 1]);
    expect(&mut owner, vec![progress(75, 5, 1), death], "at 85 percent").await?;
    batch.ends(&[(5, DONE)]).await?;
    owner.nothing("85 percent still").await?;
    batch.ends(&[(6, DONE)]).await?;
    let complete = batch.message(BatchEventKind::Complete, [7, 7, 0]);
    expect(&mut owner, vec![progress(100, 7, 0), complete], "at the end").await?;
    // The last step below the end.
    let batch =
        BatchUnderTest::at(&h, batch.id.place.clone(), &spec(&[BatchEventKind::Progress(40)])).await?;
    let block = batch.reserve(2, &[]).await?;
    batch.ends(&[(0, DONE), (1, DONE)]).await?;
    batch.seal(&[all_of(block)]).await?;
    let last = batch.message(BatchEventKind::Progress(80), [2, 2, 0]);
    expect(&mut owner, vec![last], "in steps of 40 percent, at the end").await
}

async fn an_empty_batch_succeeds_at_once(h: Harness) -> Verdict {
    let kinds = [BatchEventKind::Progress(50), EVENTS[0], EVENTS[1], EVENTS[2]];
    let batch = BatchUnderTest::new(&h, &spec(&kinds)).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    let state = batch.seal(&[]).await?;
    ensure!(state.ended.is_some() && state.succeeded, "an empty batch: {state:?}");
    let events = [BatchEventKind::Progress(100), EVENTS[1], EVENTS[2]];
    let sent = events.map(|kind| batch.message(kind, [0; 3]));
    expect(&mut owner, sent.into(), "of an empty batch").await?;
    // All of its numbers were left out.
    let batch = BatchUnderTest::at(&h, batch.id.place.clone(), &spec(&EVENTS)).await?;
    let (block, _) = (batch.reserve(3, &[]).await?, batch.reserve(1, &[]).await?);
    batch.seal(&[confirmed(block, 1, &[0])]).await?;
    batch.expect([0, 0, 0, 4], "of a batch without members").await?;
    let sent = EVENTS[1..].iter().map(|kind| batch.message(*kind, [0; 3])).collect();
    expect(&mut owner, sent, "without members").await
}

async fn what_is_done_before_the_seal_counts_at_the_seal(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&EVENTS)).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    let (block, open) = (batch.reserve(3, &[]).await?, batch.reserve(3, &[]).await?);
    batch.ends(&[(0, DONE), (1, DONE), (2, DONE), (open.from, DONE)]).await?;
    let state = batch.seal(&[all_of(block)]).await?;
    ensure!(state.ended.is_some() && state.succeeded, "all are done at the seal: {state:?}");
    equal!(state.ended, state.sealed, "the time of its end");
    let sent = EVENTS[1..].iter().map(|kind| batch.message(*kind, [4, 4, 0])).collect();
    expect(&mut owner, sent, "at the seal").await
}

async fn events_without_a_message_send_none(h: Harness) -> Verdict {
    let batch = BatchUnderTest::sealed(&h, &spec(&EVENTS[2..]), 2).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    batch.ends(&[(0, DEAD), (1, DONE)]).await?;
    owner.nothing("there is a message for success alone").await?;
    ensure!(batch.state().await?.ended.is_some(), "all have ended");
    batch.ends(&[(0, DONE)]).await?;
    expect(&mut owner, vec![batch.message(EVENTS[2], [2, 2, 0])], "at success").await
}

async fn a_message_is_sent_as_it_was_given(h: Harness) -> Verdict {
    let callbacks = vec![(BatchEventKind::Complete, foreign())];
    let batch = BatchUnderTest::new(&h, &BatchSpec { callbacks, ..BatchSpec::default() }).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    batch.seal(&[]).await?;
    let mut expected = foreign();
    expected.extend(batch.message(BatchEventKind::Complete, [0; 3]).pop());
    expect(&mut owner, vec![expected], "with fields of a foreign program").await
}

async fn a_reader_that_waits_gets_the_message_of_a_batch(h: Harness) -> Verdict {
    let batch = BatchUnderTest::sealed(&h, &spec(&EVENTS), 1).await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    owner.nothing("nothing has ended").await?;
    let begun = tokio::time::Instant::now();
    let waits = owner.fetch(10, h.deadline());
    let ends = async {
        tokio::time::sleep(QUIET).await;
        batch.ends(&[(0, DONE)]).await
    };
    let (fetched, ended) = tokio::join!(waits, ends);
    ended?;
    let (fetched, took) = (fetched?, begun.elapsed());
    let Some(first) = fetched.entries.first() else {
        return Err(Violation::new(format!("a wait of {took:?} ended without a message")));
    };
    equal!(first.fields, batch.message(EVENTS[1], [1, 1, 0]), "what a reader gets that waits");
    ensure!(took < h.deadline() / 2, "a reader got it after {took:?}");
    Ok(())
}
