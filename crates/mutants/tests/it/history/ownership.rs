//! Who may act.

use millstream_testkit::history::{Call, Event, Record};

use super::story::{MS, breaks, holds, rules, story};

#[test]
fn the_server_obeys_a_lease_that_is_over() {
    let mut old = story();
    old.wait(MS(2_000));
    old.grant(2);
    old.call(1, Call::Settle);
    old.handle(1, 2);
    old.handle(2, 2);
    breaks("FENCED", &old);

    let mut released = story();
    released.handle(1, 1);
    released.handle(2, 1);
    released.call(1, Call::Release);
    released.call(1, Call::Fetch);
    breaks("FENCED", &released);
}

#[test]
fn a_second_owner() {
    let mut second = story();
    second.grant(2);
    second.handle(1, 2);
    second.handle(2, 2);
    breaks("SINGLE-OWNER", &second);

    let mut renewed = story();
    renewed.wait(MS(900));
    renewed.call(1, Call::Renew);
    renewed.wait(MS(900));
    renewed.grant(2);
    renewed.handle(1, 2);
    renewed.handle(2, 2);
    breaks("SINGLE-OWNER", &renewed);
}

#[test]
fn an_epoch_that_does_not_grow_also_after_a_fail_over() {
    let mut same = story();
    same.handle(1, 1);
    same.handle(2, 1);
    same.tell(Event::Forgot(MS(6)));
    same.grant(1);
    breaks("EPOCH-MONO", &same);
}

#[test]
fn a_handler_that_starts_under_a_lease_that_is_over() {
    let stale = |stopped: bool| {
        let mut stale = story();
        stale.wait(MS(2_000));
        stale.grant(2);
        stale.handle(1, 2);
        stale.handle(2, 2);
        if stopped {
            let at = stale.0.last().expect("records").at + MS(1);
            stale.0.push(Record { at, event: Event::Resumed("i1".into()) });
        }
        stale.start(1, 1, 1);
        if stopped {
            // What it does then happens at the same time.
            let (last, before) = (stale.0.len() - 1, stale.0[stale.0.len() - 2].at);
            stale.0[last].at = before;
        }
        stale
    };
    breaks("STALE-START", &stale(false));
    holds(rules(), &stale(true));
}
