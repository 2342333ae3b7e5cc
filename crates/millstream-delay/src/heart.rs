//! Where claims are renewed, so that no handler can starve it.

use std::sync::OnceLock;
use std::{io, thread};

use millstream_core::Backend;
use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

static THREAD: OnceLock<Option<Handle>> = OnceLock::new();

/// Runs a loop until the handle is dropped: on a thread of its own, one for the whole process; or on the caller's
/// runtime, for a backend that lives in this process and by its clock.
pub(crate) fn spawn<F>(backend: &Backend, future: F) -> AbortOnDropHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let started = || match start() {
        Ok(handle) => Some(handle),
        Err(error) => {
            tracing::error!(%error, "no thread for renewals: handlers that block may cost claims");
            None
        }
    };
    let thread = if backend.local { None } else { THREAD.get_or_init(started).as_ref() };
    AbortOnDropHandle::new(match thread {
        Some(handle) => handle.spawn(future),
        None => tokio::spawn(future),
    })
}

fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let beat = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("millstream-claims".into()).spawn(beat)?;
    Ok(handle)
}
