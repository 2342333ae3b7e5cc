//! A bank: accounts in a database, and transfers that a topic delivers to worker processes.
//!
//! Every worker uses one strategy against doubles. What each strategy promises is counted in the database.

use std::path::PathBuf;

use anyhow::{Context, Result};
use millstream::Topic;
use millstream::sql::sqlx::{Executor, Row};
use millstream::sql::{Conn, Database, Tx};
use serde::{Deserialize, Serialize};

/// Group of the workers.
pub const GROUP: &str = "bank";
/// Header that names a transfer.
pub const HEADER: &str = "transfer";
/// What each account has at the beginning.
pub const BALANCE: i64 = 1_000_000;

/// The settings of a worker; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// URL of Redis.
    pub redis: String,
    /// Namespace of the topic.
    pub namespace: String,
    /// URL of the database.
    pub database: String,
    /// Lease ttl in milliseconds.
    pub ttl_ms: u64,
    /// Means against doubles.
    pub strategy: Strategy,
    /// Point at which the worker dies, if it is the first to come there.
    pub dies: Option<Dies>,
    /// File that the first one to die creates.
    pub died: PathBuf,
}

/// Means against doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// None: what is delivered again has its effect again.
    Nothing,
    /// A marker on Redis.
    RedisMarker,
    /// A marker in the database, in transactions of its own.
    SqlMarker,
    /// A unique index on what the transfer writes.
    UniqueIndex,
    /// An inbox, whose marker comes first.
    Pessimistic,
    /// An inbox, whose marker comes last.
    Optimistic,
}

/// Where a worker dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dies {
    /// In the transaction of the effect.
    InTransaction,
    /// After the effect was committed, before anything else.
    AfterEffect,
    /// After all that the strategy does, before the acknowledgement.
    BeforeAck,
}

/// A transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// Its number.
    pub number: i64,
    /// Account that pays.
    pub from: i64,
    /// Account that is paid.
    pub to: i64,
    /// Amount.
    pub amount: i64,
}

/// Returns the topic of transfers.
#[must_use]
pub fn topic() -> Topic<Transfer> {
    Topic::<Transfer>::new("transfers").partitions(4)
}

/// Creates the tables, with this many accounts.
///
/// # Errors
/// Those of the database.
pub async fn open(database: &Database, accounts: i64) -> Result<()> {
    millstream::sql::migrate(database).await?;
    let mut tx = database.begin().await?;
    for sql in [
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)".to_owned(),
        "CREATE TABLE transfers (number bigint NOT NULL, once bigint UNIQUE)".to_owned(),
        format!(
            "INSERT INTO accounts WITH RECURSIVE n (id) AS \
             (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id + 1 < {accounts}) SELECT id, {BALANCE} FROM n"
        ),
    ] {
        run(&mut tx, &sql).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Writes a transfer. With a unique index it fails if it was written before.
///
/// # Errors
/// Those of the database.
pub async fn write(tx: &mut Tx, transfer: &Transfer, unique: bool) -> Result<()> {
    let Transfer { number, from, to, amount } = *transfer;
    let once = if unique { number.to_string() } else { "NULL".to_owned() };
    run(tx, &format!("INSERT INTO transfers (number, once) VALUES ({number}, {once})")).await?;
    let mut changes = [(from, -amount), (to, amount)];
    // In the order of accounts, so that two transfers do not deadlock.
    changes.sort_unstable();
    for (account, change) in changes {
        run(tx, &format!("UPDATE accounts SET balance = balance + {change} WHERE id = {account}")).await?;
    }
    Ok(())
}

/// Runs a statement.
///
/// # Errors
/// Those of the database.
pub async fn run(tx: &mut Tx, sql: &str) -> Result<()> {
    match tx.conn() {
        Conn::Postgres(conn) => _ = conn.execute(sql).await?,
        Conn::Sqlite(conn) => _ = conn.execute(sql).await?,
    }
    Ok(())
}

/// Returns the numbers of a query: two columns of each row.
///
/// # Errors
/// Those of the database.
pub async fn pairs(database: &Database, sql: &str) -> Result<Vec<(i64, i64)>> {
    let mut tx = database.begin().await.context("begin")?;
    let pairs = match tx.conn() {
        Conn::Postgres(conn) => {
            conn.fetch_all(sql).await?.iter().map(|row| (row.get(0), row.get(1))).collect()
        }
        Conn::Sqlite(conn) => conn.fetch_all(sql).await?.iter().map(|row| (row.get(0), row.get(1))).collect(),
    };
    tx.rollback().await;
    Ok(pairs)
}
