//! The extend loop of markers: extends those whose handlers run, three times per ttl.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::idempotency::Marker;
use millstream_core::{MessageId, TopicPartition};
use millstream_loops::LoopMonitor;
use tokio::time::{sleep, timeout};

use crate::consumer::context::{Context, Subscription};

/// Markers of handlers that run. Clones are the same table.
#[derive(Clone, Debug, Default)]
pub(in crate::consumer) struct MarkerTable(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// Locked while markers are being extended.
    round: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    running: HashMap<u64, (Phase, Arc<Running>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The handler runs.
    Handling,
    /// The handler succeeded. The marker is extended until it is done; whether it was lost is found by the completion.
    Completing,
    /// The handler failed. An extension would bring the marker back.
    Abandoning,
}

#[derive(Debug)]
struct Running {
    marker: Marker,
    topic_partition: TopicPartition,
    origin: MessageId,
}

/// Marker that is extended until this is dropped.
pub(in crate::consumer) struct Kept {
    table: MarkerTable,
    id: u64,
    running: Arc<Running>,
}

impl MarkerTable {
    /// Keeps the marker of a message's operation.
    pub(in crate::consumer) fn keep(
        &self,
        marker: Marker,
        topic_partition: &TopicPartition,
        origin: MessageId,
    ) -> Kept {
        let running = Arc::new(Running { marker, topic_partition: topic_partition.clone(), origin });
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        table.running.insert(id, (Phase::Handling, running.clone()));
        drop(table);
        Kept { table: self.clone(), id, running }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    pub(in crate::consumer) fn marker(&self) -> &Marker {
        &self.running.marker
    }

    /// Records that the handler has succeeded, and its marker is being completed.
    pub(in crate::consumer) fn completes(&self) {
        self.set(Phase::Completing);
    }

    /// Records that the marker is to be abandoned, and waits until no extension of it is under way.
    pub(in crate::consumer) async fn abandons(&self) {
        self.set(Phase::Abandoning);
        drop(self.table.0.round.lock().await);
    }

    fn set(&self, phase: Phase) {
        if let Some((stored, _)) = self.table.table().running.get_mut(&self.id) {
            *stored = phase;
        }
    }

    /// Reports that another message or instance has taken over the operation.
    pub(in crate::consumer) fn lost(&self, context: &Context) {
        // Reported once: by the loop that extends, or by the end of the handler.
        if self.table.table().running.remove(&self.id).is_some() {
            self.running.report_lost(context);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.table.table().running.remove(&self.id);
    }
}

impl Running {
    fn report_lost(&self, context: &Context) {
        let Self { topic_partition, origin, .. } = self;
        // The id of the operation may be a key or a header: it is not logged.
        let group = &context.group;
        tracing::warn!(%topic_partition, %group, %origin, "the marker was taken over while the handler ran");
        context.observer.observe(&Event::MarkerLost { topic_partition, group, origin: *origin });
    }
}

/// Extends the markers of a consumer. One lost request does no harm: a marker that expired is revived unless another message
/// or instance began its operation.
pub(in crate::consumer) struct MarkerKeeper {
    context: Arc<Subscription>,
    table: MarkerTable,
    monitor: LoopMonitor,
}

impl MarkerKeeper {
    pub(in crate::consumer) fn new(context: Arc<Subscription>, table: MarkerTable) -> Self {
        Self { monitor: context.monitor("extend_markers"), context, table }
    }

    /// Extends until dropped. It looks at fixed times and is not woken by each handler: most handlers end before.
    pub(in crate::consumer) async fn run(self) {
        let (period, clock) = (self.context.period(), self.context.lease_clock.clone());
        loop {
            let started = clock.now();
            self.monitor.begin_round(period);
            match self.run_once().await {
                Ok(is_asked) => {
                    let observer = &*self.context.observer;
                    match is_asked {
                        true => self.monitor.succeeded(observer),
                        false => self.monitor.had_nothing_to_do("heartbeat", observer),
                    }
                    clock.sleep_until(started + period).await;
                }
                Err(error) => {
                    let pause = self.monitor.failed(&error, &*self.context.observer);
                    sleep(self.context.retry_pause(&error, pause)).await;
                }
            }
        }
    }

    /// Extends once. Returns whether there was anything to extend.
    async fn run_once(&self) -> Result<bool> {
        let _round = self.table.0.round.lock().await;
        let running: Vec<(u64, Arc<Running>)> = {
            let table = self.table.table();
            let extended = table.running.iter().filter(|(_, (phase, _))| *phase != Phase::Abandoning);
            extended.map(|(id, (_, running))| (*id, running.clone())).collect()
        };
        if running.is_empty() {
            return Ok(false);
        }
        let markers: Vec<Marker> = running.iter().map(|(_, running)| running.marker.clone()).collect();
        let limit = self.context.renewal_timeout();
        let extended = timeout(limit, self.context.backend.idempotency()?.extend(&markers)).await;
        let Ok(extended) = extended else {
            return Err(Error::new(
                ErrorKind::Unconfirmed,
                format!("markers were not extended within {limit:?}"),
            ));
        };
        let mut failed = Ok(true);
        for ((id, running), extended) in running.into_iter().zip(extended) {
            match extended {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    if self.take_lost(id) {
                        running.report_lost(&self.context);
                    }
                }
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Removes a marker that was taken over. False if it ended meanwhile, or is about to.
    fn take_lost(&self, id: u64) -> bool {
        let mut table = self.table.table();
        let handles = table.running.get(&id).is_some_and(|(phase, _)| *phase == Phase::Handling);
        handles && table.running.remove(&id).is_some()
    }
}
