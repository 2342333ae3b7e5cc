//! Appends of entries with numbers, over the connections of all producers.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::error::{Error, Result};
use millstream_core::id::MessageId;
use millstream_core::log::{Appender, Durability, NumberedAppend, NumberedAppender, Numbering, check_window};
use millstream_core::sorted::SortedMap;
use millstream_core::topic::TopicPartition;
use redis::Pipeline;

use crate::backend::{Inner, RedisBackend};
use crate::conn::appends::node_appender::NodeAppender;
use crate::conn::appends::numbered::{Between, Numbers, between};
use crate::conn::appends::part::{Part, PartEntries};
use crate::conn::cluster::servers::Servers;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::cluster_appender::ClusterAppender;
use crate::scripts::times::ceil_ms;

/// Appends for one producer, whose numbers these are.
pub(crate) struct Numbered {
    inner: Arc<Inner>,
    over: Over,
    numbers: Arc<Numbers>,
    /// Batches that are not reported, oldest first, with the reason why one was not sent.
    begun: VecDeque<(Arc<Vec<NumberedAppend>>, Option<Error>)>,
    /// Results of the oldest one, while some of its ids are being looked up.
    found: Option<Vec<Result<MessageId>>>,
}

enum Over {
    Node(NodeAppender),
    Cluster(ClusterAppender),
}

impl RedisBackend {
    /// Opens an appender for the entries of one producer.
    pub(crate) fn open_numbered(&self, numbering: Numbering) -> Result<Numbered> {
        check_window(numbering.window)?;
        let inner = self.inner.clone();
        let over = match &*self.inner.servers {
            Servers::One(dial) => Over::Node(inner.appenders.line(dial)?.appender(false, Durability::Stored)),
            Servers::Cluster(cluster) => {
                Over::Cluster(ClusterAppender::new(inner, cluster.clone(), Durability::Stored))
            }
        };
        let numbers = Arc::new(Numbers::new(
            numbering,
            ceil_ms(numbering.window),
            self.inner.scripts.append_numbered.code(),
        ));
        Ok(Numbered { inner: self.inner.clone(), over, numbers, begun: VecDeque::new(), found: None })
    }

    pub(crate) async fn append_with_numbers(
        &self,
        numbering: Numbering,
        batch: &[NumberedAppend],
    ) -> Vec<Result<MessageId>> {
        let mut appender = match self.open_numbered(numbering) {
            Ok(appender) => appender,
            Err(error) => return batch.iter().map(|_| Err(error.clone())).collect(),
        };
        appender.begin(Arc::new(batch.to_vec()));
        appender.finish().await
    }
}

#[async_trait]
impl NumberedAppender for Numbered {
    fn begin(&mut self, batch: Arc<Vec<NumberedAppend>>) {
        let refused = self.numbers.refused().cloned();
        let is_refused = refused.is_some();
        self.begun.push_back((batch.clone(), refused));
        if is_refused {
            return;
        }
        let entries = PartEntries::Numbered(batch, self.numbers.clone());
        match &mut self.over {
            Over::Node(node) => node.begin_part(Part::whole(entries)),
            Over::Cluster(cluster) => cluster.begin_entries(entries),
        }
    }

    async fn finish(&mut self) -> Vec<Result<MessageId>> {
        let Some((batch, refused)) = self.begun.front().cloned() else { return Vec::new() };
        if let Some(error) = refused {
            self.begun.pop_front();
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        let results = match self.found.take() {
            Some(results) => results,
            None => match &mut self.over {
                Over::Node(node) => node.finish().await,
                Over::Cluster(cluster) => cluster.finish().await,
            },
        };
        // Kept for the next call, if this one is dropped while it waits.
        let results = self.found.insert(results);
        let found = looked_up(&self.inner, &batch, results).await;
        found.into_iter().for_each(|(at, id)| results[at] = Ok(id));
        self.begun.pop_front();
        self.found.take().unwrap_or_default()
    }
}

/// Looks into the logs for ids that do not follow from the records of transactions: nothing else was appended in between.
/// Without the right to read, or if some of the entries are gone, they stay unknown.
async fn looked_up(
    inner: &Inner,
    batch: &[NumberedAppend],
    results: &[Result<MessageId>],
) -> Vec<(usize, MessageId)> {
    let mut unknown: SortedMap<(&TopicPartition, MessageId, MessageId), Vec<usize>> = SortedMap::new();
    for (at, (result, item)) in results.iter().zip(batch).enumerate() {
        if let Some(Between { first, last }) = result.as_ref().err().and_then(between) {
            unknown.get_or_default((&item.append.topic_partition, first, last)).push(at);
        }
    }
    let mut found = Vec::new();
    for ((tp, first, last), at) in unknown {
        let mut pipe = Pipeline::new();
        let log = inner.keys.log(tp);
        pipe.cmd("XRANGE").arg(log.as_str()).arg(first.to_string()).arg(last.to_string());
        let answer = inner.messages.send(&pipe).await.map(|answers| answers.into_iter().next());
        if let Ok(entries) = answer.and_then(|answer| reply::entries(answer.unwrap_or_default()))
            && entries.len() == at.len()
        {
            found.extend(at.into_iter().zip(entries.into_iter().map(|(id, _)| id)));
        }
    }
    found
}
