//! Results of messages, as senders find them and wait for them.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::log::Log;
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::{Backend, Error, ErrorKind, Result};
use tokio::time::{Instant, sleep, timeout_at};

/// Longest wait, so that its end can be computed.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How much longer than a request waits the answer to its last look may take: the caller counts on the end of the wait.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Pause after a wait that ended before its time, which a backend may bound.
const EARLY: Duration = Duration::from_millis(1);

/// First and longest pause after a look that failed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Where results are, and whose numbers they have.
pub(super) struct Results {
    pub(super) log: Arc<dyn Log>,
    /// Whether nobody else makes numbers: then simulations repeat themselves with the same seed.
    pub(super) in_process: bool,
}

pub(super) type Waited = Result<Option<MessageResult>>;

/// Finds a result that may be there already.
pub(super) async fn find(log: &dyn Log, id: &ResultId, wait: Duration) -> Waited {
    let until = Instant::now() + wait.min(LONGEST);
    match log.result(id, Duration::ZERO).await {
        Ok(None) if !wait.is_zero() => result_until(log, id, until).await,
        Err(error) if error.is_transient() && !wait.is_zero() => result_until(log, id, until).await,
        looked => looked,
    }
}

/// Waits for a result, also while the server is away.
pub(super) async fn result_until(log: &dyn Log, id: &ResultId, until: Instant) -> Waited {
    let mut pause = PAUSES.0;
    loop {
        // With nothing left it is one more look.
        let left = until.saturating_duration_since(Instant::now());
        let unanswered = |_| {
            Err(Error::new(ErrorKind::Unavailable, "the server has not answered in time")
                .at(&id.topic_partition))
        };
        let looked = timeout_at(until + LAST_LOOK, log.result(id, left)).await;
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

/// Read of a result by its id, which starts when it is awaited.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_core::{Backend, MessageResult, Result, ResultId};
/// # use millstream_runtime::ResultFuture;
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
