//! The log role: appends in pipelines, settlements in scripts.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::catalog::Start;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::leases::Lease;
use millstream_core::log::{Append, Log, Reader, Receipt, Settled, Settlement, Source};
use millstream_core::name::{GroupName, MemberId};
use millstream_core::schedule::Due;
use millstream_core::topic::TopicPartition;
use millstream_core::wire;
use redis::{Cmd, Pipeline, Value};

use crate::backend::RedisBackend;
use crate::catalog::position;
use crate::connection::Line;
use crate::leases::fenced;
use crate::reader::StreamReader;
use crate::script::Call;
use crate::{note, reply, script};

/// The most entries of one pipeline of appends, and about the most bytes: an answer must come within the
/// response timeout.
const APPEND_CHUNK: (usize, usize) = (1_000, 4 << 20);
/// The most ids of one call of the script `ack`.
const ACK_CHUNK: usize = 1_000;
/// The most messages of one call of the scripts `retry`, `dead_letter` and `hold`: they copy bodies or texts.
const COPY_CHUNK: usize = 100;
/// About how many entries one call of the script `trim` drops at most.
const TRIM_CHUNK: usize = 10_000;

#[async_trait]
impl Log for RedisBackend {
    async fn append(&self, batch: &[Append]) -> Vec<Result<MessageId>> {
        let mut results = Vec::with_capacity(batch.len());
        while results.len() < batch.len() {
            let chunk = append_chunk(&batch[results.len()..]);
            let mut pipe = Pipeline::with_capacity(chunk.len());
            for append in chunk {
                pipe.add_command(self.xadd(append));
            }
            let during = |error: Error, append: &Append| {
                error.during(format_args!("append to {}", append.topic_partition))
            };
            match self.inner.messages.send(&pipe).await {
                Ok(answers) => results.extend(
                    chunk
                        .iter()
                        .zip(answers)
                        .map(|(append, answer)| reply::id(answer).map_err(|error| during(error, append))),
                ),
                Err(error) => {
                    results.extend(chunk.iter().map(|append| Err(during(error.duplicate(), append))));
                    // What stands behind was not sent, and is not: it would overtake what the caller may send
                    // again.
                    let rest = &batch[results.len()..];
                    results.extend(rest.iter().map(|append| {
                        let error = format!("not sent, an earlier append failed: {error}");
                        Err(during(Error::new(ErrorKind::Unavailable, error), append))
                    }));
                }
            }
        }
        results
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
        let call =
            self.inner.scripts.seek.call([&keys.fence(tp, group), &keys.log(tp), &keys.held(tp, group)]);
        let word = format!("{:016x}", fastrand::u64(..));
        let call = call.args([lease.token.as_str(), group.as_str(), &position(start)?, &word]);
        let answer = script::run_one(&self.inner.messages, call).await;
        answer.map(drop).map_err(|error| fenced(error, lease))
    }

    async fn trim(&self, lease: &Lease) -> Result<usize> {
        let (tp, group) = lease.partition()?;
        let keys = [self.inner.keys.fence(tp, group), self.inner.keys.log(tp)];
        let mut trimmed = 0;
        loop {
            let call = self.inner.scripts.trim.call(keys.each_ref());
            let call = call.arg(lease.token.as_str()).arg(TRIM_CHUNK);
            let answer = script::run_one(&self.inner.messages, call).await;
            let count = reply::count(answer.map_err(|error| fenced(error, lease))?)?;
            trimmed += count;
            if count < TRIM_CHUNK {
                return Ok(trimmed);
            }
        }
    }
}

/// What a call of a settlement answers.
#[derive(Clone, Copy)]
enum Answers {
    /// How many of this many ids were acknowledged.
    Acked(usize),
    /// How many messages were moved or noted, and how many were stale.
    Moved,
}

/// By what right a group's entries are settled: what the settling scripts are told first.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// As the partition's owner: the fence is asked.
    Owner(&'a Lease),
    /// As one consumer of many: each entry must stand under its name.
    Consumer(&'a MemberId),
}

impl<'a> Right<'a> {
    /// The scripts' `mode` and `who`.
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
        let calls = self.settle_calls(right, tp, group, batch)?;
        let (calls, kinds): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        if calls.is_empty() {
            return Ok(Settled::default());
        }
        let answers = script::run(&self.inner.messages, calls).await?;
        settled(right, &kinds, answers)
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

    /// The script calls of a batch: per stream one kind of settlement after the other, in bounded portions.
    fn settle_calls(
        &self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Vec<(Call<'_>, Answers)>> {
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let (fence, held) = (keys.fence(tp, group), keys.held(tp, group));
        let mut calls = Vec::new();
        for source in [Source::Log, Source::Retry] {
            let (mut acks, mut holds, mut retries, mut dead) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (receipt, settlement) in batch.iter().filter(|(receipt, _)| receipt.source == source) {
                let id = receipt.id.to_string();
                match settlement {
                    Settlement::Ack => acks.push(id),
                    Settlement::Hold(note) => {
                        let (words, line) = note::write(note)?;
                        holds.push((id, due(note.due), words, line));
                    }
                    Settlement::Retry { due: at, attempt, origin, error, history } => {
                        let history = history.adding(attempt.saturating_sub(1), error);
                        let (error, origin) = (wire::cut(error), origin.to_string());
                        retries.push((id, due(*at), *attempt, origin, error, history));
                    }
                    Settlement::DeadLetter { reason, attempts, origin, error, history } => {
                        let history = history.adding(*attempts, error);
                        let (error, origin) = (wire::cut(error), origin.to_string());
                        dead.push((id, reason.as_str(), *attempts, origin, error, history));
                    }
                }
            }
            let stream = self.inner.stream(tp, group, source);
            let [mode, who] = right.words();
            let common = [mode, who, group.as_str(), note::word(source)];
            for ids in acks.chunks(ACK_CHUNK) {
                let mut call = scripts.ack.call([&fence, &stream, &held]).args(common);
                ids.iter().for_each(|id| call.push(id));
                calls.push((call, Answers::Acked(ids.len())));
            }
            for notes in holds.chunks(COPY_CHUNK) {
                let mut call = scripts.hold.call([&fence, &stream, &held]).args(common);
                for (id, due, words, line) in notes {
                    call = call.args([id, due, words, line]);
                }
                calls.push((call, Answers::Moved));
            }
            for messages in retries.chunks(COPY_CHUNK) {
                let (due, items) = (keys.retry_due(tp, group), keys.retry_items(tp, group));
                let mut call = scripts.retry.call([&fence, &stream, &due, &items, &held]).args(common);
                for (id, due, attempt, origin, error, (history, line)) in messages {
                    call = call.args([id, due]).arg(*attempt).args([origin, *error, history, line]);
                }
                calls.push((call, Answers::Moved));
            }
            for messages in dead.chunks(COPY_CHUNK) {
                let letters = keys.dead_letters(tp, group);
                let call = scripts.dead_letter.call([&fence, &stream, &letters, &held]).args(common);
                let mut call = call.arg(tp.topic.as_str()).arg(tp.partition.0);
                for (id, reason, attempts, origin, error, (history, line)) in messages {
                    call = call.arg(id).arg(*reason).arg(*attempts).args([origin, *error, history, line]);
                }
                calls.push((call, Answers::Moved));
            }
        }
        Ok(calls)
    }
}

fn size(append: &Append) -> usize {
    append.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// The first entries of a batch that make one pipeline: at least one.
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

/// When something is due, as scripts are told it: `+` and microseconds from now, rounded up, or a time in milliseconds.
pub(crate) fn due(due: Due) -> String {
    match due {
        Due::In(delay) => format!("+{}", delay.min(Due::FAR).as_nanos().div_ceil(1_000)),
        // Beyond this Lua does not count exactly; the script takes less.
        Due::At(at) => at.min(1 << 52).to_string(),
    }
}

/// Milliseconds, rounded up: never early. Lua counts exactly up to 2^53.
pub(crate) fn ceil_ms(after: Duration) -> u64 {
    u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(1 << 52)
}

/// Adds up what the calls answered.
fn settled(right: Right<'_>, calls: &[Answers], answers: Vec<Result<Value>>) -> Result<Settled> {
    let mut first = None;
    let mut total = Settled::default();
    for (call, answer) in calls.iter().zip(answers) {
        let counted = answer.and_then(|value| match *call {
            Answers::Acked(ids) => reply::count(value).map(|acked| (acked, ids.saturating_sub(acked))),
            Answers::Moved => reply::tuple(value)
                .and_then(|[applied, stale]| Ok((reply::count(applied)?, reply::count(stale)?))),
        });
        match counted {
            Ok((applied, stale)) => {
                total.applied += applied;
                total.stale += stale;
            }
            // Says more than any other error beside it: nothing of this batch can be done any more.
            Err(error) if error.kind() == ErrorKind::Fenced => {
                return Err(match right {
                    Right::Owner(lease) => lease.fenced(),
                    Right::Consumer(_) => error,
                });
            }
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.map_or(Ok(total), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn after_is_rounded_up_and_never_overflows() {
        assert_eq!(ceil_ms(Duration::ZERO), 0);
        assert_eq!(ceil_ms(Duration::from_nanos(1)), 1);
        assert_eq!(ceil_ms(Duration::from_millis(5)), 5);
        assert_eq!(ceil_ms(Duration::MAX), 1 << 52);
    }

    #[test]
    fn due_times_are_told_exactly_and_never_overflow() {
        assert_eq!(due(Due::NOW), "+0");
        assert_eq!(due(Due::In(Duration::from_nanos(1))), "+1");
        assert_eq!(due(Due::In(Duration::MAX)), format!("+{}", Due::FAR.as_micros()));
        assert_eq!(due(Due::At(1_700_000_000_123)), "1700000000123");
        assert_eq!(due(Due::At(u64::MAX)), (1u64 << 52).to_string());
    }

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
