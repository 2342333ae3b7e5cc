//! The sampler: gauges of the server, read at intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::catalog::Pin;
use millstream_core::error::Problems;
use millstream_core::event::{Event, Observer};
use millstream_core::panics::{Panicked, UserCode};
use millstream_core::{Backend, Capability, Error, ErrorKind, QueueName, Result, TopicName};
use tokio::time::{Instant, sleep_until};

use crate::observer::MetricsObserver;
use crate::sampling::gauges::Values;
use crate::sampling::lag::is_gone;
use crate::sampling::sample::{self, GroupSample, QueueSample, TopicSample};
use crate::sampling::shown::{Share, choose};
use crate::table;

/// Number of intervals without an answer after which values are no longer shown.
const KEPT_ROUNDS: u32 = 3;
/// Minimum interval between reads of the retention pins of a topic.
const PINS_EVERY: Duration = Duration::from_secs(60);
/// Number of parts into which topics are divided, so that their pins are not read in the same round.
const PINS_PARTS: u32 = 4;
/// Topics that are read together.
const TOGETHER: usize = 64;
/// Scope of the sampler's own gauge.
const AGE: &str = "age";
/// Scope of the gauge with the number of topics whose partitions are not shown.
const LEFT_OUT: &str = "left out";

/// What a round found of a topic.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Messages that were ever appended.
    appended: u64,
    /// Its work, and the number of series that a metric of its partitions could have.
    work: u64,
    series: usize,
    /// Whether its partitions were shown.
    shown: bool,
}

/// Settings of a [`Sampler`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SamplerConfig {
    /// Time from the start of one round to the start of the next. Default: 15 s.
    pub interval: Duration,
    /// Topics to sample. Default: all existing ones.
    pub topics: Option<Vec<TopicName>>,
    /// Delay queues to sample. Default: all existing ones.
    pub queues: Option<Vec<QueueName>>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), topics: None, queues: None }
    }
}

impl SamplerConfig {
    /// Returns the settings with another interval.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Returns the settings for these topics only.
    #[must_use]
    pub fn topics(self, topics: impl IntoIterator<Item = TopicName>) -> Self {
        Self { topics: Some(topics.into_iter().collect()), ..self }
    }

    /// Returns the settings for these delay queues only.
    #[must_use]
    pub fn queues(self, queues: impl IntoIterator<Item = QueueName>) -> Self {
        Self { queues: Some(queues.into_iter().collect()), ..self }
    }

    fn check(&self) -> Result<()> {
        let mut problems = Problems::new("sampler");
        problems.require(self.interval >= Duration::from_millis(100), || {
            format!("the interval is {:?}, at least 100 ms are needed", self.interval)
        });
        problems.finish()
    }
}

/// Reads the state of topics, groups and delay queues from the server, once per interval.
///
/// A round costs three requests, and about six for each 64 topics with up to 500 partitions in all; more where a lag has to be
/// counted. A backend without [`Inspect::overview`](millstream_core::Inspect::overview) is asked for each part of a topic by
/// itself. A delay queue costs one request, and one per shard. Which groups keep entries is read once a minute. A round does
/// not begin before the previous one has ended.
///
/// When it is dropped, its gauges become NaN.
pub struct Sampler {
    backend: Backend,
    observer: Arc<MetricsObserver>,
    config: SamplerConfig,
    /// Time of the last answer of each scope.
    answered: Mutex<BTreeMap<String, Instant>>,
    /// Time of the last read of the retention pins, by topic.
    pins: Mutex<BTreeMap<TopicName, Instant>>,
    /// What the previous round found, by topic.
    found: Mutex<BTreeMap<TopicName, Before>>,
    /// Whether the first round is over: from then on pins are read in parts.
    spreads: AtomicBool,
    /// Time of the last round without an error.
    last: Mutex<Option<Instant>>,
}

impl Sampler {
    /// Creates a sampler over a backend.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) for an interval below 100 ms.
    pub fn new(backend: Backend, observer: Arc<MetricsObserver>, config: SamplerConfig) -> Result<Self> {
        config.check()?;
        let (answered, pins, found) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (last, spreads) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { backend, observer, config, answered, pins, found, spreads, last })
    }

    /// Samples once, and sets the gauges. A request that fails does not prevent the others; its gauges keep their
    /// values for three intervals, and become NaN after that.
    ///
    /// # Errors
    /// The first error. All errors are reported to the observer as [`Event::Failing`].
    pub async fn run_once(&self) -> Result<()> {
        let mut first = None;
        let mut fails = |error: Error| {
            tracing::debug!(%error, "the gauges of the server could not be read");
            self.observer.observe(&Event::Failing {
                operation: "sample",
                topic_partition: None,
                error: &error,
            });
            first.get_or_insert(error);
        };
        let mut known = BTreeSet::new();
        if let Err(error) = sample::clock(&self.backend, &self.observer.clock).await {
            fails(error);
        }
        match self.topics().await {
            Ok(topics) => {
                let mut all = Vec::with_capacity(topics.len());
                for topics in topics.chunks(TOGETHER) {
                    let (with_pins, without): (Vec<TopicName>, Vec<TopicName>) =
                        topics.iter().cloned().partition(|topic| self.asks_for_pins(topic));
                    for (topics, pins) in [(with_pins, true), (without, false)] {
                        let samples = sample::topics(&self.backend, &topics, pins).await;
                        all.extend(
                            topics.into_iter().zip(samples).map(|(topic, sample)| (topic, sample, pins)),
                        );
                    }
                }
                let series = self.choose(&all);
                let mut all: Vec<_> = all.into_iter().zip(series).collect();
                // Those that have fewer series than they could have come first, and make room for the others.
                all.sort_by_key(|((_, sample, _), series)| {
                    *series >= sample.as_ref().map_or(0, TopicSample::series)
                });
                for ((topic, sample, pins), series) in all {
                    known.extend(self.sampled(&topic, sample, series, pins, &mut fails));
                }
                self.spreads.store(true, Ordering::Relaxed);
            }
            Err(error) => fails(error.during("sample topics")),
        }
        match self.queues().await {
            Ok(queues) => {
                for queue in queues {
                    let scope = scope("queue", queue.as_str());
                    match sample::queue(&self.backend, &queue).await {
                        Ok(sample) => self.say(&scope, of_queue(&sample)),
                        Err(error) if is_gone(&error) => continue,
                        Err(error) => fails(error.during(format_args!("sample queue {queue}"))),
                    }
                    known.insert(scope);
                }
            }
            Err(error) => fails(error.during("sample queues")),
        }
        self.forget(&known, first.is_none());
        self.observer.rarely(&table::SAMPLES, &[if first.is_none() { "ok" } else { "failed" }], 1);
        if first.is_none() {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.tell_age();
        first.map_or(Ok(()), Err)
    }

    /// Returns for each topic how many series a metric of its partitions has.
    fn choose(&self, all: &[(TopicName, Result<TopicSample>, bool)]) -> Vec<usize> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *found);
        let shares = all.iter().map(|(topic, sample, _)| {
            let before = before.get(topic).copied();
            let of_topic = match (sample, before) {
                (Ok(sample), _) => {
                    let total = sample.appended();
                    let new = before.map_or(0, |before| total.saturating_sub(before.appended));
                    let backlog: u64 = sample.groups.iter().map(|group| sample.backlog_at_least(group)).sum();
                    let work = new.saturating_add(backlog);
                    Before { appended: total, work, series: sample.series(), shown: false }
                }
                // Its series stay for some rounds, and so does its place.
                (Err(error), Some(before)) if !is_gone(error) => before,
                (Err(_), _) => Before { appended: 0, work: 0, series: 0, shown: false },
            };
            let was_shown = before.is_some_and(|before| before.shown);
            found.insert(topic.clone(), Before { shown: was_shown, ..of_topic });
            Share { work: of_topic.work, series: of_topic.series, was_shown }
        });
        let shares: Vec<Share> = shares.collect();
        let limit = self.observer.registry.limit();
        let series = choose(&shares, limit);
        for ((topic, ..), series) in all.iter().zip(&series) {
            found.entry(topic.clone()).and_modify(|before| before.shown = *series > 0);
        }
        let left_out =
            shares.iter().zip(&series).filter(|(share, series)| share.series > 0 && **series == 0).count();
        let is_new = before.values().all(|before| before.shown || before.series == 0);
        if left_out > 0 && is_new {
            tracing::warn!(
                left_out,
                limit,
                "too many series: the partitions of topics with the least work have none"
            );
        }
        let mut values = Values::default();
        values.set(table::TOPICS_WITHOUT_PARTITIONS, &[], left_out as f64);
        self.observer.gauges.say(&self.observer.registry, LEFT_OUT, values);
        series
    }

    /// Sets the gauges of a topic. Returns its scopes; none if it was deleted.
    fn sampled(
        &self,
        topic: &TopicName,
        sample: Result<TopicSample>,
        series: usize,
        pins: bool,
        fails: &mut impl FnMut(Error),
    ) -> Vec<String> {
        let scopes = vec![scope("topic", topic.as_str()), scope("pins", topic.as_str())];
        match sample {
            // Everything else of the topic is known.
            Ok(sample) => {
                self.say(&scopes[0], of_topic(&sample, series));
                match &sample.pins {
                    Some(pins) => self.say(&scopes[1], of_pins(&sample, pins)),
                    // They are asked for again in the next round.
                    None if pins => {
                        self.pins.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
                    }
                    None => self.stays(&scopes[1]),
                }
                for reason in sample.reasons() {
                    let error = Error::new(ErrorKind::WrongType, reason.to_owned()).at(topic);
                    fails(error.during(format_args!("sample {topic}")));
                }
            }
            // Deleted between the two requests.
            Err(error) if is_gone(&error) => return Vec::new(),
            Err(error) => {
                fails(error.during(format_args!("sample {topic}")));
                self.pins.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
            }
        }
        scopes
    }

    /// Samples in a loop, without an end. Errors do not end it.
    pub async fn run(&self) {
        let mut failing = false;
        loop {
            let started = Instant::now();
            // The recorder is user code: a panic of it must not end the loop.
            let round = AssertUnwindSafe(async { self.run_once().await }).catch_unwind().await;
            let round = round.unwrap_or_else(|payload| {
                let panicked = Panicked::new(UserCode::Observer, payload);
                Err(Error::new(ErrorKind::Protocol, panicked.to_string()).with_source(panicked))
            });
            match round {
                Ok(()) if failing => {
                    tracing::info!("the gauges of the server can be read again");
                    self.observer.observe(&Event::Recovered { operation: "sample", topic_partition: None });
                    failing = false;
                }
                Ok(()) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the gauges of the server cannot be read, will try again");
                    }
                    failing = true;
                }
            }
            let next = started + self.config.interval;
            // A pause after a round that took longer than the interval.
            sleep_until(next.max(Instant::now() + self.config.interval / 10)).await;
        }
    }

    /// Sets the gauge with the age of the values.
    pub(crate) fn tell_age(&self) {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut values = Values::default();
        values.set(
            table::SAMPLE_AGE_SECONDS,
            &[],
            last.map_or(f64::NAN, |last| last.elapsed().as_secs_f64()),
        );
        self.observer.gauges.say(&self.observer.registry, AGE, values);
    }

    /// Whether the backend can be asked for the figures of topics. If it cannot, there are no series of them.
    fn knows_topics(&self) -> bool {
        let needed = [Capability::Stats, Capability::Count, Capability::ListScheduled];
        needed.into_iter().all(|needed| self.backend.supports(needed))
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        match &self.config.topics {
            Some(topics) => Ok(topics.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()),
            None if !self.knows_topics() => Ok(Vec::new()),
            None => self.backend.catalog().topics().await,
        }
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        match &self.config.queues {
            Some(queues) => Ok(queues.clone()),
            None if !self.backend.supports(Capability::Tasks) => Ok(Vec::new()),
            None => self.backend.tasks()?.queues().await,
        }
    }

    /// Returns whether the retention pins are to be read now: that may take some counting on the server.
    fn asks_for_pins(&self, topic: &TopicName) -> bool {
        if !self.backend.supports(Capability::Pins) {
            return false;
        }
        let mut asked = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let due = asked.get(topic).is_none_or(|at| at.elapsed() >= PINS_EVERY);
        if due {
            asked.retain(|_, at| at.elapsed() < PINS_EVERY);
            // The first round asks for those of all topics. After that, each round asks for a part of them.
            let ahead = PINS_EVERY / PINS_PARTS * (asked.len() as u32 % PINS_PARTS);
            let is_first = !self.spreads.load(Ordering::Relaxed);
            let at = Instant::now().checked_sub(ahead).filter(|_| is_first);
            asked.insert(topic.clone(), at.unwrap_or_else(Instant::now));
        }
        due
    }

    fn say(&self, scope: &str, values: Values) {
        self.observer.gauges.say(&self.observer.registry, scope, values);
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).insert(scope.to_owned(), Instant::now());
    }

    /// Keeps the values of a scope valid without a new read.
    fn stays(&self, scope: &str) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.entry(scope.to_owned()).and_modify(|at| *at = Instant::now());
    }

    /// Removes scopes that no longer exist, or have had no answer for too long.
    fn forget(&self, known: &BTreeSet<String>, all: bool) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.config.interval * KEPT_ROUNDS;
        answered.retain(|scope, at| {
            let stays = at.elapsed() < kept && (!all || known.contains(scope));
            if !stays {
                self.observer.gauges.forget(&self.observer.registry, scope);
            }
            stays
        });
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let answered = std::mem::take(&mut *self.answered.lock().unwrap_or_else(PoisonError::into_inner));
        for scope in answered.keys().map(String::as_str).chain([AGE, LEFT_OUT]) {
            self.observer.gauges.forget(&self.observer.registry, scope);
        }
    }
}

fn scope(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

/// Returns the gauges of a topic, with so many series of a metric of its partitions.
fn of_topic(sample: &TopicSample, series: usize) -> Values {
    let mut values = Values::default();
    let (topic, shown) = (sample.topic.as_str(), series / sample.groups.len().max(1));
    for (partition, length, waiting) in sample.partitions.iter().take(shown) {
        let labels = [topic, &partition.0.to_string()];
        values.set(table::LENGTH, &labels, known(*length));
        values.set(table::DELAYED, &labels, known(waiting.map(|it| it.total)));
        values.set(table::DELAYED_OVERDUE, &labels, known(waiting.map(|it| it.overdue)));
    }
    for group in &sample.groups {
        of_group(&mut values, topic, group, shown);
        let backlog = sample.backlog_at_least(group) as f64;
        values.set(table::BACKLOG, &[topic, group.group.as_str()], backlog);
    }
    values
}

/// Returns the value of a figure that may be unknown.
fn known(figure: Option<u64>) -> f64 {
    figure.map_or(f64::NAN, |figure| figure as f64)
}

fn of_pins(sample: &TopicSample, pins: &[Pin]) -> Values {
    let mut values = Values::default();
    let topic = sample.topic.as_str();
    for group in &sample.groups {
        let labels = [topic, group.group.as_str()];
        values.set(table::PINNED_MESSAGES, &labels, 0.0);
        values.set(table::PINNED_BYTES, &labels, 0.0);
    }
    for pin in pins {
        let labels = [topic, pin.group.as_str()];
        values.add(table::PINNED_MESSAGES, &labels, pin.messages as f64);
        values.add(table::PINNED_BYTES, &labels, pin.bytes as f64);
    }
    values
}

fn of_group(values: &mut Values, topic: &str, sample: &GroupSample, shown: usize) {
    let group = sample.group.as_str();
    values.set(table::MEMBERS, &[topic, group], known(sample.members.map(|it| it as u64)));
    values.set(table::GROUP_PAUSED, &[topic, group], known(sample.paused.map(u64::from)));
    for survey in sample.partitions.iter().take(shown) {
        let stats = &survey.stats;
        let number = stats.partition.0.to_string();
        let labels = [topic, &number, group];
        let lag = known(stats.lag);
        values.set(table::LAG, &labels, lag);
        values.set(table::LAG_UNKNOWN, &labels, f64::from(u8::from(stats.lag.is_none())));
        values.set(table::READY, &labels, lag + known(survey.due()));
        values.set(table::PENDING, &labels, known(survey.pending()));
        values.set(table::RETRYING, &labels, known(survey.retrying()));
        values.set(table::DEAD, &labels, known(survey.dead()));
        let oldest = survey.length().map(|_| stats.oldest.unwrap_or_default().as_secs_f64());
        values.set(table::OLDEST_AGE_SECONDS, &labels, oldest.unwrap_or(f64::NAN));
    }
}

fn of_queue(sample: &QueueSample) -> Values {
    let mut values = Values::default();
    for (shard, counts) in &sample.shards {
        let labels = [sample.queue.as_str(), &shard.to_string()];
        values.set(table::TASKS_WAITING, &labels, counts.waiting.total as f64);
        values.set(table::TASKS_OVERDUE, &labels, counts.waiting.overdue as f64);
        values.set(table::TASKS_HELD, &labels, counts.claimed as f64);
        values.set(table::TASKS_EXPIRED, &labels, counts.expired as f64);
        values.set(table::TASKS_DEAD, &labels, counts.dead as f64);
    }
    values
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("config", &self.config).finish_non_exhaustive()
    }
}
