//! Errors of idempotent calls.

use std::time::Duration;

use millstream_core::Error;

/// Error of an idempotent call. `E` is the error of the work itself.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// The work was not begun: the settings are wrong, or the backend failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// Another call runs the work of this key. Web services answer this with the status 409.
    #[error("{holder} runs the work of this key; its marker expires in {expires_in:?} unless it is extended")]
    Running {
        /// Name of the process that runs it: `pid-` and its number.
        holder: String,
        /// Time until its marker expires, unless it is extended or ended before.
        expires_in: Duration,
    },
    /// The work of this key is done, and its result cannot be read: it is of another type, or was not kept. The kind is
    /// [`Decode`](millstream_core::ErrorKind::Decode). A repetition will not help.
    #[error("{0}")]
    Unreadable(Error),
    /// The work failed with this error. The next call with the key runs it again.
    #[error("{0}")]
    Work(E),
}
