//! Where something recurs: a topic or a delay queue that is there.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use bytes::Bytes;
use millstream::delay::{DelayQueue, Recur, RecurringEntry, RecurringMessages};
use millstream::layers::core::QueueName;
use millstream::{ErrorKind, Topic, TopicName};

use crate::context::Context;

/// A topic or a delay queue.
#[derive(Debug)]
pub(super) enum Home {
    Topic(Box<RecurringMessages<Bytes>>),
    Queue(DelayQueue<Bytes>),
}

impl Home {
    /// Opens it. The library would create what is not there.
    ///
    /// # Errors
    /// If it is not there.
    pub(super) async fn open(cx: &Context, name: &str, is_queue: bool) -> Result<Self> {
        if is_queue {
            return Ok(Self::Queue(queue(cx, &name.parse()?).await?));
        }
        let name: TopicName = name.parse()?;
        let spec = match cx.admin().topic(&name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("topic {name} does not exist; for a delay queue say --queue")
            }
            other => other?,
        };
        let topic = Topic::raw("");
        let messages = RecurringMessages::new(cx.mq.backend().clone(), spec, topic.codec());
        Ok(Self::Topic(Box::new(messages)))
    }

    pub(super) fn recur(&self, id: &str) -> Recur<'_, Bytes> {
        match self {
            Self::Topic(messages) => messages.id(id),
            Self::Queue(queue) => queue.recurring(id),
        }
    }

    pub(super) async fn list(&self) -> Result<Vec<RecurringEntry>> {
        Ok(match self {
            Self::Topic(messages) => messages.list().await?,
            Self::Queue(queue) => queue.recurring_list().await?,
        })
    }
}

/// A delay queue that is there.
///
/// # Errors
/// If it is not.
pub(super) async fn queue(cx: &Context, name: &QueueName) -> Result<DelayQueue<Bytes>> {
    let backend = cx.mq.backend();
    let spec = match backend.tasks.queue(name).await {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("delay queue {name} does not exist"),
        other => other?,
    };
    Ok(DelayQueue::raw(name.as_str()).shards(spec.shards).open(backend).await?)
}

/// Milliseconds since 1970.
pub(super) fn millis(time: SystemTime) -> u64 {
    super::view::ms(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
