//! What one caller does for all: starts a task of which one runs, or opens a connection that all use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, Result};
use tokio::runtime::Handle;

/// A task of which at most one runs.
///
/// A task that works for as long as its owner lives keeps a weak reference to it, and ends when that cannot be upgraded.
#[derive(Default)]
pub(crate) struct OneTask(Arc<AtomicBool>);

impl OneTask {
    /// Starts the task on the runtime of the caller, unless it runs. Without a runtime nothing is started: the next caller
    /// does it.
    pub(crate) fn start<F>(&self, task: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Usually it runs: this is called for every request.
        if self.0.load(Ordering::Acquire) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.0.swap(true, Ordering::AcqRel) {
            return;
        }
        begin(&runtime, RunningOnce(self.0.clone()), task().boxed());
    }
}

fn begin(runtime: &Handle, running: RunningOnce, task: BoxFuture<'static, ()>) {
    runtime.spawn(async move {
        let _running = running;
        task.await;
    });
}

/// Lets another task start when this one has ended, also if it was dropped with its runtime.
struct RunningOnce(Arc<AtomicBool>);

impl Drop for RunningOnce {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A connection that is opened on first use, and again when it is of no use any more.
pub(crate) struct Opened<T> {
    current: Mutex<Option<T>>,
    /// Held while one is opened; has the last failure and its time.
    opening: tokio::sync::Mutex<Option<(Instant, Error)>>,
}

/// A connection that may cease to be of use.
pub(crate) trait Usable {
    fn is_usable(&self) -> bool;
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Self { current: Mutex::new(None), opening: tokio::sync::Mutex::new(None) }
    }
}

impl<T: Usable + Clone> Opened<T> {
    fn current(&self) -> Option<T> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|current| current.is_usable()).cloned()
    }

    fn set(&self, current: Option<T>) {
        let before =
            std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), current);
        // Not under the lock: this may close a connection.
        drop(before);
    }

    /// Returns the connection. If it is of no use, one caller opens another one; the others wait, and use that one or return
    /// its error: each would try for itself otherwise, one after the other.
    pub(crate) async fn get<F>(&self, open: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let asked = Instant::now();
        let mut failed = self.opening.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        // An attempt that began before the call says nothing about now.
        if let Some((_, error)) = failed.as_ref().filter(|(when, _)| *when >= asked) {
            return Err(error.clone());
        }
        self.set(None);
        let opened = open().await;
        match &opened {
            Ok(current) => {
                self.set(Some(current.clone()));
                *failed = None;
            }
            Err(error) => *failed = Some((Instant::now(), error.clone())),
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use millstream_core::error::ErrorKind;
    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[test]
    fn one_task_runs_and_another_one_once_it_has_ended_or_its_runtime() {
        let task = OneTask::default();
        task.start(|| async { panic!("nothing runs it") });
        let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (first, second) = (runtime(), runtime());
        let begun = Arc::new(AtomicUsize::new(0));
        let start = |end: Arc<Notify>| {
            let begun = begun.clone();
            task.start(|| async move {
                begun.fetch_add(1, Ordering::SeqCst);
                end.notified().await;
            });
        };
        let end = Arc::new(Notify::new());
        first.block_on(async {
            start(end.clone());
            start(end.clone());
            tokio::task::yield_now().await;
            assert_eq!(begun.load(Ordering::SeqCst), 1, "one of them runs");
            end.notify_one();
            tokio::task::yield_now().await;
            start(end.clone());
            tokio::task::yield_now().await;
        });
        assert_eq!(begun.load(Ordering::SeqCst), 2, "the first one has ended");
        drop(first);
        second.block_on(async {
            start(end.clone());
            tokio::task::yield_now().await;
        });
        assert_eq!(begun.load(Ordering::SeqCst), 3, "the second one was dropped");
    }

    #[derive(Clone)]
    struct Line(Arc<AtomicBool>);

    impl Usable for Line {
        fn is_usable(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn one_caller_opens_and_the_others_get_the_same_or_its_error() {
        let (opened, attempts) = (Opened::default(), AtomicUsize::new(0));
        let (fails, failure) = oneshot::channel::<Error>();
        let refused = || async {
            attempts.fetch_add(1, Ordering::SeqCst);
            Err::<Line, _>(failure.await.expect("an error"))
        };
        let never = || async { panic!("another one opens") };
        let fail = async {
            tokio::task::yield_now().await;
            fails.send(Error::new(ErrorKind::Unavailable, "away")).expect("somebody opens");
        };
        let (one, other, ()) = tokio::join!(opened.get(refused), opened.get(never), fail);
        assert!(one.is_err() && other.is_err(), "the same failure");
        let good = || async {
            attempts.fetch_add(1, Ordering::SeqCst);
            Ok(Line(Arc::new(AtomicBool::new(true))))
        };
        let line = opened.get(good).await.expect("opened");
        let same = opened.get(good).await.expect("opened");
        assert!(Arc::ptr_eq(&line.0, &same.0) && attempts.load(Ordering::SeqCst) == 2);
        line.0.store(false, Ordering::SeqCst);
        assert!(opened.get(good).await.expect("opened again").is_usable());
        assert_eq!(attempts.load(Ordering::SeqCst), 3);
    }
}
