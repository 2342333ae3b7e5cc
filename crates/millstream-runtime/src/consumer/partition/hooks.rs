//! Awaits the hooks of the rebalance listener.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use millstream_core::panics::{Panicked, UserCode};

use crate::consumer::context::Context;
use crate::consumer::group::lease::LeaseGuard;

/// What happens to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Moment {
    Acquired,
    BeforeRelease,
    AfterLoss,
}

/// Awaits the hook for a moment, if there is one.
pub(in crate::consumer) async fn tell(context: &Context, guard: &LeaseGuard, moment: Moment) {
    let Some(listener) = context.config.on_rebalance.clone() else { return };
    let (topic_partition, epoch) = (guard.topic_partition(), guard.lease().epoch);
    // In a block of its own, so that a panic on its creation and its drop are caught, too.
    let hook = async {
        match moment {
            Moment::Acquired => listener.acquired(topic_partition, epoch).await,
            Moment::BeforeRelease => listener.before_release(topic_partition, epoch).await,
            Moment::AfterLoss => listener.after_loss(topic_partition, epoch).await,
        }
    };
    let hook = AssertUnwindSafe(hook).catch_unwind();
    let why = tokio::select! {
        biased;
        ended = hook => {
            if let Err(panic) = ended {
                context.observer.observe(&Panicked::new(UserCode::RebalanceListener, panic).event());
            }
            return;
        }
        () = guard.lost().cancelled(), if moment != Moment::AfterLoss => "the lease is lost",
        () = context.kill.cancelled() => "the shutdown timeout is over",
        () = tokio::time::sleep(context.config.lease_ttl) => "it took longer than the ttl of the lease",
    };
    let group = &context.group;
    tracing::warn!(%topic_partition, %group, ?moment, why, "a hook of the rebalance listener was dropped");
}
