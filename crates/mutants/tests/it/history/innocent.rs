//! Who is innocent: what the living keep while others die, and while the server is away.

use millstream_testkit::history::{Call, End, Event, Handing, Lives, Order, Rules, Start, Told};

use super::story::{MS, Story, breaks_under, group, holds, origin, rules, tp};

/// Two processes, one with the only partition, and two messages. Leases live for a second.
fn lived() -> Story {
    let mut story = Story::default();
    for instance in ["i1", "i2"] {
        story.tell(Event::Began { instance: instance.into(), group: group() });
        story.tell(Event::Joined { instance: instance.into(), group: group() });
    }
    publish(&mut story, &["i1", "i2"]);
    story.send(1);
    story.send(2);
    story.grant(1);
    story
}

/// The first of these has the partition.
fn publish(story: &mut Story, members: &[&str]) {
    let list = |at: usize| if at == 0 { vec![0] } else { vec![] };
    let shares = members.iter().enumerate().map(|(at, name)| ((*name).to_owned(), list(at)));
    story.tell(Event::Published { group: group(), shares: shares.collect() });
}

fn lives(lossy: bool) -> Rules {
    rules().lives(Lives { lease_ttl: MS(1_000), member_ttl: MS(1_000), lossy })
}

fn outage(story: &mut Story, lasts: u64) {
    story.tell(Event::OutageBegan);
    story.wait(MS(lasts));
    story.tell(Event::OutageEnded);
}

fn happens(story: &mut Story, event: Option<Event>) {
    if let Some(event) = event {
        story.tell(event);
    }
}

/// The other one gets the partition, and handles everything.
fn take_over(story: &mut Story) {
    story.grant(2);
    story.handle(1, 2);
    story.handle(2, 2);
}

#[test]
fn a_lease_of_a_living_process_is_taken_over() {
    let taken = |why: Option<Event>, released: bool, assigned: bool| {
        let mut story = lived();
        happens(&mut story, why);
        if released {
            story.call(1, Call::Release);
        }
        if !assigned {
            publish(&mut story, &["i2", "i1"]);
        }
        story.wait(MS(2_000));
        take_over(&mut story);
        story
    };
    breaks_under(lives(false), "KEPT", &taken(None, false, true));
    holds(lives(true), &taken(None, false, true));
    holds(lives(false), &taken(None, true, true));
    holds(lives(false), &taken(None, false, false));
    for why in [Event::Apart("i1".into()), Event::Killed("i1".into()), Event::Leaving("i1".into())] {
        holds(lives(false), &taken(Some(why), false, true));
    }
}

#[test]
fn an_outage_excuses_nothing_and_nobody_is_judged_right_after_it() {
    let taken = |lasts, later, apart: bool| {
        let mut story = lived();
        if apart {
            story.tell(Event::Apart("i1".into()));
            story.tell(Event::Together("i1".into()));
        }
        outage(&mut story, lasts);
        story.wait(MS(later));
        take_over(&mut story);
        story
    };
    breaks_under(lives(false), "KEPT", &taken(1_500, 500, false));
    breaks_under(lives(false), "KEPT", &taken(1_500, 5_000, false));
    // What was before a long outage is no excuse: all had a ttl to come back.
    breaks_under(lives(false), "KEPT", &taken(1_500, 500, true));
    breaks_under(lives(true), "KEPT", &taken(1_500, 500, true));
    holds(lives(true), &taken(1_500, 1_100, true));
    holds(lives(false), &taken(400, 1_100, true));
}

#[test]
fn an_assignment_leaves_a_living_member_out() {
    let left_out = |why: Option<Event>| {
        let mut story = lived();
        story.handle(1, 1);
        story.handle(2, 1);
        happens(&mut story, why);
        story.wait(MS(2_000));
        publish(&mut story, &["i1"]);
        story
    };
    breaks_under(lives(false), "KEPT", &left_out(None));
    holds(lives(true), &left_out(None));
    for why in [Event::Apart("i2".into()), Event::Killed("i2".into()), Event::Leaving("i2".into())] {
        holds(lives(false), &left_out(Some(why)));
    }
}

#[test]
fn a_member_is_dropped_before_an_outage_and_left_out_after_it() {
    let left_out = |apart, back| {
        let mut story = lived();
        story.handle(1, 1);
        story.handle(2, 1);
        story.tell(Event::Apart("i2".into()));
        story.wait(MS(apart));
        if back {
            story.tell(Event::Together("i2".into()));
            story.wait(MS(500));
        }
        story.tell(Event::OutageBegan);
        story.wait(MS(750));
        if !back {
            story.tell(Event::Together("i2".into()));
        }
        story.wait(MS(750));
        story.tell(Event::OutageEnded);
        story.wait(MS(100));
        publish(&mut story, &["i1"]);
        story
    };
    holds(lives(false), &left_out(1_000, false));
    // Its ttl passes during the outage, or it sends a heartbeat before.
    breaks_under(lives(false), "KEPT", &left_out(500, false));
    breaks_under(lives(false), "KEPT", &left_out(1_000, true));
}

fn hand(story: &mut Story, id: u64, to: &str, how: Handing) {
    story.tell(Event::Handed { origin: origin(id), to: to.into(), how });
}

fn start_shared(story: &mut Story, id: u64, instance: &str) -> usize {
    let (message, key) = (format!("m{id}"), Some("k".into()));
    let instance = instance.into();
    story.tell(Event::Started(Start { instance, origin: origin(id), message, key, attempt: 1, epoch: 0 }))
}

fn handle_shared(story: &mut Story, id: u64, instance: &str) {
    let start = start_shared(story, id, instance);
    story.end(start, End::Acked);
    story.settle(id, Told::Ack);
}

/// Both messages are handed to the first; it handles one, and begins with the other.
fn shared() -> Story {
    let mut story = lived();
    hand(&mut story, 1, "i1", Handing::Read);
    hand(&mut story, 2, "i1", Handing::Read);
    handle_shared(&mut story, 1, "i1");
    start_shared(&mut story, 2, "i1");
    story
}

fn shared_rules() -> Rules {
    lives(false).order(Order::Free)
}

#[test]
fn an_entry_of_a_living_consumer_is_claimed() {
    let claimed = |why: Option<Event>, how| {
        let mut story = shared();
        happens(&mut story, why);
        outage(&mut story, 1_500);
        hand(&mut story, 2, "i2", how);
        handle_shared(&mut story, 2, "i2");
        story
    };
    breaks_under(shared_rules(), "KEPT", &claimed(None, Handing::Claimed));
    breaks_under(shared_rules(), "DUP-BOUND", &claimed(None, Handing::GivenBack));
    holds(shared_rules(), &claimed(Some(Event::Killed("i1".into())), Handing::Claimed));
}

#[test]
fn what_a_shared_consumer_has_begun_it_begins_again() {
    let mut twice = shared();
    handle_shared(&mut twice, 2, "i1");
    breaks_under(shared_rules(), "DUP-BOUND", &twice);
    breaks_under(rules().order(Order::Free), "DUP-BOUND", &twice);
}

#[test]
fn a_shared_consumer_begins_with_what_another_one_has() {
    let mut story = lived();
    hand(&mut story, 1, "i1", Handing::Read);
    hand(&mut story, 2, "i2", Handing::Read);
    handle_shared(&mut story, 1, "i1");
    handle_shared(&mut story, 2, "i1");
    breaks_under(shared_rules(), "STALE-START", &story);
}

#[test]
fn what_is_repeated_after_a_takeover_needs_a_reason() {
    let repeated = |why: Option<Event>| {
        let mut story = lived();
        story.start(1, 1, 1);
        happens(&mut story, why);
        story.call(1, Call::Release);
        take_over(&mut story);
        story
    };
    breaks_under(lives(false), "DUP-BOUND", &repeated(None));
    holds(lives(true), &repeated(None));
    holds(lives(false), &repeated(Some(Event::Apart("i1".into()))));
}

#[test]
fn a_message_is_given_up_as_crashed_over_which_nobody_died() {
    let crashed = |deaths: u64| {
        let mut story = lived();
        for epoch in 1..=deaths {
            if epoch > 1 {
                story.wait(MS(2_000));
                story.grant(epoch);
            }
            story.start(1, 1, epoch);
            story.tell(Event::Killed(format!("i{epoch}")));
        }
        story.wait(MS(2_000));
        story.grant(deaths + 1);
        story.handle(2, deaths + 1);
        story.settle(1, Told::Dead);
        story.letter(1, "crashed", 1);
        story
    };
    breaks_under(rules(), "FALSE-CRASH", &crashed(0));
    breaks_under(rules().fewest_crashes(2), "FALSE-CRASH", &crashed(1));
    holds(rules().fewest_crashes(2), &crashed(2));
}

#[test]
fn who_died_during_an_outage_is_replaced_in_time() {
    let replaced = |later: Option<u64>, died: &str| {
        let mut story = lived();
        story.handle(1, 1);
        story.handle(2, 1);
        story.tell(Event::OutageBegan);
        story.tell(Event::Killed(died.into()));
        story.wait(MS(1_500));
        story.tell(Event::OutageEnded);
        story.wait(MS(later.unwrap_or(10_000)));
        if later.is_some() {
            story.grant(2);
        }
        story
    };
    // Two ttls and a second.
    holds(lives(false), &replaced(Some(2_900), "i1"));
    breaks_under(lives(false), "REPLACED", &replaced(Some(3_100), "i1"));
    breaks_under(lives(false), "REPLACED", &replaced(None, "i1"));
    holds(lives(false), &replaced(None, "i2"));
    holds(lives(true), &replaced(None, "i1"));
}

#[test]
fn an_id_that_is_given_again_names_another_message() {
    let reused = || {
        let mut story = lived();
        story.handle(1, 1);
        story.start(2, 1, 1);
        story.tell(Event::ClockSetBack(MS(1_000)));
        let snapshot = story.0[8].at;
        story.tell(Event::Forgot(snapshot));
        story.wait(MS(10));
        // The second message's id is given to another one.
        let (message, key) = (Some("m3".to_owned()), Some("k".to_owned()));
        story.tell(Event::Appended { place: origin(2).place, message, key });
        story.grant(2);
        story
    };
    // The old one's handler ends, and the server takes its word for the new one.
    let mut taken = reused();
    taken.end(15, End::Acked);
    taken.settle(2, Told::Ack);
    breaks_under(rules(), "NO-LOSS", &taken);

    let mut handled = reused();
    handled.end(15, End::Acked);
    let (message, key) = ("m3".to_owned(), Some("k".into()));
    let start = Start { instance: "i2".into(), origin: origin(2), message, key, attempt: 1, epoch: 2 };
    let start = handled.tell(Event::Started(start));
    handled.end(start, End::Acked);
    handled.settle(2, Told::Ack);
    holds(rules(), &handled);
}

#[test]
fn epochs_may_come_back_only_where_the_clock_was_set_back() {
    let again = |set_back: bool| {
        let mut story = lived();
        story.handle(1, 1);
        story.handle(2, 1);
        if set_back {
            story.tell(Event::ClockSetBack(MS(1_000)));
        }
        story.tell(Event::Forgot(MS(6)));
        story.tell(Event::Granted {
            topic_partition: tp(),
            group: group(),
            epoch: 1,
            again: false,
            ttl: MS(1_000),
            to: None,
        });
        story
    };
    breaks_under(rules(), "EPOCH-MONO", &again(false));
    holds(rules(), &again(true));
}
