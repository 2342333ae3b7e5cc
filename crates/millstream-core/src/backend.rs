//! Backend: an implementation of the roles, behind trait objects.

mod overview;

use std::fmt;
use std::sync::Arc;

use crate::audit::Audit;
use crate::batches::Batches;
use crate::cancels::Cancels;
use crate::capability::{Capabilities, Capability};
use crate::catalog::Catalog;
use crate::dead_letters::DeadLetters;
use crate::error::{Error, Result};
use crate::idempotency::Idempotency;
use crate::inspect::Inspect;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::log::Log;
use crate::members::Members;
use crate::permits::Permits;
use crate::recurring::Recurring;
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::steps::Steps;
use crate::suspension::BootClock;
use crate::tasks::Tasks;

/// Implementations of the roles that the runtime works with. Cloning is cheap.
///
/// A type that implements all roles becomes one with [`Backend::new`]. With [`Backend::minimal`] it needs only the five
/// required roles ([`Log`], [`Leases`], [`Schedule`], [`Catalog`] and [`Members`]); the others can be added one by one,
/// and what needs an absent role fails with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported). It
/// [states](Backend::capabilities) which optional roles and operations it supports.
///
/// The `with_*` methods also wrap or replace a role:
///
/// ```
/// use std::sync::Arc;
/// use millstream_core::{Backend, Log};
///
/// fn with_wrapped_log(backend: Backend, wrap: impl Fn(Arc<dyn Log>) -> Arc<dyn Log>) -> Backend {
///     let log = wrap(backend.log().clone());
///     backend.with_log(log)
/// }
/// ```
#[derive(Clone)]
pub struct Backend {
    log: Arc<dyn Log>,
    leases: Arc<dyn Leases>,
    schedule: Arc<dyn Schedule>,
    catalog: Arc<dyn Catalog>,
    members: Arc<dyn Members>,
    dead_letters: Option<Arc<dyn DeadLetters>>,
    recurring: Option<Arc<dyn Recurring>>,
    tasks: Option<Arc<dyn Tasks>>,
    shared: Option<Arc<dyn Shared>>,
    locks: Option<Arc<dyn Locks>>,
    inspect: Option<Arc<dyn Inspect>>,
    audit: Option<Arc<dyn Audit>>,
    idempotency: Option<Arc<dyn Idempotency>>,
    permits: Option<Arc<dyn Permits>>,
    cancels: Option<Arc<dyn Cancels>>,
    batches: Option<Arc<dyn Batches>>,
    steps: Option<Arc<dyn Steps>>,
    /// The optional operations that are claimed; roles are claimed by being there.
    operations: Capabilities,
    /// What was left out when the backend was compiled, with the feature that brings it.
    left_out: &'static [(Capability, &'static str)],
    in_process: bool,
    lasting: bool,
    boot_clock: Option<Arc<dyn BootClock>>,
}

/// Construction.
impl Backend {
    /// Creates a backend from one value that implements all roles. It claims every optional operation.
    #[must_use]
    pub fn new<B>(backend: B) -> Self
    where
        B: Log + Schedule + Recurring + Tasks + Leases + DeadLetters + Catalog + Members + Shared,
        B: Locks + Inspect + Audit + Idempotency + Permits + Cancels + Batches + Steps + 'static,
    {
        let backend = Arc::new(backend);
        Self::of(&backend)
            .with_dead_letters(backend.clone())
            .with_recurring(backend.clone())
            .with_tasks(backend.clone())
            .with_shared(backend.clone())
            .with_locks(backend.clone())
            .with_inspect(backend.clone())
            .with_audit(backend.clone())
            .with_idempotency(backend.clone())
            .with_permits(backend.clone())
            .with_cancels(backend.clone())
            .with_batches(backend.clone())
            .with_steps(backend)
            .claiming(Capability::ALL.iter().copied())
    }

    /// Creates a backend from one value that implements the required roles. It has no optional role, and claims no
    /// optional operation.
    #[must_use]
    pub fn minimal<B>(backend: B) -> Self
    where
        B: Log + Leases + Schedule + Catalog + Members + 'static,
    {
        Self::of(&Arc::new(backend))
    }

    /// Returns a backend from a wrapper around this one. It has the roles that this one has, each through the wrapper,
    /// claims the same operations, and lives where this one lives.
    #[must_use]
    pub fn wrapped<B>(&self, wrapper: B) -> Self
    where
        B: Log + Schedule + Recurring + Tasks + Leases + DeadLetters + Catalog + Members + Shared,
        B: Locks + Inspect + Audit + Idempotency + Permits + Cancels + Batches + Steps + 'static,
    {
        let all = Self::new(wrapper);
        Self {
            dead_letters: all.dead_letters.filter(|_| self.dead_letters.is_some()),
            recurring: all.recurring.filter(|_| self.recurring.is_some()),
            tasks: all.tasks.filter(|_| self.tasks.is_some()),
            shared: all.shared.filter(|_| self.shared.is_some()),
            locks: all.locks.filter(|_| self.locks.is_some()),
            inspect: all.inspect.filter(|_| self.inspect.is_some()),
            audit: all.audit.filter(|_| self.audit.is_some()),
            idempotency: all.idempotency.filter(|_| self.idempotency.is_some()),
            permits: all.permits.filter(|_| self.permits.is_some()),
            cancels: all.cancels.filter(|_| self.cancels.is_some()),
            batches: all.batches.filter(|_| self.batches.is_some()),
            steps: all.steps.filter(|_| self.steps.is_some()),
            operations: self.operations,
            left_out: self.left_out,
            in_process: self.in_process,
            lasting: self.lasting,
            boot_clock: self.boot_clock.clone(),
            ..all
        }
    }

    fn of<B>(backend: &Arc<B>) -> Self
    where
        B: Log + Leases + Schedule + Catalog + Members + 'static,
    {
        Self {
            log: backend.clone(),
            leases: backend.clone(),
            schedule: backend.clone(),
            catalog: backend.clone(),
            members: backend.clone(),
            dead_letters: None,
            recurring: None,
            tasks: None,
            shared: None,
            locks: None,
            inspect: None,
            audit: None,
            idempotency: None,
            permits: None,
            cancels: None,
            batches: None,
            steps: None,
            operations: Capabilities::NONE,
            left_out: &[],
            in_process: false,
            lasting: false,
            boot_clock: None,
        }
    }

    /// Returns the same backend with this log.
    #[must_use]
    pub fn with_log(self, log: Arc<dyn Log>) -> Self {
        Self { log, ..self }
    }

    /// Returns the same backend with these leases.
    #[must_use]
    pub fn with_leases(self, leases: Arc<dyn Leases>) -> Self {
        Self { leases, ..self }
    }

    /// Returns the same backend with this schedule.
    #[must_use]
    pub fn with_schedule(self, schedule: Arc<dyn Schedule>) -> Self {
        Self { schedule, ..self }
    }

    /// Returns the same backend with this catalog.
    #[must_use]
    pub fn with_catalog(self, catalog: Arc<dyn Catalog>) -> Self {
        Self { catalog, ..self }
    }

    /// Returns the same backend with these members.
    #[must_use]
    pub fn with_members(self, members: Arc<dyn Members>) -> Self {
        Self { members, ..self }
    }

    /// Returns the same backend with these dead letters.
    #[must_use]
    pub fn with_dead_letters(self, dead_letters: Arc<dyn DeadLetters>) -> Self {
        Self { dead_letters: Some(dead_letters), ..self }
    }

    /// Returns the same backend with these recurring schedules.
    #[must_use]
    pub fn with_recurring(self, recurring: Arc<dyn Recurring>) -> Self {
        Self { recurring: Some(recurring), ..self }
    }

    /// Returns the same backend with these delay queues.
    #[must_use]
    pub fn with_tasks(self, tasks: Arc<dyn Tasks>) -> Self {
        Self { tasks: Some(tasks), ..self }
    }

    /// Returns the same backend with this implementation of shared mode.
    #[must_use]
    pub fn with_shared(self, shared: Arc<dyn Shared>) -> Self {
        Self { shared: Some(shared), ..self }
    }

    /// Returns the same backend with these locks.
    #[must_use]
    pub fn with_locks(self, locks: Arc<dyn Locks>) -> Self {
        Self { locks: Some(locks), ..self }
    }

    /// Returns the same backend with this inspection.
    #[must_use]
    pub fn with_inspect(self, inspect: Arc<dyn Inspect>) -> Self {
        Self { inspect: Some(inspect), ..self }
    }

    /// Returns the same backend with this audit.
    #[must_use]
    pub fn with_audit(self, audit: Arc<dyn Audit>) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// Returns the same backend with these markers of operations.
    #[must_use]
    pub fn with_idempotency(self, idempotency: Arc<dyn Idempotency>) -> Self {
        Self { idempotency: Some(idempotency), ..self }
    }

    /// Returns the same backend with these permits.
    #[must_use]
    pub fn with_permits(self, permits: Arc<dyn Permits>) -> Self {
        Self { permits: Some(permits), ..self }
    }

    /// Returns the same backend with this role of cancels.
    #[must_use]
    pub fn with_cancels(self, cancels: Arc<dyn Cancels>) -> Self {
        Self { cancels: Some(cancels), ..self }
    }

    /// Returns the same backend with this role of batches.
    #[must_use]
    pub fn with_batches(self, batches: Arc<dyn Batches>) -> Self {
        Self { batches: Some(batches), ..self }
    }

    /// Returns the same backend with this role of steps.
    #[must_use]
    pub fn with_steps(self, steps: Arc<dyn Steps>) -> Self {
        Self { steps: Some(steps), ..self }
    }

    /// Returns the same backend, claiming exactly these optional operations. Roles are left as they are.
    ///
    /// A claim tells the conformance suite what to check, and consumers, producers and tools what they can begin with.
    #[must_use]
    pub fn claiming(self, operations: impl IntoIterator<Item = Capability>) -> Self {
        Self { operations: operations.into_iter().filter(|it| !it.is_role()).collect(), ..self }
    }

    /// Returns the same backend without an optional role, or without the claim of optional operations.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        match capability {
            Capability::DeadLetters => self.dead_letters = None,
            Capability::Recurring => self.recurring = None,
            Capability::Tasks => self.tasks = None,
            Capability::Shared => self.shared = None,
            Capability::Locks => self.locks = None,
            Capability::Inspect => self.inspect = None,
            Capability::Audit => self.audit = None,
            Capability::Idempotency => self.idempotency = None,
            Capability::Permits => self.permits = None,
            Capability::Cancels => self.cancels = None,
            Capability::Batches => self.batches = None,
            Capability::Steps => self.steps = None,
            operation => self.operations = self.operations.without(operation),
        }
        self
    }

    /// Returns the same backend, which says of a capability that it does not have that it was compiled without this feature.
    #[must_use]
    pub fn compiled_without(self, left_out: &'static [(Capability, &'static str)]) -> Self {
        Self { left_out, ..self }
    }

    /// Returns the same backend, marked as living in this process. See [`is_in_process`](Self::is_in_process).
    #[must_use]
    pub fn in_process(self) -> Self {
        Self { in_process: true, boot_clock: None, ..self }
    }

    /// Returns the same backend, marked as one [in this process](Self::in_process) whose clients hold what they have until they
    /// release it. See [`is_lasting`](Self::is_lasting).
    #[must_use]
    pub fn lasting(self) -> Self {
        Self { lasting: true, ..self.in_process() }
    }

    /// Returns the same backend, with a clock that also counts while the machine is suspended.
    #[must_use]
    pub fn with_boot_clock(self, clock: impl BootClock + 'static) -> Self {
        Self { boot_clock: Some(Arc::new(clock)), ..self }
    }
}

/// What it supports.
impl Backend {
    /// Returns everything that this backend supports beside the required operations: the optional roles that it has, and
    /// the optional operations that it [claims](Self::claiming).
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let roles = [
            (Capability::DeadLetters, self.dead_letters.is_some()),
            (Capability::Recurring, self.recurring.is_some()),
            (Capability::Tasks, self.tasks.is_some()),
            (Capability::Shared, self.shared.is_some()),
            (Capability::Locks, self.locks.is_some()),
            (Capability::Inspect, self.inspect.is_some()),
            (Capability::Audit, self.audit.is_some()),
            (Capability::Idempotency, self.idempotency.is_some()),
            (Capability::Permits, self.permits.is_some()),
            (Capability::Cancels, self.cancels.is_some()),
            (Capability::Batches, self.batches.is_some()),
            (Capability::Steps, self.steps.is_some()),
        ];
        roles.into_iter().filter(|(_, is)| *is).fold(self.operations, |all, (role, _)| all.with(role))
    }

    fn missing(&self, capability: Capability) -> Error {
        match self.left_out.iter().find(|(left_out, _)| *left_out == capability) {
            Some((_, feature)) => capability.left_out(feature),
            None => capability.missing(),
        }
    }

    /// Whether this backend supports `capability`.
    #[must_use]
    pub fn supports(&self, capability: Capability) -> bool {
        self.capabilities().contains(capability)
    }

    /// Returns `Ok` if this backend supports `capability`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), which names what is missing.
    pub fn require(&self, capability: Capability) -> Result<()> {
        if self.supports(capability) { Ok(()) } else { Err(self.missing(capability)) }
    }
}

/// The required roles.
impl Backend {
    /// Returns the role that appends, reads, settles and trims.
    #[must_use]
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// Returns the role that grants ownership of partitions.
    #[must_use]
    pub fn leases(&self) -> &Arc<dyn Leases> {
        &self.leases
    }

    /// Returns the role that keeps messages until they are due.
    #[must_use]
    pub fn schedule(&self) -> &Arc<dyn Schedule> {
        &self.schedule
    }

    /// Returns the role that keeps topics and groups.
    #[must_use]
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.catalog
    }

    /// Returns the role that keeps the live members of groups and their assignments.
    #[must_use]
    pub fn members(&self) -> &Arc<dyn Members> {
        &self.members
    }

    /// Whether the backend lives in this process and uses the clock of the caller's runtime. Then leases are renewed on
    /// the caller's runtime too; otherwise on a thread of its own, which handlers cannot starve.
    #[must_use]
    pub fn is_in_process(&self) -> bool {
        self.in_process
    }

    /// Whether clients hold their leases and memberships until they release them, since they end only with this process. A consumer
    /// then renews them a few times a day, and what it does from time to time it does seldom, so that hours of a paused clock cost
    /// little. A worker of a delay queue that has nothing to do looks once a day whether a wake-up was lost. A consumer in
    /// shared mode, or with a `member_id` or `instance_expiry`, does as over other backends.
    ///
    /// A consumer or worker whose runtime has ended has released nothing: others wait for its partitions, or for the tasks that
    /// it was to wait for, for a day.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.lasting
    }

    /// Returns the clock that also counts the time for which this machine was suspended, since leases continue to expire
    /// meanwhile. `None` where only the runtime's own clock exists: in tests, for a backend [in this
    /// process](Self::in_process), and where the platform has none.
    #[must_use]
    pub fn boot_clock(&self) -> Option<&Arc<dyn BootClock>> {
        self.boot_clock.as_ref()
    }
}

/// The optional roles.
impl Backend {
    /// Returns the role that keeps messages that will not be retried.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn dead_letters(&self) -> Result<&Arc<dyn DeadLetters>> {
        self.dead_letters.as_ref().ok_or_else(|| self.missing(Capability::DeadLetters))
    }

    /// Returns the role that keeps recurring schedules.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn recurring(&self) -> Result<&Arc<dyn Recurring>> {
        self.recurring.as_ref().ok_or_else(|| self.missing(Capability::Recurring))
    }

    /// Returns the role that keeps delay queues, which are used without topics.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn tasks(&self) -> Result<&Arc<dyn Tasks>> {
        self.tasks.as_ref().ok_or_else(|| self.missing(Capability::Tasks))
    }

    /// Returns the role that reads and settles for many consumers of a partition, without an owner.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn shared(&self) -> Result<&Arc<dyn Shared>> {
        self.shared.as_ref().ok_or_else(|| self.missing(Capability::Shared))
    }

    /// Returns the role that grants locks on named resources.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn locks(&self) -> Result<&Arc<dyn Locks>> {
        self.locks.as_ref().ok_or_else(|| self.missing(Capability::Locks))
    }

    /// Returns the role that lists stored data, read-only.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn inspect(&self) -> Result<&Arc<dyn Inspect>> {
        self.inspect.as_ref().ok_or_else(|| self.missing(Capability::Inspect))
    }

    /// Returns the role that finds and repairs inconsistencies.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn audit(&self) -> Result<&Arc<dyn Audit>> {
        self.audit.as_ref().ok_or_else(|| self.missing(Capability::Audit))
    }

    /// Returns the role that keeps markers of operations that are to take effect once.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn idempotency(&self) -> Result<&Arc<dyn Idempotency>> {
        self.idempotency.as_ref().ok_or_else(|| self.missing(Capability::Idempotency))
    }

    /// Returns the role that counts what is handled at once, across processes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend does not have it.
    pub fn permits(&self) -> Result<&Arc<dyn Permits>> {
        self.permits.as_ref().ok_or_else(|| self.missing(Capability::Permits))
    }

    /// Returns the role of cancels.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend has none.
    pub fn cancels(&self) -> Result<&Arc<dyn Cancels>> {
        self.cancels.as_ref().ok_or_else(|| self.missing(Capability::Cancels))
    }

    /// Returns the role of batches.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend has none.
    pub fn batches(&self) -> Result<&Arc<dyn Batches>> {
        self.batches.as_ref().ok_or_else(|| self.missing(Capability::Batches))
    }

    /// Returns the role of steps.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if this backend has none.
    pub fn steps(&self) -> Result<&Arc<dyn Steps>> {
        self.steps.as_ref().ok_or_else(|| self.missing(Capability::Steps))
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").field("capabilities", &self.capabilities()).finish_non_exhaustive()
    }
}
