//! A wait until the head is due is woken by an earlier message, and by no other.

use std::time::Duration;

use millstream_core::TopicPartition;
use millstream_core::schedule::{Due, Seen};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{HOUR, id, place_all, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};

suite!("schedule":
    the_first_wait_ends_at_once needs [PromoteDelayed],
    an_earlier_message_wakes_all_who_wait needs [PromoteDelayed],
    a_later_message_wakes_nobody needs [Reschedule, PromoteDelayed],
    a_message_that_is_rescheduled_to_the_head_wakes needs [Reschedule, PromoteDelayed],
    nothing_is_missed_between_two_waits needs [PromoteDelayed],
    a_wait_ends_when_its_time_is_up needs [PromoteDelayed],
    a_reader_tells_of_an_earlier_message,
    a_reader_tells_nothing_of_a_later_message,
);

/// A wait longer than any case.
const QUIET: Duration = Duration::from_millis(60);
/// Tolerance, as a server may round milliseconds differently.
const EDGE: Duration = Duration::from_millis(5);

/// Returns the current state.
async fn seen(h: &Harness, tp: &TopicPartition) -> Result<Seen, Violation> {
    h.soon("the first wait", h.backend.schedule().wait(tp, &Seen::default(), LONG)).await
}

/// Starts a wait that lasts longer than any case.
fn waiter(h: &Harness, tp: &TopicPartition, seen: &Seen) -> JoinHandle<Result<Seen, Violation>> {
    let (h, tp, seen) = (h.clone(), tp.clone(), seen.clone());
    tokio::spawn(async move { h.soon("a wake-up", h.backend.schedule().wait(&tp, &seen, LONG)).await })
}

async fn woken(waiter: JoinHandle<Result<Seen, Violation>>) -> Result<Seen, Violation> {
    waiter.await.map_err(|error| Violation::new(error.to_string()))?
}

/// Expects that nothing wakes a wait with this state.
async fn is_quiet(h: &Harness, tp: &TopicPartition, seen: &Seen, why: &str) -> Result<Seen, Violation> {
    let started = Instant::now();
    let seen = h.soon("a wait to end", h.backend.schedule().wait(tp, seen, QUIET)).await?;
    let took = started.elapsed();
    ensure!(took + EDGE >= QUIET, "woken after {took:?} ({why})");
    Ok(seen)
}

async fn the_first_wait_ends_at_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    seen(&h, &tp).await?;
    place_all(&h, &tp.clone().into(), [("a", Due::In(HOUR))]).await?;
    let state = seen(&h, &tp).await?;
    is_quiet(&h, &tp, &state, "nothing came since").await.map(drop)
}

async fn an_earlier_message_wakes_all_who_wait(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = tp.clone().into();
    let mut state = seen(&h, &tp).await?;
    for (name, delay) in [("a", HOUR * 3), ("b", HOUR * 2), ("c", HOUR)] {
        let waiters = [waiter(&h, &tp, &state), waiter(&h, &tp, &state)];
        // The waits may have started by then or not; the result is the same.
        tokio::time::sleep(Duration::from_millis(10)).await;
        place_all(&h, &place, [(name, Due::In(delay))]).await?;
        for waiter in waiters {
            state = woken(waiter).await?;
        }
    }
    is_quiet(&h, &tp, &state, "nothing came since").await.map(drop)
}

async fn a_later_message_wakes_nobody(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = tp.clone().into();
    place_all(&h, &place, [("head", Due::In(HOUR))]).await?;
    let state = seen(&h, &tp).await?;
    place_all(&h, &place, [("a", Due::In(HOUR * 2)), ("b", Due::In(HOUR * 3))]).await?;
    h.backend.schedule().reschedule(&place, &[id("b")?], Due::In(HOUR * 2)).await?;
    h.backend.schedule().cancel(&place, &[id("a")?]).await?;
    let state = is_quiet(&h, &tp, &state, "nothing came that is due earlier").await?;
    place_all(&h, &place, [("head 2", Due::In(HOUR / 2))]).await?;
    h.soon("a wake-up", h.backend.schedule().wait(&tp, &state, LONG)).await.map(drop)
}

async fn a_message_that_is_rescheduled_to_the_head_wakes(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = tp.clone().into();
    place_all(&h, &place, [("a", Due::In(HOUR)), ("b", Due::In(HOUR * 2))]).await?;
    for due in [Due::In(HOUR / 2), Due::NOW] {
        let state = seen(&h, &tp).await?;
        let waiter = waiter(&h, &tp, &state);
        h.backend.schedule().reschedule(&place, &[id("b")?], due).await?;
        woken(waiter).await?;
    }
    Ok(())
}

async fn nothing_is_missed_between_two_waits(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = tp.clone().into();
    let mut state = seen(&h, &tp).await?;
    for (first, second, hours) in [("a", "b", 6), ("c", "d", 4), ("e", "f", 2)] {
        place_all(&h, &place, [(first, Due::In(HOUR * hours))]).await?;
        place_all(&h, &place, [(second, Due::In(HOUR * (hours - 1)))]).await?;
        let wait = h.backend.schedule().wait(&tp, &state, LONG);
        state = h.soon("what came before the wait", wait).await?;
    }
    is_quiet(&h, &tp, &state, "nothing came since").await.map(drop)
}

async fn a_wait_ends_when_its_time_is_up(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut state = seen(&h, &tp).await?;
    for wait in [Duration::ZERO, Duration::from_millis(20), QUIET] {
        let started = Instant::now();
        state = h.soon("a wait to end", h.backend.schedule().wait(&tp, &state, wait)).await?;
        let took = started.elapsed();
        ensure!(took + EDGE >= wait, "a wait of {wait:?} took {took:?}, and nothing came");
    }
    Ok(())
}

async fn a_reader_tells_of_an_earlier_message(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    owner.nothing("nothing was sent").await?;
    for (name, delay) in [("a", HOUR * 3), ("b", HOUR * 2), ("c", HOUR)] {
        place_all(&h, &tp.clone().into(), [(name, Due::In(delay))]).await?;
        let mut deadline = h.wait_for("a reader to report an earlier message");
        while !h.soon("a fetch", owner.reader.fetch(10, LONG)).await?.woken {
            deadline.pause().await?;
        }
        equal!(owner.fetch(10, Duration::from_millis(1)).await?.woken, false, "told again");
    }
    Ok(())
}

async fn a_reader_tells_nothing_of_a_later_message(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = tp.clone().into();
    let mut owner = h.owner(&tp, "group").await?;
    place_all(&h, &place, [("head", Due::In(HOUR))]).await?;
    owner.fetch(10, QUIET).await?;
    owner.fetch(10, Duration::from_millis(1)).await?;
    place_all(&h, &place, [("a", Due::In(HOUR * 2))]).await?;
    let started = Instant::now();
    let fetched = owner.fetch(10, QUIET).await?;
    let took = started.elapsed();
    ensure!(!fetched.woken && took + EDGE >= QUIET, "woken {} after {took:?}", fetched.woken);
    Ok(())
}
