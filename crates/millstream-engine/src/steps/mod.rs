//! Steps: what a handler has done stays done when it runs again, and it can wait for days without being in memory.

mod fan;
mod frame;

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::codec::{Codec, Json};
use millstream_core::error::BoxError;
use millstream_core::schedule::Due;
use millstream_core::sorted::SortedSet;
use millstream_core::steps::{MAX_STEPS, StepKind, StepRecord, StepWait, WorkId, check_name, too_large};
use millstream_core::{Error, ErrorKind, Headers, MessageId, Result, Timestamp};
use tokio::time::{Instant, sleep};

pub use fan::{FanIn, FanOut};
pub(crate) use frame::{entered, framed};

use crate::scope::DeliveryScope;
pub use crate::scope::{StepsAccess, StepsOf};

/// For how long a run begins steps without asking whether the right is still there.
const RELIED_ON: Duration = Duration::from_secs(1);

/// First and longest pause before a request is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a handler does in steps. It runs from its beginning each time: after a failure, a crash, a lost lease, and each wait. A step that is done does not run
/// again: its result is stored beside the message, in one write, and is what [`step`](Self::step) returns then.
///
/// - **Steps are checkpoints, and nothing is replayed.** The handler may take another way each time, use the clock, and be deployed anew meanwhile: what has a
///   stored result under its name is skipped, and everything else runs. So a step whose meaning changes gets another name, such as `charge-2`.
/// - **A step runs at least once.** A process that dies behind its effect and before its write runs it again: pass [`id`](Self::id) and the name to
///   what it calls as the key of the operation.
/// - **A former owner stores nothing.** If it was suspended, and another one has the message, its next step asks the server first, fails, and does not run. Only one that
///   begins within a second of the last answer does not ask; its result is refused.
/// - **Names** are the handler's own, one for each step and wait; a second use of one in a run is an error. In a loop they have a number: `page-7`.
///
/// The results of all steps of a message have at most 256 KiB ([`MAX_STEPS`]). They go with the message, also into its dead letter and back by a
/// replay, and are gone when it is done.
///
/// ```
/// # use millstream_engine::Delivery;
/// # use std::time::Duration;
/// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// # async fn create_account(_: &str) -> Result<u64, BoxError> { Ok(7) }
/// # async fn mail(_: u64, _: &str) -> Result<(), BoxError> { Ok(()) }
/// async fn sign_up(address: Delivery<String>) -> Result<(), BoxError> {
///     let steps = address.steps();
///     let account = steps.step("create", || create_account(&address.payload)).await?;
///     steps.step("welcome", || mail(account, "welcome")).await?;
///     steps.sleep("three days", Duration::from_secs(3 * 24 * 3_600)).await?;
///     steps.step("tips", || mail(account, "tips")).await?;
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Steps(Result<Arc<Inner>>);

/// The steps of one message, for one run of its handler.
pub(crate) struct Inner {
    access: StepsAccess,
    scope: Arc<DeliveryScope>,
    /// Those in the header of a message that was a dead letter.
    header: Result<Vec<StepRecord>>,
    /// What is stored, once it was read. One request at a time.
    known: tokio::sync::Mutex<Known>,
    /// Names that were used in this run.
    names: Mutex<SortedSet<String>>,
    /// The wait that ends this run.
    parked: Mutex<Option<Box<Parked>>>,
    /// When the server has last said that the right is there; at first when the run began.
    answered: Mutex<Instant>,
}

/// What is stored.
#[derive(Default)]
struct Known {
    records: Vec<StepRecord>,
    /// Those of the header that have to be stored with the next ones.
    unstored: Vec<StepRecord>,
    bytes: usize,
    /// The server's time.
    told: Timestamp,
    /// When it was told; `None` before anything was read.
    since: Option<Instant>,
}

impl Known {
    fn now(&self) -> Timestamp {
        self.told.saturating_add(self.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Returns what is known of a wait. A signal counts that came before its end.
    fn wait(&self, name: &str) -> FoundWait {
        let ends = self.find(StepKind::Wait, name).map(|record| record.at);
        let signal = self.find(StepKind::Signal, name).filter(|it| ends.is_none_or(|ends| it.at < ends));
        FoundWait {
            signal: signal.map(|record| record.value.clone()),
            ends,
            is_over: ends.is_some_and(|ends| ends <= self.now()),
        }
    }

    fn find(&self, kind: StepKind, name: &str) -> Option<&StepRecord> {
        self.records.iter().find(|it| it.kind == kind && it.name == name)
    }
}

/// End of a run: the message is handed back, and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The wait.
    pub wait: StepWait,
    /// When it ends, if it is not noted yet.
    pub due: Due,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// What the step does failed.
    #[error("step {name:?}: {source}")]
    Failed {
        /// Its name.
        name: String,
        /// The error.
        source: BoxError,
    },
    /// It was not begun, or its result could not be read or stored:
    ///
    /// - [`ErrorKind::Fenced`] if the right to the message is lost;
    /// - [`ErrorKind::Exists`] for a second use of its name in one run, and for a member with an id that is there already;
    /// - [`ErrorKind::InvalidName`] for a bad name;
    /// - [`ErrorKind::TooLarge`] if the steps would have more than [`MAX_STEPS`];
    /// - [`ErrorKind::Encode`] and [`ErrorKind::Decode`] for a result that is no JSON, or of another shape;
    /// - [`ErrorKind::Unsupported`] where there are no steps;
    /// - [`ErrorKind::NotFound`] for members whose batch is gone, or that do not end within 90 days;
    /// - those of sends.
    #[error(transparent)]
    Refused(#[from] Error),
    /// A member of a [fan-out](Steps::all) was given up.
    #[error("step {name:?}: member {member} was given up after {attempts} attempts ({reason}): {error}")]
    MemberFailed {
        /// Name of the step.
        name: String,
        /// Its place among the members, from 0.
        member: usize,
        /// The reason of its dead letter, or of its [failure](millstream_core::MessageResult::Failed).
        reason: String,
        /// Number of its attempts.
        attempts: u32,
        /// Its last error.
        error: String,
    },
}

impl StepError {
    /// Returns the kind of the error if the step was refused.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused(error) => Some(error.kind()),
            _ => None,
        }
    }
}

type StepResult<T> = std::result::Result<T, StepError>;

impl Steps {
    /// Returns the steps of a message with this id of its entry in the log; of a task it is zero.
    pub(crate) fn of(scope: &Arc<DeliveryScope>, origin: MessageId, headers: &Headers) -> Self {
        Self(scope.steps(origin).map(|access| {
            let is_same = {
                let id = access.id.clone();
                move |steps: &Inner| steps.access.id == id
            };
            let create = || {
                Arc::new(Inner {
                    access,
                    scope: scope.clone(),
                    header: StepRecord::of(headers),
                    known: tokio::sync::Mutex::default(),
                    names: Mutex::default(),
                    parked: Mutex::default(),
                    answered: Mutex::new(Instant::now()),
                })
            };
            frame::of_current(is_same, create)
        }))
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        self.0.as_ref().map_err(Clone::clone)
    }

    /// Returns the id by which others [signal](millstream_core::Steps::signal) this message: it is the same in each run, so it can be mailed, or be the key
    /// of an operation elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there are no steps.
    pub fn id(&self) -> Result<&WorkId> {
        Ok(&self.inner()?.access.id)
    }

    /// Runs a step, unless it is done: then returns its result. The result is stored as JSON.
    ///
    /// # Errors
    /// [`StepError`]. A step that failed runs again in the next attempt.
    pub async fn step<T, E, F, Fut>(&self, name: &str, run: F) -> StepResult<T>
    where
        Json: Codec<T>,
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = std::result::Result<T, E>>,
    {
        let inner = self.inner()?;
        if let Some(result) = inner.begin(name).await? {
            return Ok(Json.decode(&result).map_err(|error| unreadable(name, &*error))?);
        }
        let failed = |error: E| StepError::Failed { name: name.to_owned(), source: error.into() };
        let result = run().await.map_err(failed)?;
        let encoded = Codec::<T>::encode(&Json, &result).map_err(|error| {
            Error::new(ErrorKind::Encode, format!("the result of step {name:?} cannot be written: {error}"))
        })?;
        inner.end(name, encoded).await?;
        Ok(result)
    }

    /// Waits for a time, from the first run on that comes here. The run ends, and the message is handed back: it has no slot, no lease and no unit of a limit
    /// meanwhile, no attempt is used, and later messages of its key pass it. Then the handler runs again from its beginning.
    ///
    /// Await it in the handler itself, and nothing beside it: the rest of the run is dropped.
    ///
    /// # Errors
    /// [`StepError::Refused`].
    pub async fn sleep(&self, name: &str, time: Duration) -> StepResult<()> {
        let inner = self.inner()?;
        let found = inner.begin_wait(name).await?;
        if found.is_over || time.is_zero() && found.ends.is_none() {
            return Ok(());
        }
        inner.park(StepWait::sleep(name), found.due(time)).await
    }

    /// Waits for a signal of this name, for a time from the first run on that comes here, as [`sleep`](Self::sleep) does. Returns what it says, or `None` if none came
    /// in time. It may have come before. The first one counts.
    ///
    /// # Errors
    /// [`StepError::Refused`].
    pub async fn signal<T>(&self, name: &str, within: Duration) -> StepResult<Option<T>>
    where
        Json: Codec<T>,
    {
        match self.signal_bytes(name, within).await? {
            Some(value) => Ok(Some(Json.decode(&value).map_err(|error| unreadable(name, &*error))?)),
            None => Ok(None),
        }
    }

    async fn signal_bytes(&self, name: &str, within: Duration) -> StepResult<Option<Bytes>> {
        let inner = self.inner()?;
        let found = inner.begin_wait(name).await?;
        if found.signal.is_some() || found.is_over {
            return Ok(found.signal);
        }
        inner.park(StepWait::signal(name), found.due(within)).await
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(inner) => write!(f, "Steps({})", inner.access.id),
            Err(error) => write!(f, "Steps({error})"),
        }
    }
}

fn unreadable(name: &str, error: &dyn fmt::Display) -> Error {
    let why = format!("the stored value of step {name:?} has another shape: {error}");
    Error::new(ErrorKind::Decode, why)
}

/// What is stored of a wait.
struct FoundWait {
    signal: Option<Bytes>,
    ends: Option<Timestamp>,
    is_over: bool,
}

impl FoundWait {
    fn due(&self, time: Duration) -> Due {
        self.ends.map_or(Due::In(time), Due::At)
    }
}

impl Inner {
    /// Returns the result of a step that is done. Its name is taken for this run.
    async fn begin(&self, name: &str) -> Result<Option<Bytes>> {
        self.take_name(name)?;
        let found = self.find(StepKind::Done, name).await?;
        // A process that was suspended may not know yet that it has lost its right. The server does; and one that can no longer be relied on may be renewed.
        let is_old = lock(&self.answered).elapsed() > RELIED_ON;
        if found.is_none() && (is_old || self.scope.is_cancelled()) {
            self.store(&[]).await?;
        }
        Ok(found.map(|record| record.value))
    }

    async fn begin_wait(&self, name: &str) -> Result<FoundWait> {
        self.take_name(name)?;
        let found = self.known().await?.wait(name);
        if found.signal.is_none() && found.is_over && found.ends > Some(self.known().await?.told) {
            // It has ended in this run, and a signal may have come before that.
            self.known.lock().await.since = None;
            return Ok(self.known().await?.wait(name));
        }
        Ok(found)
    }

    fn take_name(&self, name: &str) -> Result<()> {
        check_name(name)?;
        if lock(&self.names).insert(name.to_owned()) {
            return Ok(());
        }
        let why = format!("the name {name:?} is used twice in one run of the handler: each step has its own");
        Err(Error::new(ErrorKind::Exists, why))
    }

    async fn find(&self, kind: StepKind, name: &str) -> Result<Option<StepRecord>> {
        Ok(self.known().await?.find(kind, name).cloned())
    }

    /// Returns what is stored, which is read once in a run.
    async fn known(&self) -> Result<tokio::sync::MutexGuard<'_, Known>> {
        let mut known = self.known.lock().await;
        if known.since.is_none() {
            let role = self.access.backend.steps()?;
            let header = self.header.clone()?;
            let (told, stored) = self.repeated(|| role.read(&self.access.id)).await?;
            let is_in = |all: &[StepRecord], of: &StepRecord| {
                all.iter().any(|it| it.kind == of.kind && it.name == of.name)
            };
            let unstored: Vec<_> = header.iter().filter(|it| !is_in(&stored, it)).cloned().collect();
            // What was there before the message died counts before what came since.
            let since = stored.iter().filter(|it| !is_in(&header, it));
            let records: Vec<_> = header.iter().chain(since).cloned().collect();
            let bytes = StepRecord::write(&records).len();
            *known = Known { records, unstored, bytes, told, since: Some(Instant::now()) };
        }
        Ok(known)
    }

    /// Stores the result of a step.
    async fn end(&self, name: &str, result: Bytes) -> Result<()> {
        let mut known = self.known().await?;
        let record = StepRecord::new(StepKind::Done, known.now(), name, result);
        let bytes = known.bytes + StepRecord::write(std::slice::from_ref(&record)).len();
        if bytes > MAX_STEPS {
            return Err(too_large());
        }
        let added = [&known.unstored[..], std::slice::from_ref(&record)].concat();
        self.store(&added).await?;
        known.bytes = bytes;
        known.unstored.clear();
        known.records.push(record);
        Ok(())
    }

    async fn store(&self, records: &[StepRecord]) -> Result<()> {
        let role = self.access.backend.steps()?;
        self.repeated(|| {
            let (right, id) = ((self.access.right)(), self.access.id.id.clone());
            async move { role.store(&right, &id, records).await }
        })
        .await?;
        *lock(&self.answered) = Instant::now();
        Ok(())
    }

    /// Whether the run ends when it waits.
    fn can_wait(self: &Arc<Self>) -> Result<()> {
        if frame::is_current(self) {
            return Ok(());
        }
        let why = "a wait has to be awaited in the handler itself, which takes one message: not in a task that it has spawned";
        Err(Error::new(ErrorKind::Unsupported, why))
    }

    /// Ends the run.
    async fn park<T>(self: &Arc<Self>, wait: StepWait, due: Due) -> StepResult<T> {
        self.can_wait()?;
        // The wait is noted beside what is stored, so that is there before.
        let mut known = self.known().await?;
        if !known.unstored.is_empty() {
            self.store(&known.unstored).await?;
            known.unstored.clear();
        }
        drop(known);
        *lock(&self.parked) = Some(Box::new(Parked { wait, due }));
        pending().await
    }

    fn take_parked(&self) -> Option<Box<Parked>> {
        lock(&self.parked).take()
    }

    /// Makes a request until it is answered: only the server knows whether the right is lost. Each of those here can be repeated.
    async fn repeated<T, F>(&self, mut request: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut pause = PAUSES.0;
        loop {
            match request().await {
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Unconfirmed => {
                    tracing::debug!(id = %self.access.id, %error, "a request for steps is repeated");
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                answered => return answered,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
