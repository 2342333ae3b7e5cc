//! Reads all topics and delay queues in the background: the last state of each, and the sums of the last hour.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use millstream::crates::core::QueueName;
use millstream::delay::TaskCounts;
use millstream::{Error, Timestamp, TopicName};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};

use super::Reading;
use super::snapshots::Snapshot;

/// Time between two samples, and number of them: those of an hour.
const EVERY: Duration = Duration::from_secs(20);
pub(crate) const SAMPLES: usize = 180;
/// Time after which a topic is read again while a page is open, for the second time, and while no page is open.
const LOOKED_AT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(5);
const UNSEEN: Duration = Duration::from_secs(60);
/// Time for which a page counts as open after a request.
const OPEN: Duration = Duration::from_secs(60);
/// Commands per second for all topics together, once each was read.
const RATE: u64 = 1_000;
/// Number of topics that are read together: few, so that no page waits for long.
const TOGETHER: usize = 25;

/// Sums over all topics at one time; rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) produced: Option<f64>,
    pub(crate) handled: Option<f64>,
    pub(crate) failed: Option<f64>,
    pub(crate) backlog: Option<f64>,
    pub(crate) dead: Option<f64>,
}

/// A topic as it was read last.
pub(crate) type Known = Result<Arc<Snapshot>, Error>;
/// A delay queue as it was read last.
pub(crate) type KnownQueue = Result<Queue, Error>;

/// A delay queue at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) shards: u32,
    pub(crate) counts: TaskCounts,
    /// Number of recurring rules that should have fired, and how late the first one is.
    pub(crate) late_rules: (u64, Duration),
    /// Time of the reading, by the clock of this process.
    pub(crate) at: Timestamp,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    topics: Mutex<BTreeMap<TopicName, Known>>,
    queues: Mutex<BTreeMap<QueueName, KnownQueue>>,
    samples: Mutex<VecDeque<Sample>>,
    began: AtomicBool,
    asked: Mutex<Option<Instant>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sample {
    /// Returns the sums over these topics.
    pub(crate) fn of<'a>(topics: impl Iterator<Item = &'a Snapshot>) -> Self {
        let mut all = Self::default();
        let add = |to: &mut Option<f64>, value: Option<f64>| {
            if let Some(value) = value {
                *to = Some(to.unwrap_or_default() + value);
            }
        };
        for topic in topics {
            add(&mut all.produced, topic.produced());
            for group in topic.groups.values() {
                add(&mut all.handled, group.rates.consumed);
                add(&mut all.failed, group.failing);
                add(&mut all.backlog, Some(group.stats.backlog_at_least() as f64));
                add(&mut all.dead, group.stats.totals.dead.map(|it| it as f64));
            }
        }
        all
    }
}

impl Sampler {
    /// Returns the state of all topics that were read.
    pub(crate) fn topics(&self) -> BTreeMap<TopicName, Known> {
        lock(&self.topics).clone()
    }

    pub(crate) fn queues(&self) -> BTreeMap<QueueName, KnownQueue> {
        lock(&self.queues).clone()
    }

    /// Returns the samples of the last hour, oldest first.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        lock(&self.samples).iter().copied().collect()
    }

    /// Returns the state of a topic that was read last.
    pub(crate) fn topic(&self, name: &TopicName) -> Option<Arc<Snapshot>> {
        lock(&self.topics).get(name)?.as_ref().ok().cloned()
    }

    /// Keeps what was read of topics.
    pub(crate) fn keep(&self, read: &BTreeMap<TopicName, Known>) {
        lock(&self.topics).extend(read.iter().map(|(name, known)| (name.clone(), known.clone())));
    }

    pub(crate) fn keep_queues(&self, queues: BTreeMap<QueueName, KnownQueue>) {
        *lock(&self.queues) = queues;
    }

    /// Forgets topics that do not exist any more.
    pub(crate) fn retain(&self, names: &[TopicName]) {
        lock(&self.topics).retain(|name, _| names.binary_search(name).is_ok());
    }

    fn sample(&self) {
        let sample = Sample::of(lock(&self.topics).values().filter_map(|it| it.as_deref().ok()));
        let mut samples = lock(&self.samples);
        samples.push_back(sample);
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// Returns the time after which a topic is read again.
    fn pace(&self) -> Duration {
        let is_open = lock(&self.asked).is_some_and(|at| at.elapsed() < OPEN);
        if is_open { LOOKED_AT } else { UNSEEN }
    }
}

/// Begins to read, if that has not begun and there is a runtime; it ends with the dashboard. `asks` is whether a page is shown.
pub(crate) fn begin(reading: &Arc<Reading>, asks: bool) {
    let sampler = &reading.sampler;
    if asks {
        *lock(&sampler.asked) = Some(Instant::now());
    }
    let Ok(runtime) = Handle::try_current() else { return };
    if !sampler.began.swap(true, Ordering::Relaxed) {
        let (topics, samples) = (Arc::downgrade(reading), Arc::downgrade(reading));
        runtime.spawn(read_all(topics));
        runtime.spawn(sample_all(samples));
    }
}

async fn sample_all(reading: Weak<Reading>) {
    let mut next = Instant::now();
    loop {
        next += EVERY;
        sleep_until(next).await;
        let Some(reading) = reading.upgrade() else { return };
        reading.sampler.sample();
    }
}

async fn read_all(reading: Weak<Reading>) {
    let mut is_first = true;
    loop {
        let began = Instant::now();
        let Some(now) = reading.upgrade() else { return };
        let names = now.all_topics().await.unwrap_or_default();
        drop(now);
        for some in names.chunks(TOGETHER) {
            let step = Instant::now();
            let Some(reading) = reading.upgrade() else { return };
            let commands = reading.in_background(some).await;
            drop(reading);
            // The first time somebody waits for it.
            let least =
                if is_first { Duration::ZERO } else { Duration::from_millis(commands * 1_000 / RATE) };
            sleep(least.max(step.elapsed())).await;
        }
        loop {
            let Some(pace) = reading.upgrade().map(|it| it.sampler.pace()) else { return };
            // Rates need two readings.
            let pace = if is_first { SECOND } else { pace };
            if began.elapsed() >= pace {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        is_first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_are_those_of_an_hour_and_what_is_unknown_is_a_gap() {
        let sampler = Sampler::default();
        (0..SAMPLES + 5).for_each(|_| sampler.sample());
        let samples = sampler.samples();
        assert_eq!(EVERY * SAMPLES as u32, Duration::from_secs(3_600));
        assert_eq!((samples.len(), samples[0]), (SAMPLES, Sample::default()));
        assert_eq!(samples[0].produced, None, "of no topic");
    }

    #[test]
    fn topics_are_read_more_often_while_a_page_is_open() {
        let sampler = Sampler::default();
        assert_eq!(sampler.pace(), UNSEEN);
        *lock(&sampler.asked) = Some(Instant::now());
        assert_eq!(sampler.pace(), LOOKED_AT);
    }
}
