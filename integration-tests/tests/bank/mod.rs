//! Acceptance of doing it once: a bank whose workers are killed, paused and cut off, and whose links to Redis are cut and lose
//! replies, on PostgreSQL and SQLite.
//!
//! `MILLSTREAM_TRANSFERS` sets the number of transfers (default: 400, for a short run), `MILLSTREAM_SEED` the seed.

mod links;
mod windows;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration_tests::databases::bank::{BALANCE, HEADER, Setup, Strategy, Transfer, open, pairs, topic};
use integration_tests::databases::postgres;
use integration_tests::process::Process;
use integration_tests::proxy::Proxy;
use integration_tests::server::Server;
use links::{Links, Lost};
use millstream::sql::Database;
use millstream::sql::sqlx::{self, Connection, Executor};
use millstream::{ErrorKind, Millstream};
use tempfile::TempDir;

const WORKER: &str = env!("CARGO_BIN_EXE_bank_worker");
const ACCOUNTS: i64 = 100;
const TTL: Duration = Duration::from_secs(1);

/// A bank: Redis, a database and the settings of its workers.
pub(crate) struct Bank {
    pub(crate) setup: Setup,
    pub(crate) database: Database,
    /// Goes straight to Redis: the test itself loses nothing.
    pub(crate) mq: Millstream,
    pub(crate) redis: Server,
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
            stalls: false,
            died: dir.path().join("died"),
        };
        let mq = Millstream::at(&setup.redis).namespace(&setup.namespace).await?;
        Ok(Self { setup, database, mq, redis, _dir: dir })
    }

    pub(crate) fn worker(&self) -> Process {
        Process::start(WORKER, &self.setup)
    }

    /// A worker whose link is this one.
    pub(crate) fn worker_behind(&self, link: &Proxy) -> Process {
        Process::start(WORKER, &Setup { redis: link.url(), ..self.setup.clone() })
    }

    /// Sends transfers, every tenth twice, as after a lost reply.
    pub(crate) async fn send(&self, transfers: &[Transfer]) -> Result<()> {
        self.send_over(&self.mq, transfers, |_| {}).await
    }

    /// The same through a client. Before each, `before` is called; what is not known to be stored is sent again.
    pub(crate) async fn send_over(
        &self,
        mq: &Millstream,
        transfers: &[Transfer],
        mut before: impl FnMut(&Transfer),
    ) -> Result<()> {
        let producer = mq.producer(topic()).await?;
        let deadline = Instant::now() + Duration::from_secs(3_600);
        for (at, transfer) in transfers.iter().enumerate() {
            for _ in 0..1 + usize::from(at % 10 == 0) {
                before(transfer);
                loop {
                    let send = producer.send(transfer).key(transfer.from.to_string());
                    match send.header(HEADER, transfer.number.to_string()).await {
                        Ok(_) => break,
                        Err(error)
                            if matches!(error.kind(), ErrorKind::Unconfirmed | ErrorKind::Unavailable) =>
                        {
                            ensure!(
                                Instant::now() < deadline,
                                "transfer {} is not stored: {error}",
                                transfer.number
                            );
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
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

/// What happened to the transfers of a run.
struct Ran {
    /// How many were applied, and how many of them more than once.
    applied: (i64, i64),
    /// Number of each transfer that was applied more than once.
    doubles: Vec<i64>,
    /// Balances that are not what the transfers make of them: account, and the difference.
    wrong: Vec<(i64, i64)>,
    count: i64,
    lost: Lost,
}

/// Lets workers apply transfers while they are killed and paused, and while connections are cut and replies lost, on both sides.
async fn run(strategy: Strategy, on_postgres: bool) -> Result<Ran> {
    let count = std::env::var("MILLSTREAM_TRANSFERS").map_or(Ok(400), |text| text.parse())?;
    let seed = std::env::var("MILLSTREAM_SEED").map_or(Ok(fastrand::u64(..)), |text| text.parse())?;
    println!("MILLSTREAM_SEED={seed} MILLSTREAM_TRANSFERS={count}");
    let mut random = fastrand::Rng::with_seed(seed);
    let bank = Bank::open(strategy, on_postgres).await?;
    let sent = transfers(count, &mut random);
    let links = Links::to(bank.redis.port(), random.fork());
    // Workers come before the transfers, so that they are met in the middle of their work.
    let mut workers: Vec<_> = (0..3).map(|_| bank.worker_behind(&links.of_workers)).collect();
    let sending = links.send(&bank, &sent);
    let (mut killed, mut paused, mut cut) = (0, 0, 0);
    let trouble = async {
        let deadline = Instant::now() + Duration::from_secs(3_600);
        while bank.applied().await?.0 < count || killed + paused < 4 {
            ensure!(Instant::now() < deadline, "{:?} of {count} were applied", bank.applied().await?);
            let at = random.usize(..workers.len());
            match random.u32(..10) {
                0..4 => {
                    workers[at].kill();
                    workers[at] = bank.worker_behind(&links.of_workers);
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
    let both = async { tokio::join!(sending, trouble) };
    let (sending, trouble) = links.in_trouble(both).await;
    let mut lost = links.lost();
    lost.appends = sending.context("sending")?;
    trouble?;
    bank.drained().await?;

    let mut expected: Vec<_> = (0..ACCOUNTS).map(|id| (id, BALANCE)).collect();
    for Transfer { from, to, amount, .. } in sent {
        expected[usize::try_from(from)?].1 -= amount;
        expected[usize::try_from(to)?].1 += amount;
    }
    let balances = pairs(&bank.database, "SELECT id, balance FROM accounts ORDER BY id").await?;
    let differ = balances.iter().zip(&expected).map(|((id, is), (_, should))| (*id, is - should));
    let wrong = differ.filter(|(_, difference)| *difference != 0).collect();
    let sql = "SELECT number, count(*) FROM transfers GROUP BY number HAVING count(*) > 1 ORDER BY number";
    let doubles = pairs(&bank.database, sql).await?.into_iter().map(|(number, _)| number).collect();
    println!("{count} transfers, {killed} kills, {paused} pauses, {cut} connections cut, {lost:?}");
    ensure!(balances.len() == expected.len() && bank.redis.is_running());
    Ok(Ran { applied: bank.applied().await?, doubles, wrong, count, lost })
}

/// Every balance is exact, and each transfer was applied once, whatever happened to the workers and their links.
async fn every_balance_is_exact(strategy: Strategy, on_postgres: bool) -> Result<()> {
    let Ran { applied, wrong, count, lost, .. } = run(strategy, on_postgres).await?;
    ensure!(applied == (count, 0), "applied, and more than once: {applied:?}");
    ensure!(wrong.is_empty(), "balances that are wrong, and by how much: {wrong:?}");
    ensure!(
        lost.settlements > 0 && !lost.appends.is_empty(),
        "a run that lost no reply shows nothing: {lost:?}"
    );
    Ok(())
}

/// So the run can fail: without a store, a transfer whose reply was lost on the way to the sender is applied twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_lost_replies_show_in_the_balances() -> Result<()> {
    let Ran { doubles, wrong, lost, .. } = run(Strategy::Nothing, true).await?;
    ensure!(!lost.appends.is_empty(), "a run that lost no reply shows nothing: {lost:?}");
    let missing: Vec<_> = lost.appends.iter().filter(|number| !doubles.contains(number)).collect();
    ensure!(missing.is_empty(), "sent again, and applied once: {missing:?}");
    ensure!(!wrong.is_empty(), "{doubles:?} were applied twice, and no balance is wrong");
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
