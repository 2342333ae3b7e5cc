//! A server per test, a namespace per test, and short words for raw commands.

pub(crate) mod slow;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::keys::{Key, Keys};
use millstream_core::leases::{Acquired, Lease, Leases, Resource};
use millstream_core::log::{Append, Fetched, Log, Reader, Receipt, Settlement};
use millstream_core::name::{GroupName, Namespace};
use millstream_core::schedule::Due;
use millstream_core::topic::{Retention, TopicPartition, TopicSpec};
use millstream_core::wire::Fields;
use millstream_redis::{RedisBackend, RedisConfig};
use redis::Value;
use redis::aio::MultiplexedConnection;

/// A `redis-server` on a free port of the loopback, with nothing on disk; killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Makes it the only node of a cluster.
    pub(crate) async fn takes_all_slots(&self) {
        let mut raw = raw_connection(&self.url()).await;
        redis::cmd("CLUSTER")
            .arg(&["ADDSLOTSRANGE", "0", "16383"])
            .exec_async(&mut raw)
            .await
            .expect("slots");
        for _ in 0..500 {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut raw).await.expect("info");
            if info.contains("cluster_state:ok") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn start(extra: &[&str]) -> Self {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let port =
                TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
            if let Some(server) = Self::try_at(port, extra) {
                return server;
            }
            // Somebody else took the port in the meantime: another one.
            assert!(Instant::now() < deadline, "redis-server does not start");
        }
    }

    /// On a port that another one had before.
    pub(crate) fn at(port: u16) -> Self {
        Self::try_at(port, &[]).expect("the port is free again")
    }

    /// The same.
    pub(crate) fn again(port: u16, extra: &[&str]) -> Self {
        Self::try_at(port, extra).expect("the port is free again")
    }

    fn try_at(port: u16, extra: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--logfile")
            .arg(dir.path().join("server.log"))
            .args(extra)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed for these tests, or MILLSTREAM_TEST_REDIS be set");
        let log = dir.path().join("server.log");
        // An answer may be that of another process, which has taken the port.
        let is_ready =
            || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Ready to accept connections"));
        let mut server = Self { child, port, _dir: dir };
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.child.try_wait().expect("a child").is_none() && Instant::now() < deadline {
            if is_ready() && std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A backend with a topic, a group and a lease on its only partition.
pub(crate) struct Bench {
    pub(crate) backend: RedisBackend,
    pub(crate) raw: MultiplexedConnection,
    pub(crate) keys: Keys,
    pub(crate) spec: TopicSpec,
    pub(crate) tp: TopicPartition,
    pub(crate) group: GroupName,
    pub(crate) lease: Lease,
    pub(crate) namespace: Namespace,
    pub(crate) url: String,
    _server: Option<Server>,
}

pub(crate) const TTL: Duration = Duration::from_secs(30);

impl Bench {
    /// On the server of `MILLSTREAM_TEST_REDIS`, or on one of its own.
    pub(crate) async fn new() -> Self {
        match std::env::var("MILLSTREAM_TEST_REDIS") {
            Ok(url) => Self::at(RedisConfig::new(url), None).await,
            Err(_) => Self::private(&[]).await,
        }
    }

    /// On a server of its own, for what would disturb others.
    pub(crate) async fn private(extra: &[&str]) -> Self {
        let server = Server::start(extra);
        Self::at(RedisConfig::new(server.url()), Some(server)).await
    }

    pub(crate) async fn at(config: RedisConfig, server: Option<Server>) -> Self {
        let url = config.url.clone();
        let namespace: Namespace = format!("t{:016x}", fastrand::u64(..)).parse().expect("a name");
        let raw = raw_connection(&config.url).await;
        let backend =
            RedisBackend::connect(config.with_namespace(namespace.clone())).await.expect("a backend");
        let spec = TopicSpec::new("orders".parse().expect("name"), 1).expect("a topic");
        let group: GroupName = "billing".parse().expect("name");
        backend.create_topic(&spec).await.expect("created");
        backend.create_group(&spec, &group, Start::Earliest).await.expect("created");
        let tp = TopicPartition::new(spec.name.clone(), 0);
        let lease = grant(&backend, &tp, &group, "first").await;
        Self {
            backend,
            raw,
            keys: Keys::within(&namespace),
            spec,
            tp,
            group,
            lease,
            namespace,
            url,
            _server: server,
        }
    }

    /// Drops what every group has settled.
    pub(crate) async fn trim(&self) -> millstream_core::Result<usize> {
        Ok(self.backend.trim(&self.lease, Retention::Consumed).await?.dropped)
    }

    pub(crate) fn log(&self) -> Key {
        self.keys.log(&self.tp)
    }

    pub(crate) fn retry_log(&self) -> Key {
        self.keys.retry_log(&self.tp, &self.group)
    }

    pub(crate) fn dlq(&self) -> Key {
        self.keys.dead_letters(&self.tp, &self.group)
    }

    pub(crate) fn held(&self) -> Key {
        self.keys.held(&self.tp, &self.group)
    }

    pub(crate) fn fence(&self) -> Key {
        self.keys.fence(&self.tp, &self.group)
    }

    pub(crate) fn resource(&self) -> Resource {
        Resource::partition(self.tp.clone(), self.group.clone())
    }

    /// A raw command; the words are split at spaces.
    pub(crate) async fn cmd(&mut self, command: &str) -> Value {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        cmd.arg(words.collect::<Vec<_>>());
        cmd.query_async(&mut self.raw).await.expect(command)
    }

    pub(crate) async fn int(&mut self, command: &str) -> i64 {
        match self.cmd(command).await {
            Value::Int(n) => n,
            other => panic!("{command}: {other:?}"),
        }
    }

    pub(crate) async fn append(&self, fields: Fields) -> MessageId {
        let append = Append::new(self.tp.clone(), fields);
        let mut ids = self.backend.append(&[append]).await;
        ids.pop().expect("a result").expect("appended").id
    }

    pub(crate) async fn append_many(&self, n: usize) -> Vec<MessageId> {
        let one = |i: usize| Append::new(self.tp.clone(), message(&i.to_string()));
        let batch: Vec<_> = (0..n).map(one).collect();
        self.backend.append(&batch).await.into_iter().map(|it| it.expect("appended").id).collect()
    }

    pub(crate) async fn reader(&self) -> Box<dyn Reader> {
        self.backend.reader(&self.lease).await.expect("a reader")
    }

    pub(crate) async fn settle(&self, batch: &[(Receipt, Settlement)]) -> (usize, usize) {
        let settled = self.backend.settle(&self.lease, batch).await.expect("settled");
        (settled.applied, settled.stale)
    }

    /// Somebody else takes the partition over.
    pub(crate) async fn take_over(&mut self) -> Lease {
        let lease = self.keys.lease(&self.tp, &self.group);
        self.cmd(&format!("DEL {lease}")).await;
        grant(&self.backend, &self.tp, &self.group, "second").await
    }
}

pub(crate) async fn grant(
    backend: &RedisBackend,
    tp: &TopicPartition,
    group: &GroupName,
    nonce: &str,
) -> Lease {
    let resource = Resource::partition(tp.clone(), group.clone());
    match backend
        .acquire(&resource, nonce, nonce, TTL, &millstream_core::Continuity::assured())
        .await
        .expect("an answer")
    {
        Acquired::Granted(lease) => lease,
        Acquired::Held(holder) => panic!("{holder:?}"),
    }
}

pub(crate) fn fields(pairs: &[(&[u8], &[u8])]) -> Fields {
    pairs.iter().map(|(n, v)| (Bytes::copy_from_slice(n), Bytes::copy_from_slice(v))).collect()
}

pub(crate) fn message(payload: &str) -> Fields {
    fields(&[(b"payload", payload.as_bytes())])
}

pub(crate) async fn fetch(reader: &mut Box<dyn Reader>, max: usize) -> Fetched {
    reader.fetch(max, Duration::ZERO).await.expect("fetched")
}

pub(crate) fn ids(fetched: &Fetched) -> Vec<MessageId> {
    fetched.entries.iter().map(|entry| entry.receipt.id).collect()
}

pub(crate) fn retry(after: Duration, attempt: u32, origin: MessageId) -> Settlement {
    let (due, history) = (Due::In(after), History::default());
    Settlement::Retry { due, attempt, origin, error: "boom".into(), history, wait: None }
}

pub(crate) fn dead(origin: MessageId) -> Settlement {
    let reason = millstream_core::dead_letters::Reason::Rejected;
    let (error, history) = ("boom".into(), History::default());
    Settlement::DeadLetter { reason, attempts: 3, origin, error, history, result: None }
}

/// Connects without Millstream, as an operator does. Waits as long as a busy machine may take.
///
/// # Panics
/// If the server is away.
pub(crate) async fn raw_connection(url: &str) -> MultiplexedConnection {
    let time_limit = Some(Duration::from_secs(60));
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(time_limit).set_response_timeout(time_limit);
    let client = redis::Client::open(url).expect("a URL");
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}
