//! Transaction, and the loan of one to a function of the user.

use std::fmt;

use millstream_core::error::{Error, ErrorKind, Result};
#[cfg(feature = "postgres")]
use sqlx::Postgres;
#[cfg(feature = "sqlite")]
use sqlx::Sqlite;
use tokio::sync::oneshot;

use super::{Conn, Database, Pool};
use crate::error::{Phase, failed};

/// Transaction of either database. Dropped without a commit, it is rolled back.
///
/// One that a function of yours is given, as a handler is, is committed by who called it, after the function has returned and
/// has dropped it.
pub struct Tx {
    /// `None` only while it is dropped or ended.
    inner: Option<Inner>,
    /// Where one goes that is dropped, if it is lent.
    home: Option<oneshot::Sender<Inner>>,
}

/// The transaction of the client.
pub(crate) enum Inner {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::Transaction<'static, Postgres>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

/// A transaction that was lent and comes back when its [`Tx`] is dropped.
pub(crate) struct Loan(oneshot::Receiver<Inner>);

/// Lends a transaction.
pub(crate) fn lend(mut tx: Tx) -> (Tx, Loan) {
    let (home, back) = oneshot::channel();
    (Tx { inner: tx.inner.take(), home: Some(home) }, Loan(back))
}

impl Loan {
    /// Takes the transaction back.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the [`Tx`] still exists: then it is rolled back when it is dropped.
    pub(crate) fn back(mut self) -> Result<Tx> {
        let inner = self.0.try_recv().map_err(|_| {
            let why = "the function returned and kept its transaction: it has to drop it, or to await the task that has it";
            Error::new(ErrorKind::InvalidConfig, why)
        })?;
        Ok(Tx { inner: Some(inner), home: None })
    }
}

impl Tx {
    pub(super) async fn begin(database: &Database) -> Result<Self> {
        let begun = match &database.pool {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.begin().await.map(Inner::Postgres),
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => pool.begin_with("BEGIN IMMEDIATE").await.map(Inner::Sqlite),
        };
        let inner = begun.map_err(|error| failed(error, Phase::Connect, "begin a transaction"))?;
        Ok(Self { inner: Some(inner), home: None })
    }

    /// Returns its connection.
    pub fn conn(&mut self) -> Conn<'_> {
        match self.inner() {
            #[cfg(feature = "postgres")]
            Inner::Postgres(tx) => Conn::Postgres(&mut **tx),
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(tx) => Conn::Sqlite(&mut **tx),
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

    /// Commits it.
    ///
    /// # Errors
    /// [`ErrorKind::Unconfirmed`] if the connection broke before the reply: it may be committed. [`ErrorKind::Unavailable`] if
    /// the database rolled it back because of a conflict. [`ErrorKind::InvalidConfig`] for one that was lent to a function:
    /// it is rolled back.
    pub async fn commit(mut self) -> Result<()> {
        if self.home.is_some() {
            // Without this, the effect could be committed without what is still to be written beside it.
            self.home = None;
            let why = "a transaction that a function was given is committed after the function, not by it";
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
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
            drop(home.send(inner));
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("lent", &self.home.is_some()).finish_non_exhaustive()
    }
}
