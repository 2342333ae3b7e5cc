//! Acceptance of doing it once: a bank whose workers are killed, paused and cut off, on PostgreSQL and SQLite.
//!
//! `MILLSTREAM_TRANSFERS` sets the number of transfers (default: 400, for a short run), `MILLSTREAM_SEED` the seed.
#![allow(missing_docs)]

mod windows;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration_tests::databases::bank::{BALANCE, HEADER, Setup, Strategy, Transfer, open, pairs, topic};
use integration_tests::databases::postgres;
use integration_tests::process::Process;
use integration_tests::server::Server;
use millstream::Millstream;
use millstream::sql::Database;
use millstream::sql::sqlx::{self, Connection, Executor};
use tempfile::TempDir;

const WORKER: &str = env!("CARGO_BIN_EXE_bank_worker");
const ACCOUNTS: i64 = 100;
const TTL: Duration = Duration::from_secs(1);

/// A bank: Redis, a database and the settings of its workers.
pub(crate) struct Bank {
    pub(crate) setup: Setup,
    pub(crate) database: Database,
    pub(crate) mq: Millstream,
    redis: Server,
    _dir: TempDir,
}

impl Bank {
    pub(crate) async fn open(strategy: Strategy, on_postgres: bool) -> Result<Self> {
        let redis = tokio::task::spawn_blocking(Server::start).await?;
        let dir = TempDir::new()?;
        let url = if on_postgres {
            let server = tokio::task::spawn_blocking(postgres::shared_url).await?;
            let name = format!("bank_{}_{:x}", std::process::id(), fastrand::u64(..));
            sqlx::PgConnection::connect(&server).await?.execute(&*format!("CREATE DATABASE {name}")).await?;
            format!("{}/{name}", server.rsplit_once('/').context("a URL")?.0)
        } else {
            format!("sqlite:{}?mode=rwc", dir.path().join("bank.db").display())
        };
        let database = Database::connect(&url).await?;
        open(&database, ACCOUNTS).await?;
        let setup = Setup {
            redis: redis.url(),
            namespace: "bank".into(),
            database: url,
            ttl_ms: u64::try_from(TTL.as_millis())?,
            strategy,
            dies: None,
            died: dir.path().join("died"),
        };
        let mq = Millstream::at(&setup.redis).namespace(&setup.namespace).await?;
        Ok(Self { setup, database, mq, redis, _dir: dir })
    }

    pub(crate) fn worker(&self) -> Process {
        Process::start(WORKER, &self.setup)
    }

    /// Sends transfers, every tenth twice, as after a lost reply.
    pub(crate) async fn send(&self, transfers: &[Transfer]) -> Result<()> {
        let producer = self.mq.producer(topic()).await?;
        for (at, transfer) in transfers.iter().enumerate() {
            for _ in 0..1 + usize::from(at % 10 == 0) {
                let send = producer.send(transfer).key(transfer.from.to_string());
                send.header(HEADER, transfer.number.to_string()).await?;
            }
        }
        Ok(())
    }

    /// Returns how many transfers were applied, and how many of them more than once.
    pub(crate) async fn applied(&self) -> Result<(i64, i64)> {
        let sql = "SELECT count(*), count(CASE WHEN n > 1 THEN 1 END) \
                   FROM (SELECT count(*) AS n FROM transfers GROUP BY number) AS t";
        pairs(&self.database, sql).await?.first().copied().context("a row")
    }

    /// Waits until nothing is left to handle.
    pub(crate) async fn drained(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let stats = self.mq.stats(&topic(), integration_tests::databases::bank::GROUP).await?;
            let left: u64 = stats.iter().map(|it| it.lag.unwrap_or(1) + it.pending + it.retrying).sum();
            if left == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{left} transfers are left: {stats:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn transfers(count: i64, random: &mut fastrand::Rng) -> Vec<Transfer> {
    (0..count)
        .map(|number| {
            let from = random.i64(0..ACCOUNTS);
            let to = (from + random.i64(1..ACCOUNTS)) % ACCOUNTS;
            Transfer { number, from, to, amount: random.i64(1..1_000) }
        })
        .collect()
}

/// Every balance is exact, and each transfer was applied once, whatever happened to the workers.
async fn every_balance_is_exact(strategy: Strategy, on_postgres: bool) -> Result<()> {
    let count = std::env::var("MILLSTREAM_TRANSFERS").map_or(Ok(400), |text| text.parse())?;
    let seed = std::env::var("MILLSTREAM_SEED").map_or(Ok(fastrand::u64(..)), |text| text.parse())?;
    println!("MILLSTREAM_SEED={seed} MILLSTREAM_TRANSFERS={count}");
    let mut random = fastrand::Rng::with_seed(seed);
    let bank = Bank::open(strategy, on_postgres).await?;
    let sent = transfers(count, &mut random);
    // Workers come before the transfers, so that they are met in the middle of their work.
    let mut workers: Vec<_> = (0..3).map(|_| bank.worker()).collect();
    let sending = bank.send(&sent);
    let (mut killed, mut paused, mut cut) = (0, 0, 0);
    let trouble = async {
        let deadline = Instant::now() + Duration::from_secs(3_600);
        while bank.applied().await?.0 < count || killed + paused < 4 {
            ensure!(Instant::now() < deadline, "{:?} of {count} were applied", bank.applied().await?);
            let at = random.usize(..workers.len());
            match random.u32(..10) {
                0..4 => {
                    workers[at].kill();
                    workers[at] = bank.worker();
                    killed += 1;
                }
                4..7 => {
                    workers[at].stop();
                    tokio::time::sleep(TTL.mul_f64(0.5 + 1.5 * random.f64())).await;
                    workers[at].resume();
                    paused += 1;
                }
                // The replies of the database are lost, some of them those of commits.
                _ if on_postgres => {
                    let sql = "SELECT pid::bigint, CASE WHEN pg_terminate_backend(pid) THEN 1::bigint ELSE 0 END \
                               FROM pg_stat_activity WHERE datname = current_database() \
                               AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3";
                    cut += pairs(&bank.database, sql).await.map_or(0, |rows| rows.len());
                }
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(random.u64(200..900))).await;
        }
        Ok(())
    };
    let (sending, trouble) = tokio::join!(sending, trouble);
    sending.context("sending")?;
    trouble?;
    bank.drained().await?;

    let mut expected: Vec<_> = (0..ACCOUNTS).map(|id| (id, BALANCE)).collect();
    for Transfer { from, to, amount, .. } in sent {
        expected[usize::try_from(from)?].1 -= amount;
        expected[usize::try_from(to)?].1 += amount;
    }
    let balances = pairs(&bank.database, "SELECT id, balance FROM accounts ORDER BY id").await?;
    println!("{count} transfers, {killed} kills, {paused} pauses, {cut} connections cut");
    ensure!(bank.applied().await? == (count, 0), "applied, and more than once: {:?}", bank.applied().await?);
    ensure!(balances == expected, "balances: {balances:?}, expected {expected:?}");
    ensure!(bank.redis.is_running());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_inbox_on_postgres_every_balance_is_exact() -> Result<()> {
    every_balance_is_exact(Strategy::Pessimistic, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_optimistic_inbox_on_postgres_every_balance_is_exact() -> Result<()> {
    every_balance_is_exact(Strategy::Optimistic, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_inbox_on_sqlite_every_balance_is_exact() -> Result<()> {
    every_balance_is_exact(Strategy::Pessimistic, false).await
}
