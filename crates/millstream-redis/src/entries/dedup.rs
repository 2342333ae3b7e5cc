//! Appends with dedup ids, over the connections of all producers, behind a look at earlier partitions.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::log::{Appender, DedupAppend, DedupAppender, DedupId, Deduplicated, Durability};
use millstream_core::name::TopicName;
use millstream_core::sorted::SortedMap;
use millstream_core::topic::{Partition, TopicPartition};
use redis::Value;

use crate::backend::{Inner, RedisBackend};
use crate::conn::appends::dedup::{DedupBatch, ShortId, check, size};
use crate::conn::appends::node_appender::NodeAppender;
use crate::conn::appends::part::{Part, PartEntries};
use crate::conn::cluster::servers::Servers;
use crate::conn::replies::reply;
use crate::entries::cluster_appender::ClusterAppender;
use crate::error::{redirect, unchanged, unexpected};
use crate::scripts::times::ceil_ms;
use crate::scripts::{script, wrong_type};

/// Maximum number of bytes of one request (4 MiB): it is in memory as a whole, and its answer must arrive within the response
/// timeout.
const REQUEST: usize = 4 << 20;

/// Maximum number of ids in one look at an earlier partition: as many as a script passes to a command at once.
const LOOK: usize = 250;

/// Maximum number of times that a batch follows slots that move.
const REDIRECTS: usize = 5;

type Results = Vec<Option<Result<Deduplicated>>>;

/// Appends for one producer.
pub(crate) struct Dedup {
    inner: Arc<Inner>,
    over: DedupOver,
    /// Batches that are not reported, oldest first.
    begun: VecDeque<Begun>,
}

enum DedupOver {
    Node(NodeAppender),
    Cluster(ClusterAppender),
}

/// A batch.
struct Begun {
    /// What is sent of it and not answered, oldest first.
    requests: VecDeque<Arc<DedupBatch>>,
    /// Results of the requests before these.
    results: Vec<Result<Deduplicated>>,
    /// Where an entry of the batch has its result, if not all entries were sent: the position among those that were, and
    /// whether another entry was sent for it.
    places: Option<Vec<(usize, bool)>>,
}

impl RedisBackend {
    /// Opens an appender for the entries of one producer.
    pub(crate) fn open_dedup(&self) -> Result<Dedup> {
        let inner = self.inner.clone();
        let over = match &*self.inner.servers {
            Servers::One(dial) => {
                DedupOver::Node(inner.appenders.line(dial)?.appender(false, Durability::Stored))
            }
            Servers::Cluster(cluster) => {
                DedupOver::Cluster(ClusterAppender::new(inner, cluster.clone(), Durability::Stored))
            }
        };
        Ok(Dedup { inner: self.inner.clone(), over, begun: VecDeque::new() })
    }

    pub(crate) async fn append_once(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        let checked = |item: &DedupAppend| check(&item.append, item.window).err().map(Err);
        let mut results: Results = batch.iter().map(checked).collect();
        self.find_earlier(batch, &mut results).await;
        let mut rest: Vec<usize> = (0..batch.len()).filter(|at| results[*at].is_none()).collect();
        let mut appender = match self.open_dedup() {
            Ok(appender) => appender,
            Err(error) => {
                let results = results.into_iter().zip(batch);
                return results
                    .map(|(result, item)| result.unwrap_or_else(|| Err(during(error.clone(), item))))
                    .collect();
            }
        };
        // What is refused because a slot moves goes to the other node, all of a partition in its order.
        for _ in 0..REDIRECTS {
            appender.begin(Arc::new(rest.iter().map(|at| batch[*at].clone()).collect()));
            let found = appender.finish().await;
            let is_moved = |result: &Result<_>| result.as_ref().is_err_and(|error| redirect(error).is_some());
            let moved = found.iter().any(is_moved);
            rest = rest
                .into_iter()
                .zip(found)
                .filter_map(|(at, result)| {
                    let refused = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
                    results[at] = Some(result);
                    refused.then_some(at)
                })
                .collect();
            if !moved || rest.is_empty() {
                break;
            }
        }
        let missing = || Err(unexpected("no answer to an append"));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// Looks at the earlier partitions, and sets the results of entries that are there.
    async fn find_earlier(&self, batch: &[DedupAppend], results: &mut Results) {
        let mut asked: SortedMap<(&TopicName, Partition, Duration), Vec<usize>> = SortedMap::new();
        for (at, item) in batch.iter().enumerate().filter(|(at, _)| results[*at].is_none()) {
            let tp = &item.append.topic_partition;
            for partition in item.earlier.iter().filter(|it| **it != tp.partition) {
                asked.get_or_default((&tp.topic, *partition, item.window)).push(at);
            }
        }
        let looks = asked.iter().flat_map(|(place, at)| at.chunks(LOOK).map(move |at| (*place, at)));
        let looks: Vec<_> = looks.collect();
        let calls = looks.iter().map(|((topic, partition, window), at)| {
            let tp = TopicPartition { topic: (*topic).clone(), partition: *partition };
            let keys = [self.inner.keys.dedup(&tp), self.inner.keys.dedup_old(&tp)];
            let mut call = self.inner.scripts.find_dedup.call(keys.each_ref()).arg(ceil_ms(*window));
            at.iter().for_each(|at| call.push(ShortId::of(&batch[*at].id).as_bytes()));
            call
        });
        let calls: Vec<_> = calls.collect();
        if calls.is_empty() {
            return;
        }
        let answers = script::run(&self.inner.messages, calls).await;
        for (((_, partition, _), asked), answer) in looks.iter().zip(answers) {
            match answer.and_then(|answer| found(answer, asked.len())) {
                Ok(found) => {
                    for (at, id) in asked.iter().zip(found).filter_map(|(at, id)| Some((*at, id?))) {
                        if !matches!(results[at], Some(Ok(_))) {
                            results[at] = Some(Ok(Deduplicated::new(*partition, id, true)));
                        }
                    }
                }
                // Only looked at: nothing was sent.
                Err(error) => {
                    for at in asked.iter().copied() {
                        if !matches!(results[at], Some(Ok(_))) {
                            results[at] = Some(Err(during(unchanged(error.clone()), &batch[at])));
                        }
                    }
                }
            }
        }
    }
}

/// Parses the answer to a look at an earlier partition.
fn found(answer: Value, asked: usize) -> Result<Vec<Option<MessageId>>> {
    let ids = reply::array(answer)?;
    if ids.len() != asked {
        return Err(unexpected(format_args!("{} answers about {asked} ids", ids.len())));
    }
    let id = |value: Value| match value {
        Value::BulkString(text) if text.is_empty() => Ok(None),
        value => reply::id(value).map(Some),
    };
    ids.into_iter().map(id).collect()
}

#[async_trait]
impl DedupAppender for Dedup {
    fn begin(&mut self, batch: Arc<Vec<DedupAppend>>) {
        let places = places(&batch);
        let sent = match &places {
            None => batch,
            Some(places) => {
                let sent = batch.iter().zip(places).filter(|(_, (_, other))| !other);
                Arc::new(sent.map(|(item, _)| item.clone()).collect())
            }
        };
        let mut requests = VecDeque::new();
        for items in requests_of(sent) {
            let request = Arc::new(DedupBatch::new(items, self.inner.dedup.clone()));
            let entries = PartEntries::Dedup(request.clone());
            match &mut self.over {
                DedupOver::Node(node) => node.begin_part(Part::whole(entries)),
                DedupOver::Cluster(cluster) => cluster.begin_entries(entries),
            }
            requests.push_back(request);
        }
        self.begun.push_back(Begun { requests, results: Vec::new(), places });
    }

    async fn finish(&mut self) -> Vec<Result<Deduplicated>> {
        let Some(oldest) = self.begun.front_mut() else { return Vec::new() };
        while !oldest.requests.is_empty() {
            let results = match &mut self.over {
                DedupOver::Node(node) => node.finish().await,
                DedupOver::Cluster(cluster) => cluster.finish().await,
            };
            // Kept for the next call, if this one is dropped while it waits.
            let Some(request) = oldest.requests.pop_front() else { break };
            let results = results.into_iter().zip(&*request.items).enumerate();
            oldest.results.extend(results.map(|(at, (result, item))| {
                let partition = item.append.topic_partition.partition;
                result.map(|id| Deduplicated::new(partition, id, request.is_duplicate(at)))
            }));
        }
        name_keys(&self.inner, &mut oldest.results).await;
        let Some(Begun { results, places, .. }) = self.begun.pop_front() else { return Vec::new() };
        let Some(places) = places else { return results };
        let result = |(at, other): (usize, bool)| {
            let result: Option<&Result<Deduplicated>> = results.get(at);
            let result = result.cloned().unwrap_or_else(|| Err(unexpected("no answer to an append")));
            result.map(|Deduplicated { partition, id, is_duplicate, .. }| {
                Deduplicated::new(partition, id, is_duplicate || other)
            })
        };
        places.into_iter().map(result).collect()
    }
}

/// Returns where each entry of a batch has its result, if there are entries with the same id and partition: one of them is
/// sent. `None` if there are none.
fn places(batch: &[DedupAppend]) -> Option<Vec<(usize, bool)>> {
    let mut first: HashMap<(&DedupId, &TopicPartition), usize> = HashMap::with_capacity(batch.len());
    let mut sent = 0;
    let mut places = Vec::with_capacity(batch.len());
    for DedupAppend { append, id, window, .. } in batch {
        // What is refused is nobody's first.
        let known = match check(append, *window) {
            Ok(()) => *first.entry((id, &append.topic_partition)).or_insert(sent),
            Err(_) => sent,
        };
        places.push((known, known < sent));
        sent += usize::from(known == sent);
    }
    places.iter().any(|(_, other)| *other).then_some(places)
}

/// Divides entries into requests of bounded size.
fn requests_of(items: Arc<Vec<DedupAppend>>) -> Vec<Arc<Vec<DedupAppend>>> {
    let total: usize = items.iter().map(|item| size(&item.append)).sum();
    if total <= REQUEST {
        return vec![items];
    }
    let mut requests: Vec<Vec<DedupAppend>> = Vec::new();
    let mut bytes = REQUEST;
    for item in items.iter() {
        let its = size(&item.append);
        if bytes + its > REQUEST {
            requests.push(Vec::new());
            bytes = 0;
        }
        bytes += its;
        if let Some(request) = requests.last_mut() {
            request.push(item.clone());
        }
    }
    requests.into_iter().map(Arc::new).collect()
}

/// Names the keys of a wrong type in errors: the server's does not.
async fn name_keys(inner: &Inner, results: &mut [Result<Deduplicated>]) {
    let wrong = |result: &Result<Deduplicated>| {
        let error = result.as_ref().err().filter(|error| error.kind() == ErrorKind::WrongType)?;
        Some(TopicPartition::new(error.topic()?.parse().ok()?, error.partition()?))
    };
    let mut named: HashMap<TopicPartition, Option<Error>> = HashMap::new();
    for result in results {
        let Some(tp) = wrong(result) else { continue };
        let found = match named.get(&tp) {
            Some(found) => found.clone(),
            None => {
                let keys = [inner.keys.log(&tp), inner.keys.dedup(&tp), inner.keys.dedup_old(&tp)];
                let source = millstream_lua::APPEND_DEDUP.source;
                let found = wrong_type::in_script(&inner.messages, source, &keys).await;
                named.entry(tp.clone()).or_insert(found).clone()
            }
        };
        if let Some(found) = found {
            *result = Err(found.during(format_args!("append to {tp}")).at(&tp));
        }
    }
}

fn during(error: Error, item: &DedupAppend) -> Error {
    let tp = &item.append.topic_partition;
    error.during(format_args!("append to {tp}")).at(tp)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millstream_core::log::Append;

    use super::*;

    fn item(partition: u32, id: &str, bytes: usize) -> DedupAppend {
        DedupAppend {
            append: Append {
                topic_partition: TopicPartition::new("t".parse().expect("a name"), partition),
                fields: vec![(Bytes::new(), Bytes::from(vec![0; bytes]))],
            },
            id: DedupId::new(id.to_owned()).expect("an id"),
            window: std::time::Duration::from_secs(60),
            earlier: Vec::new(),
        }
    }

    #[test]
    fn an_id_is_sent_once_for_a_partition() {
        assert_eq!(places(&[item(0, "a", 1), item(1, "a", 1), item(0, "b", 1)]), None);
        let batch = [item(0, "a", 1), item(0, "b", 1), item(0, "a", 1), item(0, "c", 1), item(0, "b", 1)];
        let places = places(&batch).expect("two of them are others");
        assert_eq!(places, [(0, false), (1, false), (0, true), (2, false), (1, true)]);
    }

    #[test]
    fn an_entry_that_is_refused_stands_for_no_other() {
        let mut empty = item(0, "a", 1);
        empty.append.fields.clear();
        assert_eq!(places(&[empty.clone(), item(0, "a", 1)]), None);
        let places = places(&[empty, item(0, "a", 1), item(0, "a", 1)]).expect("one is another");
        assert_eq!(places, [(0, false), (1, false), (1, true)]);
    }

    #[test]
    fn requests_have_a_bounded_size() {
        let counts = |items: Vec<DedupAppend>| -> Vec<usize> {
            requests_of(Arc::new(items)).iter().map(|request| request.len()).collect()
        };
        assert_eq!(counts(Vec::new()), [0], "an empty batch has its place among the others");
        assert_eq!(counts((0..1_000).map(|_| item(0, "a", 1_000)).collect()), [1_000]);
        assert_eq!(counts((0..10).map(|_| item(0, "a", 1 << 20)).collect()), [4, 4, 2]);
        assert_eq!(counts(vec![item(0, "a", 9 << 20), item(0, "b", 1), item(0, "c", 9 << 20)]), [1, 1, 1]);
    }
}
