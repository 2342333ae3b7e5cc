//! Results of messages: stored with the settlement, found by all who wait.

pub(in crate::suite) mod progress;

use std::time::Duration;

use bytes::Bytes;
use millstream_core::log::{Entry, Settled};
use millstream_core::results::{MessageResult, ResultId, ResultRequest, StoredResult};
use millstream_core::{ErrorKind, Place, Reason, Settlement};
use tokio::time::Instant;

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, QUIET};
use crate::owner::{dead, hold, retry};

suite!("log":
    a_result_is_stored_with_its_ack_and_read_as_often_as_asked needs [Results],
    of_many_results_each_is_its_own needs [Results],
    whoever_waits_for_a_result_gets_it_when_it_is_stored needs [Results],
    a_message_that_comes_back_has_its_result_at_the_end needs [Results],
    a_dead_letter_has_a_result needs [Results],
    a_reply_stays_and_replaces_what_is_none needs [Results],
    a_stale_settlement_stores_no_result needs [Results],
    a_former_owner_stores_no_result needs [Results],
    a_result_leaves_when_its_time_is_over needs [Results];
    with an operator:
    what_is_gone_has_a_result_when_it_is_given_up needs [Results],
);

pub(in crate::suite) fn replied(text: &str) -> MessageResult {
    MessageResult::Replied(Bytes::copy_from_slice(text.as_bytes()))
}

pub(in crate::suite) fn stored(number: u128, keep: Duration, result: MessageResult) -> Box<StoredResult> {
    Box::new(StoredResult::new(ResultRequest::new(number, keep), result))
}

/// Returns the settlement of a message that is done with this result.
pub(in crate::suite) fn done(number: u128, result: MessageResult) -> Settlement {
    Settlement::AckWith(stored(number, LONG, result))
}

/// Returns the settlement of a message that is given up.
fn given_up(number: u128, entry: &Entry) -> (Settlement, MessageResult) {
    let failed = MessageResult::dead(&Reason::Exhausted, 3, "gave up");
    let mut settlement = dead(Reason::Exhausted, 3, entry.receipt.id);
    if let Settlement::DeadLetter { result, .. } = &mut settlement {
        *result = Some(stored(number, LONG, failed.clone()));
    }
    (settlement, failed)
}

/// Returns a number that no other case has.
pub(in crate::suite) fn number() -> u128 {
    fastrand::u128(..)
}

/// Expects this result, without a wait and with one.
pub(in crate::suite) async fn expect(
    h: &Harness,
    place: &(impl Clone + Into<Place>),
    number: u128,
    expected: Option<&MessageResult>,
    when: &str,
) -> Verdict {
    let id = ResultId::new(place.clone(), number);
    for wait in [Duration::ZERO, QUIET] {
        let found = h.backend.log().result(&id, wait).await?;
        equal!(found.as_ref(), expected, "the result {when}, waited for {wait:?}");
    }
    Ok(())
}

async fn a_result_is_stored_with_its_ack_and_read_as_often_as_asked(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let binary = MessageResult::Replied(Bytes::from_static(b"\0\xff\r\n+=- "));
    let large = MessageResult::Replied(vec![b'x'; 100_000].into());
    let failed = MessageResult::failed("reply_too_large", 1, "a text\nof two lines");
    let results = [replied(""), binary, large, MessageResult::Done, failed];
    h.append_n(&tp, results.len()).await?;
    for (entry, result) in owner.take(results.len()).await?.iter().zip(&results) {
        let number = number();
        expect(&h, &tp, number, None, "before the settlement").await?;
        owner.settle_all(std::slice::from_ref(entry), &done(number, result.clone())).await?;
        expect(&h, &tp, number, Some(result), "behind the settlement").await?;
        expect(&h, &tp, number, Some(result), "read again").await?;
        expect(&h, &tp, number ^ 1, None, "of another number").await?;
    }
    owner.reopen().await?;
    owner.nothing("everything is settled").await
}

async fn of_many_results_each_is_its_own(h: Harness) -> Verdict {
    const MANY: usize = 250;
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2 * MANY).await?;
    let entries = owner.take(2 * MANY).await?;
    let (first, text) = (number() >> 32, |at: usize| replied(&format!("reply {at}")));
    // Every second one asks for its result.
    let batch: Vec<_> = entries
        .iter()
        .enumerate()
        .map(|(at, entry)| {
            let result = done(first + at as u128, text(at));
            (entry.receipt, if at % 2 == 0 { result } else { Settlement::Ack })
        })
        .collect();
    let settled = h.backend.log().settle(&owner.lease, &batch).await?;
    equal!(settled, Settled { applied: 2 * MANY, stale: 0 }, "a batch with results and without");
    for at in 0..2 * MANY {
        let found =
            h.backend.log().result(&ResultId::new(tp.clone(), first + at as u128), Duration::ZERO).await?;
        equal!(found, (at % 2 == 0).then(|| text(at)), "result {at}");
    }
    owner.reopen().await?;
    owner.nothing("everything is settled").await
}

async fn whoever_waits_for_a_result_gets_it_when_it_is_stored(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let (mine, others) = (number(), number());
    let wait_for = |number: u128| {
        let (h, id) = (h.clone(), ResultId::new(tp.clone(), number));
        tokio::spawn(async move {
            let begun = Instant::now();
            let found = h.backend.log().result(&id, h.deadline()).await;
            found.map(|found| (found, begun.elapsed()))
        })
    };
    let waiting: Vec<_> = (0..32).map(|_| wait_for(mine)).collect();
    let other = wait_for(others);
    // They wait by now, or find it when they begin.
    tokio::time::sleep(QUIET).await;
    ensure!(waiting.iter().all(|it| !it.is_finished()), "a wait ended before there was a result");
    owner.settle_all(&entries[..1], &done(mine, replied("mine"))).await?;
    for wait in waiting {
        let (found, took) = wait.await.map_err(|error| Violation::new(error.to_string()))??;
        equal!(found, Some(replied("mine")), "what a wait found");
        ensure!(
            took < h.deadline() / 2,
            "a wait ended {took:?} after it began, though the result was stored at once"
        );
    }
    ensure!(!other.is_finished(), "a wait for another result ended");
    owner.settle_all(&entries[1..], &done(others, MessageResult::Done)).await?;
    let (found, _) = other.await.map_err(|error| Violation::new(error.to_string()))??;
    equal!(found, Some(MessageResult::Done), "what the other wait found");
    Ok(())
}

async fn a_message_that_comes_back_has_its_result_at_the_end(h: Harness) -> Verdict {
    let (tp, number) = (h.partition().await?, number());
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &hold(2, Duration::ZERO)).await?;
    owner.settle_all(&entries, &retry(&entries[0], Duration::ZERO)).await?;
    owner.promote(1).await?;
    let again = owner.take_retries(1).await?;
    expect(&h, &tp, number, None, "of a message that is retried").await?;
    owner.settle_all(&again, &done(number, replied("at last"))).await?;
    expect(&h, &tp, number, Some(&replied("at last")), "of a retry").await?;
    owner.reopen().await?;
    owner.nothing("everything is settled").await
}

async fn a_dead_letter_has_a_result(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    let numbers = [number(), number()];
    let (first, failed) = given_up(numbers[0], &entries[0]);
    let (second, _) = given_up(numbers[1], &entries[2]);
    let without = dead(Reason::Exhausted, 3, entries[1].receipt.id);
    let settlements = [first, without, second];
    let batch: Vec<_> = entries.iter().map(|entry| entry.receipt).zip(settlements).collect();
    let settled = h.backend.log().settle(&owner.lease, &batch).await?;
    equal!(settled, Settled { applied: 3, stale: 0 }, "three dead letters, two of them with a result");
    for number in numbers {
        expect(&h, &tp, number, Some(&failed), "of a dead letter").await?;
    }
    let (_, group) = owner.lease.partition()?;
    if let Some(letters) = h.letters(&tp, group).await? {
        equal!(letters.len(), 3, "dead letters");
    }
    Ok(())
}

async fn a_reply_stays_and_replaces_what_is_none(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    h.append_n(&tp, 4).await?;
    let (of_one, of_other) = (one.take(4).await?, other.take(4).await?);
    let numbers = [number(), number(), number()];
    one.settle_all(&of_one[..1], &done(numbers[0], replied("first"))).await?;
    other.settle_all(&of_other[..1], &done(numbers[0], replied("second"))).await?;
    expect(&h, &tp, numbers[0], Some(&replied("first")), "behind a second reply").await?;
    let (failure, failed) = given_up(numbers[1], &of_one[1]);
    one.settle_all(&of_one[1..2], &failure).await?;
    expect(&h, &tp, numbers[1], Some(&failed), "of what one group gave up").await?;
    other.settle_all(&of_other[1..2], &done(numbers[1], replied("done"))).await?;
    expect(&h, &tp, numbers[1], Some(&replied("done")), "of what another group did").await?;
    one.settle_all(&of_one[2..3], &done(numbers[2], MessageResult::Done)).await?;
    let (failure, _) = given_up(numbers[2], &of_other[2]);
    other.settle_all(&of_other[2..3], &failure).await?;
    expect(&h, &tp, numbers[2], Some(&MessageResult::Done), "behind a failure in another group").await?;
    one.settle_all(&of_one[3..], &done(numbers[2], replied("late"))).await?;
    expect(&h, &tp, numbers[2], Some(&replied("late")), "behind one without a reply").await
}

async fn a_stale_settlement_stores_no_result(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.ack(&entries).await?;
    let number = number();
    let stale = Settled { applied: 0, stale: 1 };
    for settlement in [done(number, replied("late")), given_up(number, &entries[0]).0] {
        equal!(owner.settle(entries[0].receipt, settlement).await?, stale, "of what is settled");
        expect(&h, &tp, number, None, "of a stale settlement").await?;
    }
    Ok(())
}

async fn a_former_owner_stores_no_result(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut former = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 1).await?;
    let entries = former.take(1).await?;
    let mut next = h.takeover(&former.lease).await?;
    let number = number();
    for settlement in [done(number, replied("former")), given_up(number, &entries[0]).0] {
        let settled = h.backend.log().settle(&former.lease, &[(entries[0].receipt, settlement)]).await;
        refused(settled, ErrorKind::Fenced, "a settlement of a former owner")?;
        expect(&h, &tp, number, None, "of a former owner").await?;
    }
    let again = next.take(1).await?;
    next.settle_all(&again, &done(number, replied("next"))).await?;
    expect(&h, &tp, number, Some(&replied("next")), "of the owner").await
}

async fn what_is_gone_has_a_result_when_it_is_given_up(h: Harness) -> Verdict {
    let (tp, number) = (h.partition().await?, number());
    let mut owner = h.owner(&tp, "group").await?;
    h.append_each(&tp, 1).await?;
    let entries = owner.take(1).await?;
    h.operator()?.delete_entry(&tp, entries[0].receipt.id).await?;
    let (settlement, failed) = given_up(number, &entries[0]);
    let settled = owner.settle(entries[0].receipt, settlement).await?;
    equal!(settled, Settled { applied: 0, stale: 1 }, "there is nothing to keep");
    expect(&h, &tp, number, Some(&failed), "of what is gone").await
}

async fn a_result_leaves_when_its_time_is_over(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let (short, long) = (number(), number());
    owner.settle_all(&entries[1..], &done(long, replied("long"))).await?;
    // The shortest time that a result can be kept.
    let keep = ResultRequest::new(short, Duration::ZERO).keep;
    let stored = stored(short, keep, replied("short"));
    let begun = Instant::now();
    owner.settle_all(&entries[..1], &Settlement::AckWith(stored)).await?;
    let id = ResultId::new(tp.clone(), short);
    let mut deadline = h.wait_for("a result to leave");
    while h.backend.log().result(&id, Duration::ZERO).await?.is_some() {
        deadline.pause().await?;
    }
    let took = begun.elapsed();
    ensure!(took >= keep, "a result left after {took:?}, {keep:?} were asked for");
    expect(&h, &tp, long, Some(&replied("long")), "that is kept for longer").await
}
