//! Histories for `order`.

use crate::chaos::record::{End, Fate, Handling, Message, Outcome, Scope};

use super::super::{KeyOrder, Limits, PlaceLimits};
use super::builder::{History, handling, message, topic};
use super::delivery::one_sent;
use super::{accepted, accepted_with, limits, rejected, rejected_with};

/// Messages 1 and 2 of one key are sent.
fn two_sent() -> History {
    let mut it = one_sent();
    it.send(message(2));
    it
}

#[test]
fn swapped_messages_of_a_key_are_rejected() {
    let mut it = two_sent();
    it.handle(20, &handling(2, 5)).handle(20, &handling(1, 5));
    let report = rejected(&it.finish(topic(), &[]), "order", "for the first time, after 2");
    assert!(report.violations.iter().any(|it| it.what.contains("both in epoch 5")));
    let free = PlaceLimits { order: KeyOrder::Free, ..PlaceLimits::default() };
    let free = Limits { place: free, ..limits() };
    accepted_with(&it.finish(topic(), &[]), &free);
}

#[test]
fn messages_of_two_keys_have_no_order_nor_have_those_of_unknown_outcome() {
    let mut it = one_sent();
    it.send(Message { key: Some(8), ..message(2) }).handle(20, &handling(2, 5)).handle(20, &handling(1, 5));
    accepted(&it.finish(topic(), &[]));
    let mut it = History::with_faults();
    it.assign(20, 5).sending(message(1)).sent(1, Outcome::Unknown("cut".to_owned())).send(message(2));
    it.handle(20, &handling(2, 5)).handle(20, &handling(1, 5));
    accepted(&it.finish(topic(), &[]));
}

#[test]
fn a_takeover_repeats_a_suffix() {
    let mut it = two_sent();
    it.handle(20, &handling(1, 5)).begin(20, &handling(2, 5)).kill(20).wait(900).assign(21, 6);
    it.handle(21, &handling(1, 6)).handle(21, &handling(2, 6));
    accepted(&it.finish(topic(), &[]));
}

#[test]
fn a_new_owner_does_not_skip_what_has_no_end() {
    let mut it = two_sent();
    it.begin(20, &handling(1, 5)).kill(20).wait(900).assign(21, 6);
    it.handle(21, &handling(2, 6)).handle(21, &handling(1, 6));
    rejected(&it.finish(topic(), &[]), "order", "before 1 of key 7");
}

#[test]
fn a_suffix_is_not_repeated_within_an_epoch() {
    let mut it = two_sent();
    it.handle(20, &handling(1, 5)).handle(20, &handling(2, 5)).handle(20, &handling(1, 5));
    rejected(&it.finish(topic(), &[]), "order", "both in epoch 5");
    let mut it = two_sent();
    it.handle(20, &handling(1, 5)).handle(20, &handling(2, 5)).fault(Scope::Data).fault_ends();
    it.handle(20, &handling(1, 5)).handle(20, &handling(2, 5));
    accepted(&it.finish(topic(), &[]));
}

#[test]
fn two_of_a_key_at_once_are_rejected() {
    let (one, two) = (handling(1, 5), handling(2, 5));
    let mut it = two_sent();
    it.begin(20, &one).begin(20, &two).effect(&one, true).effect(&two, true);
    it.end(20, &one, End::Acked).end(20, &two, End::Acked);
    rejected(&it.finish(topic(), &[]), "order", "while 1 of key 7 runs");
    let mut it = one_sent();
    it.send(Message { key: Some(8), ..message(2) });
    it.begin(20, &one).begin(20, &two).effect(&one, true).effect(&two, true);
    it.end(20, &one, End::Acked).end(20, &two, End::Acked);
    accepted(&it.finish(topic(), &[]));
}

#[test]
fn a_failure_blocks_later_ones_only_if_the_place_says_so() {
    let mut it = History::with_faults();
    it.assign(20, 5).send(Message { fate: Fate::Fail(1), ..message(1) }).send(message(2));
    it.begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Failed).handle(20, &handling(2, 5));
    it.handle(20, &Handling { attempt: 2, ..handling(1, 5) });
    let lines = it.finish(topic(), &[]);
    accepted(&lines);
    let block = PlaceLimits { order: KeyOrder::Block, ..PlaceLimits::default() };
    let block = Limits { place: block, ..limits() };
    rejected_with(&lines, &block, "order", "before 1 of key 7");
}
