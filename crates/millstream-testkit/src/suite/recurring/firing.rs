//! Each occurrence is scheduled once, by the first caller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::schedule::{Due, OnConflict, Place, Placed, Promoted, Scheduled};

use super::super::schedule::{ROUNDING, all, place_all, shown};
use super::{body, due, id, listed, put_all, recurrence, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::Harness;

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("recurring":
    what_fires_is_scheduled_at_its_times needs [ListScheduled],
    an_occurrence_is_fired_by_one needs [ListScheduled],
    what_is_promoted_while_it_fires_is_fired_once needs [PromoteDelayed],
    an_occurrence_that_waits_is_kept needs [Reschedule, ListScheduled],
    what_is_paused_or_gone_does_not_fire needs [ListScheduled],
    what_has_no_next_time_is_never_due_and_stays needs [ListScheduled],
    a_promotion_reckons_with_what_recurs needs [PromoteDelayed],
);

const HOUR: Duration = Duration::from_secs(3_600);

async fn what_fires_is_scheduled_at_its_times(h: Harness) -> Verdict {
    for place in h.places().await? {
        put_all(&h, &place, [("a", AT(1))]).await?;
        let now = h.now().await?;
        let times = [
            now.saturating_sub(Duration::from_millis(5)),
            now.saturating_add(HOUR),
            now.saturating_add(2 * HOUR),
        ];
        let fired = h
            .backend
            .recurring()?
            .fire(&place, &id("a")?, &times, AT(1), Some(now.saturating_add(3 * HOUR)))
            .await?;
        equal!(fired, Some(3), "times that are done");
        let scheduled = h.backend.schedule().scheduled(&place, None, 10).await?;
        let expected =
            times.map(|due| Ok(Scheduled::new(id(format!("a@{}", due.as_millis()))?, due, body("a"))));
        let expected = expected.into_iter().collect::<Result<Vec<_>, Violation>>()?;
        equal!(scheduled, expected, "what was scheduled");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due");
        equal!(
            listed(&h, &place).await?,
            [recurrence("a", Some(now.saturating_add(3 * HOUR)))?],
            "what recurs"
        );
    }
    Ok(())
}

async fn an_occurrence_is_fired_by_one(h: Harness) -> Verdict {
    for place in h.places().await? {
        put_all(&h, &place, [("a", AT(1))]).await?;
        let now = h.now().await?;
        let mut fired = 0;
        for round in 1..=10 {
            let racers = [0, 1, 2].map(|racer| {
                let (h, place) = (h.clone(), place.clone());
                tokio::spawn(async move {
                    // Each caller requests another time, which shows the one that fired.
                    let times = [now.saturating_add(round * HOUR + Duration::from_millis(racer))];
                    let a = id("a")?;
                    let fire = h.backend.recurring()?.fire(
                        &place,
                        &a,
                        &times,
                        AT(round.into()),
                        Some(AT(u64::from(round) + 1)),
                    );
                    Ok::<_, Violation>(fire.await?.unwrap_or(0))
                })
            });
            for racer in racers {
                fired += racer.await.map_err(|error| Violation::new(error.to_string()))??;
            }
        }
        equal!(fired, 10, "occurrences that somebody fired, of ten");
        equal!(all(&h, &place).await?.len(), 10, "messages that wait");
        let late = h.backend.recurring()?.fire(&place, &id("a")?, &[now], AT(10), Some(AT(1))).await?;
        ensure!(late.is_none(), "an occurrence was fired again");
        equal!(listed(&h, &place).await?, [recurrence("a", Some(AT(11)))?], "what recurs");
    }
    Ok(())
}

/// Bodies are so large that a backend may take several steps: the steps before are promoted in between.
async fn what_is_promoted_while_it_fires_is_fired_once(h: Harness) -> Verdict {
    const TIMES: usize = 8;
    let tp = h.partition().await?;
    let place = Place::from(tp.clone());
    let mut large = recurrence("a", Some(AT(1)))?;
    large.fields.push(("more".into(), vec![b'x'; 400 << 10].into()));
    let put = h.backend.recurring()?.put(&place, &large, OnConflict::Keep).await?;
    equal!(put, Placed::New, "what became of a new recurrence");
    let fired = AtomicBool::new(false);
    let fire = async {
        let times: Vec<_> = (1..=TIMES as u64).map(AT).collect();
        let done = h.backend.recurring()?.fire(&place, &id("a")?, &times, AT(1), None).await;
        fired.store(true, Ordering::Relaxed);
        Ok::<_, Violation>(done?)
    };
    let promote = async {
        let mut moved = 0;
        loop {
            let last = fired.load(Ordering::Relaxed);
            match h.backend.schedule().promote_delayed(&tp, 100).await?.moved {
                0 if last => return Ok::<_, Violation>(moved),
                more => moved += more,
            }
            tokio::task::yield_now().await;
        }
    };
    let (done, moved) = tokio::join!(fire, promote);
    equal!(done?, Some(TIMES), "times that are done");
    equal!(moved?, TIMES, "messages that were promoted");
    equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due");
    Ok(())
}

async fn an_occurrence_that_waits_is_kept(h: Harness) -> Verdict {
    for place in h.places().await? {
        put_all(&h, &place, [("a", AT(1))]).await?;
        let now = h.now().await?;
        let (time, later) = (now.saturating_add(HOUR), now.saturating_add(5 * HOUR));
        h.backend.recurring()?.fire(&place, &id("a")?, &[time], AT(1), Some(AT(2))).await?;
        let name = format!("a@{}", time.as_millis());
        h.backend.schedule().reschedule(&place, &[id(&name)?], Due::At(later)).await?;
        let fired = h
            .backend
            .recurring()?
            .fire(
                &place,
                &id("a")?,
                &[time, time.saturating_add(Duration::from_millis(1))],
                AT(2),
                Some(AT(3)),
            )
            .await?;
        ensure!(fired.is_some(), "what is due does not fire, because one occurrence waits");
        equal!(all(&h, &place).await?, [format!("a@{}", time.as_millis() + 1), name.clone()], "what waits");
        equal!(shown(&h, &place, &name).await?.due, later, "when the one that waited is due");
    }
    Ok(())
}

async fn what_is_paused_or_gone_does_not_fire(h: Harness) -> Verdict {
    for place in h.places().await? {
        put_all(&h, &place, [("a", AT(1)), ("b", AT(1))]).await?;
        h.backend.recurring()?.pause(&place, &id("a")?, None).await?;
        h.backend.recurring()?.remove(&place, &id("b")?).await?;
        for name in ["a", "b", "unknown"] {
            let fired = h.backend.recurring()?.fire(&place, &id(name)?, &[AT(1)], AT(1), Some(AT(2))).await?;
            ensure!(fired.is_none(), "{name} fired, which is paused or gone");
        }
        equal!(all(&h, &place).await?, Vec::<String>::new(), "what waits");
        let left: Vec<_> = listed(&h, &place).await?.iter().map(|it| (it.id.clone(), it.paused)).collect();
        equal!(left, [(id("a")?, true)], "what recurs, and whether it is paused");
    }
    Ok(())
}

async fn what_has_no_next_time_is_never_due_and_stays(h: Harness) -> Verdict {
    for place in h.places().await? {
        put_all(&h, &place, [("a", AT(1))]).await?;
        let fired = h.backend.recurring()?.fire(&place, &id("a")?, &[AT(7)], AT(1), None).await?;
        ensure!(fired.is_some(), "what is due does not fire for the last time");
        equal!(all(&h, &place).await?, ["a@7"], "what waits");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due");
        equal!(listed(&h, &place).await?, [recurrence("a", None)?], "what recurs");
        let again = h.backend.recurring()?.fire(&place, &id("a")?, &[AT(8)], AT(1), Some(AT(2))).await?;
        ensure!(again.is_none(), "what is over fires again");
        let never = recurrence("never", None)?;
        h.backend.recurring()?.put(&place, &never, Default::default()).await?;
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due of what never was");
        equal!(listed(&h, &place).await?, [recurrence("a", None)?, never], "what recurs");
    }
    Ok(())
}

async fn a_promotion_reckons_with_what_recurs(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = Place::from(tp.clone());
    let owner = h.owner(&tp, "group").await?;
    let (minute, promote) = (Duration::from_secs(60), async || {
        let both = [
            h.backend.schedule().promote(&owner.lease, 10).await?,
            h.backend.schedule().promote_delayed(&tp, 10).await?,
        ];
        Ok::<_, Violation>(both)
    });
    place_all(&h, &place, [("later", Due::In(Duration::from_secs(3_600)))]).await?;
    let now = h.now().await?;
    put_all(&h, &place, [("a", now.saturating_add(Duration::from_millis(60_000)))]).await?;
    for Promoted { next, recurring, .. } in promote().await? {
        let next = next.unwrap_or_default();
        ensure!(
            next > minute / 2 && next <= minute + ROUNDING,
            "next in {next:?}, a recurrence is in {minute:?}"
        );
        ensure!(!recurring, "something that recurs is said to be due, a minute early");
    }
    put_all(&h, &place, [("b", now)]).await?;
    for promoted in promote().await? {
        equal!((promoted.next, promoted.recurring), (Some(Duration::ZERO), true), "what recurs is due");
    }
    h.backend.recurring()?.fire(&place, &id("b")?, &[], now, None).await?;
    h.backend.recurring()?.pause(&place, &id("a")?, None).await?;
    for Promoted { next, recurring, .. } in promote().await? {
        ensure!(next.is_some_and(|next| next > minute) && !recurring, "next in {next:?}, due: {recurring}");
    }
    Ok(())
}
