//! Snapshot of a log and its groups, of one moment: the answer of the script `look`.

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use redis::Value;

use crate::conn::replies::reply;

/// Snapshot of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The server's time.
    pub(crate) now: Timestamp,
    /// Whether the log exists.
    pub(crate) exists: bool,
    pub(crate) length: u64,
    pub(crate) first: Option<MessageId>,
    pub(crate) last: Option<MessageId>,
    /// Number of entries that ever left the log; `None` if the server does not know.
    pub(crate) removed: Option<u64>,
    /// Largest id of an entry that was deleted by itself and not trimmed from the beginning; `None` if the server does
    /// not know.
    pub(crate) deleted: Option<MessageId>,
    /// Identifies the server process and its data set: differs after a restart or a fail-over.
    pub(crate) server: Option<String>,
    pub(crate) groups: Vec<GroupLook>,
}

/// Snapshot of a group on the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupLook {
    pub(crate) name: Bytes,
    pub(crate) position: MessageId,
    pub(crate) pending: u64,
    /// Oldest pending entry that exists: a ghost is skipped, unless there were too many to skip in one call.
    pub(crate) oldest_pending: Option<MessageId>,
    pub(crate) first_unread: Option<MessageId>,
    /// The server's figure of the lag.
    pub(crate) lag: Option<u64>,
}

impl Look {
    pub(crate) fn group(&self, name: &str) -> Option<&GroupLook> {
        self.groups.iter().find(|group| group.name == name)
    }
}

impl GroupLook {
    /// Returns the id below which no entry is unread or pending: the script `trim` drops what is below it. The position may
    /// be below pending entries if the group was moved back.
    pub(crate) fn watermark(&self) -> MessageId {
        let unread = self.position.next();
        self.oldest_pending.map_or(unread, |oldest| oldest.min(unread))
    }

    /// Returns the oldest entry that is unread or pending.
    pub(crate) fn oldest(&self) -> Option<MessageId> {
        self.oldest_pending.into_iter().chain(self.first_unread).min()
    }
}

fn number(value: Value) -> Result<u64> {
    Ok(u64::try_from(reply::int(value)?).unwrap_or(0))
}

fn maybe<T>(value: Value, read: impl Fn(Value) -> Result<T>) -> Result<Option<T>> {
    if value == Value::Nil { Ok(None) } else { read(value).map(Some) }
}

/// Parsed answer of one call.
pub(crate) struct Answer {
    pub(crate) look: Look,
    /// Whether the script stopped before the last group.
    pub(crate) more: bool,
    /// Size in bytes of the bodies that the script copied.
    pub(crate) bytes: usize,
}

/// Parses the answer of one call.
pub(crate) fn read(answer: Value) -> Result<Answer> {
    let [now, length, first, last, removed, deleted, server, groups, more, bytes] = reply::tuple(answer)?;
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
        now: Timestamp::from_millis(number(now)?),
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
