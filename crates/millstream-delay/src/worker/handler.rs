//! Type-erased handlers and checks.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::panics::{decode, text_of};
use millstream_core::{BoxError, Check, IntoOutcome, Outcome};
use tokio_util::sync::CancellationToken;

use crate::inner::Inner;
use crate::task::{About, Task};
use crate::worker::decide::Said;

/// Type-erased check function.
pub(super) type CheckCall<T> = dyn Fn(Task<T>) -> BoxFuture<'static, Result<Check, BoxError>> + Send + Sync;

/// Input of a handler call.
pub(super) struct Input {
    pub(super) about: About,
    pub(super) payload: Bytes,
    /// Whether the task may have been worked on before.
    pub(super) again: bool,
}

/// Runs the handler of a task until it returns, its time limit passes, or the token is cancelled.
pub(super) type Call = dyn Fn(Input, CancellationToken) -> BoxFuture<'static, Said> + Send + Sync;

/// Erases the payload type: decodes, checks, calls the handler, and catches panics of all three.
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
                    Ok(other) => Some(Outcome::retry(format!("unknown result of a check {other:?}"))),
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

/// Runs a handler and catches its panic. Drops the handler when its time limit passes or the worker ends.
async fn guarded(
    handler: impl Future<Output = Said>,
    timeout: Option<Duration>,
    kill: CancellationToken,
) -> Said {
    // The handler is moved in here, so that it is also dropped under `catch_unwind`: its drop may panic, too.
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
