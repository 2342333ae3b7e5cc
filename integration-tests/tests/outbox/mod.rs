//! The transactional outbox, on PostgreSQL and SQLite.

mod faults;
mod kills;
mod rate;
mod rows;
mod shards;
mod watermark;

use std::time::Duration;

use bytes::Bytes;
use integration_tests::databases::outbox::postgres_url;
use millstream::sql::{Database, OutboxRelay, migrate, sqlx};
use millstream::{Millstream, Topic};

/// Messages of the tests: text.
const LINES: Topic<Bytes> = Topic::raw("lines").partitions(4);

/// Ttl of leases: short, so that tests need not wait for it.
const TTL: Duration = Duration::from_millis(1_500);

/// A queue in memory, and a database.
struct Scene {
    mq: Millstream,
    database: Database,
    url: String,
    _folder: Option<tempfile::TempDir>,
}

impl Scene {
    async fn postgres() -> Self {
        let url = postgres_url().await;
        let database = Database::connect(&url).await.expect("connected");
        Self { mq: memory().await, database, url, _folder: None }
    }

    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("outbox.db").display());
        let database = Database::connect(&url).await.expect("connected");
        migrate(&database).await.expect("migrated");
        Self { mq: memory().await, database, url, _folder: Some(folder) }
    }

    /// One of each kind.
    async fn both() -> [Self; 2] {
        [Self::postgres().await, Self::sqlite().await]
    }

    async fn relay(&self) -> OutboxRelay {
        self.mq.outbox(&self.database).topic(&LINES).ttl(TTL).start().await.expect("a relay")
    }

    /// Runs a statement by itself.
    async fn run(&self, sql: &str) {
        let mut tx = self.database.begin().await.expect("begun");
        run(&mut tx, sql).await.expect("done");
        tx.commit().await.expect("committed");
    }

    /// Returns the number that a query returns.
    async fn number(&self, sql: &str) -> i64 {
        let mut tx = self.database.begin().await.expect("begun");
        number(&mut tx, sql).await
    }
}

async fn memory() -> Millstream {
    Millstream::connect("memory://").await.expect("a queue")
}

async fn run(tx: &mut millstream::sql::Tx, sql: &str) -> sqlx::Result<()> {
    match tx.conn() {
        millstream::sql::Conn::Postgres(conn) => sqlx::raw_sql(sql).execute(conn).await.map(drop),
        millstream::sql::Conn::Sqlite(conn) => sqlx::raw_sql(sql).execute(conn).await.map(drop),
    }
}

async fn number(tx: &mut millstream::sql::Tx, sql: &str) -> i64 {
    match tx.conn() {
        millstream::sql::Conn::Postgres(conn) => {
            sqlx::query_scalar(sql).fetch_one(conn).await.expect("a number")
        }
        millstream::sql::Conn::Sqlite(conn) => {
            sqlx::query_scalar(sql).fetch_one(conn).await.expect("a number")
        }
    }
}

fn line(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
