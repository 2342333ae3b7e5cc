//! The log role: appends in pipelines, settlements in scripts.

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::log::{
    Append, Appender, DedupAppend, DedupAppender, Deduplicated, Durability, Log, Measured, NumberedAppend,
    NumberedAppender, Numbering, Reader, Receipt, Settled, Settlement, Source, Trimmed, UniqueAppend,
};
use millstream_core::name::{GroupName, MemberId};
use millstream_core::topic::{Retention, TopicPartition};
use millstream_core::wire;
use redis::{Cmd, Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::cluster::servers::Servers;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::entries::cluster_appender::ClusterAppender;
use crate::entries::reader::StreamReader;
use crate::error::fenced;
use crate::roles::catalog::position;
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::scripts::times::due;
use crate::stored::note;

/// Maximum number of entries of one pipeline of appends, and its approximate maximum of bytes (4 MiB): the answer must
/// arrive within the response timeout.
const APPEND_CHUNK: (usize, usize) = (1_000, 4 << 20);
/// Maximum number of ids of one call of the script `ack`.
const ACK_CHUNK: usize = 1_000;
/// Maximum number of messages of one call of the scripts `retry`, `dead_letter` and `hold`, which copy bodies or
/// texts.
const COPY_CHUNK: usize = 100;
/// The same limit for large bodies, where the scripts stop after about 1 MiB.
const COPY_REST: usize = 16;

#[async_trait]
impl Log for RedisBackend {
    async fn append(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        self.append_asking(batch, &[]).await.0
    }

    async fn append_dedup(&self, batch: &[DedupAppend]) -> Vec<Result<Deduplicated>> {
        self.append_once(batch).await
    }

    fn dedup_appender(&self) -> Option<Box<dyn DedupAppender>> {
        Some(Box::new(self.open_dedup().ok()?))
    }

    async fn append_unique(&self, batch: &[UniqueAppend]) -> Vec<Result<Deduplicated>> {
        self.append_unless_held(batch).await
    }

    async fn append_numbered(
        &self,
        numbering: &Numbering,
        batch: &[NumberedAppend],
    ) -> Vec<Result<MessageId>> {
        self.append_with_numbers(*numbering, batch).await
    }

    fn numbered_appender(&self, numbering: Numbering) -> Option<Box<dyn NumberedAppender>> {
        Some(Box::new(self.open_numbered(numbering).ok()?))
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        let inner = self.inner.clone();
        Some(match &*self.inner.servers {
            Servers::One(dial) => Box::new(inner.appenders.line(dial).ok()?.appender(false, durability)),
            Servers::Cluster(cluster) => Box::new(ClusterAppender::new(inner, cluster.clone(), durability)),
        })
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        Ok(Box::new(StreamReader::new(self.inner.clone(), lease)?))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        let (tp, group) = lease.partition()?;
        self.settle_by(Right::Owner(lease), tp, group, batch).await
    }

    async fn seek(&self, lease: &Lease, start: Start) -> Result<()> {
        let (tp, group) = lease.partition()?;
        let keys = &self.inner.keys;
        let (held, log) = (keys.lease(tp, group), keys.log(tp));
        let call = self.inner.scripts.seek.call([&held, &keys.fence(tp, group), &log, &keys.held(tp, group)]);
        let call = call.args([lease.token.as_str(), group.as_str(), &position(start)?]);
        let answer = script::run_one(&self.inner.messages, call).await;
        answer.map(drop).map_err(|error| fenced(error, lease))
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        let trimmed = self.trim_by(lease, retention).await?;
        self.clean_unique_unless_recent(lease.partition()?.0).await;
        Ok(trimmed)
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let mut partitions: Vec<_> = batch.iter().map(|append| &append.topic_partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let ask: Vec<_> = partitions.iter().map(|tp| self.inner.keys.log(tp)).collect();
        let (results, answers) = self.append_asking(batch, &ask).await;
        let lengths = partitions.into_iter().zip(answers);
        let lengths =
            lengths.filter_map(|(tp, answer)| Some((tp.clone(), reply::count(answer).ok()? as u64)));
        Measured::new(results, lengths.collect())
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = Pipeline::with_capacity(partitions.len());
        for tp in partitions {
            pipe.cmd("XLEN").arg(self.inner.keys.log(tp).as_str());
        }
        let answers = self.inner.messages.send(&pipe).await?.into_iter().zip(partitions);
        let lengths = answers.map(|(answer, tp)| {
            let length =
                reply::count(answer).map_err(|error| error.during(format_args!("length of {tp}")).at(tp))?;
            Ok(length as u64)
        });
        lengths.collect()
    }
}

impl RedisBackend {
    /// Appends a batch and, in the last request, reads the lengths of some logs. The lengths are missing if that
    /// request failed.
    async fn append_asking(&self, batch: &[Append], ask: &[Key]) -> (Vec<Result<MessageId>>, Vec<Value>) {
        let (mut results, mut lengths) = (Vec::with_capacity(batch.len()), Vec::new());
        while results.len() < batch.len() {
            let chunk = append_chunk(&batch[results.len()..]);
            let mut pipe = Pipeline::with_capacity(chunk.len() + ask.len());
            for append in chunk {
                pipe.add_command(self.xadd(append));
            }
            if results.len() + chunk.len() == batch.len() {
                for log in ask {
                    pipe.cmd("XLEN").arg(log.as_str());
                }
            }
            let during = |error: Error, append: &Append| {
                error.during(format_args!("append to {}", append.topic_partition)).at(&append.topic_partition)
            };
            let mut answers = self.inner.messages.send_each(&pipe).await.into_iter();
            let mut lost = None;
            results.extend(chunk.iter().zip(answers.by_ref()).map(|(append, answer)| {
                lost = lost.take().or_else(|| answer.as_ref().err().cloned());
                answer.and_then(reply::id).map_err(|error| during(error, append))
            }));
            lengths.extend(answers.map(Result::unwrap_or_default));
            if let Some(error) = lost {
                // The appends behind the failed request are not sent: they would overtake the failed ones if the caller
                // sends those again.
                let rest = &batch[results.len()..];
                results.extend(rest.iter().map(|append| {
                    let error = format!("not sent, an earlier append failed: {error}");
                    Err(during(Error::new(ErrorKind::Unavailable, error), append))
                }));
                lengths.clear();
            }
        }
        (results, lengths)
    }
}

/// Content of a call, which determines how to parse its answer.
enum Sent {
    /// Number of ids. The answer is how many of them were acknowledged.
    Acks(usize),
    /// Positions of the messages in the batch. The answer is how many were moved or noted, how many were stale, and
    /// how many were processed: with large bodies the script may stop half-way.
    Messages(Vec<usize>),
}

/// Right by which entries of a group are settled: the first arguments of the settling scripts.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// The owner of the partition: the scripts check the fence.
    Owner(&'a Lease),
    /// One consumer of many: each entry must be pending under its name.
    Consumer(&'a MemberId),
}

impl<'a> Right<'a> {
    /// Returns the scripts' arguments `mode` and `who`.
    pub(crate) fn words(self) -> [&'a str; 2] {
        match self {
            Self::Owner(lease) => ["lease", lease.token.as_str()],
            Self::Consumer(name) => ["consumer", name.as_str()],
        }
    }
}

impl RedisBackend {
    /// Settles a batch, in bounded portions.
    pub(crate) async fn settle_by(
        &self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        let mut total = Totals::default();
        let calls = self.settle_calls(right, tp, group, batch.iter().enumerate())?;
        if calls.is_empty() {
            return Ok(total.settled);
        }
        let (calls, sent): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let answers = script::run(&self.inner.messages, calls).await;
        total.add(right, sent, answers)?;
        // The remaining messages have large bodies. Send one call at a time: the server would execute all calls of one
        // pipeline without a break.
        while !total.left.is_empty() {
            let mut some = std::mem::take(&mut total.left);
            let later = some.split_off(some.len().min(COPY_REST));
            let some = some.into_iter().filter_map(|at| Some((at, batch.get(at)?)));
            for (call, sent) in self.settle_calls(right, tp, group, some)? {
                let answers = script::run(&self.inner.messages, vec![call]).await;
                total.add(right, vec![sent], answers)?;
            }
            total.left.extend(later);
        }
        Ok(total.settled)
    }

    fn xadd(&self, append: &Append) -> Cmd {
        let key = self.inner.keys.log(&append.topic_partition);
        let mut cmd = Cmd::with_capacity(3 + 2 * append.fields.len(), 8 + key.as_str().len() + size(append));
        cmd.arg("XADD").arg(key.as_str()).arg("*");
        for (name, value) in &append.fields {
            cmd.arg(&name[..]).arg(&value[..]);
        }
        cmd
    }

    /// Builds the script calls of a batch, in bounded portions: per stream one kind of settlement after the other.
    fn settle_calls<'a, 'b>(
        &'a self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        batch: impl Iterator<Item = (usize, &'b (Receipt, Settlement))>,
    ) -> Result<Vec<(Call<'a>, Sent)>> {
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let (fence, held) = (keys.fence(tp, group), keys.held(tp, group));
        let [mode, who] = right.words();
        let mut by_source = [Settling::of(Source::Log), Settling::of(Source::Retry)];
        for (at, (receipt, settlement)) in batch {
            let Settling { source, acks, holds, retries, dead } = &mut by_source[match receipt.source {
                Source::Log => 0,
                Source::Retry => 1,
            }];
            let stream = || self.inner.stream(tp, group, *source);
            let common = [mode, who, group.as_str(), note::word(*source)];
            let id = Digits::id(receipt.id);
            let id = id.as_bytes();
            match settlement {
                Settlement::Ack => {
                    acks.next(at, || scripts.ack.call([&fence, &stream(), &held]).args(common)).push(id);
                }
                Settlement::Hold(note) => {
                    let (words, line) = note::write(note)?;
                    let call = holds.next(at, || scripts.hold.call([&fence, &stream(), &held]).args(common));
                    call.push(id);
                    call.extend([due(note.due), words, line]);
                }
                Settlement::Retry { due: when, attempt, origin, error, history } => {
                    let (history, line) = history.adding(attempt.saturating_sub(1), error);
                    let (due_at, attempt, origin) = (due(*when), attempt.to_string(), origin.to_string());
                    let call = retries.next(at, || {
                        let (due, items) = (keys.retry_due(tp, group), keys.retry_items(tp, group));
                        scripts.retry.call([&fence, &stream(), &due, &items, &held]).args(common)
                    });
                    call.push(id);
                    call.extend([&*due_at, &*attempt, &*origin, wire::cut(error), &*history, &*line]);
                }
                Settlement::DeadLetter { reason, attempts, origin, error, history } => {
                    let (history, line) = history.adding(*attempts, error);
                    let (attempts, origin) = (attempts.to_string(), origin.to_string());
                    let call = dead.next(at, || {
                        let letters = keys.dead_letters(tp, group);
                        let call = scripts.dead_letter.call([&fence, &stream(), &letters, &held]);
                        call.args(common).arg(tp.topic.as_str()).arg(tp.partition.0)
                    });
                    call.push(id);
                    call.extend([reason.as_str(), &*attempts, &*origin, wire::cut(error), &*history, &*line]);
                }
            }
        }
        Ok(by_source.into_iter().flat_map(Settling::calls).collect())
    }
}

/// Calls that settle entries of one stream, by kind of settlement.
struct Settling<'a> {
    source: Source,
    acks: Calls<'a>,
    holds: Calls<'a>,
    retries: Calls<'a>,
    dead: Calls<'a>,
}

impl<'a> Settling<'a> {
    fn of(source: Source) -> Self {
        let of = |limit| Calls { limit, keeps: true, calls: Vec::new() };
        Self {
            source,
            acks: Calls { keeps: false, ..of(ACK_CHUNK) },
            holds: of(COPY_CHUNK),
            retries: of(COPY_CHUNK),
            dead: of(COPY_CHUNK),
        }
    }

    fn calls(self) -> impl Iterator<Item = (Call<'a>, Sent)> {
        let acks = self.acks.calls.into_iter().map(|(call, sent, _)| (call, Sent::Acks(sent)));
        let moved = [self.holds, self.retries, self.dead].into_iter().flat_map(|kind| kind.calls);
        acks.chain(moved.map(|(call, _, at)| (call, Sent::Messages(at))))
    }
}

/// Calls of one kind. Each has the number of messages that it settles and, if `keeps` is set, their positions in the
/// batch.
struct Calls<'a> {
    limit: usize,
    keeps: bool,
    calls: Vec<(Call<'a>, usize, Vec<usize>)>,
}

impl<'a> Calls<'a> {
    /// Returns the call for the next message. Begins a new one if there is none or the last one is full.
    fn next(&mut self, at: usize, begin: impl FnOnce() -> Call<'a>) -> &mut Call<'a> {
        if self.calls.last().is_none_or(|(_, sent, _)| *sent >= self.limit) {
            self.calls.push((begin(), 0, Vec::new()));
        }
        let last = self.calls.len() - 1;
        let (call, sent, kept) = &mut self.calls[last];
        *sent += 1;
        if self.keeps {
            kept.push(at);
        }
        call
    }
}

fn size(append: &Append) -> usize {
    append.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Returns the first entries of a batch that make one pipeline: at least one.
fn append_chunk(batch: &[Append]) -> &[Append] {
    let (entries, bytes) = APPEND_CHUNK;
    let mut total = 0;
    let fits = batch.iter().take(entries).take_while(|append| {
        let first = total == 0;
        total += size(append).max(1);
        first || total <= bytes
    });
    &batch[..fits.count()]
}

/// Sum of the results of the calls for a batch.
#[derive(Default)]
struct Totals {
    settled: Settled,
    /// Positions in the batch that the calls have not processed.
    left: Vec<usize>,
}

impl Totals {
    /// Adds the answers of some calls.
    fn add(&mut self, right: Right<'_>, sent: Vec<Sent>, answers: Vec<Result<Value>>) -> Result<()> {
        let mut first = None;
        for (sent, answer) in sent.into_iter().zip(answers) {
            match answer.and_then(|answer| self.count(sent, answer)) {
                Ok(()) => {}
                // This error takes precedence over any other: nothing of the batch can be settled any more.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    return Err(match right {
                        Right::Owner(lease) => lease.fenced(),
                        Right::Consumer(_) => error,
                    });
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn count(&mut self, sent: Sent, answer: Value) -> Result<()> {
        let (applied, stale) = match sent {
            Sent::Acks(ids) => reply::count(answer).map(|acked| (acked, ids.saturating_sub(acked)))?,
            Sent::Messages(sent) => {
                let [applied, stale, done] = reply::tuple(answer)?;
                self.left.extend(script::behind(&sent, reply::count(done)?)?);
                (reply::count(applied)?, reply::count(stale)?)
            }
        };
        self.settled.applied += applied;
        self.settled.stale += stale;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_chunk_is_bounded_by_entries_and_by_bytes() {
        let append = |bytes: usize| Append {
            topic_partition: TopicPartition::new("t".parse().expect("name"), 0),
            fields: vec![(Bytes::new(), Bytes::from(vec![0; bytes]))],
        };
        assert_eq!(append_chunk(&vec![append(0); 2_500]).len(), 1_000);
        assert_eq!(append_chunk(&vec![append(1 << 20); 10]).len(), 4);
        assert_eq!(append_chunk(&vec![append(9 << 20); 2]).len(), 1, "a large one goes alone");
    }
}
