//! Layers: code of the user around a handler, for every payload type.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::event::Cause;
use millstream_core::{BoxError, Outcome};

use crate::delivery::Delivery;
use crate::handler::{Call, Handle, Input, Verdict, guarded};

/// Code around a handler, as tower's layers are: it sees each message before the codec does, and the answer after the handler.
///
/// Layers are added with `ConsumerBuilder::layer`. The first one that is added is the outermost. All of them
/// run inside the marker of `idempotent`, and outside of the `check`
/// and of the codec. A layer may change payload and headers, answer without calling the rest, or call it and change the answer. A panic
/// is a failed attempt, as in a handler, and `handler_timeout` covers layers and handler
/// together.
///
/// ```
/// use async_trait::async_trait;
/// use bytes::Bytes;
/// use millstream_core::Outcome;
/// use millstream_engine::{Answer, Delivery, Layer, Next};
/// use std::time::Duration;
///
/// /// Refuses to work at night, which uses no attempt.
/// struct OfficeHours;
///
/// #[async_trait]
/// impl Layer for OfficeHours {
///     async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
///         if is_night() {
///             return Outcome::snooze(Duration::from_secs(3_600)).into();
///         }
///         next.run(delivery).await
///     }
/// }
/// # fn is_night() -> bool { false }
/// ```
#[async_trait]
pub trait Layer: Send + Sync + 'static {
    /// Handles a message. [`Next::run`] calls the layers inside of this one, and the handler.
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer;
}

/// The layers inside of a layer, and the handler.
pub struct Next<'a> {
    layers: &'a [Arc<dyn Layer>],
    handler: &'a dyn Call,
}

impl<'a> Next<'a> {
    /// Calls them.
    ///
    /// The future of the next layer, or of the handler, itself: one around it would copy the delivery and the answer once more
    /// for each layer.
    pub fn run(self, delivery: Delivery<Bytes>) -> BoxFuture<'a, Answer> {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.handle(delivery, Next { layers, ..self }),
            None => {
                let Delivery { payload, about } = delivery;
                self.handler.one(Input { about, payload }, None)
            }
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

/// Answer of a handler and the layers around it. An [`Outcome`] becomes one.
#[derive(Debug)]
pub struct Answer(pub(crate) Option<Verdict>);

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self(Some(Verdict::Said(outcome)))
    }
}

impl Answer {
    /// Answers for a message whose payload cannot be read: it becomes a dead letter with the reason
    /// [`Undecodable`](millstream_core::Reason::Undecodable) and this error, as if its codec had refused it, and uses no attempt.
    #[must_use]
    pub fn undecodable(error: impl Into<BoxError>) -> Self {
        Self(Some(Verdict::Undecodable(error.into())))
    }

    /// Creates the answer of a verdict. `None`: it was not handled, and stays pending.
    #[must_use]
    pub fn new(verdict: impl Into<Option<Verdict>>) -> Self {
        Self(verdict.into())
    }

    /// Returns the verdict; `None` if it was not handled.
    #[must_use]
    pub fn into_verdict(self) -> Option<Verdict> {
        self.0
    }

    /// Returns the word for it in a span.
    pub(super) fn word(&self) -> &'static str {
        match &self.0 {
            None => "unhandled",
            Some(Verdict::Said(Outcome::Snooze(_)) | Verdict::Waits(_)) => "snoozed",
            Some(verdict) => verdict.cause().map_or("acked", Cause::as_str),
        }
    }

    /// Whether the message is done: it is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(
            self.0,
            Some(
                Verdict::Said(Outcome::Ack | Outcome::Reply(_))
                    | Verdict::Duplicate(_)
                    | Verdict::Checked
                    | Verdict::Letter(_)
            )
        )
    }

    /// Returns why the attempt failed; `None` if it did not.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.0.as_ref()?.cause()
    }
}

/// A handler with its layers.
pub(super) struct Layered {
    pub(super) layers: Vec<Arc<dyn Layer>>,
    pub(super) handler: Box<dyn Call>,
}

impl Handle for Layered {
    fn declines(&self) -> bool {
        self.handler.declines()
    }

    fn replies(&self) -> bool {
        self.handler.replies()
    }

    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        let Input { about, payload } = input;
        let next = Next { layers: &self.layers, handler: &*self.handler };
        // Inside there is no limit of its own: this one covers the layers too, and catches their panics, also of one that returns a
        // future and panics before.
        let answer = guarded(async { next.run(Delivery { payload, about }).await }, timeout).await;
        answer.unwrap_or_else(|failed| Answer(Some(failed))).0
    }
}
