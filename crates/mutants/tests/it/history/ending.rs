//! What must be true in the end.

use millstream_testkit::history::{End, Event, Outcome, Told};

use super::story::{MS, Story, breaks, group, holds, origin, place, rules, story, tp};

#[test]
fn a_message_that_nobody_handled_is_lost() {
    let mut lost = story();
    lost.handle(1, 1);
    breaks("NO-LOSS", &lost);
}

#[test]
fn a_handler_that_failed_is_no_end() {
    let mut lost = story();
    lost.handle(1, 1);
    let start = lost.start(2, 1, 1);
    lost.end(start, End::Failed(MS(1)));
    breaks("NO-LOSS", &lost);
}

#[test]
fn a_message_is_stored_once() {
    let mut twice = story();
    twice.handle(1, 1);
    twice.handle(2, 1);
    twice.tell(Event::Appended { place: place(3), message: Some("m1".into()), key: Some("k".into()) });
    twice.handle(3, 1);
    breaks("PRODUCE-ONCE", &twice);
}

#[test]
fn a_sender_that_is_told_a_lie() {
    let mut stored = story();
    stored.handle(1, 1);
    stored.handle(2, 1);
    stored.tell(Event::Sent { message: "m1".into(), outcome: Outcome::Fail });
    breaks("HONEST-OUTCOME", &stored);

    let mut missing = story();
    missing.handle(1, 1);
    missing.handle(2, 1);
    missing.tell(Event::Sent { message: "m1".into(), outcome: Outcome::Ok(place(7)) });
    breaks("HONEST-OUTCOME", &missing);
}

#[test]
fn a_sender_whose_messages_change_places() {
    let mut swapped = Story::default();
    swapped.send(2);
    swapped.send(1);
    swapped.grant(1);
    swapped.handle(1, 1);
    swapped.handle(2, 1);
    breaks("PRODUCE-ORDER", &swapped);
}

#[test]
fn dead_letters_that_are_missing_double_changed_or_made_up() {
    let dead = || {
        let mut dead = story();
        dead.handle(1, 1);
        let start = dead.start(2, 1, 1);
        dead.end(start, End::Dead);
        dead.settle(2, Told::Dead);
        dead
    };
    breaks("DLQ-COMPLETE", &dead());

    let mut double = dead();
    double.letter(2, "rejected", 1);
    double.letter(2, "rejected", 1);
    breaks("DLQ-COMPLETE", &double);

    let mut changed = dead();
    let message = Some("x".into());
    changed.tell(Event::Dead { origin: origin(2), message, reason: "rejected".into(), attempts: 1 });
    breaks("DLQ-COMPLETE", &changed);

    let mut acked = dead();
    acked.letter(2, "rejected", 1);
    acked.letter(1, "malformed", 1);
    breaks("DLQ-COMPLETE", &acked);

    let mut counted = dead();
    counted.letter(2, "rejected", 3);
    breaks("DLQ-COMPLETE", &counted);

    let mut reasonless = dead();
    reasonless.letter(2, "malformed", 1);
    breaks("DLQ-COMPLETE", &reasonless);

    let mut whole = dead();
    whole.letter(2, "rejected", 1);
    holds(rules(), &whole);
}

#[test]
fn what_is_left_over_in_the_end() {
    let mut left = story();
    left.handle(1, 1);
    left.handle(2, 1);
    left.tell(Event::Left { topic_partition: tp(), group: group(), entries: 1 });
    breaks("CONSERVATION", &left);

    let mut untold = story();
    untold.handle(1, 1);
    let start = untold.start(2, 1, 1);
    untold.end(start, End::Acked);
    breaks("CONSERVATION", &untold);
}

#[test]
fn what_the_server_forgot_and_what_somebody_deleted_is_not_lost() {
    let mut gone = story();
    gone.handle(1, 1);
    gone.tell(Event::Deleted(place(2)));
    gone.tell(Event::Forgot(MS(8)));
    holds(rules(), &gone);

    let mut forgot = story();
    forgot.handle(1, 1);
    forgot.tell(Event::Forgot(MS(3)));
    holds(rules(), &forgot);
}
