//! Spans of sends and of settlements.

use std::fmt::Display;

use futures_util::future::BoxFuture;
use millstream_core::span::{ActiveSpan, Detail, MessagingOperation, OperationKind, Tracing};
use millstream_core::{Error, GroupName, Partition, Result, TopicPartition};

/// Awaits a send, and ends its span.
pub(crate) fn send<R: Send + 'static>(
    mut span: ActiveSpan,
    sending: BoxFuture<'static, Result<R>>,
    id: fn(&R) -> &dyn Display,
) -> BoxFuture<'static, Result<R>> {
    Box::pin(async move {
        let result = sending.await;
        if let Ok(done) = &result {
            span.set(Detail::MessageId(id(done)));
        }
        span.end_with(result.as_ref().err(), 1);
        result
    })
}

/// Ends the span of a send of several messages, if there is one.
pub(crate) fn end_all<R>(span: Option<ActiveSpan>, results: &[Result<R>], partition: fn(&R) -> Partition) {
    if let Some(span) = span {
        let result = |it: &Result<R>| it.as_ref().map(|done| partition(done).0).map_err(Error::kind);
        span.end_all(&mut results.iter().map(result));
    }
}

/// Starts the span of a request that settles so many messages.
pub(crate) fn of_settlements(
    tracing: &Tracing,
    topic_partition: &TopicPartition,
    group: &GroupName,
    messages: usize,
) -> ActiveSpan {
    let mut operation = MessagingOperation::new(OperationKind::Settle, topic_partition.topic.as_str());
    operation.partition = Some(topic_partition.partition.0);
    operation.group = Some(group.as_str());
    operation.batch = Some(messages);
    tracing.start(&operation)
}
