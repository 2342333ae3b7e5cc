//! The gauges of topics, groups and delay queues, made of samples.

use millstream_core::GroupName;
use millstream_core::catalog::Pin;

use crate::sampling::gauges::Values;
use crate::sampling::sample::{GroupSample, QueueSample, TopicSample};
use crate::sampling::shown::{Level, Shown};
use crate::table;

/// Returns the gauges of a topic, as far as they are shown.
pub(crate) fn of_topic(sample: &TopicSample, shown: &Shown) -> Values {
    let mut values = Values::default();
    let topic = sample.topic.as_str();
    if shown.has_partitions(&sample.topic) {
        for (partition, length, waiting) in &sample.partitions {
            let labels = [topic, &partition.0.to_string()];
            values.set(table::LENGTH, &labels, known(*length));
            values.set(table::DELAYED, &labels, known(waiting.map(|it| it.total)));
            values.set(table::DELAYED_OVERDUE, &labels, known(waiting.map(|it| it.overdue)));
        }
    }
    for group in &sample.groups {
        let level = shown.of(&sample.topic, Some(&group.group));
        if level >= Level::Group {
            of_group(&mut values, topic, group, level);
            let backlog = sample.backlog_at_least(group) as f64;
            values.set(table::BACKLOG, &[topic, group.group.as_str()], backlog);
        }
    }
    values
}

/// Returns the value of a figure that may be unknown.
fn known(figure: Option<u64>) -> f64 {
    figure.map_or(f64::NAN, |figure| figure as f64)
}

pub(crate) fn of_pins(sample: &TopicSample, pins: &[Pin], shown: &Shown) -> Values {
    let mut values = Values::default();
    let topic = sample.topic.as_str();
    let is_shown = |group: &GroupName| shown.of(&sample.topic, Some(group)) >= Level::Group;
    for group in sample.groups.iter().filter(|group| is_shown(&group.group)) {
        let labels = [topic, group.group.as_str()];
        values.set(table::PINNED_MESSAGES, &labels, 0.0);
        values.set(table::PINNED_BYTES, &labels, 0.0);
    }
    // A group that is on a log alone has series, too, while there is room.
    let listed = |pin: &&Pin| sample.groups.iter().any(|group| group.group == pin.group);
    for pin in pins.iter().filter(|pin| !listed(pin) || is_shown(&pin.group)) {
        let labels = [topic, pin.group.as_str()];
        values.add(table::PINNED_MESSAGES, &labels, pin.messages as f64);
        values.add(table::PINNED_BYTES, &labels, pin.bytes as f64);
    }
    values
}

fn of_group(values: &mut Values, topic: &str, sample: &GroupSample, level: Level) {
    let group = sample.group.as_str();
    values.set(table::MEMBERS, &[topic, group], known(sample.members.map(|it| it as u64)));
    values.set(table::GROUP_PAUSED, &[topic, group], known(sample.paused.map(u64::from)));
    for survey in sample.partitions.iter().filter(|_| level == Level::Partitions) {
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

pub(crate) fn of_queue(sample: &QueueSample) -> Values {
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
