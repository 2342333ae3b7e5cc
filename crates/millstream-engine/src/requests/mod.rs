//! Requests: senders that wait for what a handler returns, whatever they have sent.

mod follow;
mod reports;

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::results::{Asker, MessageResult, ResultId, ResultRequest};
use millstream_core::{Backend, BoxError, Capability, Codec, Error, ErrorKind, Log, Place, Result};
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

pub use follow::{Follow, Followed};
pub use reports::{Reports, end_all};

/// How long a request waits unless it says otherwise, as a send by default.
pub const WITHIN: Duration = Duration::from_secs(30);

/// Longest wait, so that its end can be computed.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How much longer than a request waits the answer to its last look may take: the caller counts on the end of the wait.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Pause after a wait that ended before its time, which a backend may bound.
const EARLY: Duration = Duration::from_millis(1);

/// First and longest pause after a look that failed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Where results are, and whose numbers they have.
#[derive(Clone)]
pub struct ResultStore {
    log: Arc<dyn Log>,
    /// Whether nobody else makes numbers: then simulations repeat themselves with the same seed.
    in_process: bool,
}

impl ResultStore {
    /// Returns that of a backend; `None` if it keeps no results.
    #[must_use]
    pub fn of(backend: &Backend) -> Option<Self> {
        let keeps = backend.supports(Capability::Results);
        keeps.then(|| Self { log: backend.log().clone(), in_process: backend.is_in_process() })
    }

    /// Returns a new request.
    #[must_use]
    pub fn request(&self, keep: Duration) -> ResultRequest {
        let number = if self.in_process { fastrand::u128(..) } else { Uuid::new_v4().as_u128() };
        ResultRequest::new(number, keep)
    }

    /// Returns the request of what is sent to this place under this number.
    pub fn asked(&self, place: impl Into<Place>, number: u128) -> Asked {
        Asked { log: self.log.clone(), id: ResultId::new(place, number) }
    }
}

/// Request whose place is known.
#[derive(Clone)]
pub struct Asked {
    log: Arc<dyn Log>,
    /// Id of the result.
    pub id: ResultId,
}

impl Asked {
    /// Sends it.
    ///
    /// # Errors
    /// [`RequestError::NotSent`] and [`RequestError::Unconfirmed`].
    pub async fn sent<S>(&self, sending: impl Future<Output = Result<S>>) -> Result<S, RequestError> {
        sending.await.map_err(|error| match error.kind() {
            ErrorKind::Unconfirmed => RequestError::Unconfirmed { id: self.id.clone(), error },
            _ => RequestError::NotSent(error),
        })
    }

    /// Sends it, and waits for the result.
    ///
    /// # Errors
    /// [`RequestError::NotSent`], [`RequestError::Timeout`] and [`RequestError::NotRead`].
    pub async fn answered(
        self,
        mut sending: BoxFuture<'static, Result<Asker>>,
        within: Duration,
    ) -> Result<(ResultId, MessageResult), RequestError> {
        let Self { log, mut id } = self;
        let (looked_for, mut asker) = (id.clone(), None);
        let until = Instant::now() + within.min(LONGEST);
        let mut unconfirmed = None;
        let waited = {
            let mut waiting = std::pin::pin!(result_until(&*log, &looked_for, until));
            let mut is_sent = false;
            loop {
                tokio::select! {
                    // The send first: it is what the handler waits for. A result that is there before the wait begins is found by it.
                    biased;
                    sent = &mut sending, if !is_sent => match sent {
                        Ok(stored) => (is_sent, asker) = (true, Some(stored)),
                        // It may be stored: then there will be a result.
                        Err(error) if error.kind() == ErrorKind::Unconfirmed => {
                            (is_sent, unconfirmed) = (true, Some(error));
                        }
                        Err(error) => return Err(RequestError::NotSent(error)),
                    },
                    waited = &mut waiting => break waited,
                }
            }
        };
        id.asker = asker.map(Box::new);
        found(waited, id, within, unconfirmed)
    }

    /// Returns the same with the message or task that asks, which is stored.
    #[must_use]
    pub fn of(self, asker: Asker) -> Self {
        Self { id: self.id.of(asker), ..self }
    }

    /// Follows the work on what was sent.
    #[must_use]
    pub fn follow(&self) -> Follow {
        Follow::of(self.log.clone(), self.id.clone())
    }

    /// Waits for the reply of what was sent.
    ///
    /// # Errors
    /// A [`RequestError`].
    pub async fn reply<R>(&self, codec: &dyn Codec<R>, wait: Duration) -> Result<R, RequestError> {
        let waited = find(&*self.log, &self.id, wait).await;
        decoded(found(waited, self.id.clone(), wait, None)?, codec)
    }
}

/// Error of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The message was not stored, so nobody handles it.
    #[error("the request was not sent: {0}")]
    NotSent(#[source] Error),
    /// The message may be stored: the answer to its send was lost. Only a request that does not wait for its result returns this.
    #[error("it is not known whether request {id} was sent: {error}")]
    Unconfirmed {
        /// Id of the result.
        id: ResultId,
        /// Error of the send.
        #[source]
        error: Error,
    },
    /// There was no result in time. The message may still be handled, and its result can be [read](ResultFuture) later.
    #[error("request {id} had no result within {within:?}")]
    Timeout {
        /// Id of the result.
        id: ResultId,
        /// How long the request waited.
        within: Duration,
        /// The last error of the send or of the wait, if there was one.
        #[source]
        error: Option<Error>,
    },
    /// The message was given up, or handled with a reply that could not be kept.
    #[error("request {id} failed ({reason}, attempts: {attempts}): {error}")]
    Failed {
        /// Id of the result.
        id: ResultId,
        /// The [reason](millstream_core::Reason) of the dead letter, or one of those in [`results`](millstream_core::results).
        reason: Box<str>,
        /// Number of attempts that were made.
        attempts: u32,
        /// The last error.
        error: String,
    },
    /// The message was handled without a reply: the handler returned none, or did not run, since its operation was done before.
    #[error("request {id} was handled without a reply")]
    NoReply {
        /// Id of the result.
        id: ResultId,
    },
    /// The codec cannot read the reply.
    #[error("the reply to request {id} cannot be read: {error}")]
    Undecodable {
        /// Id of the result.
        id: ResultId,
        /// Error of the codec.
        #[source]
        error: BoxError,
    },
    /// The result cannot be read, and waiting does not help: a right is missing, or the key holds something else.
    #[error("the result of request {id} cannot be read: {error}")]
    NotRead {
        /// Id of the result.
        id: ResultId,
        /// The error.
        #[source]
        error: Error,
    },
}

impl RequestError {
    /// Returns the id of the result. `None` if the message was not sent.
    #[must_use]
    pub const fn id(&self) -> Option<&ResultId> {
        match self {
            Self::NotSent(_) => None,
            Self::Unconfirmed { id, .. }
            | Self::Timeout { id, .. }
            | Self::Failed { id, .. }
            | Self::NoReply { id }
            | Self::Undecodable { id, .. }
            | Self::NotRead { id, .. } => Some(id),
        }
    }
}

fn found(
    waited: Waited,
    id: ResultId,
    within: Duration,
    unconfirmed: Option<Error>,
) -> Result<(ResultId, MessageResult), RequestError> {
    match waited {
        Ok(Some(result)) => Ok((id, result)),
        Ok(None) => Err(RequestError::Timeout { id, within, error: unconfirmed }),
        Err(error) if error.is_transient() => {
            Err(RequestError::Timeout { id, within, error: unconfirmed.or(Some(error)) })
        }
        Err(error) => Err(RequestError::NotRead { id, error }),
    }
}

type Waited = Result<Option<MessageResult>>;

/// Finds a result that may be there already.
async fn find(log: &dyn Log, id: &ResultId, wait: Duration) -> Waited {
    let until = Instant::now() + wait.min(LONGEST);
    match log.result(id, Duration::ZERO).await {
        Ok(None) if !wait.is_zero() => result_until(log, id, until).await,
        Err(error) if error.is_transient() && !wait.is_zero() => result_until(log, id, until).await,
        looked => looked,
    }
}

/// Waits for a result, also while the server is away.
async fn result_until(log: &dyn Log, id: &ResultId, end: Instant) -> Waited {
    until(end, id, |left| log.result(id, left)).await
}

/// Waits until `ask`, which is called with the time that is left, has found something, also while the server is away.
async fn until<T, F>(end: Instant, id: &ResultId, mut ask: impl FnMut(Duration) -> F) -> Result<Option<T>>
where
    F: Future<Output = Result<Option<T>>>,
{
    let mut pause = PAUSES.0;
    loop {
        // With nothing left it is one more look.
        let left = end.saturating_duration_since(Instant::now());
        let unanswered = |_| {
            let why = format!("the server has not answered in time about result {id}");
            Err(Error::new(ErrorKind::Unavailable, why))
        };
        let looked = timeout_at(end + LAST_LOOK, ask(left)).await;
        match looked.unwrap_or_else(unanswered) {
            Ok(None) if !left.is_zero() => sleep(EARLY).await,
            Err(error) if error.is_transient() && !left.is_zero() => {
                tracing::debug!(%id, %error, "the wait for a result failed, and begins again");
                sleep(pause.min(left)).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            other => return other,
        }
    }
}

/// Returns the reply in a result.
///
/// # Errors
/// There is none, or the codec cannot read it.
pub fn decoded<R>((id, result): (ResultId, MessageResult), codec: &dyn Codec<R>) -> Result<R, RequestError> {
    match result {
        MessageResult::Replied(payload) => millstream_core::panics::decode(codec, &payload)
            .map_err(|error| RequestError::Undecodable { id, error }),
        MessageResult::Done => Err(RequestError::NoReply { id }),
        MessageResult::Failed { reason, attempts, error } => {
            Err(RequestError::Failed { id, reason: reason.into(), attempts, error })
        }
    }
}

/// Read of a result by its id, which starts when it is awaited.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_core::{Backend, MessageResult, Result, ResultId};
/// # use millstream_engine::requests::ResultFuture;
/// # async fn example(backend: &Backend) -> Result<()> {
/// let id: ResultId = "prices/3/0af7651916cd43dd8448eb211c80319c".parse()?;
/// match ResultFuture::new(backend, &id).within(Duration::from_secs(10)).await? {
///     Some(MessageResult::Replied(reply)) => println!("{} bytes", reply.len()),
///     Some(other) => println!("{other:?}"),
///     None => println!("not yet, or not any longer"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a read does nothing until it is awaited"]
pub struct ResultFuture {
    log: Arc<dyn Log>,
    id: ResultId,
    wait: Duration,
}

impl fmt::Debug for ResultFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultFuture").field("id", &self.id).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl ResultFuture {
    /// Creates the read of a result. It does not wait, unless [`within`](Self::within) says so.
    pub fn new(backend: &Backend, id: &ResultId) -> Self {
        Self { log: backend.log().clone(), id: id.clone(), wait: Duration::ZERO }
    }

    /// Waits for the result for up to this time.
    pub fn within(self, wait: Duration) -> Self {
        Self { wait: wait.min(LONGEST), ..self }
    }
}

impl IntoFuture for ResultFuture {
    type Output = Result<Option<MessageResult>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { find(&*self.log, &self.id, self.wait).await })
    }
}
