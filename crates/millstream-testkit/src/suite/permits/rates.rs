//! Rates: tokens are reserved in their order by the server's time, and become free at their rate.

use std::time::Duration;

use millstream_core::permits::{
    Call, Lead, LimitBound, MAX_REASON_LEN, MAX_STEPS, OpenBreaker, PermitKey, Rate, Reservation, Reserved,
    TokenStep,
};
use millstream_core::{ErrorKind, LimitPattern};

use super::{Party, key};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::Harness;
use crate::suite::suite;

suite!("permits":
    tokens_become_free_one_after_the_other,
    a_burst_is_free_at_once,
    who_does_not_wait_gets_what_is_free,
    nothing_is_reserved_far_ahead,
    what_is_charged_is_waited_for_unless_it_is_given_back,
    nobody_spends_tokens_of_a_closed_key,
    a_breaker_is_listed_until_it_is_closed,
    a_rate_without_tokens_reserves_none,
    reservations_follow_the_rules,
    a_reservation_out_of_bounds_is_refused,
);

/// Between two tokens: the time that a case takes does not count beside it.
const INTERVAL: Duration = Duration::from_secs(1_000);
const SLOW: Rate = Rate::new(1, INTERVAL);

async fn done(h: &Harness, steps: Vec<TokenStep>) -> Result<Vec<Lead>, Violation> {
    let mut version = 0;
    // The rules are those of the whole namespace: another case may change them.
    loop {
        let reservation = Reservation { version, steps: steps.clone() };
        match h.backend.permits()?.reserve(&reservation).await? {
            Reserved::Done(leads) => return Ok(leads),
            Reserved::Changed(rules) => version = rules.version,
        }
    }
}

/// Has steps done that reserve nothing: they are done by any rules, once.
async fn does(h: &Harness, steps: Vec<TokenStep>) -> Verdict {
    h.backend.permits()?.reserve(&Reservation { version: 0, steps }).await?;
    Ok(())
}

fn reserves(key: &PermitKey, tokens: u32, rate: Rate, waits: bool) -> TokenStep {
    TokenStep::Reserves { key: key.clone(), tokens, rate, waits }
}

/// Returns in how many intervals the first of these tokens is free. Beyond the horizon nothing is reserved, and it is all the same known.
async fn reserve(h: &Harness, key: &PermitKey, tokens: u32, rate: Rate) -> Result<i64, Violation> {
    let lead = match done(h, vec![reserves(key, tokens, rate, true)]).await?[..] {
        [Lead::At(lead)] => lead,
        [Lead::Later(lead)] => {
            does(h, vec![TokenStep::Charges { key: key.clone(), tokens: i64::from(tokens), rate }]).await?;
            lead as i64
        }
        ref other => return Err(Violation::new(format!("{other:?} for who waits"))),
    };
    let interval = INTERVAL.as_micros() as i64;
    let whole = (lead as f64 / interval as f64).ceil() as i64;
    ensure!(whole * interval - lead < interval / 10, "the lead of {lead} us is not that of its rate");
    Ok(whole)
}

async fn tokens_become_free_one_after_the_other(h: Harness) -> Verdict {
    let (key, other) = (key(&h, "a")?, key(&h, "b")?);
    for (tokens, expected) in [(1, 0), (3, 1), (1, 4), (2, 5)] {
        equal!(reserve(&h, &key, tokens, SLOW).await?, expected, "the lead of {tokens} more");
    }
    equal!(reserve(&h, &other, 1, SLOW).await?, 0, "the lead of another key");
    let quick = Rate::per_second(1_000);
    let both = done(&h, vec![reserves(&other, 2, quick, true), reserves(&other, 1, quick, true)]).await?;
    let [Lead::At(first), Lead::At(second)] = both[..] else {
        return Err(Violation::new("one of two steps has no answer"));
    };
    equal!(second - first, 2_000, "microseconds between two reservations of one call");
    Ok(())
}

async fn a_burst_is_free_at_once(h: Harness) -> Verdict {
    let (key, rate) = (key(&h, "a")?, SLOW.burst(5));
    for (tokens, expected) in [(2, -4), (3, -2), (1, 1)] {
        equal!(reserve(&h, &key, tokens, rate).await?, expected, "the lead of {tokens} more");
    }
    Ok(())
}

async fn who_does_not_wait_gets_what_is_free(h: Harness) -> Verdict {
    let (key, rate) = (key(&h, "a")?, SLOW.burst(5));
    let asks = |tokens| reserves(&key, tokens, rate, false);
    let leads = done(&h, vec![asks(3), asks(3), asks(2), asks(1)]).await?;
    let got: Vec<_> = leads.iter().map(|lead| matches!(lead, Lead::At(_))).collect();
    equal!(got, [true, false, true, false], "3, 3, 2 and 1 of 5 tokens");
    equal!(reserve(&h, &key, 1, rate).await?, 1, "the lead after what was refused");
    let alone = super::key(&h, "b")?;
    let leads = done(&h, vec![reserves(&alone, 9, rate, false), reserves(&alone, 1, rate, false)]).await?;
    let got: Vec<_> = leads.iter().map(|lead| matches!(lead, Lead::At(_))).collect();
    equal!(got, [true, false], "9 of 5, with all saved, and one more");
    Ok(())
}

async fn nothing_is_reserved_far_ahead(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    equal!(reserve(&h, &key, 1, SLOW).await?, 0, "the first lead");
    for _ in 0..3 {
        let leads = done(&h, vec![reserves(&key, 1, SLOW, true)]).await?;
        let [Lead::Later(us)] = leads[..] else {
            return Err(Violation::new(format!("{leads:?} a thousand seconds ahead")));
        };
        ensure!(us <= INTERVAL.as_micros() as u64, "it is free in {us} us: something was reserved");
    }
    Ok(())
}

async fn what_is_charged_is_waited_for_unless_it_is_given_back(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let charges = |tokens| TokenStep::Charges { key: key.clone(), tokens, rate: SLOW };
    equal!(reserve(&h, &key, 1, SLOW).await?, 0, "the first lead");
    does(&h, vec![charges(4)]).await?;
    equal!(reserve(&h, &key, 1, SLOW).await?, 5, "the lead after four more were charged");
    does(&h, vec![charges(-3)]).await?;
    equal!(reserve(&h, &key, 1, SLOW).await?, 3, "the lead after three were given back");
    does(&h, vec![charges(-100)]).await?;
    equal!(reserve(&h, &key, 1, SLOW).await?, 0, "the lead after all were");
    Ok(())
}

async fn nobody_spends_tokens_of_a_closed_key(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let mut one = Party::new(&h).await?;
    let time = INTERVAL * 10;
    does(&h, vec![TokenStep::Closes { key: key.clone(), time, rate: SLOW }]).await?;
    one.until(&Call::Closed(key.clone(), time)).await?;
    let refused = done(&h, vec![reserves(&key, 1, SLOW, false)]).await?;
    ensure!(matches!(refused[..], [Lead::Later(_)]), "{refused:?} for who does not wait");
    equal!(reserve(&h, &key, 1, SLOW).await?, 10, "the lead of the first one");
    let closes = |time| TokenStep::Closes { key: key.clone(), time, rate: SLOW };
    does(&h, vec![closes(INTERVAL), closes(time)]).await?;
    let role = h.backend.permits()?;
    let Some(state) = role.rate_state(&key).await? else {
        return Err(Violation::new("a key that is closed has no state"));
    };
    equal!(state.interval, INTERVAL, "the time between two of its tokens");
    let near = |found: Duration, time: Duration| found <= time && found > time - INTERVAL / 10;
    ensure!(near(state.closed, time), "it is closed for {:?}, not for {time:?}", state.closed);
    let before = one.seen;
    does(&h, vec![closes(Duration::ZERO), closes(Duration::ZERO)]).await?;
    one.until(&Call::Closed(key.clone(), Duration::ZERO)).await?;
    ensure!(one.seen > before, "it is not told that the key is open");
    equal!(reserve(&h, &key, 1, SLOW).await?, 0, "the lead once it is open");
    let state = role.rate_state(&key).await?;
    ensure!(
        state.is_some_and(|it| it.closed.is_zero() && near(it.ahead, INTERVAL)),
        "its state is {state:?}"
    );
    equal!(role.rate_state(&super::key(&h, "b")?).await?, None, "the state of a key that nobody used");
    Ok(())
}

async fn a_breaker_is_listed_until_it_is_closed(h: Harness) -> Verdict {
    let (key, time) = (key(&h, "a")?, INTERVAL * 10);
    let mut one = Party::new(&h).await?;
    let breaks = |time, reason: &str| {
        let (key, rate, reason) = (key.clone(), Rate::new(1, INTERVAL * 10), reason.to_owned());
        vec![TokenStep::Breaks { key, time, rate, reason }]
    };
    // The others are those of other cases.
    let listed = async || -> Result<Option<OpenBreaker>, Violation> {
        let all = h.backend.permits()?.open_breakers().await?;
        Ok(all.into_iter().find(|it| it.key == key))
    };
    equal!(listed().await?, None, "a breaker that nobody opened");
    does(&h, breaks(time, "5 of 5 failed: 503 Ü")).await?;
    one.until(&Call::Closed(key.clone(), time)).await?;
    let Some(open) = listed().await? else { return Err(Violation::new("an open breaker is not listed")) };
    equal!(open.reason, "5 of 5 failed: 503 Ü", "its reason");
    equal!(open.until.as_millis() - open.since.as_millis(), time.as_millis() as u64, "how long it is open");
    let tried = done(&h, vec![reserves(&key, 1, SLOW, false)]).await?;
    ensure!(matches!(tried[..], [Lead::Later(_)]), "{tried:?} for one that tries while it is open");
    does(&h, breaks(time * 2, &"é".repeat(400))).await?;
    let Some(again) = listed().await? else { return Err(Violation::new("a breaker that is opened again")) };
    equal!(again.since, open.since, "since when it is not closed");
    ensure!(again.until > open.until, "it is open until {:?}, no longer than before", again.until);
    equal!(again.reason.len(), MAX_REASON_LEN, "the length of a reason that is too long");
    does(&h, breaks(Duration::ZERO, "")).await?;
    one.until(&Call::Closed(key.clone(), Duration::ZERO)).await?;
    equal!(listed().await?, None, "a breaker that was closed");
    let before = one.seen;
    does(&h, breaks(Duration::ZERO, "")).await?;
    does(&h, breaks(time, "x")).await?;
    one.until(&Call::Closed(key.clone(), time)).await?;
    ensure!(one.seen > before, "it is not told that it is open again");
    Ok(())
}

async fn a_rate_without_tokens_reserves_none(h: Harness) -> Verdict {
    let (key, none) = (key(&h, "a")?, Rate::per_second(0));
    let charges = TokenStep::Charges { key: key.clone(), tokens: 1, rate: none };
    let leads = done(&h, vec![reserves(&key, 1, none, true), charges, reserves(&key, 1, SLOW, true)]).await?;
    ensure!(matches!(leads[..], [Lead::Never, Lead::At(..=0)]), "{leads:?} of none, and of the next rate");
    Ok(())
}

async fn reservations_follow_the_rules(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let role = h.backend.permits()?;
    let pattern: LimitPattern = key.parts().0.parse()?;
    let before = role.limit_rules().await?.version;
    role.set_limit_rule(&pattern, Some(LimitBound::Rate(SLOW.burst(3)))).await?;
    let stale = Reservation { version: before, steps: vec![reserves(&key, 1, SLOW, true)] };
    match role.reserve(&stale).await? {
        Reserved::Changed(rules) => {
            equal!(rules.rate(&key, Rate::per_second(7)), SLOW.burst(3), "the rate that is returned");
            equal!(rules.at_most(&key, 7), 7, "units of a rule for a rate");
        }
        Reserved::Done(_) => return Err(Violation::new("tokens are reserved by rules that have changed")),
    }
    equal!(reserve(&h, &key, 1, SLOW).await?, 0, "the lead after a reservation that was not done");
    role.set_limit_rule(&pattern, None).await?;
    Ok(())
}

async fn a_reservation_out_of_bounds_is_refused(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let too_long = SLOW.burst(0);
    for steps in [vec![reserves(&key, 1, SLOW, true); MAX_STEPS + 1], vec![reserves(&key, 1, too_long, true)]]
    {
        let reservation = Reservation { version: 0, steps };
        let answer = h.backend.permits()?.reserve(&reservation).await;
        refused(answer, ErrorKind::InvalidConfig, "a reservation")?;
    }
    equal!(reserve(&h, &key, 1, SLOW).await?, 0, "the lead after what was refused");
    Ok(())
}
