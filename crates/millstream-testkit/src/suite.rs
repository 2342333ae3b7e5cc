//! The rules that every backend must keep, as test cases; one file per role.

mod audit;
mod catalog;
mod dead_letters;
mod inspect;
mod leases;
mod log;
mod members;
mod recurring;
mod schedule;
mod shared;
mod tasks;

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

/// Lists the cases of a file. A case that is not listed is dead code, which the compiler reports.
macro_rules! suite {
    ($role:literal: $($name:ident),* $(,)?; with an operator: $($operated:ident),* $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::case::Case> {
            vec![
                $(suite!(@case $role, $name, false),)*
                $(suite!(@case $role, $operated, true),)*
            ]
        }
    };
    ($role:literal: $($name:ident),* $(,)?) => {
        suite!($role: $($name),*; with an operator:);
    };
    (@case $role:literal, $name:ident, $needs_operator:literal) => {
        $crate::case::Case {
            role: $role,
            name: stringify!($name),
            needs_operator: $needs_operator,
            run: |harness| Box::pin($name(harness)),
        }
    };
}

use suite;
