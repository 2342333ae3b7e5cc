//! One reader of many partitions among other readers: first what is pending under its own name, then what is new.
//!
//! It reads under a name that nobody else has, so it may block in the read that takes: each entry goes to one reader,
//! and what a lost answer held stands under its own name, where it looks first when it starts over.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{Entry, Fetched, Note, Receipt, Source};
use millstream_core::shared::{Seat, SharedReader};
use millstream_core::topic::Partition;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::connection::send_within;
use crate::note;
use crate::reply::{self, RawEntry};

/// The longest single wait on the server, and the shortest: to the server, 0 ms means for ever.
const BLOCK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(3_600));

pub(crate) struct StreamsReader {
    inner: Arc<Inner>,
    seat: Seat,
    streams: Vec<Stream>,
    connection: Option<MultiplexedConnection>,
    stage: Stage,
    plan: Plan,
    /// Until when the blocking request that is under way can take entries.
    blocking: Option<Instant>,
    /// Until when blocking requests whose answers are lost can take entries: then their entries are looked for.
    stray: Option<Instant>,
    /// Set while a request is under way. Found set, the future was dropped and an answer may be lost.
    busy: bool,
}

struct Stream {
    partition: Partition,
    source: Source,
    key: Key,
    held: Key,
}

enum Stage {
    /// Reading what stands under our name: of these streams, above this id.
    Pending(VecDeque<usize>, MessageId),
    /// Reading what nobody has seen.
    New,
}

/// What is read: entries by partition.
#[derive(Default)]
struct Read(Vec<(Partition, Fetched)>);

impl Read {
    fn of(&mut self, partition: Partition) -> &mut Fetched {
        let at = self.0.iter().position(|(known, _)| *known == partition).unwrap_or_else(|| {
            self.0.push((partition, Fetched::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

impl StreamsReader {
    pub(crate) fn new(inner: Arc<Inner>, seat: Seat, partitions: &[Partition]) -> Self {
        let mut streams = Vec::with_capacity(2 * partitions.len());
        for partition in partitions {
            let tp = seat.partition(*partition);
            for source in [Source::Log, Source::Retry] {
                let key = inner.stream(&tp, &seat.group, source);
                let held = inner.keys.held(&tp, &seat.group);
                streams.push(Stream { partition: *partition, source, key, held });
            }
        }
        let plan = Plan::new(streams.len());
        let (connection, stage) = (None, Stage::New);
        Self { inner, seat, streams, connection, stage, plan, blocking: None, stray: None, busy: false }
    }

    async fn next(&mut self, max: usize, wait: Duration) -> Result<Read> {
        let started = Instant::now();
        loop {
            let stray = self.stray.is_some_and(|until| until <= Instant::now());
            if self.connection.is_none() || (stray && matches!(self.stage, Stage::New)) {
                self.start_over(stray).await?;
            }
            if matches!(self.stage, Stage::Pending(..)) {
                if let Some(read) = self.pending(max).await? {
                    return Ok(read);
                }
                continue;
            }
            let left = wait.saturating_sub(started.elapsed());
            // What a lost request may have taken is looked for as soon as it can take no more.
            let until = self.stray.map_or(BLOCK.1, |until| until.saturating_duration_since(Instant::now()));
            let block = left.min(until).min(BLOCK.1);
            let idle = self.plan.is_idle();
            let read = if idle && block >= BLOCK.0 {
                self.new_entries(vec![self.plan.wait(max)], Some(block)).await?
            } else {
                let asks = self.plan.look(max);
                self.new_entries(asks, None).await?
            };
            if !read.0.is_empty() {
                return Ok(read);
            }
            if left < BLOCK.0 && self.plan.is_idle() {
                return Ok(read);
            }
        }
    }

    /// Connects if need be, and finds the streams in which something stands under our name.
    async fn start_over(&mut self, stray: bool) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(self.inner.dial.waiting("reader").await?);
        }
        let mut pipe = Pipeline::with_capacity(self.streams.len());
        for stream in &self.streams {
            let group = self.seat.group.as_str();
            pipe.cmd("XPENDING").arg(stream.key.as_str()).arg(group).arg("-").arg("+").arg(1);
            pipe.arg(self.seat.consumer.as_str());
        }
        let answers = self.send(&pipe, Duration::ZERO).await?;
        let mut pending = VecDeque::new();
        for (at, answer) in answers.into_iter().enumerate() {
            if !reply::deliveries(answer).map_err(|error| self.on(at, error))?.is_empty() {
                pending.push_back(at);
            }
        }
        if stray {
            self.stray = None;
        }
        self.stage = Stage::Pending(pending, MessageId::ZERO);
        self.plan = Plan::new(self.streams.len());
        Ok(())
    }

    /// One page of what stands under our name. `None` if there is no more.
    async fn pending(&mut self, max: usize) -> Result<Option<Read>> {
        let Stage::Pending(streams, after) = &self.stage else { return Ok(None) };
        let (Some(at), after) = (streams.front().copied(), *after) else {
            self.stage = Stage::New;
            return Ok(None);
        };
        let (group, name) = (self.seat.group.as_str(), self.seat.consumer.as_str());
        let Stream { partition, source, key, held } = &self.streams[at];
        let (partition, source, held) = (*partition, *source, held.clone());
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("XREADGROUP").arg("GROUP").arg(group).arg(name).arg("COUNT").arg(max);
        pipe.arg("STREAMS").arg(key.as_str()).arg(after.to_string());
        pipe.cmd("XPENDING")
            .arg(key.as_str())
            .arg(group)
            .arg(format!("({after}"))
            .arg("+")
            .arg(max)
            .arg(name);
        pipe.cmd("HLEN").arg(held.as_str());
        let answers = self.send(&pipe, Duration::ZERO).await?;
        let [entries, counts, noted] = reply::tuple(Value::Array(answers))?;
        let entries = reply::streams(entries).map_err(|error| self.on(at, error))?;
        let entries: Vec<RawEntry> = entries.into_iter().flat_map(|(_, entries)| entries).collect();
        let counts = reply::deliveries(counts).map_err(|error| self.on(at, error))?;
        let noted = reply::count(noted).map_err(|error| error.during(format_args!("read {held}")))? > 0;

        if let Stage::Pending(streams, after) = &mut self.stage {
            match entries.last() {
                Some((last, _)) if entries.len() >= max => *after = *last,
                _ => {
                    streams.pop_front();
                    *after = MessageId::ZERO;
                }
            }
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let ids: Vec<MessageId> = entries.iter().map(|(id, _)| *id).collect();
        let notes = if noted { self.notes(&held, source, &ids).await? } else { Vec::new() };
        let mut read = Read::default();
        *read.of(partition) = page(source, entries, counts, notes);
        Ok(Some(read))
    }

    async fn notes(&mut self, held: &Key, source: Source, ids: &[MessageId]) -> Result<Vec<Option<Note>>> {
        let answers = self.send(&note::ask(held, source, ids), Duration::ZERO).await?;
        note::told(answers, held, ids)
    }

    /// What nobody has seen, after waiting up to `block`.
    async fn new_entries(&mut self, asks: Vec<Ask>, block: Option<Duration>) -> Result<Read> {
        let mut pipe = Pipeline::with_capacity(asks.len());
        for ask in &asks {
            pipe.cmd("XREADGROUP")
                .arg("GROUP")
                .arg(self.seat.group.as_str())
                .arg(self.seat.consumer.as_str());
            pipe.arg("COUNT").arg(ask.count);
            if let Some(block) = block {
                pipe.arg("BLOCK").arg(u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1));
            }
            pipe.arg("STREAMS");
            for at in &ask.streams {
                pipe.arg(self.streams[*at].key.as_str());
            }
            for _ in &ask.streams {
                pipe.arg(">");
            }
        }
        self.blocking = block.map(|block| Instant::now() + block + self.inner.dial.response_timeout);
        let answers = self.send(&pipe, block.unwrap_or_default()).await?;
        self.blocking = None;
        let mut read = Read::default();
        for (ask, answer) in asks.iter().zip(answers) {
            let first = ask.streams.first().copied().unwrap_or_default();
            let mut got = vec![0; ask.streams.len()];
            for (key, entries) in reply::streams(answer).map_err(|error| self.on(first, error))? {
                let Some(slot) = ask.streams.iter().position(|at| key == self.streams[*at].key.as_str())
                else {
                    return Err(unasked(&key));
                };
                let Stream { partition, source, .. } = self.streams[ask.streams[slot]];
                got[slot] = entries.len();
                let page = page(source, entries, Vec::new(), Vec::new());
                let fetched = read.of(partition);
                fetched.pending = false;
                fetched.entries.extend(page.entries);
                fetched.ghosts.extend(page.ghosts);
            }
            self.plan.told(ask, &got);
        }
        Ok(read)
    }

    fn on(&self, at: usize, error: Error) -> Error {
        error.during(format_args!("read {}", self.streams[at].key))
    }

    async fn send(&mut self, pipe: &Pipeline, block: Duration) -> Result<Vec<Value>> {
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Unavailable, "the reader has no connection"));
        };
        send_within(connection, pipe, block + self.inner.dial.response_timeout).await
    }

    /// An answer may be lost: the next request starts over.
    fn lose(&mut self) {
        self.connection = None;
        self.stray = self.stray.max(self.blocking.take());
    }
}

fn unasked(key: &Bytes) -> Error {
    crate::error::unexpected(format_args!("entries of {}", String::from_utf8_lossy(key)))
}

/// Entries with what is known of each. All lists are in the order of ids.
fn page(
    source: Source,
    entries: Vec<RawEntry>,
    counts: Vec<(MessageId, u32)>,
    notes: Vec<Option<Note>>,
) -> Fetched {
    let (mut counts, mut notes) = (counts.into_iter().peekable(), notes.into_iter());
    let mut fetched = Fetched { pending: true, ..Fetched::default() };
    for (id, fields) in entries {
        let note = notes.next().flatten();
        while counts.next_if(|(other, _)| *other < id).is_some() {}
        let deliveries = counts.next_if(|(other, _)| *other == id).map_or(1, |(_, times)| times);
        let receipt = Receipt { source, id };
        match fields {
            Some(fields) => fetched.entries.push(Entry { receipt, deliveries, fields, note }),
            None => fetched.ghosts.push(receipt),
        }
    }
    fetched
}

#[async_trait]
impl SharedReader for StreamsReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>> {
        if self.busy {
            self.lose();
        }
        if max == 0 || self.streams.is_empty() {
            return Ok(Vec::new());
        }
        self.busy = true;
        let read = self.next(max, wait).await;
        self.busy = false;
        if read.is_err() {
            self.lose();
        }
        read.map(|read| read.0)
    }
}

/// What one XREADGROUP is to read.
#[derive(Debug, PartialEq, Eq)]
struct Ask {
    streams: Vec<usize>,
    /// From each at most.
    count: usize,
}

/// Which streams are read next, and how much of each: COUNT is per stream, and the sum is bounded.
///
/// Streams that gave as much as they were asked for have more, and get most of the room. Of the others a part is looked
/// at in turn. When all have been looked at and nothing was there, the reader can wait on all of them at once.
#[derive(Debug)]
struct Plan {
    streams: usize,
    /// Those that have more.
    full: BTreeSet<usize>,
    /// Where the next look begins.
    next: usize,
    /// So many have been looked at in a row, with nothing there.
    empty: usize,
    /// With room for one entry, a look and a full stream take turns.
    turn: bool,
}

impl Plan {
    fn new(streams: usize) -> Self {
        Self { streams, full: BTreeSet::new(), next: 0, empty: 0, turn: false }
    }

    /// Whether there is nothing to be read, as far as one can know.
    fn is_idle(&self) -> bool {
        self.full.is_empty() && self.empty >= self.streams
    }

    /// Waits on all streams at once. One entry of each may come at the same time.
    fn wait(&self, max: usize) -> Ask {
        Ask { streams: (0..self.streams).collect(), count: (max / self.streams).max(1) }
    }

    fn look(&mut self, max: usize) -> Vec<Ask> {
        if self.full.is_empty() {
            let streams = self.window(self.streams.min(max));
            let count = max / streams.len().max(1);
            return vec![Ask { streams, count: count.max(1) }];
        }
        if max == 1 {
            self.turn = !self.turn;
        }
        let room = if max == 1 { usize::from(self.turn) } else { (max / 4).max(1) };
        let mut looked = self.window(room.min(self.streams));
        looked.retain(|at| !self.full.contains(at));
        let rest = max - looked.len();
        let mut full: Vec<usize> = self.full.iter().copied().collect();
        let turns = self.next % full.len();
        full.rotate_left(turns);
        full.truncate(rest);
        let mut asks = Vec::with_capacity(2);
        if !full.is_empty() {
            asks.push(Ask { count: rest / full.len(), streams: full });
        }
        if !looked.is_empty() {
            asks.push(Ask { streams: looked, count: 1 });
        }
        asks
    }

    fn window(&mut self, count: usize) -> Vec<usize> {
        let window = (0..count).map(|at| (self.next + at) % self.streams).collect();
        self.next = (self.next + count) % self.streams.max(1);
        window
    }

    /// How many entries each stream of a question gave.
    fn told(&mut self, ask: &Ask, got: &[usize]) {
        for (at, got) in ask.streams.iter().zip(got) {
            if *got >= ask.count {
                self.full.insert(*at);
            } else {
                self.full.remove(at);
            }
        }
        let empty = got.iter().all(|got| *got == 0);
        self.empty = if empty { self.empty.saturating_add(got.len()) } else { 0 };
        if got.len() == self.streams && self.full.is_empty() {
            // All were asked for more than they had.
            self.empty = self.streams;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays reads against streams that hold so many entries each; gives back how many reads it took.
    fn drain(mut left: Vec<usize>, max: usize) -> usize {
        let mut plan = Plan::new(left.len());
        let mut reads = 0;
        while !plan.is_idle() {
            reads += 1;
            assert!(reads < 10_000, "{left:?} is never read");
            let asks = plan.look(max);
            let most: usize = asks.iter().map(|ask| ask.streams.len() * ask.count).sum();
            assert!((1..=max).contains(&most), "{asks:?} for {max}");
            for ask in asks {
                let got: Vec<usize> = ask.streams.iter().map(|at| left[*at].min(ask.count)).collect();
                ask.streams.iter().zip(&got).for_each(|(at, got)| left[*at] -= got);
                plan.told(&ask, &got);
            }
        }
        assert!(left.iter().all(|left| *left == 0), "{left:?} is left behind");
        reads
    }

    #[test]
    fn everything_is_read_and_never_more_than_asked_for() {
        for max in [1, 2, 3, 7, 64, 1_000] {
            drain(vec![0, 0], max);
            drain(vec![5, 0, 1], max);
            drain(vec![300, 1, 0, 40, 2, 0, 0, 9], max);
            drain((0..100).collect(), max);
        }
        assert!(drain(vec![10_000, 0], 100) <= 140, "one busy stream gets most of the room");
        assert!(drain(vec![1; 100], 100) <= 3);
    }

    #[test]
    fn a_busy_stream_does_not_keep_others_from_being_looked_at() {
        for max in [1, 2, 10] {
            let mut plan = Plan::new(20);
            plan.full.insert(0);
            let mut seen = BTreeSet::new();
            for _ in 0..60 {
                for ask in plan.look(max) {
                    let got: Vec<usize> =
                        ask.streams.iter().map(|at| if *at == 0 { ask.count } else { 0 }).collect();
                    seen.extend(ask.streams.iter().copied());
                    plan.told(&ask, &got);
                }
            }
            assert_eq!(seen.len(), 20, "with room for {max}");
        }
    }
}
