//! Transfers between accounts of a SQL database, each exactly once: the inbox commits the effect and the marker of the message in one
//! transaction.
//!
//! ```sh
//! cargo run -p examples-sql --example transfer
//! cargo run -p examples-sql --example transfer -- --url redis://127.0.0.1
//! ```
//!
//! Everything that doubles messages happens here: each transfer is sent twice, as by a client that repeats its request; attempts fail
//! between the two updates; and a worker is stopped in the middle of its work. The balances are right nevertheless. The database is
//! SQLite, in a file that is removed; with PostgreSQL only the URL and `tx.sqlite()` differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use millstream::sql::{Database, Inbox, Tx, migrate, sqlx};
use millstream::{Delivery, Fixed, Millstream, Producer, Topic};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Transfer {
    number: u64,
    from: i64,
    to: i64,
    cents: i64,
}

const TRANSFERS: Topic<Transfer> = Topic::new("transfers").partitions(4);
const ACCOUNTS: i64 = 8;
const COUNT: u64 = 150;
const BALANCE: i64 = 100_000;
/// A worker that ends without having released its partitions keeps them for so long. 10 s by default.
const LEASE: Duration = Duration::from_secs(2);

/// Sends a transfer. The header names the operation: two messages with one number are one transfer, in whatever partition they are.
async fn request(transfers: &Producer<Transfer>, transfer: &Transfer) -> Result<()> {
    let number = transfer.number.to_string();
    transfers.send(transfer).key(transfer.from.to_string()).header("transfer", number).await?;
    Ok(())
}

/// Moves the money. Nothing is committed if it fails.
async fn book(
    transfer: Transfer,
    mut tx: Tx,
    calls: Arc<AtomicU64>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let call = calls.fetch_add(1, Ordering::Relaxed);
    let sql = "UPDATE accounts SET cents = cents - $1 WHERE id = $2 AND cents >= $1";
    let taken = sqlx::query(sql).bind(transfer.cents).bind(transfer.from).execute(tx.sqlite()?).await?;
    if taken.rows_affected() == 0 {
        return Err("the account has not got so much".into());
    }
    if call % 5 == 3 {
        return Err("the connection to the bank broke".into()); // the money is taken, and was not given to anybody
    }
    let sql = "UPDATE accounts SET cents = cents + $1 WHERE id = $2";
    sqlx::query(sql).bind(transfer.cents).bind(transfer.to).execute(tx.sqlite()?).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: transfer [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("transfer-{run}")).await?;
    let file = std::env::temp_dir().join(format!("millstream-transfer-{run}.db"));
    let database = Database::connect(&format!("sqlite:{}?mode=rwc", file.display())).await?;
    let result = transfer(&mq, &database).await;
    database.close().await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    result
}

async fn transfer(mq: &Millstream, database: &Database) -> Result<()> {
    migrate(database).await?; // the tables of the inbox
    let mut tx = database.begin().await?;
    sqlx::query("CREATE TABLE accounts (id integer PRIMARY KEY, cents integer NOT NULL)")
        .execute(tx.sqlite()?)
        .await?;
    for account in 0..ACCOUNTS {
        let sql = "INSERT INTO accounts (id, cents) VALUES ($1, $2)";
        sqlx::query(sql).bind(account).bind(BALANCE).execute(tx.sqlite()?).await?;
    }
    tx.commit().await?;

    let transfers = mq.producer(TRANSFERS).await?;
    let mut expected = vec![BALANCE; usize::try_from(ACCOUNTS)?];
    for number in 0..COUNT {
        let at = i64::try_from(number)?;
        let (from, to, cents) = (at % ACCOUNTS, (at * 3 + 1) % ACCOUNTS, at % 97 + 1);
        let transfer = Transfer { number, from, to, cents };
        request(&transfers, &transfer).await?;
        request(&transfers, &transfer).await?;
        expected[usize::try_from(from)?] -= cents;
        expected[usize::try_from(to)?] += cents;
    }

    let retry = Fixed::new(Duration::from_millis(20)).attempts(50);
    let inbox = Inbox::builder(database)
        .by_header("transfer")
        .retries(&retry)
        .replays_within(Duration::ZERO)
        .build()?;
    let calls = Arc::new(AtomicU64::new(0));
    let handler = || {
        let calls = calls.clone();
        inbox.handler(move |transfer: Delivery<Transfer>, tx: Tx| book(transfer.payload, tx, calls.clone()))
    };

    // The first worker is stopped without being allowed to end what it does.
    let worker = || mq.consumer(TRANSFERS, "bank").lease_ttl(LEASE).retry(retry);
    let first = worker().start(handler()).await?;
    let some = async {
        while calls.load(Ordering::Relaxed) < COUNT / 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), some).await.context("the first worker does nothing")?;
    let first = first.shutdown_within(Duration::ZERO).await;

    let second = worker().start(handler()).await?;
    tokio::time::timeout(Duration::from_secs(120), second.wait_idle())
        .await
        .context("the second worker does not end")??;
    let second = second.shutdown().await;

    let mut tx = database.begin().await?;
    let balances: Vec<i64> =
        sqlx::query_scalar("SELECT cents FROM accounts ORDER BY id").fetch_all(tx.sqlite()?).await?;
    tx.rollback().await;
    let calls = calls.load(Ordering::Relaxed);
    println!(
        "{COUNT} transfers, {} messages, {calls} calls of the handler; first worker: {first:?}, second: {second:?}",
        COUNT * 2
    );
    println!("balances: {balances:?}");
    ensure!(balances == expected, "the balances should be {expected:?}");
    ensure!(calls > COUNT, "no attempt has failed: nothing was tried");
    ensure!(first.dead + second.dead == 0, "a transfer was given up");
    Ok(())
}
