//! The backend: state that all roles share, and the check of the server when connecting.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::backend::Backend;
use millstream_core::capability::Capability;
use millstream_core::continuity::Continuity;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::leases::Lease;
use millstream_core::log::Source;
use millstream_core::name::GroupName;
use millstream_core::sorted::SortedMap;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::address::Address;
use crate::config::RedisConfig;
use crate::conn::appends::node_appender::NodeAppenders;
use crate::conn::appends::packed::Packings;
use crate::conn::appends::script::Script;
use crate::conn::bulk::Bulk;
use crate::conn::cluster::node_answers::{NodeAnswers, question};
use crate::conn::cluster::routed::Routed;
use crate::conn::cluster::servers::Servers;
use crate::conn::cluster::slots::slot_of;
use crate::conn::cluster::together::together;
use crate::conn::connection::{Line, OnThread, Shared};
use crate::conn::dial::Dial;
use crate::conn::pooled::Pooled;
use crate::conn::reader_connections::ReaderConnections;
use crate::conn::replies::reply;
use crate::conn::waits::changes::Changes;
use crate::conn::waits::waiters::Waiters;
use crate::error::unexpected;
use crate::risks::{self, Risk};
use crate::scripts::gather::{Beat, Gather};
use crate::scripts::gathered::Gathered;
use crate::scripts::script::Scripts;
use crate::snapshots::lag_cache::LagCache;

/// Consumer name of every read by an owner. The lease says who owns a partition, not the name. So there are no dead
/// consumers to remove, and the next owner sees the whole pending list at once.
pub(crate) const CONSUMER: &str = "owner";

/// Oldest supported server version (major, minor): the first one with an exact lag, and with replies that name the
/// error behind a script.
const OLDEST: (u32, u32) = (7, 0);

/// Millstream on a Redis or Valkey server. Implements every role: `Inspect` and `Audit` with the feature `admin` of this crate, `Locks`
/// with the feature `lock`. Cloning is cheap.
///
/// ```no_run
/// use millstream_core::Backend;
/// use millstream_redis::{RedisBackend, RedisConfig};
///
/// # async fn connect() -> millstream_core::Result<()> {
/// let backend: Backend = RedisBackend::connect(RedisConfig::new("redis://127.0.0.1")).await?.into();
/// let topics = backend.catalog().topics().await?;
/// # drop(topics);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisBackend {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: RedisConfig,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    /// The script that appends entries with dedup ids, for calls that carry it.
    pub(crate) dedup: Arc<Script>,
    /// The topics that are packed.
    pub(crate) packings: Arc<Packings>,
    pub(crate) servers: Arc<Servers>,
    /// Connection for appends and settlements: many small requests that must not wait behind anything else.
    pub(crate) messages: Routed<Shared>,
    /// Connection for leases and heartbeats alone: a renewal must not queue behind messages or wait for handlers.
    pub(crate) leases: OnThread<Routed<Shared>>,
    /// Pool for catalog, statistics and dead letters.
    pub(crate) pool: Routed<Pooled>,
    /// The same for many small reads at once.
    pub(crate) looks: Gathered,
    /// Connections for pages of bodies, which may take long to arrive.
    pub(crate) bulk: Routed<Bulk>,
    /// Cache of counted lags.
    pub(crate) counted: LagCache,
    /// Connections of the producers.
    pub(crate) appenders: Routed<NodeAppenders>,
    /// Connections of the readers of owned partitions.
    pub(crate) readers: Routed<ReaderConnections>,
    /// Connections for waits on streams.
    pub(crate) changes: Routed<Changes>,
    /// The same for what runs on control threads, and must not wait for handlers.
    pub(crate) watches: Routed<Changes>,
    /// The same for results of messages, whose bodies others should not wait for.
    pub(crate) results: Routed<Changes>,
    /// Connections for waits that take what they wait for.
    pub(crate) waiters: Routed<Waiters>,
    /// For how long each node of a cluster has answered.
    pub(crate) node_answers: Arc<NodeAnswers>,
    /// When a list of names was last empty, and nothing was there that belongs to it.
    pub(crate) looked: Mutex<SortedMap<Key, Instant>>,
    /// Whether each lease and each heartbeat has a call of its own, since a server has refused one for several.
    pub(crate) sent_alone: AtomicBool,
    /// Heartbeats that are sent together.
    pub(crate) beats: Gather<Arc<Beat>, Result<Value>>,
    /// Leases that are renewed together.
    pub(crate) renewals: Gather<Vec<Lease>, Vec<Result<()>>>,
}

impl RedisBackend {
    /// Connects, and checks that the server answers and is new enough. Afterwards lost connections are opened again,
    /// for as long as the backend lives.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the configuration cannot be used, or if the server may lose messages and that is
    /// [not wanted](RedisConfig::on_risk), [`ErrorKind::Unavailable`] if the server cannot be reached,
    /// [`ErrorKind::Denied`] if it refuses the credentials, [`ErrorKind::Unsupported`] if it is older than 7.0, or a node
    /// of a cluster with several nodes while the URL names one server.
    pub fn connect(config: RedisConfig) -> BoxFuture<'static, Result<Self>> {
        // A future of its own type would be compiled in the crate that awaits it, with all that it calls.
        Box::pin(Self::connected(config))
    }

    async fn connected(config: RedisConfig) -> Result<Self> {
        let servers = Arc::new(Servers::new(&config)?);
        let limit = config.response_timeout;
        let messages = |dial: &Arc<Dial>| Ok(Shared::new(dial.clone(), "messages"));
        let messages = Routed::new(&servers, limit, messages)?;
        // A lease or a heartbeat that a node does not take must not delay those at other nodes.
        let leases = Routed::new(&servers, Duration::ZERO, |dial| Ok(Shared::new(dial.clone(), "leases")))?;
        let max_readers = config.max_reader_connections;
        let (for_pool, pages, line) = (config.clone(), config.clone(), messages.clone());
        let keys = config.namespace.as_ref().map_or_else(Keys::new, Keys::within);
        let for_appenders = keys.clone();
        let scripts = Scripts::new(config.strict_scripts);
        let packings = Arc::new(Packings::new(scripts.append_packed.code(), servers.cluster().is_some()));
        let for_producers = packings.clone();
        let pool = Routed::new(&servers, limit, move |dial| Pooled::new(&for_pool, dial))?;
        let inner = Inner {
            keys,
            dedup: Arc::new(Script::new(scripts.append_dedup.code())),
            packings,
            scripts,
            leases: OnThread::new(leases),
            looks: Gathered::new(&pool),
            pool,
            bulk: Routed::new(&servers, limit, move |dial| {
                let (size, limit) = (pages.pool_size, pages.connect_timeout + pages.response_timeout);
                Ok(Bulk::new(dial.clone(), size, limit))
            })?,
            appenders: Routed::new(&servers, limit, move |dial| {
                Ok(NodeAppenders::new(&for_appenders, dial, &for_producers))
            })?,
            readers: Routed::new(&servers, limit, move |dial| {
                Ok(ReaderConnections::new(dial.clone(), max_readers))
            })?,
            changes: Routed::new(&servers, limit, |dial| Ok(Changes::new(dial.clone(), "changes")))?,
            watches: Routed::new(&servers, limit, |dial| Ok(Changes::new(dial.clone(), "watch")))?,
            results: Routed::new(&servers, limit, |dial| Ok(Changes::new(dial.clone(), "results")))?,
            waiters: Routed::new(&servers, limit, move |dial| {
                Ok(Waiters::new(dial.clone(), (*line.line(dial)?).clone()))
            })?,
            messages,
            counted: LagCache::default(),
            node_answers: Arc::default(),
            looked: Mutex::default(),
            sent_alone: AtomicBool::new(false),
            beats: Gather::default(),
            renewals: Gather::default(),
            servers,
            config,
        };
        let url = inner.config.redacted_url();
        inner.check_server().await.map_err(|error| error.during(format_args!("connect to {url}")))?;
        tracing::debug!(url, "connected");
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl RedisBackend {
    /// Returns the current settings of the server with which messages can be lost. Empty if there are none, as far as
    /// this user has the permission to read them.
    ///
    /// # Errors
    /// Transient ones.
    pub fn risks(&self) -> BoxFuture<'_, Result<Vec<Risk>>> {
        Box::pin(self.inner.risks())
    }
}

impl Inner {
    /// Returns the key of the stream from which entries of a group come.
    pub(crate) fn stream(&self, tp: &TopicPartition, group: &GroupName, source: Source) -> Key {
        match source {
            Source::Log => self.keys.log(tp),
            Source::Retry => self.keys.retry_log(tp, group),
        }
    }

    /// Returns the risks of all servers, each once.
    pub(crate) async fn risks(&self) -> Result<Vec<Risk>> {
        let mut risks = Vec::new();
        for line in self.pool.all().await? {
            for risk in risks::risks(&*line).await? {
                if !risks.contains(&risk) {
                    risks.push(risk);
                }
            }
        }
        Ok(risks)
    }

    /// Returns the positions of these keys, those of one server together.
    pub(crate) fn by_server<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Vec<Vec<usize>> {
        let Some(cluster) = self.servers.cluster() else {
            return vec![keys.enumerate().map(|(at, _)| at).collect()];
        };
        let mut servers: SortedMap<Option<Address>, Vec<usize>> = SortedMap::new();
        for (at, key) in keys.enumerate() {
            let hop = cluster.hop(slot_of(key.as_str().as_bytes()));
            servers.get_or_default(hop.ok().and_then(|hop| hop.dial.address())).push(at);
        }
        servers.into_values().collect()
    }

    /// Waits on a key, by a blocking command.
    pub(crate) async fn wait_on(
        &self,
        key: &Key,
        wait: Duration,
        commands: impl FnOnce(&mut Pipeline, u64),
    ) -> Result<Vec<Value>> {
        let answers = self.waiters.of(key).await?.wait(wait, commands).await;
        let answers = answers.and_then(|answers| {
            let moved =
                |value: &&Value| matches!(value, Value::ServerError(error) if error.code() == "MOVED");
            match answers.iter().find(moved) {
                Some(moved) => Err(reply::ok(moved.clone()).err().unwrap_or_else(|| unexpected("no error"))),
                None => Ok(answers),
            }
        });
        answers.inspect_err(|error| self.servers.learn(error))
    }

    /// Asks every node of a cluster who it is, beside everything else, so that [`continuity_of`](Self::continuity_of) knows.
    pub(crate) fn ask_nodes(self: &Arc<Self>, continuity: &Continuity) {
        if self.servers.cluster().is_none() {
            return;
        }
        let (inner, ttl) = (self.clone(), continuity.ttl());
        let ask = async move {
            let asked = Instant::now();
            let (node_answers, servers) = (inner.node_answers.clone(), inner.servers.clone());
            let answered = move |node: Address, answers| {
                // Makes a record with this ttl, if there is none.
                let _ = node_answers.begin_question(&node, ttl);
                match answers {
                    Ok(answers) => node_answers.answered(&node, asked, answers),
                    Err(error) => servers.learn(&error),
                }
            };
            // A failure shows with the next heartbeat.
            let _ = inner.leases.run(|line| async move { line.each(&question(), answered).await }).await;
        };
        tokio::spawn(ask.boxed());
    }

    /// Returns the continuity for a request to the server of a key: on a cluster that of its node.
    pub(crate) fn continuity_of(self: &Arc<Self>, key: &Key, continuity: &Continuity) -> Continuity {
        let Some(cluster) = self.servers.cluster().filter(|_| !continuity.is_assured()) else {
            return continuity.clone();
        };
        let node = cluster.hop(slot_of(key.as_str().as_bytes())).ok().and_then(|hop| hop.dial.address());
        let Some(node) = node else { return Continuity::new(continuity.ttl()) };
        if self.node_answers.begin_question(&node, continuity.ttl()) {
            self.ask_nodes(continuity);
        }
        self.node_answers.of(&node, continuity)
    }

    /// Checks the server, or the nodes of a cluster that can be reached: at least one, and all that can be.
    async fn check_server(&self) -> Result<()> {
        let lines = self.messages.all().await?;
        let check = async |line: &Arc<Shared>| {
            self.check_one(line).await?;
            risks::check(&**line, self.config.on_risk).await
        };
        let checks = together(lines.iter().map(|line| check(line).boxed()).collect());
        let mut passed = false;
        let mut away = None;
        for checked in checks.await {
            match checked {
                Ok(()) => passed = true,
                Err(error) if error.is_transient() => away = Some(error),
                Err(error) => return Err(error),
            }
        }
        match away {
            Some(error) if passed => {
                tracing::warn!(%error, "a node of the cluster is away: its partitions wait for it");
                Ok(())
            }
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn check_one(&self, line: &Shared) -> Result<()> {
        let mut pipe = Pipeline::new();
        pipe.cmd("INFO").arg("server");
        pipe.cmd("CLUSTER").arg("INFO");
        let [reply, cluster] = reply::tuple(Value::Array(line.send(&pipe).await?))?;
        let nodes = reply::text(cluster).unwrap_or_default();
        let size =
            nodes.lines().find_map(|line| line.trim().strip_prefix("cluster_size:")?.parse::<u32>().ok());
        if self.servers.cluster().is_none() && size.is_some_and(|size| size > 1) {
            let why = "the server is a node of a cluster: connect with redis+cluster://";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let info = match reply::text(reply) {
            Ok(info) => info,
            // A user may be allowed to log in but not to run INFO. Then the version stays unknown, which is no reason
            // to refuse.
            Err(error) if error.kind() == ErrorKind::Denied && error.to_string().contains("NoPerm") => {
                tracing::warn!("the server's version is not known: {error}");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        check_version(&info)
    }
}

fn check_version(info: &str) -> Result<()> {
    let value = |name: &str| {
        info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    // Valkey reports the Redis version that it is compatible with as redis_version.
    let Some(version) = value("redis_version").or_else(|| value("valkey_version")) else {
        return Err(Error::new(ErrorKind::Unsupported, "the server does not report its version"));
    };
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version_parts = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version_parts < OLDEST {
        let (major, minor) = OLDEST;
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("the server is version {version}, at least {major}.{minor} is needed"),
        ));
    }
    Ok(())
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl From<RedisBackend> for Backend {
    fn from(backend: RedisBackend) -> Self {
        let backend = roles(backend);
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        let backend = backend.with_boot_clock(crate::boot_clock::SystemBootClock);
        backend
    }
}

/// Roles and operations that need a feature of this crate: without it, a program that only produces and consumes does not compile them.
const OF_FEATURES: &[(Capability, &str)] = &[
    #[cfg(not(feature = "admin"))]
    (Capability::Audit, "admin"),
    #[cfg(not(feature = "admin"))]
    (Capability::Inspect, "admin"),
    #[cfg(not(feature = "admin"))]
    (Capability::Pins, "admin"),
    #[cfg(not(feature = "lock"))]
    (Capability::Locks, "lock"),
];

fn roles(backend: RedisBackend) -> Backend {
    let shared = Arc::new(backend.clone());
    let all = Backend::minimal(backend)
        .with_dead_letters(shared.clone())
        .with_recurring(shared.clone())
        .with_tasks(shared.clone())
        .with_shared(shared.clone())
        .with_idempotency(shared.clone())
        .with_permits(shared.clone())
        .with_cancels(shared.clone())
        .with_batches(shared.clone())
        .with_steps(shared.clone());
    #[cfg(feature = "admin")]
    let all = all.with_inspect(shared.clone()).with_audit(shared.clone());
    #[cfg(feature = "lock")]
    let all = all.with_locks(shared);
    let is_here = |it: &&Capability| OF_FEATURES.iter().all(|(left_out, _)| left_out != *it);
    all.claiming(Capability::ALL.iter().filter(is_here).copied()).compiled_without(OF_FEATURES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        let info = |version: &str| format!("# Server\r\nredis_version:{version}\r\nredis_git_sha1:0\r\n");
        for version in ["7.0.0", "7.0.15", "7.2.4", "8.6.3", "10.0"] {
            check_version(&info(version)).expect(version);
        }
        for version in ["6.2.14", "5.0", "", "x"] {
            let error = check_version(&info(version)).expect_err(version);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
        check_version("valkey_version:9.1.2\r\n").expect("valkey");
        assert!(check_version("hello").is_err());
    }
}
