//! Gauges that only the server knows: asked for now and then.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::event::{Event, Observer};
use millstream_core::{Backend, Error, ErrorKind, QueueName, Result, TopicName};
use tokio::time::{Instant, sleep_until};

use crate::gauges::{Gauges, Values};
use crate::observer::MetricsObserver;
use crate::sample::{self, GroupSample, QueueSample, TopicSample};
use crate::table;

/// After how many intervals without an answer values are not shown any more.
const PATIENCE: u32 = 3;

/// Settings of a [`Sampler`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SamplerConfig {
    /// The time from one round to the next. Default: 15 s.
    pub interval: Duration,
    /// Which topics. Default: all that there are.
    pub topics: Option<Vec<TopicName>>,
    /// Which delay queues. Default: all that there are.
    pub queues: Option<Vec<QueueName>>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), topics: None, queues: None }
    }
}

impl SamplerConfig {
    /// The same settings with another interval.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// The same settings for these topics only.
    #[must_use]
    pub fn topics(self, topics: impl IntoIterator<Item = TopicName>) -> Self {
        Self { topics: Some(topics.into_iter().collect()), ..self }
    }

    /// The same settings for these delay queues only.
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

/// Asks the server, once per interval, how topics, groups and delay queues stand.
///
/// A round costs, for a topic of `p` partitions with `g` groups, `2p + 3` requests and for each group one of the roster,
/// those of [`Catalog::stats`](millstream_core::Catalog::stats); for a delay queue one and one per shard. At most eight
/// are under way at once, and one round does not begin before the last has ended.
pub struct Sampler {
    backend: Backend,
    observer: Arc<MetricsObserver>,
    config: SamplerConfig,
    gauges: Gauges,
    /// When each scope answered last.
    answered: Mutex<std::collections::BTreeMap<String, Instant>>,
    /// When a round went well last.
    last: Mutex<Option<Instant>>,
}

impl Sampler {
    /// A sampler over a backend.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an interval below 100 ms.
    pub fn new(backend: Backend, observer: Arc<MetricsObserver>, config: SamplerConfig) -> Result<Self> {
        config.check()?;
        let (gauges, answered, last) = (Gauges::default(), Mutex::default(), Mutex::default());
        Ok(Self { backend, observer, config, gauges, answered, last })
    }

    /// Asks once, and sets the gauges. What cannot be asked does not keep the rest from being asked; its gauges stay as
    /// they are for three intervals and are not numbers after that.
    ///
    /// # Errors
    /// The first that was met. All are told to the observer as [`Event::Failing`].
    pub async fn run_once(&self) -> Result<()> {
        let mut first = None;
        let mut fails = |error: Error| {
            tracing::debug!(%error, "the server could not be asked for its gauges");
            self.observer.observe(&Event::Failing {
                operation: "sample",
                topic_partition: None,
                error: &error,
            });
            first.get_or_insert(error);
        };
        let mut known = Vec::new();
        match self.topics().await {
            Ok(topics) => {
                for topic in topics {
                    known.push(scope("topic", topic.as_str()));
                    match sample::topic(&self.backend, &self.observer.clock, &topic, None).await {
                        Ok(sample) => self.say(scope("topic", topic.as_str()), of_topic(&sample)),
                        // Deleted between the two questions.
                        Err(error) if error.kind() == ErrorKind::NotFound => drop(known.pop()),
                        Err(error) => fails(error.during(format_args!("sample {topic}"))),
                    }
                }
            }
            Err(error) => fails(error.during("sample topics")),
        }
        match self.queues().await {
            Ok(queues) => {
                for queue in queues {
                    known.push(scope("queue", queue.as_str()));
                    match sample::queue(&self.backend, &queue).await {
                        Ok(sample) => self.say(scope("queue", queue.as_str()), of_queue(&sample)),
                        Err(error) if error.kind() == ErrorKind::NotFound => drop(known.pop()),
                        Err(error) => fails(error.during(format_args!("sample queue {queue}"))),
                    }
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

    /// Asks in a loop, for ever. Errors do not end it.
    pub async fn run(&self) {
        let mut failing = false;
        loop {
            let started = Instant::now();
            match self.run_once().await {
                Ok(()) if failing => {
                    tracing::info!("the server can be asked for its gauges again");
                    self.observer.observe(&Event::Recovered { operation: "sample", topic_partition: None });
                    failing = false;
                }
                Ok(()) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the server cannot be asked for its gauges, will try again");
                    }
                    failing = true;
                }
            }
            let next = started + self.config.interval;
            // A round that takes longer is not followed at once by the next.
            sleep_until(next.max(Instant::now() + self.config.interval / 10)).await;
        }
    }

    /// Says how old the values are.
    pub(crate) fn tell_age(&self) {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut values = Values::default();
        values.set(
            table::SAMPLE_AGE_SECONDS,
            &[],
            last.map_or(f64::NAN, |last| last.elapsed().as_secs_f64()),
        );
        self.gauges.say(&self.observer.registry, "age", values);
    }

    async fn topics(&self) -> Result<Vec<TopicName>> {
        match &self.config.topics {
            Some(topics) => Ok(topics.clone()),
            None => self.backend.catalog.topics().await,
        }
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        match &self.config.queues {
            Some(queues) => Ok(queues.clone()),
            None => self.backend.tasks.queues().await,
        }
    }

    fn say(&self, scope: String, values: Values) {
        self.gauges.say(&self.observer.registry, &scope, values);
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).insert(scope, Instant::now());
    }

    /// Takes back what is not there any more, or has not been answered for long.
    fn forget(&self, known: &[String], all: bool) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = self.config.interval * PATIENCE;
        answered.retain(|scope, at| at.elapsed() < patience && (!all || known.contains(scope)));
        self.gauges.keep(|scope| scope == "age" || answered.contains_key(scope));
    }
}

fn scope(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

fn of_topic(sample: &TopicSample) -> Values {
    let mut values = Values::default();
    let topic = sample.topic.as_str();
    for (partition, length, waiting) in &sample.partitions {
        let labels = [topic, &partition.0.to_string()];
        values.set(table::LENGTH, &labels, *length as f64);
        values.set(table::DELAYED, &labels, waiting.total as f64);
        values.set(table::DELAYED_OVERDUE, &labels, waiting.overdue as f64);
    }
    for group in &sample.groups {
        of_group(&mut values, topic, group);
    }
    values
}

fn of_group(values: &mut Values, topic: &str, sample: &GroupSample) {
    let group = sample.group.as_str();
    values.set(table::MEMBERS, &[topic, group], sample.members as f64);
    for stats in &sample.partitions {
        let number = stats.partition.0.to_string();
        let labels = [topic, &number, group];
        let lag = stats.lag.map_or(f64::NAN, |lag| lag as f64);
        values.set(table::LAG, &labels, lag);
        values.set(table::LAG_UNKNOWN, &labels, f64::from(u8::from(stats.lag.is_none())));
        values.set(table::READY, &labels, lag + stats.due as f64);
        values.set(table::PENDING, &labels, stats.pending as f64);
        values.set(table::RETRYING, &labels, stats.retrying as f64);
        values.set(table::DEAD, &labels, stats.dead as f64);
        values.set(table::OLDEST_AGE_SECONDS, &labels, stats.oldest.unwrap_or_default().as_secs_f64());
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
