//! The rules that every backend must keep, as test cases; one file per role.

mod audit;
mod catalog;
mod dead_letters;
mod inspect;
mod leases;
mod list;
mod log;
mod members;
mod recurring;
mod schedule;
mod shared;
mod tasks;

use self::list::suite;
use crate::case::Case;

/// Returns all cases, role by role.
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
        catalog::cases(),
        catalog::growing::cases(),
        catalog::altering::cases(),
        catalog::deleting::cases(),
        catalog::remembering::cases(),
        catalog::pausing::cases(),
        catalog::standing::cases(),
        members::cases(),
        shared::cases(),
        inspect::cases(),
        audit::cases(),
    ]
    .concat()
}
