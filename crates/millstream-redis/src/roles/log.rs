//! The log role: appends in pipelines, settlements in scripts.

mod packed;
mod progress;
pub(crate) mod results;
pub(crate) mod settling;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::capability::unsupported;
use millstream_core::catalog::Start;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::log::ProgressRight;
use millstream_core::log::{
    Append, Appended, Appender, Durability, Identity, Log, Measured, Reader, Receipt, Settled, Settlement,
    Trimmed, UnleasedTrim,
};
use millstream_core::progress::{ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, ResultId};
use millstream_core::topic::{Retention, TopicPartition};
use redis::{Cmd, Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::appends::calls::size;
use crate::conn::appends::during;
use crate::conn::appends::part::stored;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::reader::StreamReader;
use crate::error::{fenced, unexpected};
use crate::roles::catalog::position;
use crate::scripts::gate::closing_gate;

pub(crate) use settling::Right;

/// Maximum number of entries of one pipeline of appends, and its approximate maximum of bytes (4 MiB): the answer must
/// arrive within the response timeout.
const APPEND_CHUNK: (usize, usize) = (1_000, 4 << 20);
#[async_trait]
impl Log for RedisBackend {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        match Append::kind_of(batch) {
            Ok(None | Some(Identity::None)) => self.append_asking(batch, &[]).await.0,
            Ok(Some(Identity::Dedup(_))) => self.append_dedup(batch).await,
            Ok(Some(Identity::Unique(_))) => self.append_unique(batch).await,
            Ok(Some(Identity::Number(..))) => self.append_numbered(batch).await,
            Ok(_) => batch.iter().map(|_| Err(unsupported("this identity"))).collect(),
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        Some(Box::new(self.open_appender(durability).ok()?))
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
        let of_group = [keys.fence(tp, group), keys.held(tp, group), keys.settled(tp, group)];
        let [fence, notes, settled] = &of_group;
        let (packs, position) = (keys.packs(tp), position(start)?);
        let call = |gate: &Key, reader: &str| {
            let call = self.inner.scripts.seek.call([&held, fence, &log, notes, &packs, settled, gate]);
            call.args([lease.token.as_str(), group.as_str(), &position, reader])
        };
        let answer = closing_gate(keys, &self.inner.messages, (tp, group), call).await;
        answer.map(drop).map_err(|error| fenced(error, lease))
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        let trimmed = self.trim_by(lease, retention).await?;
        self.clean_unique_unless_recent(lease.partition()?.0).await;
        Ok(trimmed)
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        let trimmed = self.trim_partition(topic_partition, None, rule).await?;
        if trimmed.dropped > 0 {
            self.clean_unique_unless_recent(topic_partition).await;
        }
        Ok(trimmed)
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        let mut partitions: Vec<_> = batch.iter().map(|append| &append.topic_partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let is_packed = partitions.iter().any(|tp| self.inner.packings.is_packed(&tp.topic));
        if is_packed || batch.iter().any(|append| append.identity.is_repeatable()) {
            let results = self.append(batch).await;
            let partitions: Vec<TopicPartition> = partitions.into_iter().cloned().collect();
            let lengths = self.lengths(&partitions).await.unwrap_or_default();
            return Measured::new(results, partitions.into_iter().zip(lengths).collect());
        }
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
        // Where a topic is packed, entries are not messages.
        if partitions.iter().any(|tp| self.inner.packings.is_packed(&tp.topic)) {
            return self.packed_lengths(partitions).await;
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

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.result_within(id, wait).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.store_progress(right, report).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.progress_within(id, above, wait).await
    }
}

impl RedisBackend {
    /// Appends entries with numbers.
    async fn append_numbered(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        match self.open_appender(Durability::Stored) {
            Ok(mut appender) => {
                appender.put(Arc::new(batch.to_vec()));
                appender.finish().await
            }
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Appends a batch and, in the last request, reads the lengths of some logs. The lengths are missing if that
    /// request failed.
    async fn append_asking(&self, batch: &[Append], ask: &[Key]) -> (Vec<Result<Appended>>, Vec<Value>) {
        let (mut results, mut lengths) = (Vec::with_capacity(batch.len()), Vec::new());
        while results.len() < batch.len() {
            let chunk = append_chunk(&batch[results.len()..]);
            let mut pipe = Pipeline::with_capacity(chunk.len() + ask.len());
            let (inner, packs) = (&self.inner, self.inner.packings.divide(chunk.iter()));
            match &packs {
                Some(packs) => packs.add_to_pipeline(
                    &mut pipe,
                    &inner.keys,
                    &inner.packings,
                    |at| &chunk[at],
                    |append| self.xadd(append),
                ),
                None => {
                    for append in chunk {
                        pipe.add_command(self.xadd(append));
                    }
                }
            }
            let appends = pipe.len();
            if results.len() + chunk.len() == batch.len() {
                for log in ask {
                    pipe.cmd("XLEN").arg(log.as_str());
                }
            }
            let mut answers = self.inner.messages.send_each(&pipe).await.into_iter();
            let mut lost = None;
            let mut ids = answers.by_ref().take(appends).map(|answer| {
                lost = lost.take().or_else(|| answer.as_ref().err().cloned());
                answer.and_then(reply::id)
            });
            let ids: Vec<_> = match &packs {
                Some(packs) => packs.results(chunk.len(), || {
                    ids.next().unwrap_or_else(|| Err(unexpected("no answer to an append")))
                }),
                None => ids.collect(),
            };
            let ids = ids.into_iter().zip(chunk);
            results.extend(ids.map(|(id, append)| match id {
                Ok(id) => Ok(stored(append, id)),
                Err(error) => Err(during(error, append)),
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

    fn xadd(&self, append: &Append) -> Cmd {
        let key = self.inner.keys.log(&append.topic_partition);
        let mut cmd = Cmd::with_capacity(3 + 2 * append.fields.len(), 8 + key.as_str().len() + size(append));
        cmd.arg("XADD").arg(key.as_str()).arg("*");
        for (name, value) in &append.fields {
            cmd.arg(&name[..]).arg(&value[..]);
        }
        cmd
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_chunk_is_bounded_by_entries_and_by_bytes() {
        let tp = || TopicPartition::new("t".parse().expect("name"), 0);
        let append = |bytes: usize| Append::new(tp(), vec![(Bytes::new(), Bytes::from(vec![0; bytes]))]);
        assert_eq!(append_chunk(&vec![append(0); 2_500]).len(), 1_000);
        assert_eq!(append_chunk(&vec![append(1 << 20); 10]).len(), 4);
        assert_eq!(append_chunk(&vec![append(9 << 20); 2]).len(), 1, "a large one goes alone");
    }
}
