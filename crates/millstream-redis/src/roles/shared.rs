//! The shared role: many consumers, each under its own name. The pending list has the owner of each entry.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Timestamp;
use millstream_core::continuity::Continuity;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::leases::Lease;
use millstream_core::log::{Entry, Fetched, Receipt, Settled, Settlement, Source};
use millstream_core::name::{GroupName, MemberId};
use millstream_core::shared::{Claimed, Shared, SharedMember, SharedReader};
use millstream_core::sorted::SortedSet;
use millstream_core::topic::{Partition, TopicPartition};
use millstream_core::wire::Fields;
use redis::{Pipeline, Value};

use crate::backend::{CONSUMER, RedisBackend};
use crate::conn::bulk::Weighed;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::sharing::partition_reader::PartitionReader;
use crate::entries::sharing::shared_reader::StreamsReader;
use crate::entries::unpacking::{
    PackedPage, Readable, add_notes, in_packs, is_pack, open_retries, packs, replace_readable,
};
use crate::error::{fenced, unexpected};
use crate::roles::log::Right;
use crate::scripts::script;
use crate::scripts::times::ceil_ms;
use crate::stored::{note, settled};
use millstream_core::pages::{PAGE_BYTES, PageSizer, STEP_BYTES};
use millstream_packing::dictionary_of;

/// Maximum number of ids of one call of the script `extend`.
const EXTEND_CHUNK: usize = 500;
/// Maximum number of entries of one call of the script `claim`.
const CLAIM_CHUNK: usize = 100;
/// Number of bodies in the first read of claimed entries, when their size is not known yet: the server works on one
/// request without a break.
const FIRST_BODIES: usize = 1;
/// Idle time in milliseconds that marks an entry as given back: 2^36, about two years.
const GIVEN_BACK_MS: u64 = 1 << 36;

#[async_trait]
impl Shared for RedisBackend {
    fn portions(&self, partitions: &[Partition]) -> Vec<Vec<Partition>> {
        match self.inner.servers.cluster() {
            None => vec![partitions.to_vec()],
            // Each may be at another node at any time.
            Some(_) => partitions.iter().map(|partition| vec![*partition]).collect(),
        }
    }

    async fn shared_reader(
        &self,
        member: &SharedMember,
        partitions: &[Partition],
    ) -> Result<Box<dyn SharedReader>> {
        let (inner, member) = (self.inner.clone(), member.clone());
        Ok(match (inner.servers.cluster(), partitions) {
            (None, _) => Box::new(StreamsReader::new(inner, member, partitions)),
            (Some(_), [partition]) => Box::new(PartitionReader::new(inner, member, *partition)),
            (Some(_), _) => {
                let why = format!("a reader of {} partitions: on a cluster it reads one", partitions.len());
                return Err(Error::new(ErrorKind::InvalidConfig, why));
            }
        })
    }

    async fn settle_shared(
        &self,
        member: &SharedMember,
        partition: Partition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        let tp = member.partition(partition);
        self.settle_by(Right::Consumer(&member.consumer), &tp, &member.group, batch).await
    }

    async fn extend(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<Vec<Receipt>> {
        self.touch(member, partition, entries, 0).await
    }

    async fn give_back(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
    ) -> Result<()> {
        self.touch(member, partition, entries, GIVEN_BACK_MS).await.map(drop)
    }

    async fn claim(
        &self,
        member: &SharedMember,
        partition: Partition,
        alive: &[MemberId],
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<Claimed> {
        let (tp, right) = (member.partition(partition), Right::Consumer(&member.consumer));
        let names: Vec<&str> = std::iter::once(&member.consumer).chain(alive).map(MemberId::as_str).collect();
        let (mut claimed, mut pages, mut taken) = (Claimed::default(), PageSizer::default(), 0);
        let mut packed = PackedPage::of(self.inner.packings.of(&member.topic));
        loop {
            // The bodies of claimed entries must arrive before the claim runs out. So claim one page; the rest stays
            // with its consumer. After an error the caller starts over, and finds claimed entries pending under its
            // own name.
            let limit = packed.entries(max - taken).min(CLAIM_CHUNK);
            let limit = limit.min(pages.count(limit));
            let TakenOver { next, removed, ghosts, entries } =
                self.take_over(right, &tp, &member.group, &names, (idle, limit, continuity)).await?;
            (claimed.next, claimed.removed) = (next, claimed.removed + removed);
            let found = entries.len() + ghosts.len();
            let mut some = Claimed::default();
            ghosts.iter().for_each(|(ghost, idle)| part(&mut some, *idle).ghosts.push(*ghost));
            let read = self.bodies(right, &tp, &member.group, entries, &mut some).await?;
            let (mut messages, mut packs) = (0, false);
            for (all, mut fetched) in
                [(&mut claimed.abandoned, some.abandoned), (&mut claimed.given_back, some.given_back)]
            {
                packs |= self.unpack(member, &tp, &mut fetched).await?;
                messages += fetched.entries.len() + fetched.ghosts.len();
                all.pending |= fetched.pending;
                all.entries.append(&mut fetched.entries);
                all.ghosts.append(&mut fetched.ghosts);
                all.unreadable = all.unreadable.take().or(fetched.unreadable);
            }
            if claimed.abandoned.unreadable.is_some() || claimed.given_back.unreadable.is_some() {
                // Others may be able to read the rest.
                return Ok(claimed);
            }
            packed.came(found, messages, packs);
            taken += messages;
            pages.came(found, read, Duration::ZERO);
            if found < limit || taken >= max || read >= PAGE_BYTES / 2 {
                return Ok(claimed);
            }
        }
    }

    async fn adopt(
        &self,
        lease: &Lease,
        idle: Duration,
        max: usize,
        continuity: &Continuity,
    ) -> Result<usize> {
        let (tp, group) = lease.partition()?;
        let taken =
            self.take_over(Right::Owner(lease), tp, group, &[CONSUMER], (idle, max, continuity)).await;
        let taken = taken.map_err(|error| fenced(error, lease))?;
        Ok(taken.entries.len() + taken.ghosts.len())
    }
}

/// Entries that one call of the script `claim` took over, without their bodies: a script would copy each body twice,
/// and the server does nothing else meanwhile.
struct TakenOver {
    next: Option<Duration>,
    removed: usize,
    /// Entries with a body, and the idle time of each in milliseconds.
    entries: Vec<(Entry, i64)>,
    ghosts: Vec<(Receipt, i64)>,
}

impl RedisBackend {
    /// Sets the idle time of a consumer's entries. Returns the entries that the consumer does not have.
    async fn touch(
        &self,
        member: &SharedMember,
        partition: Partition,
        entries: &[Receipt],
        idle_ms: u64,
    ) -> Result<Vec<Receipt>> {
        let tp = member.partition(partition);
        let (mut calls, mut sources) = (Vec::new(), Vec::new());
        for source in [Source::Log, Source::Retry] {
            let of_source = entries.iter().filter(|receipt| receipt.source == source);
            // The messages of a pack are one entry.
            let ids: SortedSet<_> = of_source.map(Receipt::entry).collect();
            let stream = self.inner.stream(&tp, &member.group, source);
            for ids in ids.chunks(EXTEND_CHUNK) {
                let call = self.inner.scripts.extend.call([&stream]);
                let mut call = call.args([member.group.as_str(), member.consumer.as_str()]).arg(idle_ms);
                ids.iter().for_each(|id| call.push(id.to_string()));
                calls.push(call);
                sources.push(source);
            }
        }
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        // On the connection of the lease renewals, so that it does not wait behind messages either.
        let answers = script::run(&self.inner.leases, calls).await;
        let mut lost = SortedSet::new();
        for (source, answer) in sources.into_iter().zip(answers) {
            for id in reply::array(answer?)? {
                lost.insert((source, reply::id(id)?));
            }
        }
        let is_lost = |receipt: &&Receipt| lost.contains(&(receipt.source, receipt.entry()));
        Ok(entries.iter().filter(is_lost).copied().collect())
    }

    /// Gives back packs that cannot be read: when this consumer has left, others take them for what they are, not begun.
    pub(crate) async fn leave(&self, member: &SharedMember, partition: Partition, packs: &[Receipt]) {
        if let Err(error) = self.give_back(member, partition, packs).await {
            tracing::debug!(%error, "packs that cannot be read are not given back");
        }
    }

    /// Replaces claimed packs by their messages that are not settled. Returns whether there were any packs.
    async fn unpack(
        &self,
        member: &SharedMember,
        tp: &TopicPartition,
        claimed: &mut Fetched,
    ) -> Result<bool> {
        if let Some((error, left)) = open_retries(&mut claimed.entries) {
            self.leave(member, tp.partition, &left).await;
            claimed.unreadable = Some(error.during("claim retries").at(tp));
        }
        let packs = packs(&claimed.entries);
        if packs.is_empty() {
            return Ok(false);
        }
        let (keys, group) = (&self.inner.keys, &member.group);
        let (log, held, settled) = (keys.log(tp), keys.held(tp, group), keys.settled(tp, group));
        // After the claim: from then on only we can settle any of them, if our reader has found them under our name.
        let line = self.inner.messages.of(&settled).await?;
        let name = Some(member.consumer.as_str());
        let ask = settled::ask_open(&log, group.as_str(), name, &settled, &packs);
        let mut open = settled::told_open(line.send(&ask).await?, &settled, &packs)?;
        claimed.entries.retain(|entry| !is_pack(entry) || open.contains_key(&entry.receipt.id));
        let bits = |receipt: &Receipt| open.remove(&receipt.id).flatten();
        let of_log = claimed.entries.iter().filter(|entry| is_pack(entry));
        let needed = of_log.filter_map(|entry| dictionary_of(&entry.fields)).collect();
        let dictionaries = self.inner.dictionaries_for(&member.topic, needed).await?;
        let entries = std::mem::take(&mut claimed.entries);
        let Readable { mut messages, done, unreadable } = replace_readable(entries, &dictionaries, bits);
        if let Some((error, left)) = unreadable {
            self.leave(member, tp.partition, &left).await;
            claimed.unreadable = Some(error.during(format_args!("claim from {log}")).at(tp));
        }
        let right = Right::Consumer(&member.consumer).words();
        self.inner.acknowledge_settled(right, tp, group, &done).await?;
        let ids = in_packs(&messages);
        let notes = line.send(&note::ask(&held, Source::Log, &ids)).await?;
        add_notes(&mut messages, note::told(notes, &held, &ids)?);
        claimed.entries = messages;
        Ok(true)
    }

    /// Takes over the entries pending under names other than `names`; the first of `names` gets them.
    async fn take_over(
        &self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        names: &[&str],
        (idle, max, continuity): (Duration, usize, &Continuity),
    ) -> Result<TakenOver> {
        let inner = &self.inner;
        let (fence, held) = (inner.keys.fence(tp, group), inner.keys.held(tp, group));
        let [log, retry_log] = [Source::Log, Source::Retry].map(|source| inner.stream(tp, group, source));
        let [mode, who] = right.words();
        let call = inner.scripts.claim.call([&fence, &log, &retry_log, &held]);
        let call = call.args([mode, who, group.as_str()]);
        let mut call = call.arg(ceil_ms(idle).min(GIVEN_BACK_MS)).arg(max.min(CLAIM_CHUNK));
        call.push(inner.continuity_of(&fence, continuity).to_string());
        names.iter().for_each(|name| call.push(*name));
        let mut calls = vec![call];
        // Behind it, since entries that are deleted leave the pending list with the claim.
        if inner.packings.is_packed(&tp.topic) {
            calls.push(inner.sweep_call([mode, who], tp, group));
        }
        // Calls this frequent do not use the pool, which checks a connection each time that it lends one.
        let mut answers = script::run(&inner.messages, calls).await.into_iter();
        let answer = answers.next().unwrap_or_else(|| Err(unexpected("no answer to a claim")))?;
        if let Some(swept) = answers.next() {
            inner.sweep_on([mode, who], tp, group, swept).await;
        }
        taken_over(answer).map_err(|error: Error| error.during(format_args!("claim from {log}")))
    }

    /// Reads the bodies of entries that were taken over and adds them to `claimed`. Returns the number of bytes
    /// received.
    async fn bodies(
        &self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        entries: Vec<(Entry, i64)>,
        claimed: &mut Claimed,
    ) -> Result<usize> {
        // Separate requests: the server would work on those of one pipeline without a break.
        let (mut steps, mut came, mut gone) = (PageSizer::new(STEP_BYTES, FIRST_BODIES), 0, Vec::new());
        let mut rest = entries.into_iter().peekable();
        while rest.peek().is_some() {
            let some: Vec<_> = rest.by_ref().take(steps.count(usize::MAX)).collect();
            let mut pipe = Pipeline::with_capacity(some.len());
            for (entry, _) in &some {
                let Receipt { source, id, .. } = entry.receipt;
                let (key, id) = (self.inner.stream(tp, group, source), id.to_string());
                pipe.cmd("XRANGE").arg(key.as_str()).arg(&id).arg(&id);
            }
            let bulk = self.inner.bulk.of(&self.inner.keys.log(tp)).await?;
            let Weighed { values, bytes, took } =
                bulk.weigh(&pipe).await.inspect_err(|error| self.inner.servers.learn(error))?;
            steps.came(some.len(), bytes, took);
            came += bytes;
            for ((mut entry, idle), value) in some.into_iter().zip(values) {
                let Receipt { source, id, .. } = entry.receipt;
                let during = |error: Error| error.during(format_args!("read {id} of {}", note::word(source)));
                match reply::entries(value).map_err(during)?.pop() {
                    Some((_, fields)) => {
                        entry.fields = fields.unwrap_or_default();
                        part(claimed, idle).entries.push(entry);
                    }
                    // Deleted since it was taken over: it is still on the pending list, so acknowledge it.
                    None => {
                        gone.push((entry.receipt, Settlement::Ack));
                        part(claimed, idle).ghosts.push(entry.receipt);
                    }
                }
            }
        }
        if !gone.is_empty() {
            self.settle_by(right, tp, group, &gone).await?;
        }
        Ok(came)
    }
}

/// Parses the answer of the script `claim`.
fn taken_over(answer: Value) -> Result<TakenOver> {
    let [next_ms, removed, now, entries, ghosts] = reply::tuple(answer)?;
    let now = Timestamp::from_millis(u64::try_from(reply::int(now)?).unwrap_or_default());
    let mut taken = TakenOver {
        next: u64::try_from(reply::int(next_ms)?).ok().map(Duration::from_millis),
        removed: reply::count(removed)?,
        entries: Vec::new(),
        ghosts: Vec::new(),
    };
    for row in reply::array(entries)? {
        let [source, id, deliveries, idle_ms, stored] = reply::tuple(row)?;
        let (source, stored) = (note::source(&reply::bytes(source)?)?, reply::bytes(stored)?);
        let receipt = Receipt::new(source, reply::id(id)?);
        let deliveries = u32::try_from(reply::int(deliveries)?).unwrap_or(u32::MAX);
        let note = note::read(&stored, now);
        let entry = Entry::new(receipt, deliveries, Fields::new()).with_note(note);
        if !stored.is_empty() && entry.note.is_none() {
            tracing::warn!(id = %entry.receipt.id, "a note that cannot be read is skipped");
        }
        taken.entries.push((entry, reply::int(idle_ms)?));
    }
    for row in reply::array(ghosts)? {
        let [source, id, idle_ms] = reply::tuple(row)?;
        let receipt = Receipt::new(note::source(&reply::bytes(source)?)?, reply::id(id)?);
        taken.ghosts.push((receipt, reply::int(idle_ms)?));
    }
    Ok(taken)
}

/// Returns the part of `claimed` for an entry: with an idle time of years it was given back.
fn part(claimed: &mut Claimed, idle_ms: i64) -> &mut Fetched {
    // The script `claim` has the same threshold.
    let given_back = idle_ms.unsigned_abs() >= GIVEN_BACK_MS / 2;
    let part = if given_back { &mut claimed.given_back } else { &mut claimed.abandoned };
    part.pending = true;
    part
}
