//! Backend: an implementation of every role, behind trait objects.

use std::fmt;
use std::sync::Arc;

use crate::audit::Audit;
use crate::catalog::Catalog;
use crate::dead_letters::DeadLetters;
use crate::inspect::Inspect;
use crate::leases::Leases;
use crate::log::Log;
use crate::members::Members;
use crate::recurring::Recurring;
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::suspension::BootClock;
use crate::tasks::Tasks;

/// Implementations of all roles that the runtime works with. Cloning is cheap.
///
/// A type that implements all roles becomes one with [`Backend::new`]. The fields are public so that a
/// single role can be wrapped or replaced.
#[derive(Clone)]
pub struct Backend {
    /// Appends, fetches, settles and trims.
    pub log: Arc<dyn Log>,
    /// Keeps messages that are due later.
    pub schedule: Arc<dyn Schedule>,
    /// Keeps recurring schedules.
    pub recurring: Arc<dyn Recurring>,
    /// Delay queues, for use without topics.
    pub tasks: Arc<dyn Tasks>,
    /// Grants ownership of partitions.
    pub leases: Arc<dyn Leases>,
    /// Keeps messages that will not be retried.
    pub dead_letters: Arc<dyn DeadLetters>,
    /// Keeps topics and groups.
    pub catalog: Arc<dyn Catalog>,
    /// Keeps the live members of groups and their assignments.
    pub members: Arc<dyn Members>,
    /// Reads and settles for many consumers of a partition, without an owner.
    pub shared: Arc<dyn Shared>,
    /// Lists stored data, read-only.
    pub inspect: Arc<dyn Inspect>,
    /// Finds and repairs inconsistencies.
    pub audit: Arc<dyn Audit>,
    /// Whether the backend lives in this process and uses the clock of the caller's runtime. Then leases are renewed on
    /// the caller's runtime too; otherwise on a thread of its own, which handlers cannot starve.
    pub local: bool,
    /// Clock that also counts the time for which this machine was suspended, since leases continue to expire meanwhile.
    /// `None` where only the runtime's own clock exists: in tests, for a [local](Self#structfield.local) backend, and
    /// where the platform has none.
    pub boot_clock: Option<Arc<dyn BootClock>>,
}

impl Backend {
    /// Creates a backend from one value that implements all roles.
    #[must_use]
    pub fn new<B>(backend: B) -> Self
    where
        B: Log + Schedule + Recurring + Tasks + Leases + DeadLetters + Catalog + Members + Shared,
        B: Inspect + Audit + 'static,
    {
        let backend = Arc::new(backend);
        Self {
            log: backend.clone(),
            schedule: backend.clone(),
            recurring: backend.clone(),
            tasks: backend.clone(),
            leases: backend.clone(),
            dead_letters: backend.clone(),
            catalog: backend.clone(),
            members: backend.clone(),
            shared: backend.clone(),
            inspect: backend.clone(),
            audit: backend,
            local: false,
            boot_clock: None,
        }
    }

    /// Returns the same backend, marked as living in this process. See [`local`](Self#structfield.local).
    #[must_use]
    pub fn in_process(self) -> Self {
        Self { local: true, boot_clock: None, ..self }
    }

    /// Returns the same backend, with a clock that also counts while the machine is suspended.
    #[must_use]
    pub fn with_boot_clock(self, clock: impl BootClock + 'static) -> Self {
        Self { boot_clock: Some(Arc::new(clock)), ..self }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}
