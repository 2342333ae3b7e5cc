//! How every loop meets errors: tell, pause, go on. And what is known of all loops at any time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::error::Error;
use millstream_core::event::{Event, Observer};
use millstream_core::health::{Failure, LoopHealth, LoopsCheck};
use millstream_core::policy::Exponential;
use millstream_core::topic::TopicPartition;
use millstream_core::{GroupName, TopicName};
use tokio::time::Instant;

/// How much longer than it should a loop may take for one round: no request and no work between two takes so long,
/// whatever the server does.
pub(crate) const STALLED: Duration = Duration::from_secs(60);

/// All loops of a consumer or producer. Cloning gives another handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loops(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    started: u64,
    marks: BTreeMap<u64, Arc<Mutex<Mark>>>,
}

/// What is known of one loop.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) operation: &'static str,
    pub(crate) place: Place,
    /// Since when it has been failing, and with what last.
    pub(crate) failing: Option<(Instant, String)>,
    /// When a round ended last, well or not.
    pub(crate) last: Instant,
    /// When its round should have ended; `None` while it may wait for as long as it takes.
    pub(crate) due: Option<Instant>,
}

/// What a loop works on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Topic(TopicName),
    Partition(TopicPartition),
}

impl Place {
    fn partition(&self) -> Option<&TopicPartition> {
        match self {
            Self::Partition(topic_partition) => Some(topic_partition),
            Self::Topic(_) => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loops {
    /// A loop begins. It is known until it is dropped.
    pub(crate) fn begin(&self, operation: &'static str, place: Place) -> Trouble {
        let mark = Mark { operation, place, failing: None, last: Instant::now(), due: None };
        let mark = Arc::new(Mutex::new(mark));
        let mut running = lock(&self.0);
        let id = running.started;
        running.started += 1;
        running.marks.insert(id, mark.clone());
        drop(running);
        Trouble { operation, failures: 0, id, mark, loops: self.clone() }
    }

    /// All loops, in the order in which they began.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let marks: Vec<_> = lock(&self.0).marks.values().cloned().collect();
        marks.iter().map(|mark| lock(mark).clone()).collect()
    }

    /// Tells an observer of them. What is told of a consumer's loops is its health: this is for others.
    pub(crate) fn tell(&self, group: Option<&GroupName>, observer: &dyn Observer) {
        let loops: Arc<dyn LoopsCheck> = Arc::new(self.clone());
        observer.observe(&Event::LoopsStarted { group, loops: &loops });
    }
}

impl LoopsCheck for Loops {
    fn loops(&self) -> Vec<LoopHealth> {
        let now = Instant::now();
        self.marks().into_iter().map(|mark| mark.health(now)).collect()
    }
}

impl Mark {
    /// How the loop is.
    pub(crate) fn health(self, now: Instant) -> LoopHealth {
        let (topic, partition) = match self.place {
            Place::Topic(topic) => (topic, None),
            Place::Partition(TopicPartition { topic, partition }) => (topic, Some(partition)),
        };
        let mut health = LoopHealth::new(self.operation, topic, partition);
        health.last_progress = now - self.last;
        health.failing = self.failing.map(|(since, error)| Failure { lasts: now - since, error });
        health.stalled = self.due.is_some_and(|due| due <= now);
        health
    }
}

/// The state of one loop's troubles.
#[derive(Debug)]
pub(crate) struct Trouble {
    operation: &'static str,
    failures: u32,
    id: u64,
    mark: Arc<Mutex<Mark>>,
    loops: Loops,
}

impl Trouble {
    /// A round begins that ends within this time, and [`STALLED`] for what goes wrong. Without this a loop may wait.
    pub(crate) fn begins(&self, takes: Duration) {
        lock(&self.mark).due = Some(Instant::now() + takes + STALLED);
    }

    /// The round was given up: the loop may wait for as long as it takes.
    pub(crate) fn waits(&self) {
        lock(&self.mark).due = None;
    }

    /// It worked. Tells so if it had not.
    pub(crate) fn over(&mut self, observer: &dyn Observer) {
        let mut mark = lock(&self.mark);
        (mark.last, mark.due) = (Instant::now(), None);
        if self.failures == 0 {
            return;
        }
        mark.failing = None;
        self.failures = 0;
        let (operation, place) = (self.operation, mark.place.clone());
        drop(mark);
        let topic_partition = place.partition();
        tracing::info!(operation, partition = topic_partition.map(tracing::field::display), "works again");
        observer.observe(&Event::Recovered { operation, topic_partition });
    }

    /// It failed. Tells so, and gives back how long to pause: 50 ms to 2 s for what may pass by itself, 1 s to 10 s
    /// for what somebody has to mend; with jitter, so that many loops do not come back together.
    #[must_use]
    pub(crate) fn met(&mut self, error: &Error, observer: &dyn Observer) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let (operation, now) = (self.operation, Instant::now());
        let mut mark = lock(&self.mark);
        (mark.last, mark.due) = (now, None);
        let since = mark.failing.take().map_or(now, |(since, _)| since);
        mark.failing = Some((since, error.to_string()));
        let place = mark.place.clone();
        drop(mark);
        let topic_partition = place.partition();
        let partition = topic_partition.map(tracing::field::display);
        if self.failures == 1 {
            tracing::warn!(operation, partition, %error, "failed, will try again");
        } else {
            tracing::debug!(operation, partition, %error, failures = self.failures, "failed again");
        }
        observer.observe(&Event::Failing { operation, topic_partition, error });
        let (base, longest) = if error.is_transient() { (50, 2_000) } else { (1_000, 10_000) };
        let pauses = Exponential::from(Duration::from_millis(base)).up_to(Duration::from_millis(longest));
        pauses.equal_jitter().delay(self.failures, fastrand::u64(..))
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        let mut mark = lock(&self.mark);
        if std::thread::panicking() && mark.place.partition().is_none() {
            // Nobody starts it again: it stays among the others, and is late for ever.
            let now = Instant::now();
            (mark.due, mark.failing) = (Some(now), Some((now, "ended abnormally".into())));
            return;
        }
        drop(mark);
        lock(&self.loops.0).marks.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::ErrorKind;
    use millstream_core::event::Ignore;

    fn topic() -> Place {
        Place::Topic("t".parse().expect("name"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_known_while_it_runs_with_its_troubles() {
        let loops = Loops::default();
        let mut trouble = loops.begin("fetch", topic());
        let _ = trouble.met(&Error::new(ErrorKind::Unavailable, "first"), &Ignore);
        tokio::time::advance(Duration::from_secs(3)).await;
        let _ = trouble.met(&Error::new(ErrorKind::Unavailable, "second"), &Ignore);
        let mark = loops.marks().remove(0);
        let (since, error) = mark.failing.expect("failing");
        assert_eq!((mark.operation, since.elapsed(), &*error), ("fetch", Duration::from_secs(3), "second"));
        trouble.over(&Ignore);
        assert!(loops.marks()[0].failing.is_none());
        drop(trouble);
        assert!(loops.marks().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_late_unless_it_is_started_again() {
        let loops = Loops::default();
        for place in [topic(), Place::Partition(TopicPartition::new("t".parse().expect("name"), 0))] {
            let trouble = loops.begin("renew", place);
            let ended = tokio::spawn(async move {
                let _trouble = trouble;
                panic!("no");
            });
            assert!(ended.await.is_err());
        }
        let marks = loops.marks();
        assert_eq!(marks.len(), 1);
        assert!(marks[0].due.is_some_and(|due| due <= Instant::now()) && marks[0].failing.is_some());
    }
}
