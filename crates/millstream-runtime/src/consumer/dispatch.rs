//! The dispatch loop: one message after the other to the handler.

use std::sync::Arc;
use std::time::Instant;

use millstream_core::event::{Event, Handled};
use millstream_core::log::{Entry, Receipt};
use millstream_core::{Settlement, wire};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::context::Context;
use super::decide::{Attempt, Policies, decide};
use super::guard::Guard;
use super::handler::Verdict;
use crate::delivery::About;
use crate::report::Counts;

/// Hands the messages of one partition to the handler, one after the other.
pub(super) struct Dispatcher {
    pub(super) context: Arc<Context>,
    pub(super) guard: Arc<Guard>,
    pub(super) entries: UnboundedReceiver<Entry>,
    pub(super) settlements: UnboundedSender<(Receipt, Settlement)>,
}

impl Dispatcher {
    pub(super) async fn run(mut self) {
        while self.run_once().await {}
    }

    /// Handles one message. False when the consumer stops or the lease is lost: what was read and not started
    /// stays pending, and the next owner gets it first.
    async fn run_once(&mut self) -> bool {
        let ready = async {
            let entry = self.entries.recv().await?;
            self.guard.live().await.then_some(entry)
        };
        let entry = tokio::select! {
            biased;
            () = self.context.stop.cancelled() => return false,
            () = self.guard.lost().cancelled() => return false,
            entry = ready => entry,
        };
        let Some(entry) = entry else { return false };
        let receipt = entry.receipt;
        let settlement = tokio::select! {
            biased;
            () = self.context.kill.cancelled() => return false,
            settlement = self.handle(entry) => settlement,
        };
        // A closed channel means that the lease is lost: nobody would accept the settlement.
        self.settlements.send((receipt, settlement)).is_ok()
    }

    async fn handle(&self, entry: Entry) -> Settlement {
        let context = &*self.context;
        let lease = self.guard.lease();
        let decoded = wire::decode(entry.receipt, &entry.fields, &context.config.limits);
        let attempt = Attempt { number: decoded.attempt, origin: decoded.origin, entropy: fastrand::u64(..) };
        let started = Instant::now();
        let verdict = match (decoded.envelope, lease.partition()) {
            (Ok(envelope), Ok((topic_partition, group))) => {
                let about = About {
                    topic_partition: topic_partition.clone(),
                    group: group.clone(),
                    id: entry.receipt.id,
                    origin: decoded.origin,
                    attempt: decoded.attempt,
                    deliveries: entry.deliveries,
                    epoch: lease.epoch,
                    last_error: decoded.error,
                    key: envelope.key,
                    headers: envelope.headers,
                };
                (context.handler)(about, envelope.payload).await
            }
            (Err(malformed), _) => Verdict::Malformed(malformed),
            (_, Err(error)) => Verdict::Undecodable(Box::new(error)),
        };
        let policies =
            Policies { retry: &*context.config.retry, dead_letters: &*context.config.dead_letters };
        let (settlement, handled) = decide(verdict, attempt, &policies);
        self.tell(attempt.number, handled, started);
        settlement
    }

    fn tell(&self, attempt: u32, handled: Handled, started: Instant) {
        let counts = &self.context.counts;
        let counter = match handled {
            Handled::Acked => &counts.acked,
            Handled::Retried => &counts.retried,
            Handled::Dead => &counts.dead,
            _ => &counts.discarded,
        };
        Counts::add(counter, 1);
        if let Ok((topic_partition, group)) = self.guard.lease().partition() {
            let elapsed = started.elapsed();
            let event = Event::Handled { topic_partition, group, attempt, handled, elapsed };
            self.context.observer.observe(&event);
        }
    }
}
