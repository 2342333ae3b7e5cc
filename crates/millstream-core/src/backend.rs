//! A backend: one implementation of every role, behind trait objects.

use std::fmt;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::dead_letters::DeadLetters;
use crate::leases::Leases;
use crate::log::Log;
use crate::schedule::Schedule;

/// The roles that the runtime works with. Cloning is cheap.
///
/// A type that implements all roles becomes one with [`Backend::new`]. The fields are public so that a
/// single role can be wrapped or replaced.
#[derive(Clone)]
pub struct Backend {
    /// Append, fetch, settle, trim.
    pub log: Arc<dyn Log>,
    /// What is due later.
    pub schedule: Arc<dyn Schedule>,
    /// Ownership.
    pub leases: Arc<dyn Leases>,
    /// What will not be retried.
    pub dead_letters: Arc<dyn DeadLetters>,
    /// Topics and groups.
    pub catalog: Arc<dyn Catalog>,
}

impl Backend {
    /// A backend whose roles are all played by one value.
    #[must_use]
    pub fn new<B>(backend: B) -> Self
    where
        B: Log + Schedule + Leases + DeadLetters + Catalog + 'static,
    {
        let backend = Arc::new(backend);
        Self {
            log: backend.clone(),
            schedule: backend.clone(),
            leases: backend.clone(),
            dead_letters: backend.clone(),
            catalog: backend,
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}
