//! Code of others that panics: the figures of everything else are shown all the same.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use millstream_core::health::{
    ConsumerState, Health, HealthCheck, LoopHealth, LoopsCheck, WorkerCheck, WorkerHealth,
};
use millstream_core::{Backend, Event, Observer, TopicName};
use millstream_memory::MemoryBackend;

use super::support::{Hand, Puppet, metrics, value};
use crate::{MetricsConfig, MetricsObserver, Sampler, SamplerConfig, table};

/// Health checks that panic if told so.
struct Unlucky {
    consumer: Arc<Puppet>,
    worker: Arc<Hand>,
    panics: AtomicBool,
}

impl Unlucky {
    fn check(&self) {
        assert!(!self.panics.load(Ordering::Relaxed), "a health check panics");
    }
}

impl HealthCheck for Unlucky {
    fn health(&self) -> Health {
        self.check();
        self.consumer.health()
    }
}

impl WorkerCheck for Unlucky {
    fn health(&self) -> WorkerHealth {
        self.check();
        self.worker.health()
    }
}

fn producing() -> LoopHealth {
    let topic: TopicName = "t".parse().expect("a name");
    LoopHealth::new("produce", topic, None)
}

impl LoopsCheck for Unlucky {
    fn loops(&self) -> Vec<LoopHealth> {
        self.check();
        vec![producing()]
    }
}

struct Fine;

impl LoopsCheck for Fine {
    fn loops(&self) -> Vec<LoopHealth> {
        vec![producing()]
    }
}

#[test]
fn a_health_check_that_panics_is_left_out() {
    let metrics = metrics(&MetricsConfig::default());
    let running = ConsumerState::Running;
    let unlucky = Arc::new(Unlucky {
        consumer: Puppet::of("t", "g", "unlucky", running),
        worker: Hand::new("q", "unlucky", running),
        panics: AtomicBool::new(false),
    });
    let (Health { group, member, .. }, queue) = (unlucky.consumer.health(), unlucky.worker.health().queue);
    let health: Arc<dyn HealthCheck> = unlucky.clone();
    metrics.observe(&Event::ConsumerStarted { group: &group, member: &member, health: &health });
    let health: Arc<dyn WorkerCheck> = unlucky.clone();
    metrics.observe(&Event::WorkerStarted { queue: &queue, health: &health });
    let all: [Arc<dyn LoopsCheck>; 2] = [unlucky.clone(), Arc::new(Fine)];
    for loops in &all {
        metrics.observe(&Event::LoopsStarted { group: None, loops });
    }
    let observer = metrics.observer();
    let shown = || (observer.consumers().len(), observer.workers().len(), observer.loops().len());
    assert_eq!(shown(), (1, 1, 2));

    unlucky.panics.store(true, Ordering::Relaxed);
    // Others start meanwhile, which looks at those that there are.
    Puppet::of("t", "g", "fine", running).start(&metrics);
    Hand::new("q", "fine", running).start(&metrics);
    assert_eq!(shown(), (1, 1, 1));
    let text = metrics.render();
    let ready = |text: &str, name: &str| {
        let consumer = format!("millstream_consumer_ready{{topic=\"t\",group=\"g\",consumer=\"{name}\"}}");
        let worker = format!("millstream_worker_ready{{queue=\"q\",worker=\"{name}\"}}");
        [consumer, worker].map(|series| value(text, &series).is_some_and(|value| !value.is_nan()))
    };
    assert_eq!((ready(&text, "fine"), ready(&text, "unlucky")), ([true; 2], [false; 2]), "{text}");

    unlucky.panics.store(false, Ordering::Relaxed);
    assert_eq!(shown(), (2, 2, 2), "it is called again in the next round");
    assert_eq!(ready(&metrics.render(), "unlucky"), [true; 2]);
}

/// A recorder that panics if told so, and otherwise counts by name what is registered.
#[derive(Default)]
struct Moody {
    panics: AtomicBool,
    registered: Mutex<BTreeMap<String, usize>>,
    refused: Mutex<usize>,
}

impl Moody {
    fn register(&self, key: &Key) {
        if self.panics.load(Ordering::Relaxed) {
            *self.refused.lock().expect("lock") += 1;
            panic!("a recorder panics");
        }
        *self.registered.lock().expect("lock").entry(key.name().to_owned()).or_default() += 1;
    }

    fn registered(&self, name: &str) -> usize {
        self.registered.lock().expect("lock").get(name).copied().unwrap_or_default()
    }
}

impl Recorder for Moody {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.register(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.register(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.register(key);
        Histogram::noop()
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_does_not_end_the_sampler() {
    let recorder = Arc::new(Moody::default());
    let observer = MetricsObserver::with_recorder(recorder.clone(), &MetricsConfig::default());
    let observer = Arc::new(observer.expect("an observer"));
    let interval = Duration::from_secs(1);
    let config = SamplerConfig::default().interval(interval);
    let sampler = Sampler::new(Backend::from(MemoryBackend::new()), observer, config).expect("a sampler");
    let sampling = tokio::spawn(async move { sampler.run().await });
    recorder.panics.store(true, Ordering::Relaxed);
    tokio::time::sleep(5 * interval).await;
    assert!(*recorder.refused.lock().expect("lock") >= 5, "a panic in each round");
    assert!(!sampling.is_finished());
    recorder.panics.store(false, Ordering::Relaxed);
    tokio::time::sleep(2 * interval).await;
    assert!(recorder.registered(table::SAMPLE_AGE_SECONDS.name) >= 1, "it samples again");
    sampling.abort();
}
