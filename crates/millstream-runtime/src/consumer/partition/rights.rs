//! The rights under which a consumer handles messages, as deliveries see them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::ProgressRight;
use millstream_core::results::ResultRequest;
use millstream_core::{Capability, MessageId, TopicPartition, WorkId, WorkPlace};
use millstream_engine::delivery::{DeliveryScope, Right};
use millstream_engine::requests::Reports;
use millstream_engine::steps::{StepsAccess, StepsOf};
use tokio_util::sync::CancellationToken;

use crate::consumer::context::Context;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::partition::leases::entry_lease::{EntryLease, Key};

/// The lease of the partition.
struct PartitionRight {
    context: Arc<Context>,
    guard: Arc<LeaseGuard>,
}

/// The lease of the entry, which is pending under our name (shared mode).
struct EntryRight {
    context: Arc<Context>,
    lease: EntryLease,
    cancelled: CancellationToken,
}

/// Returns the scope of messages that start now, under the lease of their partition.
pub(in crate::consumer) fn under_lease(context: &Arc<Context>, guard: &Arc<LeaseGuard>) -> DeliveryScope {
    let right = Arc::new(PartitionRight { context: context.clone(), guard: guard.clone() });
    let (topic_partition, group) = (guard.topic_partition().clone(), guard.group().clone());
    let scope =
        DeliveryScope::new(topic_partition, group, guard.lease().epoch, guard.cancelled(), right.clone());
    scope.with_steps(right)
}

/// Returns the scope of one message of a partition without an owner (shared mode).
pub(in crate::consumer) fn under_entry_lease(
    context: &Arc<Context>,
    topic_partition: TopicPartition,
    cancelled: CancellationToken,
    lease: EntryLease,
) -> DeliveryScope {
    let right = Arc::new(EntryRight { context: context.clone(), lease, cancelled: cancelled.clone() });
    let scope = DeliveryScope::new(topic_partition, context.group.clone(), 0, cancelled, right.clone());
    scope.with_steps(right)
}

async fn either(one: &CancellationToken, other: &CancellationToken) {
    tokio::select! {
        biased;
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
}

#[async_trait]
impl Right for PartitionRight {
    async fn ending(&self) {
        either(self.guard.lost(), self.guard.revoked()).await;
    }

    async fn extend(&self) -> Result<()> {
        let Self { context, guard } = self;
        let (leases, lease) = (context.backend.leases().clone(), guard.lease().clone());
        // Taken before the request: the ttl cannot have started earlier.
        let asked = context.lease_clock.now();
        let renew = async move {
            let unanswered = || Err(Error::new(ErrorKind::Protocol, "a renewal was not answered"));
            leases.renew(&[lease]).await.pop().unwrap_or_else(unanswered)
        };
        let renewed = context.control.call(renew).await;
        match &renewed {
            Ok(()) => guard.renewed(asked),
            Err(error) if error.kind() == ErrorKind::Fenced => guard.lose(),
            Err(_) => {}
        }
        renewed
    }

    fn reports(&self, request: ResultRequest, attempt: u32) -> Option<Reports> {
        let guard = self.guard.clone();
        reports(&self.context, request, attempt, move || ProgressRight::Owner(guard.lease().clone()))
    }
}

fn reports(
    context: &Context,
    request: ResultRequest,
    attempt: u32,
    right: impl Fn() -> ProgressRight + Send + Sync + 'static,
) -> Option<Reports> {
    let keeps = context.backend.supports(Capability::Results);
    keeps.then(|| Reports::new(context.backend.log().clone(), request, attempt, right))
}

impl StepsOf for PartitionRight {
    fn steps(&self, origin: MessageId) -> Result<StepsAccess> {
        let guard = self.guard.clone();
        steps(&self.context, self.guard.topic_partition(), origin, move || {
            ProgressRight::Owner(guard.lease().clone())
        })
    }
}

fn steps(
    context: &Context,
    topic_partition: &TopicPartition,
    origin: MessageId,
    right: impl Fn() -> ProgressRight + Send + Sync + 'static,
) -> Result<StepsAccess> {
    context.backend.require(Capability::Steps)?;
    // From now on messages that are done drop theirs.
    context.has_steps.store(true, Ordering::Relaxed);
    let place = WorkPlace::Group(topic_partition.clone(), context.group.clone());
    let (backend, id) = (context.backend.clone(), WorkId::new(place, origin));
    Ok(StepsAccess { backend, id, right: Box::new(right) })
}

#[async_trait]
impl Right for EntryRight {
    async fn ending(&self) {
        either(&self.cancelled, &self.context.stop).await;
    }

    async fn extend(&self) -> Result<()> {
        let extend = self.lease.clone().extend(self.context.backend.shared()?.clone());
        self.context.control.call(extend).await
    }

    fn reports(&self, request: ResultRequest, attempt: u32) -> Option<Reports> {
        let (member, Key { partition, receipt, .. }) = (self.lease.member.clone(), self.lease.key);
        let right = move || ProgressRight::Consumer { member: member.clone(), partition, receipt };
        reports(&self.context, request, attempt, right)
    }
}

impl StepsOf for EntryRight {
    fn steps(&self, origin: MessageId) -> Result<StepsAccess> {
        let (member, Key { partition, receipt, .. }) = (self.lease.member.clone(), self.lease.key);
        steps(&self.context, &member.partition(partition), origin, move || ProgressRight::Consumer {
            member: member.clone(),
            partition,
            receipt,
        })
    }
}
