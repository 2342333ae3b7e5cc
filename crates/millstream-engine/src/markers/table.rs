//! The markers of handlers that run, as their [`Keeper`](crate::Keeper) extends them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::keeper::{Keeper, Kept, Rights};
use crate::monitor::LoopMonitor;
use async_trait::async_trait;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::idempotency::Marker;
use millstream_core::{Backend, MessageId, Observer, TopicPartition};
use tokio::time::Instant;

use crate::delivery::DeliveryMetadata;

/// Markers of handlers that run. Clones are the same table.
#[derive(Clone, Debug, Default)]
pub struct MarkerTable(Arc<SharedTable>);

#[derive(Debug, Default)]
struct SharedTable {
    table: Mutex<Table>,
    /// Locked while markers are being extended.
    round: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    running: HashMap<u64, (Phase, Arc<RunningMarker>)>,
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
struct RunningMarker {
    marker: Marker,
    topic_partition: TopicPartition,
    origin: MessageId,
}

/// Marker that is extended until this is dropped.
pub(super) struct KeptMarker {
    table: MarkerTable,
    id: u64,
    running: Arc<RunningMarker>,
}

impl MarkerTable {
    /// Keeps the marker of a message's operation.
    pub(super) fn keep(&self, marker: Marker, about: &DeliveryMetadata) -> KeptMarker {
        let topic_partition = about.scope.topic_partition.clone();
        let running = Arc::new(RunningMarker { marker, topic_partition, origin: about.origin });
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        table.running.insert(id, (Phase::Handling, running.clone()));
        drop(table);
        KeptMarker { table: self.clone(), id, running }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptMarker {
    pub(super) fn marker(&self) -> &Marker {
        &self.running.marker
    }

    /// Records that the handler has succeeded, and its marker is being completed.
    pub(super) fn completes(&self) {
        self.set(Phase::Completing);
    }

    /// Records that the marker is to be abandoned, and waits until no extension of it is under way.
    pub(super) async fn abandons(&self) {
        self.set(Phase::Abandoning);
        drop(self.table.0.round.lock().await);
    }

    fn set(&self, phase: Phase) {
        if let Some((stored, _)) = self.table.table().running.get_mut(&self.id) {
            *stored = phase;
        }
    }

    /// Reports that another message or instance has taken over the operation.
    pub(super) fn lost(&self, observer: &dyn Observer) {
        // Reported once: by the loop that extends, or by the end of the handler.
        if self.table.table().running.remove(&self.id).is_some() {
            self.running.report_lost(observer);
        }
    }
}

impl Drop for KeptMarker {
    fn drop(&mut self) {
        self.table.table().running.remove(&self.id);
    }
}

impl RunningMarker {
    fn report_lost(&self, observer: &dyn Observer) {
        let Self { topic_partition, origin, marker } = self;
        let message = &marker.holder;
        // The id of the operation may be a key or a header: it is not logged.
        let group = marker.operation.group();
        tracing::warn!(%topic_partition, %group, %message, "the marker was taken over while the handler ran");
        observer.observe(&Event::MarkerLost { topic_partition, group, origin: *origin });
    }
}

/// Extends the markers of a consumer, until dropped. It looks at fixed times and is not woken by each handler: most handlers end
/// before. One lost request does no harm: a marker that expired is revived unless another message or instance began its operation.
/// The [witness](Rights::witness) is another loop of the monitor's.
pub fn extend_markers(
    backend: Backend,
    keeper: Keeper,
    monitor: LoopMonitor,
    observer: Arc<dyn Observer>,
    table: MarkerTable,
    witness: &'static str,
) -> impl Future<Output = ()> + Send {
    let markers = Markers { backend, observer: observer.clone(), table, witness };
    async move { keeper.run(keeper.clock().now(), &markers, &monitor, &*observer).await }
}

struct Markers {
    backend: Backend,
    observer: Arc<dyn Observer>,
    table: MarkerTable,
    witness: &'static str,
}

#[async_trait]
impl Rights for Markers {
    fn witness(&self) -> &'static str {
        self.witness
    }

    async fn renew(&self, _: Instant) -> Result<Kept> {
        let _round = self.table.0.round.lock().await;
        let running: Vec<(u64, Arc<RunningMarker>)> = {
            let table = self.table.table();
            let extended = table.running.iter().filter(|(_, (phase, _))| *phase != Phase::Abandoning);
            extended.map(|(id, (_, running))| (*id, running.clone())).collect()
        };
        if running.is_empty() {
            return Ok(Kept::Nothing);
        }
        let markers: Vec<Marker> = running.iter().map(|(_, running)| running.marker.clone()).collect();
        let extended = self.backend.idempotency()?.extend(&markers).await;
        let mut kept = Ok(Kept::Renewed);
        for ((id, running), extended) in running.into_iter().zip(extended) {
            match extended {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    if self.take_lost(id) {
                        running.report_lost(&*self.observer);
                    }
                }
                Err(error) => kept = Err(error),
            }
        }
        kept
    }
}

impl Markers {
    /// Removes a marker that was taken over. False if it ended meanwhile, or is about to.
    fn take_lost(&self, id: u64) -> bool {
        let mut table = self.table.table();
        let handles = table.running.get(&id).is_some_and(|(phase, _)| *phase == Phase::Handling);
        handles && table.running.remove(&id).is_some()
    }
}
