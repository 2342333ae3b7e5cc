//! The outbox's tables as a relay uses them.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::row::{RowName, StoredRow};
use crate::database::{Database, Pool};

/// Lease of a shard as its holder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) shard: i16,
    pub(crate) epoch: i64,
}

/// State of a shard's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardLease {
    pub(crate) shard: i16,
    pub(crate) epoch: i64,
    /// Holder, unless the lease has expired.
    pub(crate) holder: Option<String>,
    /// Whether it had a holder, who did not renew it in time.
    pub(crate) is_expired: bool,
    /// Time until it expires, by the database's clock.
    pub(crate) expires_in: Duration,
}

/// Relays and leases after a renewal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    /// Relays that run, sorted.
    pub(crate) relays: Vec<String>,
    /// All leases, in the order of shards.
    pub(crate) leases: Vec<ShardLease>,
}

/// Row that cannot be sent.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) row: RowName,
    pub(crate) kind: ErrorKind,
    pub(crate) error: String,
}

/// Bounds of a page of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageLimits {
    /// Rows of each shard, on PostgreSQL: a page of SQLite is of one order of rows.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) per_shard: i64,
    /// Rows in all.
    pub(crate) rows: i64,
    /// Bytes of keys, headers and payloads in all, the last row excluded.
    pub(crate) bytes: i64,
    /// Bytes of a payload. A larger one is not read.
    pub(crate) payload: i64,
}

/// State of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Age of the oldest row that could be sent.
    pub(crate) oldest: Option<Duration>,
    /// Age of the oldest transaction that holds back a row.
    pub(crate) blocked: Option<Duration>,
    /// Who has it: process id, name of the application, state. Empty if nothing is held back.
    pub(crate) blocker: String,
    /// Number of dead rows, counted up to [`COUNTED`].
    pub(crate) dead: u64,
}

/// Largest number of dead rows that is counted.
pub(crate) const COUNTED: i64 = 10_000;

/// Tables of the outbox in one database.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// Records that relay `me` runs, extends its leases, and returns the state of all.
    async fn renew(&self, me: &str, ttl: Duration) -> Result<Shares>;

    /// Grants those of `shards` that are free, or whose lease has expired, to relay `me`.
    async fn acquire(&self, me: &str, ttl: Duration, shards: &[i16]) -> Result<Vec<Grant>>;

    /// Gives `shards` back.
    async fn release(&self, me: &str, shards: &[i16]) -> Result<()>;

    /// Gives all shards back, and removes the relay from the list.
    async fn leave(&self, me: &str) -> Result<()>;

    /// Makes rows that are due ready to be sent. Returns their number.
    async fn promote(&self, shards: &[i16]) -> Result<u64>;

    /// Returns rows of `shards` that are ready: of each shard the first ones, in the order of their ids.
    async fn page(&self, shards: &[i16], limits: PageLimits) -> Result<Vec<StoredRow>>;

    /// Deletes rows that were stored and records the failures of others, in one transaction that compares the leases: only rows
    /// of shards whose lease is still the granted one are touched. Returns these shards.
    ///
    /// The database ends a transaction whose relay is silent in it for a `ttl`: its locks would keep others from the shards.
    async fn settle(
        &self,
        me: &str,
        ttl: Duration,
        grants: &[Grant],
        stored: &[RowName],
        failed: &[Failed],
    ) -> Result<Vec<i16>>;

    /// Returns the state of the table.
    async fn sample(&self) -> Result<Sample>;

    /// Starts to notify `wake` of rows that were committed. `None` if the database sends no notifications.
    fn listen(&self, wake: Arc<Notify>) -> Option<AbortOnDropHandle<()>>;
}

/// Opens the tables. The database is not asked for anything.
pub(crate) fn open(database: &Database) -> Arc<dyn Store> {
    match &database.pool {
        #[cfg(feature = "postgres")]
        Pool::Postgres(pool) => Arc::new(postgres::PostgresStore(pool.clone())),
        #[cfg(feature = "sqlite")]
        Pool::Sqlite(pool) => Arc::new(sqlite::SqliteStore(pool.clone())),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn missing() -> Error {
    Error::new(ErrorKind::Protocol, "a query returned no row")
}
