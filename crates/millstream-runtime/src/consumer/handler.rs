//! Handlers, with the payload type taken off.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::wire::Malformed;
use millstream_core::{BoxError, Codec, IntoOutcome, Outcome};

use super::batch::BatchConfig;
use crate::delivery::{About, Delivery};

/// What came of a message, before policies have judged it.
#[derive(Debug)]
pub(super) enum Verdict {
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

/// A verdict on one message, or one on all of a batch.
#[derive(Debug)]
pub(super) enum Said {
    Own(Verdict),
    Shared(Arc<Verdict>),
}

impl Said {
    pub(super) fn verdict(&self) -> &Verdict {
        match self {
            Self::Own(verdict) => verdict,
            Self::Shared(verdict) => verdict,
        }
    }
}

/// A message for a handler.
pub(super) struct Input {
    pub(super) about: About,
    pub(super) payload: Bytes,
}

/// Handles one message, for as long as the timeout allows. `None`: it was not handled, and stays pending.
pub(super) type Call = dyn Fn(Input, Option<Duration>) -> BoxFuture<'static, Option<Verdict>> + Send + Sync;

/// Handles several. One verdict for each.
pub(super) type BatchCall =
    dyn Fn(Vec<Input>, Option<Duration>) -> BoxFuture<'static, Vec<Said>> + Send + Sync;

/// A handler of any payload type.
pub(super) enum Handler {
    Each(Box<Call>),
    Batch(BatchConfig, Box<BatchCall>),
}

/// Takes the payload type off: decodes, calls, and catches panics of both.
pub(super) fn erase<T, F, Fut>(codec: &'static dyn Codec<T>, handler: F) -> Handler
where
    T: Send + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    let handler = Arc::new(handler);
    Handler::Each(Box::new(move |Input { about, payload }, timeout| {
        let handler = handler.clone();
        let handle = async move {
            match codec.decode(&payload) {
                Ok(value) => {
                    drop(payload);
                    Verdict::Said(handler(Delivery { payload: value, about }).await.into_outcome())
                }
                Err(error) => Verdict::Undecodable(error),
            }
        };
        Box::pin(guarded(handle, timeout).map(|said| Some(said.unwrap_or_else(|failed| failed))))
    }))
}

/// Runs a handler, catches its panic, and gives it up (drops it) when the time is over.
///
/// A handler that panicked is not used further for this message; what it shares with other calls is its author's
/// care, as with threads.
pub(super) async fn guarded<R>(
    handler: impl Future<Output = R>,
    timeout: Option<Duration>,
) -> Result<R, Verdict> {
    // The handler is dropped inside of what is guarded: that may panic, too.
    let handle = async move {
        match timeout {
            None => Ok(handler.await),
            Some(after) => tokio::time::timeout(after, handler).await.map_err(|_| Verdict::TimedOut(after)),
        }
    };
    let caught = AssertUnwindSafe(handle).catch_unwind().await;
    caught.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(&*panic))))
}

pub(super) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
