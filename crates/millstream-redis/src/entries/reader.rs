//! Reader of one partition: returns everything pending first, then new entries, from log and retry log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::leases::Lease;
use millstream_core::log::{Entry, Fetched, Reader, Receipt, Source};
use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::wire;

use crate::backend::Inner;
use crate::entries::guard::Guard;
use crate::entries::stream_read::{Above, Position, StreamRead};
use crate::entries::unpacking::{
    PackedPage, add_notes, in_packs, is_pack, open_retries, packs, replace_packs,
};
use crate::stored::settled::is_settled;
use millstream_core::pages::{PAGE_BYTES, PageSizer};

/// Bytes of a page that is read over a connection that others use too: a full one would hold them up.
const SHARED: usize = 128 << 10;
/// Shortest wait on the server, since the server takes 0 ms for an unlimited wait.
const MIN_BLOCK: Duration = Duration::from_millis(1);

/// The two streams of a group, by index.
const SOURCES: [Source; 2] = [Source::Log, Source::Retry];

#[derive(Clone, Copy)]
enum ReadStage {
    /// Reads entries that were handed out before: of this stream, above this id.
    Pending(usize, MessageId),
    /// Reads entries that were never handed out.
    New,
}

pub(crate) struct StreamReader {
    guard: Guard,
    stage: ReadStage,
    pages: PageSizer,
    /// Id up to which the group was handed each stream. It only tells the server when a wait ends: a wrong value costs
    /// time, never a message, since the group itself knows which entries are new.
    tail: [MessageId; 2],
    /// Whether each stream may hold more right now: if so, the next read does not wait.
    backlog: [bool; 2],
    /// Whether nothing new was read since the pending entries: what `backlog` says is not known yet.
    fresh: bool,
    /// Whether the last answer of each stream was empty: the other stream then gets its share of the next read.
    empty: [bool; 2],
    /// Highest id of the log that this reader has returned.
    handed: MessageId,
    /// Id and digest of the newest entry of each stream that this reader has returned.
    newest: [Option<(MessageId, u64)>; 2],
    /// Whether such an entry is gone and the next result has to report it.
    tail_lost: bool,
    /// Rewind of the group (from, to) that the next result has to report.
    rewound: Option<(MessageId, MessageId)>,
    /// Newest head of the schedule that was reported. A new connection begins at 0-0, so that a head that came without
    /// a connection, or before this reader, is reported once.
    wake: MessageId,
    /// Whether there is a new head that the next result has to report.
    woken: bool,
    /// Index of the stream from which a read of a single entry takes.
    turn: usize,
    packed: PackedPage,
    /// Whether the first new pack may have messages that are noted as settled: the group may begin inside of it.
    inside: bool,
    /// Messages of packs that were read and did not fit into the last result: the next ones return them.
    rest: VecDeque<Entry>,
    /// Whether those are from the pending list.
    rest_pending: bool,
    /// Whether pending entries had notes when the pending list was last read.
    noted: bool,
    /// Set while a request is under way. If a call finds it set, the future before was dropped and an answer may be
    /// lost.
    busy: bool,
}

impl StreamReader {
    pub(crate) fn new(inner: Arc<Inner>, lease: &Lease) -> Result<Self> {
        let packed = PackedPage::of(inner.packings.of(&lease.partition()?.0.topic));
        Ok(Self {
            guard: Guard::new(inner, lease)?,
            stage: ReadStage::New,
            pages: PageSizer::default(),
            tail: [MessageId::ZERO; 2],
            backlog: [true; 2],
            fresh: true,
            empty: [false; 2],
            handed: MessageId::ZERO,
            newest: [None; 2],
            tail_lost: false,
            rewound: None,
            wake: MessageId::ZERO,
            woken: false,
            turn: 0,
            packed,
            inside: true,
            rest: VecDeque::new(),
            rest_pending: false,
            noted: false,
            busy: false,
        })
    }

    async fn next(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        let started = Instant::now();
        if !self.guard.is_open() {
            let (position, weight) = self.guard.open().await?;
            self.pages.guess(weight.entries, weight.bytes);
            self.start_over(position).await?;
            self.wake = MessageId::ZERO;
        }
        let mut asked = false;
        loop {
            if self.tail_lost {
                return Ok(Fetched::default());
            }
            if let ReadStage::New = self.stage {
                self.choose_way().await?;
            }
            let budget = if self.guard.is_sharing() { SHARED } else { PAGE_BYTES };
            let max = self.pages.count_within(self.packed.entries(max), budget);
            if let ReadStage::Pending(stream, after) = self.stage {
                if let Some(fetched) = self.pending(stream, after, max).await? {
                    return Ok(fetched);
                }
                continue;
            }
            let left = wait.saturating_sub(started.elapsed()).min(self.guard.max_wait());
            let idle = self.backlog == [false; 2];
            if idle && (self.rewound.is_some() || self.woken) {
                return Ok(Fetched::default());
            }
            if idle && left < MIN_BLOCK {
                if asked {
                    return Ok(Fetched::default());
                }
                // No time is left to wait for the stream that has something: read both.
                self.backlog = [true; 2];
            }
            let block = (idle && left >= MIN_BLOCK).then_some(left);
            if let Some(mut fetched) = self.new_entries(max, block).await? {
                let read = fetched.entries.len() + fetched.ghosts.len();
                let room = max.saturating_sub(read);
                // One stream had less than its share and the other one has more: read the rest of `max` from it,
                // unless that is less than a quarter of `max`, which is not worth a request.
                if read > 0 && room >= (max / 4).max(1) && self.backlog != [false; 2] {
                    let more = self.new_entries(room, None).await?.unwrap_or_default();
                    fetched.entries.extend(more.entries);
                    fetched.ghosts.extend(more.ghosts);
                }
                if read > 0 || self.woken {
                    return Ok(fetched);
                }
                asked = true;
            }
        }
    }

    /// Takes or leaves a connection of its own, as this partition and others have more to read.
    async fn choose_way(&mut self) -> Result<()> {
        let busy = !self.fresh && self.backlog != [false; 2];
        let Some(position) = self.guard.choose_way(busy).await? else { return Ok(()) };
        // A fail-over in between would have cut a connection that was kept.
        let newest = self.newest.map(|newest| newest.map_or(MessageId::ZERO, |(id, _)| id));
        if position.delivered[0] < newest[0].max(self.handed) || position.delivered[1] < newest[1] {
            self.start_over(position).await?;
        }
        Ok(())
    }

    /// Starts over with the pending entries and checks whether the group is positioned before an entry that this reader has
    /// returned.
    ///
    /// If it does, the server has lost its latest writes. The entries may still exist. If they do not, a server whose
    /// clock is behind may give their ids to other entries. Checking the newest entry is enough: it is lost if any
    /// other one is.
    async fn start_over(&mut self, position: Position) -> Result<()> {
        let Position { delivered } = position;
        for (stream, delivered) in delivered.into_iter().enumerate() {
            if let Some(newest) = self.newest[stream].filter(|(id, _)| delivered < *id) {
                self.tail_lost |= !self.guard.holds(stream, newest).await?;
            }
        }
        if delivered[0] < self.handed {
            let from = self.rewound.map_or(self.handed, |(from, _)| from);
            (self.rewound, self.handed) = (Some((from, delivered[0])), delivered[0]);
        }
        self.tail = delivered;
        self.stage = ReadStage::Pending(0, MessageId::ZERO);
        (self.backlog, self.empty, self.fresh, self.inside) = ([true; 2], [false; 2], true, true);
        Ok(())
    }

    /// Keeps id and digest of the newest entries of a result, for the check in [`Self::start_over`].
    fn note(&mut self, fetched: &Fetched) {
        for (stream, source) in SOURCES.into_iter().enumerate() {
            let of_stream = fetched.entries.iter().filter(|entry| entry.receipt.source == source);
            let Some(entry) = of_stream.max_by_key(|entry| entry.receipt.id) else { continue };
            if self.newest[stream].is_none_or(|(id, _)| id < entry.receipt.id) {
                self.newest[stream] = Some((entry.receipt.id, wire::digest(&entry.fields)));
            }
        }
        self.handed = self.newest[0].map_or(self.handed, |(id, _)| id.max(self.handed));
    }

    /// Starts over after a read without the gate: the lease is still ours, so another reader of it has begun, or somebody has
    /// removed the gate.
    async fn touched(&mut self) -> Result<Option<Fetched>> {
        let position = self.guard.position().await?;
        self.start_over(position).await?;
        Ok(None)
    }

    /// Reads one page of pending entries. Returns `None` if there is none, or if another reader has begun.
    async fn pending(&mut self, stream: usize, after: MessageId, max: usize) -> Result<Option<Fetched>> {
        let ask = StreamRead { stream, count: max, after: Some(after) };
        let answer = self.guard.read(&[ask], None, None).await?;
        let (bytes, took) = self.guard.weight();
        let Some(page) = answer.pages.and_then(|mut pages| pages.pop()) else { return self.touched().await };
        self.stage = match page.entries.last() {
            Some((last, _)) if page.entries.len() >= max => ReadStage::Pending(stream, *last),
            _ if stream + 1 < SOURCES.len() => ReadStage::Pending(stream + 1, MessageId::ZERO),
            _ => ReadStage::New,
        };
        if page.entries.is_empty() {
            return Ok(None);
        }
        self.pages.came(page.entries.len(), bytes, took);
        let mut notes = Vec::new();
        self.noted = answer.noted;
        if answer.noted {
            let ids: Vec<MessageId> = page.entries.iter().map(|(id, _)| *id).collect();
            notes = self.guard.notes(SOURCES[stream], &ids).await?;
        }
        let mut notes = notes.into_iter();
        let mut fetched = Fetched::of_pending();
        let mut counts = page.deliveries.into_iter().peekable();
        for (id, fields) in page.entries {
            let note = notes.next().flatten();
            // Entries and delivery counts are both sorted by id.
            while counts.next_if(|(other, _)| *other < id).is_some() {}
            let deliveries = counts.next_if(|(other, _)| *other == id).map_or(1, |(_, times)| times);
            let receipt = Receipt::new(SOURCES[stream], id);
            match fields {
                Some(fields) => fetched.entries.push(Entry::new(receipt, deliveries, fields).with_note(note)),
                None => fetched.ghosts.push(receipt),
            }
        }
        Ok(Some(fetched))
    }

    /// Reads new entries, after waiting up to `block`. Returns `None` if another reader has begun.
    async fn new_entries(&mut self, max: usize, block: Option<Duration>) -> Result<Option<Fetched>> {
        let asks = self.plan(max, block.is_some());
        let read = self.new_entries_of(asks, block).await?;
        if max == 1 && read.is_some() {
            self.turn = 1 - self.turn;
        }
        Ok(read)
    }

    async fn new_entries_of(
        &mut self,
        asks: Vec<StreamRead>,
        block: Option<Duration>,
    ) -> Result<Option<Fetched>> {
        let above = Above { streams: self.tail, wake: self.wake };
        let answer = self.guard.read(&asks, Some(above), block).await?;
        if let Some(wake) = answer.woke.wake {
            (self.wake, self.woken) = (wake, true);
        }
        let Some(pages) = answer.pages else { return self.touched().await };
        self.fresh = false;

        let mut fetched = Fetched::default();
        let (mut read, mut entries) = ([false; 2], 0);
        for (ask, page) in asks.iter().zip(pages) {
            let stream = ask.stream;
            self.backlog[stream] = page.entries.len() >= ask.count;
            entries += page.entries.len();
            self.empty[stream] = page.entries.is_empty();
            if let Some((last, _)) = page.entries.last() {
                self.tail[stream] = self.tail[stream].max(*last);
                read[stream] = true;
            }
            for (id, fields) in page.entries {
                let receipt = Receipt::new(SOURCES[stream], id);
                match fields {
                    Some(fields) => {
                        fetched.entries.push(Entry::new(receipt, 1, fields));
                    }
                    None => fetched.ghosts.push(receipt),
                }
            }
        }
        let (bytes, took) = self.guard.weight();
        self.pages.came(entries, bytes, took);
        let mut astray = Vec::new();
        for (stream, id) in answer.woke.streams {
            if !asks.iter().any(|ask| ask.stream == stream) {
                self.backlog[stream] = true;
            } else if !read[stream] {
                // The wait ended for an entry that the group was handed already, or that is gone by now.
                self.tail[stream] = self.tail[stream].max(id);
                astray.push((stream, id));
            }
        }
        if !astray.is_empty() {
            // The group was moved forward, so ask for its position: otherwise every entry on the way would end one
            // wait each.
            let Position { delivered } = self.guard.position().await?;
            for (tail, position) in self.tail.iter_mut().zip(delivered) {
                *tail = position.max(*tail);
            }
            if astray.iter().any(|(stream, id)| *id <= delivered[*stream]) {
                // Or somebody has read it for the group whose gate outlived the fence, which was removed by hand: it is
                // pending.
                self.stage = ReadStage::Pending(0, MessageId::ZERO);
            }
        }
        Ok(Some(fetched))
    }

    async fn read(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        let mut fetched = self.next(max, wait).await?;
        // By the entries as they are stored.
        self.note(&fetched);
        self.unpacked(&mut fetched, max).await?;
        Ok(fetched)
    }

    /// Returns messages of packs that were read before, with what the retry log has meanwhile, if the lease is still ours.
    async fn go_on(&mut self, max: usize) -> Result<Fetched> {
        if self.rest_pending {
            return self.go_on_with_pending(max).await;
        }
        let mut fetched = Fetched::default();
        let retries = if max == 1 { self.turn } else { (max / 4).max(1) };
        if max == 1 {
            self.turn = 1 - self.turn;
        }
        if retries > 0 {
            let budget = if self.guard.is_sharing() { SHARED } else { PAGE_BYTES };
            let retries = self.pages.count_within(retries, budget);
            let ask = StreamRead { stream: 1, count: retries, after: None };
            match self.new_entries_of(vec![ask], None).await? {
                Some(read) => fetched = read,
                None => {
                    // The pending list is read again, and has the rest.
                    self.rest.clear();
                    return Ok(Fetched::default());
                }
            }
            self.note(&fetched);
            opened(&mut fetched)?;
        } else {
            self.guard.check().await?;
        }
        let room = max.saturating_sub(fetched.entries.len() + fetched.ghosts.len());
        fetched.entries.extend(self.rest.drain(..room.min(self.rest.len())));
        Ok(fetched)
    }

    /// Returns messages of packs that were pending when they were read. The caller may have had them in flight, and may have settled
    /// them since: those are left out.
    async fn go_on_with_pending(&mut self, max: usize) -> Result<Fetched> {
        self.guard.check().await?;
        let packs: SortedSet<MessageId> = self.rest.iter().map(|message| message.receipt.entry()).collect();
        let open = self.guard.open_of(&packs).await?;
        self.rest.retain(|message| match open.get(&message.receipt.entry()) {
            Some(bits) => !is_settled(&message.receipt, bits.as_deref()),
            None => false,
        });
        let mut fetched = Fetched::of_pending();
        fetched.entries.extend(self.rest.drain(..max.min(self.rest.len())));
        Ok(fetched)
    }

    /// Replaces packs by their messages, as many as the caller wants; the others are returned by the next calls.
    async fn unpacked(&mut self, fetched: &mut Fetched, max: usize) -> Result<()> {
        opened(fetched)?;
        let packs = packs(&fetched.entries);
        if packs.is_empty() {
            self.packed.came(fetched.entries.len(), fetched.entries.len(), false);
            return Ok(());
        }
        // What was handed out for the first time has no notes, and is not settled, except in the pack in which the group begins.
        let mut settled = SortedMap::new();
        if fetched.pending {
            settled = self.guard.open_of(&packs).await?;
            // What has left the pending list since it was read is settled.
            fetched.entries.retain(|entry| !is_pack(entry) || settled.contains_key(&entry.receipt.id));
        } else if std::mem::take(&mut self.inside) {
            settled = packs.iter().copied().zip(self.guard.settled(&packs).await?).collect();
        }
        let dictionaries = self.guard.dictionaries_for(&fetched.entries).await?;
        let entries = std::mem::take(&mut fetched.entries);
        let read = entries.len();
        let bits = |receipt: &Receipt| settled.remove(&receipt.id).flatten();
        let (mut messages, done) = replace_packs(entries, &dictionaries, bits)?;
        self.guard.acknowledge_settled(&done).await?;
        self.packed.came(read, messages.len(), true);
        if fetched.pending && self.noted {
            let notes = self.guard.notes(Source::Log, &in_packs(&messages)).await?;
            add_notes(&mut messages, notes);
        }
        // Retries are due already: they do not wait behind the rest of a pack.
        messages.sort_by_key(|entry| entry.receipt.source == Source::Log);
        self.rest = messages.split_off(messages.len().min(max)).into();
        self.rest_pending = fetched.pending;
        fetched.entries = messages;
        Ok(())
    }

    /// Plans the next read: how many entries to take from each stream. The sum is `max`, and the retry log gets a
    /// quarter of it. A stream that was empty in the last answer while the other one was not gets a single entry,
    /// which is enough to notice that it has more. Behind a wait little is there as a rule: half of each is one command.
    fn plan(&self, max: usize, waits: bool) -> Vec<StreamRead> {
        let ask = |stream, count| StreamRead { stream, count, after: None };
        if waits && max > 1 {
            return vec![ask(0, max / 2), ask(1, max / 2)];
        }
        if max > 1 {
            let retries = match self.empty {
                [false, true] => 1,
                [true, false] => max - 1,
                _ => (max / 4).max(1),
            };
            return vec![ask(0, max - retries), ask(1, retries)];
        }
        let idle = self.backlog == [false; 2];
        vec![ask(if idle || self.backlog[self.turn] { self.turn } else { 1 - self.turn }, 1)]
    }
}

/// Opens redeliveries that are stored as packs. Nothing is handed on where one cannot be read: the partition waits for a client that can.
fn opened(fetched: &mut Fetched) -> Result<()> {
    open_retries(&mut fetched.entries).map_or(Ok(()), |(error, _)| Err(error))
}

#[async_trait]
impl Reader for StreamReader {
    fn start_over(&mut self) {
        // A new connection starts over with the pending entries.
        self.guard.close();
        self.rest.clear();
    }

    async fn fetch(&mut self, max: usize, wait: Duration) -> Result<Fetched> {
        // The future of the last call was dropped, so an answer may be lost. A new connection starts over with the
        // pending entries and returns those of that answer again.
        if self.busy {
            self.guard.close();
            self.rest.clear();
        }
        if max == 0 {
            return Ok(Fetched::default());
        }
        self.busy = true;
        let fetched = if self.rest.is_empty() { self.read(max, wait).await } else { self.go_on(max).await };
        self.busy = false;
        match fetched {
            Ok(mut fetched) => {
                fetched.rewound = self.rewound.take();
                fetched.tail_lost = std::mem::take(&mut self.tail_lost);
                fetched.woken = std::mem::take(&mut self.woken);
                Ok(fetched)
            }
            Err(error) => {
                self.guard.fail(&error);
                self.rest.clear();
                if error.kind() == ErrorKind::Unconfirmed {
                    // The answer may have been too large to arrive: ask for less in the next request.
                    self.pages.lost();
                }
                if error.kind() == ErrorKind::GroupMissing {
                    // This error already reports the loss. A group that is created again later starts fresh, so its
                    // position is no rewind.
                    (self.handed, self.rewound) = (MessageId::ZERO, None);
                    (self.newest, self.tail_lost) = ([None; 2], false);
                }
                Err(error)
            }
        }
    }
}
