//! A case of the suite.

use std::fmt;

use futures_util::future::BoxFuture;

use crate::harness::Harness;

pub use crate::violation::{Verdict, Violation};
pub(crate) use crate::violation::{ensure, equal, refused};

/// One rule for backends, as a test.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The role under test: `log`, `leases`, `schedule`, `recurring`, `tasks`, `dead_letters`, `catalog`, `members`,
    /// `shared`, `inspect` or `audit`.
    pub role: &'static str,
    /// The rule in snake case: `an_acked_entry_is_never_handed_out_again`.
    pub name: &'static str,
    /// Whether it needs [`Harness::with_operator`]; without one it is violated.
    pub needs_operator: bool,
    /// Runs it.
    pub run: fn(Harness) -> BoxFuture<'static, Verdict>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.role, self.name)
    }
}
