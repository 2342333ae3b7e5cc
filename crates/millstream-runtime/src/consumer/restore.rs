//! Restoring a group that somebody destroyed, so that nothing unsettled is skipped.

use millstream_core::error::{Error, Result};
use millstream_core::event::Event;

use super::context::Subscription;
use super::guard::Guard;
use super::in_flight::InFlight;

/// Somebody destroyed the group or deleted the stream. Reading goes on above what is settled: everything above that is
/// handled (again) rather than lost.
pub(super) async fn restore_group(
    context: &Subscription,
    guard: &Guard,
    in_flight: &InFlight,
    error: &Error,
) -> Result<()> {
    let (topic_partition, group) = guard.lease().partition()?;
    let after = in_flight.frontier();
    let catalog = &context.backend.catalog;
    // If everything was deleted, the registry is gone as well.
    catalog.create_topic(&context.topic).await?;
    catalog.restore_group(topic_partition, group, after).await?;
    tracing::warn!(%topic_partition, %group, %after, %error, "the group was gone and has been created again");
    context.observer.observe(&Event::GroupRestored { topic_partition, group, after });
    Ok(())
}
