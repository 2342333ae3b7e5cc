//! Counts entries, in steps that a server does not notice, for many logs side by side.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::connection::Line;
use crate::{reply, script};

/// The most entries that one step looks at: the server copies them.
pub(super) const PAGE: u64 = 200;
/// About how many bytes it may copy for one step.
const BYTES: u64 = 512 << 10;

/// A count under way.
pub(super) struct Walk {
    log: Key,
    /// Where to go on; `None` at the end.
    from: Option<MessageId>,
    to: MessageId,
    /// How many at most.
    limit: u64,
    page: u64,
    pub(super) counted: u64,
    taken: u64,
}

/// The id after `id`, if there can be one.
pub(super) fn above(id: MessageId) -> Option<MessageId> {
    (id != MessageId::MAX).then(|| id.next())
}

impl Walk {
    /// From `from` to `to`, both included; with `None` there is nothing to count.
    pub(super) fn new(log: Key, from: Option<MessageId>, to: MessageId, limit: u64) -> Self {
        let from = from.filter(|from| *from <= to && limit > 0);
        Self { log, from, to, limit, page: PAGE, counted: 0, taken: 0 }
    }

    /// Takes smaller steps where entries are large: of `bytes` altogether, for `length` entries.
    pub(super) fn with_entries_of(mut self, bytes: u64, length: u64) -> Self {
        let each = bytes.checked_div(length).unwrap_or(0).max(1);
        self.page = (BYTES / each).clamp(1, PAGE);
        self
    }

    /// Whether everything was counted, or as much as was wanted.
    pub(super) fn is_over(&self) -> bool {
        self.from.is_none() || self.counted >= self.limit
    }

    /// Whether everything was counted.
    pub(super) fn is_complete(&self) -> bool {
        self.from.is_none()
    }

    /// What was counted since this was asked last.
    pub(super) fn take_counted(&mut self) -> u64 {
        self.counted - std::mem::replace(&mut self.taken, self.counted)
    }

    /// Everything up to this id was counted.
    pub(super) fn up_to(&self) -> MessageId {
        self.from.map_or(self.to, MessageId::previous)
    }

    fn next_page(&self) -> u64 {
        self.page.min(self.limit - self.counted)
    }
}

impl Inner {
    /// One step of each count that is not over, in one pipeline.
    pub(super) async fn step<'a>(&self, walks: impl IntoIterator<Item = &'a mut Walk>) -> Result<()> {
        let mut walks: Vec<_> = walks.into_iter().filter(|walk| !walk.is_over()).collect();
        let calls = walks.iter().filter_map(|walk| {
            let call = self.scripts.count.call([&walk.log]).arg(walk.from?.to_string());
            Some(call.arg(walk.to.to_string()).arg(walk.next_page()))
        });
        let answers = script::run(&self.pool, calls.collect()).await?;
        for (walk, answer) in walks.iter_mut().zip(answers) {
            let [found, last] = reply::tuple(answer?)?;
            let found = u64::try_from(reply::int(found)?).unwrap_or(0);
            let full = found >= walk.next_page();
            walk.counted += found;
            walk.from = if full && found > 0 { above(reply::id(last)?) } else { None };
        }
        Ok(())
    }

    /// About how many bytes each log takes; 0 where the server does not say.
    pub(super) async fn bytes_of(&self, logs: &[Key]) -> Result<Vec<u64>> {
        let mut pipe = Pipeline::with_capacity(logs.len());
        for log in logs {
            pipe.cmd("MEMORY").arg("USAGE").arg(log.as_str()).arg("SAMPLES").arg(3);
        }
        let bytes = |answer: Value| reply::int(answer).ok().and_then(|bytes| u64::try_from(bytes).ok());
        Ok(self.pool.send(&pipe).await?.into_iter().map(|answer| bytes(answer).unwrap_or(0)).collect())
    }
}
