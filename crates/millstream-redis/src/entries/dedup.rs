//! Appends with a dedup id: one script call for the entries of a partition, behind a look at earlier partitions.

use std::collections::HashMap;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::log::{DedupAppend, Deduplicated, check_window};
use millstream_core::topic::{Partition, TopicPartition};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::{unchanged, unexpected};
use crate::scripts::script;
use crate::scripts::times::ceil_ms;

/// Maximum number of entries of one call of the script, which passes them to commands at once, and its approximate maximum of
/// bytes (1 MiB): the server works on it without a break.
const CALL: (usize, usize) = (250, 1 << 20);
/// Maximum number of bytes of one pipeline of calls (4 MiB): the answer must arrive within the response timeout.
const PIPELINE: usize = 4 << 20;

type Results = Vec<Option<Result<Deduplicated>>>;

impl RedisBackend {
    pub(crate) async fn append_once(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        let mut results: Results = batch.iter().map(|_| None).collect();
        for (result, item) in results.iter_mut().zip(batch) {
            if let Err(error) = check_window(item.window) {
                *result = Some(Err(error));
            } else if item.append.fields.is_empty() {
                *result = Some(Err(Error::new(ErrorKind::Encode, "an entry needs at least one field")));
            }
        }
        self.find_earlier(batch, &mut results).await;
        let calls = calls(batch, &results);
        let mut rest = &calls[..];
        let mut lost: Option<Error> = None;
        while !rest.is_empty() {
            let mut bytes = 0;
            let some = rest.iter().take_while(|call| {
                let first = bytes == 0;
                bytes += call.bytes.max(1);
                first || bytes <= PIPELINE
            });
            let (some, later) = rest.split_at(some.count());
            rest = later;
            if let Some(error) = &lost {
                // They would overtake those that failed, if the caller sends these again.
                for at in some.iter().flat_map(|call| &call.at) {
                    let error = format!("not sent, an earlier append failed: {error}");
                    results[*at] = Some(Err(during(Error::new(ErrorKind::Unavailable, error), &batch[*at])));
                }
                continue;
            }
            let answers =
                script::run(&self.inner.messages, some.iter().map(|call| self.call(batch, call)).collect());
            for (call, answer) in some.iter().zip(answers.await) {
                lost = lost.or_else(|| answer.as_ref().err().filter(|error| error.is_transient()).cloned());
                let partition = call.tp.partition;
                let mut stored = answer.and_then(|answer| stored(answer, partition, call.at.len()));
                for (n, at) in call.at.iter().enumerate() {
                    results[*at] = Some(match &mut stored {
                        Ok(stored) => Ok(stored[n]),
                        Err(error) => Err(during(error.clone(), &batch[*at])),
                    });
                }
            }
        }
        let missing = || Err(unexpected("no answer to an append"));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    fn call(&self, batch: &[DedupAppend], call: &Call<'_>) -> script::Call<'_> {
        let keys = &self.inner.keys;
        let keys = [keys.log(call.tp), keys.dedup(call.tp), keys.dedup_old(call.tp)];
        let mut script = self.inner.scripts.append_dedup.call(keys.each_ref()).arg(ceil_ms(call.window));
        script.push(call.at.len());
        for at in &call.at {
            let DedupAppend { append, id, .. } = &batch[*at];
            script.push(id.as_bytes());
            script.push(2 * append.fields.len());
            for (name, value) in &append.fields {
                script.extend([&name[..], &value[..]]);
            }
        }
        script
    }

    /// Looks at the earlier partitions, and sets the results of entries that are there.
    async fn find_earlier(&self, batch: &[DedupAppend], results: &mut Results) {
        let mut asked = Vec::new();
        let mut pipe = Pipeline::new();
        for (at, item) in batch.iter().enumerate().filter(|(at, _)| results[*at].is_none()) {
            for partition in item.earlier.iter().filter(|it| **it != item.append.topic_partition.partition) {
                let tp = TopicPartition::new(item.append.topic_partition.topic.clone(), partition.0);
                for key in [self.inner.keys.dedup(&tp), self.inner.keys.dedup_old(&tp)] {
                    pipe.cmd("HGET").arg(key.as_str()).arg(item.id.as_bytes());
                    asked.push((at, *partition));
                }
            }
        }
        if asked.is_empty() {
            return;
        }
        for ((at, partition), answer) in asked.into_iter().zip(self.inner.messages.send_each(&pipe).await) {
            let found = answer.and_then(reply::maybe_bytes);
            results[at] = match (results[at].take(), found) {
                (Some(Ok(known)), _) => Some(Ok(known)),
                (known, Ok(None)) => known,
                (_, Ok(Some(id))) => {
                    let id = reply::id(Value::BulkString(id.to_vec()));
                    Some(id.map(|id| Deduplicated::new(partition, id, true)))
                }
                // Only looked at: nothing was sent.
                (_, Err(error)) => Some(Err(during(unchanged(error), &batch[at]))),
            };
        }
    }
}

/// Entries of one partition with one window, by their positions in the batch.
struct Call<'a> {
    tp: &'a TopicPartition,
    window: Duration,
    at: Vec<usize>,
    bytes: usize,
}

/// Divides the entries without a result into calls, in their order within each partition.
fn calls<'a>(batch: &'a [DedupAppend], results: &Results) -> Vec<Call<'a>> {
    let mut calls: Vec<Call<'a>> = Vec::new();
    let mut last: HashMap<&TopicPartition, usize> = HashMap::new();
    for (at, item) in batch.iter().enumerate().filter(|(at, _)| results[*at].is_none()) {
        let (tp, bytes) = (&item.append.topic_partition, size(item));
        let fits = |call: &Call<'_>| {
            call.window == item.window && call.at.len() < CALL.0 && call.bytes + bytes <= CALL.1
        };
        match last.get(tp).copied().filter(|known| fits(&calls[*known])) {
            Some(known) => {
                calls[known].at.push(at);
                calls[known].bytes += bytes;
            }
            None => {
                last.insert(tp, calls.len());
                calls.push(Call { tp, window: item.window, at: vec![at], bytes });
            }
        }
    }
    calls
}

/// Parses the answer to a call.
fn stored(answer: Value, partition: Partition, entries: usize) -> Result<Vec<Deduplicated>> {
    let [ids, firsts] = reply::tuple(answer)?;
    let (ids, firsts) = (reply::array(ids)?, reply::array(firsts)?);
    if ids.len() != entries || firsts.len() != entries {
        return Err(unexpected(format_args!("{} ids for {entries} entries", ids.len())));
    }
    let each = ids.into_iter().zip(firsts).map(|(id, first)| {
        let id: MessageId = reply::id(id)?;
        Ok(Deduplicated::new(partition, id, reply::int(first)? == 0))
    });
    each.collect()
}

fn during(error: Error, item: &DedupAppend) -> Error {
    let tp = &item.append.topic_partition;
    error.during(format_args!("append to {tp}")).at(tp)
}

fn size(item: &DedupAppend) -> usize {
    item.append.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}
