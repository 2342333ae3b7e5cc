//! Transaction, and the loan of one to a function of the user.

use std::fmt;

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
#[cfg(feature = "postgres")]
use sqlx::Postgres;
#[cfg(feature = "sqlite")]
use sqlx::Sqlite;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::{Conn, Database, Pool};
use crate::error::{Phase, failed};

/// Transaction of either database. Dropped without a commit, it is rolled back.
///
/// One that a function of yours is given, as a handler is, is committed by who called it, after the function has returned and
/// has dropped it.
pub struct Tx {
    /// `None` only while it is dropped or ended.
    inner: Option<Inner>,
    result: Option<Bytes>,
    /// Where one goes that is dropped, if it is lent.
    home: Option<oneshot::Sender<Returned>>,
}

type Returned = (Inner, Option<Bytes>);

/// The transaction of the client.
pub(crate) enum Inner {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::Transaction<'static, Postgres>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

/// A transaction that was lent and comes back when its [`Tx`] is dropped.
pub(crate) struct Loan(oneshot::Receiver<Returned>);

/// A client whose transactions begin with a statement.
pub(crate) trait Begins: sqlx::Database {
    /// `None`: that of the client.
    const STATEMENT: Option<&'static str>;
}

#[cfg(feature = "postgres")]
impl Begins for Postgres {
    const STATEMENT: Option<&'static str> = None;
}

#[cfg(feature = "sqlite")]
impl Begins for Sqlite {
    const STATEMENT: Option<&'static str> = Some("BEGIN IMMEDIATE");
}

/// Begins a transaction.
///
/// In a task of its own, since the future of the client may not be dropped half-way, as by the timeout of a handler. With sqlx 0.8.6 the
/// connection would go back to its pool inside of the transaction: on PostgreSQL between `BEGIN` and its answer, so that statements
/// of others on it are not committed; on SQLite between `BEGIN` and a check behind it, so that the database stays locked. If
/// nobody waits for the task any more, the transaction that it returns is dropped, which rolls back.
pub(crate) async fn begin<DB: Begins>(pool: &sqlx::Pool<DB>) -> sqlx::Result<sqlx::Transaction<'static, DB>> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move {
        match DB::STATEMENT {
            None => pool.begin().await,
            Some(statement) => pool.begin_with(statement).await,
        }
    });
    // The task has ended by itself, unless the runtime is about to end.
    begun.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

/// Lends a transaction.
pub(crate) fn lend(mut tx: Tx) -> (Tx, Loan) {
    let (home, back) = oneshot::channel();
    (Tx { inner: tx.inner.take(), result: None, home: Some(home) }, Loan(back))
}

impl Loan {
    /// Takes the transaction back, with the result that the function kept.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the [`Tx`] still exists, or was ended: then nothing of it is committed.
    pub(crate) fn back(mut self) -> Result<(Tx, Option<Bytes>)> {
        let (inner, result) = self.0.try_recv().map_err(|error| {
            let why = match error {
                TryRecvError::Empty => "the function returned and kept its transaction: it has to drop it",
                TryRecvError::Closed => "the function ended its transaction, which is left to its caller",
            };
            Error::new(ErrorKind::InvalidConfig, why)
        })?;
        Ok((Tx { inner: Some(inner), result: None, home: None }, result))
    }
}

impl Tx {
    pub(super) async fn begin(database: &Database) -> Result<Self> {
        let begun = match &database.pool {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => begin(pool).await.map(Inner::Postgres),
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => begin(pool).await.map(Inner::Sqlite),
        };
        let inner = begun.map_err(|error| failed(error, Phase::Connect, "begin a transaction"))?;
        Ok(Self { inner: Some(inner), result: None, home: None })
    }

    /// Returns its connection.
    pub fn conn(&mut self) -> Conn<'_> {
        match self.inner() {
            #[cfg(feature = "postgres")]
            Inner::Postgres(tx) => Conn::Postgres(tx),
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(tx) => Conn::Sqlite(tx),
        }
    }

    /// Returns its connection to PostgreSQL, for statements of yours.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the database is another one.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Result<&mut sqlx::PgConnection> {
        match self.inner() {
            Inner::Postgres(tx) => Ok(&mut **tx),
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(_) => Err(Error::new(ErrorKind::Unsupported, "the database is SQLite")),
        }
    }

    /// Returns its connection to SQLite, for statements of yours.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the database is another one.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Result<&mut sqlx::SqliteConnection> {
        match self.inner() {
            #[cfg(feature = "postgres")]
            Inner::Postgres(_) => Err(Error::new(ErrorKind::Unsupported, "the database is PostgreSQL")),
            Inner::Sqlite(tx) => Ok(&mut **tx),
        }
    }

    /// Sets the result of the operation that is done in this transaction, for an [inbox](crate::Inbox): a duplicate gets it.
    /// At most 64 KiB, and not in a batch: it is refused when the transaction is to be committed.
    pub fn keep_result(&mut self, result: impl Into<Bytes>) {
        self.result = Some(result.into());
    }

    /// Commits it.
    ///
    /// # Errors
    /// [`ErrorKind::Unconfirmed`] if the connection broke before the reply: it may be committed. [`ErrorKind::Unavailable`] if
    /// the database rolled it back because of a conflict. [`ErrorKind::Protocol`] if a statement in it failed and that was
    /// overlooked. [`ErrorKind::InvalidConfig`] for one that was lent to a function. But for the first, nothing is committed.
    pub async fn commit(mut self) -> Result<()> {
        if self.home.take().is_some() {
            // Without this, the effect could be committed without what is still to be written beside it.
            let why = "a transaction that a function was given is committed after the function, not by it";
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        // PostgreSQL answers the commit of a transaction in which a statement failed with success, and rolls it back. Any other
        // statement fails then.
        self.conn().rows("SELECT 1", &[], "commit").await?;
        self.commit_checked().await
    }

    /// Commits one whose last statement succeeded.
    pub(crate) async fn commit_checked(mut self) -> Result<()> {
        let done = match self.inner.take().expect("a transaction until it ends") {
            #[cfg(feature = "postgres")]
            Inner::Postgres(tx) => tx.commit().await,
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(tx) => tx.commit().await,
        };
        done.map_err(|error| failed(error, Phase::Commit, "commit"))
    }

    /// Rolls it back, and waits for that. Without effect on errors: a broken connection rolls it back, too.
    pub async fn rollback(mut self) {
        self.home = None;
        let done = match self.inner.take().expect("a transaction until it ends") {
            #[cfg(feature = "postgres")]
            Inner::Postgres(tx) => tx.rollback().await,
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(tx) => tx.rollback().await,
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a transaction was not rolled back in order");
        }
    }

    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("a transaction until it ends")
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let (Some(inner), Some(home)) = (self.inner.take(), self.home.take()) {
            // If nobody waits for it, it is dropped here, which rolls it back.
            drop(home.send((inner, self.result.take())));
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("lent", &self.home.is_some()).finish_non_exhaustive()
    }
}
