//! Counts entries, and not messages, of many logs side by side, in steps that are too short to delay the server.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply::{self, Entries};
use crate::scripts::script;

/// Maximum number of entries in one step, since the server copies them.
pub(super) const PAGE: u64 = 200;
/// Approximate maximum of bytes that the server copies for one step.
const BYTES: u64 = 512 << 10;

/// A count under way.
pub(super) struct Walk {
    log: Key,
    /// First id of the next step; `None` at the end.
    from: Option<MessageId>,
    to: MessageId,
    /// Maximum number of entries to count.
    limit: u64,
    page: u64,
    pub(super) counted: u64,
    taken: u64,
}

/// Returns the id after `id`, if there is one.
pub(super) fn above(id: MessageId) -> Option<MessageId> {
    (id != MessageId::MAX).then(|| id.next())
}

impl Walk {
    /// Begins a count from `from` to `to`, both included; with `None` there is nothing to count.
    pub(super) fn new(log: Key, from: Option<MessageId>, to: MessageId, limit: u64) -> Self {
        let from = from.filter(|from| *from <= to && limit > 0);
        Self { log, from, to, limit, page: PAGE, counted: 0, taken: 0 }
    }

    /// Reduces the step where entries are large: of `bytes` altogether, for `length` entries.
    pub(super) fn with_entries_of(mut self, bytes: u64, Entries(length): Entries) -> Self {
        let each = bytes.checked_div(length).unwrap_or(0).max(1);
        self.page = (BYTES / each).clamp(1, PAGE);
        self
    }

    /// Returns whether everything was counted, or the limit is reached.
    pub(super) fn is_over(&self) -> bool {
        self.from.is_none() || self.counted >= self.limit
    }

    /// Returns whether everything was counted.
    pub(super) fn is_complete(&self) -> bool {
        self.from.is_none()
    }

    /// Returns the number of entries counted since the last call of this method.
    pub(super) fn take_counted(&mut self) -> u64 {
        self.counted - std::mem::replace(&mut self.taken, self.counted)
    }

    /// Returns the id up to which everything was counted.
    pub(super) fn up_to(&self) -> MessageId {
        self.from.map_or(self.to, MessageId::previous)
    }

    fn next_page(&self) -> u64 {
        self.page.min(self.limit - self.counted)
    }
}

impl Inner {
    /// Counts the entries of a log between two ids, both included, as far as `limit`.
    pub(crate) async fn entries_between(
        &self,
        log: &Key,
        from: Option<MessageId>,
        to: MessageId,
        limit: u64,
    ) -> Result<Entries> {
        let mut walk = Walk::new(log.clone(), from, to, limit);
        while !walk.is_over() {
            self.step([&mut walk]).await?;
        }
        Ok(Entries(walk.counted))
    }

    /// Makes one step of each unfinished count, all in one pipeline.
    pub(super) async fn step<'a>(&self, walks: impl IntoIterator<Item = &'a mut Walk>) -> Result<()> {
        let mut walks: Vec<_> = walks.into_iter().filter(|walk| !walk.is_over()).collect();
        let calls = walks.iter().filter_map(|walk| {
            let call = self.scripts.count.call([&walk.log]).arg(walk.from?.to_string());
            Some(call.arg(walk.to.to_string()).arg(walk.next_page()))
        });
        let answers = script::run(&self.pool, calls.collect()).await;
        for (walk, answer) in walks.iter_mut().zip(answers) {
            let [found, last] = reply::tuple(answer?)?;
            let found = u64::try_from(reply::int(found)?).unwrap_or(0);
            let full = found >= walk.next_page();
            walk.counted += found;
            walk.from = if full && found > 0 { above(reply::id(last)?) } else { None };
        }
        Ok(())
    }

    /// Returns the approximate size of each log in bytes; 0 where the server does not report it.
    pub(super) async fn bytes_of(&self, logs: &[Key]) -> Result<Vec<u64>> {
        let mut pipe = Pipeline::with_capacity(logs.len());
        for log in logs {
            pipe.cmd("MEMORY").arg("USAGE").arg(log.as_str()).arg("SAMPLES").arg(3);
        }
        let bytes = |answer: Value| reply::int(answer).ok().and_then(|bytes| u64::try_from(bytes).ok());
        Ok(self.pool.send(&pipe).await?.into_iter().map(|answer| bytes(answer).unwrap_or(0)).collect())
    }
}
