//! A pool of connections.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Metrics, Object, Pool, PoolError, RecycleResult};
use deadpool_redis::{Manager, Runtime};
use millstream_core::error::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value,
};

use crate::config::RedisConfig;
use crate::conn::connection::{Answers, Line, Shared, complete, is_demoted};
use crate::conn::dial::Dial;
use crate::error::{Phase, translate};

/// Age of the last use of a connection from which on it is asked whether it is still there. A question that is made of many
/// requests would take twice as many otherwise.
const CHECKED_AFTER: Duration = Duration::from_millis(100);

/// The manager of the pool: that of the client library, which asks the server before each use.
pub(crate) struct Checked {
    manager: Manager,
    losses: Arc<LastLoss>,
}

/// When a connection of the pool was lost for the last time.
#[derive(Default)]
struct LastLoss(Mutex<Option<Instant>>);

impl LastLoss {
    fn is_now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_since(&self, time: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|lost| lost >= time)
    }
}

impl managed::Manager for Checked {
    type Type = MultiplexedConnection;
    type Error = RedisError;

    async fn create(&self) -> RedisResult<MultiplexedConnection> {
        self.manager.create().await
    }

    async fn recycle(
        &self,
        connection: &mut MultiplexedConnection,
        metrics: &Metrics,
    ) -> RecycleResult<RedisError> {
        let used = metrics.recycled.unwrap_or(metrics.created);
        // Where one was lost since, it may be this one.
        if !self.losses.is_since(used) && used.elapsed() < CHECKED_AFTER {
            return Ok(());
        }
        self.manager.recycle(connection, metrics).await
    }
}

/// A few connections for work that is rare or large, so that it does not delay messages.
pub(crate) enum Pooled {
    /// Each is used by one caller at a time.
    Pool(Pool<Checked>, Arc<Dial>),
    /// Where the pool cannot open connections by itself: over TLS the client would use other certificates, and read them
    /// anew for each connection; with Sentinels the address changes, and with a provider the credentials do. Each request
    /// goes to the next connection, behind those of others.
    Turns { connections: Vec<Shared>, next: AtomicUsize },
}

impl Pooled {
    pub(crate) fn new(config: &RedisConfig, dial: &Arc<Dial>) -> Result<Self> {
        let Some(info) = dial.plain() else {
            let connections = (0..config.pool_size).map(|_| Shared::new(dial.clone(), "pool")).collect();
            return Ok(Self::Turns { connections, next: AtomicUsize::new(0) });
        };
        let connection = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.response_timeout));
        let losses = Arc::<LastLoss>::default();
        let lost = losses.clone();
        let connection = connection.set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                lost.is_now();
            }
            Ok::<_, Infallible>(())
        });
        // RESP3 reports that a connection was lost, RESP2 does not.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let manager = Manager::new_with_config(info.clone().set_redis_settings(settings), connection)
            .map_err(|error| translate(&error, Phase::Connecting))?;
        let pool = Pool::builder(Checked { manager, losses })
            .max_size(config.pool_size)
            .wait_timeout(Some(config.connect_timeout + config.response_timeout))
            .create_timeout(Some(config.connect_timeout))
            .recycle_timeout(Some(config.response_timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, error.to_string()))?;
        Ok(Self::Pool(pool, dial.clone()))
    }
}

impl Line for Pooled {
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a> {
        Box::pin(self.sent(pipe))
    }
}

impl Pooled {
    async fn sent(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        // The client takes this for an error.
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let (pool, dial) = match self {
            Self::Pool(pool, dial) => (pool, dial),
            Self::Turns { connections, next } => {
                let turn = next.fetch_add(1, Ordering::Relaxed) % connections.len();
                return connections[turn].send(pipe).await;
            }
        };
        let mut connection = match pool.get().await {
            Ok(connection) => connection,
            Err(PoolError::Backend(error)) => {
                // The client does not tell what a server says that takes no connection, and ours do.
                let said = if error.is_connection_dropped() { dial.socket("pool").await.err() } else { None };
                return Err(said.unwrap_or_else(|| translate(&error, Phase::Connecting)));
            }
            Err(other) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("the server cannot be reached: {other}"),
                ));
            }
        };
        let answer = connection.send_packed_commands(pipe, 0, pipe.len()).await;
        if answer.as_ref().map_or(true, |values| is_demoted(values)) {
            // Not returned to the pool: late answers on it, or a server that takes no writes, are of no use to the next
            // caller.
            drop(Object::take(connection));
        }
        complete(answer, pipe)
    }
}
