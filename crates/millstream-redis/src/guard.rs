//! Requests under a WATCH on the fence: what a reader sends, and what it may believe.
//!
//! One request is one pipeline: `[XREAD BLOCK] MULTI XREADGROUP… EXEC WATCH HGET`. EXEC does nothing if the
//! fence changed since the WATCH of the request before, whose HGET had shown our token: so an owner that was
//! paused, or blocked in the XREAD while another one took over, reads nothing. The server runs what stands
//! behind the XREAD the moment it returns, so that waiting costs no further round trip.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::log::{Note, Source};
use millstream_core::name::GroupName;
use millstream_core::wire;
use redis::{Pipeline, Value};

use crate::backend::{CONSUMER, Inner};
use crate::cursor::Cursor;
use crate::error::unexpected;
use crate::leases::fenced;
use crate::note;
use crate::reply::{self, RawEntry};
use crate::request::{Digits, Request};
use crate::resp::Head;
use crate::socket::Socket;

/// A connection of one reader, with the fence of its lease watched.
pub(crate) struct Guard {
    inner: Arc<Inner>,
    lease: Lease,
    group: GroupName,
    /// The log and the retry log: streams are named by their index here.
    streams: [Key; 2],
    wake: Key,
    fence: Key,
    held: Key,
    /// Not there while a request is under way: whoever drops that drops it too.
    socket: Option<Socket>,
    /// Used again and again.
    request: Request,
}

/// What is to be read of one stream.
#[derive(Clone, Copy)]
pub(crate) struct ClaimRequest {
    pub(crate) stream: usize,
    pub(crate) count: usize,
    /// New entries, or what was handed out above an id.
    pub(crate) after: Option<MessageId>,
}

impl ClaimRequest {
    /// How many commands ask this.
    fn commands(&self) -> usize {
        1 + usize::from(self.after.is_some())
    }
}

/// What was read of one stream.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<RawEntry>,
    /// How often each was handed out; empty for new entries.
    pub(crate) deliveries: Vec<(MessageId, u32)>,
}

/// How the group stands when a reader starts over.
pub(crate) struct Position {
    /// Up to where it was handed each stream.
    pub(crate) delivered: [MessageId; 2],
}

/// How long a log is, and about how many bytes it takes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// Above which ids something is new: to be waited for, or to be looked at.
#[derive(Clone, Copy)]
pub(crate) struct Above {
    pub(crate) streams: [MessageId; 2],
    /// In the stream that tells of new heads of the schedule.
    pub(crate) wake: MessageId,
}

/// What ended a wait.
#[derive(Default)]
pub(crate) struct Woke {
    /// The first new entry of each stream.
    pub(crate) streams: Vec<(usize, MessageId)>,
    /// The newest head of the schedule, if there is a new one.
    pub(crate) wake: Option<MessageId>,
}

/// What a request brought.
pub(crate) struct Answer {
    pub(crate) woke: Woke,
    /// One page per question; `None` if the fence had been touched, so that nothing was done.
    pub(crate) pages: Option<Vec<Page>>,
    /// Whether there are notes on pending entries. Only asked for with what was handed out before.
    pub(crate) noted: bool,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, lease: &Lease) -> Result<Self> {
        let (tp, group) = lease.partition()?;
        Ok(Self {
            streams: [inner.keys.log(tp), inner.keys.retry_log(tp, group)],
            wake: inner.keys.wake(&tp.clone().into()),
            fence: inner.keys.fence(tp, group),
            held: inner.keys.held(tp, group),
            group: group.clone(),
            lease: lease.clone(),
            inner,
            socket: None,
            request: Request::default(),
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    pub(crate) fn close(&mut self) {
        self.socket = None;
    }

    /// Connects, and makes whatever an earlier reader of this lease left on its way fail.
    pub(crate) async fn open(&mut self) -> Result<(Position, Weight)> {
        self.socket = Some(self.inner.dial.socket("reader").await?);
        let word = format!("{:016x}", fastrand::u64(..));
        let mut pipe = Pipeline::with_capacity(7);
        let script = &self.inner.scripts.open_reader;
        pipe.add_command(script.eval([&self.fence], &[self.lease.token.as_str(), &word]));
        self.add_position(&mut pipe);
        self.add_watch(&mut pipe);
        add_weight(&mut pipe, &self.streams[0]);
        let answers = self.send(&pipe).await?;
        let [opened, log, retry_log, watch, token, length, bytes] = reply::tuple(Value::Array(answers))?;
        let on_fence = |error: Error| fenced(error, &self.lease).during(format_args!("open {}", self.fence));
        reply::ok(opened).map_err(on_fence)?;
        self.check_token(reply::ok(watch).map(drop), token)?;
        Ok((self.read_position([log, retry_log])?, weight(length, bytes)))
    }

    /// Whether an entry stands in a stream as it was handed out.
    pub(crate) async fn holds(&mut self, stream: usize, (id, digest): (MessageId, u64)) -> Result<bool> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(self.streams[stream].as_str()).arg(id.to_string()).arg(id.to_string());
        let entries = self.send(&pipe).await?.pop().unwrap_or_default();
        let mut entries = reply::entries(entries).map_err(|error| self.on(stream, error))?.into_iter();
        Ok(entries.any(|(_, fields)| fields.is_some_and(|fields| wire::digest(&fields) == digest)))
    }

    /// How many bytes the last answer had, and how long it took to arrive.
    pub(crate) fn weight(&self) -> (usize, Duration) {
        self.socket.as_ref().map_or((0, Duration::ZERO), Socket::weight)
    }

    pub(crate) async fn position(&mut self) -> Result<Position> {
        let mut pipe = Pipeline::with_capacity(2);
        self.add_position(&mut pipe);
        let answers = self.send(&pipe).await?;
        self.read_position(reply::tuple(Value::Array(answers))?)
    }

    /// Reads if the fence is untouched. With `above`, first looks whether the schedule has a new head, or waits up to
    /// `block` for that or for an entry of either stream.
    pub(crate) async fn read(
        &mut self,
        asks: &[ClaimRequest],
        above: Option<Above>,
        block: Option<Duration>,
    ) -> Result<Answer> {
        let request = std::mem::take(&mut self.request);
        self.request = self.read_request(request, asks, above, block);
        self.exchange(block.unwrap_or_default()).await?;

        let mut replies = self.socket()?.replies();
        let woke = if above.is_some() { self.woke(replies.next()?)? } else { Woke::default() };
        replies.next()?.ok()?;
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
            if error.kind() != ErrorKind::Backpressure {
                return Err(self.on(stream, error));
            }
            self.check_token(watch.ok(), token)?;
            let pages = Some(self.read_by_script(asks).await?);
            return Ok(Answer { woke, pages, noted });
        }
        let count = done.array()?;
        self.check_token(watch.ok(), token)?;
        let Some(count) = count else { return Ok(Answer { woke, pages: None, noted }) };
        let asked: usize = asks.iter().map(ClaimRequest::commands).sum();
        if count != asked {
            return Err(unexpected(format_args!("{count} replies to {asked} commands")));
        }
        let pages = asks.iter().map(|ask| self.page(ask, &mut done));
        Ok(Answer { woke, pages: Some(pages.collect::<Result<_>>()?), noted })
    }

    fn read_request(
        &self,
        mut request: Request,
        asks: &[ClaimRequest],
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

    fn add_read(&self, request: &mut Request, ask: &ClaimRequest) {
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

    /// What was noted of entries of one stream, one by one. What is no note of ours is told and passed over.
    pub(crate) async fn notes(&mut self, source: Source, ids: &[MessageId]) -> Result<Vec<Option<Note>>> {
        let answers = self.send(&note::ask(&self.held, source, ids)).await?;
        note::told(answers, &self.held, ids)
    }

    /// A server that is out of memory refuses whatever stands inside MULTI, also what would help it: consumers
    /// could then never drain it. A script is let through, and costs twice as much.
    async fn read_by_script(&mut self, asks: &[ClaimRequest]) -> Result<Vec<Page>> {
        let mut pipe = Pipeline::with_capacity(asks.len());
        for ask in asks {
            let count = ask.count.to_string();
            let after = ask.after.map_or_else(|| ">".to_owned(), |id| id.to_string());
            let args = [self.lease.token.as_str(), self.group.as_str(), CONSUMER, &count, &after];
            pipe.add_command(self.inner.scripts.read.eval([&self.fence, &self.streams[ask.stream]], &args));
        }
        let answers = self.send(&pipe).await?;
        let pages = asks.iter().zip(answers).map(|(ask, answer)| {
            let on = |error| self.on(ask.stream, fenced(error, &self.lease));
            let [entries, deliveries] = reply::ok(answer).and_then(reply::tuple).map_err(on)?;
            let streams = reply::streams(entries).map_err(on)?;
            let entries = streams.into_iter().flat_map(|(_, entries)| entries).collect();
            Ok(Page { entries, deliveries: reply::deliveries(deliveries).map_err(on)? })
        });
        pages.collect()
    }

    fn page(&self, ask: &ClaimRequest, done: &mut Cursor<'_>) -> Result<Page> {
        let on = |error| self.on(ask.stream, error);
        let streams = done.streams().map_err(on)?;
        let entries = streams.into_iter().flat_map(|(_, entries)| entries).collect();
        let deliveries = match ask.after {
            Some(_) => done.value().and_then(reply::deliveries).map_err(on)?,
            None => Vec::new(),
        };
        Ok(Page { entries, deliveries })
    }

    /// What ended the wait. A fail-over or a vanished key ends it too, with an error that says nothing about
    /// what comes behind.
    fn woke(&self, mut answer: Cursor<'_>) -> Result<Woke> {
        if matches!(answer.clone().head()?, Head::Error(line) if line.starts_with(b"-UNBLOCKED")) {
            return Ok(Woke::default());
        }
        let ([log, retry_log], wake) = (&self.streams, &self.wake);
        let streams = answer
            .streams()
            .map_err(|error| error.during(format_args!("wait for {log}, {retry_log} and {wake}")))?;
        let mut woke = Woke::default();
        for (key, entries) in streams {
            let Some((id, _)) = entries.first() else { continue };
            match self.streams.iter().position(|stream| key == stream.as_str().as_bytes()) {
                Some(stream) => woke.streams.push((stream, *id)),
                None => woke.wake = Some(*id),
            }
        }
        Ok(woke)
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
        error.during(format_args!("read {}", self.streams[stream]))
    }

    fn stream(&self, stream: usize) -> &[u8] {
        self.streams[stream].as_str().as_bytes()
    }

    fn socket(&self) -> Result<&Socket> {
        self.socket.as_ref().ok_or_else(not_connected)
    }

    /// Sends what is rare.
    async fn send(&mut self, pipe: &Pipeline) -> Result<Vec<Value>> {
        self.request.clear();
        self.request.add_pipeline(pipe);
        self.exchange(Duration::ZERO).await?;
        let mut replies = self.socket()?.replies();
        (0..pipe.len()).map(|_| replies.next()?.value()).collect()
    }

    async fn exchange(&mut self, block: Duration) -> Result<()> {
        let mut socket = self.socket.take().ok_or_else(not_connected)?;
        socket.ask(&self.request, block, self.inner.dial.response_timeout).await?;
        self.socket = Some(socket);
        Ok(())
    }
}

/// Asks about how large the entries of a stream are, before any of them is read.
pub(crate) fn add_weight(pipe: &mut Pipeline, stream: &Key) {
    pipe.cmd("XLEN").arg(stream.as_str());
    pipe.cmd("MEMORY").arg("USAGE").arg(stream.as_str()).arg("SAMPLES").arg(5);
}

/// Nothing where the server does not say, or this user may not ask: then the first page shows it.
pub(crate) fn weight(length: Value, bytes: Value) -> Weight {
    let number = |value| reply::count(value).map_or(0, |number| number as u64);
    Weight { entries: number(length), bytes: number(bytes) }
}

fn not_connected() -> Error {
    Error::new(ErrorKind::Unavailable, "the reader has no connection")
}
