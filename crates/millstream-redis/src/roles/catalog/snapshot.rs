//! Snapshots of logs and their groups, each of one moment: the answers of the script `look`.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::{Error, Result};
use millstream_core::id::MessageId;
use millstream_core::topic::TopicPartition;
use redis::Value;

use crate::backend::RedisBackend;
use crate::scripts::reply;
use crate::scripts::script;
use millstream_core::pages::{PageSizer, STEP_BYTES};

/// Number of partitions in the first request, since their entries may be large.
const FIRST: usize = 16;

/// Snapshot of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// The server's time, in milliseconds since 1970.
    pub(super) now_ms: u64,
    /// Whether the log exists.
    pub(super) exists: bool,
    pub(super) length: u64,
    pub(super) first: Option<MessageId>,
    pub(super) last: Option<MessageId>,
    /// Number of entries that ever left the log; `None` if the server does not know.
    pub(super) removed: Option<u64>,
    /// Largest id of an entry that was deleted by itself and not trimmed from the beginning; `None` if the server does
    /// not know.
    pub(super) deleted: Option<MessageId>,
    /// Identifies the server process and its data set: differs after a restart or a fail-over.
    pub(super) server: Option<String>,
    pub(super) groups: Vec<GroupLook>,
}

/// Snapshot of a group on the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupLook {
    pub(super) name: Bytes,
    pub(super) position: MessageId,
    pub(super) pending: u64,
    pub(super) oldest_pending: Option<MessageId>,
    pub(super) first_unread: Option<MessageId>,
    /// The server's figure of the lag.
    pub(super) lag: Option<u64>,
}

impl Look {
    pub(super) fn group(&self, name: &str) -> Option<&GroupLook> {
        self.groups.iter().find(|group| group.name == name)
    }
}

impl GroupLook {
    /// Returns the id below which nothing is unread or pending. The position may be below pending entries if the group
    /// was moved back.
    pub(super) fn watermark(&self) -> MessageId {
        let unread = self.position.next();
        self.oldest_pending.map_or(unread, |oldest| oldest.min(unread))
    }

    /// Returns the oldest entry that is unread or pending.
    pub(super) fn oldest(&self) -> Option<MessageId> {
        self.oldest_pending.into_iter().chain(self.first_unread).min()
    }
}

impl RedisBackend {
    /// Takes a snapshot of each of these partitions.
    pub(super) async fn look_at(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "").await
    }

    /// Takes the same snapshots, and identifies the server.
    pub(super) async fn look_and_ask_who(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "1").await
    }

    async fn look(&self, partitions: &[TopicPartition], who: &str) -> Result<Vec<Look>> {
        let (mut looks, mut rest) = (Vec::with_capacity(partitions.len()), partitions);
        // The script copies bodies to read ids. Where bodies are large, few partitions go into one request, since the
        // server works on a request without a break.
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

    /// Adds the groups that an answer left out.
    async fn look_on(&self, tp: &TopicPartition, look: &mut Look) -> Result<()> {
        loop {
            let after = look.groups.last().map(|group| group.name.clone()).unwrap_or_default();
            let Some(Answer { look: next, more, .. }) =
                self.look_once(std::slice::from_ref(tp), "", &after).await?.pop()
            else {
                return Ok(());
            };
            // The log or groups may have been deleted meanwhile.
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

/// Parsed answer of one call.
struct Answer {
    look: Look,
    /// Whether the script stopped before the last group.
    more: bool,
    /// Size in bytes of the bodies that the script copied.
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
