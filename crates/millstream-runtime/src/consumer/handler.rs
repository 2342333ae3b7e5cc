//! Handlers, with the payload type taken off.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::event::Cause;
use millstream_core::panics::{decode, text_of};
use millstream_core::wire::Malformed;
use millstream_core::{BoxError, Codec, IntoOutcome, Outcome};

use crate::consumer::batch::BatchConfig;
use crate::delivery::{Delivery, DeliveryMetadata};

/// What came of a message, before policies have judged it.
#[derive(Debug)]
pub(in crate::consumer) enum Verdict {
    /// The handler said this.
    Said(Outcome),
    /// The handler panicked with this message.
    Panicked(String),
    /// The handler took longer than this.
    TimedOut(Duration),
    /// The codec could not read the payload.
    Undecodable(BoxError),
    /// The entry is not a message.
    Malformed(Malformed),
    /// So many processes ended over it.
    Crashed(u32),
}

impl Verdict {
    /// What it failed with, if it did.
    pub(in crate::consumer) fn cause(&self) -> Option<Cause> {
        match self {
            Self::Said(Outcome::Ack | Outcome::Snooze(_)) => None,
            Self::Said(Outcome::Retry(_) | Outcome::RetryAfter(..) | Outcome::RetryAt(..)) => {
                Some(Cause::Error)
            }
            Self::Said(_) => Some(Cause::Rejected),
            Self::Panicked(_) => Some(Cause::Panic),
            Self::TimedOut(_) => Some(Cause::Timeout),
            Self::Undecodable(_) => Some(Cause::Undecodable),
            Self::Malformed(_) => Some(Cause::Malformed),
            Self::Crashed(_) => Some(Cause::Crashed),
        }
    }
}

/// A verdict on one message, or one on all of a batch.
#[derive(Debug)]
pub(in crate::consumer) enum Said {
    Own(Verdict),
    Shared(Arc<Verdict>),
}

impl Said {
    pub(in crate::consumer) fn verdict(&self) -> &Verdict {
        match self {
            Self::Own(verdict) => verdict,
            Self::Shared(verdict) => verdict,
        }
    }
}

/// A message for a handler.
pub(in crate::consumer) struct Input {
    pub(in crate::consumer) about: DeliveryMetadata,
    pub(in crate::consumer) payload: Bytes,
}

/// Handles one message, for as long as the timeout allows. `None`: it was not handled, and stays pending.
pub(in crate::consumer) trait Handle: Send + Sync + 'static {
    fn handle(&self, input: Input, timeout: Option<Duration>)
    -> impl Future<Output = Option<Verdict>> + Send;
}

/// Messages that are handled one after the other.
pub(in crate::consumer) trait Row: Send {
    /// The next one that is to be handled right now.
    fn next(&mut self) -> Option<Input>;

    /// The handler did not end at once: nothing that is done may wait for it.
    fn waits(&mut self);

    /// What came of it.
    fn said(&mut self, said: Option<Verdict>);
}

/// A [`Handle`] of any type.
pub(in crate::consumer) trait Call: Send + Sync {
    fn one(&self, input: Input, timeout: Option<Duration>) -> BoxFuture<'static, Option<Verdict>>;

    /// Handles all of a row: in here the handler's type is known, so that a message needs no box of its own.
    fn all<'a>(&'a self, row: &'a mut dyn Row, timeout: Option<Duration>) -> BoxFuture<'a, ()>;
}

impl<H: Handle> Call for Arc<H> {
    fn one(&self, input: Input, timeout: Option<Duration>) -> BoxFuture<'static, Option<Verdict>> {
        let handler = self.clone();
        Box::pin(async move { handler.handle(input, timeout).await })
    }

    fn all<'a>(&'a self, row: &'a mut dyn Row, timeout: Option<Duration>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            while let Some(input) = row.next() {
                let said = noticing(self.handle(input, timeout), || row.waits()).await;
                row.said(said);
            }
        })
    }
}

/// Waits for something, and calls if that is not ready at once.
pub(in crate::consumer) async fn noticing<F: Future>(future: F, waits: impl FnOnce()) -> F::Output {
    let (mut future, mut waits) = (pin!(future), Some(waits));
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending()
            && let Some(waits) = waits.take()
        {
            waits();
        }
        polled
    })
    .await
}

/// Handles several. One verdict for each.
pub(in crate::consumer) type BatchCall =
    dyn Fn(Vec<Input>, Option<Duration>) -> BoxFuture<'static, Vec<Said>> + Send + Sync;

/// A handler of any payload type.
pub(in crate::consumer) enum Handler {
    Each(Box<dyn Call>),
    Batch(BatchConfig, Box<BatchCall>),
}

/// Takes the payload type off: decodes, calls, and catches panics of both.
pub(in crate::consumer) fn erase<T, F, Fut>(codec: &'static dyn Codec<T>, handler: F) -> Handler
where
    T: Send + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    Handler::Each(Box::new(Arc::new(Typed { codec, handler })))
}

/// The user's function, and what it needs read.
struct Typed<T: 'static, F> {
    codec: &'static dyn Codec<T>,
    handler: F,
}

impl<T, F, Fut> Handle for Typed<T, F>
where
    T: Send + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    fn handle(
        &self,
        Input { about, payload }: Input,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Option<Verdict>> + Send {
        // Outside of a future, which would be moved about with all that is in it.
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let value = decode(self.codec, &payload).map_err(Verdict::Undecodable)?;
            drop(payload);
            Ok((self.handler)(Delivery { payload: value, about }))
        }));
        let begun = begun.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(panic))));
        async move {
            let handler = match begun {
                Ok(handler) => handler,
                Err(verdict) => return Some(verdict),
            };
            let said = guarded(async { Verdict::Said(handler.await.into_outcome()) }, timeout).await;
            Some(said.unwrap_or_else(|failed| failed))
        }
    }
}

/// Runs a handler, catches its panic, and gives it up (drops it) when the time is over.
///
/// A handler that panicked is not used further for this message; what it shares with other calls is its author's
/// care, as with threads.
pub(in crate::consumer) async fn guarded<R>(
    handler: impl Future<Output = R>,
    timeout: Option<Duration>,
) -> Result<R, Verdict> {
    // The handler is dropped inside of what is guarded: that may panic, too.
    let caught = match timeout {
        None => AssertUnwindSafe(async { Ok(handler.await) }).catch_unwind().await,
        Some(after) => {
            let handle = tokio::time::timeout(after, handler);
            let handle = async { handle.await.map_err(|_| Verdict::TimedOut(after)) };
            // A timer is large, and those who have none do not carry it about.
            AssertUnwindSafe(Box::pin(handle)).catch_unwind().await
        }
    };
    caught.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(panic))))
}
