//! Restoring a group that somebody destroyed, so that nothing unsettled is skipped.

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use crate::consumer::partition::in_flight::InFlight;

/// Somebody destroyed the group or deleted the stream. Reading goes on above what is settled: everything above that is
/// handled (again) rather than lost. If topic or group were deleted on purpose, the consumer ends instead.
pub(in crate::consumer) async fn restore_group(
    context: &Subscription,
    guard: &LeaseGuard,
    in_flight: &InFlight,
    error: &Error,
) -> Result<()> {
    let (topic_partition, group) = guard.lease().partition()?;
    let after = in_flight.frontier();
    let catalog = &context.backend.catalog;
    let restored = async {
        // If the server lost everything, the registry is gone as well.
        catalog.restore_topic(&context.topic).await?;
        catalog.restore_group(topic_partition, group, after).await
    };
    if let Err(error) = restored.await {
        return Err(unless_deleted(context, error));
    }
    tracing::warn!(%topic_partition, %group, %after, %error, "the group was gone and has been created again");
    context.observer.observe(&Event::GroupRestored { topic_partition, group, after });
    Ok(())
}

/// Ends the consumer if an error says that what it works on was deleted, and gives the error back.
pub(in crate::consumer) fn unless_deleted(context: &Subscription, error: Error) -> Error {
    if error.kind() == ErrorKind::Deleted {
        context.deleted(&context.topic.name, &error);
    }
    error
}
