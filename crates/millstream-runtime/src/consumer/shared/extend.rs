//! The entries of a consumer, as its [`Keeper`](millstream_engine::Keeper) extends them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use millstream_core::error::Result;
use millstream_core::log::Receipt;
use millstream_core::sorted::SortedSet;
use millstream_core::{GroupName, Partition};
use millstream_engine::{Kept, Rights};
use tokio::time::Instant;

use crate::consumer::partition::leases::entry_lease::Key;
use crate::consumer::partition::leases::entry_leases::EntryLeases;
use crate::consumer::shared::Sharer;

/// Extends all entries of one consumer, until dropped.
pub(in crate::consumer) async fn extend_entries(sharer: Arc<Sharer>) {
    let (keeper, monitor) = (sharer.context.keeper(), sharer.context.monitor("extend"));
    let observer = sharer.context.observer.clone();
    keeper.run(keeper.clock().now(), &*sharer, &monitor, &*observer).await;
}

#[async_trait]
impl Rights for Sharer {
    async fn renew(&self, asked: Instant) -> Result<Kept> {
        let all = self.leases.all();
        if all.is_empty() {
            return Ok(Kept::Nothing);
        }
        let extends = all.into_iter().map(|(partition, keys)| self.extend(partition, keys, asked));
        let failed = join_all(extends).await.into_iter().find_map(Result::err);
        failed.map_or(Ok(Kept::Renewed), Err)
    }

    /// After a suspension a waiting handler needs to know at once whether its entry is still ours.
    async fn wanted(&self) {
        self.leases.wanted().await;
    }

    fn expire(&self) -> Option<Instant> {
        give_up(&self.leases, &self.member.group, self.context.period() / 8)
    }

    async fn sooner(&self, _: Option<Instant>) {
        self.leases.sooner().await;
    }
}

impl Sharer {
    async fn extend(&self, partition: Partition, keys: Vec<Key>, asked: Instant) -> Result<()> {
        let Self { context, member, leases, .. } = self;
        let receipts: Vec<Receipt> = keys.iter().map(|key| key.receipt).collect();
        let request = context.backend.shared()?.extend(member, partition, &receipts);
        let lost = self.answer(&[partition], request).await?;
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

/// Cancels the tokens of handlers whose entries were not extended in time. Returns when to look again: deadlines move all the
/// time, so no more often than once in the time `shortest`, unless there is an earlier one.
fn give_up(leases: &EntryLeases, group: &GroupName, shortest: Duration) -> Option<Instant> {
    let (messages, next) = leases.expire();
    if messages > 0 {
        tracing::warn!(%group, messages, "not extended in time: handlers are notified");
    }
    next.map(|next| next.max(leases.clock.now() + shortest))
}

#[cfg(test)]
mod tests {
    use millstream_core::MessageId;
    use millstream_core::log::{Entry, Source};
    use tokio::time::{advance, timeout};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::consumer::partition::leases::entry_lease::Live;
    use millstream_core::event::Ignore;
    use millstream_engine::{Keeper, LeaseClock, LoopMonitor, Scope};

    const TTL: Duration = Duration::from_secs(10);
    /// How long an entry is certainly ours.
    const TRUST: Duration = Duration::from_secs(8);
    const SHORTEST: Duration = Duration::from_millis(400);

    /// Leases that are only given up.
    struct Watched(Arc<EntryLeases>);

    #[async_trait]
    impl Rights for Watched {
        async fn renew(&self, _: Instant) -> Result<Kept> {
            Ok(Kept::Nothing)
        }

        fn expire(&self) -> Option<Instant> {
            give_up(&self.0, &"g".parse().expect("a name"), SHORTEST)
        }

        async fn sooner(&self, _: Option<Instant>) {
            self.0.sooner().await;
        }
    }

    /// The leases of a consumer, whose deadlines are watched.
    async fn watched() -> Arc<EntryLeases> {
        let leases = Arc::new(EntryLeases::new(8, 1, TTL, LeaseClock::new(None)));
        let watched = Watched(leases.clone());
        tokio::spawn(async move {
            let monitor = LoopMonitor::unlisted("extend", Scope::Queue);
            let keeper = Keeper::new(TTL, LeaseClock::new(None));
            keeper.run(Instant::now() + TTL * 1_000, &watched, &monitor, &Ignore).await;
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
