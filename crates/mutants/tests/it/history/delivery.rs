//! Which message a handler may get, how often, and when.

use millstream_testkit::history::{Call, End, Event, Start, Told};

use super::story::{MS, Story, breaks, breaks_under, group, holds, origin, rules, story, tp};

#[test]
fn a_good_history_breaks_nothing() {
    let mut good = story();
    good.call(1, Call::Fetch);
    let first = good.start(1, 1, 1);
    good.end(first, End::Failed(MS(100)));
    good.settle(1, Told::Again(2, MS(100)));
    good.handle(2, 1);
    good.wait(MS(200));
    let second = good.start(1, 2, 1);
    good.end(second, End::Dead);
    good.settle(1, Told::Dead);
    good.call(1, Call::Release);
    good.letter(1, "rejected", 2);
    holds(rules().calm(true), &good);
}

#[test]
fn a_takeover_explains_a_repetition_and_a_calm_run_has_none() {
    let mut taken = story();
    taken.start(1, 1, 1);
    taken.wait(MS(2_000));
    taken.grant(2);
    taken.handle(1, 2);
    taken.handle(2, 2);
    let again = Story(taken.0.clone());
    holds(rules(), &taken);
    breaks_under(rules().calm(true), "DUP-BOUND", &again);
}

#[test]
fn what_nobody_sent_is_a_ghost() {
    let mut ghost = story();
    ghost.handle(1, 1);
    ghost.handle(2, 1);
    ghost.handle(3, 1);
    breaks("NO-GHOST", &ghost);
}

#[test]
fn a_payload_or_key_that_changed_is_a_ghost() {
    for change in [|start: &mut Start| start.message = "x".into(), |start: &mut Start| start.key = None] {
        let mut changed = story();
        changed.handle(1, 1);
        changed.handle(2, 1);
        let starts = changed.0.iter_mut().find_map(|record| match &mut record.event {
            Event::Started(start) => Some(start),
            _ => None,
        });
        change(starts.expect("a start"));
        breaks("NO-GHOST", &changed);
    }
}

#[test]
fn the_same_attempt_twice_under_one_lease() {
    let mut twice = story();
    let start = twice.start(1, 1, 1);
    twice.end(start, End::Acked);
    twice.handle(1, 1);
    twice.handle(2, 1);
    breaks("DUP-BOUND", &twice);
}

#[test]
fn an_attempt_that_is_counted_without_a_failure() {
    let mut counted = story();
    let start = counted.start(1, 2, 1);
    counted.end(start, End::Acked);
    counted.settle(1, Told::Ack);
    counted.handle(2, 1);
    breaks("ATTEMPT", &counted);
}

#[test]
fn what_is_done_comes_again() {
    let mut again = story();
    again.handle(1, 1);
    again.handle(2, 1);
    again.wait(MS(2_000));
    again.grant(2);
    again.handle(1, 2);
    breaks("NO-REDELIVERY", &again);
}

#[test]
fn an_attempt_that_was_settled_is_made_again() {
    let mut again = story();
    let start = again.start(1, 1, 1);
    again.end(start, End::Failed(MS(1)));
    again.settle(1, Told::Again(2, MS(1)));
    again.wait(MS(2_000));
    again.grant(2);
    again.handle(1, 2);
    again.handle(2, 2);
    breaks("NO-REDELIVERY", &again);
}

#[test]
fn a_rewind_explains_what_comes_again() {
    let mut again = story();
    again.handle(1, 1);
    again.tell(Event::Rewound { topic_partition: tp(), group: group() });
    again.handle(1, 1);
    again.handle(2, 1);
    holds(rules(), &again);
}

#[test]
fn a_retry_that_comes_early_by_the_handlers_or_the_servers_time() {
    for certain in [true, false] {
        let mut early = story();
        let start = early.start(1, 1, 1);
        early.end(start, End::Failed(MS(if certain { 1 } else { 100 })));
        early.tell(Event::Settled { origin: origin(1), told: Told::Again(2, MS(100)), certain });
        early.wait(MS(90));
        let start = early.start(1, 2, 1);
        early.end(start, End::Acked);
        early.settle(1, Told::Ack);
        early.handle(2, 1);
        breaks("DELAY-EARLY", &early);
    }
}

#[test]
fn a_message_over_which_processes_die_for_ever() {
    let deadly = || {
        let mut deadly = story();
        deadly.start(1, 1, 1);
        deadly.tell(Event::Killed("i1".into()));
        deadly.wait(MS(2_000));
        deadly.grant(2);
        deadly.handle(1, 2);
        deadly.handle(2, 2);
        deadly
    };
    breaks_under(rules().crashes(1), "POISON-BOUND", &deadly());
    holds(rules().crashes(2), &deadly());
}

#[test]
fn a_message_that_was_put_off_is_suspected_of_nothing_any_more() {
    let put_off = |snoozes: bool| {
        let mut story = story();
        story.start(1, 1, 1);
        story.tell(Event::Killed("i1".into()));
        for epoch in 2..=3 {
            story.wait(MS(2_000));
            story.grant(epoch);
            let start = story.start(1, 1, epoch);
            if epoch == 2 && snoozes {
                story.end(start, End::Snoozed(MS(100)));
                story.settle(1, Told::Again(1, MS(100)));
            } else if epoch == 2 {
                story.tell(Event::Killed("i2".into()));
            } else {
                story.end(start, End::Acked);
                story.settle(1, Told::Ack);
            }
        }
        story.handle(2, 3);
        story
    };
    breaks_under(rules().crashes(2), "POISON-BOUND", &put_off(false));
    holds(rules().crashes(2), &put_off(true));
}

#[test]
fn a_replay_begins_anew_and_has_to_come_to_an_end() {
    let replayed = || {
        let mut replayed = story();
        replayed.handle(1, 1);
        let start = replayed.start(2, 1, 1);
        replayed.end(start, End::Dead);
        replayed.settle(2, Told::Dead);
        replayed.tell(Event::Replayed(origin(2)));
        replayed
    };
    breaks("NO-LOSS", &replayed());
    let mut handled = replayed();
    handled.handle(2, 1);
    holds(rules(), &handled);
}
