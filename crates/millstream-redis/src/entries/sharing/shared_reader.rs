//! Reader of many partitions of one server beside other readers: first the entries pending under its own name, then new ones.
//!
//! Its consumer name is unique, so it may block in the XREADGROUP itself: each entry goes to one reader, and the
//! entries of a lost answer are pending under its own name, where it looks first when it starts over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{Fetched, Note, Receipt, Source};
use millstream_core::shared::{SharedMember, SharedReader};
use millstream_core::topic::Partition;
use redis::{Pipeline, Value};

use crate::backend::{Inner, RedisBackend};
use crate::conn::replies::reply::{self, RawEntry};
use crate::conn::replies::wrong_type;
use crate::conn::request::Request;
use crate::conn::socket::Socket;
use crate::entries::sharing::pages::{Read, not_connected, page};
use crate::entries::sharing::plan::{Plan, StreamsRead};
use crate::entries::unpacking::{
    Readable, add_notes, in_packs, is_pack, open_retries, packs, replace_readable,
};
use crate::entries::weight::{add_weight, weight};
use crate::stored::{note, settled};
use millstream_core::pages::PageSizer;
use millstream_packing::dictionary_of;

/// Shortest and longest single wait on the server, since the server takes 0 ms for an unlimited wait.
const BLOCK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(3_600));

/// Time for which what was found when all streams of a packed topic were looked at counts. Then they are looked at once more before a wait on
/// all of them, which takes an entry of each that has one: many packs, if they have come meanwhile.
const FRESH: Duration = Duration::from_millis(20);

/// Maximum number of logs whose entry size is estimated.
const WEIGHED: usize = 32;

pub(crate) struct StreamsReader {
    pub(super) inner: Arc<Inner>,
    pub(super) member: SharedMember,
    pub(super) streams: Vec<SharedStream>,
    /// `None` while a request is under way, so that a dropped future drops the connection too.
    socket: Option<Socket>,
    /// Buffer for requests, used again.
    request: Request,
    stage: Stage,
    /// Of all streams; of a packed topic of its logs, whose entries are many messages: its retry logs are looked at each time.
    pub(super) plan: Plan,
    pub(super) pages: PageSizer,
    /// Largest number of messages of an entry.
    pub(super) per_entry: usize,
    /// Index of the retry log of a packed topic at which the next look at some of them begins.
    pub(super) retry_turn: usize,
    /// When the streams were looked at last.
    pub(super) looked: Instant,
    /// Time until which the request for new entries that is under way can take some.
    pub(super) taking: Option<Instant>,
    /// Time until which requests with lost answers can take entries. Then the reader looks for those entries.
    stray: Option<Instant>,
    /// Whether the call that finds the end of the pending entries takes no new ones.
    apart: bool,
    /// Whether something was pending when it started over.
    rewound: bool,
    /// Set while a request is under way. If a call finds it set, the future before was dropped and an answer may be
    /// lost.
    busy: bool,
}

pub(super) struct SharedStream {
    pub(super) partition: Partition,
    pub(super) source: Source,
    pub(super) key: Key,
    held: Key,
    /// Bits of the settled messages of packs.
    settled: Key,
    /// Whether a pack was found that cannot be read: no new entries are taken then.
    pub(super) unreadable: bool,
}

enum Stage {
    /// Reads entries pending under our name: of these streams; of the first one, above this id.
    Pending(VecDeque<usize>, MessageId),
    /// Reads entries that were never handed out.
    New,
}

impl StreamsReader {
    pub(crate) fn new(inner: Arc<Inner>, member: SharedMember, partitions: &[Partition]) -> Self {
        let mut streams = Vec::with_capacity(2 * partitions.len());
        for partition in partitions {
            let tp = member.partition(*partition);
            for source in [Source::Log, Source::Retry] {
                let key = inner.stream(&tp, &member.group, source);
                let [held, settled] =
                    [inner.keys.held(&tp, &member.group), inner.keys.settled(&tp, &member.group)];
                streams.push(SharedStream {
                    partition: *partition,
                    source,
                    key,
                    held,
                    settled,
                    unreadable: false,
                });
            }
        }
        let per_entry = inner.packings.of(&member.topic).map_or(1, |packing| packing.messages().max(1));
        let plan = Plan::new(if per_entry > 1 { partitions.len() } else { streams.len() });
        Self {
            inner,
            member,
            streams,
            socket: None,
            request: Request::default(),
            stage: Stage::New,
            plan,
            pages: PageSizer::default(),
            per_entry,
            retry_turn: 0,
            looked: Instant::now(),
            taking: None,
            stray: None,
            apart: false,
            rewound: false,
            busy: false,
        }
    }

    /// Returns the same reader, which takes new entries in calls of their own.
    pub(crate) fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// Whether it has returned the entries that are pending under our name, as far as is known.
    pub(crate) fn is_past(&self) -> bool {
        !self.busy && self.socket.is_some() && matches!(self.stage, Stage::New)
    }

    /// Reads; with `full`, what may be read beside the packs of these partitions, without waiting.
    async fn next(&mut self, max: usize, wait: Duration, full: Option<&[Partition]>) -> Result<Read> {
        let started = Instant::now();
        loop {
            let stray = self.stray.is_some_and(|until| until <= Instant::now());
            if self.socket.is_none() || (stray && matches!(self.stage, Stage::New)) {
                self.start_over(stray).await?;
            }
            if matches!(self.stage, Stage::Pending(..)) {
                let max = self.pages.count(max.div_ceil(self.per_entry));
                if let Some(read) = self.pending(max).await? {
                    self.rewound = true;
                    return Ok(read);
                }
                if matches!(self.stage, Stage::New) && (self.apart || self.rewound) {
                    // The caller decides anew how many new entries it takes: what was pending takes room.
                    return Ok(Read::default());
                }
                continue;
            }
            if let Some(full) = full {
                let read = self.look_beside(max, full).await?;
                // What was not looked at may have something.
                self.plan.forget();
                return Ok(read);
            }
            let left = wait.saturating_sub(started.elapsed());
            // Wait no longer than until the last lost request can take nothing more: then start over to find its
            // entries.
            let until = self.stray.map_or(BLOCK.1, |until| until.saturating_duration_since(Instant::now()));
            let block = left.min(until).min(BLOCK.1);
            if self.per_entry > 1 && self.looked.elapsed() > FRESH {
                self.plan.forget();
            }
            let idle = self.plan.is_idle();
            let read = if idle && block >= BLOCK.0 {
                let max = self.pages.count(max.div_ceil(self.per_entry));
                let all: Vec<usize> = (0..self.streams.len()).collect();
                let count = (max / all.len()).max(1);
                self.new_entries(vec![StreamsRead { streams: all, count }], Some(block)).await?
            } else {
                self.look(max).await?
            };
            if !read.0.is_empty() {
                return Ok(read);
            }
            if left < BLOCK.0 && self.plan.is_idle() {
                return Ok(read);
            }
        }
    }

    /// Connects if needed, and finds the streams with entries pending under our name.
    async fn start_over(&mut self, stray: bool) -> Result<()> {
        if self.socket.is_none() {
            let Some(first) = self.streams.first() else { return Err(not_connected()) };
            self.socket = Some(self.inner.servers.of(&first.key).await?.socket("reader").await?);
        }
        self.weigh().await?;
        let mut pipe = Pipeline::with_capacity(self.streams.len());
        for stream in &self.streams {
            let group = self.member.group.as_str();
            pipe.cmd("XPENDING").arg(stream.key.as_str()).arg(group).arg("-").arg("+").arg(1);
            pipe.arg(self.member.consumer.as_str());
        }
        let answers = self.send(&pipe).await?;
        let mut pending = VecDeque::new();
        for (at, answer) in answers.into_iter().enumerate() {
            if !reply::deliveries(answer).map_err(|error| self.on(at, error))?.is_empty() {
                pending.push_back(at);
            }
        }
        if stray {
            self.stray = None;
        }
        (self.stage, self.rewound) = (Stage::Pending(pending, MessageId::ZERO), false);
        // What cannot be read shows again, if it is still there.
        self.streams.iter_mut().for_each(|stream| stream.unreadable = false);
        self.plan.forget();
        Ok(())
    }

    /// Estimates the size of entries from the logs, unless some entries have arrived already.
    async fn weigh(&mut self) -> Result<()> {
        if !self.pages.is_new() {
            return Ok(());
        }
        let logs = self.streams.iter().filter(|stream| stream.source == Source::Log).take(WEIGHED);
        let mut pipe = Pipeline::with_capacity(2 * WEIGHED);
        logs.for_each(|log| add_weight(&mut pipe, &log.key));
        let mut answers = self.send(&pipe).await?.into_iter();
        let (mut entries, mut bytes) = (0, 0);
        while let (Some(length), Some(used)) = (answers.next(), answers.next()) {
            let weight = weight(length, used);
            (entries, bytes) = (entries + weight.entries, bytes + weight.bytes);
        }
        self.pages.guess(entries, bytes);
        Ok(())
    }

    /// Reads one page of entries pending under our name. Returns `None` if the current stream has no more.
    async fn pending(&mut self, max: usize) -> Result<Option<Read>> {
        let Stage::Pending(streams, after) = &self.stage else { return Ok(None) };
        let (Some(at), after) = (streams.front().copied(), *after) else {
            self.stage = Stage::New;
            return Ok(None);
        };
        let (group, name) = (self.member.group.as_str(), self.member.consumer.as_str());
        let SharedStream { partition, source, key, held, .. } = &self.streams[at];
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
        self.exchange(&pipe, Duration::ZERO).await?;
        let socket = self.socket()?;
        let (mut replies, (bytes, took)) = (socket.replies(), socket.weight());
        let entries = replies.next()?.streams().map_err(|error| self.on(at, error))?;
        let entries: Vec<RawEntry> = entries.into_iter().flat_map(|(_, entries)| entries).collect();
        let counts = replies.next()?.value().and_then(reply::deliveries);
        let counts = counts.map_err(|error| self.on(at, error))?;
        let noted = replies.next()?.value().and_then(reply::count);
        let noted = noted.map_err(|error| error.during(format_args!("read {held}")))? > 0;
        self.pages.came(entries.len(), bytes, took);

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
        let fetched = read.of(partition);
        *fetched = page(source, entries, counts, notes);
        self.unpack(at, fetched, noted).await?;
        Ok(Some(read))
    }

    /// Replaces packs of a log by their messages: all of them, though the caller may have asked for fewer. What is not
    /// settled of a pack is ours as a whole.
    pub(super) async fn unpack(&mut self, at: usize, fetched: &mut Fetched, noted: bool) -> Result<()> {
        if let Some(unreadable) = open_retries(&mut fetched.entries) {
            self.leave(at, fetched, unreadable).await;
        }
        let packs = packs(&fetched.entries);
        if packs.is_empty() {
            return Ok(());
        }
        let SharedStream { partition, key, held, settled, .. } = &self.streams[at];
        let (partition, key, held, settled) = (*partition, key.clone(), held.clone(), settled.clone());
        // Also of packs that nobody was handed before: the group may begin inside of one, and which of its consumers reads
        // that one is not known.
        let (group, name) = (self.member.group.as_str(), Some(self.member.consumer.as_str()));
        let ask = settled::ask_open(&key, group, name, &settled, &packs);
        let mut open = settled::told_open(self.send(&ask).await?, &settled, &packs)?;
        // What has left the pending list since it was read is settled.
        fetched.entries.retain(|entry| !is_pack(entry) || open.contains_key(&entry.receipt.id));
        let bits = |receipt: &Receipt| open.remove(&receipt.id).flatten();
        let of_log = fetched.entries.iter().filter(|entry| is_pack(entry));
        let needed = of_log.filter_map(|entry| dictionary_of(&entry.fields)).collect();
        let dictionaries = self.inner.dictionaries_for(&self.member.topic, needed).await?;
        let entries = std::mem::take(&mut fetched.entries);
        let Readable { mut messages, done, unreadable } = replace_readable(entries, &dictionaries, bits);
        let tp = self.member.partition(partition);
        if let Some(unreadable) = unreadable {
            self.leave(at, fetched, unreadable).await;
        }
        let right = ["consumer", self.member.consumer.as_str()];
        self.inner.acknowledge_settled(right, &tp, &self.member.group, &done).await?;
        if noted {
            let notes = self.notes(&held, Source::Log, &in_packs(&messages)).await?;
            add_notes(&mut messages, notes);
        }
        fetched.entries = messages;
        Ok(())
    }

    /// Gives back what this client cannot read of a stream, and reads nothing new of it: others may be able to read what comes after it.
    async fn leave(&mut self, at: usize, fetched: &mut Fetched, (error, left): (Error, Vec<Receipt>)) {
        let stream = &mut self.streams[at];
        stream.unreadable = true;
        let tp = self.member.partition(stream.partition);
        RedisBackend { inner: self.inner.clone() }.leave(&self.member, tp.partition, &left).await;
        fetched.unreadable = Some(error.during(format_args!("read {}", stream.key)).at(&tp));
    }

    async fn notes(&mut self, held: &Key, source: Source, ids: &[MessageId]) -> Result<Vec<Option<Note>>> {
        let answers = self.send(&note::ask(held, source, ids)).await?;
        note::told(answers, held, ids)
    }

    pub(super) fn on(&self, at: usize, error: Error) -> Error {
        error.during(format_args!("read {}", self.streams[at].key))
    }

    pub(super) fn socket(&self) -> Result<&Socket> {
        self.socket.as_ref().ok_or_else(not_connected)
    }

    /// Sends a request with small replies, and returns them as values of the client.
    async fn send(&mut self, pipe: &Pipeline) -> Result<Vec<Value>> {
        self.exchange(pipe, Duration::ZERO).await?;
        let mut replies = self.socket()?.replies();
        let mut values = (0..pipe.len()).map(|_| replies.next()?.value()).collect::<Result<Vec<_>>>()?;
        wrong_type::name_keys(&mut values, pipe);
        Ok(values)
    }

    pub(super) async fn exchange(&mut self, pipe: &Pipeline, block: Duration) -> Result<()> {
        let mut socket = self.socket.take().ok_or_else(not_connected)?;
        self.request.clear();
        self.request.add_pipeline(pipe);
        socket.ask(&self.request, block, self.inner.servers.response_timeout()).await?;
        self.socket = Some(socket);
        Ok(())
    }

    /// Drops the connection after a possibly lost answer, so that the next request starts over.
    fn lose(&mut self) {
        self.socket = None;
        self.stray = self.stray.max(self.taking.take());
    }
}

#[async_trait]
impl SharedReader for StreamsReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Vec<(Partition, Fetched)>> {
        if !self.begin(max) {
            return Ok(Vec::new());
        }
        let read = self.next(max, wait, None).await;
        self.end(read)
    }

    async fn fetch_beside(&mut self, max: usize, full: &[Partition]) -> Result<Vec<(Partition, Fetched)>> {
        if !self.begin(max) {
            return Ok(Vec::new());
        }
        let read = self.next(max, Duration::ZERO, Some(full)).await;
        self.end(read)
    }
}

impl StreamsReader {
    /// Begins a call, after one that was dropped with a new connection. False if nothing is to be read.
    fn begin(&mut self, max: usize) -> bool {
        if self.busy {
            self.lose();
        }
        self.busy = max > 0 && !self.streams.is_empty();
        self.busy
    }

    fn end(&mut self, read: Result<Read>) -> Result<Vec<(Partition, Fetched)>> {
        self.busy = false;
        if let Err(error) = &read {
            self.inner.servers.learn(error);
            self.lose();
            if error.kind() == ErrorKind::Unconfirmed {
                // The answer may have been too large to arrive: ask for less in the next request.
                self.pages.lost();
            }
        }
        read.map(|read| read.0)
    }
}
