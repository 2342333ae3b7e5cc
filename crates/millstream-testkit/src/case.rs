//! A case of the suite.

pub(crate) mod list;

use std::fmt;

use futures_util::future::BoxFuture;
use millstream_core::{Backend, Capabilities, Capability};

use crate::harness::Harness;

pub use crate::violation::{Verdict, Violation};
pub(crate) use crate::violation::{ensure, equal, refused};

/// One rule for backends, as a test.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The role under test: `log`, `leases`, `schedule`, `recurring`, `tasks`, `dead_letters`, `catalog`, `members`,
    /// `shared`, `locks`, `permits`, `cancels`, `batches`, `steps`, `idempotency`, `inspect` or `audit`.
    pub role: &'static str,
    /// The rule in snake case: `an_acked_entry_is_never_handed_out_again`.
    pub name: &'static str,
    /// Whether it needs [`Harness::with_operator`]; without one it is violated.
    pub needs_operator: bool,
    /// What it needs beside its role: see [`needs`](Self::needs).
    pub(crate) beside: &'static [Capability],
    /// Runs it.
    pub run: fn(Harness) -> BoxFuture<'static, Verdict>,
}

impl Case {
    /// Returns the capabilities without which a backend cannot pass it. Empty for a case of the required core.
    #[must_use]
    pub fn needs(&self) -> Capabilities {
        let is_role = |capability: &Capability| capability.is_role() && capability.role() == self.role;
        let role = Capability::ALL.iter().copied().filter(is_role);
        role.chain(self.beside.iter().copied()).collect()
    }

    /// Whether `backend` claims everything that this case needs.
    #[must_use]
    pub fn applies_to(&self, backend: &Backend) -> bool {
        self.needs().iter().all(|need| backend.supports(need))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.role, self.name)
    }
}
