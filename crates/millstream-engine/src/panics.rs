//! Panics in loops. [`millstream_core::panics`] catches those of user code, so these are panics of backends.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::panics::text_of;

/// Runs one round of a loop and returns its panic as an error, so that the loop backs off and continues.
///
/// # Errors
/// Those of `round`; [`ErrorKind::Protocol`] if it panicked.
pub async fn catch_panic<T>(round: impl Future<Output = Result<T>>) -> Result<T> {
    let caught = AssertUnwindSafe(round).catch_unwind().await;
    caught
        .unwrap_or_else(|panic| Err(Error::new(ErrorKind::Protocol, format!("panicked: {}", text_of(panic)))))
}
