//! Connections: how to open one, one that many callers share, and a pool.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_redis::{Manager, Pool, PoolError, Runtime};
use millstream_core::error::{Error, ErrorKind, Result};
#[cfg(feature = "tls")]
use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{AsyncConnectionConfig, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::config::RedisConfig;
use crate::conn::control_thread::ControlThread;
use crate::conn::socket::Socket;
use crate::conn::stream::Target;
#[cfg(feature = "tls")]
use crate::conn::tls::Tls;
use crate::conn::wrong_type;
use crate::error::{Phase, translate, unexpected};

/// Connection that takes pipelines. The answer has one value per command; a server error is returned as a value.
pub(crate) trait Line: Sync {
    fn send(&self, pipe: &Pipeline) -> impl Future<Output = Result<Vec<Value>>> + Send;
}

/// Opens connections.
pub(crate) struct Dial {
    target: Target,
    connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

impl Dial {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self> {
        let info = tuned(config)?;
        #[cfg(feature = "tls")]
        let tls = match info.addr() {
            ConnectionAddr::Tcp(host, _) if config.encrypted().is_some() => {
                Some(Tls::new(&config.tls.clone().unwrap_or_default(), host)?)
            }
            _ => None,
        };
        let target = Target {
            info,
            #[cfg(feature = "tls")]
            tls,
        };
        let (connect_timeout, response_timeout) = (config.connect_timeout, config.response_timeout);
        Ok(Self { target, connect_timeout, response_timeout })
    }

    /// Opens a connection for a user with many requests, without the client's background task and parser.
    pub(crate) async fn socket(&self, role: &str) -> Result<Socket> {
        let opened = timeout(self.connect_timeout, Socket::open(&self.target, role)).await;
        opened.unwrap_or_else(|_| Err(self.no_connection()))
    }

    /// Opens a connection for a blocking command. It has no response timeout of its own: the caller sets one per
    /// request.
    pub(crate) async fn waiting(&self, role: &str) -> Result<Multiplexed> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        self.open(ProtocolVersion::RESP2, config, role).await
    }

    async fn shared(&self, role: &str) -> Result<Live> {
        let gone = Arc::new(AtomicBool::new(false));
        let told = gone.clone();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    told.store(true, Ordering::Release);
                }
                Ok::<(), std::convert::Infallible>(())
            });
        // RESP3 reports a disconnection at once, also between two requests. So the next request opens a new connection
        // instead of failing.
        let connection = self.open(ProtocolVersion::RESP3, config, role).await?;
        Ok(Live { connection, gone, opened: Instant::now(), generation: 0 })
    }

    /// Opens a connection of the client's, over a stream of ours.
    async fn open(
        &self,
        protocol: ProtocolVersion,
        config: AsyncConnectionConfig,
        role: &str,
    ) -> Result<Multiplexed> {
        let settings = self.target.info.redis_settings().clone().set_protocol(protocol);
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(format!("millstream:{role}"));
        let failed = |error| translate(&error, Phase::Connecting);
        let opened = timeout(self.connect_timeout, async {
            let stream = self.target.connect().await?;
            let opened = MultiplexedConnection::new_with_config(&settings, stream, config).await;
            let (connection, driver) = opened.map_err(failed)?;
            let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
            let mut connection = Multiplexed { connection, _driver: driver };
            // The reply is ignored: a user without the permission to set a name does without one.
            connection.send_packed_command(&name).await.map(|_| connection).map_err(failed)
        });
        opened.await.unwrap_or_else(|_| Err(self.no_connection()))
    }

    fn no_connection(&self) -> Error {
        let why = format!("the server cannot be reached: no connection within {:?}", self.connect_timeout);
        Error::new(ErrorKind::Unavailable, why)
    }
}

/// A connection of the client's. Its background task ends with the last handle.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    connection: MultiplexedConnection,
    _driver: Arc<Driver>,
}

struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Deref for Multiplexed {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for Multiplexed {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}

/// Connection settings that apply to every connection of the backend.
fn tuned(config: &RedisConfig) -> Result<ConnectionInfo> {
    let info = config.connection_info()?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    // Ends a connection when sent data was not acknowledged for this long, since a peer may vanish without closing it.
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(config.connect_timeout + config.response_timeout);
    let settings = info.redis_settings().clone().set_lib_name("millstream", env!("CARGO_PKG_VERSION"));
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

#[derive(Clone)]
struct Live {
    connection: Multiplexed,
    /// Set when the connection was cut or did not answer in time; the next request opens another one.
    gone: Arc<AtomicBool>,
    opened: Instant,
    /// Number of this connection within its [`Shared`], from 0.
    generation: u64,
}

/// One connection for many callers, opened on first use and again whenever it is gone.
///
/// The client's own connection manager does the same, but does not distinguish a failure to connect (nothing was done)
/// from a missing answer (the request may have been done). Appends need that distinction.
#[derive(Clone)]
pub(crate) struct Shared(Arc<State>);

struct State {
    dial: Arc<Dial>,
    role: &'static str,
    live: Mutex<Option<Live>>,
    /// Number of connections opened so far.
    opened: AtomicU64,
    /// Held while a connection is being opened; has the last failure and its time.
    opening: tokio::sync::Mutex<Option<(Instant, Error)>>,
}

impl Shared {
    pub(crate) fn new(dial: Arc<Dial>, role: &'static str) -> Self {
        Self(Arc::new(State {
            dial,
            role,
            live: Mutex::new(None),
            opened: AtomicU64::new(0),
            opening: tokio::sync::Mutex::new(None),
        }))
    }
}

impl State {
    fn current(&self) -> Option<Live> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| !live.gone.load(Ordering::Acquire)).cloned()
    }

    async fn live(&self) -> Result<Live> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let asked = Instant::now();
        // One caller opens the connection. The others wait here and use that one, or return its error.
        let mut failed = self.opening.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        // A caller that waited for an attempt that failed returns the error of that attempt, so that queued callers do
        // not try one after the other.
        if let Some((when, error)) = &*failed
            && *when >= asked
        {
            return Err(error.clone());
        }
        match self.dial.shared(self.role).await {
            Ok(live) => {
                let live = Live { generation: self.opened.fetch_add(1, Ordering::Relaxed), ..live };
                *failed = None;
                *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

impl Shared {
    /// Returns the number of the connection in use, counted from the first one. Opens one if there is none.
    pub(crate) async fn generation(&self) -> Result<u64> {
        Ok(self.0.live().await?.generation)
    }

    /// Sends over the connection with this number only. Returns `None` and sends nothing if it is gone.
    pub(crate) async fn send_over(&self, generation: u64, pipe: &Pipeline) -> Result<Option<Vec<Value>>> {
        let live = self.0.live().await?;
        if live.generation != generation {
            return Ok(None);
        }
        self.0.send_on(live, pipe).await.map(Some)
    }
}

impl Line for Shared {
    async fn send(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        self.0.send(pipe).await
    }
}

impl State {
    async fn send(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        self.send_on(self.live().await?, pipe).await
    }

    async fn send_on(&self, mut live: Live, pipe: &Pipeline) -> Result<Vec<Value>> {
        let answer = live.connection.send_packed_commands(pipe, 0, pipe.len()).await;
        let gone = match &answer {
            Ok(values) => is_demoted(values) && live.opened.elapsed() >= DEMOTED,
            Err(error) => error.is_io_error() || error.is_unrecoverable_error(),
        };
        if gone {
            live.gone.store(true, Ordering::Release);
        }
        complete(answer, pipe)
    }
}

/// Minimum age at which a connection to a read-only server is dropped: if the server stays read-only, the connection
/// is not opened again for every request.
pub(crate) const DEMOTED: Duration = Duration::from_secs(1);

/// Returns whether the server has become a replica. After a fail-over a new connection may reach the new primary at
/// the same address, while the old one would stay with this server for ever.
pub(crate) fn is_demoted(values: &[Value]) -> bool {
    values.iter().any(|value| matches!(value, Value::ServerError(error) if error.code() == "READONLY"))
}

/// Shared connection that runs with all of its requests on a thread of its own. So no task that may stay unscheduled
/// for a while ever holds the connection, a lock or a place in a queue.
pub(crate) struct Kept {
    control_thread: ControlThread,
    shared: Shared,
}

impl Kept {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { control_thread: ControlThread::default(), shared }
    }
}

impl Line for Kept {
    async fn send(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        let (shared, pipe) = (self.shared.clone(), pipe.clone());
        self.control_thread.run(async move { shared.send(&pipe).await }).await
    }
}

/// A few connections for work that is rare or large, so that it does not delay messages.
pub(crate) enum Pooled {
    /// Each is used by one caller at a time.
    Pool(Pool),
    /// Over TLS, which the pool's own connections could have only as the client has it: with other certificates, read anew
    /// for each. Callers take turns.
    Turns { connections: Vec<Shared>, next: AtomicUsize },
}

impl Pooled {
    pub(crate) fn new(config: &RedisConfig, dial: &Arc<Dial>) -> Result<Self> {
        if config.encrypted().is_some() {
            let connections = (0..config.pool_size).map(|_| Shared::new(dial.clone(), "pool")).collect();
            return Ok(Self::Turns { connections, next: AtomicUsize::new(0) });
        }
        let connection = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.response_timeout));
        let manager = Manager::new_with_config(tuned(config)?, connection)
            .map_err(|error| translate(&error, Phase::Connecting))?;
        let pool = Pool::builder(manager)
            .max_size(config.pool_size)
            .wait_timeout(Some(config.connect_timeout + config.response_timeout))
            .create_timeout(Some(config.connect_timeout))
            .recycle_timeout(Some(config.response_timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, error.to_string()))?;
        Ok(Self::Pool(pool))
    }
}

impl Line for Pooled {
    async fn send(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        let pool = match self {
            Self::Pool(pool) => pool,
            Self::Turns { connections, next } => {
                let turn = next.fetch_add(1, Ordering::Relaxed) % connections.len();
                return connections[turn].send(pipe).await;
            }
        };
        let mut connection = pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => translate(&error, Phase::Connecting),
            other => Error::new(ErrorKind::Unavailable, format!("the server cannot be reached: {other}")),
        })?;
        let answer = connection.send_packed_commands(pipe, 0, pipe.len()).await;
        if answer.as_ref().map_or(true, |values| is_demoted(values)) {
            // Not returned to the pool: late answers on it, or a server that takes no writes, are of no use to the next
            // caller.
            drop(deadpool_redis::Connection::take(connection));
        }
        complete(answer, pipe)
    }
}

/// Sends on a connection that has no response timeout of its own.
pub(crate) async fn send_within(
    connection: &mut MultiplexedConnection,
    pipe: &Pipeline,
    limit: Duration,
) -> Result<Vec<Value>> {
    match timeout(limit, connection.send_packed_commands(pipe, 0, pipe.len())).await {
        Ok(answer) => complete(answer, pipe),
        Err(_) => Err(no_answer(limit)),
    }
}

pub(crate) fn no_answer(limit: Duration) -> Error {
    let what = "the request may or may not have been done";
    Error::new(ErrorKind::Unconfirmed, format!("no answer came within {limit:?}, {what}"))
}

pub(crate) fn complete(answer: redis::RedisResult<Vec<Value>>, pipe: &Pipeline) -> Result<Vec<Value>> {
    let mut values = answer.map_err(|error| translate(&error, Phase::Sent))?;
    if values.len() == pipe.len() {
        wrong_type::name_keys(&mut values, pipe);
        Ok(values)
    } else {
        Err(unexpected(format_args!("{} replies to {} commands", values.len(), pipe.len())))
    }
}
