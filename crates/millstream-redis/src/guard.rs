//! Requests under a WATCH on the fence: what a reader sends, and what it may believe.
//!
//! One request is one pipeline: `[XREAD BLOCK] MULTI XREADGROUP… EXEC WATCH HGET`. EXEC does nothing if the
//! fence changed since the WATCH of the request before, whose HGET had shown our token: so an owner that was
//! paused, or blocked in the XREAD while another one took over, reads nothing. The server runs what stands
//! behind the XREAD the moment it returns, so that waiting costs no further round trip.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::log::{Note, Source};
use millstream_core::name::GroupName;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use crate::backend::{CONSUMER, Inner};
use crate::connection::send_within;
use crate::error::unexpected;
use crate::leases::fenced;
use crate::note;
use crate::reply::{self, RawEntry};

/// The most notes of one HMGET.
const NOTES_CHUNK: usize = 1_000;

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
    connection: Option<MultiplexedConnection>,
}

/// What is to be read of one stream.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) stream: usize,
    pub(crate) count: usize,
    /// New entries, or what was handed out above an id.
    pub(crate) after: Option<MessageId>,
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
    /// Differs after every seek.
    pub(crate) sought: Option<Bytes>,
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
            connection: None,
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    /// Connects, and makes whatever an earlier reader of this lease left on its way fail.
    pub(crate) async fn open(&mut self) -> Result<Position> {
        self.connection = Some(self.inner.dial.waiting("reader").await?);
        let word = format!("{:016x}", fastrand::u64(..));
        let mut pipe = Pipeline::with_capacity(6);
        let script = &self.inner.scripts.open_reader;
        pipe.add_command(script.eval([&self.fence], &[self.lease.token.as_str(), &word]));
        self.add_position(&mut pipe);
        self.add_watch(&mut pipe);
        let answers = self.send(&pipe, Duration::ZERO).await?;
        let [opened, log, retry_log, sought, watch, token] = reply::tuple(Value::Array(answers))?;
        let on_fence = |error: Error| fenced(error, &self.lease).during(format_args!("open {}", self.fence));
        reply::ok(opened).map_err(on_fence)?;
        self.check_token(watch, token)?;
        self.read_position([log, retry_log, sought])
    }

    pub(crate) async fn position(&mut self) -> Result<Position> {
        let mut pipe = Pipeline::with_capacity(3);
        self.add_position(&mut pipe);
        let answers = self.send(&pipe, Duration::ZERO).await?;
        self.read_position(reply::tuple(Value::Array(answers))?)
    }

    /// Reads if the fence is untouched. With `above`, first looks whether the schedule has a new head, or waits up to
    /// `block` for that or for an entry of either stream.
    pub(crate) async fn read(
        &mut self,
        asks: &[Ask],
        above: Option<Above>,
        block: Option<Duration>,
    ) -> Result<Answer> {
        let mut pipe = Pipeline::with_capacity(2 * asks.len() + 5);
        if let Some(Above { streams: [log, retry_log], wake }) = above {
            let look = pipe.cmd("XREAD").arg("COUNT").arg(1);
            if let Some(block) = block {
                let ms = u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1);
                look.arg("BLOCK").arg(ms).arg("STREAMS");
                look.arg(self.streams[0].as_str()).arg(self.streams[1].as_str()).arg(self.wake.as_str());
                look.arg(log.to_string()).arg(retry_log.to_string()).arg(wake.to_string());
            } else {
                look.arg("STREAMS").arg(self.wake.as_str()).arg(wake.to_string());
            }
        }
        let commands: Vec<(usize, Cmd)> = asks.iter().flat_map(|ask| self.commands(ask)).collect();
        let of: Vec<usize> = commands.iter().map(|(stream, _)| *stream).collect();
        pipe.cmd("MULTI");
        for (_, command) in commands {
            pipe.add_command(command);
        }
        pipe.cmd("EXEC");
        self.add_watch(&mut pipe);
        let of_pending = asks.iter().any(|ask| ask.after.is_some());
        if of_pending {
            pipe.cmd("HLEN").arg(self.held.as_str());
        }

        let mut values = self.send(&pipe, block.unwrap_or_default()).await?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        let woke = if above.is_some() { self.woke(next())? } else { Woke::default() };
        reply::ok(next())?;
        let queued: Vec<(usize, Value)> = of.iter().map(|stream| (*stream, next())).collect();
        let (done, watch, token) = (next(), next(), next());
        let noted = of_pending && reply::count(next()).map_err(|error| self.on_held(error))? > 0;
        for (stream, answer) in queued {
            match reply::ok(answer) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Backpressure => {
                    self.check_token(watch, token)?;
                    let pages = Some(self.read_by_script(asks).await?);
                    return Ok(Answer { woke, pages, noted });
                }
                Err(error) => return Err(self.on(stream, error)),
            }
        }
        let done = reply::ok(done)?;
        self.check_token(watch, token)?;
        if done == Value::Nil {
            return Ok(Answer { woke, pages: None, noted });
        }
        let replies = reply::array(done)?;
        if replies.len() != of.len() {
            return Err(unexpected(format_args!("{} replies to {} commands", replies.len(), of.len())));
        }
        let mut replies = replies.into_iter();
        let pages = asks.iter().map(|ask| {
            let entries = replies.next().unwrap_or_default();
            let deliveries = ask.after.and_then(|_| replies.next()).unwrap_or_default();
            self.page(ask.stream, entries, deliveries)
        });
        Ok(Answer { woke, pages: Some(pages.collect::<Result<_>>()?), noted })
    }

    /// What was noted of entries of one stream, one by one. What is no note of ours is told and passed over.
    pub(crate) async fn notes(&mut self, source: Source, ids: &[MessageId]) -> Result<Vec<Option<Note>>> {
        let mut pipe = Pipeline::with_capacity(1 + ids.len().div_ceil(NOTES_CHUNK));
        pipe.cmd("TIME");
        for ids in ids.chunks(NOTES_CHUNK) {
            pipe.cmd("HMGET").arg(self.held.as_str());
            for id in ids {
                pipe.arg(note::field(source, *id));
            }
        }
        let mut answers = self.send(&pipe, Duration::ZERO).await?.into_iter();
        let now_ms = reply::time_ms(answers.next().unwrap_or_default())?;
        let mut notes = Vec::with_capacity(ids.len());
        for answer in answers {
            for stored in reply::array(answer).map_err(|error| self.on_held(error))? {
                let stored = reply::maybe_bytes(stored)?;
                let read = stored.as_ref().and_then(|stored| note::read(stored, now_ms));
                if stored.is_some() && read.is_none() {
                    let id = ids.get(notes.len()).copied().unwrap_or_default();
                    tracing::warn!(key = %self.held, %id, "a note that cannot be read is passed over");
                }
                notes.push(read);
            }
        }
        if notes.len() == ids.len() {
            Ok(notes)
        } else {
            Err(unexpected(format_args!("{} notes of {} entries", notes.len(), ids.len())))
        }
    }

    /// A server that is out of memory refuses whatever stands inside MULTI, also what would help it: consumers
    /// could then never drain it. A script is let through, and costs twice as much.
    async fn read_by_script(&mut self, asks: &[Ask]) -> Result<Vec<Page>> {
        let mut pipe = Pipeline::with_capacity(asks.len());
        for ask in asks {
            let count = ask.count.to_string();
            let after = ask.after.map_or_else(|| ">".to_owned(), |id| id.to_string());
            let args = [self.lease.token.as_str(), self.group.as_str(), CONSUMER, &count, &after];
            pipe.add_command(self.inner.scripts.read.eval([&self.fence, &self.streams[ask.stream]], &args));
        }
        let answers = self.send(&pipe, Duration::ZERO).await?;
        let pages = asks.iter().zip(answers).map(|(ask, answer)| {
            let on = |error| self.on(ask.stream, fenced(error, &self.lease));
            let [entries, deliveries] = reply::ok(answer).and_then(reply::tuple).map_err(on)?;
            self.page(ask.stream, entries, deliveries)
        });
        pages.collect()
    }

    fn commands(&self, ask: &Ask) -> Vec<(usize, Cmd)> {
        let (stream, group) = (self.streams[ask.stream].as_str(), self.group.as_str());
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(group).arg(CONSUMER).arg("COUNT").arg(ask.count).arg("STREAMS").arg(stream);
        let Some(after) = ask.after else {
            read.arg(">");
            return vec![(ask.stream, read)];
        };
        read.arg(after.to_string());
        let mut counts = redis::cmd("XPENDING");
        counts.arg(stream).arg(group).arg(format!("({after}")).arg("+").arg(ask.count).arg(CONSUMER);
        vec![(ask.stream, read), (ask.stream, counts)]
    }

    fn page(&self, stream: usize, entries: Value, deliveries: Value) -> Result<Page> {
        let on = |error| self.on(stream, error);
        let streams = reply::streams(entries).map_err(on)?;
        let entries = streams.into_iter().flat_map(|(_, entries)| entries).collect();
        Ok(Page { entries, deliveries: reply::deliveries(deliveries).map_err(on)? })
    }

    /// What ended the wait. A fail-over or a vanished key ends it too, with an error that says nothing about
    /// what comes behind.
    fn woke(&self, answer: Value) -> Result<Woke> {
        if matches!(&answer, Value::ServerError(error) if error.code() == "UNBLOCKED") {
            return Ok(Woke::default());
        }
        let ([log, retry_log], wake) = (&self.streams, &self.wake);
        let streams = reply::streams(answer)
            .map_err(|error| error.during(format_args!("wait for {log}, {retry_log} and {wake}")))?;
        let mut woke = Woke::default();
        for (key, entries) in streams {
            let Some((id, _)) = entries.first() else { continue };
            match self.streams.iter().position(|stream| key == stream.as_str()) {
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
        pipe.cmd("HGET").arg(self.fence.as_str()).arg("sought");
    }

    fn read_position(&self, answers: [Value; 3]) -> Result<Position> {
        let [log, retry_log, sought] = answers;
        let mut delivered = [MessageId::ZERO; 2];
        for (stream, answer) in [log, retry_log].into_iter().enumerate() {
            let group = reply::group(answer, self.group.as_str()).map_err(|error| self.on(stream, error))?;
            delivered[stream] = group.unwrap_or_default().last_delivered;
        }
        Ok(Position { delivered, sought: reply::maybe_bytes(sought)? })
    }

    fn add_watch(&self, pipe: &mut Pipeline) {
        pipe.cmd("WATCH").arg(self.fence.as_str());
        pipe.cmd("HGET").arg(self.fence.as_str()).arg("token");
    }

    fn check_token(&self, watch: Value, token: Value) -> Result<()> {
        let on_fence = |error: Error| error.during(format_args!("watch {}", self.fence));
        reply::ok(watch).map_err(on_fence)?;
        match reply::maybe_bytes(token).map_err(on_fence)? {
            Some(token) if token == self.lease.token.as_str() => Ok(()),
            _ => Err(self.lease.fenced()),
        }
    }

    fn on_held(&self, error: Error) -> Error {
        error.during(format_args!("read {}", self.held))
    }

    fn on(&self, stream: usize, error: Error) -> Error {
        error.during(format_args!("read {}", self.streams[stream]))
    }

    async fn send(&mut self, pipe: &Pipeline, block: Duration) -> Result<Vec<Value>> {
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Unavailable, "the reader has no connection"));
        };
        let limit = block + self.inner.dial.response_timeout;
        send_within(connection, pipe, limit).await
    }
}
