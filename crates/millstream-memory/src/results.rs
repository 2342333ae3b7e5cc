//! Results of the messages of a partition, or the tasks of a shard, which expire by themselves.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::batches::MemberEnd;
use millstream_core::progress::{MAX_LINES, ProgressLine, ProgressReport};
use millstream_core::results::{MessageResult, StoredResult};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout_at};

use crate::batches::BatchNotes;
use crate::clock::Now;

/// Number of results below which none is removed before it is looked up.
const FEW: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    all: HashMap<u128, (MessageResult, Now)>,
    /// Lines of progress, under the same numbers.
    progress: HashMap<u128, (VecDeque<ProgressLine>, Now)>,
    /// Members of batches that have ended, and batches that somebody waits for.
    pub(crate) notes: BatchNotes,
    /// Number of results at which those that have expired are removed next.
    full: usize,
    /// Notified when one is stored.
    stored: Arc<Notify>,
}

/// Waits for a result or for progress; `look` is called at once, and whenever something was stored.
pub(crate) async fn within<T>(wait: Duration, look: impl Fn() -> Result<T, OwnedNotified>) -> Option<T> {
    // A time that the clock cannot reach is as good as for ever.
    let until = Instant::now() + wait.min(Duration::from_secs(100 * 365 * 24 * 3_600));
    loop {
        match look() {
            Ok(result) => return Some(result),
            Err(_) if wait.is_zero() => return None,
            Err(notice) => timeout_at(until, notice).await.ok()?,
        }
    }
}

impl Results {
    /// Returns a result, or what tells that one was stored: begun under the same lock, it misses none.
    pub(crate) fn look(&self, number: u128, now: Now) -> Result<MessageResult, OwnedNotified> {
        self.get(number, now).cloned().ok_or_else(|| self.stored.clone().notified_owned())
    }

    fn get(&self, number: u128, now: Now) -> Option<&MessageResult> {
        self.all.get(&number).filter(|(_, expires)| *expires > now).map(|(result, _)| result)
    }

    /// Stores a note for a batch, and a result unless the one that is there stays.
    pub(crate) fn put(&mut self, StoredResult { demand, result }: &StoredResult, now: Now) {
        if let Some(member) = &demand.member {
            self.notes.add(member, MemberEnd::of(result), Some(result), now);
        }
        let Some(request) = demand.result else { return };
        if self.get(request.number, now).is_some_and(|earlier| !result.replaces(earlier)) {
            return;
        }
        self.expire(now);
        self.all.insert(request.number, (result.clone(), now.plus(request.keep)));
        self.stored.notify_waiters();
    }

    /// Removes what has expired, if there is much.
    fn expire(&mut self, now: Now) {
        if self.all.len() + self.progress.len() >= self.full.max(FEW) {
            self.all.retain(|_, (_, expires)| *expires > now);
            self.progress.retain(|_, (_, expires)| *expires > now);
            // Twice what is left, so that the cost of a removal is spread over as many insertions.
            self.full = 2 * (self.all.len() + self.progress.len());
        }
    }

    /// Returns the lines above a number, or what tells that something was stored.
    pub(crate) fn lines(
        &self,
        number: u128,
        above: u64,
        now: Now,
    ) -> Result<Vec<ProgressLine>, OwnedNotified> {
        let lines = self.progress.get(&number).filter(|(_, expires)| *expires > now).map(|(lines, _)| lines);
        let last = lines.and_then(VecDeque::back).map_or(0, |line| line.number);
        let above = if last < above { 0 } else { above };
        let lines: Vec<_> = lines.into_iter().flatten().filter(|line| line.number > above).cloned().collect();
        if lines.is_empty() { Err(self.stored.clone().notified_owned()) } else { Ok(lines) }
    }

    /// Stores lines.
    pub(crate) fn report(&mut self, report: &ProgressReport, now: Now) {
        if report.lines.is_empty() {
            return;
        }
        self.expire(now);
        let number = report.request.number;
        let (lines, expires) = self.progress.entry(number).or_insert_with(|| (VecDeque::new(), Now::NEVER));
        if *expires <= now {
            lines.clear();
        }
        *expires = now.plus(report.request.keep);
        for line in &report.lines {
            let number = lines.back().map_or(0, |last| last.number) + 1;
            lines.retain(|before| !line.replaces(before));
            lines.push_back(ProgressLine::new(number, now.timestamp(), report.attempt, line.clone()));
            let mut texts = lines.iter().enumerate().filter(|(_, line)| !line.text.is_empty());
            if let Some((oldest, _)) = texts.next()
                && texts.count() >= MAX_LINES
            {
                lines.remove(oldest);
            }
        }
        self.stored.notify_waiters();
    }
}
