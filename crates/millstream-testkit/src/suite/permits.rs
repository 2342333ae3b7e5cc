//! The permits role: units of limits are counted across holders, all or none, and a right that ends frees them.

pub(super) mod holders;
pub(super) mod rates;

use std::time::Duration;

use millstream_core::permits::{
    Call, Exchange, Exchanged, LimitBound, MAX_STEPS, PermitHolder, PermitKey, PermitState, Permits, Step,
    Take, Taken, Want,
};
use millstream_core::{Continuity, ErrorKind, LimitKey, LimitName, LimitPattern, MessageId};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};

suite!("permits":
    units_are_granted_up_to_the_limit,
    a_take_gets_all_or_none,
    who_waits_for_one_key_waits_for_no_other,
    a_cost_above_the_limit_runs_alone,
    a_limit_of_zero_grants_nothing,
    who_waits_is_called_when_units_are_free,
    who_does_not_wait_is_not_called,
    the_first_that_waits_comes_first,
    who_leaves_is_not_waited_for,
    who_has_units_learns_that_others_wait,
    what_a_holder_states_frees_the_rest_and_takes_nothing,
    an_exchange_that_comes_late_changes_nothing,
    the_rules_are_versioned_and_told,
    keys_in_use_are_listed,
    an_exchange_out_of_bounds_is_refused,
);

/// A holder that has joined.
struct Party {
    h: Harness,
    holder: PermitHolder,
    number: u64,
    seen: MessageId,
}

impl Party {
    async fn new(h: &Harness) -> Result<Self, Violation> {
        Self::with_ttl(h, LONG).await
    }

    async fn with_ttl(h: &Harness, ttl: Duration) -> Result<Self, Violation> {
        let holder = PermitHolder::new(h.unique("holder"))?;
        let joined = h.backend.permits()?.renew(&holder, ttl, &Continuity::new(ttl), true).await?;
        Ok(Self { h: h.clone(), holder, number: 0, seen: joined.seen })
    }

    fn role(&self) -> Result<&dyn Permits, Violation> {
        Ok(&**self.h.backend.permits()?)
    }

    async fn exchange(&mut self, steps: &[Step]) -> Result<Vec<Taken>, Violation> {
        let mut version = 0;
        // The rules are those of the whole namespace: another case may change them.
        loop {
            self.number += 1;
            let (holder, number, steps) = (self.holder.clone(), self.number, steps.to_vec());
            match self.role()?.exchange(&Exchange { holder, number, version, steps }).await? {
                Exchanged::Done(taken) => return Ok(taken),
                Exchanged::Changed(rules) => version = rules.version,
            }
        }
    }

    async fn take(&mut self, key: &PermitKey, units: u32, at_most: u32) -> Result<Taken, Violation> {
        self.take_all(&[(key, units, at_most)]).await
    }

    async fn take_all(&mut self, wants: &[(&PermitKey, u32, u32)]) -> Result<Taken, Violation> {
        let taken = self.exchange(&[Step::Takes(Take { wants: wanted(wants), waits: true })]).await?;
        taken.first().copied().ok_or_else(|| Violation::new("a take has no answer"))
    }

    async fn has(&mut self, key: &PermitKey, units: u32) -> Verdict {
        self.exchange(&[Step::Has(key.clone(), units)]).await.map(drop)
    }

    /// The calls that come, until there is none for a while.
    async fn calls(&mut self) -> Result<Vec<Call>, Violation> {
        let mut calls = Vec::new();
        loop {
            let found = self.role()?.called(&self.holder, self.seen, QUIET).await?;
            ensure!(!found.missed, "calls are said to be lost");
            if found.calls.is_empty() && found.seen == self.seen {
                return Ok(calls);
            }
            self.seen = found.seen;
            // Calls to all holders may come of other cases.
            let own = |call: &Call| !matches!(call, Call::Rules | Call::Closed(..));
            calls.extend(found.calls.into_iter().filter(own));
        }
    }

    /// Waits for this call.
    async fn until(&mut self, expected: &Call) -> Verdict {
        let mut deadline = self.h.wait_for("a call");
        loop {
            let found = self.role()?.called(&self.holder, self.seen, QUIET).await?;
            self.seen = found.seen;
            if found.calls.contains(expected) {
                return Ok(());
            }
            deadline.pause().await?;
        }
    }
}

fn wanted(wants: &[(&PermitKey, u32, u32)]) -> Vec<Want> {
    let want = |(key, units, at_most): &(&PermitKey, u32, u32)| Want {
        key: (*key).clone(),
        units: *units,
        at_most: *at_most,
    };
    wants.iter().map(want).collect()
}

fn key(h: &Harness, name: &str) -> Result<PermitKey, Violation> {
    Ok(PermitKey::new(
        &LimitName::new(h.unique("limit"))?,
        &LimitKey::new([name.as_bytes(), b"\0 %;|!\xff"])?,
    ))
}

async fn state(h: &Harness, key: &PermitKey) -> Result<Option<PermitState>, Violation> {
    let mut from = Some(0);
    while let Some(at) = from {
        let page = h.backend.permits()?.usage(at, 100).await?;
        if let Some(state) = page.keys.into_iter().find(|state| state.key == *key) {
            return Ok(Some(state));
        }
        from = page.next;
    }
    Ok(None)
}

async fn units_are_granted_up_to_the_limit(h: Harness) -> Verdict {
    let (key, other) = (key(&h, "a")?, key(&h, "a")?);
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    equal!(one.take(&key, 1, 3).await?, Taken::Granted, "the first of three");
    equal!(one.take(&key, 1, 3).await?, Taken::Granted, "the second of three");
    equal!(two.take(&key, 1, 3).await?, Taken::Granted, "the third of three, by another holder");
    equal!(two.take(&key, 1, 3).await?, Taken::Short(0), "a fourth of three");
    equal!(two.take(&other, 1, 3).await?, Taken::Granted, "the same key of another limit");
    Ok(())
}

async fn a_take_gets_all_or_none(h: Harness) -> Verdict {
    let (full, free) = (key(&h, "full")?, key(&h, "free")?);
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    equal!(one.take(&full, 1, 1).await?, Taken::Granted, "the only unit");
    equal!(two.take_all(&[(&free, 1, 1), (&full, 1, 1)]).await?, Taken::Short(1), "which one is short");
    equal!(one.take(&free, 1, 1).await?, Taken::Granted, "what a take that got nothing asked for");
    Ok(())
}

async fn who_waits_for_one_key_waits_for_no_other(h: Harness) -> Verdict {
    let (a, b) = (key(&h, "a")?, key(&h, "b")?);
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    one.take_all(&[(&a, 1, 1), (&b, 1, 1)]).await?;
    equal!(two.take_all(&[(&a, 1, 1), (&b, 1, 1)]).await?, Taken::Short(0), "two keys that another has");
    one.has(&a, 0).await?;
    two.until(&Call::Free(a.clone())).await?;
    equal!(two.take_all(&[(&a, 1, 1), (&b, 1, 1)]).await?, Taken::Short(1), "the second of both");
    equal!(one.take(&a, 1, 1).await?, Taken::Granted, "the first one, for which nobody waits now");
    Ok(())
}

async fn a_cost_above_the_limit_runs_alone(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    equal!(one.take(&key, 5, 3).await?, Taken::Granted, "5 of 3 while nobody has any");
    equal!(
        state(&h, &key).await?.map(|state| state.held),
        Some(vec![(one.holder.clone(), 5)]),
        "what it has"
    );
    equal!(two.take(&key, 1, 3).await?, Taken::Short(0), "one beside it");
    one.has(&key, 0).await?;
    equal!(two.take(&key, 1, 3).await?, Taken::Granted, "one when it was given back");
    equal!(one.take(&key, 3, 3).await?, Taken::Short(0), "three beside one");
    equal!(one.take(&key, 5, 3).await?, Taken::Short(0), "five beside one");
    two.has(&key, 0).await?;
    one.until(&Call::Free(key.clone())).await?;
    equal!(one.take(&key, 5, 3).await?, Taken::Granted, "five alone again");
    Ok(())
}

async fn a_limit_of_zero_grants_nothing(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let mut one = Party::new(&h).await?;
    equal!(one.take(&key, 1, 0).await?, Taken::Short(0), "one of zero");
    equal!(one.calls().await?, [], "calls for a key that is closed");
    equal!(one.take(&key, 1, 1).await?, Taken::Granted, "one of one");
    Ok(())
}

async fn who_waits_is_called_when_units_are_free(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    equal!(two.take(&key, 1, 1).await?, Taken::Short(0), "a second of one");
    equal!(two.take(&key, 1, 1).await?, Taken::Short(0), "a second of one, asked for again");
    equal!(two.calls().await?, [], "calls before anything is free");
    one.has(&key, 0).await?;
    two.until(&Call::Free(key.clone())).await?;
    equal!(two.calls().await?, [], "calls for the same unit");
    equal!(two.take(&key, 1, 1).await?, Taken::Granted, "the unit that it was called for");
    Ok(())
}

async fn who_does_not_wait_is_not_called(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    let take = Take { wants: wanted(&[(&key, 1, 1)]), waits: false };
    equal!(two.exchange(&[Step::Takes(take)]).await?, [Taken::Short(0)], "a second of one");
    one.has(&key, 0).await?;
    equal!(two.calls().await?, [], "calls for who does not wait");
    equal!(one.take(&key, 1, 1).await?, Taken::Granted, "the unit that nobody waits for");
    Ok(())
}

async fn the_first_that_waits_comes_first(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two, mut three) = (Party::new(&h).await?, Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    two.take(&key, 1, 1).await?;
    three.take(&key, 1, 1).await?;
    one.has(&key, 0).await?;
    equal!(one.take(&key, 1, 1).await?, Taken::Short(0), "a take by who came last");
    equal!(three.take(&key, 1, 1).await?, Taken::Short(0), "a take by who is second");
    equal!(three.calls().await?, [], "calls for who is second");
    two.until(&Call::Free(key.clone())).await?;
    equal!(two.take(&key, 1, 1).await?, Taken::Contended, "a take by who is first, while others wait");
    two.has(&key, 0).await?;
    three.until(&Call::Free(key.clone())).await?;
    equal!(three.take(&key, 1, 1).await?, Taken::Contended, "a take by who is second, after the first");
    Ok(())
}

async fn who_leaves_is_not_waited_for(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two, mut three) = (Party::new(&h).await?, Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    two.take(&key, 1, 1).await?;
    three.take(&key, 1, 1).await?;
    one.has(&key, 0).await?;
    two.until(&Call::Free(key.clone())).await?;
    two.exchange(&[Step::Leaves(key.clone())]).await?;
    three.until(&Call::Free(key.clone())).await?;
    equal!(three.take(&key, 1, 1).await?, Taken::Granted, "a take by who comes next");
    Ok(())
}

async fn who_has_units_learns_that_others_wait(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    one.take(&key, 1, 1).await?;
    equal!(one.calls().await?, [], "calls while it waits for itself");
    // It waits itself, and has to know of the other one all the same.
    two.take(&key, 1, 1).await?;
    one.until(&Call::Wanted(key.clone())).await
}

async fn what_a_holder_states_frees_the_rest_and_takes_nothing(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 3, 3).await?;
    one.has(&key, 1).await?;
    equal!(two.take(&key, 3, 3).await?, Taken::Short(0), "more than was given back");
    equal!(two.take(&key, 2, 3).await?, Taken::Granted, "what was given back");
    one.has(&key, 3).await?;
    two.has(&key, 0).await?;
    equal!(two.take(&key, 2, 3).await?, Taken::Granted, "what was stated without a take");
    one.has(&key, 0).await?;
    one.has(&key, 0).await?;
    equal!(two.take(&key, 1, 3).await?, Taken::Granted, "the rest, given back twice");
    equal!(two.take(&key, 1, 3).await?, Taken::Short(0), "a unit that was given back twice");
    Ok(())
}

async fn an_exchange_that_comes_late_changes_nothing(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    equal!(one.take(&key, 1, 2).await?, Taken::Granted, "a take");
    let takes = Step::Takes(Take { wants: wanted(&[(&key, 1, 2)]), waits: true });
    let version = one.role()?.limit_rules().await?.version;
    let late = Exchange { holder: one.holder.clone(), number: one.number, version, steps: vec![takes] };
    ensure!(one.role()?.exchange(&late).await.is_err(), "an exchange with an old number is done");
    equal!(two.take(&key, 1, 2).await?, Taken::Granted, "a unit that a late take must not have");
    Ok(())
}

async fn the_rules_are_versioned_and_told(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let role = h.backend.permits()?;
    let pattern: LimitPattern = key.parts().0.parse()?;
    let mut one = Party::new(&h).await?;
    let before = role.limit_rules().await?.version;
    let version = role.set_limit_rule(&pattern, Some(LimitBound::AtMost(7))).await?;
    ensure!(version > before, "version {version} after {before}");
    one.until(&Call::Rules).await?;
    let rules = role.limit_rules().await?;
    ensure!(rules.version >= version, "version {} of the rules after {version}", rules.version);
    equal!(rules.at_most(&key, 1), 7, "what the rule says");
    one.number += 1;
    let takes = Step::Takes(Take { wants: wanted(&[(&key, 1, 1)]), waits: true });
    let steps = vec![takes];
    let stale = Exchange { holder: one.holder.clone(), number: one.number, version: before, steps };
    match role.exchange(&stale).await? {
        Exchanged::Changed(told) => equal!(told.at_most(&key, 1), 7, "the rule that is returned"),
        Exchanged::Done(_) => return Err(Violation::new("a take by rules that have changed is done")),
    }
    equal!(state(&h, &key).await?, None, "the units of a take that was not done");
    let removed = role.set_limit_rule(&pattern, None).await?;
    ensure!(removed > version, "version {removed} after {version}");
    equal!(role.limit_rules().await?.at_most(&key, 1), 1, "the default, once the rule is removed");
    Ok(())
}

async fn keys_in_use_are_listed(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let (mut one, mut two, mut three) = (Party::new(&h).await?, Party::new(&h).await?, Party::new(&h).await?);
    one.take(&key, 2, 2).await?;
    two.take(&key, 1, 2).await?;
    three.take(&key, 1, 2).await?;
    let mut expected = PermitState::new(key.clone(), 2);
    expected.held = vec![(one.holder.clone(), 2)];
    expected.waiting = vec![two.holder.clone(), three.holder.clone()];
    equal!(state(&h, &key).await?, Some(expected.clone()), "the state of a key");
    h.backend.permits()?.end(&two.holder).await?;
    expected.waiting.remove(0);
    equal!(state(&h, &key).await?, Some(expected), "its state without a holder that was ended");
    one.has(&key, 0).await?;
    three.exchange(&[Step::Leaves(key.clone())]).await?;
    equal!(state(&h, &key).await?, None, "a key that nobody uses");
    Ok(())
}

async fn an_exchange_out_of_bounds_is_refused(h: Harness) -> Verdict {
    let key = key(&h, "a")?;
    let one = Party::new(&h).await?;
    let take = |wants| Step::Takes(Take { wants, waits: true });
    let twice = wanted(&[(&key, 1, 1), (&key, 1, 1)]);
    for steps in [vec![take(Vec::new())], vec![take(twice)], vec![Step::Leaves(key.clone()); MAX_STEPS + 1]] {
        let exchange = Exchange { holder: one.holder.clone(), number: 1, version: 0, steps };
        refused(one.role()?.exchange(&exchange).await, ErrorKind::InvalidConfig, "an exchange")?;
    }
    equal!(state(&h, &key).await?, None, "units of a refused exchange");
    Ok(())
}
