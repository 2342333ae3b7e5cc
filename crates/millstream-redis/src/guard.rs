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
use millstream_core::name::GroupName;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

use crate::backend::{CONSUMER, Inner};
use crate::error::{Phase, translate, unexpected};
use crate::leases::fenced;
use crate::reply::{self, RawEntry};

/// A connection of one reader, with the fence of its lease watched.
pub(crate) struct Guard {
    inner: Arc<Inner>,
    lease: Lease,
    group: GroupName,
    /// The log and the retry log: streams are named by their index here.
    streams: [Key; 2],
    fence: Key,
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

/// What a request brought.
pub(crate) struct Answer {
    /// The first new entry of each stream that ended the wait.
    pub(crate) woke: Vec<(usize, MessageId)>,
    /// One page per question; `None` if the fence had been touched, so that nothing was done.
    pub(crate) pages: Option<Vec<Page>>,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, lease: &Lease) -> Result<Self> {
        let (tp, group) = lease.partition()?;
        Ok(Self {
            streams: [inner.keys.log(tp), inner.keys.retry_log(tp, group)],
            fence: inner.keys.fence(tp, group),
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

    /// Connects, and makes whatever an earlier reader of this lease left on its way fail. Gives back up to
    /// where the group was handed each stream.
    pub(crate) async fn open(&mut self) -> Result<[MessageId; 2]> {
        self.connection = Some(self.inner.dial.reader().await?);
        let word = format!("{:016x}", fastrand::u64(..));
        let mut pipe = Pipeline::with_capacity(5);
        let script = &self.inner.scripts.open_reader;
        pipe.add_command(script.eval([&self.fence], &[self.lease.token.as_str(), &word]));
        self.add_positions(&mut pipe);
        self.add_watch(&mut pipe);
        let answers = self.send(&pipe, Duration::ZERO).await?;
        let [opened, log, retry_log, watch, token] = reply::tuple(Value::Array(answers))?;
        let on_fence = |error: Error| fenced(error, &self.lease).during(format_args!("open {}", self.fence));
        reply::ok(opened).map_err(on_fence)?;
        self.check_token(watch, token)?;
        self.read_positions([log, retry_log])
    }

    /// Up to where the group was handed each stream.
    pub(crate) async fn positions(&mut self) -> Result<[MessageId; 2]> {
        let mut pipe = Pipeline::with_capacity(2);
        self.add_positions(&mut pipe);
        let answers = self.send(&pipe, Duration::ZERO).await?;
        self.read_positions(reply::tuple(Value::Array(answers))?)
    }

    /// Reads if the fence is untouched. With `wait`, first waits up to a time for an entry above an id of either
    /// stream.
    pub(crate) async fn read(
        &mut self,
        asks: &[Ask],
        wait: Option<(Duration, [MessageId; 2])>,
    ) -> Result<Answer> {
        let mut pipe = Pipeline::with_capacity(2 * asks.len() + 5);
        if let Some((block, above)) = wait {
            let ms = u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1);
            pipe.cmd("XREAD").arg("COUNT").arg(1).arg("BLOCK").arg(ms).arg("STREAMS");
            pipe.arg(self.streams[0].as_str()).arg(self.streams[1].as_str());
            pipe.arg(above[0].to_string()).arg(above[1].to_string());
        }
        let commands: Vec<(usize, Cmd)> = asks.iter().flat_map(|ask| self.commands(ask)).collect();
        let of: Vec<usize> = commands.iter().map(|(stream, _)| *stream).collect();
        pipe.cmd("MULTI");
        for (_, command) in commands {
            pipe.add_command(command);
        }
        pipe.cmd("EXEC");
        self.add_watch(&mut pipe);

        let block = wait.map_or(Duration::ZERO, |(block, _)| block);
        let mut values = self.send(&pipe, block).await?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        let woke = if wait.is_some() { self.woke(next())? } else { Vec::new() };
        reply::ok(next())?;
        let queued: Vec<(usize, Value)> = of.iter().map(|stream| (*stream, next())).collect();
        let (done, watch, token) = (next(), next(), next());
        for (stream, answer) in queued {
            match reply::ok(answer) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Backpressure => {
                    self.check_token(watch, token)?;
                    return Ok(Answer { woke, pages: Some(self.read_by_script(asks).await?) });
                }
                Err(error) => return Err(self.on(stream, error)),
            }
        }
        let done = reply::ok(done)?;
        self.check_token(watch, token)?;
        if done == Value::Nil {
            return Ok(Answer { woke, pages: None });
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
        Ok(Answer { woke, pages: Some(pages.collect::<Result<_>>()?) })
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
    fn woke(&self, answer: Value) -> Result<Vec<(usize, MessageId)>> {
        if matches!(&answer, Value::ServerError(error) if error.code() == "UNBLOCKED") {
            return Ok(Vec::new());
        }
        let [log, retry_log] = &self.streams;
        let streams = reply::streams(answer)
            .map_err(|error| error.during(format_args!("wait for {log} and {retry_log}")))?;
        let first = |(key, entries): (Bytes, Vec<RawEntry>)| {
            let stream = self.streams.iter().position(|stream| key == stream.as_str())?;
            Some((stream, entries.first()?.0))
        };
        Ok(streams.into_iter().filter_map(first).collect())
    }

    fn add_positions(&self, pipe: &mut Pipeline) {
        for stream in &self.streams {
            pipe.cmd("XINFO").arg("GROUPS").arg(stream.as_str());
        }
    }

    fn read_positions(&self, answers: [Value; 2]) -> Result<[MessageId; 2]> {
        let mut positions = [MessageId::ZERO; 2];
        for (stream, answer) in answers.into_iter().enumerate() {
            let group = reply::group(answer, self.group.as_str()).map_err(|error| self.on(stream, error))?;
            positions[stream] = group.unwrap_or_default().last_delivered;
        }
        Ok(positions)
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

    fn on(&self, stream: usize, error: Error) -> Error {
        error.during(format_args!("read {}", self.streams[stream]))
    }

    async fn send(&mut self, pipe: &Pipeline, block: Duration) -> Result<Vec<Value>> {
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Unavailable, "the reader has no connection"));
        };
        let limit = block + self.inner.dial.response_timeout;
        let answer = timeout(limit, connection.send_packed_commands(pipe, 0, pipe.len())).await;
        let late = |_| {
            let what = "the request may or may not have been done";
            Error::new(ErrorKind::Unconfirmed, format!("no answer came within {limit:?}, {what}"))
        };
        let values = answer.map_err(late)?.map_err(|error| translate(&error, Phase::Sent))?;
        if values.len() == pipe.len() {
            Ok(values)
        } else {
            Err(unexpected(format_args!("{} replies to {} commands", values.len(), pipe.len())))
        }
    }
}
