//! Handlers, with the payload type taken off.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::wire::Malformed;
use millstream_core::{BoxError, Codec, IntoOutcome, Outcome};

use crate::delivery::{About, Delivery};

/// What came of a message, before policies have judged it.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The handler said this.
    Said(Outcome),
    /// The handler panicked with this message.
    Panicked(String),
    /// The codec could not read the payload.
    Undecodable(BoxError),
    /// The entry is not a message.
    Malformed(Malformed),
}

/// A handler of any payload type.
pub(super) type Handler = Arc<dyn Fn(About, Bytes) -> BoxFuture<'static, Verdict> + Send + Sync>;

/// Takes the payload type off: decodes, calls, and catches panics of both.
pub(super) fn erase<T, F, Fut>(codec: &'static dyn Codec<T>, handler: F) -> Handler
where
    T: Send + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    let handler = Arc::new(handler);
    Arc::new(move |about, payload| {
        let handler = handler.clone();
        let handle = async move {
            match codec.decode(&payload) {
                Ok(value) => {
                    drop(payload);
                    Verdict::Said(handler(Delivery { value, about }).await.into_outcome())
                }
                Err(error) => Verdict::Undecodable(error),
            }
        };
        // A handler that panicked is not used further for this message; what it shares with other calls is its
        // author's care, as with threads.
        Box::pin(AssertUnwindSafe(handle).catch_unwind().map(|verdict| match verdict {
            Ok(verdict) => verdict,
            Err(panic) => Verdict::Panicked(text_of(&*panic)),
        }))
    })
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
