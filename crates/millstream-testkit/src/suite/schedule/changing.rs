//! Cancelling and rescheduling: which of two concurrent calls wins, and the reported results.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::schedule::{Due, Place};

use super::{HOUR, ROUNDING, after, all, expect_all, id, names, partition};
use super::{place_all, promote_delayed, promote_once, shown, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::Harness;

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("schedule":
    a_cancelled_message_never_comes,
    a_cancel_tells_of_each_whether_it_took_it_out,
    of_cancels_that_race_one_wins,
    of_a_cancel_and_a_promotion_one_wins,
    what_was_promoted_cannot_be_cancelled needs [Reschedule, ListScheduled],
    a_rescheduled_message_comes_at_its_new_time needs [Reschedule, ListScheduled],
    a_rescheduled_message_stays_as_it_is needs [Reschedule, ListScheduled],
    a_reschedule_tells_of_each_whether_it_still_waited needs [Reschedule, ListScheduled],
);

async fn a_cancelled_message_never_comes(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    place_all(&h, &place, [("a", Due::At(AT(1))), ("b", Due::At(AT(2))), ("c", Due::At(AT(3)))]).await?;
    equal!(h.backend.schedule().cancel(&place, &[id("b")?]).await?, [true], "a cancel");
    expect_all(&h, &place, &["a", "c"]).await?;
    promote_delayed(&h, partition(&place)?, 2).await?;
    equal!(names(&owner.take(2).await?)?, ["a", "c"], "what came");
    owner.nothing("one was cancelled").await
}

async fn a_cancel_tells_of_each_whether_it_took_it_out(h: Harness) -> Verdict {
    for place in h.places().await? {
        place_all(&h, &place, ["a", "b", "c"].map(|id| (id, Due::In(HOUR)))).await?;
        let ids = ["c", "unknown", "a", "c"].map(id).into_iter().collect::<Result<Vec<_>, _>>()?;
        let cancelled = h.backend.schedule().cancel(&place, &ids).await?;
        equal!(cancelled, [true, false, true, false], "cancelled of four, one unknown and one twice");
        let again = h.backend.schedule().cancel(&place, &ids).await?;
        equal!(again, [false; 4], "cancelled when they are gone");
        expect_all(&h, &place, &["b"]).await?;
        equal!(h.backend.schedule().cancel(&place, &[]).await?.len(), 0, "answers to an empty cancel");
    }
    Ok(())
}

async fn of_cancels_that_race_one_wins(h: Harness) -> Verdict {
    const COUNT: usize = 20;
    for place in h.places().await? {
        let messages: Vec<_> = (0..COUNT).map(|n| n.to_string()).collect();
        place_all(&h, &place, messages.iter().map(|id| (id.as_str(), Due::In(HOUR)))).await?;
        let racers = [(); 4].map(|()| {
            let (h, place, messages) = (h.clone(), place.clone(), messages.clone());
            tokio::spawn(async move {
                let mut won = 0;
                for message in messages {
                    won += usize::from(h.backend.schedule().cancel(&place, &[id(message)?]).await? == [true]);
                    tokio::task::yield_now().await;
                }
                Ok::<_, Violation>(won)
            })
        });
        let mut won = 0;
        for racer in racers {
            won += racer.await.map_err(|error| Violation::new(error.to_string()))??;
        }
        equal!(won, COUNT, "cancels that won, for {COUNT} messages at {place}");
    }
    Ok(())
}

async fn of_a_cancel_and_a_promotion_one_wins(h: Harness) -> Verdict {
    const COUNT: usize = 40;
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    let messages: Vec<_> = (0..COUNT).map(|n| format!("{n:02}")).collect();
    place_all(&h, &place, messages.iter().map(|id| (id.as_str(), Due::At(AT(1))))).await?;
    let canceller = {
        let (h, place, messages) = (h.clone(), place.clone(), messages.clone());
        tokio::spawn(async move {
            let mut cancelled = Vec::new();
            // In reverse order.
            for message in messages.into_iter().rev() {
                if h.backend.schedule().cancel(&place, &[id(&message)?]).await? == [true] {
                    cancelled.push(message);
                }
                tokio::task::yield_now().await;
            }
            Ok::<_, Violation>(cancelled)
        })
    };
    let mut moved = 0;
    let mut deadline = h.wait_for("the schedule to be empty");
    loop {
        let promoted = promote_once(&h, partition(&place)?, 3).await?;
        moved += promoted.moved;
        match promoted.next {
            None => break,
            Some(_) if promoted.moved == 0 => deadline.pause().await?,
            Some(_) => {}
        }
        tokio::task::yield_now().await;
    }
    let mut seen = canceller.await.map_err(|error| Violation::new(error.to_string()))??;
    equal!(moved + seen.len(), COUNT, "messages promoted, and cancels that won");
    seen.extend(names(&owner.take(moved).await?)?);
    seen.sort();
    equal!(seen, messages, "what was promoted or cancelled");
    Ok(())
}

async fn what_was_promoted_cannot_be_cancelled(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    place_all(&h, &place, [("a", Due::At(AT(1))), ("b", Due::In(HOUR))]).await?;
    promote_delayed(&h, partition(&place)?, 1).await?;
    let ids = [id("a")?, id("b")?];
    let moved = h.backend.schedule().reschedule(&place, &ids, Due::In(HOUR)).await?;
    equal!(moved, [false, true], "rescheduled, one of them after its promotion");
    let cancelled = h.backend.schedule().cancel(&place, &ids).await?;
    equal!(cancelled, [false, true], "cancelled, one of them after its promotion");
    equal!(h.backend.schedule().get(&place, &id("a")?).await?, None, "what was promoted, as it waits");
    Ok(())
}

async fn a_rescheduled_message_comes_at_its_new_time(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    place_all(&h, &place, [("now", Due::In(HOUR)), ("soon", Due::In(HOUR)), ("later", after(1))]).await?;
    let before = h.now().await?;
    let reschedule = async |name, due| {
        Ok::<_, Violation>(h.backend.schedule().reschedule(&place, &[id(name)?], due).await?)
    };
    equal!(reschedule("later", Due::In(HOUR)).await?, [true], "a reschedule to a later time");
    equal!(reschedule("now", Due::NOW).await?, [true], "a reschedule to now");
    // Behind it, also on a machine on which a request takes longer than that.
    equal!(reschedule("soon", after(30)).await?, [true], "a reschedule to an earlier time");
    let due = shown(&h, &place, "now").await?.due;
    let now = h.now().await?;
    ensure!(
        due <= now.saturating_add(Duration::from_millis(1)),
        "due at {due} after a reschedule to now, which is {now}"
    );
    promote_delayed(&h, partition(&place)?, 2).await?;
    let entries = owner.take(2).await?;
    equal!(names(&entries)?, ["now", "soon"], "what came");
    let came = entries[1].receipt.id.timestamp().saturating_duration_since(before);
    ensure!(came >= Duration::from_millis(30), "rescheduled to 30 ms, there after {came:?}");
    equal!(all(&h, &place).await?, ["later"], "what waits");
    let next = promote_once(&h, partition(&place)?, 9).await?.next.unwrap_or_default();
    ensure!(next > HOUR / 2 && next <= HOUR + ROUNDING, "next in {next:?}, rescheduled to {HOUR:?}");
    let at = h.now().await?.saturating_add(Duration::from_millis(9_000_000));
    equal!(reschedule("later", Due::At(at)).await?, [true], "a reschedule to a time");
    equal!(shown(&h, &place, "later").await?.due, at, "the time it was rescheduled to");
    Ok(())
}

async fn a_rescheduled_message_stays_as_it_is(h: Harness) -> Verdict {
    for place in h.places().await? {
        place_all(&h, &place, [("a", Due::In(HOUR))]).await?;
        let before = shown(&h, &place, "a").await?;
        h.backend.schedule().reschedule(&place, &[id("a")?], Due::In(HOUR * 2)).await?;
        let now = shown(&h, &place, "a").await?;
        equal!(now.fields, before.fields, "the fields of what was rescheduled");
        let later = now.due.saturating_duration_since(before.due);
        ensure!(later >= HOUR, "an hour later is {later:?} later");
        equal!(h.backend.schedule().waiting(&place).await?.total, 1, "messages that wait");
    }
    Ok(())
}

async fn a_reschedule_tells_of_each_whether_it_still_waited(h: Harness) -> Verdict {
    for place in h.places().await? {
        place_all(&h, &place, ["a", "b", "c"].map(|id| (id, Due::In(HOUR)))).await?;
        h.backend.schedule().cancel(&place, &[id("b")?]).await?;
        let ids = ["b", "a", "unknown", "c"].map(id).into_iter().collect::<Result<Vec<_>, _>>()?;
        let moved = h.backend.schedule().reschedule(&place, &ids, Due::In(HOUR * 2)).await?;
        equal!(moved, [false, true, false, true], "rescheduled of four, two of them not there");
        equal!(all(&h, &place).await?, ["a", "c"], "what waits");
    }
    Ok(())
}
