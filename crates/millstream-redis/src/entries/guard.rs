//! The fenced read: requests of a reader that do nothing if its lease is not the current one any more.
//!
//! Each `XREADGROUP` names, before the log or the retry log, the *gate* of its reader: a stream that has the group and no entries. The
//! server reads nothing at all unless every stream that a command names has the group. A grant to another owner, a release and a
//! later reader of the same lease remove the gate, so an owner that was paused, or whose request was blocked meanwhile, reads nothing.
//!
//! On a connection of the reader's own a request is `[XREAD BLOCK] XREADGROUP…`: the server runs the commands behind the XREAD as soon as it returns, so a
//! wait costs no further round trip. A reader without one (see `reader_connections.rs`) waits for notices of changed keys, and sends the same.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::log::{Entry, Note, Source};
use millstream_core::name::GroupName;
use millstream_core::sorted::SortedMap;
use millstream_core::wire;
use millstream_packing::{Dictionary, dictionary_of};
use redis::{Cmd, Pipeline, ServerError, Value};

use crate::backend::{CONSUMER, Inner};
use crate::conn::replies::cursor::Cursor;
use crate::conn::replies::reply::{self, RawEntry};
use crate::conn::replies::resp::Head;
use crate::conn::request::{Digits, Request};
use crate::conn::waits::changes::Change;
use crate::entries::reader_line::ReaderLine;
use crate::entries::stream_read::{Above, Answer, Position, Read, StreamRead, Woke, together};
use crate::entries::weight::{Weight, add_weight, weight};
use crate::error::fenced;
use crate::scripts::gate::{READERS, other_reader};
use crate::stored::settled::Bits;
use crate::stored::{note, settled};

/// Bytes of a page above which it is large.
const LARGE: usize = 256 << 10;

/// The requests of one reader, under the fence of its lease.
pub(crate) struct Guard {
    inner: Arc<Inner>,
    lease: Lease,
    group: GroupName,
    /// Keys of the log and the retry log. Other types here name a stream by its index in this array.
    streams: [Key; 2],
    wake: Key,
    fence: Key,
    gate: Key,
    held: Key,
    settled: Key,
    line: ReaderLine,
    /// The word with which this reader was begun, which is in the name of its gate.
    word: String,
    /// Bytes of the last page, and the time it took.
    weight: (usize, Duration),
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, lease: &Lease) -> Result<Self> {
        let (tp, group) = lease.partition()?;
        Ok(Self {
            streams: [inner.keys.log(tp), inner.keys.retry_log(tp, group)],
            wake: inner.keys.wake(&tp.clone().into()),
            fence: inner.keys.fence(tp, group),
            gate: inner.keys.gate(tp, group, ""),
            held: inner.keys.held(tp, group),
            settled: inner.keys.settled(tp, group),
            group: group.clone(),
            lease: lease.clone(),
            line: ReaderLine::new(inner.clone()),
            word: String::new(),
            weight: (0, Duration::ZERO),
            inner,
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.line.is_open()
    }

    /// Whether pages should be small, since they are read over a connection that others use too.
    pub(crate) fn is_sharing(&self) -> bool {
        self.line.is_sharing()
    }

    /// Returns how long a wait may last at once.
    pub(crate) fn max_wait(&self) -> Duration {
        self.line.max_wait()
    }

    pub(crate) fn close(&mut self) {
        self.line.close();
    }

    /// Ends the connection after an error, which may mean that another server has the partition now.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.inner.servers.learn(error);
        self.line.close();
    }

    /// Gives back a connection that another reader needs more, or takes one that is free if there is more to read. Returns the
    /// group's position if it did either.
    pub(crate) async fn choose_way(&mut self, busy: bool) -> Result<Option<Position>> {
        if self.line.choose(busy).await {
            return self.begin().await.map(|(position, _)| Some(position));
        }
        Ok(None)
    }

    /// Connects, or takes a place among those that share a connection, and begins.
    pub(crate) async fn open(&mut self) -> Result<(Position, Weight)> {
        self.line.open(&self.fence).await?;
        self.begin().await
    }

    /// Begins: from then on the requests that an earlier reader of this lease may still have on the server read nothing.
    async fn begin(&mut self) -> Result<(Position, Weight)> {
        self.line.begin().await?;
        let on_fence = |error: Error, fence: &Key| error.during(format_args!("open {fence}"));
        for _ in 0..READERS {
            let (tp, group) = self.lease.partition()?;
            let word = format!("{:016x}", fastrand::u64(..));
            let next = self.inner.keys.gate(tp, group, &word);
            let mut pipe = Pipeline::with_capacity(5);
            let script = &self.inner.scripts.open_reader;
            let args = [self.lease.token.as_str(), &self.word, &word, self.group.as_str()];
            pipe.add_command(script.eval([&self.fence, &self.gate, &next], &args));
            self.add_position(&mut pipe);
            add_weight(&mut pipe, &self.streams[0]);
            let [opened, log, retry_log, length, bytes] =
                reply::tuple(Value::Array(self.line.send(&pipe).await?))?;
            let opened =
                reply::ok(opened).map_err(|error| on_fence(fenced(error, &self.lease), &self.fence))?;
            if let Some(last) = other_reader(&opened) {
                self.gate = self.inner.keys.gate(tp, group, &last);
                self.word = last;
                continue;
            }
            (self.gate, self.word) = (next, word);
            let weight = weight(length, bytes);
            self.line.large =
                weight.bytes.checked_div(weight.entries).is_some_and(|mean| mean >= LARGE as u64);
            return Ok((self.read_position([log, retry_log])?, weight));
        }
        Err(on_fence(Error::new(ErrorKind::Unavailable, "other readers begin all the time"), &self.fence))
    }

    /// Returns whether a stream still has an entry with this id and digest.
    pub(crate) async fn holds(&mut self, stream: usize, (id, digest): (MessageId, u64)) -> Result<bool> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(self.streams[stream].as_str()).arg(id.to_string()).arg(id.to_string());
        let entries = self.line.send(&pipe).await?.pop().unwrap_or_default();
        let mut entries = reply::entries(entries).map_err(|error| self.on(stream, error))?.into_iter();
        Ok(entries.any(|(_, fields)| fields.is_some_and(|fields| wire::digest(&fields) == digest)))
    }

    /// Returns the size of the last answer in bytes, and how long it took to arrive.
    pub(crate) fn weight(&self) -> (usize, Duration) {
        self.weight
    }

    pub(crate) async fn position(&mut self) -> Result<Position> {
        let mut pipe = Pipeline::with_capacity(2);
        self.add_position(&mut pipe);
        let answers = self.line.send(&pipe).await?;
        self.read_position(reply::tuple(Value::Array(answers))?)
    }

    /// Reads if no other reader has begun, and the lease is still ours. With `above`, first checks for a new head of the schedule, or waits up to
    /// `block` for a head or an entry of either stream.
    pub(crate) async fn read(
        &mut self,
        asks: &[StreamRead],
        above: Option<Above>,
        block: Option<Duration>,
    ) -> Result<Answer> {
        if self.is_sharing() {
            return self.read_sharing(asks, above, block).await;
        }
        let mut request = std::mem::take(&mut self.line.request);
        request.clear();
        if let Some(above) = above {
            self.add_wait(&mut request, above, block);
        }
        for asks in together(asks) {
            self.words(asks, |words| request.add(words));
        }
        let of_pending = asks.iter().any(|ask| ask.after.is_some());
        if of_pending {
            request.add(&[b"HLEN", self.held.as_str().as_bytes()]);
        }
        self.line.request = request;
        self.line.exchange(block.unwrap_or_default()).await?;
        self.weight = self.line.socket()?.weight();

        let mut replies = self.line.socket()?.replies();
        let woke = if above.is_some() { self.woke(replies.next()?)? } else { Woke::default() };
        let mut read = Read::new(asks);
        for asks in together(asks) {
            let mut answer = replies.next()?;
            let deliveries = if of_pending { Some(replies.next()?.value()?) } else { None };
            if matches!(answer.clone().head()?, Head::Error(line) if self.is_gate_gone(line)) {
                read.gone = true;
                continue;
            }
            let on = |error| self.on_all(asks, error);
            for (key, entries) in answer.streams().map_err(on)? {
                read.add(self.stream_of(key), entries);
            }
            if let Some(deliveries) = deliveries {
                read.pages[0].deliveries = reply::deliveries(deliveries).map_err(on)?;
            }
        }
        let noted = if of_pending { Some(replies.next()?.value()?) } else { None };
        self.answer(read, woke, noted).await
    }

    /// The same without a connection of its own.
    async fn read_sharing(
        &mut self,
        asks: &[StreamRead],
        above: Option<Above>,
        block: Option<Duration>,
    ) -> Result<Answer> {
        let mut woke = Woke::default();
        if let (Some(above), Some(block)) = (above, block) {
            let [log, retry_log] = &self.streams;
            let streams = [(log, above.streams[0]), (retry_log, above.streams[1]), (&self.wake, above.wake)];
            let change = async { self.inner.changes.of(&self.fence).await?.wait(&streams, block).await };
            let on =
                |error: Error| error.during(format_args!("wait for {log}, {retry_log} and {}", self.wake));
            if let Change::Found(found) = change.await.map_err(on)? {
                woke = self.found(
                    reply::streams(found).map_err(on)?.iter().map(|(key, entries)| (&**key, &**entries)),
                );
            }
        }
        let mut pipe = Pipeline::with_capacity(2 * asks.len() + 2);
        for asks in together(asks) {
            self.words(asks, |words| {
                let mut cmd = Cmd::new();
                words.iter().for_each(|word| _ = cmd.arg(word));
                pipe.add_command(cmd);
            });
        }
        if let Some(above) = above {
            pipe.cmd("XREAD").arg("COUNT").arg(1).arg("STREAMS");
            pipe.arg(self.wake.as_str()).arg(above.wake.to_string());
        }
        let of_pending = asks.iter().any(|ask| ask.after.is_some());
        if of_pending {
            pipe.cmd("HLEN").arg(self.held.as_str());
        }
        let mut answers = self.line.send(&pipe).await?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let mut read = Read::new(asks);
        for asks in together(asks) {
            let answer = next();
            let deliveries = of_pending.then(&mut next);
            let gone =
                |error: &ServerError| error.details().is_some_and(|line| self.is_gate_gone(line.as_bytes()));
            if matches!(&answer, Value::ServerError(error) if gone(error)) {
                read.gone = true;
                continue;
            }
            let on = |error| self.on_all(asks, error);
            for (key, entries) in reply::streams(answer).map_err(on)? {
                read.add(self.stream_of(&key), entries);
            }
            if let Some(deliveries) = deliveries {
                read.pages[0].deliveries = reply::deliveries(deliveries).map_err(on)?;
            }
        }
        if above.is_some() {
            let found = reply::streams(next());
            let found = found.map_err(|error| error.during(format_args!("read {}", self.wake)))?;
            let head = self.found(found.iter().map(|(key, entries)| (&**key, &**entries)));
            woke.wake = head.wake.or(woke.wake);
        }
        let noted = of_pending.then(next);
        let bodies = read.pages.iter().flat_map(|page| &page.entries);
        let bytes = bodies.filter_map(|(_, fields)| fields.as_ref()).flatten();
        let bytes: usize = bytes.map(|(name, value)| name.len() + value.len()).sum();
        self.weight = (bytes, Duration::ZERO);
        if bytes > 0 {
            self.line.large = bytes >= LARGE;
        }
        self.answer(read, woke, noted).await
    }

    /// Makes an answer of what was read. Without the gate nothing was: begins anew, which fails if the lease is not ours any more.
    async fn answer(&mut self, read: Read<'_>, woke: Woke, noted: Option<Value>) -> Result<Answer> {
        let held = |error: Error| error.during(format_args!("read {}", self.held));
        let noted = match noted {
            Some(count) => reply::count(count).map_err(held)? > 0,
            None => false,
        };
        if read.gone {
            self.begin().await?;
            return Ok(Answer { woke, pages: None, noted });
        }
        Ok(Answer { woke, pages: Some(read.pages), noted })
    }

    /// Makes the words of the commands that read one stream, or new entries of both.
    fn words(&self, asks: &[StreamRead], mut add: impl FnMut(&[&[u8]])) {
        let Some(ask) = asks.first() else { return };
        // The gate first: the server names the first stream that has no group, and whoever has lost the lease restores none.
        let (group, gate) = (self.group.as_str().as_bytes(), self.gate.as_str().as_bytes());
        let (count, consumer) = (Digits::number(ask.count as u64), CONSUMER.as_bytes());
        let (count, stream) = (count.as_bytes(), self.stream(ask.stream));
        let read: [&[u8]; 7] = [b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", count, b"STREAMS"];
        if let Some(other) = asks.get(1) {
            let of: [&[u8]; 6] = [gate, stream, self.stream(other.stream), b">", b">", b">"];
            return add(&[&read[..], &of[..]].concat());
        }
        let after = ask.after.map(Digits::id);
        let from = after.as_ref().map_or(&b">"[..], Digits::as_bytes);
        let of: [&[u8]; 4] = [gate, stream, b">", from];
        add(&[&read[..], &of[..]].concat());
        if let Some(after) = ask.after {
            let after = Digits::behind(after);
            add(&[b"XPENDING", stream, group, after.as_bytes(), b"+", count, consumer]);
        }
    }

    /// Adds a wait for entries and heads, or a look for a head.
    fn add_wait(&self, request: &mut Request, above: Above, block: Option<Duration>) {
        let [log, retry_log] = [self.stream(0), self.stream(1)];
        let wake = self.wake.as_str().as_bytes();
        let [above_log, above_retry_log] = above.streams.map(Digits::id);
        let above_wake = Digits::id(above.wake);
        let above_wake = above_wake.as_bytes();
        let Some(block) = block else {
            return request.add(&[b"XREAD", b"COUNT", b"1", b"STREAMS", wake, above_wake]);
        };
        let ms = Digits::number(u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1));
        let (ms, ids) = (ms.as_bytes(), [above_log.as_bytes(), above_retry_log.as_bytes()]);
        let look: [&[u8]; 5] = [b"XREAD", b"COUNT", b"1", b"BLOCK", ms];
        let streams = [b"STREAMS", log, retry_log, wake, ids[0], ids[1], above_wake];
        request.add(&[&look[..], &streams[..]].concat());
    }

    /// Reads the notes of entries of one stream, one result per id. A value that is no note of ours is logged and
    /// skipped.
    pub(crate) async fn notes(&mut self, source: Source, ids: &[MessageId]) -> Result<Vec<Option<Note>>> {
        let answers = self.line.send(&note::ask(&self.held, source, ids)).await?;
        note::told(answers, &self.held, ids)
    }

    /// Checks that the lease is still ours.
    pub(crate) async fn check(&mut self) -> Result<()> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HGET").arg(self.fence.as_str()).arg("token");
        let token = self.line.send(&pipe).await?.pop().unwrap_or_default();
        match reply::maybe_bytes(token).map_err(|error| error.during(format_args!("read {}", self.fence)))? {
            Some(token) if token == self.lease.token.as_str() => Ok(()),
            _ => Err(self.lease.fenced()),
        }
    }

    /// Reads what is settled of packs of the log, one result per id.
    pub(crate) async fn settled(&mut self, packs: &[MessageId]) -> Result<Vec<Option<Bits>>> {
        settled::told(self.line.send(&settled::ask(&self.settled, packs)).await?, &self.settled)
    }

    /// Reads what is settled of those of these packs that are pending.
    pub(crate) async fn open_of(
        &mut self,
        packs: &[MessageId],
    ) -> Result<SortedMap<MessageId, Option<Bits>>> {
        let ask = settled::ask_open(&self.streams[0], self.group.as_str(), None, &self.settled, packs);
        settled::told_open(self.line.send(&ask).await?, &self.settled, packs)
    }

    /// Acknowledges pending packs of which everything is settled.
    pub(crate) async fn acknowledge_settled(&self, packs: &[MessageId]) -> Result<()> {
        let (tp, group) = self.lease.partition()?;
        let right = ["lease", self.lease.token.as_str()];
        let done = self.inner.acknowledge_settled(right, tp, group, packs).await;
        done.map_err(|error| fenced(error, &self.lease))
    }

    /// Returns the dictionaries that packs among these entries of the log need.
    pub(crate) async fn dictionaries_for(&self, entries: &[Entry]) -> Result<Vec<Arc<Dictionary>>> {
        let of_log = entries.iter().filter(|entry| entry.receipt.source == Source::Log);
        let (tp, _) = self.lease.partition()?;
        let needed = of_log.filter_map(|entry| dictionary_of(&entry.fields)).collect();
        self.inner.dictionaries_for(&tp.topic, needed).await
    }

    /// Reads what ended the wait. A fail-over or a deleted key ends it too, with an error that has no meaning for the
    /// commands behind it.
    fn woke(&self, mut answer: Cursor<'_>) -> Result<Woke> {
        if matches!(answer.clone().head()?, Head::Error(line) if line.starts_with(b"-UNBLOCKED")) {
            return Ok(Woke::default());
        }
        let ([log, retry_log], wake) = (&self.streams, &self.wake);
        let streams = answer
            .streams()
            .map_err(|error| error.during(format_args!("wait for {log}, {retry_log} and {wake}")))?;
        Ok(self.found(streams.iter().map(|(key, entries)| (*key, &**entries))))
    }

    /// Tells apart the streams in which a wait has found something.
    fn found<'a>(&self, streams: impl Iterator<Item = (&'a [u8], &'a [RawEntry])>) -> Woke {
        let mut woke = Woke::default();
        for (key, entries) in streams {
            let Some((id, _)) = entries.first() else { continue };
            match self.streams.iter().position(|stream| key == stream.as_str().as_bytes()) {
                Some(stream) => woke.streams.push((stream, *id)),
                None => woke.wake = Some(*id),
            }
        }
        woke
    }

    fn add_position(&self, pipe: &mut Pipeline) {
        for stream in &self.streams {
            pipe.cmd("XINFO").arg("GROUPS").arg(stream.as_str());
        }
    }

    fn read_position(&self, answers: [Value; 2]) -> Result<Position> {
        let mut delivered = [MessageId::ZERO; 2];
        for (stream, answer) in answers.into_iter().enumerate() {
            let group = reply::group(answer, self.group.as_str()).map_err(|error| self.on(stream, error))?;
            delivered[stream] = group.unwrap_or_default().last_delivered;
        }
        Ok(Position { delivered })
    }

    /// Whether an error says that the gate is gone.
    fn is_gate_gone(&self, line: &[u8]) -> bool {
        // `No such key '<key>' or consumer group '<group>' in XREADGROUP with GROUP option`.
        let gate = self.gate.as_str().as_bytes();
        line.windows(gate.len()).any(|part| part == gate)
    }

    fn on_all(&self, asks: &[StreamRead], error: Error) -> Error {
        let [log, retry_log] = &self.streams;
        match asks {
            [ask] => self.on(ask.stream, error),
            _ => self.during(format_args!("read {log} and {retry_log}"), error),
        }
    }

    fn on(&self, stream: usize, error: Error) -> Error {
        self.during(format_args!("read {}", self.streams[stream]), error)
    }

    fn during(&self, what: std::fmt::Arguments<'_>, error: Error) -> Error {
        let error = error.during(what);
        match self.lease.partition() {
            Ok((topic_partition, _)) => error.at(topic_partition),
            Err(_) => error,
        }
    }

    fn stream(&self, stream: usize) -> &[u8] {
        self.streams[stream].as_str().as_bytes()
    }

    /// Returns the index of a stream; `None` for the gate.
    fn stream_of(&self, key: &[u8]) -> Option<usize> {
        self.streams.iter().position(|stream| key == stream.as_str().as_bytes())
    }
}
