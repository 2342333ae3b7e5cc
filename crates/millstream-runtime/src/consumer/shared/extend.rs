//! The extend loop: extends all entries in flight, three times per ttl, and watches their deadlines.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::Partition;
use millstream_core::error::Result;
use millstream_core::log::Receipt;
use tokio::time::sleep;

use crate::consumer::group::membership::within;
use crate::consumer::partition::held::holding::Key;
use crate::consumer::shared::Sharer;
use millstream_loops::LoopMonitor;

/// Extends all entries of one consumer. One lost request does no harm, two in a row stop dispatch.
pub(in crate::consumer) struct Extender {
    sharer: Arc<Sharer>,
    monitor: LoopMonitor,
}

impl Extender {
    pub(in crate::consumer) fn new(sharer: Arc<Sharer>) -> Self {
        Self { monitor: sharer.context.monitor("extend"), sharer }
    }

    /// Extends until dropped.
    pub(in crate::consumer) async fn run(mut self) {
        let sharer = self.sharer.clone();
        let (period, clock) = (sharer.context.period(), sharer.context.lease_clock.clone());
        let extends = async {
            loop {
                let started = clock.now();
                let extended = self.run_once().await;
                self.monitor.begin_round(period);
                match extended {
                    // After a suspension a waiting handler needs to know at once whether its entry is still ours.
                    Ok(()) => tokio::select! {
                        biased;
                        () = clock.sleep_until(started + period) => {}
                        () = sharer.leases.wanted() => {}
                    },
                    Err(pause) => sleep(pause).await,
                }
            }
        };
        tokio::select! {
            biased;
            () = watch_deadlines(&sharer) => {}
            () = extends => {}
        }
    }

    /// Extends once. After a failure, returns the pause: shorter than the time to the next regular request.
    async fn run_once(&mut self) -> Result<(), Duration> {
        let all = self.sharer.leases.all();
        let extends = all.into_iter().map(|(partition, keys)| self.extend(partition, keys));
        let failed = join_all(extends).await.into_iter().find_map(Result::err);
        let observer = &*self.sharer.context.observer;
        match failed {
            None => {
                self.monitor.succeeded(observer);
                Ok(())
            }
            Some(error) => {
                let pause = self.monitor.failed(&error, observer);
                Err(self.sharer.context.retry_pause(&error, pause))
            }
        }
    }

    async fn extend(&self, partition: Partition, keys: Vec<Key>) -> Result<()> {
        let Sharer { context, member, leases, .. } = &*self.sharer;
        // Taken before the request: the ttl cannot have started earlier.
        let asked = context.lease_clock.now();
        let receipts: Vec<Receipt> = keys.iter().map(|key| key.receipt).collect();
        let request = context.backend.shared()?.extend(member, partition, &receipts);
        let lost = self.sharer.answer(&[partition], within(context.beat_patience(), request)).await?;
        let messages = leases.lost(keys.iter().filter(|key| lost.contains(&key.receipt)).copied());
        if messages > 0 {
            let topic_partition = member.partition(partition);
            tracing::warn!(%topic_partition, group = %member.group, messages, "claimed by other members: handlers are notified");
        }
        leases.extended(keys.into_iter(), asked);
        Ok(())
    }
}

/// Cancels the tokens of handlers at the deadline of their entry. Runs beside the requests: one that hangs must not delay
/// it.
async fn watch_deadlines(sharer: &Sharer) {
    // Deadlines move all the time, so they are checked at most this often.
    let shortest = sharer.context.period() / 8;
    loop {
        let (messages, next) = sharer.leases.expire();
        if messages > 0 {
            tracing::warn!(group = %sharer.member.group, messages, "not extended in time: handlers are notified");
        }
        match next {
            Some(next) => {
                let clock = &sharer.context.lease_clock;
                clock.sleep_until(next.max(clock.now() + shortest)).await;
            }
            None => sharer.leases.came().await,
        }
    }
}
