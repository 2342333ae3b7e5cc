//! The rules that every backend must keep, as test cases; one file per role.

mod audit;
mod batches;
mod cancels;
mod catalog;
mod claims;
mod dead_letters;
mod idempotency;
mod inspect;
mod leases;
mod locks;
mod log;
mod members;
mod permits;
mod recurring;
mod schedule;
mod shared;
mod steps;
mod tasks;

use millstream_core::Backend;

use crate::case::Case;
use crate::case::list::suite;

/// Returns all cases, role by role: what a backend has to pass that supports everything.
#[must_use]
pub fn cases() -> Vec<Case> {
    [
        log::cases(),
        leases::cases(),
        schedule::cases(),
        recurring::cases(),
        tasks::cases(),
        dead_letters::cases(),
        dead_letters::claiming::cases(),
        dead_letters::putting::cases(),
        dead_letters::trimming::cases(),
        catalog::cases(),
        catalog::growing::cases(),
        catalog::altering::cases(),
        catalog::dictionaries::cases(),
        catalog::deleting::cases(),
        catalog::remembering::cases(),
        catalog::pausing::cases(),
        catalog::standing::cases(),
        members::cases(),
        shared::cases(),
        idempotency::cases(),
        locks::cases(),
        locks::operators::cases(),
        permits::cases(),
        cancels::cases(),
        batches::cases(),
        steps::cases(),
        permits::holders::cases(),
        permits::rates::cases(),
        inspect::cases(),
        audit::cases(),
        claims::cases(),
    ]
    .concat()
}

/// Returns the cases of packs: what holds on topics whose messages are stored many in an entry, of a backend that does so. They need a
/// harness [with a packing](crate::Harness::with_packing) that makes a pack of two messages and more.
#[must_use]
pub fn packed_cases() -> Vec<Case> {
    [log::packs::cases(), shared::packs::cases(), steps::packs::cases()].concat()
}

/// Returns the cases for what `backend` claims to support. Among them are those that check the claims themselves: that a
/// claimed operation is there, and that one that is not claimed fails with
/// [`ErrorKind::Unsupported`](millstream_core::ErrorKind::Unsupported).
#[must_use]
pub fn cases_for(backend: &Backend) -> Vec<Case> {
    cases().into_iter().filter(|case| case.applies_to(backend)).collect()
}
