//! What tests of the delay queue share.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

pub mod link;
pub mod places;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::{Backend, Observer};
use millstream_memory::MemoryBackend;
use tokio::time::Instant;

use crate::DelayQueue;

pub const MS: fn(u64) -> Duration = Duration::from_millis;
pub const SECS: fn(u64) -> Duration = Duration::from_secs;

/// When the clock of the backend starts: 2023-11-14 22:13:20 UTC.
pub const EPOCH: u64 = 1_700_000_000_000;

pub fn memory() -> Backend {
    Backend::from(MemoryBackend::at(MS(EPOCH)))
}

pub async fn open(backend: &Backend, shards: u32) -> DelayQueue<u64> {
    DelayQueue::<u64>::new("q").shards(shards).open(backend).await.expect("opens")
}

/// A queue of one shard in memory.
pub async fn queue() -> DelayQueue<u64> {
    open(&memory(), 1).await
}

/// Waits until it holds, in small steps of the paused clock.
pub async fn eventually(mut holds: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + SECS(600);
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(MS(1)).await;
    }
}

/// What was seen, in order.
pub struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Seen<T> {
    pub fn push(&self, one: T) {
        self.0.lock().expect("lock").push(one);
    }

    pub fn all(&self) -> Vec<T> {
        self.0.lock().expect("lock").clone()
    }

    pub fn len(&self) -> usize {
        self.0.lock().expect("lock").len()
    }

    pub async fn reach(&self, count: usize) {
        eventually(|| self.len() >= count, "so many are seen").await;
    }
}

/// Events as text.
pub fn events() -> (impl Observer + 'static, Seen<String>) {
    let seen = Seen::default();
    let tell = seen.clone();
    (move |event: &millstream_core::Event<'_>| tell.push(format!("{event:?}")), seen)
}

/// Modules that have logged warnings on this thread, in order.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<&'static str>>>);

impl Warnings {
    /// Collects them until the guard is dropped.
    pub fn collect() -> (Self, tracing::subscriber::DefaultGuard) {
        let warnings = Self::default();
        let guard = tracing::subscriber::set_default(warnings.clone());
        (warnings, guard)
    }

    /// The number of warnings of one module.
    pub fn of(&self, module: &str) -> usize {
        self.0.lock().expect("lock").iter().filter(|target| **target == module).count()
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        if *event.metadata().level() == tracing::Level::WARN {
            self.0.lock().expect("lock").push(event.metadata().target());
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
