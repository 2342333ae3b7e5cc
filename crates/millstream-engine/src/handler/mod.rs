//! Handlers with the payload type erased.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::event::Cause;
use millstream_core::limits::PermitKey;
use millstream_core::panics::{decode, text_of};
use millstream_core::wire::Malformed;
use millstream_core::{BoxError, Codec, IntoOutcome, Observer, Outcome, Reply};
use tokio_util::sync::CancellationToken;

pub mod batch;
pub mod check;
mod layer;
mod letters;
mod timeout;
mod trace;
mod traced;

pub use batch::{Batch, BatchConfig};
pub use layer::{Answer, Layer, Next};
pub use letters::{Letter, erase_letters, input as letter_input};

use layer::Layered;
pub use timeout::Timeout;
pub use trace::Trace;
pub use traced::of_delivery;

use crate::delivery::{Deliverable, Delivery, DeliveryMetadata};
use crate::letter::DeadLetterOutcome;
use crate::limits::{CallEnd, Permit};
use crate::requests::end_all;
use crate::steps::{Parked, entered, framed};

/// Result of one message, before policies are applied.
#[derive(Debug)]
pub enum Verdict {
    /// The handler returned this outcome.
    Said(Outcome),
    /// The handler panicked with this message.
    Panicked(String),
    /// The handler took longer than this.
    TimedOut(Duration),
    /// The codec could not decode the payload.
    Undecodable(BoxError),
    /// The entry is not a message.
    Malformed(Malformed),
    /// The body of the task was deleted.
    Orphan,
    /// This number of processes ended while handling it.
    Crashed(u32),
    /// Its operation is done, or is done for another message. With the reply that was kept with its marker.
    Duplicate(Option<Reply>),
    /// The check before it found that it was handled.
    Checked,
    /// It is over this limit, and does not wait.
    OverLimit(PermitKey),
    /// It is handed back, and waits.
    Waits(Box<Parked>),
    /// It was cancelled from outside; whether its handler has run in this attempt.
    Cancelled(bool),
    /// The handler of dead letters returned this. Boxed, since a consumer keeps a verdict for each message.
    Letter(Box<DeadLetterOutcome>),
    /// The handler was dropped, because its worker ends.
    Unfinished,
}

impl Verdict {
    /// Whether the message may be handled again: its handler failed, or said so.
    #[must_use]
    pub fn is_for_later(&self) -> bool {
        match self {
            Self::Said(outcome) => {
                !matches!(outcome, Outcome::Ack | Outcome::Reply(_) | Outcome::DeadLetter(_))
            }
            Self::Panicked(_) | Self::TimedOut(_) | Self::Waits(_) => true,
            _ => false,
        }
    }

    /// Whether a message that was cancelled from outside is settled as such behind this: it is not done.
    #[must_use]
    pub fn may_be_cancelled(&self) -> bool {
        match self {
            Self::Said(outcome) => !matches!(outcome, Outcome::Ack | Outcome::Reply(_)),
            Self::Duplicate(_) | Self::Checked | Self::OverLimit(_) => false,
            _ => true,
        }
    }

    /// Returns what came of the call, for breakers.
    #[must_use]
    pub fn call_end(&self) -> CallEnd<'_> {
        match self {
            Self::Said(Outcome::Ack | Outcome::Reply(_)) => CallEnd::Succeeded,
            Self::Letter(outcome) if outcome.work().is_some() => CallEnd::Succeeded,
            Self::Said(
                Outcome::Retry(error) | Outcome::RetryAfter(_, error) | Outcome::RetryAt(_, error),
            ) => CallEnd::Failed(&**error),
            Self::Panicked(_) => CallEnd::Ended("a handler panicked"),
            Self::TimedOut(_) => CallEnd::Ended("a handler timed out"),
            _ => CallEnd::Other,
        }
    }

    /// Records it as what came of a message that had this of limits. Returns the verdict that counts instead, if there is one:
    ///
    /// - A message that was superseded does not come back: a newer one waits in its place, which it would cancel.
    /// - One that failed since what it calls is away, which is known by now, has used no attempt.
    pub fn replaced(&self, permit: &mut Permit, observer: &dyn Observer) -> Option<Self> {
        let superseded = permit.superseded().filter(|_| self.is_for_later());
        let superseded = superseded.map(|key| Self::OverLimit(key.clone()));
        let end = superseded.as_ref().unwrap_or(self).call_end();
        match permit.ended(end, observer) {
            Some(after) => {
                tracing::debug!(?after, verdict = ?self, "a breaker is open: this is no attempt");
                Some(Self::Said(Outcome::Snooze(after)))
            }
            None => superseded,
        }
    }

    /// Returns the cause of the failure, if it failed.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Said(Outcome::Ack | Outcome::Reply(_) | Outcome::Snooze(_))
            | Self::Duplicate(_)
            | Self::Checked
            | Self::OverLimit(_)
            | Self::Cancelled(_)
            | Self::Letter(_)
            | Self::Waits(_)
            | Self::Unfinished => None,
            Self::Said(Outcome::Retry(_) | Outcome::RetryAfter(..) | Outcome::RetryAt(..)) => {
                Some(Cause::Error)
            }
            Self::Said(_) => Some(Cause::Rejected),
            Self::Panicked(_) => Some(Cause::Panic),
            Self::TimedOut(_) => Some(Cause::Timeout),
            Self::Undecodable(_) => Some(Cause::Undecodable),
            Self::Malformed(_) | Self::Orphan => Some(Cause::Malformed),
            Self::Crashed(_) => Some(Cause::Crashed),
        }
    }
}

/// A verdict on one message, or one on all of a batch.
#[derive(Debug)]
pub enum Said {
    /// On this message.
    Own(Verdict),
    /// On all messages of a batch that have none of their own.
    Shared(Arc<Verdict>),
}

impl Said {
    /// Returns the verdict.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        match self {
            Self::Own(verdict) => verdict,
            Self::Shared(verdict) => verdict,
        }
    }
}

/// A message for a handler.
pub struct Input {
    /// Everything but the payload.
    pub about: DeliveryMetadata,
    /// The payload, not decoded.
    pub payload: Bytes,
}

/// Handles one message, up to the timeout. `None`: it was not handled, and stays pending.
pub trait Handle: Send + Sync + 'static {
    /// Whether it may return a message without having handled it, although the consumer goes on: then the message can start
    /// again, and has to be kept meanwhile.
    fn declines(&self) -> bool {
        false
    }

    /// Whether it is there to [reply](IntoOutcome::REPLIES).
    fn replies(&self) -> bool {
        false
    }

    /// Handles it.
    fn handle(&self, input: Input, timeout: Option<Duration>)
    -> impl Future<Output = Option<Verdict>> + Send;
}

/// Messages that are handled inline, one after the other.
pub trait Row: Send {
    /// Returns the next message if one may be handled right now.
    fn next(&mut self) -> Option<Input>;

    /// Called when the handler is not ready at its first poll: settlements that are done must not wait for it.
    fn handler_pending(&mut self);

    /// Records the verdict on the message. `None`: it was not handled.
    fn finish(&mut self, verdict: Option<Verdict>);
}

/// A [`Handle`] of any type.
pub trait Call: Send + Sync {
    /// See [`Handle::declines`].
    fn declines(&self) -> bool;

    /// See [`Handle::replies`].
    fn replies(&self) -> bool;

    /// Handles one message.
    fn one(&self, input: Input, timeout: Option<Duration>) -> BoxFuture<'static, Answer>;

    /// Handles all messages of a row. The handler's type is known in here, so a message needs no boxed future of its own.
    fn all<'a>(&'a self, row: &'a mut dyn Row, timeout: Option<Duration>) -> BoxFuture<'a, ()>;
}

impl<H: Handle> Call for Arc<H> {
    fn declines(&self) -> bool {
        Handle::declines(&**self)
    }

    fn replies(&self) -> bool {
        Handle::replies(&**self)
    }

    fn one(&self, input: Input, timeout: Option<Duration>) -> BoxFuture<'static, Answer> {
        let handler = self.clone();
        Box::pin(async move { Answer(handler.handle(input, timeout).await) })
    }

    fn all<'a>(&'a self, row: &'a mut dyn Row, timeout: Option<Duration>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            while let Some(input) = row.next() {
                let reports = input.about.reports.clone();
                let verdict = noticing(self.handle(input, timeout), || row.handler_pending()).await;
                row.finish(verdict);
                end_all(reports).await;
            }
        })
    }
}

/// Awaits a future, and calls `pending` if it is not ready at its first poll.
pub async fn noticing<F: Future>(future: F, pending: impl FnOnce()) -> F::Output {
    let (mut future, mut pending) = (pin!(future), Some(pending));
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending()
            && let Some(pending) = pending.take()
        {
            pending();
        }
        polled
    })
    .await
}

/// Handles several messages. Returns one verdict for each.
pub type BatchCall = dyn Fn(Vec<Input>, Option<Duration>) -> BoxFuture<'static, Vec<Said>> + Send + Sync;

/// A handler of any payload type.
pub enum ErasedHandler {
    /// It takes one message.
    Each(Box<dyn Call>),
    /// It takes several messages of one partition, or tasks of one shard.
    Batch(BatchConfig, Box<BatchCall>),
}

impl ErasedHandler {
    /// Whether a message may come back from it that was not handled. A batch has a verdict for each message.
    pub fn declines(&self) -> bool {
        match self {
            Self::Each(call) => call.declines(),
            Self::Batch(..) => false,
        }
    }

    /// Whether it is there to [reply](IntoOutcome::REPLIES). Of handlers of batches that is not known.
    pub fn replies(&self) -> bool {
        match self {
            Self::Each(call) => call.replies(),
            Self::Batch(..) => false,
        }
    }

    /// Returns the handler with these layers around it.
    pub fn within(self, layers: &[Arc<dyn Layer>]) -> Self {
        match self {
            Self::Each(handler) => Self::Each(within(handler, layers)),
            batch @ Self::Batch(..) => batch,
        }
    }
}

/// Returns the handler with these layers around it.
pub(crate) fn within(handler: Box<dyn Call>, layers: &[Arc<dyn Layer>]) -> Box<dyn Call> {
    if layers.is_empty() {
        return handler;
    }
    Box::new(Arc::new(Layered { layers: layers.to_vec(), handler }))
}

/// Erases the payload type: decodes, calls the handler, and catches panics of both.
pub fn erase<D, F, Fut>(codec: &'static dyn Codec<D::Payload>, handler: F) -> ErasedHandler
where
    D: Deliverable,
    F: Fn(D) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    ErasedHandler::Each(typed(codec, handler))
}

/// Erases the payload type of a handler of single messages.
pub fn typed<D, F, Fut>(codec: &'static dyn Codec<D::Payload>, handler: F) -> Box<dyn Call>
where
    D: Deliverable,
    F: Fn(D) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    Box::new(Arc::new(Typed { codec, handler }))
}

/// The user's function with the codec of its payload.
struct Typed<D: Deliverable, F> {
    codec: &'static dyn Codec<D::Payload>,
    handler: F,
}

impl<D, F, Fut> Handle for Typed<D, F>
where
    D: Deliverable,
    F: Fn(D) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    fn replies(&self) -> bool {
        <Fut::Output as IntoOutcome>::REPLIES
    }

    fn handle(
        &self,
        Input { about, payload }: Input,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Option<Verdict>> + Send {
        // Outside of the future: otherwise the captured values would be part of the future and be moved with it.
        let mut slot = None;
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let value = decode(self.codec, &payload).map_err(Verdict::Undecodable)?;
            drop(payload);
            let delivery = D::of(Delivery { payload: value, about }).ok_or_else(not_a_task)?;
            Ok(entered(&mut slot, || (self.handler)(delivery)))
        }));
        let begun = begun.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(panic))));
        async move {
            let handler = match begun {
                Ok(handler) => handler,
                Err(verdict) => return Some(verdict),
            };
            let handled = framed(async { handler.await.into_outcome() }, slot);
            let said = async { handled.await.map_or_else(Verdict::Waits, Verdict::Said) };
            let said = guarded(said, timeout).await;
            Some(said.unwrap_or_else(|failed| failed))
        }
    }
}

/// Runs a handler, catches its panic, and drops it when the timeout is over.
///
/// A handler that panicked is not polled again for this message. As with threads, its author is responsible for the state
/// that it shares with other calls.
pub async fn guarded<R>(handler: impl Future<Output = R>, timeout: Option<Duration>) -> Result<R, Verdict> {
    // The handler is dropped inside the caught block: that may panic, too.
    let caught = match timeout {
        None => AssertUnwindSafe(async { Ok(handler.await) }).catch_unwind().await,
        Some(after) => {
            let handle = tokio::time::timeout(after, handler);
            let handle = async { handle.await.map_err(|_| Verdict::TimedOut(after)) };
            // Boxed, because a timer is large and calls without a timeout should not carry it.
            AssertUnwindSafe(Box::pin(handle)).catch_unwind().await
        }
    };
    caught.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(panic))))
}

/// A handler of single messages that is dropped when its worker ends. It stands inside of the guard of markers, which can then abandon
/// the operation.
struct Droppable {
    kill: CancellationToken,
    call: Box<dyn Call>,
}

impl Handle for Droppable {
    fn replies(&self) -> bool {
        self.call.replies()
    }

    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        let handled = async { self.call.one(input, timeout).await.0 };
        until(&self.kill, handled).await.unwrap_or_else(Some)
    }
}

/// Awaits a handler until the token is cancelled. It is dropped inside the caught block: that may panic, too.
async fn until<R>(kill: &CancellationToken, handler: impl Future<Output = R>) -> Result<R, Verdict> {
    let handled = async move {
        tokio::select! {
            biased;
            handled = handler => Ok(handled),
            () = kill.cancelled() => Err(Verdict::Unfinished),
        }
    };
    let caught = AssertUnwindSafe(handled).catch_unwind().await;
    caught.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(panic))))
}

impl ErasedHandler {
    /// Returns the handler as one that is dropped when the token is cancelled: then its verdict is [`Verdict::Unfinished`].
    #[must_use]
    pub fn until(self, kill: CancellationToken) -> Self {
        match self {
            Self::Each(call) => Self::Each(Box::new(Arc::new(Droppable { kill, call }))),
            Self::Batch(config, call) => {
                let shared = Arc::new((kill, call));
                let call = move |inputs: Vec<Input>, timeout| {
                    let shared = shared.clone();
                    Box::pin(async move {
                        let ((kill, call), messages) = (&*shared, inputs.len());
                        let handled = until(kill, call(inputs, timeout)).await;
                        handled.unwrap_or_else(|verdict| {
                            let verdict = Arc::new(verdict);
                            (0..messages).map(|_| Said::Shared(verdict.clone())).collect()
                        })
                    }) as BoxFuture<'static, Vec<Said>>
                };
                Self::Batch(config, Box::new(call))
            }
        }
    }
}

/// Returns the verdict on a message of a topic that came to a handler of tasks.
pub(crate) fn not_a_task() -> Verdict {
    Verdict::Undecodable("a handler of tasks takes no messages of topics".into())
}
