//! The law of `millstream-testkit`, one test per case and backend: `redis::log::an_acked_entry_is_never_…`.

use std::env;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

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
use millstream_testkit::{Case, Harness, Operator, Violation, cases};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Roles whose cases read. They are run once more with readers of which none has a connection of its own.
const READING: [&str; 4] = ["catalog", "leases", "log", "schedule"];

/// Roles whose cases have messages in logs. They are run once more with topics that are packed, from two messages on. (Where a case
/// needs an operator, that one deletes single entries, which may be many messages.)
const PACKING: [&str; 8] =
    ["audit", "catalog", "dead_letters", "inspect", "leases", "log", "schedule", "shared"];

/// Cases that pass on packed topics only where a pack is what they take for one message: a pack is handed out, counted as delivered,
/// and dropped as a whole. `millstream-redis` has tests of its own for what happens there.
const OF_ENTRIES: [&str; 31] = [
    // The position of a group, and what is pending, is that of the whole pack.
    "a_group_is_deleted_without_the_others",
    "a_stale_token_reads_nothing",
    "an_overview_says_what_the_roles_say",
    "stats_agree_with_what_happened",
    "the_lag_is_exact_wherever_a_group_stands",
    "the_position_of_a_group_is_told",
    // They settle by an id that was not handed out with a receipt.
    "holding_what_is_not_pending_is_stale",
    "settling_an_unknown_receipt_is_stale",
    // A pack stays until all of its messages may go.
    "seeking_forward_skips_what_is_pending_and_what_is_unread",
    "trim_drops_what_every_group_has_settled",
    "trim_keeps_what_a_slow_group_still_needs",
    "what_is_not_consumed_is_kept_however_old",
    "what_is_old_is_dropped_and_counted",
    "what_is_too_much_is_dropped_and_counted",
    "what_is_within_the_bounds_is_kept_for_replays",
    // What keeps entries keeps whole packs.
    "nobody_is_named_where_everything_is_settled",
    "the_group_that_keeps_most_is_named",
    // A consumer that shares partitions has a pack as a whole.
    "a_claim_is_bounded",
    "a_new_shared_reader_begins_with_its_own_and_says_so",
    "a_record_that_is_whole_but_for_one_thing_claims_and_adopts_nothing",
    "a_shared_fetch_is_bounded",
    "consumers_that_have_nothing_are_removed",
    "each_entry_goes_to_one_consumer",
    "every_partition_and_both_sources_are_read",
    "only_what_one_has_can_be_settled",
    "what_consumers_have_left_is_adopted_by_an_owner",
    "what_is_extended_is_not_claimed",
    "what_is_given_back_is_claimed_at_once_and_never_by_others",
    "what_is_lost_cannot_be_extended",
    "who_was_not_answered_without_a_gap_adopts_what_was_given_back",
    "who_was_not_answered_without_a_gap_claims_what_was_given_back",
];

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
        if PACKING.contains(&case.role) && !case.needs_operator && !OF_ENTRIES.contains(&case.name) {
            trials.push(Trial::test(name("packed"), move || on_packed(&case, &PACKED, server::shared_url)));
            trials.push(Trial::test(name("packed_memory"), move || on_packed_memory(&case)));
            trials.push(Trial::test(name("packed_cluster"), move || {
                on_packed(&case, &PACKED_CLUSTER, cluster::shared_url)
            }));
        }
        if READING.contains(&case.role) {
            trials.push(Trial::test(name("few_connections"), move || {
                on_redis(&case, &FEW, server::shared_url, |config| config.with_max_reader_connections(0))
            }));
        }
        trials
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// All trials share one runtime: connections live on the one that opened them.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime starts"))
}

fn on_memory(case: &Case) -> Result<(), Failed> {
    let memory = MemoryBackend::new();
    let console = MemoryConsole(memory.operator());
    Ok(runtime().block_on((case.run)(Harness::new(memory).with_operator(console)))?)
}

fn on_packed_memory(case: &Case) -> Result<(), Failed> {
    let memory = MemoryBackend::new();
    let console = MemoryConsole(memory.operator());
    let harness = Harness::new(memory).with_operator(console).with_packing(Packing::new().min_messages(2));
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
        let harness = Harness::new(redis.clone()).with_operator(console.clone());
        Ok((case.run)(harness).await?)
    })
}

fn on_packed(case: &Case, shared: &'static Shared, url: fn() -> String) -> Result<(), Failed> {
    runtime().block_on(async {
        let (redis, console) = shared.get_or_try_init(|| connect(url, |config| config)).await?;
        let packing = Packing::new().min_messages(2);
        let harness = Harness::new(redis.clone()).with_operator(console.clone()).with_packing(packing);
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
        Ok((case.run)(Harness::new(backend)).await?)
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

    async fn delete_scheduled(&self, place: &Place, id: &ScheduleId) -> Result<(), Violation> {
        self.deletes(&["HDEL"], &self.keys.delay_items(place), id.to_string()).await
    }
}
