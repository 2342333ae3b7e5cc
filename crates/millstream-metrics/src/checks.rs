//! Gauges and probes of this process's consumers, workers and other loops, from their own health checks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::GroupName;
use millstream_core::health::{
    ConsumerState, Health, HealthCheck, LoopHealth, LoopsCheck, WorkerCheck, WorkerHealth,
};
use millstream_core::panics::{Panicked, UserCode, catch};

use crate::registry::Registry;
use crate::sampling::gauges::{Gauges, Values};
use crate::table;

/// Health checks of all consumers and workers that were started, except those that have ended on request.
#[derive(Default)]
pub(crate) struct Checks {
    consumers: Mutex<Vec<Arc<dyn HealthCheck>>>,
    workers: Mutex<Vec<Arc<dyn WorkerCheck>>>,
    /// Loops that belong to neither.
    loops: Mutex<Vec<OtherLoops>>,
}

/// Loops of one component, and the group that they work for.
type OtherLoops = (Option<GroupName>, Arc<dyn LoopsCheck>);

impl Checks {
    /// Adds a consumer that has started.
    pub(crate) fn add(&self, check: Arc<dyn HealthCheck>) {
        let Some(new) = asked(|| check.health()) else { return };
        let mut running = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|check| {
            let Some(old) = asked(|| check.health()) else { return true };
            let replaced = has_ended(&old) && takes_the_place_of(&new, &old);
            !(replaced || is_over(&old))
        });
        running.push(check);
    }

    /// Adds a worker that has started.
    pub(crate) fn add_worker(&self, check: Arc<dyn WorkerCheck>) {
        let mut running = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|check| asked(|| check.health()).is_none_or(|health| !worker_is_over(&health)));
        running.push(check);
    }

    /// Adds loops that belong to neither a consumer nor a worker.
    pub(crate) fn add_loops(&self, group: Option<GroupName>, check: Arc<dyn LoopsCheck>) {
        let mut running = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(_, check)| asked(|| check.loops()).is_none_or(|loops| !loops.is_empty()));
        running.push((group, check));
    }

    /// Returns the state of each of these loops.
    pub(crate) fn loops(&self) -> Vec<(Option<GroupName>, LoopHealth)> {
        let mut running = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::with_capacity(running.len());
        running.retain(|(group, check)| {
            let Some(loops) = asked(|| check.loops()) else { return true };
            let runs = !loops.is_empty();
            all.extend(loops.into_iter().map(|each| (group.clone(), each)));
            runs
        });
        all
    }

    /// Returns the state of each consumer.
    pub(crate) fn healths(&self) -> Vec<Health> {
        let mut running = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut healths = Vec::with_capacity(running.len());
        running.retain(|check| {
            let Some(health) = asked(|| check.health()) else { return true };
            let over = is_over(&health);
            healths.extend((!over).then_some(health));
            !over
        });
        healths
    }

    /// Returns the state of each worker.
    pub(crate) fn workers(&self) -> Vec<WorkerHealth> {
        let mut running = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut healths = Vec::with_capacity(running.len());
        running.retain(|check| {
            let Some(health) = asked(|| check.health()) else { return true };
            let over = worker_is_over(&health);
            healths.extend((!over).then_some(health));
            !over
        });
        healths
    }

    /// Sets the gauges.
    pub(crate) fn show(&self, registry: &Registry, gauges: &Gauges) {
        // One scope for all consumers and loops, so that values with the same labels are merged.
        let mut values = Values::default();
        self.healths().iter().for_each(|health| of_consumer(&mut values, health));
        for (group, each) in self.loops() {
            of_loop(&mut values, &each, group.as_ref().map_or("", GroupName::as_str), "");
        }
        gauges.say(registry, "consumers", values);
        let mut values = Values::default();
        self.workers().iter().for_each(|health| of_worker(&mut values, health));
        gauges.say(registry, "workers", values);
    }
}

/// Calls a check; returns `None` if it panics. It is left out of this round then, and called again in the next one.
fn asked<T>(check: impl FnOnce() -> T) -> Option<T> {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    match catch(UserCode::HealthCheck, check) {
        Ok(says) => Some(says),
        Err(Panicked { code, text }) => {
            let nth = PANICS.fetch_add(1, Ordering::Relaxed) + 1;
            // It panics in every round, and a line for each would flood the log: only powers of two are logged.
            if nth.is_power_of_two() {
                tracing::error!(code = code.as_str(), panic = text, panics = nth, "user code panicked");
            }
            None
        }
    }
}

/// Returns whether it has ended on request.
fn is_over(health: &Health) -> bool {
    health.state == ConsumerState::Ended && health.asked_to_end
}

fn worker_is_over(health: &WorkerHealth) -> bool {
    health.state == ConsumerState::Ended && health.asked_to_end
}

/// Returns whether it has ended by itself: these gauges and probes are the only place where that still shows.
fn has_ended(health: &Health) -> bool {
    matches!(health.state, ConsumerState::Ended | ConsumerState::Fenced | ConsumerState::Deleted)
}

/// Returns whether `new` is a restart, by this process, of a consumer that had ended.
fn takes_the_place_of(new: &Health, old: &Health) -> bool {
    let topics = |health: &Health| health.topics.iter().map(|it| it.topic.clone()).collect::<Vec<_>>();
    new.group == old.group && new.member == old.member && topics(new) == topics(old)
}

fn truth(it: bool) -> f64 {
    f64::from(u8::from(it))
}

fn of_consumer(values: &mut Values, health: &Health) {
    let (group, consumer) = (health.group.as_str(), health.member.as_str());
    values.add(table::HANDLERS_RUNNING, &[group, consumer], health.running_handlers as f64);
    for (limit, waiting) in &health.waiting {
        values.add(table::LIMIT_WAITING, &[limit.as_str(), group, consumer], *waiting as f64);
    }
    for topic in &health.topics {
        let labels = [topic.topic.as_str(), group, consumer];
        let assigned = topic.assigned.as_ref().map_or(f64::NAN, |assigned| assigned.len() as f64);
        values.add(table::IN_FLIGHT, &labels, topic.in_flight as f64);
        values.add(table::POISON_CANDIDATES, &labels, topic.candidates as f64);
        values.add(table::PARTITIONS_OWNED, &labels, topic.owned.len() as f64);
        values.add(table::PARTITIONS_ASSIGNED, &labels, assigned);
        values.least(table::CONSUMER_READY, &labels, truth(health.is_ready()));
        values.least(table::CONSUMER_LIVE, &labels, truth(health.is_live()));
    }
    health.loops.iter().for_each(|each| of_loop(values, each, group, consumer));
}

fn of_loop(values: &mut Values, each: &LoopHealth, group: &str, consumer: &str) {
    let partition = each.partition.map(|partition| partition.0.to_string()).unwrap_or_default();
    let topic = each.topic.as_str();
    let labels = [each.operation, topic, &partition, group, consumer];
    values.most(table::LOOP_LAST_PROGRESS, &labels, each.last_progress.as_secs_f64());
    let labels = [each.operation, topic, group, consumer];
    values.add(table::LOOPS_FAILING, &labels, truth(each.failing.is_some()));
    values.add(table::LOOPS_STALLED, &labels, truth(each.stalled));
}

fn of_worker(values: &mut Values, health: &WorkerHealth) {
    let (queue, worker) = (health.queue.as_str(), health.worker.as_str());
    let labels = [queue, worker];
    values.set(table::TASKS_RUNNING, &labels, health.running as f64);
    for (limit, waiting) in &health.waiting {
        values.add(table::QUEUE_LIMIT_WAITING, &[limit.as_str(), queue, worker], *waiting as f64);
    }
    values.set(table::WORKER_READY, &labels, truth(health.is_ready()));
    values.set(table::WORKER_LIVE, &labels, truth(health.is_live()));
    for each in &health.loops {
        let shard = each.shard.map(|shard| shard.to_string()).unwrap_or_default();
        let labels = [each.operation, queue, &shard, worker];
        values.most(table::WORKER_LOOP_LAST_PROGRESS, &labels, each.last_progress.as_secs_f64());
        let labels = [each.operation, queue, worker];
        values.add(table::WORKER_LOOPS_FAILING, &labels, truth(each.failing.is_some()));
        values.add(table::WORKER_LOOPS_STALLED, &labels, truth(each.stalled));
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").finish_non_exhaustive()
    }
}
