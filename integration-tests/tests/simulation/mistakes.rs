//! Who guards the simulation: it has to find backends that make a classic mistake.

use millstream_core::Backend;
use mutants::{Broken, Mutant};

use super::scenario::Scenario;
use super::{watchdog, world};

/// How many seeds it gets for each.
const TIME_LIMIT: u64 = 1_000;

/// Mistakes that show in what handlers see or in what is left. Others cost time, or matter to callers that are not here.
const MISTAKES: [Mutant; 32] = [
    Mutant::AppendForgets,
    Mutant::PendingSkipped,
    Mutant::PendingReversed,
    Mutant::GroupsCompete,
    Mutant::FenceIgnoredOnFetch,
    Mutant::FenceIgnoredOnSettle,
    Mutant::FenceIgnoredOnTrim,
    Mutant::FenceIgnoredOnPromote,
    Mutant::FenceIgnoredOnRenew,
    Mutant::AcksForgotten,
    Mutant::RetryEarly,
    Mutant::RetryLosesBody,
    Mutant::RetryLosesStory,
    Mutant::OriginForgotten,
    Mutant::DeadLetterDropped,
    Mutant::DeadLetterLosesStory,
    Mutant::HoldForgotten,
    Mutant::HoldIsAck,
    Mutant::NotesLostAtTakeover,
    Mutant::NotesShared,
    Mutant::NoteWaitEarly,
    Mutant::TrimsUnread,
    Mutant::TwoOwners,
    Mutant::RenewForgotten,
    Mutant::LeaseNeverExpires,
    Mutant::ReleaseForgotten,
    Mutant::ReleaseUnchecked,
    Mutant::EpochRepeats,
    Mutant::ResourcesCollide,
    Mutant::PromotedTwice,
    Mutant::DeadLettersShared,
    Mutant::PublishForgotten,
];

/// The mistakes of one of four tests: together they use all cores.
fn part(part: usize) {
    let mistakes = MISTAKES.iter().skip(part).step_by(4);
    let unfound: Vec<_> =
        mistakes.filter(|mistake| !(0..TIME_LIMIT).any(|seed| finds(seed, **mistake))).collect();
    assert!(unfound.is_empty(), "{TIME_LIMIT} seeds each did not find {unfound:?}");
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
fn finds(seed: u64, mistake: Mutant) -> bool {
    let _watched = watchdog::watch(seed);
    let broken = |memory| Backend::from(Broken::new(memory, mistake)).in_process();
    !world::run_on(&Scenario::new(seed), broken).breaches.is_empty()
}
