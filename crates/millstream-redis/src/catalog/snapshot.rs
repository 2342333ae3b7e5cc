//! How logs and their groups stand, each at one moment: what the script `look` answers.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::{Error, Result};
use millstream_core::id::MessageId;
use millstream_core::topic::TopicPartition;
use redis::Value;

use crate::backend::RedisBackend;
use crate::{reply, script};
use millstream_core::pages::{PageSizer, STEP_BYTES};

/// How many partitions are looked at in the first request: their entries may be large.
const FIRST: usize = 16;

/// How a log stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// The server's time, in milliseconds since 1970.
    pub(super) now_ms: u64,
    /// Whether there is a log at all.
    pub(super) exists: bool,
    pub(super) length: u64,
    pub(super) first: Option<MessageId>,
    pub(super) last: Option<MessageId>,
    /// How many entries ever left it; `None` if the server does not know.
    pub(super) removed: Option<u64>,
    /// The largest id of an entry that somebody deleted by itself, and not from the beginning; `None` if the server does
    /// not know.
    pub(super) deleted: Option<MessageId>,
    /// Which process it is, and whose data it has: another one after a restart or a fail-over.
    pub(super) server: Option<String>,
    pub(super) groups: Vec<GroupLook>,
}

/// How a group stands in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupLook {
    pub(super) name: Bytes,
    pub(super) position: MessageId,
    pub(super) pending: u64,
    pub(super) oldest_pending: Option<MessageId>,
    pub(super) first_unread: Option<MessageId>,
    /// What the server takes for the lag.
    pub(super) lag: Option<u64>,
}

impl Look {
    pub(super) fn group(&self, name: &str) -> Option<&GroupLook> {
        self.groups.iter().find(|group| group.name == name)
    }
}

impl GroupLook {
    /// Below this nothing is unread or pending. The position may stand before what is pending, where somebody set it back.
    pub(super) fn watermark(&self) -> MessageId {
        let unread = self.position.next();
        self.oldest_pending.map_or(unread, |oldest| oldest.min(unread))
    }

    /// The oldest entry that is unread or pending.
    pub(super) fn oldest(&self) -> Option<MessageId> {
        self.oldest_pending.into_iter().chain(self.first_unread).min()
    }
}

impl RedisBackend {
    /// Looks at each of these partitions, in one pipeline.
    pub(super) async fn look_at(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "").await
    }

    /// The same, and at which server that was.
    pub(super) async fn look_and_ask_who(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "1").await
    }

    async fn look(&self, partitions: &[TopicPartition], who: &str) -> Result<Vec<Look>> {
        let (mut looks, mut rest) = (Vec::with_capacity(partitions.len()), partitions);
        // Ids come with bodies, which a script copies. Where they are large few partitions are looked at in one request,
        // since the server works on all of it without a break.
        let mut pages = PageSizer::new(STEP_BYTES, FIRST);
        while !rest.is_empty() {
            let (some, later) = rest.split_at(pages.count(rest.len()));
            let answers = self.look_once(some, who, "").await?;
            let mut copied = 0;
            for (Answer { mut look, more, bytes }, tp) in answers.into_iter().zip(some) {
                if more {
                    self.look_on(tp, &mut look).await?;
                }
                looks.push(look);
                copied += bytes;
            }
            pages.came(some.len(), copied, Duration::ZERO);
            rest = later;
        }
        Ok(looks)
    }

    /// The groups that an answer has left out.
    async fn look_on(&self, tp: &TopicPartition, look: &mut Look) -> Result<()> {
        loop {
            let after = look.groups.last().map(|group| group.name.clone()).unwrap_or_default();
            let Some(Answer { look: next, more, .. }) =
                self.look_once(std::slice::from_ref(tp), "", &after).await?.pop()
            else {
                return Ok(());
            };
            // A log or groups that went away meanwhile.
            let over = !more || next.groups.is_empty();
            look.groups.extend(next.groups);
            if over {
                return Ok(());
            }
        }
    }

    async fn look_once(
        &self,
        partitions: &[TopicPartition],
        who: &str,
        after: impl AsRef<[u8]>,
    ) -> Result<Vec<Answer>> {
        let calls = partitions.iter().map(|tp| {
            let log = self.inner.keys.log(tp);
            self.inner.scripts.look.call([&log]).arg(who).arg(after.as_ref())
        });
        let answers = script::run(&self.inner.pool, calls.collect()).await?;
        let looks = answers.into_iter().zip(partitions).map(|(answer, tp)| {
            answer.and_then(read).map_err(|error: Error| error.during(format_args!("look at {tp}")))
        });
        looks.collect()
    }
}

fn number(value: Value) -> Result<u64> {
    Ok(u64::try_from(reply::int(value)?).unwrap_or(0))
}

fn maybe<T>(value: Value, read: impl Fn(Value) -> Result<T>) -> Result<Option<T>> {
    if value == Value::Nil { Ok(None) } else { read(value).map(Some) }
}

/// What one call says.
struct Answer {
    look: Look,
    /// It stopped before the last group.
    more: bool,
    /// Bytes of bodies that it copied.
    bytes: usize,
}

fn read(answer: Value) -> Result<Answer> {
    let [now_ms, length, first, last, removed, deleted, server, groups, more, bytes] = reply::tuple(answer)?;
    let groups = reply::array(groups)?.into_iter().map(|group| {
        let [name, position, pending, oldest_pending, first_unread, lag] = reply::tuple(group)?;
        Ok(GroupLook {
            name: reply::bytes(name)?,
            position: reply::id(position)?,
            pending: number(pending)?,
            oldest_pending: maybe(oldest_pending, reply::id)?,
            first_unread: maybe(first_unread, reply::id)?,
            lag: maybe(lag, number)?,
        })
    });
    let look = Look {
        now_ms: number(now_ms)?,
        exists: length != Value::Nil,
        length: maybe(length, number)?.unwrap_or(0),
        first: maybe(first, reply::id)?,
        last: maybe(last, reply::id)?,
        removed: maybe(removed, number)?,
        deleted: maybe(deleted, reply::id)?,
        server: maybe(server, reply::text)?,
        groups: groups.collect::<Result<_>>()?,
    };
    Ok(Answer { look, more: reply::int(more)? == 1, bytes: reply::count(bytes)? })
}
