//! Appends with a unique id: one script call after the other for the entries of a partition, and cleanings of the records.
//!
//! Whether an entry is settled shows in the log, or, if it does not, in the retries of each group. The script gets the keys of
//! these only when it asks for them: a call that meets no record, or an entry that a group has not read, does without.

use std::collections::HashMap;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::log::{Append, Appended, Identity, UniqueIdentity};
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::appends::check_fields;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script;

/// Maximum number of entries of one call of the script, and its approximate maximum of bytes (1 MiB): the server works on it
/// without a break.
const CALL: (usize, usize) = (250, 1 << 20);
/// Maximum number of bytes of one pipeline of calls (4 MiB): the answer must arrive within the response timeout.
const PIPELINE: usize = 4 << 20;
/// Maximum number of calls in a row that decide nothing, because groups were created since the previous one.
const VAIN: usize = 8;
/// Maximum number of calls of one cleaning, of up to 500 records each: behind a send, which waits for it, and behind a trim.
const ROUNDS: (usize, usize) = (16, 256);

type Results = Vec<Option<Result<Appended>>>;

/// An entry and its unique id.
type Item<'a> = (&'a Append, &'a UniqueIdentity);

#[derive(Clone, Copy, PartialEq, Eq)]
enum UniqueMode {
    Append,
    Look,
}

/// Entries that belong to one partition, or are looked for there, by their positions in the batch.
struct Queue {
    tp: TopicPartition,
    at: Vec<usize>,
    /// Number of those that have been decided.
    done: usize,
    /// Groups whose keys are passed.
    groups: Vec<GroupName>,
    /// Calls in a row that decided nothing.
    vain: usize,
}

/// Answer to a call.
struct UniqueAnswer {
    /// For each entry that was decided: its place, if it has one.
    found: Vec<Option<Appended>>,
    /// Whether records should be cleaned.
    more: bool,
    missing: Vec<GroupName>,
}

impl RedisBackend {
    /// Appends entries with unique ids.
    pub(crate) async fn append_unique<'a>(&self, batch: &'a [Append]) -> Vec<Result<Appended>> {
        let of = |append: &'a Append| match &append.identity {
            Identity::Unique(unique) => Some((append, &**unique)),
            _ => None,
        };
        let batch: Vec<Item<'a>> = batch.iter().filter_map(of).collect();
        let mut results: Results = batch.iter().map(|_| None).collect();
        for (result, (append, _)) in results.iter_mut().zip(&batch) {
            // The field of the id is in front of them.
            let fields = append.fields.len();
            *result = check_fields(if fields == 0 { 0 } else { fields + 1 }).err().map(Err);
        }
        let looks = batch.iter().enumerate().flat_map(|(at, (append, unique))| {
            let TopicPartition { topic, partition } = &append.topic_partition;
            let others = unique.earlier.iter().filter(move |earlier| *earlier != partition);
            others.map(move |earlier| (at, TopicPartition::new(topic.clone(), earlier.0)))
        });
        let looks = queues(looks.filter(|(at, _)| results[*at].is_none()));
        self.decide(UniqueMode::Look, &batch, looks, &mut results).await;
        let appends = batch.iter().enumerate().map(|(at, (append, _))| (at, append.topic_partition.clone()));
        let appends = queues(appends.filter(|(at, _)| results[*at].is_none()));
        for tp in self.decide(UniqueMode::Append, &batch, appends, &mut results).await {
            self.clean_unique(&tp, ROUNDS.0).await;
        }
        let missing = || Err(unexpected("no answer to an append"));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// Makes calls until all entries of all queues are decided. Those of one partition are made one after the other, since one
    /// that stops half-way must not come behind a later one. Returns the partitions whose records should be cleaned.
    async fn decide(
        &self,
        mode: UniqueMode,
        batch: &[Item<'_>],
        mut queues: Vec<Queue>,
        results: &mut Results,
    ) -> Vec<TopicPartition> {
        let mut unclean = Vec::new();
        while !queues.is_empty() {
            let (mut calls, mut asked, mut bytes) = (Vec::new(), Vec::new(), 0);
            for (n, queue) in queues.iter().enumerate() {
                let some = chunk(mode, batch, &queue.at[queue.done..]);
                let size: usize = some.iter().map(|at| size(mode, batch[*at])).sum();
                if bytes > 0 && bytes + size > PIPELINE {
                    break;
                }
                bytes += size.max(1);
                calls.push(self.unique_call(mode, batch, queue, some));
                asked.push((n, some.len()));
            }
            let answers = script::run(&self.inner.messages, calls).await;
            for ((n, entries), answer) in asked.into_iter().zip(answers) {
                let queue = &mut queues[n];
                let answer = answer.and_then(|answer| parsed(answer, &queue.tp, entries));
                match answer.and_then(|answer| queue.advance(answer, results)) {
                    Ok(true) if !unclean.contains(&queue.tp) => unclean.push(queue.tp.clone()),
                    Ok(_) => {}
                    Err(error) => queue.fail(&error, entries, mode, results),
                }
            }
            queues.retain(|queue| queue.done < queue.at.len());
        }
        unclean
    }

    fn unique_call(
        &self,
        mode: UniqueMode,
        batch: &[Item<'_>],
        queue: &Queue,
        some: &[usize],
    ) -> script::Call<'_> {
        let word = if mode == UniqueMode::Append { "append" } else { "look" };
        let mut call = self.begin_unique(word, &queue.tp, &queue.groups, some.len());
        for at in some {
            let (append, unique) = batch[*at];
            call.push(unique.id.as_bytes());
            call.push(unique.send);
            if mode == UniqueMode::Look {
                call.push(0);
                continue;
            }
            let fields = append.stored_fields();
            call.push(2 * fields.len());
            for (name, value) in &fields {
                call.extend([&name[..], &value[..]]);
            }
        }
        call
    }

    fn begin_unique(
        &self,
        mode: &str,
        tp: &TopicPartition,
        groups: &[GroupName],
        count: usize,
    ) -> script::Call<'_> {
        let keys = &self.inner.keys;
        let of_group = |group: &GroupName| -> [Key; 3] {
            [keys.retry_due(tp, group), keys.retry_log(tp, group), keys.unique_retry(tp, group)]
        };
        let rows: Vec<[Key; 3]> = groups.iter().map(of_group).collect();
        let call = self.inner.scripts.append_unique.call_with_rows([&keys.log(tp), &keys.unique(tp)], &rows);
        let mut call = call.arg(mode).arg(groups.len()).arg(count);
        groups.iter().for_each(|group| call.push(group.as_str()));
        call
    }

    /// Drops records of settled entries of a partition that has any, unless that was done within a minute.
    pub(crate) async fn clean_unique_unless_recent(&self, tp: &TopicPartition) {
        let key = self.inner.keys.unique(tp);
        let mut pipe = Pipeline::new();
        pipe.cmd("EXISTS").arg(key.as_str());
        let exists = self.inner.one(&key, &pipe).await.and_then(reply::int);
        if exists.is_ok_and(|exists| exists == 1) {
            self.clean_unique(tp, ROUNDS.1).await;
        }
    }

    /// Drops records of settled entries, as long as many of those that the server picks are. Nothing depends on it but memory.
    async fn clean_unique(&self, tp: &TopicPartition, rounds: usize) {
        let mut groups: Vec<GroupName> = Vec::new();
        for _ in 0..rounds {
            let mut call = self.begin_unique("clean", tp, &groups, 0);
            if groups.is_empty() {
                // The script has a last argument in any case.
                call.push("");
            }
            let answer = script::run_one(&self.inner.messages, call).await;
            match answer.and_then(|answer| parsed(answer, tp, 0)) {
                Ok(UniqueAnswer { more: true, missing, .. }) => groups.extend(missing),
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%tp, %error, "records of unique ids were not cleaned");
                    return;
                }
            }
        }
    }
}

impl Queue {
    /// Sets the results of the entries that were decided. Returns whether records should be cleaned.
    fn advance(&mut self, answer: UniqueAnswer, results: &mut Results) -> Result<bool> {
        self.vain = if answer.found.is_empty() { self.vain + 1 } else { 0 };
        if answer.found.is_empty() && answer.missing.is_empty() {
            return Err(unexpected("nothing was decided"));
        }
        if self.vain > VAIN {
            let why = "not sent: groups are created faster than they are read";
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        for (at, found) in self.at[self.done..].iter().zip(&answer.found) {
            // Of several places an earlier one stays.
            let known = results[*at].take();
            results[*at] = known.or_else(|| found.map(Ok));
        }
        self.done += answer.found.len();
        self.groups.extend(answer.missing);
        Ok(answer.more)
    }

    /// Sets the error of the entries of a call, and ends the queue if later ones would overtake these when they are sent again.
    fn fail(&mut self, error: &Error, entries: usize, mode: UniqueMode, results: &mut Results) {
        let failed = match (mode, error.kind()) {
            // Only looked at: nothing was sent.
            (UniqueMode::Look, ErrorKind::Unconfirmed) => {
                Error::new(ErrorKind::Unavailable, format!("not sent: {error}"))
            }
            _ => error.clone(),
        };
        let during = |error: Error| error.during(format_args!("append to {}", self.tp)).at(&self.tp);
        let (now, later) = self.at[self.done..].split_at(entries);
        for at in now {
            results[*at] = Some(Err(during(failed.clone())));
        }
        self.done += entries;
        if error.is_transient() {
            let error = format!("not sent, an earlier append failed: {error}");
            for at in later {
                results[*at] = Some(Err(during(Error::new(ErrorKind::Unavailable, error.clone()))));
            }
            self.done = self.at.len();
        }
    }
}

/// Sorts entries by partition, in their order within each.
fn queues(entries: impl Iterator<Item = (usize, TopicPartition)>) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    let mut known: HashMap<TopicPartition, usize> = HashMap::new();
    for (at, tp) in entries {
        let n = *known.entry(tp.clone()).or_insert(queues.len());
        if n == queues.len() {
            queues.push(Queue { tp, at: Vec::new(), done: 0, groups: Vec::new(), vain: 0 });
        }
        queues[n].at.push(at);
    }
    queues
}

/// Returns the first entries that make one call: at least one.
fn chunk<'a>(mode: UniqueMode, batch: &[Item<'_>], at: &'a [usize]) -> &'a [usize] {
    let (entries, bytes) = CALL;
    let mut total = 0;
    let fits = at.iter().take(entries).take_while(|at| {
        let first = total == 0;
        total += size(mode, batch[**at]).max(1);
        first || total <= bytes
    });
    &at[..fits.count()]
}

fn size(mode: UniqueMode, (append, unique): Item<'_>) -> usize {
    let fields = if mode == UniqueMode::Append { &append.fields[..] } else { &[] };
    unique.id.as_bytes().len() + fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// Parses the answer to a call with this many entries.
fn parsed(answer: Value, tp: &TopicPartition, entries: usize) -> Result<UniqueAnswer> {
    let [ids, firsts, more, missing] = reply::tuple(answer)?;
    let (ids, firsts) = (reply::array(ids)?, reply::array(firsts)?);
    if ids.len() != firsts.len() || ids.len() > entries {
        return Err(unexpected(format_args!("{} ids for {entries} entries", ids.len())));
    }
    let found = ids.into_iter().zip(firsts).map(|(id, first)| {
        if matches!(&id, Value::BulkString(id) if id.is_empty()) {
            return Ok(None);
        }
        let id = reply::id(id)?;
        Ok(Some(match reply::int(first)? {
            0 => Appended::before(tp.partition, id),
            _ => Appended::new(tp.partition, id),
        }))
    });
    let found = found.collect::<Result<_>>()?;
    let missing = reply::array(missing)?.into_iter().map(|name| GroupName::new(reply::text(name)?));
    Ok(UniqueAnswer { found, more: reply::int(more)? == 1, missing: missing.collect::<Result<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use millstream_core::log::DedupId;

    fn item(partition: u32, bytes: usize) -> Append {
        let tp = TopicPartition::new("t".parse().expect("name"), partition);
        Append::new(tp, vec![(Bytes::new(), Bytes::from(vec![0; bytes]))])
    }

    #[test]
    fn a_call_is_bounded_by_entries_and_by_bytes() {
        let all: Vec<usize> = (0..600).collect();
        let unique = UniqueIdentity { id: DedupId::new("a").expect("an id"), send: 1, earlier: Vec::new() };
        let length = |mode, bytes| chunk(mode, &vec![(&item(0, bytes), &unique); 600], &all).len();
        assert_eq!(length(UniqueMode::Append, 10), 250);
        assert_eq!(length(UniqueMode::Append, 300 << 10), 3);
        assert_eq!(length(UniqueMode::Append, 9 << 20), 1, "a large one goes alone");
        assert_eq!(length(UniqueMode::Look, 9 << 20), 250, "what is only looked at is not sent");
    }

    #[test]
    fn entries_keep_their_order_within_a_partition() {
        let batch = [item(1, 1), item(0, 1), item(1, 1)];
        let of = batch.iter().enumerate().map(|(at, item)| (at, item.topic_partition.clone()));
        let queues = queues(of);
        let shown: Vec<_> = queues.iter().map(|queue| (queue.tp.partition.0, queue.at.clone())).collect();
        assert_eq!(shown, [(1, vec![0, 2]), (0, vec![1])]);
    }

    #[test]
    fn behind_a_lost_answer_nothing_is_sent() {
        let mut results: Results = vec![None; 3];
        let tp = item(0, 1).topic_partition;
        let mut queue = Queue { tp, at: vec![0, 1, 2], done: 0, groups: Vec::new(), vain: 0 };
        let lost = Error::new(ErrorKind::Unconfirmed, "gone");
        queue.fail(&lost, 1, UniqueMode::Append, &mut results);
        let kinds: Vec<_> = results.iter().flatten().map(|it| it.as_ref().map_err(Error::kind)).collect();
        let expected = [ErrorKind::Unconfirmed, ErrorKind::Unavailable, ErrorKind::Unavailable];
        assert_eq!(kinds, expected.map(Err));
        assert_eq!(queue.done, 3);
    }
}
