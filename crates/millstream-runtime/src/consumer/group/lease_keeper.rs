//! The leases of a topic, as its [`Keeper`] renews them: all in one request.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::Lease;
use millstream_core::error::{ErrorKind, Result};
use millstream_engine::{Keeper, Kept, Rights};
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease_table::LeaseTable;

/// Renews the leases of all owned partitions, until dropped.
pub(in crate::consumer) fn renew_leases(
    context: Arc<Subscription>,
    table: LeaseTable,
) -> impl Future<Output = ()> + Send {
    let keeper = Keeper::new(context.lease_ttl, context.lease_clock.clone());
    let monitor = context.monitor("renew");
    let observer = context.observer.clone();
    let leases = OwnedLeases { context, table };
    async move { keeper.run(keeper.clock().now(), &leases, &monitor, &*observer).await }
}

struct OwnedLeases {
    context: Arc<Subscription>,
    table: LeaseTable,
}

#[async_trait]
impl Rights for OwnedLeases {
    async fn renew(&self, asked: Instant) -> Result<Kept> {
        let mut guards = self.table.all();
        guards.retain(|guard| !guard.lost().is_cancelled());
        if guards.is_empty() {
            return Ok(Kept::Nothing);
        }
        let leases: Vec<Lease> = guards.iter().map(|guard| guard.lease().clone()).collect();
        let results = self.context.backend.leases().renew(&leases).await;
        let mut renewed = Ok(Kept::Renewed);
        for (guard, result) in guards.iter().zip(results) {
            match result {
                Ok(()) => guard.renewed(asked),
                Err(error) if error.kind() == ErrorKind::Fenced => guard.lose(),
                Err(error) => renewed = Err(error),
            }
        }
        renewed
    }

    fn expire(&self) -> Option<Instant> {
        let mut next = None;
        for guard in self.table.all() {
            if guard.expire() {
                tracing::warn!(resource = %guard.lease().resource, "not renewed in time: handlers are notified");
            }
            next = next.into_iter().chain(guard.deadline()).min();
        }
        next
    }

    async fn sooner(&self, _: Option<Instant>) {
        self.table.added().await;
    }
}
