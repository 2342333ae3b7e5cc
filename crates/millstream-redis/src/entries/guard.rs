//! The fenced read: requests of a reader that do nothing if its lease is not the current one any more.
//!
//! On a connection of the reader's own, with a WATCH on the fence of its lease, one request is one pipeline: `[XREAD BLOCK] MULTI XREADGROUP… EXEC WATCH HGET`. EXEC does nothing if the fence
//! changed since the WATCH of the request before, and the HGET of that request had returned our token. So an owner
//! reads nothing if another one took over while it was paused or blocked in the XREAD. The server runs the commands
//! behind the XREAD as soon as it returns, so a wait costs no further round trip.
//!
//! A reader without a connection of its own (see `reader_connections.rs`) waits for notices of changed keys and calls the
//! script `read`, which looks at the fence itself.

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
use redis::{Pipeline, Value};

use crate::backend::{CONSUMER, Inner};
use crate::conn::replies::cursor::Cursor;
use crate::conn::replies::reply::{self, RawEntry};
use crate::conn::replies::resp::Head;
use crate::conn::request::{Digits, Request};
use crate::conn::waits::changes::Change;
use crate::entries::reader_line::ReaderLine;
use crate::entries::stream_read::{Above, Answer, Page, Position, StreamRead, Woke};
use crate::entries::weight::{Weight, add_weight, weight};
use crate::error::{fenced, unexpected};
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
    held: Key,
    settled: Key,
    line: ReaderLine,
    /// The word with which this reader was begun.
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

    /// Aborts the requests that an earlier reader of this lease may still have on the server, and watches the fence if the
    /// connection is its own.
    async fn begin(&mut self) -> Result<(Position, Weight)> {
        let watching = !self.line.is_sharing();
        self.line.begin().await?;
        self.word = format!("{:016x}", fastrand::u64(..));
        let mut pipe = Pipeline::with_capacity(8);
        let script = &self.inner.scripts.open_reader;
        // `open_reader` changes the fence: that aborts a blocked request that the server may still hold for a cut
        // connection of this lease, and the word is not that of a script that is still under way. Our WATCH comes behind
        // the change, so our own first transaction is not aborted.
        pipe.add_command(script.eval([&self.fence], &[self.lease.token.as_str(), &self.word]));
        self.add_position(&mut pipe);
        add_weight(&mut pipe, &self.streams[0]);
        if watching {
            // The connection may have watched the fence of another reader.
            pipe.cmd("UNWATCH");
            self.add_watch(&mut pipe);
        }
        let mut answers = self.line.send(&pipe).await?;
        let watched = answers.split_off(5);
        let [opened, log, retry_log, length, bytes] = reply::tuple(Value::Array(answers))?;
        let on_fence = |error: Error| fenced(error, &self.lease).during(format_args!("open {}", self.fence));
        reply::ok(opened).map_err(on_fence)?;
        if watching {
            let [_, watch, token] = reply::tuple(Value::Array(watched))?;
            self.check_token(reply::ok(watch).map(drop), token)?;
        }
        let weight = weight(length, bytes);
        self.line.large = weight.bytes.checked_div(weight.entries).is_some_and(|mean| mean >= LARGE as u64);
        Ok((self.read_position([log, retry_log])?, weight))
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

    /// Reads if the fence is untouched. With `above`, first checks for a new head of the schedule, or waits up to
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
        let request = std::mem::take(&mut self.line.request);
        self.line.request = self.read_request(request, asks, above, block);
        self.line.exchange(block.unwrap_or_default()).await?;
        self.weight = self.line.socket()?.weight();

        let mut replies = self.line.socket()?.replies();
        let woke = if above.is_some() { self.woke(replies.next()?)? } else { Woke::default() };
        replies.next()?.ok()?;
        // Each command inside MULTI is answered with QUEUED, or with the error for which the server refused it.
        let mut refused = None;
        for ask in asks {
            for _ in 0..ask.commands() {
                let queued = replies.next()?.ok();
                refused = refused.or(queued.err().map(|error| (ask.stream, error)));
            }
        }
        let (mut done, watch, token) = (replies.next()?, replies.next()?, replies.next()?.value()?);
        let of_pending = asks.iter().any(|ask| ask.after.is_some());
        let noted = of_pending
            && reply::count(replies.next()?.value()?)
                .map_err(|error| error.during(format_args!("read {}", self.held)))?
                > 0;
        if let Some((stream, error)) = refused {
            // A refused command made EXEC abort, so nothing was read. Only a server that is out of memory has a way
            // round.
            if error.kind() != ErrorKind::Backpressure {
                return Err(self.on(stream, error));
            }
            self.check_token(watch.ok(), token)?;
            let pages = self.read_by_script(asks, Pipeline::new()).await?.map(|(pages, _)| pages);
            return Ok(Answer { woke, pages, noted });
        }
        // Judge the token before nil: the HGET ran behind EXEC. Nil with our own token means that the lease is still
        // ours, and only the fence was touched.
        let count = done.array()?;
        self.check_token(watch.ok(), token)?;
        let Some(count) = count else { return Ok(Answer { woke, pages: None, noted }) };
        let asked: usize = asks.iter().map(|ask| ask.commands()).sum();
        if count != asked {
            return Err(unexpected(format_args!("{count} replies to {asked} commands")));
        }
        let pages = asks.iter().map(|ask| self.page(ask, &mut done));
        Ok(Answer { woke, pages: Some(pages.collect::<Result<_>>()?), noted })
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
            if let Change::Entries(found) = change.await.map_err(on)? {
                woke = self.found(
                    reply::streams(found).map_err(on)?.iter().map(|(key, entries)| (&**key, &**entries)),
                );
            }
        }
        let mut extra = Pipeline::with_capacity(2);
        if let Some(above) = above {
            extra.cmd("XREAD").arg("COUNT").arg(1).arg("STREAMS");
            extra.arg(self.wake.as_str()).arg(above.wake.to_string());
        }
        let of_pending = asks.iter().any(|ask| ask.after.is_some());
        if of_pending {
            extra.cmd("HLEN").arg(self.held.as_str());
        }
        let Some((pages, extra)) = self.read_by_script(asks, extra).await? else {
            return Ok(Answer { woke, pages: None, noted: false });
        };
        let mut extra = extra.into_iter();
        if above.is_some() {
            let found = extra.next().map_or_else(|| Ok(Vec::new()), reply::streams);
            let found = found.map_err(|error| error.during(format_args!("read {}", self.wake)))?;
            let head = self.found(found.iter().map(|(key, entries)| (&**key, &**entries)));
            woke.wake = head.wake.or(woke.wake);
        }
        let noted = of_pending
            && reply::count(extra.next().unwrap_or_default())
                .map_err(|error| error.during(format_args!("read {}", self.held)))?
                > 0;
        let bodies = pages.iter().flat_map(|page| &page.entries);
        let bytes = bodies.filter_map(|(_, fields)| fields.as_ref()).flatten();
        let bytes: usize = bytes.map(|(name, value)| name.len() + value.len()).sum();
        self.weight = (bytes, Duration::ZERO);
        if bytes > 0 {
            self.line.large = bytes >= LARGE;
        }
        Ok(Answer { woke, pages: Some(pages), noted })
    }

    fn read_request(
        &self,
        mut request: Request,
        asks: &[StreamRead],
        above: Option<Above>,
        block: Option<Duration>,
    ) -> Request {
        request.clear();
        let [log, retry_log] = [self.stream(0), self.stream(1)];
        let wake = self.wake.as_str().as_bytes();
        if let Some(above) = above {
            let [above_log, above_retry_log] = above.streams.map(Digits::id);
            let above_wake = Digits::id(above.wake);
            let above_wake = above_wake.as_bytes();
            if let Some(block) = block {
                let ms = Digits::number(u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1));
                let (ms, ids) = (ms.as_bytes(), [above_log.as_bytes(), above_retry_log.as_bytes()]);
                let look: [&[u8]; 5] = [b"XREAD", b"COUNT", b"1", b"BLOCK", ms];
                let streams = [b"STREAMS", log, retry_log, wake, ids[0], ids[1], above_wake];
                request.add(&[&look[..], &streams[..]].concat());
            } else {
                request.add(&[b"XREAD", b"COUNT", b"1", b"STREAMS", wake, above_wake]);
            }
        }
        request.add(&[b"MULTI"]);
        for ask in asks {
            self.add_read(&mut request, ask);
        }
        request.add(&[b"EXEC"]);
        let fence = self.fence.as_str().as_bytes();
        request.add(&[b"WATCH", fence]);
        request.add(&[b"HGET", fence, b"token"]);
        if asks.iter().any(|ask| ask.after.is_some()) {
            request.add(&[b"HLEN", self.held.as_str().as_bytes()]);
        }
        request
    }

    fn add_read(&self, request: &mut Request, ask: &StreamRead) {
        let (stream, group) = (self.stream(ask.stream), self.group.as_str().as_bytes());
        let (count, consumer) = (Digits::number(ask.count as u64), CONSUMER.as_bytes());
        let count = count.as_bytes();
        let after = ask.after.map(Digits::id);
        let after = after.as_ref().map_or(&b">"[..], Digits::as_bytes);
        request.add(&[b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", count, b"STREAMS", stream, after]);
        if let Some(after) = ask.after {
            let after = Digits::behind(after);
            request.add(&[b"XPENDING", stream, group, after.as_bytes(), b"+", count, consumer]);
        }
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
        self.check_token(Ok(()), token)
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

    /// Reads with a script, and returns the replies to other commands too. A server that is out of memory refuses every
    /// command inside MULTI, also those that would free memory, so consumers could never drain it. It accepts the script,
    /// which costs twice as much.
    ///
    /// Returns `None` if another reader of the lease had begun, and begins anew.
    async fn read_by_script(
        &mut self,
        asks: &[StreamRead],
        others: Pipeline,
    ) -> Result<Option<(Vec<Page>, Vec<Value>)>> {
        let mut pipe = Pipeline::with_capacity(asks.len() + others.len());
        for ask in asks {
            let count = ask.count.to_string();
            let after = ask.after.map_or_else(|| ">".to_owned(), |id| id.to_string());
            let args = [self.lease.token.as_str(), self.group.as_str(), CONSUMER, &count, &after, &self.word];
            pipe.add_command(self.inner.scripts.read.eval([&self.fence, &self.streams[ask.stream]], &args));
        }
        others.cmd_iter().for_each(|cmd| _ = pipe.add_command(cmd.clone()));
        let mut answers = self.line.send(&pipe).await?;
        let anew = |answer: &Value| matches!(answer, Value::ServerError(error) if error.code() == "READER");
        if answers.iter().any(anew) {
            self.begin().await?;
            return Ok(None);
        }
        let others = answers.split_off(asks.len());
        let pages = asks.iter().zip(answers).map(|(ask, answer)| {
            let on = |error| self.on(ask.stream, fenced(error, &self.lease));
            let [entries, deliveries] = reply::ok(answer).and_then(reply::tuple).map_err(on)?;
            let streams = reply::streams(entries).map_err(on)?;
            let entries = streams.into_iter().flat_map(|(_, entries)| entries).collect();
            Ok(Page { entries, deliveries: reply::deliveries(deliveries).map_err(on)? })
        });
        Ok(Some((pages.collect::<Result<_>>()?, others)))
    }

    fn page(&self, ask: &StreamRead, done: &mut Cursor<'_>) -> Result<Page> {
        let on = |error| self.on(ask.stream, error);
        let streams = done.streams().map_err(on)?;
        let entries = streams.into_iter().flat_map(|(_, entries)| entries).collect();
        let deliveries = match ask.after {
            Some(_) => done.value().and_then(reply::deliveries).map_err(on)?,
            None => Vec::new(),
        };
        Ok(Page { entries, deliveries })
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

    fn add_watch(&self, pipe: &mut Pipeline) {
        pipe.cmd("WATCH").arg(self.fence.as_str());
        pipe.cmd("HGET").arg(self.fence.as_str()).arg("token");
    }

    fn check_token(&self, watch: Result<()>, token: Value) -> Result<()> {
        let on_fence = |error: Error| error.during(format_args!("watch {}", self.fence));
        watch.map_err(on_fence)?;
        match reply::maybe_bytes(token).map_err(on_fence)? {
            Some(token) if token == self.lease.token.as_str() => Ok(()),
            _ => Err(self.lease.fenced()),
        }
    }

    fn on(&self, stream: usize, error: Error) -> Error {
        let error = error.during(format_args!("read {}", self.streams[stream]));
        match self.lease.partition() {
            Ok((topic_partition, _)) => error.at(topic_partition),
            Err(_) => error,
        }
    }

    fn stream(&self, stream: usize) -> &[u8] {
        self.streams[stream].as_str().as_bytes()
    }
}
