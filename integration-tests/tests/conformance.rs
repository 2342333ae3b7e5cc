//! The law of `millstream-testkit`, one test per case and backend: `redis::log::an_acked_entry_is_never_…`.

use std::env;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use integration_tests::console::MemoryConsole;
use integration_tests::databases::postgres;
use integration_tests::fixture::raw_connection;
use integration_tests::{cluster, server};
use libtest_mimic::{Arguments, Failed, Trial};
use millstream_core::keys::{Key, Keys};
use millstream_core::{Backend, GroupName, MessageId, Namespace, Packing, Place, ScheduleId, TopicPartition};
use millstream_memory::MemoryBackend;
use millstream_redis::{RedisBackend, RedisConfig};
use millstream_sql::{Database, SqlIdempotency, migrate};
use millstream_testkit::{Case, Harness, Operator, Violation, cases, packed_cases};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Roles whose cases read. They are run once more with readers of which none has a connection of its own.
const READING: [&str; 4] = ["catalog", "leases", "log", "schedule"];

/// Roles whose cases have messages in logs. They are run once more with topics that are packed, from two messages on. (Cases that are about
/// entries append one message after the other there.)
const PACKING: [&str; 9] =
    ["audit", "catalog", "dead_letters", "inspect", "leases", "log", "schedule", "shared", "steps"];

fn main() -> ExitCode {
    let trials = cases().into_iter().flat_map(|case| {
        let name = |backend: &str| format!("{backend}::{}::{}", case.role, case.name);
        let mut trials = vec![
            Trial::test(name("memory"), move || on_memory(&case)),
            Trial::test(name("redis"), move || on_redis(&case, &ONE, server::shared_url, |config| config)),
            Trial::test(name("cluster"), move || {
                on_redis(&case, &CLUSTER, cluster::shared_url, |config| config)
            }),
        ];
        if case.role == "idempotency" {
            trials.push(Trial::test(name("postgres"), move || on_sql(&case, &POSTGRES, true)));
            trials.push(Trial::test(name("sqlite"), move || on_sql(&case, &SQLITE, false)));
        }
        if PACKING.contains(&case.role) {
            trials.extend(packed(case));
        }
        if READING.contains(&case.role) {
            trials.push(Trial::test(name("few_connections"), move || {
                on_redis(&case, &FEW, server::shared_url, |config| config.with_max_reader_connections(0))
            }));
        }
        trials
    });
    // Cases of packs alone.
    let trials = trials.chain(packed_cases().into_iter().flat_map(packed));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// As long as a busy machine may take, and less than the waits which a case expects to end before (a minute).
const DEADLINE: Duration = Duration::from_secs(40);

fn harness_of(backend: impl Into<Backend>) -> Harness {
    Harness::new(backend).with_deadline(DEADLINE)
}

/// A case on packed topics, on each backend.
fn packed(case: Case) -> [Trial; 3] {
    let name = |backend: &str| format!("{backend}::{}::{}", case.role, case.name);
    [
        Trial::test(name("packed"), move || on_packed(&case, &PACKED, server::shared_url)),
        Trial::test(name("packed_memory"), move || on_packed_memory(&case)),
        Trial::test(name("packed_cluster"), move || on_packed(&case, &PACKED_CLUSTER, cluster::shared_url)),
    ]
}

/// All trials share one runtime: connections live on the one that opened them.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime starts"))
}

fn on_memory(case: &Case) -> Result<(), Failed> {
    let memory = MemoryBackend::new();
    let console = MemoryConsole(memory.operator());
    Ok(runtime().block_on((case.run)(harness_of(memory).with_operator(console)))?)
}

fn on_packed_memory(case: &Case) -> Result<(), Failed> {
    let memory = MemoryBackend::new();
    let console = MemoryConsole(memory.operator());
    let harness = harness_of(memory).with_operator(console).with_packing(Packing::new().min_messages(2));
    Ok(runtime().block_on((case.run)(harness))?)
}

/// The backend that all cases share, and its console.
type Shared = OnceCell<(RedisBackend, RedisConsole)>;
type Settings = fn(RedisConfig) -> RedisConfig;

static ONE: Shared = OnceCell::const_new();
static CLUSTER: Shared = OnceCell::const_new();
static FEW: Shared = OnceCell::const_new();
static PACKED: Shared = OnceCell::const_new();
static PACKED_CLUSTER: Shared = OnceCell::const_new();

fn on_redis(case: &Case, shared: &'static Shared, url: fn() -> String, set: Settings) -> Result<(), Failed> {
    // The servers are started here and not in `main`: listing the tests needs none.
    runtime().block_on(async {
        let (redis, console) = shared.get_or_try_init(|| connect(url, set)).await?;
        let harness = harness_of(redis.clone()).with_operator(console.clone());
        Ok((case.run)(harness).await?)
    })
}

fn on_packed(case: &Case, shared: &'static Shared, url: fn() -> String) -> Result<(), Failed> {
    runtime().block_on(async {
        let (redis, console) = shared.get_or_try_init(|| connect(url, |config| config)).await?;
        let packing = Packing::new().min_messages(2);
        let harness = harness_of(redis.clone()).with_operator(console.clone()).with_packing(packing);
        Ok((case.run)(harness).await?)
    })
}

/// The database that all cases share, and the folder of SQLite's file.
type SharedDatabase = OnceCell<(Database, tempfile::TempDir)>;

static POSTGRES: SharedDatabase = OnceCell::const_new();
static SQLITE: SharedDatabase = OnceCell::const_new();

/// Runs a case on markers in a database, beside a backend in memory, whose clock is this machine's as well.
fn on_sql(case: &Case, shared: &'static SharedDatabase, on_postgres: bool) -> Result<(), Failed> {
    runtime().block_on(async {
        let (database, _) = shared.get_or_try_init(|| open_database(on_postgres)).await?;
        // Topics of all cases have the same names in memory.
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let role = SqlIdempotency::new(database, format!("conformance-{}-{time:x}", std::process::id()))?;
        let backend = role.replace(Backend::from(MemoryBackend::new()));
        Ok((case.run)(harness_of(backend)).await?)
    })
}

async fn open_database(on_postgres: bool) -> anyhow::Result<(Database, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let url = if on_postgres {
        // Instances that migrate one database at once are a test of millstream-sql.
        tokio::task::spawn_blocking(postgres::shared_url).await?
    } else {
        format!("sqlite:{}?mode=rwc", folder.path().join("markers.db").display())
    };
    let database = Database::connect(&url).await?;
    migrate(&database).await?;
    Ok((database, folder))
}

async fn connect(url: fn() -> String, set: Settings) -> anyhow::Result<(RedisBackend, RedisConsole)> {
    let url = tokio::task::spawn_blocking(url).await?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let namespace = Namespace::new(format!("conformance-{}-{time:x}", std::process::id()))?;
    // Of a cluster any node will do: the console follows redirections.
    let first = url.strip_prefix("redis+cluster://").and_then(|nodes| nodes.split(',').next());
    let node = first.map(|node| format!("redis://{node}"));
    // Where the tests use TLS, or a user with few rights, the operator is somebody else.
    let node = env::var("MILLSTREAM_TEST_CONSOLE").ok().or(node).unwrap_or_else(|| url.clone());
    let connection = raw_connection(&node).await;
    let console = RedisConsole { keys: Keys::within(&namespace), connection };
    let backend = RedisBackend::connect(set(RedisConfig::new(url).with_namespace(namespace))).await?;
    Ok((backend, console))
}

/// Somebody with a `redis-cli`.
#[derive(Clone)]
struct RedisConsole {
    keys: Keys,
    connection: redis::aio::MultiplexedConnection,
}

impl RedisConsole {
    /// Runs a command, on the node of a cluster that has its key.
    async fn run<T: redis::FromRedisValue>(&self, cmd: &redis::Cmd) -> redis::RedisResult<T> {
        let answer = cmd.query_async(&mut self.connection.clone()).await;
        let moved = answer.as_ref().err().and_then(redis::RedisError::redirect_node);
        let Some((node, _)) = moved else { return answer };
        cmd.query_async(&mut raw_connection(&format!("redis://{node}")).await).await
    }

    /// A command on a key that has to answer 1.
    async fn deletes(&self, command: &[&str], key: &Key, what: String) -> Result<(), Violation> {
        let mut cmd = redis::Cmd::new();
        cmd.arg(command).arg(key.as_str()).arg(what);
        match self.run(&cmd).await {
            Ok(1) => Ok(()),
            Ok(other) => Err(Violation::new(format!("{command:?} answered {other}"))),
            Err(error) => Err(Violation::new(format!("{command:?}: {error}"))),
        }
    }
}

#[async_trait]
impl Operator for RedisConsole {
    async fn destroy_group(&self, tp: &TopicPartition, group: &GroupName) -> Result<(), Violation> {
        self.deletes(&["XGROUP", "DESTROY"], &self.keys.log(tp), group.to_string()).await
    }

    async fn delete_entry(&self, tp: &TopicPartition, id: MessageId) -> Result<(), Violation> {
        self.deletes(&["XDEL"], &self.keys.log(tp), id.to_string()).await
    }

    async fn set_position(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        id: MessageId,
    ) -> Result<(), Violation> {
        let log = self.keys.log(tp);
        let words = ["XGROUP", "SETID", log.as_str(), group.as_str(), &id.to_string()];
        let mut cmd = redis::Cmd::new();
        let set: redis::RedisResult<()> = self.run(cmd.arg(&words)).await;
        set.map_err(|error| Violation::new(format!("{words:?}: {error}")))
    }

    async fn delete_parked(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        origin: MessageId,
    ) -> Result<(), Violation> {
        self.deletes(&["HDEL"], &self.keys.retry_items(tp, group), origin.to_string()).await
    }

    async fn delete_scheduled(&self, place: &Place, id: &ScheduleId) -> Result<(), Violation> {
        self.deletes(&["HDEL"], &self.keys.delay_items(place), id.to_string()).await
    }
}
