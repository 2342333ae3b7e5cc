//! Tasks that run handlers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::panics::text_of;
use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

/// Maximum time for which a job counts as quick. Starting a task costs 1 to 2 µs; a job that takes longer than a few of them gains
/// more from a second thread than it loses by a task of its own.
const QUICK: Duration = Duration::from_micros(5);

/// Time after which jobs in the queue get tasks of their own, if the tasks that should have taken them did not. The
/// resolution of tokio's timers.
const STALLED: Duration = Duration::from_millis(1);

/// Runs futures on tasks, and returns their results in the order in which they end.
///
/// Like a [`JoinSet`], except that jobs which are done at their first poll share a task: a handler that only computes for a
/// microsecond costs less than the task that runs it. Each task takes jobs from one queue until it is empty.
///
/// - After a job that waited, or was not quick, each new job gets a task of its own, as with a `JoinSet`.
/// - After a quick job, one task is started for all that are queued. If a job then waits, or blocks its thread, each of
///   the others gets a task of its own: at once, or after 1 ms.
///
/// Dropping it aborts all jobs.
#[derive(Debug)]
pub struct Runners<R> {
    shared: Arc<SharedRunners<R>>,
    tasks: JoinSet<()>,
    /// Results that were taken over from the tasks.
    ended: VecDeque<Result<R, String>>,
    /// Number of jobs whose result was not returned yet.
    unfinished: usize,
    stall: Option<Stall>,
}

/// A time in which no job was taken from the queue.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Number of jobs that had been taken before.
    taken: u64,
    since: Instant,
    /// How long it may last.
    after: Duration,
}

/// What the tasks and their owner share. Nothing is awaited while it is locked.
#[derive(Debug)]
struct SharedRunners<R>(Mutex<RunnersState<R>>);

struct RunnersState<R> {
    queue: VecDeque<BoxFuture<'static, R>>,
    ended: Vec<Result<R, String>>,
    /// The waker of the owner, while it waits.
    waker: Option<Waker>,
    /// Number of tasks that take a job from the queue next.
    idle: usize,
    /// Number of tasks that run a job, unless it waits, or is known to block.
    running: usize,
    /// Number of times that all running jobs were found to block. A job that began before the last one is not counted in
    /// `running`.
    blocked: u64,
    /// Number of jobs that were taken from the queue.
    taken: u64,
    /// Whether the last job was quick.
    quick: bool,
    /// Whether a job waits while others are queued behind it.
    needed: bool,
}

impl<R> std::fmt::Debug for RunnersState<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (queued, ended) = (self.queue.len(), self.ended.len());
        f.debug_struct("RunnersState").field("queued", &queued).field("ended", &ended).finish_non_exhaustive()
    }
}

impl<R: Send + 'static> Default for Runners<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Send + 'static> Runners<R> {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        let state = RunnersState {
            queue: VecDeque::new(),
            ended: Vec::new(),
            waker: None,
            idle: 0,
            running: 0,
            blocked: 0,
            taken: 0,
            quick: false,
            needed: false,
        };
        Self {
            shared: Arc::new(SharedRunners(Mutex::new(state))),
            tasks: JoinSet::new(),
            ended: VecDeque::new(),
            unfinished: 0,
            stall: None,
        }
    }

    /// Returns the number of jobs whose result was not returned yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.unfinished
    }

    /// Whether there is no job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unfinished == 0
    }

    /// Runs a job. Must be called in a tokio runtime.
    pub fn spawn(&mut self, job: impl Future<Output = R> + Send + 'static) {
        self.unfinished += 1;
        let start = {
            let mut state = self.shared.lock();
            state.queue.push_back(Box::pin(job));
            // A quick job makes room soon.
            if state.quick { state.idle + state.running == 0 } else { state.queue.len() > state.idle }
        };
        if start {
            self.start(1);
        }
    }

    /// Returns the result of a job that has ended, if there is one. `Err` has the text of a panic.
    pub fn try_next(&mut self) -> Option<Result<R, String>> {
        if self.ended.is_empty() {
            self.ended.extend(self.shared.lock().ended.drain(..));
        }
        let ended = self.ended.pop_front()?;
        self.unfinished -= 1;
        Some(ended)
    }

    /// Aborts all jobs, and waits until none of them runs any more. One that blocks its thread is waited for.
    pub async fn shutdown(&mut self) {
        self.shared.lock().queue.clear();
        self.tasks.shutdown().await;
        *self = Self::new();
    }

    /// Waits for the next job that ends. `None` if there is no job. `Err` has the text of a panic.
    ///
    /// Cancel safe. Jobs that are queued behind one that waits or blocks are started while this is awaited.
    pub async fn next(&mut self) -> Option<Result<R, String>> {
        loop {
            if let Some(ended) = self.try_next() {
                return Some(ended);
            }
            if self.is_empty() {
                return None;
            }
            let shared = self.shared.clone();
            let changed = poll_fn(|cx| shared.poll_changed(cx));
            match self.stalled() {
                None => changed.await,
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Starts tasks for queued jobs that no task takes. Returns when to check this again, if jobs are queued.
    fn stalled(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let (start, at) = {
            let mut state = self.shared.lock();
            if state.queue.is_empty() {
                self.stall = None;
                // The jobs behind the one that waited were taken meanwhile. Left set, it would keep the owner awake.
                state.needed = false;
                return None;
            }
            let begun = Stall { taken: state.taken, since: now, after: STALLED };
            let mut stall = self.stall.filter(|stall| stall.taken == state.taken).unwrap_or(begun);
            let mut start = 0;
            if now.duration_since(stall.since) >= stall.after {
                // The running jobs block, or this machine has no time for us. The idle tasks are not counted: they may be in
                // the queue of a thread that is blocked. Those that are too many end at once, and the longer it takes,
                // the fewer there are.
                stall = Stall { since: now, after: stall.after * 2, ..stall };
                state.blocked += 1;
                (state.running, state.quick) = (0, false);
                start = state.queue.len();
            } else if std::mem::take(&mut state.needed) {
                start = state.queue.len().saturating_sub(state.idle);
            }
            self.stall = Some(stall);
            (start, Some(stall.since + stall.after))
        };
        self.start(start);
        at
    }

    fn start(&mut self, tasks: usize) {
        if tasks == 0 {
            return;
        }
        self.shared.lock().idle += tasks;
        while self.tasks.try_join_next().is_some() {}
        for _ in 0..tasks {
            self.tasks.spawn(run(self.shared.clone()));
        }
    }
}

/// Runs jobs until the queue is empty.
async fn run<R: Send + 'static>(shared: Arc<SharedRunners<R>>) {
    while let Some((job, round)) = shared.take() {
        let (begun, mut waited) = (Instant::now(), false);
        let mut job = pin!(AssertUnwindSafe(job).catch_unwind());
        let result = poll_fn(|cx| {
            let polled = job.as_mut().poll(cx);
            if polled.is_pending() && !std::mem::replace(&mut waited, true) {
                shared.waits(round);
            }
            polled
        })
        .await;
        let quick = !waited && begun.elapsed() <= QUICK;
        shared.ended(result.map_err(text_of), (!waited).then_some(round), quick);
        // Lets other tasks of this thread run.
        consume_budget().await;
    }
}

impl<R> SharedRunners<R> {
    fn lock(&self) -> MutexGuard<'_, RunnersState<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job out of the queue, with the value of `blocked`. If there is none, the calling task ends.
    fn take(&self) -> Option<(BoxFuture<'static, R>, u64)> {
        let mut state = self.lock();
        state.idle -= 1;
        let job = state.queue.pop_front()?;
        state.taken += 1;
        state.running += 1;
        Some((job, state.blocked))
    }

    /// Records that a job waits: its task takes no other job meanwhile.
    fn waits(&self, round: u64) {
        let mut state = self.lock();
        state.no_longer_runs(round);
        state.quick = false;
        if state.queue.len() > state.idle {
            state.needed = true;
            state.wake();
        }
    }

    /// Records the result of a job. Its task takes the next one. `round` is set if the job never waited.
    fn ended(&self, result: Result<R, String>, round: Option<u64>, quick: bool) {
        let mut state = self.lock();
        if let Some(round) = round {
            state.no_longer_runs(round);
        }
        state.idle += 1;
        state.quick = quick;
        state.ended.push(result);
        state.wake();
    }

    fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.needed || !state.ended.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<R> RunnersState<R> {
    fn no_longer_runs(&mut self, round: u64) {
        if round == self.blocked {
            self.running -= 1;
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use tokio::sync::{Notify, oneshot};

    use super::*;

    const HANG: Duration = Duration::from_secs(60);

    async fn next<R: Send + 'static>(runners: &mut Runners<R>) -> Option<Result<R, String>> {
        tokio::time::timeout(HANG, runners.next()).await.expect("no result")
    }

    async fn quick_first<R: Copy + Send + 'static>(runners: &mut Runners<R>, result: R) {
        while !runners.shared.lock().quick {
            runners.spawn(async move { result });
            assert!(next(runners).await.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_job_has_one_result() {
        let mut runners = Runners::new();
        assert_eq!(next(&mut runners).await, None);
        for n in 0..1_000_u64 {
            runners.spawn(async move {
                if n % 3 == 0 {
                    tokio::time::sleep(Duration::from_millis(n)).await;
                }
                assert!(n != 500, "the 500th");
                n
            });
        }
        assert_eq!(runners.len(), 1_000);
        let (mut sum, mut panics) = (0, Vec::new());
        while let Some(ended) = next(&mut runners).await {
            match ended {
                Ok(n) => sum += n,
                Err(panic) => panics.push(panic),
            }
        }
        assert_eq!((sum, runners.is_empty()), (499 * 1_000 + 500 - 500, true));
        assert_eq!(panics, ["the 500th"]);
    }

    #[tokio::test(start_paused = true)]
    async fn quick_jobs_share_a_task() {
        let mut runners = Runners::new();
        let here = tokio::spawn(async { tokio::task::id() }).await.expect("a task");
        quick_first(&mut runners, here).await;
        for _ in 0..64 {
            runners.spawn(async { tokio::task::id() });
        }
        let mut tasks = std::collections::HashSet::new();
        while let Some(ended) = next(&mut runners).await {
            tasks.insert(ended.expect("a result"));
        }
        assert_eq!(tasks.len(), 1, "{tasks:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_waits_holds_up_none_behind_it() {
        let mut runners = Runners::new();
        quick_first(&mut runners, 0).await;
        let opened = Arc::new(Notify::new());
        for n in 1..=64 {
            let opened = opened.clone();
            runners.spawn(async move {
                if n < 64 {
                    opened.notified().await;
                }
                n
            });
        }
        assert_eq!(next(&mut runners).await, Some(Ok(64)));
        opened.notify_waiters();
        for _ in 1..64 {
            assert!(next(&mut runners).await.is_some());
        }
        assert_eq!(next(&mut runners).await, None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn jobs_that_block_their_threads_hold_up_none_behind_them() {
        let mut runners = Runners::new();
        for round in 0..20 {
            quick_first(&mut runners, 0).await;
            // Two block their threads until a job behind them is done, on the two threads that are left.
            let mut blocked = Vec::new();
            for n in 1..=2 {
                let (go, waits) = mpsc::channel::<()>();
                blocked.push(go);
                runners.spawn(async move {
                    waits.recv_timeout(HANG).expect("released");
                    n
                });
            }
            for n in 3..=10 {
                runners.spawn(async move { n });
            }
            for _ in 3..=10 {
                let ended = next(&mut runners).await.expect("a job").expect("a result");
                assert!(ended > 2, "round {round}: {ended}");
            }
            // Jobs that are new meanwhile do not wait, either.
            runners.spawn(async { 11 });
            assert_eq!(next(&mut runners).await, Some(Ok(11)));
            for go in blocked {
                go.send(()).expect("blocked");
            }
            while next(&mut runners).await.is_some() {}
        }
    }

    /// A job that waited ends, and its task takes the job that was queued behind it, before the owner looks: then nothing is
    /// queued any more, and the owner has to wait like anyone else.
    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_over_does_not_keep_the_owner_awake() {
        let mut runners = Runners::new();
        quick_first(&mut runners, 0).await;
        let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for (n, opened) in [(1, &first), (2, &second)] {
            let opened = opened.clone();
            runners.spawn(async move {
                opened.notified().await;
                n
            });
        }
        // The owner does something else meanwhile.
        while !runners.shared.lock().needed {
            tokio::task::yield_now().await;
        }
        first.notify_one();
        while !runners.shared.lock().queue.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(next(&mut runners).await, Some(Ok(1)));
        let mut polls = 0;
        let mut waits = pin!(runners.next());
        let ended = poll_fn(|cx| {
            polls += 1;
            if polls == 2 {
                second.notify_one();
            }
            match waits.as_mut().poll(cx) {
                Poll::Pending if polls == 1 => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                other => other,
            }
        });
        assert_eq!(tokio::time::timeout(HANG, ended).await.expect("a result"), Some(Ok(2)));
        assert!(polls < 10, "{polls}");
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_it_aborts_the_jobs() {
        let mut runners = Runners::new();
        let (alive, mut ended) = oneshot::channel::<()>();
        runners.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        assert!(ended.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Empty));
        drop(runners);
        tokio::time::timeout(HANG, ended).await.expect("dropped").expect_err("aborted");
    }

    #[tokio::test]
    async fn after_a_shutdown_no_job_runs() {
        struct Slow(Arc<AtomicBool>);
        impl Drop for Slow {
            fn drop(&mut self) {
                std::thread::sleep(Duration::from_millis(20));
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let mut runners = Runners::new();
        let dropped = Arc::new(AtomicBool::new(false));
        let slow = Slow(dropped.clone());
        runners.spawn(async move {
            let _slow = slow;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        runners.shutdown().await;
        assert!(dropped.load(Ordering::SeqCst) && runners.is_empty());
        runners.spawn(async {});
        assert_eq!(runners.next().await, Some(Ok(())), "it can be used again");
    }
}
