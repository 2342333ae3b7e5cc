//! The sampler: gauges of the server, read at intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::error::Problems;
use millstream_core::event::{Event, Observer};
use millstream_core::panics::{Panicked, UserCode};
use millstream_core::permits::OpenBreaker;
use millstream_core::{Backend, Capability, Error, ErrorKind, QueueName, Result, TopicName};
use tokio::time::{Instant, sleep_until};

use crate::observer::MetricsObserver;
use crate::sampling::gauges::Values;
use crate::sampling::lag::is_gone;
use crate::sampling::sample;
use crate::sampling::shown::{QueueRead, Shown, TopicRead};
use crate::sampling::values;
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
/// How long an open breaker counts after a message could have tried whether it can be closed: then none came.
const UNUSED_BREAKER: Duration = Duration::from_secs(300);
/// Scope of the number of open breakers.
const BREAKERS: &str = "breakers";
/// Scope of the gauge with what has no series.
const LEFT_OUT: &str = "left out";
/// Scope of the gauge with what cannot be read.
const UNREADABLE: &str = "unreadable";

/// What could not be read in a round.
#[derive(Debug, Default)]
struct Unread {
    first: Option<Error>,
    /// Whether the server did not answer: everything else is of a part only.
    away: bool,
    /// Number of reasons by topic and delay queue; both are empty for what concerns all.
    by_name: BTreeMap<[String; 2], u64>,
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
/// A round costs five requests, and about six for each 64 topics with up to 500 partitions in all; more where a lag has to be
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
    /// What the previous rounds found and showed.
    shown: Mutex<Shown>,
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
        let (answered, pins, shown) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (last, spreads) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { backend, observer, config, answered, pins, shown, spreads, last })
    }

    /// Samples once, and sets the gauges. A request that fails does not prevent the others; its gauges keep their
    /// values for three intervals, and become NaN after that.
    ///
    /// # Errors
    /// The first error. All errors are reported to the observer as [`Event::Failing`].
    pub async fn run_once(&self) -> Result<()> {
        let mut unread = Unread::default();
        if let Err(error) = sample::clock(&self.backend, &self.observer.clock).await {
            self.fails(&mut unread, ["", ""], error);
        }
        if !unread.away {
            self.breakers(&mut unread).await;
        }
        let topics = self.topics(&mut unread).await;
        let mut samples = topics.as_ref().map(|_| Vec::new());
        for topics in topics.as_deref().unwrap_or_default().chunks(TOGETHER) {
            let (with_pins, without): (Vec<TopicName>, Vec<TopicName>) =
                topics.iter().cloned().partition(|topic| self.asks_for_pins(topic));
            for (topics, pins) in [(with_pins, true), (without, false)] {
                let read = sample::topics(&self.backend, &topics, pins).await;
                let read = topics.into_iter().zip(read).map(|(topic, read)| (topic, read, pins));
                samples.get_or_insert_default().extend(read);
            }
            self.spreads.store(true, Ordering::Relaxed);
        }
        let names = self.queues(&mut unread).await;
        let mut queues = names.as_ref().map(|_| Vec::new());
        for queue in names.unwrap_or_default() {
            let read = sample::queue(&self.backend, &queue).await;
            queues.get_or_insert_default().push((queue, read));
        }
        let read = samples.iter().flatten().any(|(_, it, _)| it.is_ok())
            || queues.iter().flatten().any(|(_, it)| it.is_ok());
        let known = self.sampled(samples.as_deref(), queues.as_deref(), &mut unread);
        let Unread { first, away, by_name } = unread;
        self.forget(&known, !away);
        let mut values = Values::default();
        values.set(table::UNREADABLE, &["", ""], 0.0);
        for ([topic, queue], reasons) in &by_name {
            values.set(table::UNREADABLE, &[topic, queue], *reasons as f64);
        }
        self.observer.gauges.say(&self.observer.registry, UNREADABLE, values);
        let is_read = first.is_none() || read && !away;
        let result = if first.is_none() {
            "ok"
        } else if is_read {
            "partial"
        } else {
            "failed"
        };
        self.observer.rarely(&table::SAMPLES, &[result], 1);
        if is_read {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.tell_age();
        first.map_or(Ok(()), Err)
    }

    /// Counts the breakers that are open, if the backend has limits.
    async fn breakers(&self, unread: &mut Unread) {
        let Ok(permits) = self.backend.permits() else { return };
        let read = async { Ok::<_, Error>((permits.open_breakers().await?, permits.limit_rules().await?)) };
        match read.await {
            Ok((open, rules)) => {
                // Of one that rules hold closed, or that nobody has used lately, only the record is left.
                let counts = |it: &&OpenBreaker| {
                    rules.holds_open(&it.key) != Some(false)
                        && self.observer.clock.since(it.until) < UNUSED_BREAKER
                };
                let mut values = Values::default();
                values.set(table::BREAKERS_OPEN, &[], open.iter().filter(counts).count() as f64);
                self.observer.gauges.say(&self.observer.registry, BREAKERS, values);
                let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
                answered.insert(BREAKERS.to_owned(), Instant::now());
            }
            Err(error) => {
                // Topics may be read none the less.
                let away = unread.away;
                self.fails(unread, ["", ""], error.during(format_args!("sample breakers")));
                unread.away = away;
            }
        }
    }

    /// Reports an error of reading a topic or a delay queue.
    fn fails(&self, unread: &mut Unread, [topic, queue]: [&str; 2], error: Error) {
        tracing::debug!(%error, "the gauges of the server could not be read");
        self.observer.observe(&Event::Failing { operation: "sample", topic_partition: None, error: &error });
        unread.away |= error.is_transient();
        *unread.by_name.entry([topic.to_owned(), queue.to_owned()]).or_default() += 1;
        unread.first.get_or_insert(error);
    }

    /// Chooses what has series, and sets the gauges. Returns the scopes of everything that is there.
    fn sampled(
        &self,
        topics: Option<&[TopicRead]>,
        queues: Option<&[QueueRead]>,
        unread: &mut Unread,
    ) -> BTreeSet<String> {
        let (registry, gauges) = (&self.observer.registry, &self.observer.gauges);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.choose(topics, queues, registry.limit());
        let (mut known, mut said, mut reasons) = (BTreeSet::new(), Vec::new(), Vec::new());
        for (topic, read, pins) in topics.unwrap_or_default() {
            let scopes = [scope("topic", topic.as_str()), scope("pins", topic.as_str())];
            match read {
                // Everything else of the topic is known.
                Ok(sample) => {
                    said.push((scopes[0].clone(), values::of_topic(sample, &shown)));
                    match &sample.pins {
                        Some(read) => said.push((scopes[1].clone(), values::of_pins(sample, read, &shown))),
                        // They are asked for again in the next round.
                        None if *pins => self.ask_for_pins_again(topic),
                        None => {
                            let is_shown = |group: &str| shown.has_group(topic, group);
                            gauges.retain(registry, &scopes[1], |labels| is_shown(&labels[1]));
                            self.stays(&scopes[1]);
                        }
                    }
                    reasons.extend(sample.reasons().map(|reason| {
                        let error = Error::new(ErrorKind::WrongType, reason.to_owned()).at(topic);
                        ([topic.as_str(), ""], error.during(format_args!("sample {topic}")))
                    }));
                }
                // Deleted between the two requests.
                Err(error) if is_gone(error) => continue,
                Err(error) => {
                    reasons
                        .push(([topic.as_str(), ""], error.clone().during(format_args!("sample {topic}"))));
                    self.ask_for_pins_again(topic);
                }
            }
            known.extend(scopes);
        }
        for (queue, read) in queues.unwrap_or_default() {
            let scope = scope("queue", queue.as_str());
            match read {
                Ok(sample) if shown.has_queue(queue) => said.push((scope.clone(), values::of_queue(sample))),
                Ok(_) => said.push((scope.clone(), Values::default())),
                Err(error) if is_gone(error) => continue,
                Err(error) => {
                    let error = error.clone().during(format_args!("sample queue {queue}"));
                    reasons.push((["", queue.as_str()], error));
                }
            }
            known.insert(scope);
        }
        let mut values = Values::default();
        for (series, left_out) in shown.left_out() {
            values.set(table::LEFT_OUT, &[series], left_out as f64);
        }
        drop(shown);
        said.push((LEFT_OUT.to_owned(), values));
        let now = Instant::now();
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.extend(said.iter().map(|(scope, _)| (scope.clone(), now)).filter(|(it, _)| it != LEFT_OUT));
        drop(answered);
        gauges.say_all(registry, said);
        for (name, error) in reasons {
            self.fails(unread, name, error);
        }
        known
    }

    fn ask_for_pins_again(&self, topic: &TopicName) {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
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

    /// Returns the topics to read: those that are listed, and those of the round before. Who was deleted is gone when it is read;
    /// who is there, and not in the list, is not left out. `None` while the server gives no answer.
    async fn topics(&self, unread: &mut Unread) -> Option<Vec<TopicName>> {
        let listed = match &self.config.topics {
            Some(topics) => Ok(topics.clone()),
            None if !self.knows_topics() => Ok(Vec::new()),
            None => self.backend.catalog().topics().await,
        };
        let listed = self.listed(listed, "sample topics", unread)?;
        let before = self.shown.lock().unwrap_or_else(PoisonError::into_inner).topics();
        Some(listed.into_iter().chain(before).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns the delay queues to read, in the same way.
    async fn queues(&self, unread: &mut Unread) -> Option<Vec<QueueName>> {
        let listed = match &self.config.queues {
            Some(queues) => Ok(queues.clone()),
            None if !self.backend.supports(Capability::Tasks) => Ok(Vec::new()),
            None => match self.backend.tasks() {
                Ok(tasks) => tasks.queues().await,
                Err(error) => Err(error),
            },
        };
        let listed = self.listed(listed, "sample queues", unread)?;
        let before = self.shown.lock().unwrap_or_else(PoisonError::into_inner).queues();
        Some(listed.into_iter().chain(before).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns the names in a list; none of one that cannot be read, and `None` while the server gives no answer.
    fn listed<T>(&self, list: Result<Vec<T>>, doing: &str, unread: &mut Unread) -> Option<Vec<T>> {
        list.or_else(|error| {
            let away = error.is_transient();
            self.fails(unread, ["", ""], error.during(doing));
            if away { Err(()) } else { Ok(Vec::new()) }
        })
        .ok()
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
            let is_known = !all || known.contains(scope) || scope == BREAKERS;
            let stays = at.elapsed() < kept && is_known;
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
        for scope in answered.keys().map(String::as_str).chain([AGE, LEFT_OUT, UNREADABLE]) {
            self.observer.gauges.forget(&self.observer.registry, scope);
        }
    }
}

fn scope(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("config", &self.config).finish_non_exhaustive()
    }
}
