//! The extend loop: extends all entries in flight, three times per ttl, and watches their deadlines.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::error::Result;
use millstream_core::log::Receipt;
use millstream_core::sorted::SortedSet;
use millstream_core::{GroupName, Partition};
use tokio::time::sleep;

use crate::consumer::group::membership::within;
use crate::consumer::partition::leases::entry_lease::Key;
use crate::consumer::partition::leases::entry_leases::EntryLeases;
use crate::consumer::shared::Sharer;
use millstream_loops::LoopMonitor;

/// Extends all entries of one consumer. A lost request is repeated as soon as a renewal of leases is: several in a row stop
/// dispatch.
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
            () = watch_deadlines(&sharer.leases, &sharer.member.group, period / 8) => {}
            () = extends => {}
        }
    }

    /// Extends once. After a failure, returns the pause: shorter than the time to the next regular request.
    async fn run_once(&mut self) -> Result<(), Duration> {
        let all = self.sharer.leases.all();
        let is_idle = all.is_empty();
        let extends = all.into_iter().map(|(partition, keys)| self.extend(partition, keys));
        let failed = join_all(extends).await.into_iter().find_map(Result::err);
        let observer = &*self.sharer.context.observer;
        match failed {
            None if is_idle => {
                self.monitor.had_nothing_to_do("heartbeat", observer);
                Ok(())
            }
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
        let lost = self.sharer.answer(&[partition], within(context.renewal_timeout(), request)).await?;
        let lost: SortedSet<Receipt> = lost.into_iter().collect();
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
///
/// Deadlines move all the time, so they are looked at no more often than once in the time `shortest`, unless there is an
/// earlier one.
async fn watch_deadlines(leases: &EntryLeases, group: &GroupName, shortest: Duration) {
    loop {
        let (messages, next) = leases.expire();
        if messages > 0 {
            tracing::warn!(%group, messages, "not extended in time: handlers are notified");
        }
        let due = async {
            match next {
                Some(next) => leases.clock.sleep_until(next.max(leases.clock.now() + shortest)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = leases.sooner() => {}
            () = due => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::MessageId;
    use millstream_core::log::{Entry, Source};
    use tokio::time::{Instant, advance, timeout};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::consumer::partition::leases::entry_lease::Live;
    use millstream_loops::LeaseClock;

    const TTL: Duration = Duration::from_secs(10);
    /// How long an entry is certainly ours.
    const TRUST: Duration = Duration::from_secs(8);
    const SHORTEST: Duration = Duration::from_millis(400);

    /// The leases of a consumer, whose deadlines are watched.
    async fn watched() -> Arc<EntryLeases> {
        let leases = Arc::new(EntryLeases::new(8, 1, TTL, LeaseClock::new(None)));
        let watch = leases.clone();
        tokio::spawn(async move {
            watch_deadlines(&watch, &"g".parse().expect("a name"), SHORTEST).await;
        });
        tokio::task::yield_now().await;
        leases
    }

    /// Admits an entry of a request of this time, and returns its key.
    fn admit(leases: &EntryLeases, ms: u64, asked: Instant, claimed: bool) -> Key {
        let receipt = Receipt::new(Source::Log, MessageId::new(ms, 0));
        let entry = Entry::new(receipt, 1, Vec::new());
        leases.admit(Partition(0), vec![entry], asked, claimed, |_| false);
        let mut all = leases.all().into_values().flatten();
        all.find(|key| key.receipt == receipt).expect("it is held")
    }

    /// Starts a handler of the entry.
    fn token(leases: &EntryLeases, key: Key) -> CancellationToken {
        match leases.live(key) {
            Live::Now(token) => token,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the token is cancelled when an entry of a request of this time is not certainly ours any more.
    async fn check(token: CancellationToken, asked: Instant) {
        timeout(TTL * 6, token.cancelled()).await.expect("the handler is notified");
        let late = asked.elapsed().checked_sub(TRUST).expect("not before the deadline");
        assert!(late <= SHORTEST, "{late:?} after the deadline");
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_of_an_older_request_is_given_up_before_those_of_a_newer_one() {
        let leases = watched().await;
        let asked = Instant::now();
        advance(Duration::from_secs(4)).await;
        let newer = (Instant::now(), admit(&leases, 1, Instant::now(), false));
        let newer = (newer.0, token(&leases, newer.1));
        tokio::task::yield_now().await;
        // The answer to a claim took four seconds.
        let older = token(&leases, admit(&leases, 2, asked, true));
        check(older, asked).await;
        assert!(!newer.1.is_cancelled());
        check(newer.1, newer.0).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_starts_after_an_outage_is_notified_of_the_next_one() {
        let leases = watched().await;
        let asked = Instant::now();
        let key = admit(&leases, 1, asked, false);
        check(token(&leases, key), asked).await;
        advance(Duration::from_secs(1)).await;
        let asked = Instant::now();
        leases.extended([key].into_iter(), asked);
        check(token(&leases, key), asked).await;
    }
}
