//! How the reader of many streams takes new entries: which streams it asks for, and how many entries of each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millstream_core::error::{Error, Result};
use millstream_core::log::Source;
use millstream_core::topic::Partition;
use redis::{Cmd, Pipeline, Value};

use crate::conn::replies::reply;
use crate::conn::replies::resp::Head;
use crate::conn::replies::wrong_type;
use crate::entries::sharing::pages::{Read, page, unasked};
use crate::entries::sharing::plan::StreamsRead;
use crate::entries::sharing::shared_reader::StreamsReader;
use crate::error::unexpected;

/// Maximum number of entries of a packed topic for which a request asks that follows others which found no packs.
const MOST: usize = 8;

/// Maximum number of retry logs of a packed topic that are looked at together.
const TOGETHER: usize = 64;

impl StreamsReader {
    /// Reads up to `max` new messages without waiting: with the first request as many entries as hold these if all are full packs.
    /// While none is a pack, further requests ask for more.
    pub(super) async fn look(&mut self, max: usize) -> Result<Read> {
        let (mut read, mut left, mut entries) = (Read::default(), max, max.div_ceil(self.per_entry));
        loop {
            let asks = self.plan.look(self.pages.count(entries.min(left)));
            let asks = self.with_retries(asks, left);
            let some = self.new_entries(asks, None).await?;
            let (count, packs) = came(&some);
            some.0.into_iter().for_each(|(partition, fetched)| read.add_new(partition, fetched));
            left = left.saturating_sub(count);
            if self.per_entry == 1 || packs || count == 0 || left == 0 || self.plan.is_idle() {
                return Ok(read);
            }
            entries = (entries * 2).min(MOST);
        }
    }

    /// Looks at all retry logs, and at the logs of partitions that are not `full` until one of them has something.
    pub(super) async fn look_beside(&mut self, max: usize, full: &[Partition]) -> Result<Read> {
        let streams = &self.streams;
        let is_log = |at: &usize| streams[*at].source == Source::Log;
        let (logs, retries): (Vec<usize>, Vec<usize>) = (0..streams.len()).partition(is_log);
        let mut logs = VecDeque::from(logs);
        logs.retain(|at| !full.contains(&streams[*at].partition));
        // Another one is first each time, as many are looked at together as come one after the other.
        logs.rotate_left(self.plan.turn(logs.len()));
        let count = self.pages.count((max / retries.len().max(1)).max(1));
        let mut asks = vec![StreamsRead { streams: retries, count }];
        let mut together = max.div_ceil(self.per_entry).min(MOST);
        let mut read = Read::default();
        loop {
            let streams: Vec<usize> = logs.drain(..together.min(logs.len())).collect();
            let (last, count) = (streams.is_empty(), if self.per_entry > 1 { 1 } else { max });
            asks.extend((!last).then_some(StreamsRead { streams, count }));
            if asks.is_empty() {
                return Ok(read);
            }
            let some = self.new_entries(std::mem::take(&mut asks), None).await?;
            let (count, _) = came(&some);
            some.0.into_iter().for_each(|(partition, fetched)| read.add_new(partition, fetched));
            if last || count > 0 {
                return Ok(read);
            }
            together = (together * 2).min(MOST);
        }
    }

    /// Adds to the requests for logs of a packed topic, which are planned as if an entry were many messages, those for its retry logs,
    /// which have no packs: with up to a quarter of what may be read, so that no pack keeps them from being read.
    fn with_retries(&mut self, mut asks: Vec<StreamsRead>, max: usize) -> Vec<StreamsRead> {
        if self.per_entry == 1 {
            return asks;
        }
        // A log and its retry log in turn.
        asks.iter_mut().flat_map(|ask| &mut ask.streams).for_each(|at| *at *= 2);
        let all: Vec<usize> =
            (0..self.streams.len()).filter(|at| self.streams[*at].source == Source::Retry).collect();
        let each = all.len().min(TOGETHER);
        let streams: Vec<usize> = (0..each).map(|at| all[(self.retry_turn + at) % all.len()]).collect();
        self.retry_turn = (self.retry_turn + each) % all.len().max(1);
        let count = self.pages.count((max / 4 / each.max(1)).max(1));
        asks.extend((!streams.is_empty()).then_some(StreamsRead { streams, count }));
        asks
    }

    /// Records in the plan how many entries each stream of a request returned.
    fn told(&mut self, ask: &StreamsRead, got: &[usize]) {
        if self.per_entry == 1 {
            return self.plan.told(ask, got);
        }
        let is_full =
            |(at, got): (&usize, &usize)| self.streams[*at].source == Source::Retry && *got >= ask.count;
        if ask.streams.iter().zip(got).any(is_full) {
            // There are more: the next read must not wait for one entry of any log.
            self.plan.forget();
        }
        let of_logs = ask.streams.iter().zip(got).filter(|(at, _)| self.streams[**at].source == Source::Log);
        let (streams, got): (Vec<usize>, Vec<usize>) = of_logs.map(|(at, got)| (at / 2, *got)).unzip();
        if !streams.is_empty() {
            self.plan.told(&StreamsRead { streams, count: ask.count }, &got);
        }
    }

    /// Reads new entries, after waiting up to `block`.
    pub(super) async fn new_entries(
        &mut self,
        mut asks: Vec<StreamsRead>,
        block: Option<Duration>,
    ) -> Result<Read> {
        for ask in &mut asks {
            // As if it had nothing.
            let (closed, open) = ask.streams.iter().partition(|at| self.streams[**at].unreadable);
            if !Vec::is_empty(&closed) {
                let closed = StreamsRead { streams: closed, count: ask.count };
                self.told(&closed, &vec![0; closed.streams.len()]);
                ask.streams = open;
            }
        }
        asks.retain(|ask| !ask.streams.is_empty());
        if asks.is_empty() {
            return Ok(Read::default());
        }
        let mut pipe = Pipeline::with_capacity(asks.len());
        for ask in &asks {
            pipe.cmd("XREADGROUP")
                .arg("GROUP")
                .arg(self.member.group.as_str())
                .arg(self.member.consumer.as_str());
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
        // The server may still hold a request after its connection is cut, and hand entries to it until then: one that
        // blocks, or any, if the server stands still.
        let timeout = self.inner.servers.response_timeout();
        self.taking = Some(Instant::now() + block.unwrap_or_default() + timeout);
        self.exchange(&pipe, block.unwrap_or_default()).await?;
        self.taking = None;
        self.looked = Instant::now();
        let socket = self.socket()?;
        let (mut replies, (bytes, took)) = (socket.replies(), socket.weight());
        let (mut came, mut entries) = (Vec::new(), 0);
        let mut gave = Vec::with_capacity(asks.len());
        for (ask, cmd) in asks.iter().zip(pipe.cmd_iter()) {
            let mut answer = replies.next()?;
            if matches!(answer.clone().head()?, Head::Error(_)) {
                return Err(self.refused(ask, answer.value()?, cmd));
            }
            let mut got = vec![0; ask.streams.len()];
            for (key, some) in answer.streams()? {
                let known = |at: &usize| key == self.streams[*at].key.as_str().as_bytes();
                let Some(slot) = ask.streams.iter().position(known) else { return Err(unasked(key)) };
                let at = ask.streams[slot];
                got[slot] = some.len();
                entries += some.len();
                came.push((at, page(self.streams[at].source, some, Vec::new(), Vec::new())));
            }
            gave.push(got);
        }
        asks.iter().zip(&gave).for_each(|(ask, got)| self.told(ask, got));
        self.pages.came(entries, bytes, took);
        let mut read = Read::default();
        for (at, mut page) in came {
            self.unpack(at, &mut page, false).await?;
            read.add_new(self.streams[at].partition, page);
        }
        Ok(read)
    }

    /// Builds the error for a reply that is a server error, with the key that it concerns, if a key can be determined.
    fn refused(&self, ask: &StreamsRead, answer: Value, cmd: &Cmd) -> Error {
        let mut named = Pipeline::new();
        named.add_command(cmd.clone());
        let mut answer = [answer];
        wrong_type::name_keys(&mut answer, &named);
        let [answer] = answer;
        let first = ask.streams.first().copied().unwrap_or_default();
        match reply::ok(answer) {
            Err(error) => self.on(first, error),
            Ok(_) => unexpected("an error that is none"),
        }
    }
}

/// Returns how many entries have come, and whether there are messages of packs among them.
fn came(read: &Read) -> (usize, bool) {
    let count = read.0.iter().map(|(_, fetched)| fetched.entries.len() + fetched.ghosts.len()).sum();
    let mut entries = read.0.iter().flat_map(|(_, fetched)| &fetched.entries);
    (count, entries.any(|entry| entry.receipt.pack.is_some()))
}
