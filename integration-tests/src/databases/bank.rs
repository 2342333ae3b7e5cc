//! A bank: accounts in a database, and transfers that a topic delivers to worker processes.
//!
//! Every worker uses one strategy against doubles. What each strategy promises is counted in the database.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
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
    /// Whether it goes on when the file is removed, instead of dying.
    pub stalls: bool,
    /// File that the first one to die or stall creates.
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
    /// The rows of the accounts are locked while they are read and written.
    RowLock,
    /// A row of an account is written if it still has the version that was read.
    RowVersion,
    /// A row of an account is written if it still has the version for which the transfer was made.
    SentVersion,
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
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL DEFAULT 0)".to_owned(),
        "CREATE TABLE transfers (number bigint NOT NULL, once bigint UNIQUE)".to_owned(),
        format!(
            "INSERT INTO accounts (id, balance) WITH RECURSIVE n (id) AS \
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

/// Writes a transfer as a program does that reads balances and computes new ones. Returns false, and leaves the rest of the
/// transfer out, if an account has another version than the transfer was made for.
///
/// # Errors
/// Those of the database; if a row was changed between reading and writing.
pub async fn compute(tx: &mut Tx, transfer: &Transfer, strategy: Strategy) -> Result<bool> {
    let Transfer { number, from, to, amount } = *transfer;
    let lock = if strategy == Strategy::RowLock { " FOR UPDATE" } else { "" };
    let mut changes = [(from, -amount), (to, amount)];
    changes.sort_unstable();
    for (account, change) in changes {
        let rows =
            select(tx, &format!("SELECT balance, version FROM accounts WHERE id = {account}{lock}")).await?;
        let (balance, read) = *rows.first().context("an account")?;
        // A transfer of the tests is made for new accounts.
        let version = if strategy == Strategy::SentVersion { 0 } else { read };
        let guard =
            if strategy == Strategy::RowLock { String::new() } else { format!(" AND version = {version}") };
        let new = balance + change;
        let update =
            format!("UPDATE accounts SET balance = {new}, version = {read} + 1 WHERE id = {account}{guard}");
        match run(tx, &update).await? {
            0 if strategy == Strategy::SentVersion => return Ok(false),
            0 => bail!("account {account} has changed since it was read"),
            _ => {}
        }
    }
    run(tx, &format!("INSERT INTO transfers (number) VALUES ({number})")).await?;
    Ok(true)
}

/// Runs a statement. Returns the number of rows that it changed.
///
/// # Errors
/// Those of the database.
pub async fn run(tx: &mut Tx, sql: &str) -> Result<u64> {
    Ok(match tx.conn() {
        Conn::Postgres(conn) => conn.execute(sql).await?.rows_affected(),
        Conn::Sqlite(conn) => conn.execute(sql).await?.rows_affected(),
    })
}

/// Returns the numbers of a query: two columns of each row.
///
/// # Errors
/// Those of the database.
pub async fn pairs(database: &Database, sql: &str) -> Result<Vec<(i64, i64)>> {
    let mut tx = database.begin().await.context("begin")?;
    let pairs = select(&mut tx, sql).await?;
    tx.rollback().await;
    Ok(pairs)
}

async fn select(tx: &mut Tx, sql: &str) -> Result<Vec<(i64, i64)>> {
    Ok(match tx.conn() {
        Conn::Postgres(conn) => {
            conn.fetch_all(sql).await?.iter().map(|row| (row.get(0), row.get(1))).collect()
        }
        Conn::Sqlite(conn) => conn.fetch_all(sql).await?.iter().map(|row| (row.get(0), row.get(1))).collect(),
    })
}
