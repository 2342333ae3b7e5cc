//! The inbox: a message's effect and the marker that it was handled, committed together.

mod builder;
mod claims;
mod fence;
mod handler;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::idempotency::{MAX_RESULT_LEN, Operation};
use millstream_core::{Delivered, Namespace};

pub use builder::InboxBuilder;
pub(crate) use claims::millis;
pub use fence::Fence;

use crate::database::{Conn, Database, Tx, lend};
use fence::Raised;

/// Order in which the effect and the marker are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The marker comes first: a second transaction for the same operation waits in the database until the first one has
    /// ended, and then returns its result. The work runs once unless it fails. The default.
    #[default]
    Pessimistic,
    /// The marker comes last: two transactions may do the work at the same time, and one of them commits. The other one is
    /// rolled back and returns the result of the first. Nobody waits for a process that is paused in its work, unless for a row
    /// that this one has changed. On SQLite, which has one writer at a time, it is the same as `Pessimistic`.
    Optimistic,
}

/// Records which operations have taken effect, in the database in which they do. Clones share what they know.
///
/// The work gets a transaction; the inbox adds a marker to it and commits both. Whenever a process dies, the effect and its marker
/// are both there or both absent, so an operation has its effect once for as long as its marker is kept.
///
/// ```no_run
/// # use std::time::Duration;
/// # use millstream_core::idempotency::Operation;
/// # use millstream_core::policy::Exponential;
/// # use millstream_sql::{Database, Inbox, Once, migrate, sqlx};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let database = Database::connect("postgres://shop@db.example/shop").await?;
/// migrate(&database).await?;
/// let inbox = Inbox::builder(&database).retries(&Exponential::default()).build()?;
///
/// let operation = Operation::new("payments".parse()?, "ledger".parse()?, "payment-7")?;
/// let done = inbox.once(&operation, None, async |mut tx| {
///     let pay = sqlx::query("UPDATE accounts SET balance = balance - $1 WHERE id = $2");
///     pay.bind(500_i64).bind(7_i64).execute(tx.postgres()?).await?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// });
/// match done.await? {
///     Once::First(()) => println!("paid"),
///     Once::Duplicate(_) => println!("was paid before"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Inbox {
    database: Database,
    namespace: Namespace,
    mode: Mode,
    retention: Duration,
    idle: Duration,
    id: handler::IdSource,
    raised: Arc<Raised>,
}

/// Whether work was done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Once<R> {
    /// It was done now, and is committed. This is what it returned.
    First(R),
    /// It was done before. This is the result that was [kept](Tx::keep_result) then.
    Duplicate(Option<Bytes>),
}

/// Whether an operation is the caller's to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It was not done before. Its marker is in the caller's transaction now.
    First,
    /// It was done before. This is the result that was kept then.
    Duplicate(Option<Bytes>),
}

/// Error of work that is done once. `E` is the error of the work itself. Nothing was committed, unless the kind of
/// [`Store`](Self::Store) is [`ErrorKind::Unconfirmed`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The database failed, or the fence refused: [`ErrorKind::Fenced`].
    #[error(transparent)]
    Store(#[from] Error),
    /// The work returned this error.
    #[error("{0}")]
    Work(E),
}

/// What is known at the start of a transaction.
enum Start {
    Go(Tx),
    Duplicate(Option<Bytes>),
}

impl Inbox {
    /// Returns the settings of a new inbox.
    #[must_use]
    pub fn builder(database: &Database) -> InboxBuilder {
        InboxBuilder::new(database)
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Does work once. `work` gets a transaction for its statements; when it returns `Ok`, the marker of the operation and all
    /// that it wrote are committed together. When it fails, all is rolled back, and the next call does it again.
    ///
    /// With a fence, the transaction is refused if anybody has committed work under a later epoch of the same resource: its
    /// caller is a former owner that was paused.
    ///
    /// # Errors
    /// [`OnceError::Work`] with the error of the work. [`OnceError::Store`]: transient errors of the database, among them
    /// conflicts of transactions, after which it is tried again from the start; [`ErrorKind::Fenced`]; [`ErrorKind::TooLarge`] for
    /// a result above [`MAX_RESULT_LEN`]; [`ErrorKind::InvalidConfig`] if the work kept its transaction or ended it.
    pub async fn once<F, Fut, R, E>(
        &self,
        operation: &Operation,
        fence: Option<&Fence>,
        work: F,
    ) -> Result<Once<R>, OnceError<E>>
    where
        F: FnOnce(Tx) -> Fut,
        Fut: Future<Output = Result<R, E>>,
    {
        self.once_keeping(operation, fence, work, |_| None).await
    }

    /// Does work once, and keeps what `result_of` makes of its value, unless the work keeps a result itself.
    async fn once_keeping<F, Fut, R, E>(
        &self,
        operation: &Operation,
        fence: Option<&Fence>,
        work: F,
        result_of: impl FnOnce(&R) -> Option<Bytes>,
    ) -> Result<Once<R>, OnceError<E>>
    where
        F: FnOnce(Tx) -> Fut,
        Fut: Future<Output = Result<R, E>>,
    {
        let began = Instant::now();
        let tx = match self.start(operation, fence).await? {
            Start::Go(tx) => tx,
            Start::Duplicate(result) => return Ok(Once::Duplicate(result)),
        };
        let (tx, loan) = lend(tx);
        let worked = work(tx).await;
        // Taken back in any case: a rollback that is awaited leaves the connection free.
        let back = loan.back();
        let value = match worked {
            Ok(value) => value,
            Err(error) => {
                if let Ok((tx, _)) = back {
                    tx.rollback().await;
                }
                return Err(OnceError::Work(error));
            }
        };
        let (tx, result) = back?;
        let result = result.or_else(|| result_of(&value));
        match self.finish(tx, operation, fence, result, began.elapsed()).await? {
            Claimed::First => Ok(Once::First(value)),
            Claimed::Duplicate(result) => Ok(Once::Duplicate(result)),
        }
    }

    /// Does work for those of many operations that were not done before, in one transaction: one request decides which they are.
    /// `work` gets the transaction and the positions in `operations` of the new ones, in order; it is not called if there is none.
    /// Returns these positions with what it returned.
    ///
    /// An operation that is in the list twice is new at its first position. The markers come first, in the order of their ids,
    /// so that two batches that share operations wait for each other and do not deadlock.
    ///
    /// # Errors
    /// As [`once`](Self::once); and [`ErrorKind::InvalidConfig`] if `work` [keeps a result](Tx::keep_result): nothing is committed.
    pub async fn once_all<F, Fut, R, E>(
        &self,
        operations: &[Operation],
        fence: Option<&Fence>,
        work: F,
    ) -> Result<Once<(Vec<usize>, R)>, OnceError<E>>
    where
        F: FnOnce(Tx, Vec<usize>) -> Fut,
        Fut: Future<Output = Result<R, E>>,
    {
        self.once_some(operations, fence, work, |_| Vec::new()).await
    }

    /// Does the same, but for operations that the work did not do: `undone` returns their positions in `operations`, and their
    /// markers are not committed.
    pub(super) async fn once_some<F, Fut, R, E>(
        &self,
        operations: &[Operation],
        fence: Option<&Fence>,
        work: F,
        undone: impl FnOnce(&R) -> Vec<usize>,
    ) -> Result<Once<(Vec<usize>, R)>, OnceError<E>>
    where
        F: FnOnce(Tx, Vec<usize>) -> Fut,
        Fut: Future<Output = Result<R, E>>,
    {
        let mut tx = self.database.begin().await?;
        let claimed = match claims::many(&mut tx.conn(), self, operations, fence, Some(self.idle)).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tx.rollback().await;
                return Err(error.into());
            }
        };
        let fresh: Vec<_> = (0..operations.len()).filter(|at| claimed[*at]).collect();
        if fresh.is_empty() {
            tx.rollback().await;
            return Ok(Once::Duplicate(None));
        }
        let (tx, loan) = lend(tx);
        let worked = work(tx, fresh.clone()).await;
        let back = loan.back();
        let value = match worked {
            Ok(value) => value,
            Err(error) => {
                if let Ok((tx, _)) = back {
                    tx.rollback().await;
                }
                return Err(OnceError::Work(error));
            }
        };
        let (mut tx, result) = back?;
        if result.is_some() {
            tx.rollback().await;
            let why = "a batch keeps no result: its operations may come again one by one";
            return Err(Error::new(ErrorKind::InvalidConfig, why).into());
        }
        let undone = undone(&value);
        let mut last = Ok(());
        for at in undone {
            if last.is_ok() {
                last = claims::withdraw(&mut tx.conn(), self, &operations[at]).await;
            }
        }
        if last.is_ok() {
            last = self.permits(&mut tx, fence).await;
        }
        if let Err(error) = last {
            tx.rollback().await;
            return Err(error.into());
        }
        self.commit(tx, fence).await?;
        Ok(Once::First((fresh, value)))
    }

    /// Writes the marker of an operation within a transaction of the caller, who does the work only for [`Claimed::First`] and
    /// rolls back or commits. A second transaction for the same operation waits here until the first one has ended.
    ///
    /// The fence is compared here, and stays as it is until the transaction ends. Transactions that claim several operations
    /// should do it in one order, or [at once](Self::claim_all).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`], and errors of the database. After one the transaction has to be rolled back.
    pub async fn claim(
        &self,
        conn: impl Into<Conn<'_>>,
        operation: &Operation,
        fence: Option<&Fence>,
    ) -> Result<Claimed> {
        let mut conn = conn.into();
        if let Some(fence) = fence {
            self.compare(&mut conn, fence).await?;
        }
        claims::one(&mut conn, self, operation, fence, None).await
    }

    /// Writes the markers of all operations that were not done before, in one request, within a transaction of the caller. Returns
    /// for each whether it is the caller's to do.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub async fn claim_all(
        &self,
        conn: impl Into<Conn<'_>>,
        operations: &[Operation],
        fence: Option<&Fence>,
    ) -> Result<Vec<bool>> {
        let mut conn = conn.into();
        if let Some(fence) = fence {
            self.compare(&mut conn, fence).await?;
        }
        claims::many(&mut conn, self, operations, fence, None).await
    }

    /// Keeps the result of an operation that the same transaction has [claimed](Self::claim).
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] above [`MAX_RESULT_LEN`], [`ErrorKind::NotFound`] if it was not claimed, and errors of the database.
    pub async fn keep_result(
        &self,
        conn: impl Into<Conn<'_>>,
        operation: &Operation,
        result: &[u8],
    ) -> Result<()> {
        claims::finish(&mut conn.into(), self, operation, Some(check_result(result)?)).await
    }

    /// Returns whether an operation was done, with its result. `None` if it was not, or was forgotten.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn look(&self, operation: &Operation) -> Result<Option<Option<Bytes>>> {
        claims::look(&self.database, self, operation).await
    }

    /// Returns the highest epoch under which work was committed for a resource. An epoch that is granted next should be larger:
    /// one from a server that lost its data and has a slow clock may not be, and all its work would be refused.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn highest_epoch(&self, fence: &Fence) -> Result<Option<u64>> {
        fence::highest(&self.database, &self.namespace, fence).await
    }

    /// Begins a transaction, unless the operation was done before.
    async fn start(&self, operation: &Operation, fence: Option<&Fence>) -> Result<Start> {
        let mut tx = self.database.begin().await?;
        let claimed = match self.effective_mode() {
            Mode::Pessimistic => claims::one(&mut tx.conn(), self, operation, fence, Some(self.idle)).await,
            Mode::Optimistic => claims::look_first(&mut tx.conn(), self, operation).await,
        };
        match claimed {
            Ok(Claimed::First) => Ok(Start::Go(tx)),
            Ok(Claimed::Duplicate(result)) => {
                tx.rollback().await;
                Ok(Start::Duplicate(result))
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Writes what is still to be written, compares the fence and commits.
    async fn finish(
        &self,
        mut tx: Tx,
        operation: &Operation,
        fence: Option<&Fence>,
        result: Option<Bytes>,
        took: Duration,
    ) -> Result<Claimed> {
        let written = self.write_last(&mut tx, operation, fence, result.as_deref(), took).await;
        match written {
            Ok(Claimed::First) => {}
            other => {
                tx.rollback().await;
                return other;
            }
        }
        self.commit(tx, fence).await?;
        Ok(Claimed::First)
    }

    async fn write_last(
        &self,
        tx: &mut Tx,
        operation: &Operation,
        fence: Option<&Fence>,
        result: Option<&[u8]>,
        took: Duration,
    ) -> Result<Claimed> {
        let result = result.map(check_result).transpose()?;
        match self.effective_mode() {
            Mode::Optimistic => {
                let claimed = claims::one(&mut tx.conn(), self, operation, fence, None).await?;
                if claimed != Claimed::First {
                    return Ok(claimed);
                }
                if result.is_some() {
                    claims::finish(&mut tx.conn(), self, operation, result).await?;
                }
            }
            // The retention counts from the end of the work. For short work the difference is not worth a request.
            Mode::Pessimistic if result.is_some() || took > Duration::from_secs(1) => {
                claims::finish(&mut tx.conn(), self, operation, result).await?;
            }
            Mode::Pessimistic => {}
        }
        self.permits(tx, fence).await?;
        Ok(Claimed::First)
    }

    /// Compares the fence at the end of a transaction. From then to the commit nobody can raise it, and it is held for that
    /// short time only: the work may take long.
    async fn permits(&self, tx: &mut Tx, fence: Option<&Fence>) -> Result<()> {
        let Some(fence) = fence else {
            // PostgreSQL answers the commit of a transaction in which a statement failed with success, and rolls it back.
            // Work that overlooked the failure would be recorded nowhere and acknowledged. Any other statement fails then.
            return tx.conn().rows("SELECT 1", &[], "commit").await.map(drop);
        };
        self.compare(&mut tx.conn(), fence).await
    }

    async fn compare(&self, conn: &mut Conn<'_>, fence: &Fence) -> Result<()> {
        let known = self.raised.is(fence);
        fence::compare(conn, &self.namespace, fence, known).await.inspect_err(|_| self.raised.forget(fence))
    }

    async fn commit(&self, tx: Tx, fence: Option<&Fence>) -> Result<()> {
        tx.commit_checked().await?;
        if let Some(fence) = fence {
            self.raised.put(fence);
        }
        Ok(())
    }

    fn effective_mode(&self) -> Mode {
        match self.database.dialect() {
            crate::Dialect::Postgres => self.mode,
            // The transaction has the lock for writing from its start.
            _ => Mode::Pessimistic,
        }
    }

    /// Scope of an operation: what makes its id unique in the table.
    fn scope(&self, operation: &Operation) -> String {
        scope(&self.namespace, operation)
    }
}

/// Names cannot contain the separator.
pub(crate) fn scope(namespace: &Namespace, operation: &Operation) -> String {
    format!("{namespace}/{}/{}", operation.topic(), operation.group())
}

fn check_result(result: &[u8]) -> Result<&[u8]> {
    if result.len() > MAX_RESULT_LEN {
        let why = format!("the result has {} bytes, an inbox keeps at most {MAX_RESULT_LEN}", result.len());
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    Ok(result)
}

/// Returns the fence of a delivery; none in shared mode, where several members work on a partition.
fn fence_of(delivery: &impl Delivered) -> Result<Option<Fence>> {
    if delivery.epoch() == 0 {
        return Ok(None);
    }
    Fence::of_partition(delivery.topic_partition(), delivery.group(), delivery.epoch()).map(Some)
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("database", &self.database)
            .field("namespace", &self.namespace)
            .field("mode", &self.mode)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}
