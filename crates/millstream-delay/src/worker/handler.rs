//! Handlers and checks, with the payload type taken off.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::panics::{decode, text_of};
use millstream_core::{BoxError, IntoOutcome, Outcome};
use tokio_util::sync::CancellationToken;

use super::decide::Said;
use crate::queue::Inner;
use crate::task::{About, Task};

/// What a check says of a task that somebody may have worked on before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Check {
    /// It is to be worked on.
    Run,
    /// It is done: the handler is not called.
    Complete,
    /// Not now: it comes back after this time, to be checked again. No attempt is used.
    Snooze(Duration),
    /// Give it up, for this reason.
    DeadLetter(String),
}

/// What a check may return: a [`Check`], or a `Result` of one, whose error is a failed attempt.
pub trait IntoCheck {
    /// The check it stands for.
    ///
    /// # Errors
    /// Why it could not be checked.
    fn into_check(self) -> Result<Check, BoxError>;
}

impl IntoCheck for Check {
    fn into_check(self) -> Result<Check, BoxError> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> IntoCheck for Result<Check, E> {
    fn into_check(self) -> Result<Check, BoxError> {
        self.map_err(Into::into)
    }
}

/// A check of any kind.
pub(super) type CheckCall<T> = dyn Fn(Task<T>) -> BoxFuture<'static, Result<Check, BoxError>> + Send + Sync;

/// A task for a handler.
pub(super) struct Input {
    pub(super) about: About,
    pub(super) payload: Bytes,
    /// Whether it may have been worked on before.
    pub(super) again: bool,
}

/// Handles a task until it is done, its time is over, or the token says that it is to be given up.
pub(super) type Call = dyn Fn(Input, CancellationToken) -> BoxFuture<'static, Said> + Send + Sync;

/// Takes the payload type off: decodes, checks, calls, and catches panics of all three.
pub(super) fn erase<T, F, Fut>(
    queue: Arc<Inner<T>>,
    check: Option<Arc<CheckCall<T>>>,
    timeout: Option<Duration>,
    handler: F,
) -> Box<Call>
where
    T: Send + 'static,
    F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    let handler = Arc::new(handler);
    Box::new(move |Input { about, payload, again }, kill| {
        let (queue, handler) = (queue.clone(), handler.clone());
        let check = check.clone().filter(|_| again);
        let handle = async move {
            if let Some(check) = check {
                let task = match decode(queue.codec, &payload) {
                    Ok(payload) => Task { payload, about: about.clone() },
                    Err(error) => return Said::Undecodable(error),
                };
                let outcome = match check(task).await {
                    Ok(Check::Run) => None,
                    Ok(Check::Complete) => Some(Outcome::Ack),
                    Ok(Check::Snooze(after)) => Some(Outcome::Snooze(after)),
                    Ok(Check::DeadLetter(reason)) => Some(Outcome::dead_letter(reason)),
                    Err(error) => Some(Outcome::Retry(error)),
                };
                if let Some(outcome) = outcome {
                    return Said::Outcome(outcome);
                }
            }
            match decode(queue.codec, &payload) {
                Ok(value) => {
                    drop((payload, queue));
                    Said::Outcome(handler(Task { payload: value, about }).await.into_outcome())
                }
                Err(error) => Said::Undecodable(error),
            }
        };
        Box::pin(guarded(handle, timeout, kill))
    })
}

/// Runs a handler, catches its panic, and gives it up (drops it) when the time is over or the worker ends.
async fn guarded(
    handler: impl Future<Output = Said>,
    timeout: Option<Duration>,
    kill: CancellationToken,
) -> Said {
    // The handler is dropped inside of what is guarded: that may panic, too.
    let handle = async move {
        let over = async {
            match timeout {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            said = handler => said,
            () = kill.cancelled() => Said::Unfinished,
            () = over => Said::TimedOut(timeout.unwrap_or_default()),
        }
    };
    let caught = AssertUnwindSafe(handle).catch_unwind().await;
    caught.unwrap_or_else(|panic| Said::Panicked(text_of(panic)))
}
