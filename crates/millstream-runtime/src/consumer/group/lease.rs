//! The holder's own view of a lease: a deadline that is checked without asking the server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::leases::reliable;
use millstream_core::{GroupName, Lease, TopicPartition};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use millstream_engine::LeaseClock;

/// A lease, and whether it may still be relied on.
///
/// The server's ttl started at some time between sending the request and its reply. The holder counts from the sending,
/// and stops a margin earlier. So it stops dispatching before anybody else can be granted the lease, without asking.
#[derive(Debug)]
pub(in crate::consumer) struct LeaseGuard {
    state: Arc<GuardState>,
    revoked: CancellationToken,
}

/// State shared by all sessions under one lease.
#[derive(Debug)]
struct GuardState {
    lease: Lease,
    topic_partition: TopicPartition,
    group: GroupName,
    view: Mutex<View>,
    clock: Arc<LeaseClock>,
    renewed: Notify,
    lost: CancellationToken,
    /// Set if we decided ourselves that all work under this lease is void.
    dropped: AtomicBool,
    /// Base of `until`.
    base: Instant,
    /// Copy of the view's deadline, in nanoseconds since `base`, for a cheap check before every message; 0 once it is
    /// lost.
    until: AtomicU64,
    /// Incremented when handlers get a new token, or the current token is cancelled.
    trust: AtomicU64,
}

#[derive(Debug)]
struct View {
    /// Until then the lease may be relied on.
    deadline: Instant,
    /// Cancelled at the deadline. A renewal that comes later creates a new token.
    cancelled: CancellationToken,
}

impl LeaseGuard {
    /// Creates the guard of the lease of this partition for this group, which was requested at `asked`. All times are those of
    /// `clock`.
    pub(in crate::consumer) fn new(
        lease: Lease,
        (topic_partition, group): (TopicPartition, GroupName),
        asked: Instant,
        clock: Arc<LeaseClock>,
    ) -> Self {
        let view = View { deadline: deadline(lease.ttl, asked), cancelled: CancellationToken::new() };
        let state = GuardState {
            base: asked,
            until: AtomicU64::new(nanos(asked, view.deadline)),
            trust: AtomicU64::new(0),
            lease,
            topic_partition,
            group,
            clock,
            view: Mutex::new(view),
            renewed: Notify::new(),
            lost: CancellationToken::new(),
            dropped: AtomicBool::new(false),
        };
        Self { state: Arc::new(state), revoked: CancellationToken::new() }
    }

    /// Returns a guard of the same lease for a session: work that can be ended while the lease goes on.
    pub(in crate::consumer) fn session(&self) -> Self {
        Self { state: self.state.clone(), revoked: self.revoked.child_token() }
    }

    pub(in crate::consumer) fn lease(&self) -> &Lease {
        &self.state.lease
    }

    pub(in crate::consumer) fn topic_partition(&self) -> &TopicPartition {
        &self.state.topic_partition
    }

    pub(in crate::consumer) fn group(&self) -> &GroupName {
        &self.state.group
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.state.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a renewal requested at `asked` was granted.
    pub(in crate::consumer) fn renewed(&self, asked: Instant) {
        let mut view = self.view();
        view.deadline = view.deadline.max(deadline(self.state.lease.ttl, asked));
        if !self.state.lost.is_cancelled() {
            self.state.until.store(nanos(self.state.base, view.deadline), Ordering::Release);
            if view.cancelled.is_cancelled() && self.state.clock.now() < view.deadline {
                view.cancelled = CancellationToken::new();
                self.state.trust.fetch_add(1, Ordering::Release);
            }
        }
        drop(view);
        self.state.renewed.notify_waiters();
    }

    /// Ends all work under the lease: another owner has it, or [`drop_all`](Self::drop_all) makes the work void.
    pub(in crate::consumer) fn lose(&self) {
        self.state.lost.cancel();
        let view = self.view();
        self.state.until.store(0, Ordering::Release);
        view.cancelled.cancel();
        self.state.trust.fetch_add(1, Ordering::Release);
    }

    /// Voids all work under the lease, although it is still ours: work ends as if the lease was lost, and then it is
    /// released.
    pub(in crate::consumer) fn drop_all(&self) {
        self.state.dropped.store(true, Ordering::Release);
        self.lose();
    }

    /// Whether [`drop_all`](Self::drop_all) was called.
    pub(in crate::consumer) fn is_dropped(&self) -> bool {
        self.state.dropped.load(Ordering::Acquire)
    }

    /// Cancelled when somebody else has the lease, or work under it is void.
    pub(in crate::consumer) fn lost(&self) -> &CancellationToken {
        &self.state.lost
    }

    /// Asks the worker to release the partition: it reads no more, and lets handlers that have started end.
    pub(in crate::consumer) fn revoke(&self) {
        self.revoked.cancel();
    }

    /// Cancelled when the partition is to be released.
    pub(in crate::consumer) fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }

    /// Returns the token for a handler that starts now. It is cancelled when the lease is lost or can no longer be relied
    /// on, and stays cancelled.
    pub(in crate::consumer) fn cancelled(&self) -> CancellationToken {
        self.view().cancelled.clone()
    }

    /// Returns when [`expire`](Self::expire) must be called; `None` if that has happened and no renewal came since.
    pub(in crate::consumer) fn deadline(&self) -> Option<Instant> {
        let view = self.view();
        (!view.cancelled.is_cancelled()).then_some(view.deadline)
    }

    /// Cancels the token of handlers if the lease cannot be relied on any more. True if it was cancelled now.
    pub(in crate::consumer) fn expire(&self) -> bool {
        let view = self.view();
        let over = self.state.clock.now() >= view.deadline && !view.cancelled.is_cancelled();
        if over {
            view.cancelled.cancel();
            self.state.trust.fetch_add(1, Ordering::Release);
        }
        over
    }

    /// Returns a number that changes whenever the token of [`cancelled`](Self::cancelled) is replaced or cancelled.
    pub(in crate::consumer) fn trust(&self) -> u64 {
        self.state.trust.load(Ordering::Acquire)
    }

    /// Returns whether the lease can be relied on at `now`, the current time of the runtime's clock. Costs an atomic load
    /// and, where there is one, a reading of the boot clock.
    pub(in crate::consumer) fn is_live(&self, now: Instant) -> bool {
        nanos(self.state.base, self.state.clock.at(now)) < self.state.until.load(Ordering::Acquire)
    }

    /// Waits until the lease can be relied on: usually at once, or until the next renewal if one failed. False if it is
    /// lost.
    pub(in crate::consumer) async fn live(&self) -> bool {
        loop {
            // Created before the check, so that a renewal in between is not missed.
            let renewed = self.state.renewed.notified();
            if self.state.lost.is_cancelled() {
                return false;
            }
            if self.is_live(Instant::now()) {
                return true;
            }
            tokio::select! {
                biased;
                () = self.state.lost.cancelled() => return false,
                () = renewed => {}
            }
        }
    }
}

fn nanos(base: Instant, at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(base).as_nanos()).unwrap_or(u64::MAX)
}

fn deadline(ttl: Duration, asked: Instant) -> Instant {
    asked + reliable(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Resource;
    use millstream_memory::SuspendableClock;

    fn guard() -> LeaseGuard {
        guard_by(LeaseClock::new(None))
    }

    fn guard_by(clock: Arc<LeaseClock>) -> LeaseGuard {
        let topic_partition = TopicPartition::new("t".parse().expect("name"), 0);
        let names = (topic_partition, GroupName::new("g").expect("name"));
        let resource = Resource::partition(names.0.clone(), names.1.clone());
        LeaseGuard::new(Lease::new(resource, 1, "n", Duration::from_secs(10)), names, clock.now(), clock)
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_before_the_ttl_and_a_renewal_brings_it_back() {
        let guard = std::sync::Arc::new(guard());
        assert!(guard.live().await);
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(!guard.is_live(Instant::now()), "2 s before the server lets it go");
        let waiting = tokio::spawn({
            let guard = guard.clone();
            async move { guard.live().await }
        });
        tokio::task::yield_now().await;
        guard.renewed(Instant::now());
        assert!(waiting.await.expect("no panic"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_is_never_live() {
        let guard = guard();
        let token = guard.cancelled();
        guard.lose();
        assert!(!guard.live().await && !guard.is_live(Instant::now()));
        guard.renewed(Instant::now());
        assert!(!guard.is_live(Instant::now()));
        assert!(!guard.live().await, "not by an answer that came late either");
        assert!(token.is_cancelled() && guard.cancelled().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn handlers_are_told_at_the_deadline_and_later_ones_begin_anew() {
        let guard = guard();
        let token = guard.cancelled();
        assert_eq!(guard.deadline(), Some(Instant::now() + Duration::from_secs(8)));
        assert!(!guard.expire());
        tokio::time::advance(Duration::from_secs(8)).await;
        let trust = guard.trust();
        assert!(guard.expire() && token.is_cancelled());
        assert_ne!(guard.trust(), trust, "whoever looks only at this sees it");
        assert!(!guard.expire(), "once");
        assert_eq!(guard.deadline(), None);
        let long_ago = Instant::now() - Duration::from_secs(8);
        guard.renewed(long_ago);
        assert!(guard.cancelled().is_cancelled(), "an answer that took longer than the lease lives");
        let trust = guard.trust();
        guard.renewed(Instant::now());
        assert!(token.is_cancelled() && !guard.cancelled().is_cancelled());
        assert_ne!(guard.trust(), trust);
    }
    #[tokio::test(start_paused = true)]
    async fn time_in_suspension_counts_and_a_renewal_after_it_brings_the_lease_back() {
        let machine = SuspendableClock::new();
        let clock = LeaseClock::new(Some(Arc::new(machine.clone())));
        let guard = guard_by(clock.clone());
        let token = guard.cancelled();
        // The runtime's clock stands still meanwhile.
        machine.suspend(Duration::from_secs(7));
        assert!(guard.is_live(Instant::now()) && !guard.expire());
        machine.suspend(Duration::from_secs(1));
        assert!(!guard.is_live(Instant::now()), "no further handler begins");
        assert!(guard.expire() && token.is_cancelled(), "and running handlers are notified");
        let asked = clock.now();
        machine.suspend(Duration::from_secs(3_600));
        guard.renewed(asked);
        assert!(
            !guard.is_live(Instant::now()) && guard.cancelled().is_cancelled(),
            "asked before another one"
        );
        guard.renewed(clock.now());
        assert!(guard.is_live(Instant::now()) && !guard.cancelled().is_cancelled());
        clock.add_missed(Duration::from_secs(8));
        assert!(!guard.is_live(Instant::now()) && guard.expire(), "what only the server has counted");
    }
}
