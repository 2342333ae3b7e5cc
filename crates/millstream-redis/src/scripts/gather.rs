//! Requests of many users that come at about the same time, answered by one request to the server.
//!
//! A process with a thousand topics sends as many heartbeats and renewals three times in a ttl. Alone, each costs the server and
//! this process several times what it asks for: the call, the message, and the wake-ups of three tasks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::keys::Key;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::sleep;

/// A heartbeat as the script `heartbeat` has it.
pub(crate) struct Beat {
    pub(crate) keys: [Key; 6],
    pub(crate) args: [String; 7],
}

/// How long the first request waits for others: those that a grid of times makes due together come within a millisecond.
const WAIT: Duration = Duration::from_millis(1);

type Waiting<Q, A> = Arc<Mutex<Vec<Asked<Q, A>>>>;

/// Requests that wait for others, and for how long.
pub(crate) struct Gather<Q, A>(Waiting<Q, A>, Duration);

struct Asked<Q, A> {
    request: Q,
    answer: oneshot::Sender<A>,
}

impl<Q, A> Default for Gather<Q, A> {
    fn default() -> Self {
        Self(Arc::default(), WAIT)
    }
}

impl<Q, A> Gather<Q, A> {
    /// Creates one whose requests wait only until all tasks that are ready have run.
    pub(crate) fn of_this_moment() -> Self {
        Self(Arc::default(), Duration::ZERO)
    }
}

impl<Q: Send + 'static, A: Send + 'static> Gather<Q, A> {
    /// Has `send` answer this request together with those that come about now. The first of them brings `spawn`, which starts a
    /// task on a runtime that nothing stops, and `send`, which returns an answer to each; all of them do the same. Returns `None` if
    /// `send` panicked, or the runtime ended.
    ///
    /// A request whose user has gone before is not sent.
    pub(crate) async fn ask(
        &self,
        request: Q,
        spawn: impl FnOnce(BoxFuture<'static, ()>),
        send: impl FnOnce(Vec<Q>) -> BoxFuture<'static, Vec<A>> + Send + 'static,
    ) -> Option<A> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut asked = lock(&self.0);
            asked.push(Asked { request, answer });
            asked.len() == 1
        };
        if is_first {
            let turn = Turn(Some(self.0.clone()));
            let wait = self.1;
            spawn(Box::pin(async move {
                match wait {
                    Duration::ZERO => yield_now().await,
                    wait => sleep(wait).await,
                }
                let asked = turn.take().into_iter().filter(|asked| !asked.answer.is_closed());
                let (requests, answers): (Vec<_>, Vec<_>) =
                    asked.map(|asked| (asked.request, asked.answer)).unzip();
                if requests.is_empty() {
                    return;
                }
                for (to, answer) in answers.into_iter().zip(send(requests).await) {
                    // The user may have stopped waiting.
                    let _ = to.send(answer);
                }
            }));
        }
        answered.await.ok()
    }
}

/// The task that sends. Where it ends before it has taken what waits, that has no answer, and the next request begins anew.
struct Turn<Q, A>(Option<Waiting<Q, A>>);

impl<Q, A> Turn<Q, A> {
    fn take(mut self) -> Vec<Asked<Q, A>> {
        self.taken()
    }

    fn taken(&mut self) -> Vec<Asked<Q, A>> {
        // Only once: what comes afterwards belongs to the next task.
        self.0.take().map(|waiting| std::mem::take(&mut *lock(&waiting))).unwrap_or_default()
    }
}

impl<Q, A> Drop for Turn<Q, A> {
    fn drop(&mut self) {
        self.taken();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    fn spawn(task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn same(all: Vec<u64>) -> BoxFuture<'static, Vec<u64>> {
        async move { all }.boxed()
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_once_is_one_request_and_each_has_its_own_answer() {
        let (gather, sent) = (Arc::new(Gather::<u64, u64>::default()), Arc::new(AtomicUsize::new(0)));
        let ask = |number: u64| {
            let (gather, sent) = (gather.clone(), sent.clone());
            tokio::spawn(async move {
                let send = move |all: Vec<u64>| {
                    sent.fetch_add(1, Ordering::Relaxed);
                    async move { all.into_iter().map(|number| number * 10).collect() }.boxed()
                };
                gather.ask(number, spawn, send).await
            })
        };
        for _ in 0..2 {
            let answers = join_all((0..100).map(ask)).await;
            let answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("no panic")).collect();
            assert_eq!(answers, (0..100).map(|number| Some(number * 10)).collect::<Vec<_>>());
        }
        assert_eq!(sent.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_one_is_answered_though_the_one_before_ends_meanwhile() {
        let (gather, server) = (Arc::new(Gather::<u64, u64>::default()), Arc::new(Notify::new()));
        let slow = |number: u64| {
            let (gather, server) = (gather.clone(), server.clone());
            tokio::spawn(async move {
                let send = move |all: Vec<u64>| {
                    async move {
                        server.notified().await;
                        all
                    }
                    .boxed()
                };
                gather.ask(number, spawn, send).await
            })
        };
        let first = slow(1);
        sleep(WAIT * 10).await;
        let mut second = std::pin::pin!(gather.ask(2, spawn, same));
        assert!(second.as_mut().now_or_never().is_none(), "it waits for others");
        server.notify_one();
        assert_eq!(first.await.expect("no panic"), Some(1));
        assert_eq!(second.await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_dropped_is_not_sent_and_costs_the_others_nothing() {
        let gather = Gather::<u64, u64>::default();
        let first = gather.ask(1, spawn, |all| {
            assert_eq!(all, [2], "only what somebody waits for");
            same(all)
        });
        // Polled once, so that it is the one that sends.
        assert!(first.now_or_never().is_none());
        assert_eq!(gather.ask(2, spawn, same).await, Some(2));
        let broken = |_: Vec<u64>| async { panic!("boom") }.boxed();
        assert_eq!(gather.ask(3, spawn, broken).await, None);
        assert_eq!(gather.ask(4, spawn, same).await, Some(4));
        // Nothing can be started.
        assert_eq!(gather.ask(5, drop, same).await, None);
        assert_eq!(gather.ask(6, spawn, same).await, Some(6));
    }
}
