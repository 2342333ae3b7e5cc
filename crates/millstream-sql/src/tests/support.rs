//! Databases of the tests, and a table in which effects can be counted.

use std::time::Duration;

use millstream_core::idempotency::Operation;
use tempfile::TempDir;

use crate::sqlx::{self, Connection, Executor, Row};
use crate::tests::postgres::shared_url;
use crate::{Conn, Database, Dialect, Inbox, InboxBuilder, Tx, migrate};

/// An empty database.
pub(crate) struct Place {
    pub(crate) database: Database,
    pub(crate) url: String,
    /// Removed with the value.
    #[allow(dead_code)]
    pub(crate) dir: Option<TempDir>,
}

impl Place {
    pub(crate) async fn postgres() -> Self {
        let shared = tokio::task::spawn_blocking(shared_url).await.unwrap();
        Self::postgres_on(&shared).await
    }

    pub(crate) async fn postgres_on(server: &str) -> Self {
        let name = format!("t{}_{:x}", std::process::id(), fastrand::u64(..));
        let mut admin = sqlx::PgConnection::connect(server).await.unwrap();
        admin.execute(&*format!("CREATE DATABASE {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self { database: Database::connect(&url).await.unwrap(), url, dir: None }
    }

    pub(crate) async fn sqlite() -> Self {
        let dir = TempDir::new().unwrap();
        let url = format!("sqlite:{}?mode=rwc", dir.path().join("test.db").display());
        Self { database: Database::connect(&url).await.unwrap(), url, dir: Some(dir) }
    }

    /// Makes the tables, and one for effects.
    pub(crate) async fn ready(self) -> Self {
        migrate(&self.database).await.unwrap();
        let mut tx = self.database.begin().await.unwrap();
        run(&mut tx, "CREATE TABLE effects (name text NOT NULL)").await;
        tx.commit().await.unwrap();
        self
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.database.dialect() == Dialect::Postgres
    }

    /// Returns an inbox with the defaults.
    pub(crate) fn inbox(&self) -> Inbox {
        self.builder().build().unwrap()
    }

    /// Returns settings of an inbox that need no statement about retries.
    pub(crate) fn builder(&self) -> InboxBuilder {
        Inbox::builder(&self.database).retries_within(Duration::from_secs(60))
    }

    /// Returns how often an effect is there.
    pub(crate) async fn effects(&self, name: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM effects WHERE name = '{name}'")).await
    }

    /// Returns the number of a query.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let mut tx = self.database.begin().await.unwrap();
        let number = match tx.conn() {
            Conn::Postgres(conn) => conn.fetch_one(sql).await.unwrap().get(0),
            Conn::Sqlite(conn) => conn.fetch_one(sql).await.unwrap().get(0),
        };
        tx.rollback().await;
        number
    }
}

/// Runs statements in a transaction.
pub(crate) async fn run(tx: &mut Tx, sql: &str) {
    try_run(tx, sql).await.unwrap();
}

pub(crate) async fn try_run(tx: &mut Tx, sql: &str) -> Result<(), sqlx::Error> {
    match tx.conn() {
        Conn::Postgres(conn) => conn.execute(sql).await.map(drop),
        Conn::Sqlite(conn) => conn.execute(sql).await.map(drop),
    }
}

/// Adds an effect.
pub(crate) async fn effect(tx: &mut Tx, name: &str) {
    run(tx, &format!("INSERT INTO effects (name) VALUES ('{name}')")).await;
}

pub(crate) fn operation(id: &str) -> Operation {
    Operation::new("orders".parse().unwrap(), "billing".parse().unwrap(), id.as_bytes().to_vec()).unwrap()
}

/// Runs each test on both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::tests::support::Place::postgres().await.ready().await).await;
            })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::tests::support::Place::sqlite().await.ready().await).await;
            })*
        }
    };
}
pub(crate) use on_both;
