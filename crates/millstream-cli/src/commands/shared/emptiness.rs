//! Notes on a topic that has no messages.

use millstream::{Partition, TopicName};

use crate::context::Context;

/// Says why there is nothing to show, if the log is empty. What cannot be found out is left out.
pub(in crate::commands) async fn note(cx: &Context, topic: &TopicName, only: Option<&[Partition]>) {
    if let Ok(Some(why)) = cx.admin().why_empty(topic, only).await {
        cx.output.note(&format!("topic {topic} is empty: {why}"));
    }
}
