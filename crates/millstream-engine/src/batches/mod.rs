//! Batches: adds members, seals, and takes the notes of members that ended to their batches.

mod builder;
mod forward;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::batches::{BatchId, BatchMember, BatchState, Block, Confirmed, MAX_BLOCK};
use millstream_core::{Backend, ErrorKind, GroupName, Result};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::{Instant, sleep};

pub use builder::BatchBuilder;
pub use forward::{LOOK_EVERY, NoteForwarder};

/// How many numbers the first block of a batch has; each further one has twice as many, up to [`MAX_BLOCK`].
const FIRST_BLOCK: u32 = 16;

/// How long requests about a batch are repeated while the server is away, as sends by default.
const REPEATED: Duration = Duration::from_secs(30);

/// First and longest pause before one is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What can be a member of a batch: the send of a message, at once or with a delay, a task, or another batch.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a member of a batch",
    note = "pass a send that is not awaited: `producer.send(…)`, `queue.schedule(…)`, or a batch that is not created: `mq.batch(…)`"
)]
pub trait BatchItem: Sized {
    /// What it returns once it is stored.
    type Stored: Send;

    /// Returns the topic or delay queue that it goes to.
    fn target(&self) -> String;

    /// Stores it as this member.
    ///
    /// # Errors
    /// Those of storing it; [`ErrorKind::Exists`] if it was not stored, since one with its id is there already.
    fn store<'a>(self, member: &BatchMember) -> BoxFuture<'a, Result<Self::Stored>>
    where
        Self: 'a;
}

/// Batch to which members are added. Cloning is cheap: all clones share their numbers.
///
/// A member is what [`add`](Self::add) has returned for, by the time of the [seal](Self::seal). Any number of processes can add: each
/// [opens](Self::open) the batch by its id, and calls [`flush`](Self::flush) at its end; one of them seals it behind all others.
///
/// ```
/// # use millstream_core::{Backend, Topic};
/// # use millstream_engine::batches::{BatchBuilder, BatchItem};
/// const REPORTS: Topic<String> = Topic::new("reports");
/// # async fn example<I: BatchItem>(backend: Backend, rows: Vec<I>) -> millstream_core::Result<()> {
/// let batch = BatchBuilder::new(backend, REPORTS).complete(&"the import of today".to_owned()).create().await?;
/// for row in rows {
///     batch.add(row).await?;
/// }
/// let state = batch.seal().await?;
/// println!("{} members of {}", state.members, batch.id());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct OpenBatch {
    inner: Arc<Inner>,
    /// The group whose settlements count.
    group: Option<GroupName>,
    /// Whether the batch keeps results of members.
    keeps_results: bool,
}

struct Inner {
    backend: Backend,
    id: BatchId,
    numbers: Mutex<Numbers>,
    /// Held while a block is reserved: one is enough for all who wait.
    reserving: AsyncMutex<()>,
    /// Notified when no add of a block is under way any more.
    idle: Notify,
}

#[derive(Default)]
struct Numbers {
    blocks: Vec<Used>,
    /// Size of the last block.
    size: u32,
    /// Whether it was sealed by this handle or a clone.
    is_sealed: bool,
}

/// Block that is not confirmed.
struct Used {
    block: Block,
    target: String,
    next: u32,
    failed: Vec<u32>,
    adding: usize,
    /// Whether it gets no further members, since what it has was sent to the server.
    is_closed: bool,
}

impl Used {
    fn confirmed(&self) -> Confirmed {
        Confirmed { block: self.block, used: self.next, failed: self.failed.clone() }
    }

    fn has_room(&self, target: &str) -> bool {
        self.target == target && self.next < self.block.to && !self.is_closed
    }

    /// Whether all of its numbers are used, and nothing of them is under way.
    fn is_over(&self) -> bool {
        self.next == self.block.to && self.adding == 0
    }
}

impl fmt::Debug for OpenBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenBatch").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl OpenBatch {
    /// Opens a batch that was created, here or in another process.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend has no batches. Whether the batch exists is found by the first [`add`](Self::add).
    pub fn open(backend: &Backend, id: &BatchId) -> Result<Self> {
        backend.batches()?;
        let (numbers, reserving, idle) = Default::default();
        let inner = Inner { backend: backend.clone(), id: id.clone(), numbers, reserving, idle };
        Ok(Self { inner: Arc::new(inner), group: None, keeps_results: false })
    }

    /// Names the group whose settlements count, of members that are added to the handle that this returns: for topics that several groups read. Without
    /// it the first group that handles a member counts, and a dead letter of one group only until another one has handled it. A delay queue has no groups.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a bad name.
    pub fn counting(&self, group: impl Into<String>) -> Result<Self> {
        Ok(Self { group: Some(GroupName::new(group.into())?), ..self.clone() })
    }

    /// Returns the id, by which other processes open it.
    #[must_use]
    pub fn id(&self) -> &BatchId {
        &self.inner.id
    }

    /// Adds a member: a send that has not begun, a task to be scheduled, or a batch to be created.
    ///
    /// If the send fails, also as [`ErrorKind::Unconfirmed`], it is no member; if it was stored all the same, it counts as soon as it has ended.
    ///
    /// Numbers are reserved in blocks: of a hundred adds three have a request of their own.
    ///
    /// # Errors
    /// Those of the send; [`ErrorKind::Exists`] if nothing was stored, since a message with its dedup id, unique id or schedule id is there, which may be
    /// one that an earlier attempt has stored; [`ErrorKind::Closed`] if the batch is sealed, [`ErrorKind::NotFound`] if it does not exist (any longer),
    /// [`ErrorKind::TooLarge`] if it has [`MAX_MEMBERS`](millstream_core::batches::MAX_MEMBERS), [`ErrorKind::Fenced`] if the server has lost earlier
    /// members in a fail-over.
    pub async fn add<I: BatchItem>(&self, item: I) -> Result<I::Stored> {
        let number = self.number(&item.target()).await?;
        let stored = item.store(&self.member(number.number)).await?;
        number.confirm();
        Ok(stored)
    }

    /// Returns the same batch, which keeps the results of members that are added to this handle, with the group whose settlements count.
    pub(crate) fn keeping_results(self, group: Option<GroupName>) -> Self {
        Self { group, keeps_results: true, ..self }
    }

    /// Adds a member as [`add`](Self::add) does, and returns its number.
    pub(crate) async fn add_to<'a>(
        &self,
        target: String,
        store: impl FnOnce(&BatchMember) -> BoxFuture<'a, Result<()>>,
    ) -> Result<u32> {
        let number = self.number(&target).await?;
        store(&self.member(number.number)).await?;
        let added = number.number;
        number.confirm();
        Ok(added)
    }

    fn member(&self, number: u32) -> BatchMember {
        let (batch, group, keeps_result) = (self.inner.id.clone(), self.group.clone(), self.keeps_results);
        BatchMember { batch, number, group, keeps_result }
    }

    /// Confirms the members that were added to this handle and its clones, without sealing the batch: the last call of a process that only adds, and as often before
    /// as it likes. Waits for adds under way that began before.
    ///
    /// # Errors
    /// Those of [`add`](Self::add) about the batch.
    pub async fn flush(&self) -> Result<()> {
        let confirmed = self.closed().await;
        if confirmed.is_empty() {
            return Ok(());
        }
        let nothing = Block { from: 0, to: 0, token: token() };
        repeated(|| self.reserve(nothing, "", &confirmed)).await?;
        self.inner.forget(&confirmed);
        Ok(())
    }

    /// Confirms the members of this handle and seals the batch: no member can be added any more, and from now on it sends its messages. Waits for adds
    /// that are under way. Numbers of other processes that were not [confirmed](Self::flush) are no members, so they flush before.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the batch does not exist (any longer); [`ErrorKind::Closed`] if another process has sealed it without the members of this
    /// one; [`ErrorKind::Fenced`] if the server has lost members in a fail-over. Transient errors, after which the call can be repeated.
    pub async fn seal(&self) -> Result<BatchState> {
        let (role, confirmed) = (self.inner.backend.batches()?, self.closed().await);
        let state = repeated(|| role.seal(&self.inner.id, &confirmed)).await?;
        self.inner.forget(&confirmed);
        self.inner.numbers().is_sealed = true;
        if state.parent.is_some() && state.ended.is_some() {
            // At once, or the owner of the partition does it later.
            let place = self.inner.id.place.clone().into();
            if let Err(error) = forward::forward(&self.inner.backend, &place).await {
                tracing::debug!(batch = %self.inner.id, %error, "an inner batch is counted in its outer batch later");
            }
        }
        Ok(state)
    }

    /// Returns the state of the batch.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it does not exist (any longer); those of the server.
    pub async fn state(&self) -> Result<BatchState> {
        let state = self.inner.backend.batches()?.state(&self.inner.id).await?;
        state.ok_or_else(|| BatchState::is_gone(&self.inner.id))
    }

    /// Closes all blocks, waits until no add to them is under way, and returns them. They stay until the server has confirmed them. Adds that come meanwhile
    /// get numbers of other blocks, so they hold nobody up.
    async fn closed(&self) -> Vec<Confirmed> {
        self.inner.numbers().blocks.iter_mut().for_each(|used| used.is_closed = true);
        loop {
            let mut idle = std::pin::pin!(self.inner.idle.notified());
            // Before the look: an add that ends behind it is not missed.
            idle.as_mut().enable();
            if let Some(closed) = self.inner.confirmed() {
                return closed;
            }
            idle.await;
        }
    }

    async fn reserve(&self, block: Block, target: &str, confirmed: &[Confirmed]) -> Result<Block> {
        self.inner.backend.batches()?.reserve(&self.inner.id, block, target, confirmed).await
    }

    /// Returns the next number for a target.
    async fn number(&self, target: &str) -> Result<Number> {
        loop {
            if let Some(number) = self.inner.take(target)? {
                return Ok(number);
            }
            let _reserving = self.inner.reserving.lock().await;
            // Somebody else may have reserved meanwhile.
            if let Some(number) = self.inner.take(target)? {
                return Ok(number);
            }
            let (size, confirmed) = {
                let numbers = self.inner.numbers();
                let over = numbers.blocks.iter().filter(|used| used.is_over());
                (
                    (numbers.size * 2).clamp(FIRST_BLOCK, MAX_BLOCK),
                    over.map(Used::confirmed).collect::<Vec<_>>(),
                )
            };
            let asked = Block { from: 0, to: size, token: token() };
            let block = repeated(|| self.reserve(asked, target, &confirmed)).await?;
            self.inner.forget(&confirmed);
            let mut numbers = self.inner.numbers();
            numbers.size = size;
            let (next, failed) = (block.from, Vec::new());
            numbers.blocks.push(Used {
                block,
                target: target.to_owned(),
                next,
                failed,
                adding: 0,
                is_closed: false,
            });
        }
    }
}

impl Inner {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, target: &str) -> Result<Option<Number>> {
        let mut numbers = self.numbers();
        if numbers.is_sealed {
            return Err(BatchState::is_sealed(&self.id));
        }
        let Some(used) = numbers.blocks.iter_mut().find(|used| used.has_room(target)) else {
            return Ok(None);
        };
        let (number, block) = (used.next, used.block);
        used.next += 1;
        used.adding += 1;
        drop(numbers);
        Ok(Some(Number { inner: self.clone(), block, number, is_member: false }))
    }

    /// Returns the closed blocks, unless an add to one of them is under way.
    fn confirmed(&self) -> Option<Vec<Confirmed>> {
        let numbers = self.numbers();
        let mut closed = numbers.blocks.iter().filter(|used| used.is_closed);
        if closed.clone().any(|used| used.adding > 0) {
            return None;
        }
        Some(closed.by_ref().map(Used::confirmed).collect())
    }

    fn forget(&self, confirmed: &[Confirmed]) {
        self.numbers().blocks.retain(|used| confirmed.iter().all(|it| it.block != used.block));
    }
}

/// Number of a member that is being added. Unless it is said to be a member before it is dropped, it is none.
struct Number {
    inner: Arc<Inner>,
    block: Block,
    number: u32,
    is_member: bool,
}

impl Number {
    fn confirm(mut self) {
        self.is_member = true;
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut numbers = self.inner.numbers();
        let Some(used) = numbers.blocks.iter_mut().find(|used| used.block == self.block) else { return };
        used.adding -= 1;
        if !self.is_member {
            used.failed.push(self.number);
        }
        if used.adding == 0 {
            self.inner.idle.notify_waiters();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let added: usize = self
            .numbers()
            .blocks
            .iter()
            .map(|used| (used.next - used.block.from) as usize - used.failed.len())
            .sum();
        if added > 0 {
            let batch = &self.id;
            tracing::warn!(%batch, added, "members of a batch were added, and neither flushed nor sealed: its seal leaves them out");
        }
    }
}

fn token() -> u64 {
    fastrand::u64(..)
}

/// Makes a request until it is answered, for as long as sends are repeated. Each of those here can be repeated.
async fn repeated<T, F>(mut request: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (until, mut pause) = (Instant::now() + REPEATED, PAUSES.0);
    loop {
        match request().await {
            Err(error)
                if (error.is_transient() || error.kind() == ErrorKind::Unconfirmed)
                    && Instant::now() + pause < until =>
            {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            answered => return answered,
        }
    }
}
