//! Shared connections: one for many callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use millstream_core::error::Result;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::conn::dial::Dial;
use crate::conn::lease_thread::LeaseThread;
use crate::conn::multiplexed::Multiplexed;
use crate::conn::once::{Opened, Usable};
use crate::conn::replies::wrong_type;
use crate::conn::terms::during;
use crate::error::{Phase, no_answer, translate, unexpected};

/// Answers to a request: one value per command.
pub(crate) type Answers<'a> = BoxFuture<'a, Result<Vec<Value>>>;
/// A result for each command of a request.
pub(crate) type EachAnswer<'a> = BoxFuture<'a, Vec<Result<Value>>>;

/// Connection that takes pipelines. The answer has one value per command; a server error is returned as a value.
///
/// The futures are boxed, once a request. As types of their own they would be a part of the future of every role's every
/// method: the compiler would make all of it again for each, and prove each time that it may be sent to another thread.
pub(crate) trait Line: Send + Sync {
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a>;

    /// Sends, and returns a result for each command: where the commands go to several servers, some of these may fail.
    fn send_each<'a>(&'a self, pipe: &'a Pipeline) -> EachAnswer<'a> {
        Box::pin(async {
            match self.send(pipe).await {
                Ok(values) => values.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error); pipe.len()],
            }
        })
    }
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

impl Usable for Live {
    fn is_usable(&self) -> bool {
        !self.gone.load(Ordering::Acquire) && !self.connection.is_left()
    }
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
    live: Opened<Live>,
    /// Number of connections opened so far.
    opened: AtomicU64,
}

impl Shared {
    pub(crate) fn new(dial: Arc<Dial>, role: &'static str) -> Self {
        Self(Arc::new(State { dial, role, live: Opened::default(), opened: AtomicU64::new(0) }))
    }
}

impl State {
    async fn live(&self) -> Result<Live> {
        self.live.get(|| -> BoxFuture<'_, _> { Box::pin(self.open()) }).await
    }

    async fn open(&self) -> Result<Live> {
        let (connection, gone) = self.dial.shared(self.role).await?;
        let (opened, generation) = (Instant::now(), self.opened.fetch_add(1, Ordering::Relaxed));
        Ok(Live { connection, gone, opened, generation })
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
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a> {
        Box::pin(self.0.send(pipe))
    }
}

impl State {
    async fn send(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        self.send_on(self.live().await?, pipe).await
    }

    async fn send_on(&self, mut live: Live, pipe: &Pipeline) -> Result<Vec<Value>> {
        let tenure = live.connection.tenure().cloned();
        let answer = async {
            let _under_way = live.connection.log_in().await;
            Ok(live.connection.send_packed_commands(pipe, 0, pipe.len()).await)
        };
        let answer = during(tenure.as_ref(), answer).await?;
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

/// Connections that run with all of their requests on a thread of their own. So no task that may stay unscheduled for a
/// while ever holds a connection, a lock or a place in a queue.
pub(crate) struct OnThread<L> {
    thread: LeaseThread,
    line: Arc<L>,
}

impl<L: Line + 'static> OnThread<L> {
    pub(crate) fn new(line: L) -> Self {
        Self { thread: LeaseThread::default(), line: Arc::new(line) }
    }
}

impl<L: Send + Sync + 'static> OnThread<L> {
    /// Starts a task on the thread.
    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.thread.spawn(task);
    }

    /// Runs a request on the thread.
    pub(crate) async fn run<T: Send + 'static, F>(&self, request: impl FnOnce(Arc<L>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.thread.run(request(self.line.clone())).await
    }
}

impl<L: Line + 'static> Line for OnThread<L> {
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a> {
        let (line, pipe) = (self.line.clone(), pipe.clone());
        Box::pin(self.thread.run(async move { line.send(&pipe).await }))
    }

    fn send_each<'a>(&'a self, pipe: &'a Pipeline) -> EachAnswer<'a> {
        Box::pin(async {
            let (line, sent) = (self.line.clone(), pipe.clone());
            let answers = self.thread.run(async move { Ok(line.send_each(&sent).await) }).await;
            answers.unwrap_or_else(|error| vec![Err(error); pipe.len()])
        })
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

pub(crate) fn complete(answer: redis::RedisResult<Vec<Value>>, pipe: &Pipeline) -> Result<Vec<Value>> {
    let mut values = answer.map_err(|error| translate(&error, Phase::Sent))?;
    if values.len() == pipe.len() {
        wrong_type::name_keys(&mut values, pipe);
        Ok(values)
    } else {
        Err(unexpected(format_args!("{} replies to {} commands", values.len(), pipe.len())))
    }
}
