//! Every check can fail: a good history is told without a breach, and each of these bad ones breaks its rule.
#![allow(missing_docs)]

use std::time::Duration;

use millstream_core::{GroupName, MessageId, TopicPartition};
use millstream_testkit::history::{
    Breach, Call, End, Event, Order, Origin, Outcome, Place, Record, Rules, Start, Told, check,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn tp() -> TopicPartition {
    TopicPartition::new("t".parse().expect("name"), 0)
}

fn group() -> GroupName {
    "g".parse().expect("name")
}

fn place(id: u64) -> Place {
    Place { topic_partition: tp(), id: MessageId::new(id, 0) }
}

fn origin(id: u64) -> Origin {
    Origin { group: group(), place: place(id) }
}

/// Writes a history, one millisecond per record. All messages have one key.
#[derive(Default)]
struct Story(Vec<Record>);

impl Story {
    fn tell(&mut self, event: Event) -> usize {
        let at = self.0.last().map_or(MS(0), |record| record.at + MS(1));
        self.0.push(Record { at, event });
        self.0.len() - 1
    }

    fn wait(&mut self, time: Duration) {
        let at = self.0.last().map_or(MS(0), |record| record.at) + time;
        self.0.push(Record { at, event: Event::Fault("time passes".into()) });
    }

    fn send(&mut self, id: u64) {
        let (message, key) = (format!("m{id}"), Some("k".to_owned()));
        self.tell(Event::Sending { sender: "s".into(), message: message.clone(), key: key.clone() });
        self.tell(Event::Appended { place: place(id), message: Some(message.clone()), key });
        self.tell(Event::Sent { message, outcome: Outcome::Ok(place(id)) });
    }

    fn grant(&mut self, epoch: u64) {
        let (topic_partition, group) = (tp(), group());
        self.tell(Event::Granted { topic_partition, group, epoch, again: false, ttl: MS(1_000) });
    }

    fn call(&mut self, epoch: u64, call: Call) {
        let (topic_partition, group) = (tp(), group());
        self.tell(Event::Accepted { topic_partition, group, epoch, call });
    }

    fn start(&mut self, id: u64, attempt: u32, epoch: u64) -> usize {
        self.tell(Event::Started(Start {
            instance: format!("i{epoch}"),
            origin: origin(id),
            message: format!("m{id}"),
            key: Some("k".into()),
            attempt,
            epoch,
        }))
    }

    fn end(&mut self, start: usize, end: End) {
        self.tell(Event::Ended { start, end });
    }

    fn settle(&mut self, id: u64, told: Told) {
        self.tell(Event::Settled { origin: origin(id), told, certain: true });
    }

    /// Handled at once, as it should be.
    fn handle(&mut self, id: u64, epoch: u64) {
        let start = self.start(id, 1, epoch);
        self.end(start, End::Acked);
        self.settle(id, Told::Ack);
    }

    fn letter(&mut self, id: u64, reason: &str, attempts: u32) {
        let (origin, message) = (origin(id), Some(format!("m{id}")));
        self.tell(Event::Dead { origin, message, reason: reason.into(), attempts });
    }
}

/// Two messages sent and a lease granted.
fn story() -> Story {
    let mut story = Story::default();
    story.send(1);
    story.send(2);
    story.grant(1);
    story
}

fn judge(story: Story, rules: Rules) -> Vec<Breach> {
    check(&story.0, &rules.groups([group()]))
}

fn rules() -> Rules {
    Rules::default().order(Order::Key)
}

#[track_caller]
fn breaks(rule: &str, story: Story) {
    breaks_under(rules(), rule, story);
}

#[track_caller]
fn breaks_under(rules: Rules, rule: &str, story: Story) {
    let breaches = judge(story, rules);
    assert!(breaches.iter().any(|breach| breach.rule == rule), "{rule} is not among {breaches:#?}");
}

#[track_caller]
fn holds(rules: Rules, story: Story) {
    assert_eq!(judge(story, rules), []);
}

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
    holds(rules().calm(true), good);
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
    holds(rules(), taken);
    breaks_under(rules().calm(true), "DUP-BOUND", again);
}

#[test]
fn a_message_that_nobody_handled_is_lost() {
    let mut lost = story();
    lost.handle(1, 1);
    breaks("NO-LOSS", lost);
}

#[test]
fn a_handler_that_failed_is_no_end() {
    let mut lost = story();
    lost.handle(1, 1);
    let start = lost.start(2, 1, 1);
    lost.end(start, End::Failed(MS(1)));
    breaks("NO-LOSS", lost);
}

#[test]
fn what_nobody_sent_is_a_ghost() {
    let mut ghost = story();
    ghost.handle(1, 1);
    ghost.handle(2, 1);
    ghost.handle(3, 1);
    breaks("NO-GHOST", ghost);
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
        breaks("NO-GHOST", changed);
    }
}

#[test]
fn a_message_is_stored_once() {
    let mut twice = story();
    twice.handle(1, 1);
    twice.handle(2, 1);
    twice.tell(Event::Appended { place: place(3), message: Some("m1".into()), key: Some("k".into()) });
    twice.handle(3, 1);
    breaks("PRODUCE-ONCE", twice);
}

#[test]
fn a_sender_that_is_told_a_lie() {
    let mut stored = story();
    stored.handle(1, 1);
    stored.handle(2, 1);
    stored.tell(Event::Sent { message: "m1".into(), outcome: Outcome::Fail });
    breaks("HONEST-OUTCOME", stored);

    let mut missing = story();
    missing.handle(1, 1);
    missing.handle(2, 1);
    missing.tell(Event::Sent { message: "m1".into(), outcome: Outcome::Ok(place(7)) });
    breaks("HONEST-OUTCOME", missing);
}

#[test]
fn a_sender_whose_messages_change_places() {
    let mut swapped = Story::default();
    swapped.send(2);
    swapped.send(1);
    swapped.grant(1);
    swapped.handle(1, 1);
    swapped.handle(2, 1);
    breaks("PRODUCE-ORDER", swapped);
}

#[test]
fn the_same_attempt_twice_under_one_lease() {
    let mut twice = story();
    let start = twice.start(1, 1, 1);
    twice.end(start, End::Acked);
    twice.handle(1, 1);
    twice.handle(2, 1);
    breaks("DUP-BOUND", twice);
}

#[test]
fn an_attempt_that_is_counted_without_a_failure() {
    let mut counted = story();
    let start = counted.start(1, 2, 1);
    counted.end(start, End::Acked);
    counted.settle(1, Told::Ack);
    counted.handle(2, 1);
    breaks("ATTEMPT", counted);
}

#[test]
fn what_is_done_comes_again() {
    let mut again = story();
    again.handle(1, 1);
    again.handle(2, 1);
    again.wait(MS(2_000));
    again.grant(2);
    again.handle(1, 2);
    breaks("NO-REDELIVERY", again);
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
    breaks("NO-REDELIVERY", again);
}

#[test]
fn a_rewind_explains_what_comes_again() {
    let mut again = story();
    again.handle(1, 1);
    again.tell(Event::Rewound { topic_partition: tp(), group: group() });
    again.handle(1, 1);
    again.handle(2, 1);
    holds(rules(), again);
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
        breaks("DELAY-EARLY", early);
    }
}

#[test]
fn messages_of_a_key_that_change_places() {
    let mut swapped = story();
    swapped.handle(2, 1);
    swapped.handle(1, 1);
    let free = Story(swapped.0.clone());
    breaks("KEY-ORDER", swapped);
    holds(rules().order(Order::Free), free);
}

#[test]
fn messages_of_a_key_that_run_at_the_same_time() {
    let mut both = story();
    let (one, two) = (both.start(1, 1, 1), both.start(2, 1, 1));
    both.end(one, End::Acked);
    both.end(two, End::Acked);
    both.settle(1, Told::Ack);
    both.settle(2, Told::Ack);
    breaks("OVERLAP", both);
}

#[test]
fn a_batch_starts_at_once_and_has_one_message_of_a_key() {
    let batch = || {
        let mut batch = story();
        let (one, two) = (batch.start(1, 1, 1), batch.start(2, 1, 1));
        batch.0[two].at = batch.0[one].at;
        batch.end(one, End::Acked);
        batch.end(two, End::Acked);
        batch.settle(1, Told::Ack);
        batch.settle(2, Told::Ack);
        batch
    };
    holds(rules().order(Order::Partition).batches(true), batch());
    breaks_under(rules().order(Order::Partition), "OVERLAP", batch());
    breaks_under(rules().order(Order::Key).batches(true), "OVERLAP", batch());
}

#[test]
fn more_handlers_at_a_time_than_there_may_be() {
    let mut both = story();
    let (one, two) = (both.start(1, 1, 1), both.start(2, 1, 1));
    both.end(one, End::Acked);
    both.end(two, End::Acked);
    both.settle(1, Told::Ack);
    both.settle(2, Told::Ack);
    let again = Story(both.0.clone());
    breaks_under(rules().order(Order::Free).at_once(1), "CROWD", both);
    holds(rules().order(Order::Free).at_once(2), again);
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
    breaks_under(rules().crashes(1), "POISON-BOUND", deadly());
    holds(rules().crashes(2), deadly());
}

#[test]
fn a_message_that_failed_holds_up_its_key_where_that_is_promised() {
    let overtaken = || {
        let mut overtaken = story();
        let start = overtaken.start(1, 1, 1);
        overtaken.end(start, End::Failed(MS(10)));
        overtaken.settle(1, Told::Again(2, MS(10)));
        overtaken.handle(2, 1);
        overtaken.wait(MS(20));
        let start = overtaken.start(1, 2, 1);
        overtaken.end(start, End::Acked);
        overtaken.settle(1, Told::Ack);
        overtaken
    };
    holds(rules(), overtaken());
    breaks_under(rules().order(Order::KeyBlocks), "BLOCKED", overtaken());
    breaks_under(rules().order(Order::PartitionBlocks), "BLOCKED", overtaken());
}

#[test]
fn the_server_obeys_a_lease_that_is_over() {
    let mut old = story();
    old.wait(MS(2_000));
    old.grant(2);
    old.call(1, Call::Settle);
    old.handle(1, 2);
    old.handle(2, 2);
    breaks("FENCED", old);

    let mut released = story();
    released.handle(1, 1);
    released.handle(2, 1);
    released.call(1, Call::Release);
    released.call(1, Call::Fetch);
    breaks("FENCED", released);
}

#[test]
fn a_second_owner() {
    let mut second = story();
    second.grant(2);
    second.handle(1, 2);
    second.handle(2, 2);
    breaks("SINGLE-OWNER", second);

    let mut renewed = story();
    renewed.wait(MS(900));
    renewed.call(1, Call::Renew);
    renewed.wait(MS(900));
    renewed.grant(2);
    renewed.handle(1, 2);
    renewed.handle(2, 2);
    breaks("SINGLE-OWNER", renewed);
}

#[test]
fn an_epoch_that_does_not_grow_also_after_a_fail_over() {
    let mut same = story();
    same.handle(1, 1);
    same.handle(2, 1);
    same.tell(Event::Forgot(MS(6)));
    same.grant(1);
    breaks("EPOCH-MONO", same);
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
    breaks("STALE-START", stale(false));
    holds(rules(), stale(true));
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
    breaks("DLQ-COMPLETE", dead());

    let mut double = dead();
    double.letter(2, "rejected", 1);
    double.letter(2, "rejected", 1);
    breaks("DLQ-COMPLETE", double);

    let mut changed = dead();
    let message = Some("x".into());
    changed.tell(Event::Dead { origin: origin(2), message, reason: "rejected".into(), attempts: 1 });
    breaks("DLQ-COMPLETE", changed);

    let mut acked = dead();
    acked.letter(2, "rejected", 1);
    acked.letter(1, "malformed", 1);
    breaks("DLQ-COMPLETE", acked);

    let mut counted = dead();
    counted.letter(2, "rejected", 3);
    breaks("DLQ-COMPLETE", counted);

    let mut reasonless = dead();
    reasonless.letter(2, "malformed", 1);
    breaks("DLQ-COMPLETE", reasonless);

    let mut whole = dead();
    whole.letter(2, "rejected", 1);
    holds(rules(), whole);
}

#[test]
fn what_is_left_over_in_the_end() {
    let mut left = story();
    left.handle(1, 1);
    left.handle(2, 1);
    left.tell(Event::Left { topic_partition: tp(), group: group(), entries: 1 });
    breaks("CONSERVATION", left);

    let mut untold = story();
    untold.handle(1, 1);
    let start = untold.start(2, 1, 1);
    untold.end(start, End::Acked);
    breaks("CONSERVATION", untold);
}

#[test]
fn what_the_server_forgot_and_what_somebody_deleted_is_not_lost() {
    let mut gone = story();
    gone.handle(1, 1);
    gone.tell(Event::Deleted(place(2)));
    gone.tell(Event::Forgot(MS(8)));
    holds(rules(), gone);

    let mut forgot = story();
    forgot.handle(1, 1);
    forgot.tell(Event::Forgot(MS(3)));
    holds(rules(), forgot);
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
    breaks("NO-LOSS", replayed());
    let mut handled = replayed();
    handled.handle(2, 1);
    holds(rules(), handled);
}
