//! The holder's own view of a lease: a deadline that needs nobody's answer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::Lease;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A lease, and whether it may still be relied on.
///
/// The server's ttl started at some time between sending the request and its answer. Counted from the sending, and
/// a margin earlier, the holder stops dispatching before anybody else can be granted the lease, without asking.
#[derive(Debug)]
pub(super) struct Guard {
    lease: Lease,
    /// Up to when the lease may be relied on.
    deadline: Mutex<Instant>,
    renewed: Notify,
    lost: CancellationToken,
}

impl Guard {
    /// A lease that was asked for at `asked`.
    pub(super) fn new(lease: Lease, asked: Instant) -> Self {
        let deadline = Mutex::new(deadline(lease.ttl, asked));
        Self { lease, deadline, renewed: Notify::new(), lost: CancellationToken::new() }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// A renewal that was asked for at `asked` was granted.
    pub(super) fn renewed(&self, asked: Instant) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline(self.lease.ttl, asked);
        self.renewed.notify_waiters();
    }

    /// Somebody else has it, for certain.
    pub(super) fn lose(&self) {
        self.lost.cancel();
    }

    /// Cancelled when somebody else has it.
    pub(super) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    fn is_live(&self) -> bool {
        Instant::now() < *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the lease can be relied on: at once as a rule, until the next renewal if one failed.
    /// False if it is lost.
    pub(super) async fn live(&self) -> bool {
        loop {
            // Made before the look, so that a renewal in between is not missed.
            let renewed = self.renewed.notified();
            if self.lost.is_cancelled() {
                return false;
            }
            if self.is_live() {
                return true;
            }
            tokio::select! {
                () = renewed => {}
                () = self.lost.cancelled() => return false,
            }
        }
    }
}

/// A fifth of the ttl is the margin for clocks that run at different speeds and for slow dispatch.
fn deadline(ttl: Duration, asked: Instant) -> Instant {
    asked + ttl - ttl / 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::{Resource, TopicPartition};

    fn guard() -> Guard {
        let topic_partition = TopicPartition::new("t".parse().expect("name"), 0);
        let resource = Resource::partition(topic_partition, "g".parse().expect("name"));
        Guard::new(Lease::new(resource, 1, "n", Duration::from_secs(10)), Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_before_the_ttl_and_a_renewal_brings_it_back() {
        let guard = std::sync::Arc::new(guard());
        assert!(guard.live().await);
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(!guard.is_live(), "2 s before the server lets it go");
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
        guard.lose();
        assert!(!guard.live().await);
    }
}
