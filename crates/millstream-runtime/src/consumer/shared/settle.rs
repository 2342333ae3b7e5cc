//! The settle loop of a shared consumer: writes settlements to the logs, in batches per partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use millstream_core::error::Result;
use millstream_core::event::Event;
use millstream_core::log::Settled;
use millstream_core::{Partition, Settlement};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::consumer::shared::Sharer;
use crate::consumer::shared::in_flight::{Key, Standing};

/// Maximum number of settlements in one request.
const MAX_BATCH: usize = 500;

/// Settlement of one entry.
pub(in crate::consumer) struct EntrySettlement {
    key: Key,
    settlement: Settlement,
    /// Notified when the settlement is written.
    written: Option<oneshot::Sender<()>>,
}

impl EntrySettlement {
    pub(in crate::consumer) fn new(key: Key, settlement: Settlement) -> Self {
        Self { key, settlement, written: None }
    }

    /// Creates a settlement with a receiver that is notified when it is written. If it is not, the receiver gets an
    /// error.
    pub(in crate::consumer) fn confirmed(key: Key, settlement: Settlement) -> (Self, oneshot::Receiver<()>) {
        let (written, confirmation) = oneshot::channel();
        (Self { key, settlement, written: Some(written) }, confirmation)
    }

    fn is_note(&self) -> bool {
        matches!(self.settlement, Settlement::Hold(_))
    }
}

type Waiting = BTreeMap<Partition, Vec<EntrySettlement>>;

/// Writes the settlements of one consumer.
pub(in crate::consumer) struct Settler {
    sharer: Arc<Sharer>,
    settlements: UnboundedReceiver<EntrySettlement>,
    /// Settlements that are not written yet.
    waiting: Waiting,
    /// Settlements of entries that the reader has not found under our name since it started over.
    unconfirmed: Vec<EntrySettlement>,
    /// Whether nothing more can come.
    closed: bool,
}

impl Settler {
    pub(in crate::consumer) fn new(
        sharer: Arc<Sharer>,
        settlements: UnboundedReceiver<EntrySettlement>,
    ) -> Self {
        Self { sharer, settlements, waiting: Waiting::new(), unconfirmed: Vec::new(), closed: false }
    }

    /// Settles until everything is settled and nothing more can come, or the shutdown timeout is over.
    pub(in crate::consumer) async fn run(mut self) {
        let context = self.sharer.context.clone();
        let monitor = context.monitor("settle");
        while self.collect().await {
            match self.run_once().await {
                Ok(()) => monitor.succeeded(&*context.observer),
                Err(error) => {
                    let pause = monitor.failed(&error, &*context.observer);
                    tokio::select! {
                        biased;
                        () = sleep(pause) => {}
                        () = context.kill.cancelled() => return,
                    }
                }
            }
        }
    }

    /// Waits for something to settle. False if nothing is left and nothing more can come.
    async fn collect(&mut self) -> bool {
        let in_flight = self.sharer.in_flight.clone();
        loop {
            // Created before the checks, so that a change in between is not missed.
            let changed = in_flight.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // A settlement that failed may concern an entry that is not ours any more.
            let known = std::mem::take(&mut self.waiting).into_values().flatten();
            for entry in known.chain(std::mem::take(&mut self.unconfirmed)).collect::<Vec<_>>() {
                self.add(entry);
            }
            let room = MAX_BATCH.saturating_sub(self.waiting.values().map(Vec::len).sum());
            for _ in 0..room {
                let Ok(entry) = self.settlements.try_recv() else { break };
                self.add(entry);
            }
            if !self.waiting.is_empty() {
                return true;
            }
            if self.closed && self.unconfirmed.is_empty() {
                return false;
            }
            tokio::select! {
                biased;
                entry = self.settlements.recv(), if !self.closed => match entry {
                    Some(entry) => self.add(entry),
                    None => self.closed = true,
                },
                () = changed => {}
            }
        }
    }

    fn add(&mut self, entry: EntrySettlement) {
        match self.sharer.in_flight.standing(entry.key) {
            Standing::Ours => self.waiting.entry(entry.key.partition).or_default().push(entry),
            Standing::Unconfirmed => self.unconfirmed.push(entry),
            // Whoever waits for it to be written gets an error.
            Standing::Gone => tracing::debug!(key = ?entry.key, "too late: the entry is no longer ours"),
        }
    }

    /// Settles all waiting batches. Settlements that failed stay in `waiting`.
    async fn run_once(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.waiting);
        let settle = |(partition, mut batch): (Partition, Vec<EntrySettlement>)| {
            let sharer = self.sharer.clone();
            async move {
                let failed = settle(&sharer, partition, &mut batch).await.err();
                (partition, batch, failed)
            }
        };
        let mut failed = Ok(());
        for (partition, batch, error) in join_all(batches.into_iter().map(settle)).await {
            if !batch.is_empty() {
                self.waiting.insert(partition, batch);
            }
            if let Some(error) = error {
                failed = Err(error.during(self.sharer.member.partition(partition)));
            }
        }
        failed
    }
}

/// Settles one batch. Settlements that failed stay in it.
async fn settle(sharer: &Sharer, partition: Partition, batch: &mut Vec<EntrySettlement>) -> Result<()> {
    let failed = send(sharer, partition, batch, 0).await;
    if let Err(error) = &failed
        && !error.is_transient()
    {
        // A dead letter that cannot be stored (its storage key holds somebody else's data, for example) must not prevent
        // the other messages from being acknowledged.
        // Acks are sorted last, so that they can be sent without the others.
        batch.sort_by_key(|entry| entry.settlement == Settlement::Ack);
        let others = batch.iter().filter(|entry| entry.settlement != Settlement::Ack).count();
        if others < batch.len() {
            send(sharer, partition, batch, others).await?;
        }
    }
    failed
}

/// Settles `batch[from..]`.
async fn send(
    sharer: &Sharer,
    partition: Partition,
    batch: &mut Vec<EntrySettlement>,
    from: usize,
) -> Result<()> {
    let Sharer { context, member, in_flight, .. } = sharer;
    let settlements: Vec<_> =
        batch[from..].iter().map(|entry| (entry.key.receipt, entry.settlement.clone())).collect();
    let asked = Instant::now();
    let settled: Settled = context.backend.shared()?.settle_shared(member, partition, &settlements).await?;
    let elapsed = asked.elapsed();
    let done: Vec<EntrySettlement> = batch.drain(from..).collect();
    in_flight.settled(done.iter().filter(|entry| !entry.is_note()).map(|entry| entry.key));
    for written in done.into_iter().filter_map(|entry| entry.written) {
        // The caller may have stopped waiting.
        let _ = written.send(());
    }
    let (topic_partition, group) = (&member.partition(partition), &member.group);
    if settled.stale > 0 {
        tracing::warn!(%topic_partition, %group, stale = settled.stale, "settled too late: the entries are no longer ours");
    }
    context.observer.observe(&Event::Settled { topic_partition, group, settled, elapsed });
    Ok(())
}
