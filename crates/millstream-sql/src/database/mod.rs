//! Handle of a database, without type parameters.

mod conn;
#[cfg(feature = "postgres")]
pub(crate) mod pooler;
mod tx;

use std::fmt;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
#[cfg(feature = "postgres")]
use sqlx::Connection as _;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

pub use conn::Conn;
pub(crate) use conn::{Arg, Row};
pub use tx::Tx;
pub(crate) use tx::{begin, lend};

use crate::error::{Phase, failed};

/// Most connections of a pool that [`Database::connect`] opens.
const CONNECTIONS: u32 = 10;

/// Kind of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL 13 or newer.
    Postgres,
    /// SQLite 3.42 or newer.
    Sqlite,
    /// MySQL 8 or MariaDB 10.6. Its tables are documented; no code here connects to it.
    Mysql,
}

/// Pool of connections to a PostgreSQL or SQLite database. Clones share it.
///
/// `Debug` shows where it is and never a password.
#[derive(Clone)]
pub struct Database {
    pub(crate) pool: Pool,
    place: Arc<str>,
}

/// The pool of the client.
#[derive(Clone)]
pub(crate) enum Pool {
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    #[cfg(feature = "sqlite")]
    Sqlite(SqlitePool),
}

impl Database {
    /// Connects to `postgres://user:password@host:port/database`, or to `sqlite:path`, with up to 10 connections. To set
    /// more, make a pool of your own: `Database::from(pool)`.
    ///
    /// A SQLite file is opened in WAL mode, so that readers do not block the writer, and a statement waits up to 5 s for
    /// another writer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL that cannot be read, [`ErrorKind::Unsupported`] for a database whose feature is
    /// off, and for PostgreSQL behind a pooler that keeps no prepared statements, as far as two connections show it;
    /// [`ErrorKind::Denied`], [`ErrorKind::NotFound`], and transient ones if it cannot be reached. No error contains the URL.
    pub async fn connect(url: &str) -> Result<Self> {
        match url.split(':').next().unwrap_or_default() {
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let options: PgConnectOptions = url.parse().map_err(|error| invalid(&error))?;
                let error = |error| failed(error, Phase::Connect, "connect to PostgreSQL");
                let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect_with(options);
                let pool = pool.await.map_err(error)?;
                // A second one that cannot be opened, since there are too many, does not matter here.
                if let Ok(mut other) = PgConnection::connect_with(&pool.connect_options()).await {
                    let mut one = pool.acquire().await.map_err(error)?;
                    pooler::check(&mut one, &mut other).await?;
                    let _ = other.close().await;
                }
                Ok(pool.into())
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let options: SqliteConnectOptions = url.parse().map_err(|error| invalid(&error))?;
                let options = options.journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
                let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await;
                Ok(pool.map_err(|error| failed(error, Phase::Connect, "open SQLite"))?.into())
            }
            other if ["postgres", "postgresql", "sqlite"].contains(&other) => {
                let why = format!("no support of {other}: its feature of millstream-sql is off");
                Err(Error::new(ErrorKind::Unsupported, why))
            }
            // Not quoted: what stands before the first colon may be anything.
            _ => Err(Error::new(
                ErrorKind::InvalidConfig,
                "the URL of a database begins with postgres: or sqlite:",
            )),
        }
    }

    /// Returns the kind of the database.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match &self.pool {
            #[cfg(feature = "postgres")]
            Pool::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Begins a transaction. On SQLite it takes the lock for writing at once (`BEGIN IMMEDIATE`): one that begins to write
    /// later would fail if another one wrote in between.
    ///
    /// # Errors
    /// Transient ones, also if no connection of the pool becomes free in time.
    pub async fn begin(&self) -> Result<Tx> {
        Tx::begin(self).await
    }

    /// Closes all connections.
    pub async fn close(&self) {
        match &self.pool {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.close().await,
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => pool.close().await,
        }
    }

    /// Returns a handle that has one connection of its own, which is opened when it is first used. On SQLite it shares the pool:
    /// what a database in memory has is seen by one pool alone, and there is one writer at a time anyhow.
    pub(crate) fn apart(&self) -> Self {
        let pool = match &self.pool {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                let options = pool.options().clone().max_connections(1).min_connections(0);
                // Without these limits the pool needs no task, and so no runtime here.
                let options = options.idle_timeout(None).max_lifetime(None);
                Pool::Postgres(options.connect_lazy_with((*pool.connect_options()).clone()))
            }
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => Pool::Sqlite(pool.clone()),
        };
        Self { pool, place: self.place.clone() }
    }

    /// Runs one statement outside of a transaction and returns its rows.
    pub(crate) async fn rows(&self, sql: &str, args: &[Arg<'_>], what: &str) -> Result<Vec<Row>> {
        match &self.pool {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                let mut conn = pool.acquire().await.map_err(|error| failed(error, Phase::Connect, what))?;
                Conn::from(&mut *conn).rows_in(sql, args, Phase::Alone, what).await
            }
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => {
                let mut conn = pool.acquire().await.map_err(|error| failed(error, Phase::Connect, what))?;
                Conn::from(&mut *conn).rows_in(sql, args, Phase::Alone, what).await
            }
        }
    }

    /// Chooses the text of a statement.
    pub(crate) fn sql<'a>(&self, postgres: &'a str, sqlite: &'a str) -> &'a str {
        match self.dialect() {
            Dialect::Postgres => postgres,
            Dialect::Sqlite | Dialect::Mysql => sqlite,
        }
    }
}

/// The client's text is left out: what it could not parse may be the password.
fn invalid(_: &sqlx::Error) -> Error {
    Error::new(ErrorKind::InvalidConfig, "the URL of the database cannot be read")
}

#[cfg(feature = "postgres")]
impl From<PgPool> for Database {
    fn from(pool: PgPool) -> Self {
        let options = pool.connect_options();
        let database = options.get_database().unwrap_or("(default)");
        let place = format!("postgres at {}:{}/{database}", options.get_host(), options.get_port()).into();
        Self { pool: Pool::Postgres(pool), place }
    }
}

#[cfg(feature = "sqlite")]
impl From<SqlitePool> for Database {
    fn from(pool: SqlitePool) -> Self {
        let place = format!("sqlite at {}", pool.connect_options().get_filename().display()).into();
        Self { pool: Pool::Sqlite(pool), place }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({})", self.place)
    }
}
