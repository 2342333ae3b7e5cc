//! Reports of trims: events, and a log line for what groups have lost.

use millstream_core::event::{Event, Observer};
use millstream_core::log::{Lost, Trimmed};
use millstream_core::{Retention, TopicPartition};

/// Emits the events of a trim. A loss is logged as a warning if `is_loud`.
pub(crate) fn emit_trimmed(
    topic_partition: &TopicPartition,
    trimmed: &Trimmed,
    retention: Retention,
    is_loud: bool,
    events: &dyn Observer,
) {
    if trimmed.dropped > 0 {
        events.observe(&Event::Trimmed { topic_partition, messages: trimmed.dropped });
    }
    for Lost { group, unread, pending } in &trimmed.lost {
        if is_loud {
            tracing::warn!(
                %topic_partition, %group, unread, pending, %retention,
                "entries were dropped that a group had not settled"
            );
        }
        events.observe(&Event::Lost { topic_partition, group, unread: *unread, pending: *pending });
    }
}
