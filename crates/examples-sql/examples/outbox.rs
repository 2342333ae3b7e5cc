//! An order service: the order and the message about it are written in one transaction, a relay sends what was committed, and
//! a consumer bills each order once.
//!
//! ```sh
//! DATABASE_URL=postgres://user@localhost/shop REDIS_URL=redis://localhost cargo run -p examples-sql --example outbox
//! ```
//!
//! Without `REDIS_URL` the queue is in memory. Without `DATABASE_URL` the database is SQLite, in a file that is removed.

use std::time::Duration;

use millstream::sql::{Conn, Database, Outbox, Tx, migrate, sqlx};
use millstream::{Delivery, Millstream, Topic};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[derive(Serialize, Deserialize)]
struct Placed {
    order: i64,
    cents: i64,
}

const PLACED: Topic<Placed> = Topic::new("orders-placed").partitions(4);
const ORDERS: i64 = 200;

/// Runs one statement in the transaction, with two numbers. Returns how many rows it changed.
async fn run(tx: &mut Tx, sql: &str, numbers: [i64; 2]) -> anyhow::Result<u64> {
    let [a, b] = numbers;
    Ok(match tx.conn() {
        Conn::Postgres(conn) => sqlx::query(sql).bind(a).bind(b).execute(conn).await?.rows_affected(),
        Conn::Sqlite(conn) => sqlx::query(sql).bind(a).bind(b).execute(conn).await?.rows_affected(),
    })
}

/// Places an order. Some are refused at the end, after the message was written.
async fn place(database: &Database, order: i64, cents: i64) -> anyhow::Result<bool> {
    let mut tx = database.begin().await?;
    run(&mut tx, "INSERT INTO orders (id, cents) VALUES ($1, $2)", [order, cents]).await?;
    let customer = format!("customer-{}", order % 10);
    Outbox::new().send(&mut tx, &PLACED, &Placed { order, cents }).key(customer).await?;
    if order % 7 == 0 {
        tx.rollback().await;
        return Ok(false);
    }
    tx.commit().await?;
    Ok(true)
}

/// Bills an order. The bill has the order's number as its key, so that a message that comes again changes nothing.
async fn bill(database: &Database, placed: &Placed) -> anyhow::Result<()> {
    let mut tx = database.begin().await?;
    let sql = "INSERT INTO bills (id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    run(&mut tx, sql, [placed.order, placed.cents]).await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(format!("millstream-outbox-{}.db", std::process::id()));
    let sqlite = format!("sqlite:{}?mode=rwc", file.display());
    let database = Database::connect(&std::env::var("DATABASE_URL").unwrap_or(sqlite)).await?;
    migrate(&database).await?;
    let mut tx = database.begin().await?;
    for table in ["orders", "bills"] {
        let sql = format!("CREATE TABLE {table} (id bigint PRIMARY KEY, cents bigint NOT NULL)");
        match tx.conn() {
            Conn::Postgres(conn) => sqlx::query(&sql).execute(conn).await.map(drop)?,
            Conn::Sqlite(conn) => sqlx::query(&sql).execute(conn).await.map(drop)?,
        }
    }
    tx.commit().await?;

    let queue = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let mq = Millstream::connect(&queue).await?;
    let relay = mq.outbox(&database).topic(&PLACED).start().await?;
    let (billed, mut bills) = mpsc::unbounded_channel();
    let consumer = {
        let database = database.clone();
        let handle = move |placed: Delivery<Placed>| {
            let (database, billed) = (database.clone(), billed.clone());
            async move {
                bill(&database, &placed.payload).await?;
                let _ = billed.send(placed.payload.cents);
                anyhow::Ok(())
            }
        };
        mq.consumer(PLACED, "billing").start(handle).await?
    };

    let (mut placed, mut expected) = (0, 0);
    for order in 1..=ORDERS {
        if place(&database, order, order * 10).await? {
            (placed, expected) = (placed + 1, expected + order * 10);
        }
    }
    let mut sum = 0;
    for _ in 0..placed {
        let next = tokio::time::timeout(Duration::from_secs(60), bills.recv()).await?;
        sum += next.ok_or_else(|| anyhow::anyhow!("the consumer ended"))?;
    }
    println!("{placed} of {ORDERS} orders placed, {sum} cents billed");
    anyhow::ensure!(sum == expected, "{expected} cents were ordered");
    consumer.shutdown().await;
    relay.shutdown().await;
    database.close().await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    Ok(())
}
