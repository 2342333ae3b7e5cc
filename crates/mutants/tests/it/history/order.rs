//! In which order, and how many at the same time.

use millstream_testkit::history::{End, Order, Told};

use super::story::{MS, Story, breaks, breaks_under, holds, rules, story};

#[test]
fn messages_of_a_key_that_change_places() {
    let mut swapped = story();
    swapped.handle(2, 1);
    swapped.handle(1, 1);
    let free = Story(swapped.0.clone());
    breaks("KEY-ORDER", &swapped);
    holds(rules().order(Order::Free), &free);
}

#[test]
fn messages_of_a_key_that_run_at_the_same_time() {
    let mut both = story();
    let (one, two) = (both.start(1, 1, 1), both.start(2, 1, 1));
    both.end(one, End::Acked);
    both.end(two, End::Acked);
    both.settle(1, Told::Ack);
    both.settle(2, Told::Ack);
    breaks("OVERLAP", &both);
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
    holds(rules().order(Order::Partition).batches(true), &batch());
    breaks_under(rules().order(Order::Partition), "OVERLAP", &batch());
    breaks_under(rules().order(Order::Key).batches(true), "OVERLAP", &batch());
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
    breaks_under(rules().order(Order::Free).at_once(1), "CROWD", &both);
    holds(rules().order(Order::Free).at_once(2), &again);
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
    holds(rules(), &overtaken());
    breaks_under(rules().order(Order::KeyBlocks), "BLOCKED", &overtaken());
    breaks_under(rules().order(Order::PartitionBlocks), "BLOCKED", &overtaken());
}
