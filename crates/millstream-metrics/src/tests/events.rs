//! Every event becomes what the table says, and a message that is handled costs little.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millstream_core::event::{Cause, Handled, Ignore, LetterWork, LockEnd};
use millstream_core::log::{Settled, Source};
use millstream_core::panics::UserCode;
use millstream_core::schedule::{Place, ScheduleId, Shard};
use millstream_core::{Error, ErrorKind, Event, MessageId, Observer};

use super::support::{Hand, Puppet, group, metrics, names, tp, value};
use crate::{Kind, MetricSource, Metrics, MetricsConfig, table};

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("milliseconds")
}

fn new() -> Metrics {
    metrics(&MetricsConfig::default())
}

fn handled(metrics: &Metrics, attempt: u32, handled: Handled, cause: Option<Cause>) {
    let (tp, group) = (tp("t", 3), group("g"));
    metrics.observe(&Event::Handled {
        topic_partition: &tp,
        group: &group,
        attempt,
        handled,
        elapsed: Duration::from_millis(20),
        origin: MessageId::new(now().saturating_sub(1_000), 0),
        source: if attempt == 1 { Source::Log } else { Source::Retry },
        cause,
        error: cause.map(|_| "no"),
        key: None,
    });
}

#[test]
fn what_is_handled_is_counted_by_result_kind_and_reason() {
    let metrics = new();
    handled(&metrics, 1, Handled::Retried, Some(Cause::Panic));
    handled(&metrics, 2, Handled::Acked, None);
    handled(&metrics, 1, Handled::Dead, Some(Cause::Timeout));
    handled(&metrics, 1, Handled::Dead, Some(Cause::Error));
    handled(&metrics, 1, Handled::Dead, Some(Cause::Rejected));
    handled(&metrics, 1, Handled::Snoozed, None);
    handled(&metrics, 1, Handled::Discarded, Some(Cause::Malformed));
    let text = metrics.render();
    let labels = "topic=\"t\",partition=\"3\",group=\"g\"";
    let of = |name: &str, more: &str| value(&text, &format!("millstream_{name}{{{labels}{more}}}"));
    for (name, count) in
        [("acked_total", 1.0), ("retried_total", 1.0), ("snoozed_total", 1.0), ("discarded_total", 1.0)]
    {
        assert_eq!(of(name, ""), Some(count), "{name}");
    }
    for (kind, count) in
        [("panic", 1.0), ("timeout", 1.0), ("error", 1.0), ("rejected", 1.0), ("malformed", 1.0)]
    {
        assert_eq!(of("failed_total", &format!(",kind=\"{kind}\"")), Some(count), "{kind}");
    }
    assert_eq!(of("dead_total", ",reason=\"exhausted\""), Some(2.0));
    assert_eq!(of("dead_total", ",reason=\"rejected\""), Some(1.0));
    let group = "topic=\"t\",group=\"g\"";
    let dead = value(&text, &format!("millstream_handler_seconds_count{{{group},result=\"dead\"}}"));
    assert_eq!(dead, Some(3.0));
    // The first attempts waited; the last ones ended.
    assert_eq!(value(&text, &format!("millstream_queue_wait_seconds_count{{{group}}}")), Some(6.0));
    assert_eq!(value(&text, &format!("millstream_end_to_end_seconds_count{{{group}}}")), Some(5.0));
    let wait = value(&text, &format!("millstream_queue_wait_seconds_sum{{{group}}}")).expect("a sum") / 6.0;
    let whole = value(&text, &format!("millstream_end_to_end_seconds_sum{{{group}}}")).expect("a sum") / 5.0;
    assert!((0.97..5.0).contains(&wait) && (0.99..5.0).contains(&whole), "{wait} {whole}");
}

/// One of everything.
fn everything(metrics: &Metrics) {
    let (tp, group, id) = (tp("t", 0), group("g"), MessageId::new(1, 0));
    let (topic, member) = (tp.topic.clone(), "m".parse().expect("name"));
    let error = Error::new(ErrorKind::Unavailable, "refused");
    let shard = Shard::new("q".parse().expect("name"), 1);
    let (at_topic, at_queue) = (Place::from(tp.clone()), Place::from(shard.clone()));
    let schedule: ScheduleId = "s".parse().expect("an id");
    let (settled, late) = (Settled { applied: 5, stale: 2 }, Duration::from_millis(4));
    let (topic_partition, group) = (&tp, &group);
    let (lock, led) = ("invoice:42".parse().expect("name"), "leader:scheduler".parse().expect("name"));
    let (none, scheduler) = (None, Some("scheduler"));
    for event in [
        Event::Produced { topic_partition, messages: 3 },
        Event::Delayed { topic: &topic, messages: 4 },
        Event::Deduplicated { topic: &topic, messages: 2 },
        Event::ProduceFailed { topic: &topic, messages: 2, error: &error },
        Event::Assigned { topic_partition, group, epoch: 1 },
        Event::Revoked { topic_partition, group, epoch: 1 },
        Event::LeaseLost { topic_partition, group, epoch: 1 },
        Event::Rebalanced { topic: &topic, group, members: 2, partitions: 1 },
        Event::MemberFenced { topic: &topic, group, member: &member },
        Event::TailLost { topic_partition, group, from: id, to: id },
        Event::MarkerLost { topic_partition, group, origin: id },
        Event::CallMarkerLost { calls: "charges" },
        Event::Crashed { topic_partition, group, origin: id, crashes: 3 },
        Event::GroupRestored { topic_partition, group, after: id },
        Event::Fetched { topic_partition, group, messages: 6, pending: false },
        Event::Fetched { topic_partition, group, messages: 2, pending: true },
        Event::Ghosts { topic_partition, group, entries: 2 },
        Event::Settled { topic_partition, group, settled, elapsed: late },
        Event::Promoted { topic_partition, group, messages: 4, orphans: 1, late: Some(late) },
        Event::DelayedPromoted { topic_partition, messages: 3, orphans: 0, late: None },
        Event::Trimmed { topic_partition, messages: 9 },
        Event::Lost { topic_partition, group, unread: 4, pending: 3 },
        Event::DeadLetters {
            topic_partition,
            group,
            work: LetterWork::Replay,
            done: 5,
            passed_over: 2,
            refused: 1,
        },
        Event::DeadLettersDropped { topic_partition, group, aged: 6, excess: 4 },
        Event::DeadLettersDropped { topic_partition, group, aged: 0, excess: 1 },
        Event::DeadTasksDropped { shard: &shard, aged: 3, excess: 2 },
        Event::DeadTasksDropped { shard: &shard, aged: 1, excess: 0 },
        Event::Fired { place: &at_topic, id: &schedule, messages: 2, missed: 1 },
        Event::Fired { place: &at_queue, id: &schedule, messages: 3, missed: 0 },
        Event::Claimed { shard: &shard, tasks: 5, again: 2, crashed: 1 },
        Event::Worked {
            shard: &shard,
            task: &schedule,
            attempt: 1,
            handled: Handled::Acked,
            late,
            elapsed: late,
            error: None,
        },
        Event::TasksSettled { shard: &shard, settled },
        Event::ClaimsLost { shard: &shard, tasks: 2 },
        Event::LockAcquired { lock: &lock, election: none, epoch: 1, waited: late },
        Event::LockAcquired { lock: &lock, election: none, epoch: 2, waited: late },
        Event::LockEnded { lock: &lock, election: none, epoch: 1, end: LockEnd::Released, held: late },
        Event::LockEnded { lock: &lock, election: none, epoch: 2, end: LockEnd::Expired, held: late },
        Event::LockBusy { lock: &lock, election: none, waited: late },
        Event::LockAcquired { lock: &led, election: scheduler, epoch: 3, waited: late },
        Event::LockEnded { lock: &led, election: scheduler, epoch: 3, end: LockEnd::Refused, held: late },
        Event::Failing { operation: "fetch", topic_partition: None, error: &error },
        Event::Recovered { operation: "fetch", topic_partition: None },
        Event::Panicked { code: UserCode::Codec, text: "unlucky" },
        Event::OutboxSampled { oldest: Some(late), blocked: None, dead: 3 },
    ] {
        metrics.observe(&event);
    }
    handled(metrics, 1, Handled::Dead, Some(Cause::Error));
    handled(metrics, 1, Handled::Cancelled, None);
    handled(metrics, 1, Handled::Duplicate, None);
    handled(metrics, 1, Handled::Checked, None);
}

#[test]
fn every_event_is_counted_as_often_as_it_says() {
    let metrics = new();
    everything(&metrics);
    let text = metrics.render();
    let in_group = "{topic=\"t\",partition=\"0\",group=\"g\"}";
    let shard = "{queue=\"q\",shard=\"1\"}";
    let replayed = |result: &str| {
        let labels = "topic=\"t\",partition=\"0\",group=\"g\",operation=\"replay\"";
        format!("dead_letters_handled_total{{{labels},result=\"{result}\"}}")
    };
    let dropped = |reason: &str| {
        format!("dead_letters_dropped_total{{topic=\"t\",partition=\"0\",group=\"g\",reason=\"{reason}\"}}")
    };
    for (series, count) in [
        ("produced_total{topic=\"t\",partition=\"0\"}".to_owned(), 3.0),
        ("outbox_oldest_seconds".into(), 0.004),
        ("outbox_blocked_seconds".into(), 0.0),
        ("outbox_dead".into(), 3.0),
        ("locks_acquired_total".into(), 2.0),
        ("locks_ended_total{end=\"released\"}".into(), 1.0),
        ("locks_ended_total{end=\"expired\"}".into(), 1.0),
        ("locks_busy_total".into(), 1.0),
        ("lock_wait_seconds_count".into(), 2.0),
        ("lock_held_seconds_count".into(), 2.0),
        ("leader_terms_begun_total{election=\"scheduler\"}".into(), 1.0),
        ("leader_terms_ended_total{election=\"scheduler\",end=\"refused\"}".into(), 1.0),
        ("scheduled_total{topic=\"t\"}".into(), 4.0),
        ("deduplicated_total{topic=\"t\"}".into(), 2.0),
        ("duplicates_total{topic=\"t\",partition=\"3\",group=\"g\"}".into(), 1.0),
        ("checked_total{topic=\"t\",partition=\"3\",group=\"g\"}".into(), 1.0),
        (format!("markers_lost_total{in_group}"), 1.0),
        ("call_markers_lost_total{calls=\"charges\"}".into(), 1.0),
        ("produce_failures_total{topic=\"t\",kind=\"unavailable\"}".into(), 2.0),
        (format!("partition_assignments_total{in_group}"), 1.0),
        (format!("partition_revocations_total{in_group}"), 1.0),
        (format!("leases_lost_total{in_group}"), 1.0),
        (format!("tails_lost_total{in_group}"), 1.0),
        (format!("crashed_total{in_group}"), 1.0),
        (format!("groups_restored_total{in_group}"), 1.0),
        (format!("delivered_total{in_group}"), 8.0),
        (format!("reclaimed_total{in_group}"), 2.0),
        (format!("ghosts_total{in_group}"), 2.0),
        (format!("lost_total{in_group}"), 7.0),
        (format!("late_acks_total{in_group}"), 2.0),
        (replayed("done"), 5.0),
        (replayed("passed_over"), 2.0),
        (replayed("refused"), 1.0),
        (dropped("age"), 6.0),
        (dropped("length"), 5.0),
        ("dead_tasks_dropped_total{queue=\"q\",shard=\"1\",reason=\"age\"}".into(), 4.0),
        ("dead_tasks_dropped_total{queue=\"q\",shard=\"1\",reason=\"length\"}".into(), 2.0),
        ("rebalances_total{topic=\"t\",group=\"g\"}".into(), 1.0),
        ("members_fenced_total{topic=\"t\",group=\"g\"}".into(), 1.0),
        ("promoted_total{topic=\"t\",partition=\"0\"}".into(), 7.0),
        ("orphans_total{topic=\"t\",partition=\"0\"}".into(), 1.0),
        ("trimmed_total{topic=\"t\",partition=\"0\"}".into(), 9.0),
        ("fired_total{topic=\"t\",queue=\"\"}".into(), 2.0),
        ("missed_total{topic=\"t\",queue=\"\"}".into(), 1.0),
        ("fired_total{topic=\"\",queue=\"q\"}".into(), 3.0),
        (format!("task_claims_total{shard}"), 5.0),
        (format!("task_reclaims_total{shard}"), 2.0),
        (format!("tasks_crashed_total{shard}"), 1.0),
        (format!("tasks_late_acks_total{shard}"), 2.0),
        (format!("task_claims_lost_total{shard}"), 2.0),
        ("tasks_worked_total{queue=\"q\",shard=\"1\",result=\"acked\"}".into(), 1.0),
        ("errors_total{operation=\"fetch\",kind=\"unavailable\"}".into(), 1.0),
        ("recoveries_total{operation=\"fetch\"}".into(), 1.0),
        ("panics_total{code=\"codec\"}".into(), 1.0),
        ("settle_seconds_count{topic=\"t\",group=\"g\"}".into(), 1.0),
        ("settle_batch_messages_sum{topic=\"t\",group=\"g\"}".into(), 7.0),
        ("fetch_batch_messages_count{topic=\"t\",group=\"g\"}".into(), 2.0),
        ("delay_error_seconds_count{topic=\"t\",queue=\"\"}".into(), 1.0),
        ("delay_error_seconds_count{topic=\"\",queue=\"q\"}".into(), 1.0),
    ] {
        assert_eq!(value(&text, &format!("millstream_{series}")), Some(count), "{series}");
    }
}

#[test]
fn everything_in_the_table_comes_from_somewhere() {
    let metrics = metrics(&MetricsConfig::default().max_series(2));
    everything(&metrics);
    let puppet = Puppet::new("g", "m", millstream_core::health::ConsumerState::Running);
    puppet.set(|health| {
        let topic: millstream_core::TopicName = "t".parse().expect("name");
        health.loops.push(millstream_core::health::LoopHealth::new("fetch", topic.clone(), None));
        health.topics.push(millstream_core::health::TopicHealth::new(topic));
        health.waiting.push(("tenant".parse().expect("name"), 3));
    });
    puppet.start(&metrics);
    let hand = Hand::new("q", "w", millstream_core::health::ConsumerState::Running);
    hand.set(|health| {
        health.loops.push(millstream_core::health::WorkerLoop::new("claim", Some(0)));
        health.waiting.push(("tenant".parse().expect("name"), 3));
    });
    hand.start(&metrics);
    // One more partition than the limit allows.
    for partition in 1..4 {
        let (tp, group) = (tp("t", partition), group("g"));
        metrics.observe(&Event::Ghosts { topic_partition: &tp, group: &group, entries: 1 });
    }
    let text = metrics.render();
    let found = names(&text);
    for metric in table::ALL.iter().filter(|metric| metric.from != MetricSource::Server) {
        // That is the sampler's.
        if metric.name == table::SAMPLES.name {
            continue;
        }
        assert!(found.contains(metric.name), "{}", metric.name);
        assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
        assert!(
            text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.as_str())),
            "{}",
            metric.name
        );
        if metric.kind == Kind::Histogram {
            assert!(text.contains(&format!("{}_bucket{{", metric.name)), "{} has buckets", metric.name);
        }
    }
    let unknown: Vec<_> =
        found.iter().filter(|name| table::ALL.iter().all(|metric| metric.name != *name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Nanoseconds for each message that is handled, over 64 partitions.
fn cost(observer: &dyn Observer, rounds: u32) -> f64 {
    let (tps, group): (Vec<_>, _) =
        ((0..64).map(|partition| tp("orders", partition)).collect(), group("billing"));
    let origin = MessageId::new(now(), 0);
    let all = |rounds: u32| {
        for round in 0..rounds {
            observer.observe(&Event::Handled {
                topic_partition: &tps[round as usize % tps.len()],
                group: &group,
                attempt: 1,
                handled: Handled::Acked,
                elapsed: Duration::from_micros(u64::from(round % 1_000)),
                origin,
                source: Source::Log,
                cause: None,
                error: None,
                key: None,
            });
        }
    };
    all(rounds / 10);
    let started = Instant::now();
    all(rounds);
    started.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
}

#[test]
fn a_message_costs_little() {
    let metrics = new();
    let (observed, ignored) = (cost(&metrics, 200_000), cost(&Ignore, 200_000));
    metrics.prometheus().run_once();
    println!("{observed:.0} ns for a message that is handled, {ignored:.1} ns if nobody observes");
    // An allocation per label, or a registration, would cost several times that.
    assert!(observed < 5_000.0, "{observed} ns");
}
