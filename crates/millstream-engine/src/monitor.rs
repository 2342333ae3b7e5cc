//! Loop monitors: error handling of every loop, and the current state of all loops.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::error::Error;
use millstream_core::event::{Event, Observer};
use millstream_core::health::{LoopFailure, LoopHealth, LoopsCheck};
use millstream_core::policy::Exponential;
use millstream_core::{GroupName, LockName, Place, Shard, TopicName, TopicPartition};
use tokio::time::Instant;

/// Time that a round may take beyond its planned time before the loop counts as stalled. No request, and no work
/// between two requests, takes this long, whatever the server does: requests have deadlines of seconds.
const STALLED: Duration = Duration::from_secs(60);

/// Subject of a loop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A whole topic.
    Topic(TopicName),
    /// One partition of a topic.
    Partition(TopicPartition),
    /// A whole delay queue.
    Queue,
    /// One shard of a delay queue.
    Shard(Shard),
    /// A lock.
    Lock(LockName),
}

impl Scope {
    fn partition(&self) -> Option<&TopicPartition> {
        match self {
            Self::Partition(topic_partition) => Some(topic_partition),
            _ => None,
        }
    }

    /// Returns the shard, if this is one.
    #[must_use]
    pub const fn shard(&self) -> Option<&Shard> {
        match self {
            Self::Shard(shard) => Some(shard),
            _ => None,
        }
    }
}

impl From<Place> for Scope {
    fn from(place: Place) -> Self {
        match place {
            Place::Partition(topic_partition) => Self::Partition(topic_partition),
            Place::Shard(shard) => Self::Shard(shard),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => topic.fmt(f),
            Self::Partition(topic_partition) => topic_partition.fmt(f),
            Self::Queue => f.write_str("all shards"),
            Self::Shard(shard) => shard.fmt(f),
            Self::Lock(lock) => lock.fmt(f),
        }
    }
}

/// The loops of one consumer, producer, worker or promoter. A clone is another handle to the same loops.
#[derive(Clone, Debug, Default)]
pub struct Loops(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    started: u64,
    states: BTreeMap<u64, Arc<Mutex<MonitorState>>>,
    /// Loops that ended while they failed, as that of a partition whose lease was lost. The next loop of the same operation and
    /// subject reports the recovery.
    ended_failing: BTreeSet<(&'static str, Scope)>,
}

#[derive(Debug)]
struct MonitorState {
    operation: &'static str,
    scope: Scope,
    /// Failed rounds in a row.
    failures: u32,
    failing: Option<(Instant, String)>,
    last: Instant,
    due: Option<Instant>,
}

/// State of one loop at the time of the call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoopState {
    /// Operation of the loop, as in [`LoopHealth::operation`].
    pub operation: &'static str,
    /// Subject that it works on.
    pub scope: Scope,
    /// Time of the first failure in a row, and the last error.
    pub failing: Option<(Instant, String)>,
    /// End of its last round, whether it succeeded or failed.
    pub last: Instant,
    /// Whether its round has taken a minute longer than planned.
    pub stalled: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loops {
    /// Registers a loop. It is listed until its monitor is dropped.
    #[must_use]
    pub fn monitor(&self, operation: &'static str, scope: Scope) -> LoopMonitor {
        let mut running = lock(&self.0);
        let before = (operation, scope);
        let failures = u32::from(running.ended_failing.remove(&before));
        let (operation, scope) = before;
        let state =
            MonitorState { operation, scope, failures, failing: None, last: Instant::now(), due: None };
        let state = Arc::new(Mutex::new(state));
        let id = running.started;
        running.started += 1;
        running.states.insert(id, state.clone());
        drop(running);
        LoopMonitor { id, state, loops: self.clone() }
    }

    /// Returns the state of each loop, in the order in which the loops began.
    #[must_use]
    pub fn states(&self) -> Vec<LoopState> {
        let states: Vec<_> = lock(&self.0).states.values().cloned().collect();
        states.iter().map(|state| lock(state).snapshot()).collect()
    }

    /// Emits [`Event::LoopsStarted`], through which the observer can query their health. Consumers do not emit it:
    /// their health contains their loops.
    pub fn announce(&self, group: Option<&GroupName>, observer: &dyn Observer) {
        let loops: Arc<dyn LoopsCheck> = Arc::new(self.clone());
        observer.observe(&Event::LoopsStarted { group, loops: &loops });
    }
}

impl LoopsCheck for Loops {
    fn loops(&self) -> Vec<LoopHealth> {
        let now = Instant::now();
        self.states().into_iter().filter_map(|state| state.health(now)).collect()
    }
}

impl MonitorState {
    fn snapshot(&self) -> LoopState {
        LoopState {
            operation: self.operation,
            scope: self.scope.clone(),
            failing: self.failing.clone(),
            last: self.last,
            stalled: self.due.is_some_and(|due| due <= Instant::now()),
        }
    }
}

impl LoopState {
    /// Returns how long it has been failing, and the last error.
    #[must_use]
    pub fn failure(&self, now: Instant) -> Option<LoopFailure> {
        let (since, error) = self.failing.clone()?;
        Some(LoopFailure::new(now.saturating_duration_since(since), error))
    }

    /// Returns the loop's entry in a health report; `None` for a loop of a delay queue or a lock, whose reports have entries of
    /// their own, or none.
    #[must_use]
    pub fn health(self, now: Instant) -> Option<LoopHealth> {
        let failing = self.failure(now);
        let (topic, partition) = match self.scope {
            Scope::Topic(topic) => (topic, None),
            Scope::Partition(TopicPartition { topic, partition }) => (topic, Some(partition)),
            Scope::Queue | Scope::Shard(_) | Scope::Lock(_) => return None,
        };
        let mut health = LoopHealth::new(self.operation, topic, partition);
        health.last_progress = now.saturating_duration_since(self.last);
        health.failing = failing;
        health.stalled = self.stalled;
        Some(health)
    }
}

/// Monitor of one loop: reports its errors, computes its back-off, and notices when it stalls.
#[derive(Debug)]
pub struct LoopMonitor {
    id: u64,
    state: Arc<Mutex<MonitorState>>,
    loops: Loops,
}

impl LoopMonitor {
    /// Creates a monitor that is not listed anywhere: it only reports errors and computes back-off.
    #[must_use]
    pub fn unlisted(operation: &'static str, scope: Scope) -> Self {
        Loops::default().monitor(operation, scope)
    }

    /// Starts a round that is planned to end within `planned`. The loop counts as stalled a minute after that.
    pub fn begin_round(&self, planned: Duration) {
        lock(&self.state).due = Some(Instant::now() + planned + STALLED);
    }

    /// Records that the loop waits for work, for any length of time.
    pub fn idle(&self) {
        let mut state = lock(&self.state);
        (state.last, state.due) = (Instant::now(), None);
    }

    /// Records that a round succeeded. Logs and emits [`Event::Recovered`] if the previous round had failed.
    pub fn succeeded(&self, observer: &dyn Observer) {
        let mut state = lock(&self.state);
        (state.last, state.due) = (Instant::now(), None);
        if state.failures == 0 {
            return;
        }
        (state.failures, state.failing) = (0, None);
        let (operation, scope) = (state.operation, state.scope.clone());
        // Observers are user code and may query the state.
        drop(state);
        tracing::info!(operation, %scope, "works again");
        observer.observe(&Event::Recovered { operation, topic_partition: scope.partition() });
    }

    /// Records that a round had nothing to do, which does not prove that the server answers: a loop that has failed recovers when
    /// the loop `witness` of the same [`Loops`] has succeeded since. Returns whether it has failed, and not recovered.
    pub fn had_nothing_to_do(&self, witness: &str, observer: &dyn Observer) -> bool {
        let mut state = lock(&self.state);
        state.due = None;
        if state.failures == 0 {
            state.last = Instant::now();
            return false;
        }
        let failed_at = state.last;
        drop(state);
        let has_answered =
            |it: &LoopState| it.operation == witness && it.failing.is_none() && it.last > failed_at;
        let recovers = self.loops.states().iter().any(has_answered);
        if recovers {
            self.succeeded(observer);
        }
        !recovers
    }

    /// Records that a round failed, logs it, emits [`Event::Failing`], and returns the pause before the next round:
    /// 50 ms to 2 s for a transient error, 1 s to 10 s for one that needs a repair. The pause has jitter, so that
    /// many loops do not try again at the same time.
    #[must_use]
    pub fn failed(&self, error: &Error, observer: &dyn Observer) -> Duration {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.failures = state.failures.saturating_add(1);
        (state.last, state.due) = (now, None);
        let since = state.failing.take().map_or(now, |(since, _)| since);
        state.failing = Some((since, error.to_string()));
        let (operation, scope, failures) = (state.operation, state.scope.clone(), state.failures);
        drop(state);
        if failures == 1 {
            tracing::warn!(operation, %scope, %error, "failed, will try again");
        } else {
            tracing::debug!(operation, %scope, %error, failures, "failed again");
        }
        observer.observe(&Event::Failing { operation, topic_partition: scope.partition(), error });
        let (base, longest) = if error.is_transient() { (50, 2_000) } else { (1_000, 10_000) };
        let pauses = Exponential::from(Duration::from_millis(base)).up_to(Duration::from_millis(longest));
        pauses.equal_jitter().delay(failures, fastrand::u64(..))
    }
}

impl Drop for LoopMonitor {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if std::thread::panicking() && state.scope.partition().is_none() {
            // The loop of a partition is started again by the partition's next owner. Any other loop is not started
            // again: it stays listed as stalled.
            let now = Instant::now();
            (state.due, state.failing) = (Some(now), Some((now, "ended abnormally".into())));
            return;
        }
        let failing = (state.failures > 0).then(|| (state.operation, state.scope.clone()));
        drop(state);
        let mut running = lock(&self.loops.0);
        running.states.remove(&self.id);
        running.ended_failing.extend(failing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::ErrorKind;
    use millstream_core::event::Ignore;

    fn topic() -> Scope {
        Scope::Topic("t".parse().expect("name"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_listed_while_it_runs_with_its_failures() {
        let loops = Loops::default();
        let monitor = loops.monitor("fetch", topic());
        let _ = monitor.failed(&Error::new(ErrorKind::Unavailable, "first"), &Ignore);
        tokio::time::advance(Duration::from_secs(3)).await;
        let _ = monitor.failed(&Error::new(ErrorKind::Unavailable, "second"), &Ignore);
        let state = loops.states().remove(0);
        let (since, error) = state.failing.expect("failing");
        assert_eq!((state.operation, since.elapsed(), &*error), ("fetch", Duration::from_secs(3), "second"));
        monitor.succeeded(&Ignore);
        assert!(loops.states()[0].failing.is_none());
        drop(monitor);
        assert!(loops.states().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_takes_a_minute_too_long_stalls_and_waiting_for_work_does_not() {
        let loops = Loops::default();
        let monitor = loops.monitor("fetch", topic());
        monitor.begin_round(Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(64)).await;
        assert!(!loops.states()[0].stalled);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(loops.states()[0].stalled);
        monitor.idle();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!loops.states()[0].stalled);
    }

    #[tokio::test(start_paused = true)]
    async fn having_nothing_to_do_is_no_recovery_until_another_loop_was_answered() {
        let loops = Loops::default();
        let (monitor, heart) = (loops.monitor("renew", topic()), loops.monitor("heartbeat", topic()));
        heart.succeeded(&Ignore);
        let step = Duration::from_secs(1);
        let is_failing = || loops.states()[0].failing.is_some();
        tokio::time::advance(step).await;
        let away = Error::new(ErrorKind::Unavailable, "away");
        let _ = monitor.failed(&away, &Ignore);
        assert!(monitor.had_nothing_to_do("heartbeat", &Ignore));
        assert!(is_failing(), "the other one was answered before");
        tokio::time::advance(step).await;
        let _ = heart.failed(&away, &Ignore);
        assert!(monitor.had_nothing_to_do("heartbeat", &Ignore));
        assert!(is_failing(), "the other one fails too");
        heart.succeeded(&Ignore);
        assert!(!monitor.had_nothing_to_do("heartbeat", &Ignore));
        assert!(!is_failing());
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_loop_reports_that_one_which_ended_failing_works_again() {
        let recovered = Mutex::new(Vec::new());
        let observer = |event: &Event<'_>| {
            if let Event::Recovered { operation, topic_partition } = event {
                lock(&recovered).push((*operation, topic_partition.cloned()));
            }
        };
        let loops = Loops::default();
        let partition = |number| TopicPartition::new("t".parse().expect("name"), number);
        let monitor = |number| loops.monitor("fetch", Scope::Partition(partition(number)));
        let _ = monitor(0).failed(&Error::new(ErrorKind::Unavailable, "away"), &observer);
        // Not before it has succeeded, nor for another one.
        monitor(1).succeeded(&observer);
        drop(monitor(0));
        loops.monitor("settle", Scope::Partition(partition(0))).succeeded(&observer);
        assert!(lock(&recovered).is_empty() && loops.states().is_empty());
        let next = monitor(0);
        assert!(loops.states()[0].failing.is_none(), "it has not failed itself");
        next.succeeded(&observer);
        next.succeeded(&observer);
        drop(next);
        monitor(0).succeeded(&observer);
        assert_eq!(*lock(&recovered), [("fetch", Some(partition(0)))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_stays_listed_unless_it_is_started_again() {
        let loops = Loops::default();
        for scope in [topic(), Scope::Partition(TopicPartition::new("t".parse().expect("name"), 0))] {
            let monitor = loops.monitor("renew", scope);
            let ended = tokio::spawn(async move {
                let _monitor = monitor;
                panic!("no");
            });
            assert!(ended.await.is_err());
        }
        let states = loops.states();
        assert_eq!(states.len(), 1);
        assert!(states[0].stalled && states[0].failing.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_are_longer_for_what_somebody_has_to_mend() {
        let monitor = LoopMonitor::unlisted("fetch", topic());
        let transient = Error::new(ErrorKind::Unavailable, "away");
        let first = monitor.failed(&transient, &Ignore);
        let tenth = (0..9).map(|_| monitor.failed(&transient, &Ignore)).next_back().expect("nine");
        assert!(first <= Duration::from_millis(50) && tenth > first && tenth <= Duration::from_secs(2));
        let monitor = LoopMonitor::unlisted("fetch", topic());
        let wrong = Error::new(ErrorKind::WrongType, "a list");
        assert!(monitor.failed(&wrong, &Ignore) >= Duration::from_millis(500));
    }
}
