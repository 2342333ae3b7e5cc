//! Appends with dedup ids: the look at earlier partitions, and what becomes of a batch with ids that repeat.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Appended, Appender, DedupId, Durability, Identity};
use millstream_core::name::TopicName;
use millstream_core::sorted::SortedMap;
use millstream_core::topic::{Partition, TopicPartition};
use redis::Value;

use crate::backend::{Inner, RedisBackend};
use crate::conn::appends::calls::size;
use crate::conn::appends::dedup::{ShortId, check};
use crate::conn::appends::during;
use crate::conn::replies::reply;
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

type Results = Vec<Option<Result<Appended>>>;

/// Position of an entry in its batch, and its id.
type Sought<'a> = (usize, &'a DedupId);

impl RedisBackend {
    /// Appends entries with dedup ids, behind a look at earlier partitions.
    pub(crate) async fn append_dedup(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        let mut results: Results = batch.iter().map(|append| check(append).err().map(Err)).collect();
        self.find_earlier(batch, &mut results).await;
        let mut rest: Vec<usize> = (0..batch.len()).filter(|at| results[*at].is_none()).collect();
        let mut appender = match self.open_appender(Durability::Stored) {
            Ok(appender) => appender,
            Err(error) => {
                let results = results.into_iter().zip(batch);
                return results
                    .map(|(result, append)| result.unwrap_or_else(|| Err(during(error.clone(), append))))
                    .collect();
            }
        };
        // What is refused because a slot moves goes to the other node, all of a partition in its order.
        for _ in 0..REDIRECTS {
            appender.put(Arc::new(rest.iter().map(|at| batch[*at].clone()).collect()));
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
    async fn find_earlier(&self, batch: &[Append], results: &mut Results) {
        let mut asked: SortedMap<(&TopicName, Partition, Duration), Vec<Sought<'_>>> = SortedMap::new();
        for (at, append) in batch.iter().enumerate().filter(|(at, _)| results[*at].is_none()) {
            let Identity::Dedup(dedup) = &append.identity else { continue };
            let tp = &append.topic_partition;
            for partition in dedup.earlier.iter().filter(|it| **it != tp.partition) {
                asked.get_or_default((&tp.topic, *partition, dedup.window)).push((at, &dedup.id));
            }
        }
        let looks = asked.iter().flat_map(|(place, at)| at.chunks(LOOK).map(move |at| (*place, at)));
        let looks: Vec<_> = looks.collect();
        let calls = looks.iter().map(|((topic, partition, window), asked)| {
            let tp = TopicPartition { topic: (*topic).clone(), partition: *partition };
            let keys = [self.inner.keys.dedup(&tp), self.inner.keys.dedup_old(&tp)];
            let mut call = self.inner.scripts.find_dedup.call(keys.each_ref()).arg(ceil_ms(*window));
            asked.iter().for_each(|(_, id)| call.push(ShortId::of(id).as_bytes()));
            call
        });
        let calls: Vec<_> = calls.collect();
        if calls.is_empty() {
            return;
        }
        let answers = script::run(&self.inner.messages, calls).await;
        for (((_, partition, _), asked), answer) in looks.iter().zip(answers) {
            let found = answer.and_then(|answer| found(answer, asked.len()));
            for (n, (at, _)) in asked.iter().enumerate() {
                if matches!(results[*at], Some(Ok(_))) {
                    continue;
                }
                match &found {
                    Ok(found) => {
                        if let Some(id) = found[n] {
                            results[*at] = Some(Ok(Appended::before(*partition, id)));
                        }
                    }
                    // Only looked at: nothing was sent.
                    Err(error) => results[*at] = Some(Err(during(unchanged(error.clone()), &batch[*at]))),
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

/// Returns where each entry of a batch has its result, if there are entries with the same id and partition: one of them is
/// sent. `None` if there are none.
pub(crate) fn places(batch: &[Append]) -> Option<Vec<(usize, bool)>> {
    let mut first: HashMap<(&DedupId, &TopicPartition), usize> = HashMap::with_capacity(batch.len());
    let mut sent = 0;
    let mut places = Vec::with_capacity(batch.len());
    for append in batch {
        // What is refused is nobody's first.
        let known = match check(append) {
            Ok(dedup) => *first.entry((&dedup.id, &append.topic_partition)).or_insert(sent),
            Err(_) => sent,
        };
        places.push((known, known < sent));
        sent += usize::from(known == sent);
    }
    places.iter().any(|(_, other)| *other).then_some(places)
}

/// Divides entries into requests of bounded size.
pub(crate) fn requests_of(items: &Arc<Vec<Append>>) -> Vec<Arc<Vec<Append>>> {
    let total: usize = items.iter().map(size).sum();
    if total <= REQUEST {
        return vec![items.clone()];
    }
    let mut requests: Vec<Vec<Append>> = Vec::new();
    let mut bytes = REQUEST;
    for item in items.iter() {
        let its = size(item);
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
pub(crate) async fn name_keys(inner: &Inner, results: &mut [Result<Appended>]) {
    let wrong = |result: &Result<Appended>| {
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millstream_core::log::DedupIdentity;

    use super::*;

    fn item(partition: u32, id: &str, bytes: usize) -> Append {
        let tp = TopicPartition::new("t".parse().expect("a name"), partition);
        let id = DedupId::new(id.to_owned()).expect("an id");
        Append::new(tp, vec![(Bytes::new(), Bytes::from(vec![0; bytes]))]).with(DedupIdentity {
            id,
            window: Duration::from_secs(60),
            earlier: Vec::new(),
        })
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
        empty.fields.clear();
        assert_eq!(places(&[empty.clone(), item(0, "a", 1)]), None);
        let places = places(&[empty, item(0, "a", 1), item(0, "a", 1)]).expect("one is another");
        assert_eq!(places, [(0, false), (1, false), (1, true)]);
    }

    #[test]
    fn requests_have_a_bounded_size() {
        let counts = |items: Vec<Append>| -> Vec<usize> {
            requests_of(&Arc::new(items)).iter().map(|request| request.len()).collect()
        };
        assert_eq!(counts(Vec::new()), [0], "an empty batch has its place among the others");
        assert_eq!(counts((0..1_000).map(|_| item(0, "a", 1_000)).collect()), [1_000]);
        assert_eq!(counts((0..10).map(|_| item(0, "a", 1 << 20)).collect()), [4, 4, 2]);
        assert_eq!(counts(vec![item(0, "a", 9 << 20), item(0, "b", 1), item(0, "c", 9 << 20)]), [1, 1, 1]);
    }
}
