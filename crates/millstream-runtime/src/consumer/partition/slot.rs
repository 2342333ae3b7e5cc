//! A place for one request that is under way.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::BoxFuture;

/// At most one request that is under way. It is polled only while somebody waits for its [end](Self::ended), and dropped
/// with the slot.
pub(in crate::consumer) struct Slot<T>(Option<BoxFuture<'static, T>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Slot<T> {
    /// Whether no request is under way.
    pub(in crate::consumer) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Puts a request into the empty slot.
    pub(in crate::consumer) fn start(&mut self, request: BoxFuture<'static, T>) {
        debug_assert!(self.is_empty(), "one request at a time");
        self.0 = Some(request);
    }

    /// Drops the request.
    pub(in crate::consumer) fn clear(&mut self) {
        self.0 = None;
    }

    /// Waits until the request has ended. Waits for ever if there is none. Cancel safe.
    pub(in crate::consumer) async fn ended(&mut self) -> T {
        poll_fn(|cx| {
            let Some(request) = &mut self.0 else { return Poll::Pending };
            let ended = request.as_mut().poll(cx);
            if ended.is_ready() {
                self.0 = None;
            }
            ended
        })
        .await
    }
}
