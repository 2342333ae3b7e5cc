//! A backend: one implementation of every role, behind trait objects.

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
    /// What is scheduled again and again.
    pub recurring: Arc<dyn Recurring>,
    /// Delay queues, for those who want no topics.
    pub tasks: Arc<dyn Tasks>,
    /// Ownership.
    pub leases: Arc<dyn Leases>,
    /// What will not be retried.
    pub dead_letters: Arc<dyn DeadLetters>,
    /// Topics and groups.
    pub catalog: Arc<dyn Catalog>,
    /// Who is alive in a group, and who should own what.
    pub members: Arc<dyn Members>,
    /// Reading and settling as one of many, without an owner.
    pub shared: Arc<dyn Shared>,
    /// Looking at what is there.
    pub inspect: Arc<dyn Inspect>,
    /// Finding and repairing what is wrong.
    pub audit: Arc<dyn Audit>,
    /// Whether everything happens in this process, by the clock of the caller's runtime. Then the runtime keeps leases
    /// on the caller's runtime too; else on a thread of its own, which handlers cannot starve.
    pub local: bool,
    /// Counts the time that this machine was suspended, for leases that go on running out meanwhile. `None` where the
    /// runtime's own clock is all there is: in tests, for a [local](Self#structfield.local) backend, and where the
    /// platform has none.
    pub boot_clock: Option<Arc<dyn BootClock>>,
}

impl Backend {
    /// A backend whose roles are all played by one value.
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

    /// The same backend, known to live in this process. See [`local`](Self#structfield.local).
    #[must_use]
    pub fn in_process(self) -> Self {
        Self { local: true, boot_clock: None, ..self }
    }

    /// The same backend, with a clock that counts while the machine is suspended.
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
