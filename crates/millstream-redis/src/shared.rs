//! The shared role: many consumers, each under its own name; the pending list says who has what.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, Result};
use millstream_core::leases::Lease;
use millstream_core::log::{Entry, Fetched, Receipt, Settled, Settlement, Source};
use millstream_core::name::{GroupName, MemberId};
use millstream_core::shared::{Claimed, Seat, Shared, SharedReader};
use millstream_core::topic::{Partition, TopicPartition};
use redis::Value;

use crate::backend::{CONSUMER, RedisBackend};
use crate::leases::fenced;
use crate::log::{Right, ceil_ms};
use crate::shared_reader::StreamsReader;
use crate::{note, reply, script};

/// The most ids of one call of the script `extend`.
const EXTEND_CHUNK: usize = 500;
/// The most entries of one call of the script `claim`.
const CLAIM_CHUNK: usize = 100;
/// For how long nobody counts as having touched what is given back: two years.
const GIVEN_BACK_MS: u64 = 1 << 36;

#[async_trait]
impl Shared for RedisBackend {
    async fn shared_reader(&self, seat: &Seat, partitions: &[Partition]) -> Result<Box<dyn SharedReader>> {
        Ok(Box::new(StreamsReader::new(self.inner.clone(), seat.clone(), partitions)))
    }

    async fn settle_shared(
        &self,
        seat: &Seat,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        let tp = seat.partition(partition);
        self.settle_by(Right::Consumer(&seat.consumer), &tp, &seat.group, batch).await
    }

    async fn extend(&self, seat: &Seat, partition: Partition, entries: &[Receipt]) -> Result<Vec<Receipt>> {
        self.touch(seat, partition, entries, 0).await
    }

    async fn give_back(&self, seat: &Seat, partition: Partition, entries: &[Receipt]) -> Result<()> {
        self.touch(seat, partition, entries, GIVEN_BACK_MS).await.map(drop)
    }

    async fn claim(
        &self,
        seat: &Seat,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
    ) -> Result<Claimed> {
        let (tp, right) = (seat.partition(partition), Right::Consumer(&seat.consumer));
        let names: Vec<&str> = std::iter::once(&seat.consumer).chain(alive).map(MemberId::as_str).collect();
        self.take_over(right, &tp, &seat.group, &names, idle, max).await
    }

    async fn adopt(&self, lease: &Lease, idle: Duration, max: usize) -> Result<usize> {
        let (tp, group) = lease.partition()?;
        let claimed = self.take_over(Right::Owner(lease), tp, group, &[CONSUMER], idle, max).await;
        let Claimed { abandoned, given_back, .. } = claimed.map_err(|error| fenced(error, lease))?;
        Ok([abandoned, given_back].iter().map(|it| it.entries.len() + it.ghosts.len()).sum())
    }
}

impl RedisBackend {
    /// Sets for how long nobody has touched entries of a consumer. Gives back those that it has not.
    async fn touch(
        &self,
        seat: &Seat,
        partition: Partition,
        entries: &[Receipt],
        idle_ms: u64,
    ) -> Result<Vec<Receipt>> {
        let tp = seat.partition(partition);
        let (mut calls, mut sources) = (Vec::new(), Vec::new());
        for source in [Source::Log, Source::Retry] {
            let receipts: Vec<_> = entries.iter().filter(|receipt| receipt.source == source).collect();
            let stream = self.inner.stream(&tp, &seat.group, source);
            for receipts in receipts.chunks(EXTEND_CHUNK) {
                let call = self.inner.scripts.extend.call([&stream]);
                let mut call = call.args([seat.group.as_str(), seat.consumer.as_str()]).arg(idle_ms);
                receipts.iter().for_each(|receipt| call.push(receipt.id.to_string()));
                calls.push(call);
                sources.push(source);
            }
        }
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        // Where leases are renewed: this must not wait behind messages either.
        let answers = script::run(&self.inner.leases, calls).await?;
        let mut lost = Vec::new();
        for (source, answer) in sources.into_iter().zip(answers) {
            for id in reply::array(answer?)? {
                lost.push(Receipt { source, id: reply::id(id)? });
            }
        }
        Ok(lost)
    }

    /// Takes over what stands under other names than these; the first of them gets it.
    async fn take_over(
        &self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        names: &[&str],
        idle: Duration,
        max: usize,
    ) -> Result<Claimed> {
        let inner = &self.inner;
        let (fence, held) = (inner.keys.fence(tp, group), inner.keys.held(tp, group));
        let [log, retry_log] = [Source::Log, Source::Retry].map(|source| inner.stream(tp, group, source));
        let [mode, who] = right.words();
        let call = inner.scripts.claim.call([&fence, &log, &retry_log, &held]);
        let call = call.args([mode, who, group.as_str()]);
        let mut call = call.arg(ceil_ms(idle).min(GIVEN_BACK_MS)).arg(max.min(CLAIM_CHUNK));
        names.iter().for_each(|name| call.push(*name));
        // Looks that are this frequent take no connection of the pool, which is checked each time it is lent.
        let answer = script::run_one(&inner.messages, call).await?;
        claimed(answer).map_err(|error: Error| error.during(format_args!("claim from {log}")))
    }
}

/// What the script `claim` answered.
fn claimed(answer: Value) -> Result<Claimed> {
    let [next_ms, removed, now_ms, entries, ghosts] = reply::tuple(answer)?;
    let mut claimed = Claimed::default();
    claimed.next = u64::try_from(reply::int(next_ms)?).ok().map(Duration::from_millis);
    claimed.removed = reply::count(removed)?;
    let now_ms = u64::try_from(reply::int(now_ms)?).unwrap_or_default();
    for row in reply::array(entries)? {
        let [source, id, body, deliveries, idle_ms, stored] = reply::tuple(row)?;
        let (source, stored) = (note::source(&reply::bytes(source)?)?, reply::bytes(stored)?);
        let entry = Entry {
            receipt: Receipt { source, id: reply::id(id)? },
            deliveries: u32::try_from(reply::int(deliveries)?).unwrap_or(u32::MAX),
            fields: reply::fields(body)?,
            note: note::read(&stored, now_ms),
        };
        if !stored.is_empty() && entry.note.is_none() {
            tracing::warn!(id = %entry.receipt.id, "a note that cannot be read is passed over");
        }
        part(&mut claimed, idle_ms)?.entries.push(entry);
    }
    for row in reply::array(ghosts)? {
        let [source, id, idle_ms] = reply::tuple(row)?;
        let receipt = Receipt { source: note::source(&reply::bytes(source)?)?, id: reply::id(id)? };
        part(&mut claimed, idle_ms)?.ghosts.push(receipt);
    }
    Ok(claimed)
}

/// What nobody has touched for years was given back.
fn part(claimed: &mut Claimed, idle_ms: Value) -> Result<&mut Fetched> {
    let given_back = reply::int(idle_ms)?.unsigned_abs() >= GIVEN_BACK_MS / 2;
    let part = if given_back { &mut claimed.given_back } else { &mut claimed.abandoned };
    part.pending = true;
    Ok(part)
}
