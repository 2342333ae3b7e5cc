//! Creates a group, and restores one that somebody destroyed, so that no unsettled entry is skipped.

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::{MessageId, TopicPartition, TopicSpec};

use crate::consumer::context::{Context, Subscription};
use crate::consumer::group::lease::LeaseGuard;

/// Creates the group again after somebody destroyed it or deleted the stream. Reading goes on after the frontier: everything
/// above it is handled (again) rather than lost. If topic or group were deleted on purpose, the consumer ends instead.
pub(in crate::consumer) async fn restore_group(
    context: &Subscription,
    guard: &LeaseGuard,
    after: MessageId,
    error: &Error,
) -> Result<()> {
    let (topic_partition, group) = (guard.topic_partition(), guard.group());
    let catalog = context.backend.catalog();
    let restored = async {
        // If the server lost all data, the registry is gone as well.
        catalog.restore_topic(&context.topic).await?;
        catalog.restore_group(topic_partition, group, after).await
    };
    if let Err(error) = restored.await {
        return Err(unless_deleted(context, error));
    }
    tracing::warn!(%topic_partition, %group, %after, %error, "the group was missing and has been created again");
    context.observer.observe(&Event::GroupRestored { topic_partition, group, after });
    Ok(())
}

/// Ends the consumer if the error means that its topic or group was deleted. Returns the error.
pub(in crate::consumer) fn unless_deleted(context: &Subscription, error: Error) -> Error {
    if error.kind() == ErrorKind::Deleted {
        context.deleted(&context.topic.name, &error);
    }
    error
}

/// Creates the group where it is missing, and emits an event for each partition on which it had been lost.
pub(in crate::consumer) async fn join(context: &Context, topic: &TopicSpec) -> Result<()> {
    let (group, start) = (&context.group, context.config.start);
    let created = context.backend.catalog().create_group(topic, group, start).await?;
    if created.new {
        return Ok(());
    }
    for partition in created.partitions {
        let topic_partition = TopicPartition { topic: topic.name.clone(), partition };
        // Nobody knows which entries it had settled there, so it starts with the oldest one, whatever `start` is set to.
        let after = MessageId::ZERO;
        tracing::warn!(%topic_partition, %group, "the group was missing and has been created again");
        context.observer.observe(&Event::GroupRestored { topic_partition: &topic_partition, group, after });
    }
    Ok(())
}
