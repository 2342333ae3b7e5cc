//! The heart: where leases are renewed and members heard of, so that no handler can starve it.

use std::sync::OnceLock;
use std::{io, thread};

use millstream_core::Backend;
use millstream_core::error::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

/// A runtime on a thread of its own, one for the whole process; or the caller's runtime, for backends that live in
/// this process and by its clock. A handler that blocks every thread of the caller's runtime does not stop it.
#[derive(Clone, Debug)]
pub(super) struct Heart(Option<Handle>);

static THREAD: OnceLock<Option<Handle>> = OnceLock::new();

impl Heart {
    /// The heart for consumers of `backend`.
    pub(super) fn of(backend: &Backend) -> Self {
        if backend.local {
            return Self(None);
        }
        let started = || match start() {
            Ok(handle) => Some(handle),
            Err(error) => {
                tracing::error!(%error, "no thread for renewals: handlers that block may cost leases");
                None
            }
        };
        Self(THREAD.get_or_init(started).clone())
    }

    /// Runs a loop there until the handle is dropped.
    pub(super) fn spawn<F>(&self, future: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        AbortOnDropHandle::new(match &self.0 {
            Some(handle) => handle.spawn(future),
            None => tokio::spawn(future),
        })
    }

    /// Makes one call there, so that all calls of a role come from one runtime: a connection lives where it was
    /// opened.
    pub(super) async fn call<T, F>(&self, call: F) -> Result<T>
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
    let beat = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("millstream-heart".into()).spawn(beat)?;
    Ok(handle)
}
