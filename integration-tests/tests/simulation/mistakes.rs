//! Who guards the simulation: it has to find backends that make a classic mistake.

use millstream_core::Backend;
use millstream_testkit::broken::{Broken, Sabotage};

use crate::scenario::Scenario;
use crate::{watchdog, world};

/// How many seeds it gets for each.
const PATIENCE: u64 = 1_000;

/// Mistakes that show in what handlers see or in what is left. Others cost time, or matter to callers that are not here.
const MISTAKES: [Sabotage; 32] = [
    Sabotage::AppendForgets,
    Sabotage::PendingSkipped,
    Sabotage::PendingReversed,
    Sabotage::GroupsCompete,
    Sabotage::FenceIgnoredOnFetch,
    Sabotage::FenceIgnoredOnSettle,
    Sabotage::FenceIgnoredOnTrim,
    Sabotage::FenceIgnoredOnPromote,
    Sabotage::FenceIgnoredOnRenew,
    Sabotage::AcksForgotten,
    Sabotage::RetryEarly,
    Sabotage::RetryLosesBody,
    Sabotage::RetryLosesStory,
    Sabotage::OriginForgotten,
    Sabotage::DeadLetterDropped,
    Sabotage::DeadLetterLosesStory,
    Sabotage::HoldForgotten,
    Sabotage::HoldIsAck,
    Sabotage::NotesLostAtTakeover,
    Sabotage::NotesShared,
    Sabotage::NoteWaitEarly,
    Sabotage::TrimsUnread,
    Sabotage::TwoOwners,
    Sabotage::RenewForgotten,
    Sabotage::LeaseNeverExpires,
    Sabotage::ReleaseForgotten,
    Sabotage::ReleaseUnchecked,
    Sabotage::EpochRepeats,
    Sabotage::ResourcesCollide,
    Sabotage::PromotedTwice,
    Sabotage::DeadLettersShared,
    Sabotage::PublishForgotten,
];

/// The mistakes of one of four tests: together they use all cores.
fn part(part: usize) {
    let mistakes = MISTAKES.iter().skip(part).step_by(4);
    let unfound: Vec<_> =
        mistakes.filter(|mistake| !(0..PATIENCE).any(|seed| finds(seed, **mistake))).collect();
    assert!(unfound.is_empty(), "{PATIENCE} seeds each did not find {unfound:?}");
}

#[test]
fn every_mistake_is_found_0() {
    part(0);
}

#[test]
fn every_mistake_is_found_1() {
    part(1);
}

#[test]
fn every_mistake_is_found_2() {
    part(2);
}

#[test]
fn every_mistake_is_found_3() {
    part(3);
}

/// Whether a run on a backend with this mistake goes wrong.
fn finds(seed: u64, mistake: Sabotage) -> bool {
    let _watched = watchdog::watch(seed);
    let broken = |memory| Backend::from(Broken::new(memory, mistake)).in_process();
    !world::run_on(&Scenario::new(seed), broken).breaches.is_empty()
}
