//! Thread for requests that must not be delayed by other work: leases and heartbeats.
//!
//! A task of the runtime that opened a connection serves it. Handlers that block the threads of the caller's runtime
//! would stop that task, and with it the renewals, whichever thread asks for them. Only requests of this crate run on
//! this thread, so nothing can block it.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::thread;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Runs requests on a thread of its own. The thread starts with the first request and ends when this value is dropped.
#[derive(Default)]
pub(crate) struct LeaseThread(Mutex<Option<Running>>);

struct Running {
    runtime: Handle,
    /// Ends the thread when dropped.
    _stop: oneshot::Sender<()>,
}

impl LeaseThread {
    /// Runs `request` on the thread and returns its result. The request continues if the caller's future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let running = self.runtime()?.spawn(request.boxed());
        running.await.unwrap_or_else(|error| {
            let why = format!("no answer came, the request may or may not have been done: {error}");
            Err(Error::new(ErrorKind::Unconfirmed, why))
        })
    }

    /// Starts a task on the thread. It is dropped where no thread can be started.
    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        if let Ok(runtime) = self.runtime() {
            runtime.spawn(task);
        }
    }

    fn runtime(&self) -> Result<Handle> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*running {
            return Ok(running.runtime.clone());
        }
        let started = start().map_err(|error| {
            let what = "no thread can be started for leases";
            Error::new(ErrorKind::Unavailable, format!("{what}: {error}")).with_source(error)
        })?;
        Ok(running.insert(started).runtime.clone())
    }
}

fn start() -> std::io::Result<Running> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    // Requests under way and connections end with the runtime. Nothing joins the thread: it never blocks.
    thread::Builder::new().name("millstream-leases".into()).spawn(move || {
        let _ = runtime.block_on(stopped);
    })?;
    Ok(Running { runtime: handle, _stop: stop })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_one_thread_and_not_the_callers_and_ends_with_its_owner() {
        let thread = LeaseThread::default();
        let name = || async { Ok(thread::current().name().map(str::to_owned)) };
        assert_eq!(thread.run(name()).await.expect("a name").as_deref(), Some("millstream-leases"));
        let id = || async { Ok(thread::current().id()) };
        assert_eq!(thread.run(id()).await.expect("an id"), thread.run(id()).await.expect("an id"));

        let (ended, end) = oneshot::channel::<()>();
        let forever = thread.runtime().expect("a runtime").spawn(async move {
            let _ended = ended;
            std::future::pending::<()>().await;
        });
        drop(thread);
        assert!(end.await.is_err(), "what it ran is dropped");
        assert!(forever.await.is_err());
    }

    #[tokio::test]
    async fn a_request_that_panics_is_an_error_and_the_next_one_works() {
        let thread = LeaseThread::default();
        let error = thread.run::<()>(async { panic!("boom") }).await.expect_err("a panic");
        assert_eq!(error.kind(), ErrorKind::Unconfirmed);
        thread.run(async { Ok(()) }).await.expect("the thread lives");
    }
}
