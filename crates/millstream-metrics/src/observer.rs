//! The observer that turns events into metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::Counter;
use millstream_core::dead_letters::Overdue;
use millstream_core::event::{Cause, Event, Handled, Observer};
use millstream_core::health::{Health, LoopHealth, WorkerHealth};
use millstream_core::log::{Settled, Source};
use millstream_core::schedule::{Place, Shard};
use millstream_core::{Error, GroupName, MessageId, Reason, Result, TopicName, TopicPartition};

use crate::checks::Checks;
use crate::metric::Metric;
use crate::registry::{MetricsConfig, Registry, SharedRecorder};
use crate::sampling::clock::Clock;
use crate::sampling::gauges::{Gauges, Values};
use crate::series::{InPartition, Series};
use crate::table;

/// Scope of the gauges of the outbox.
const OUTBOX: &str = "outbox";

/// Observer that turns every event into metrics.
///
/// A label set is registered at its first use. After that an event costs a look-up by topic, group and partition, and a
/// few atomic additions: no allocation, and no access to the registry.
pub struct MetricsObserver {
    pub(crate) registry: Registry,
    pub(crate) checks: Checks,
    pub(crate) gauges: Gauges,
    pub(crate) clock: Clock,
    series: Series,
    rare: Mutex<BTreeMap<(&'static str, Vec<String>), Counter>>,
}

impl MetricsObserver {
    /// Creates an observer that uses the global recorder of the process ([`metrics::set_global_recorder`]). It must be
    /// installed before: whatever is registered without one is lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) that lists every invalid label.
    pub fn global(config: &MetricsConfig) -> Result<Self> {
        Ok(Self::over(Registry::new(None, config)?))
    }

    /// Creates an observer that uses this recorder.
    ///
    /// # Errors
    /// Same as [`global`](Self::global).
    pub fn with_recorder(recorder: SharedRecorder, config: &MetricsConfig) -> Result<Self> {
        Ok(Self::over(Registry::new(Some(recorder), config)?))
    }

    fn over(registry: Registry) -> Self {
        let (checks, gauges) = (Checks::default(), Gauges::default());
        let (clock, series) = (Clock::default(), Series::default());
        Self { registry, checks, gauges, clock, series, rare: Mutex::default() }
    }

    /// Returns the state of all consumers that reported their start to this observer, except those that have ended on
    /// request.
    #[must_use]
    pub fn consumers(&self) -> Vec<Health> {
        self.checks.healths()
    }

    /// Returns the state of all delay queue workers that reported their start to this observer, except those that have
    /// ended on request.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerHealth> {
        self.checks.workers()
    }

    /// Returns the state of the loops of producers, promoters and consumers of dead letters that reported them to this
    /// observer, until they end.
    #[must_use]
    pub fn loops(&self) -> Vec<LoopHealth> {
        self.checks.loops().into_iter().map(|(_, each)| each).collect()
    }

    /// Sets the gauges of these consumers, workers and loops to their current state. Call it just before rendering.
    ///
    /// A gauge of something that has ended becomes NaN. The recorder should forget gauges that are no longer set: that
    /// of [`Metrics`](crate::Metrics) does so after five minutes.
    pub fn show_consumers(&self) {
        self.gauges.repeat(&self.registry);
        self.checks.show(&self.registry, &self.gauges);
    }

    /// Counts events that are rare.
    pub(crate) fn rarely(&self, metric: &Metric, values: &[&str], count: usize) {
        let mut rare = self.rare.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (metric.name, values.iter().map(ToString::to_string).collect());
        rare.entry(key).or_insert_with(|| self.registry.counter(metric, values)).increment(count as u64);
    }

    fn produce_failed(&self, topic: &TopicName, messages: usize, error: &Error) {
        self.rarely(&table::PRODUCE_FAILED, &[topic.as_str(), error.kind().as_str()], messages);
    }

    fn handled(&self, message: &Message<'_>) {
        let Message { tp, group, handled, .. } = *message;
        if handled == Handled::Cancelled {
            let partition = tp.partition.0.to_string();
            self.rarely(&table::CANCELLED, &[tp.topic.as_str(), &partition, group.as_str()], 1);
        }
        self.series.in_group(&self.registry, tp, group, |in_group, partition| {
            match handled {
                Handled::Acked => partition.acked.increment(1),
                Handled::Retried => partition.retried.increment(1),
                Handled::Snoozed => partition.snoozed.increment(1),
                Handled::Discarded => partition.discarded.increment(1),
                Handled::Duplicate => partition.duplicates.increment(1),
                Handled::Checked => partition.checked.increment(1),
                _ => {}
            }
            if let Some(cause) = message.cause {
                let labelled = |metric, value: &str| {
                    let partition = tp.partition.0.to_string();
                    self.registry.counter(metric, &[tp.topic.as_str(), &partition, group.as_str(), value])
                };
                let failed =
                    partition.failed.get(cause as usize, || labelled(&table::FAILED, cause.as_str()));
                failed.iter().for_each(|counter| counter.increment(1));
                if handled == Handled::Dead {
                    let reason = cause.reason();
                    // Several causes share the reason `exhausted`, and its counter.
                    let index = if reason == Reason::Exhausted { Cause::Error } else { cause } as usize;
                    let dead = partition.dead.get(index, || labelled(&table::DEAD_TOTAL, reason.as_str()));
                    dead.iter().for_each(|counter| counter.increment(1));
                }
            }
            let handler = in_group.handler.get(handled as usize, || {
                let labels = [tp.topic.as_str(), group.as_str(), handled.as_str()];
                self.registry.histogram(&table::HANDLER_SECONDS, &labels)
            });
            handler.iter().for_each(|histogram| histogram.record(message.elapsed));
            let first = message.first;
            let last = !matches!(handled, Handled::Retried | Handled::Snoozed);
            if first || last {
                let age = self.clock.since(message.origin.timestamp()).as_secs_f64();
                if first {
                    // The event is emitted at the end of the attempt, so the handler's time is subtracted.
                    in_group.queue_wait.record((age - message.elapsed.as_secs_f64()).max(0.0));
                }
                if last {
                    in_group.end_to_end.record(age);
                }
            }
        });
    }

    fn settled(&self, tp: &TopicPartition, group: &GroupName, settled: Settled, elapsed: Duration) {
        self.series.in_group(&self.registry, tp, group, |in_group, partition| {
            partition.late_acks.increment(settled.stale as u64);
            in_group.settle.record(elapsed);
            in_group.settle_batch.record((settled.applied + settled.stale) as f64);
        });
    }

    fn promoted(&self, tp: &TopicPartition, messages: usize, orphans: usize, late: Option<Duration>) {
        self.series.partition(&self.registry, tp, |topic, partition| {
            partition.promoted.increment(messages as u64);
            partition.orphans.increment(orphans as u64);
            late.into_iter().for_each(|late| topic.delay_error.record(late));
        });
    }

    fn fired(&self, place: &Place, messages: usize, missed: usize) {
        let count = |fired: &Counter, passed_over: &Counter| {
            fired.increment(messages as u64);
            passed_over.increment(missed as u64);
        };
        match place {
            Place::Partition(tp) => {
                self.series.topic(&self.registry, &tp.topic, |topic| count(&topic.fired, &topic.missed));
            }
            Place::Shard(shard) => {
                self.series.queue(&self.registry, &shard.queue, |queue| count(&queue.fired, &queue.missed));
            }
        }
    }

    fn worked(&self, shard: &Shard, attempt: u32, handled: Handled, late: Duration, elapsed: Duration) {
        let result = handled.as_str();
        self.series.shard(&self.registry, shard, |queue, counts| {
            let worked = counts.worked.get(handled as usize, || {
                let labels = [shard.queue.as_str(), &shard.shard.to_string(), result];
                self.registry.counter(&table::TASKS_WORKED, &labels)
            });
            worked.iter().for_each(|counter| counter.increment(1));
            let handler = queue.handler.get(handled as usize, || {
                self.registry.histogram(&table::TASK_SECONDS, &[shard.queue.as_str(), result])
            });
            handler.iter().for_each(|histogram| histogram.record(elapsed));
            if attempt == 1 {
                queue.delay_error.record(late);
            }
        });
    }

    /// Counts what happens to locks. Only those of elections have labels.
    fn locks(&self, event: &Event<'_>) {
        let seconds = |metric, time: Duration| self.registry.histogram(metric, &[]).record(time);
        match *event {
            Event::LockAcquired { election: None, waited, .. } => {
                self.rarely(&table::LOCKS_ACQUIRED, &[], 1);
                seconds(&table::LOCK_WAIT_SECONDS, waited);
            }
            Event::LockAcquired { election: Some(election), .. } => {
                self.rarely(&table::TERMS_BEGUN, &[election], 1);
            }
            Event::LockEnded { election: None, end, held, .. } => {
                self.rarely(&table::LOCKS_ENDED, &[end.as_str()], 1);
                seconds(&table::LOCK_HELD_SECONDS, held);
            }
            Event::LockEnded { election: Some(election), end, .. } => {
                self.rarely(&table::TERMS_ENDED, &[election, end.as_str()], 1);
            }
            Event::LockBusy { election: None, .. } => self.rarely(&table::LOCKS_BUSY, &[], 1),
            _ => {}
        }
    }

    /// Counts changes of the ownership of partitions and of the state of groups.
    fn ownership(&self, event: &Event<'_>) {
        let (tp, group, counter): (_, _, fn(&InPartition) -> &Counter) = match *event {
            Event::Assigned { topic_partition, group, .. } => (topic_partition, group, |it| &it.assigned),
            Event::Revoked { topic_partition, group, .. } => (topic_partition, group, |it| &it.revoked),
            Event::LeaseLost { topic_partition, group, .. } => (topic_partition, group, |it| &it.leases_lost),
            Event::TailLost { topic_partition, group, .. } => (topic_partition, group, |it| &it.tails_lost),
            Event::GroupRestored { topic_partition, group, .. } => {
                (topic_partition, group, |it| &it.restored)
            }
            Event::MarkerLost { topic_partition, group, .. } => {
                (topic_partition, group, |it| &it.markers_lost)
            }
            Event::Crashed { topic_partition, group, .. } => (topic_partition, group, |it| &it.crashed),
            _ => return,
        };
        self.series.in_group(&self.registry, tp, group, |_, partition| counter(partition).increment(1));
    }
}

impl Observer for MetricsObserver {
    fn observe(&self, event: &Event<'_>) {
        let (registry, series) = (&self.registry, &self.series);
        match *event {
            Event::Handled {
                topic_partition: tp,
                group,
                attempt,
                handled,
                elapsed,
                origin,
                source,
                cause,
                ..
            } => {
                let first = attempt == 1 && source == Source::Log;
                self.handled(&Message { tp, group, first, handled, elapsed, origin, cause });
            }
            Event::Fetched { topic_partition, group, messages, pending } => {
                series.in_group(registry, topic_partition, group, |in_group, partition| {
                    partition.delivered.increment(messages as u64);
                    partition.reclaimed.increment(if pending { messages as u64 } else { 0 });
                    in_group.fetch_batch.record(messages as f64);
                });
            }
            Event::Settled { topic_partition, group, settled, elapsed } => {
                self.settled(topic_partition, group, settled, elapsed);
            }
            Event::Produced { topic_partition, messages } => {
                series.produced(registry, topic_partition, messages as u64);
            }
            Event::Delayed { topic, messages } => {
                series.topic(registry, topic, |topic| topic.scheduled.increment(messages as u64));
            }
            Event::Deduplicated { topic, messages } => {
                self.rarely(&table::DEDUPLICATED, &[topic.as_str()], messages);
            }
            Event::ProduceFailed { topic, messages, error } => self.produce_failed(topic, messages, error),
            Event::OutboxSampled { oldest, blocked, dead } => {
                let mut values = Values::default();
                let seconds = |age: Option<Duration>| age.unwrap_or_default().as_secs_f64();
                values.set(table::OUTBOX_OLDEST_SECONDS, &[], seconds(oldest));
                values.set(table::OUTBOX_BLOCKED_SECONDS, &[], seconds(blocked));
                values.set(table::OUTBOX_DEAD, &[], dead as f64);
                self.gauges.say(registry, OUTBOX, values);
            }
            Event::OutboxUnknown => self.gauges.forget(registry, OUTBOX),
            Event::Ghosts { topic_partition, group, entries } => {
                series.in_group(registry, topic_partition, group, |_, partition| {
                    partition.ghosts.increment(entries as u64);
                });
            }
            Event::Promoted { topic_partition, messages, orphans, late, .. }
            | Event::DelayedPromoted { topic_partition, messages, orphans, late } => {
                self.promoted(topic_partition, messages, orphans, late);
            }
            Event::Trimmed { topic_partition, messages } => {
                series.partition(registry, topic_partition, |_, partition| {
                    partition.trimmed.increment(messages as u64);
                });
            }
            Event::Lost { topic_partition, group, unread, pending } => {
                series.in_group(registry, topic_partition, group, |_, partition| {
                    partition.lost.increment(unread + pending);
                });
            }
            Event::DeadLettersDropped { topic_partition: tp, group, aged, excess } => {
                let partition = tp.partition.0.to_string();
                for (reason, letters) in [(Overdue::Age, aged), (Overdue::Length, excess)] {
                    if letters > 0 {
                        let labels = [tp.topic.as_str(), &partition, group.as_str(), reason.as_str()];
                        self.rarely(
                            &table::LETTERS_DROPPED,
                            &labels,
                            usize::try_from(letters).unwrap_or(usize::MAX),
                        );
                    }
                }
            }
            Event::DeadTasksDropped { shard, aged, excess } => {
                let (queue, nth) = (shard.queue.as_str(), shard.shard.to_string());
                for (reason, tasks) in [(Overdue::Age, aged), (Overdue::Length, excess)] {
                    if tasks > 0 {
                        let labels = [queue, &nth, reason.as_str()];
                        let tasks = usize::try_from(tasks).unwrap_or(usize::MAX);
                        self.rarely(&table::DEAD_TASKS_DROPPED, &labels, tasks);
                    }
                }
            }
            Event::DeadLetters { topic_partition: tp, group, work, done, passed_over, refused } => {
                let partition = tp.partition.0.to_string();
                for (result, letters) in [("done", done), ("passed_over", passed_over), ("refused", refused)]
                {
                    if letters > 0 {
                        let labels = [tp.topic.as_str(), &partition, group.as_str(), work.as_str(), result];
                        self.rarely(&table::LETTERS, &labels, letters);
                    }
                }
            }
            Event::Fired { place, messages, missed, .. } => self.fired(place, messages, missed),
            Event::Rebalanced { topic, group, .. } => {
                series.group(registry, topic, group, |group| group.rebalances.increment(1));
            }
            Event::MemberFenced { topic, group, .. } => {
                series.group(registry, topic, group, |group| group.fenced.increment(1));
            }
            Event::Claimed { shard, tasks, again, crashed } => {
                series.shard(registry, shard, |_, counts| {
                    counts.claimed.increment(tasks as u64);
                    counts.reclaimed.increment(again as u64);
                    counts.crashed.increment(crashed as u64);
                });
            }
            Event::Worked { shard, attempt, handled, late, elapsed, .. } => {
                self.worked(shard, attempt, handled, late, elapsed);
            }
            Event::TasksSettled { shard, settled } => {
                series.shard(registry, shard, |_, counts| counts.late_acks.increment(settled.stale as u64));
            }
            Event::ClaimsLost { shard, tasks } => {
                series.shard(registry, shard, |_, counts| counts.claims_lost.increment(tasks as u64));
            }
            Event::Failing { operation, error, .. } => {
                self.rarely(&table::ERRORS, &[operation, error.kind().as_str()], 1);
            }
            Event::Recovered { operation, .. } => self.rarely(&table::RECOVERIES, &[operation], 1),
            Event::Panicked { code, .. } => self.rarely(&table::PANICS, &[code.as_str()], 1),
            Event::ConsumerStarted { health, .. } => self.checks.add(health.clone()),
            Event::WorkerStarted { health, .. } => self.checks.add_worker(health.clone()),
            Event::LoopsStarted { group, loops } => self.checks.add_loops(group.cloned(), loops.clone()),
            Event::CallMarkerLost { calls } => self.rarely(&table::CALL_MARKERS_LOST, &[calls], 1),
            Event::LockAcquired { .. } | Event::LockEnded { .. } | Event::LockBusy { .. } => {
                self.locks(event);
            }
            _ => self.ownership(event),
        }
    }
}

/// Message that was handled.
struct Message<'a> {
    tp: &'a TopicPartition,
    group: &'a GroupName,
    /// Whether it was the first attempt.
    first: bool,
    handled: Handled,
    elapsed: Duration,
    origin: MessageId,
    cause: Option<Cause>,
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").field("registry", &self.registry).finish_non_exhaustive()
    }
}
