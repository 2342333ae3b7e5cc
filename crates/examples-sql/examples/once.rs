//! Tasks of a delay queue that take effect once, in six ways: a unique index, an optimistic version, a pessimistic row, a lock with a
//! watchdog, a check of the business records before a task is worked on again, and an inbox, which does the first of these for any
//! handler.
//!
//! ```sh
//! cargo run -p examples-sql --example once
//! cargo run -p examples-sql --example once -- --url redis://127.0.0.1
//! ```
//!
//! Each task credits an account. Every second one is worked on again although it was done, as if its acknowledgement had been lost, and
//! the first worker is stopped in the middle of its work. In the end each account was credited once. The database is SQLite, in a
//! file that is removed; with PostgreSQL only the URL, `sqlite()` and the clause `FOR UPDATE` differ.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::delay::{Task, Worker, WorkerBuilder};
use millstream::sql::{Database, Inbox, Tx, migrate, sqlx};
use millstream::{Check, Fixed, IntoOutcome, Millstream, Outcome};
use serde::{Deserialize, Serialize};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const TASKS: i64 = 40;
const CENTS: i64 = 100;
/// A worker that ends without having released its tasks keeps them for so long. 30 s by default.
const HOLD: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Credit {
    account: i64,
    /// Version of the account that whoever scheduled the task has seen.
    version: i64,
}

/// Calls of handlers, and of those that had an effect. In a real program nobody counts.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Fails behind the effect, so that the task comes again.
fn acknowledge(task: &Task<Credit>) -> Done {
    CALLS.fetch_add(1, Ordering::Relaxed);
    if task.payload.account % 2 == 0 && task.attempt() == 1 {
        Err("the acknowledgement was lost".into())
    } else {
        Ok(())
    }
}

async fn credit(tx: &mut Tx, recipe: &str, account: i64) -> Done {
    let sql = "UPDATE accounts SET cents = cents + $1 WHERE recipe = $2 AND id = $3";
    sqlx::query(sql).bind(CENTS).bind(recipe).bind(account).execute(tx.sqlite()?).await?;
    Ok(())
}

/// The id of the task is a key of a table, written in the transaction of the effect: a second insert finds it there.
async fn unique_index(database: Database, task: Task<Credit>) -> Done {
    let mut tx = database.begin().await?;
    let sql = "INSERT INTO done (task) VALUES ($1) ON CONFLICT (task) DO NOTHING";
    if sqlx::query(sql).bind(task.id().as_str()).execute(tx.sqlite()?).await?.rows_affected() == 1 {
        credit(&mut tx, "unique index", task.payload.account).await?;
    }
    tx.commit().await?;
    acknowledge(&task)
}

/// The task has the version of the row from when it was scheduled. Whoever changes the row first counts it up, and a second attempt
/// finds another version. The version must come with the task: one that the handler reads would match each time.
async fn optimistic_version(database: Database, task: Task<Credit>) -> Done {
    let mut tx = database.begin().await?;
    let sql = "UPDATE accounts SET cents = cents + $1, version = version + 1 \
               WHERE recipe = 'optimistic version' AND id = $2 AND version = $3";
    let update = sqlx::query(sql).bind(CENTS).bind(task.payload.account).bind(task.payload.version);
    update.execute(tx.sqlite()?).await?; // no row is changed by a second attempt
    tx.commit().await?;
    acknowledge(&task)
}

/// The row is locked before it is read, and says whether the work was done. Others wait until the transaction ends. SQLite has one
/// writer at a time, which `begin` waits for; PostgreSQL needs `SELECT … FOR UPDATE`.
async fn pessimistic_row(database: Database, task: Task<Credit>) -> Done {
    let account = task.payload.account;
    let mut tx = database.begin().await?;
    let sql = "SELECT state FROM accounts WHERE recipe = 'pessimistic row' AND id = $1";
    let state: String = sqlx::query_scalar(sql).bind(account).fetch_one(tx.sqlite()?).await?;
    if state == "open" {
        credit(&mut tx, "pessimistic row", account).await?;
        let sql = "UPDATE accounts SET state = 'credited' WHERE recipe = 'pessimistic row' AND id = $1";
        sqlx::query(sql).bind(account).execute(tx.sqlite()?).await?;
    }
    tx.commit().await?;
    acknowledge(&task)
}

/// A service elsewhere that reads and writes one account at a time, and refuses writers with a smaller fence than those before.
#[derive(Clone, Default)]
struct Elsewhere(Arc<Mutex<BTreeMap<i64, (i64, u64)>>>);

impl Elsewhere {
    async fn read(&self, account: i64) -> i64 {
        tokio::task::yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&account).map_or(0, |known| known.0)
    }

    async fn write(&self, account: i64, cents: i64, fence: u64) -> Done {
        tokio::task::yield_now().await;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(account).or_default();
        if fence < known.1 {
            return Err("a later holder of the lock has written".into());
        }
        *known = (cents, fence);
        Ok(())
    }
}

/// One worker at a time reads and writes the account. The lock is renewed while the work runs, which is dropped if it is lost; a holder
/// that was paused and does not know of that yet is refused by its fence. The lock alone keeps nothing from being done again: so the
/// account is read first.
async fn lock_with_watchdog(mq: Millstream, elsewhere: Elsewhere, task: Task<Credit>) -> Done {
    let account = task.payload.account;
    let lock =
        mq.lock(format!("account:{account}")).ttl(Duration::from_secs(2)).wait(Duration::from_secs(20));
    let work = lock.run(async |held| {
        if elsewhere.read(account).await == 0 {
            elsewhere.write(account, CENTS, held.fence()).await?;
        }
        Done::Ok(())
    });
    work.await.map_err(|error| error.to_string())?;
    acknowledge(&task)
}

/// Writes without any precaution: a check has found that it is not done. A handler that is dropped at the end of a shutdown may have
/// had its effect, and its task comes back as if it had not begun: so this worker is given time to end.
async fn checked(database: Database, task: Task<Credit>) -> Done {
    let mut tx = database.begin().await?;
    credit(&mut tx, "check", task.payload.account).await?;
    tx.commit().await?;
    acknowledge(&task)
}

/// Runs before a task is worked on again: after a failed attempt, and after a worker that had it died. It looks into the records of the
/// business.
async fn check(
    database: Database,
    task: Task<Credit>,
) -> Result<Check, Box<dyn std::error::Error + Send + Sync>> {
    let mut tx = database.begin().await?;
    let sql = "SELECT cents FROM accounts WHERE recipe = 'check' AND id = $1";
    let cents: i64 = sqlx::query_scalar(sql).bind(task.payload.account).fetch_one(tx.sqlite()?).await?;
    tx.rollback().await;
    Ok(if cents > 0 { Check::Complete } else { Check::Run })
}

/// The inbox writes the id of the task into its own table, in the transaction that the handler gets. A task that is done there is
/// completed without the handler.
async fn in_inbox(task: Task<Credit>, mut tx: Tx) -> Done {
    credit(&mut tx, "inbox", task.payload.account).await?;
    CALLS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Puts the inbox around the handler, and loses the first answer of every second task, though its transaction was committed.
fn with_inbox(inbox: &Inbox) -> impl Fn(Task<Credit>) -> BoxFuture<Outcome> + Send + Sync + use<> {
    let handle = inbox.handler(in_inbox);
    move |task: Task<Credit>| {
        let is_lost = task.payload.account % 2 == 0 && task.attempt() == 1;
        let handled = handle(task);
        Box::pin(async move {
            match handled.await.into_outcome() {
                Outcome::Ack if is_lost => Outcome::retry("the acknowledgement was lost"),
                outcome => outcome,
            }
        })
    }
}

/// Returns a handler with a database.
fn with<Fut>(
    database: &Database,
    handler: fn(Database, Task<Credit>) -> Fut,
) -> impl Fn(Task<Credit>) -> Fut + Send + Sync + use<Fut> {
    let database = database.clone();
    move |task| handler(database.clone(), task)
}

/// Schedules the tasks of a recipe, and works on them with two workers, the first of which is stopped in the middle.
async fn run<F>(
    mq: &Millstream,
    recipe: &str,
    patience: Duration,
    start: impl Fn(WorkerBuilder<Credit>) -> F,
) -> Result<u64>
where
    F: Future<Output = millstream::Result<Worker>>,
{
    let queue = mq.delay_queue::<Credit>(recipe.replace(' ', "-")).shards(2).await?;
    for account in 0..TASKS {
        let credit = Credit { account, version: 1 };
        queue.schedule(&credit).delay(Duration::from_millis(20)).id(format!("{recipe}-{account}")).await?;
    }
    let worker = || queue.worker().hold(HOLD).retry(Fixed::new(Duration::from_millis(10)));
    let deadline = Instant::now() + Duration::from_secs(60);
    let first = start(worker()).await?;
    while first.report().done < 5 {
        ensure!(Instant::now() < deadline, "{recipe}: the first worker does nothing");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let first = first.shutdown_within(patience).await;
    let second = start(worker()).await?;
    loop {
        let left = queue.count().await?;
        if left.waiting.total + left.claimed == 0 {
            break;
        }
        ensure!(Instant::now() < deadline, "{recipe}: {left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let second = second.shutdown().await;
    ensure!(first.dead + second.dead == 0, "{recipe}: a task was given up");
    Ok(first.done + second.done)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: once [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("once-{run}")).await?;
    let file = std::env::temp_dir().join(format!("millstream-once-{run}.db"));
    let database = Database::connect(&format!("sqlite:{}?mode=rwc", file.display())).await?;
    let result = all(&mq, &database).await;
    database.close().await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    result
}

async fn all(mq: &Millstream, database: &Database) -> Result<()> {
    let mut tx = database.begin().await?;
    for sql in [
        "CREATE TABLE done (task text PRIMARY KEY)",
        "CREATE TABLE accounts (recipe text, id integer, cents integer NOT NULL DEFAULT 0, version integer NOT NULL DEFAULT 1, \
         state text NOT NULL DEFAULT 'open', PRIMARY KEY (recipe, id))",
    ] {
        sqlx::query(sql).execute(tx.sqlite()?).await?;
    }
    for recipe in ["unique index", "optimistic version", "pessimistic row", "check", "inbox"] {
        for account in 0..TASKS {
            let sql = "INSERT INTO accounts (recipe, id) VALUES ($1, $2)";
            sqlx::query(sql).bind(recipe).bind(account).execute(tx.sqlite()?).await?;
        }
    }
    tx.commit().await?;

    let inbox = Inbox::builder(database)
        .namespace("once")
        .retries(&Fixed::new(Duration::from_millis(10)).attempts(10));
    let inbox = inbox.replays_within(Duration::from_secs(86_400)).build()?;
    migrate(database).await?; // the table of the inbox
    let elsewhere = Elsewhere::default();
    let locked = {
        let (mq, elsewhere) = (mq.clone(), elsewhere.clone());
        move |task| lock_with_watchdog(mq.clone(), elsewhere.clone(), task)
    };
    let done = [
        run(mq, "unique index", Duration::ZERO, |worker| worker.start(with(database, unique_index))).await?,
        run(mq, "optimistic version", Duration::ZERO, |worker| {
            worker.start(with(database, optimistic_version))
        })
        .await?,
        run(mq, "pessimistic row", Duration::ZERO, |worker| worker.start(with(database, pessimistic_row)))
            .await?,
        run(mq, "lock with watchdog", Duration::ZERO, |worker| worker.start(locked.clone())).await?,
        run(mq, "check", HOLD, |worker| worker.check(with(database, check)).start(with(database, checked)))
            .await?,
        run(mq, "inbox", Duration::ZERO, |worker| worker.start(with_inbox(&inbox))).await?,
    ];

    let mut tx = database.begin().await?;
    let sql = "SELECT recipe, count(*), min(cents), max(cents) FROM accounts GROUP BY recipe ORDER BY recipe";
    let sums: Vec<(String, i64, i64, i64)> = sqlx::query_as(sql).fetch_all(tx.sqlite()?).await?;
    tx.rollback().await;
    for (recipe, accounts, least, most) in &sums {
        ensure!(
            (*accounts, *least, *most) == (TASKS, CENTS, CENTS),
            "{recipe}: {accounts} with {least} to {most}"
        );
    }
    let elsewhere = elsewhere.0.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(elsewhere.len() == usize::try_from(TASKS)?, "{elsewhere:?}");
    ensure!(elsewhere.values().all(|(cents, _)| *cents == CENTS), "{elsewhere:?}");
    let calls = CALLS.load(Ordering::Relaxed);
    let tasks = u64::try_from(TASKS)? * 6;
    // The second attempts of half of them; of the last two recipes the check and the inbox end these. That most of the others were calls is
    // enough: it shows that tasks came again.
    ensure!(calls >= tasks + tasks / 2 * 3 / 6, "{calls} calls for {tasks} tasks: hardly any came again");
    println!("{tasks} tasks in six ways, each had its effect once");
    println!("{calls} calls of handlers; done: {done:?}");
    Ok(())
}
