//! Health: the state of a consumer as plain values.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::health::{ConsumerState, Health, HealthCheck, LoopHealth, LoopsCheck, TopicHealth};
use millstream_core::sorted::SortedSet;
use millstream_core::{ErrorKind, TopicName, TopicPartition};

use crate::consumer::context::Context;

/// Health check of a consumer. It also works after the consumer has ended.
struct ConsumerHealthCheck(Arc<Context>);

impl HealthCheck for ConsumerHealthCheck {
    fn health(&self) -> Health {
        of(&self.0)
    }
}

pub(in crate::consumer) fn check(context: &Arc<Context>) -> Arc<dyn HealthCheck> {
    Arc::new(ConsumerHealthCheck(context.clone()))
}

pub(in crate::consumer) fn of(context: &Context) -> Health {
    let owned = context.status.owned();
    let paused = context.pauses.partitions();
    let partitions_of = |topic: &TopicName, all: &SortedSet<TopicPartition>| {
        all.iter().filter(|tp| tp.topic == *topic).map(|tp| tp.partition).collect()
    };
    let topics = context.status.topics().into_iter().map(|(topic, known)| {
        let mut health = TopicHealth::new(topic);
        health.members = known.members;
        health.assigned = known.assigned.map(|assigned| assigned.into_iter().collect());
        health.owned = partitions_of(&health.topic, &owned);
        health.paused = partitions_of(&health.topic, &paused);
        health.group_paused = context.pauses.group(&health.topic);
        health.in_flight = context.status.in_flight(&health.topic);
        health.candidates = context.status.candidates(&health.topic);
        health
    });
    let topics: Vec<_> = topics.collect();
    let joined = topics.iter().all(|topic| topic.assigned.is_some());
    let all_paused = !topics.is_empty() && topics.iter().all(|topic| topic.group_paused);
    let state = if let Some(cause) = context.cause() {
        if cause.kind() == ErrorKind::Deleted { ConsumerState::Deleted } else { ConsumerState::Fenced }
    } else if context.ended.is_cancelled() {
        ConsumerState::Ended
    } else if context.stop.is_cancelled() {
        ConsumerState::Leaving
    } else if !joined {
        ConsumerState::Joining
    } else if context.pauses.all() || all_paused {
        ConsumerState::Paused
    } else {
        ConsumerState::Running
    };
    let loops: Vec<_> = context.loops.loops();
    let cut_off = |each: &LoopHealth| {
        let lasts = each.failing.as_ref().map_or(Duration::ZERO, |failing| failing.lasts);
        each.operation == "heartbeat" && lasts > context.config.lease_ttl
    };
    let mut health = Health::new(context.group.clone(), context.member.clone(), state);
    health.asked_to_end = context.stop.is_cancelled() && context.cause().is_none();
    health.topics = topics;
    health.in_flight = health.topics.iter().map(|topic| topic.in_flight).sum();
    health.running_handlers = context.status.running();
    health.waiting = context.permits.as_ref().map(|pool| pool.waiting()).unwrap_or_default();
    health.connected = !loops.iter().any(cut_off);
    health.loops = loops;
    health
}
