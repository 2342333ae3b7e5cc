//! Panics in loops. Those of user code are caught by [`millstream_core::panics`]: what is left is a backend's.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::panics::text_of;

/// One round of a loop: a panic is an error of it, which is told and tried again as any other.
pub(crate) async fn caught<T>(round: impl Future<Output = Result<T>>) -> Result<T> {
    let caught = AssertUnwindSafe(round).catch_unwind().await;
    caught
        .unwrap_or_else(|panic| Err(Error::new(ErrorKind::Protocol, format!("panicked: {}", text_of(panic)))))
}
