//! What the tests share: metrics that can be read back by name and labels.

#![allow(dead_code, reason = "each test uses a part")]

use std::sync::{Arc, Mutex};

use millstream_core::health::{ConsumerState, Health, HealthCheck, TopicHealth, WorkerCheck, WorkerHealth};
use millstream_core::{Event, GroupName, MemberId, Observer, TopicPartition};

use crate::{Metrics, MetricsConfig};

pub(crate) fn metrics(config: &MetricsConfig) -> Metrics {
    Metrics::with(config).expect("metrics")
}

pub(crate) fn tp(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition::new(topic.parse().expect("name"), partition)
}

pub(crate) fn group(name: &str) -> GroupName {
    name.parse().expect("name")
}

/// The value of the line that begins so, without the labels' closing brace if any are left out.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    let line =
        text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ').map(|(_, value)| value.parse().expect("a number"))
}

/// The names of the metrics that have a value.
pub(crate) fn names(text: &str) -> std::collections::BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let name = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
    let parts = ["_bucket", "_sum", "_count"];
    let whole =
        |name: String| parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(&name).to_owned();
    lines.map(name).map(whole).collect()
}

/// A consumer with a health that tests set.
pub(crate) struct Puppet(pub(crate) Mutex<Health>);

impl Puppet {
    pub(crate) fn new(group: &str, member: &str, state: ConsumerState) -> Arc<Self> {
        let health = Health::new(group.parse().expect("name"), member.parse().expect("name"), state);
        Arc::new(Self(Mutex::new(health)))
    }

    /// One of a topic.
    pub(crate) fn of(topic: &str, group: &str, member: &str, state: ConsumerState) -> Arc<Self> {
        let puppet = Self::new(group, member, state);
        puppet.set(|health| health.topics.push(TopicHealth::new(topic.parse().expect("name"))));
        puppet
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.0.lock().expect("lock"));
    }

    /// Reports its start to an observer.
    pub(crate) fn start(self: &Arc<Self>, observer: &impl Observer) {
        let health: Arc<dyn HealthCheck> = self.clone();
        let Health { group, member, .. } = self.health();
        let (group, member): (&GroupName, &MemberId) = (&group, &member);
        observer.observe(&Event::ConsumerStarted { group, member, health: &health });
    }
}

impl HealthCheck for Puppet {
    fn health(&self) -> Health {
        self.0.lock().expect("lock").clone()
    }
}

/// A worker of a delay queue with a health that tests set.
pub(crate) struct Hand(pub(crate) Mutex<WorkerHealth>);

impl Hand {
    pub(crate) fn new(queue: &str, worker: &str, state: ConsumerState) -> Arc<Self> {
        Arc::new(Self(Mutex::new(WorkerHealth::new(queue.parse().expect("name"), worker.into(), state))))
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut WorkerHealth)) {
        change(&mut self.0.lock().expect("lock"));
    }

    /// Reports its start to an observer.
    pub(crate) fn start(self: &Arc<Self>, observer: &impl Observer) {
        let health: Arc<dyn WorkerCheck> = self.clone();
        let queue = &self.health().queue;
        observer.observe(&Event::WorkerStarted { queue, health: &health });
    }
}

impl WorkerCheck for Hand {
    fn health(&self) -> WorkerHealth {
        self.0.lock().expect("lock").clone()
    }
}
