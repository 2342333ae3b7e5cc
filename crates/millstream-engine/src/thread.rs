//! The control thread: renews leases and claims, and sends heartbeats.

use std::sync::OnceLock;
use std::{io, thread};

use millstream_core::Backend;
use millstream_core::error::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

/// Runtime on a dedicated thread, one for the whole process. A handler that blocks every thread of the caller's
/// runtime does not stop it.
///
/// For a backend in this process ([`Backend::is_in_process`]) it is the caller's runtime instead: such a backend uses the
/// clock of that runtime, which tests pause.
#[derive(Clone, Debug)]
pub struct ControlThread(Option<Handle>);

static THREAD: OnceLock<Option<Handle>> = OnceLock::new();

impl ControlThread {
    /// Returns the control thread for `backend`. The thread is started at the first call in the process.
    #[must_use]
    pub fn of(backend: &Backend) -> Self {
        if backend.is_in_process() {
            return Self(None);
        }
        let started = || match start() {
            Ok(handle) => Some(handle),
            Err(error) => {
                tracing::error!(%error, "no control thread: handlers that block may lose leases and claims");
                None
            }
        };
        Self(THREAD.get_or_init(started).clone())
    }

    /// Runs a future on it until the handle is dropped.
    pub fn spawn<F>(&self, future: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        AbortOnDropHandle::new(match &self.0 {
            Some(handle) => handle.spawn(future),
            None => tokio::spawn(future),
        })
    }

    /// Runs one call on it. All calls of a role then come from one runtime: a connection works on the runtime on
    /// which it was opened.
    ///
    /// # Errors
    /// Those of `call`; [`ErrorKind::Unconfirmed`] if it panicked or its runtime is gone.
    pub async fn call<T, F>(&self, call: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        if self.0.is_none() {
            return call.await;
        }
        let ended = self.spawn(call).await;
        ended.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unconfirmed, "the call ended abnormally").with_source(error))
        })
    }
}

fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let drive = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("millstream-control".into()).spawn(drive)?;
    Ok(handle)
}
