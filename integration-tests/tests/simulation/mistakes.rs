//! Who guards the simulation: it has to find backends that make a classic mistake.

use millstream_core::Backend;
use millstream_testkit::broken::{Broken, Sabotage};

use crate::scenario::Scenario;
use crate::{watchdog, world};

/// How many seeds it gets for each.
const PATIENCE: u64 = 400;

/// Mistakes that show in what handlers see or in what is left. Others cost time, or matter to callers that are not here.
const MISTAKES: [Sabotage; 36] = [
    Sabotage::AppendForgets,
    Sabotage::PendingSkipped,
    Sabotage::PendingReversed,
    Sabotage::GroupsCompete,
    Sabotage::GhostsHidden,
    Sabotage::LostGroupHidden,
    Sabotage::FenceIgnoredOnFetch,
    Sabotage::FenceCheckedBeforeTheWait,
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
    Sabotage::HeartbeatsForgotten,
    Sabotage::PublishForgotten,
];

#[test]
fn every_mistake_is_found() {
    let unfound: Vec<_> =
        MISTAKES.iter().filter(|mistake| !(0..PATIENCE).any(|seed| finds(seed, **mistake))).collect();
    assert!(unfound.is_empty(), "{PATIENCE} seeds each did not find {unfound:?}");
}

/// Whether a run on a backend with this mistake goes wrong.
fn finds(seed: u64, mistake: Sabotage) -> bool {
    let _watched = watchdog::watch(seed);
    let broken = |memory| Backend::from(Broken::new(memory, mistake)).in_process();
    !world::run_on(&Scenario::new(seed), broken).breaches.is_empty()
}
