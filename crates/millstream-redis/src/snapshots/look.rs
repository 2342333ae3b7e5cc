//! Snapshot of a log and its groups, with what else groups have, of one moment: the answer of the script `look`.

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::schedule::Waiting;
use redis::Value;

use crate::conn::replies::reply::{self, Entries, maybe};
use crate::error::{answered, unexpected};

/// Snapshot of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The server's time.
    pub(crate) now: Timestamp,
    /// Whether the log exists.
    pub(crate) exists: bool,
    pub(crate) length: Entries,
    pub(crate) first: Option<MessageId>,
    pub(crate) last: Option<MessageId>,
    /// Number of entries that ever left the log; `None` if the server does not know.
    pub(crate) removed: Option<u64>,
    /// Largest id of an entry that was deleted by itself and not trimmed from the beginning; `None` if the server does
    /// not know.
    pub(crate) deleted: Option<MessageId>,
    /// Identifies the server process and its data set: differs after a restart or a fail-over.
    pub(crate) server: Option<String>,
    /// Messages beyond one an entry in the log, if groups were named.
    pub(crate) more: u64,
    /// The same of all that were ever in it.
    pub(crate) more_ever: u64,
    /// Id of the first message, if groups were named; `first` is that of the first entry, which may be a pack.
    pub(crate) first_message: Option<MessageId>,
    pub(crate) groups: Vec<GroupLook>,
}

/// Snapshot of a group on the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupLook {
    pub(crate) name: Bytes,
    pub(crate) position: MessageId,
    pub(crate) pending: Entries,
    /// Oldest pending entry that exists: a ghost is skipped, unless there were too many to skip in one call.
    pub(crate) oldest_pending: Option<MessageId>,
    pub(crate) first_unread: Option<MessageId>,
    /// The server's figure of the lag, in entries.
    pub(crate) lag: Option<u64>,
    /// Messages beyond one an entry that the group has not read.
    pub(crate) more_unread: u64,
    /// The same of those that are pending.
    pub(crate) more_pending: u64,
}

impl Look {
    pub(crate) fn group(&self, name: &str) -> Option<&GroupLook> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Returns the same snapshot with this group only.
    pub(crate) fn of_group(&self, name: &str) -> Self {
        let groups = self.group(name).cloned().into_iter().collect();
        let Self {
            now,
            exists,
            length,
            first,
            last,
            removed,
            deleted,
            server,
            more,
            more_ever,
            first_message,
            groups: _,
        } = self;
        let (now, exists, length, removed) = (*now, *exists, *length, *removed);
        let (first, last, deleted, server) = (*first, *last, *deleted, server.clone());
        let (more, more_ever, first_message) = (*more, *more_ever, *first_message);
        Self {
            now,
            exists,
            length,
            first,
            last,
            removed,
            deleted,
            server,
            more,
            more_ever,
            first_message,
            groups,
        }
    }
}

impl GroupLook {
    #[cfg(feature = "admin")]
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

/// What a group has beside its place on the log, read in the same moment as that.
#[derive(Clone, Debug)]
pub(crate) struct LookRest {
    /// Number of entries of its retry log.
    pub(crate) retry_length: Result<u64>,
    /// Number of those that are pending; `None` if the group is not on the retry log.
    pub(crate) retry_pending: Option<u64>,
    /// Number of parked retries.
    pub(crate) parked: Result<u64>,
    /// Number of dead letters.
    pub(crate) dead: Result<u64>,
    /// Origin of the first entry of the retry log.
    pub(crate) next_up: Option<MessageId>,
    /// Origin of the parked retry that is due next, and when.
    pub(crate) sleeps: Option<(MessageId, Timestamp)>,
}

/// Keys of a group that [`LookRest`] comes from.
pub(crate) struct RestKeys {
    pub(crate) retry_log: Key,
    pub(crate) retry_due: Key,
    pub(crate) retry_items: Key,
    pub(crate) dead_letters: Key,
    pub(crate) settled: Key,
}

impl RestKeys {
    pub(crate) fn row(&self) -> [Key; 5] {
        let Self { retry_log, retry_due, retry_items, dead_letters, settled } = self;
        [retry_log, retry_due, retry_items, dead_letters, settled].map(Clone::clone)
    }
}

/// A snapshot with everything else of the groups that were named. Where they were too many for one call, each call has a
/// snapshot of its own, with the groups that it returned.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// The index of the first group of each call, with the log and those of the call's groups that are on it. An error if the
    /// key has another type. At least one.
    calls: Vec<(usize, Result<Look>)>,
    /// Whether the log may have groups that were not named, or that another call returned.
    more: bool,
    #[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "it is part of what is read together"))]
    pub(crate) waiting: Result<Waiting>,
    /// Of each named group, in their order.
    pub(crate) rest: Vec<LookRest>,
}

impl Standing {
    fn new(look: Result<Look>, more: bool, waiting: Result<Waiting>, rest: Vec<LookRest>) -> Self {
        Self { calls: vec![(0, look)], more, waiting, rest }
    }

    #[cfg(any(test, feature = "admin"))]
    /// Returns the log, as the first call found it.
    pub(crate) fn log(&self) -> std::result::Result<&Look, &Error> {
        self.calls[0].1.as_ref()
    }

    #[cfg(feature = "admin")]
    /// Returns the log with all groups that it has; `None` if the call did not return all.
    pub(crate) fn whole(&self) -> Option<std::result::Result<&Look, &Error>> {
        (!self.more).then(|| self.log())
    }

    #[cfg(feature = "admin")]
    /// Returns whether the log has groups that were not named.
    pub(crate) fn has_others(&self) -> bool {
        self.more
    }

    /// Returns the log with this group only, of the moment at which the group was read. `at` is its index among those that were
    /// named.
    pub(crate) fn of_group(&self, at: usize, name: &str) -> Result<Look> {
        let call = self.calls.iter().rev().find(|(from, _)| *from <= at).unwrap_or(&self.calls[0]);
        call.1.as_ref().map(|look| look.of_group(name)).map_err(Clone::clone)
    }

    #[cfg(feature = "admin")]
    /// Returns the snapshots of all calls.
    pub(crate) fn looks(&mut self) -> impl Iterator<Item = &mut Look> {
        self.calls.iter_mut().flat_map(|(_, look)| look)
    }

    /// Adds what a later call returned for further groups.
    pub(crate) fn add(&mut self, further: Self) {
        let from = self.rest.len();
        self.more = true;
        self.calls.extend(further.calls.into_iter().map(|(_, look)| (from, look)));
        self.rest.extend(further.rest);
    }
}

fn number(value: Value) -> Result<u64> {
    Ok(u64::try_from(reply::int(value)?).unwrap_or(0))
}

/// Parses the number of what is at a key: the outer error is that of an answer without sense.
fn at_key(value: Value, key: &Key) -> Result<Result<u64>> {
    let number = reply::int(value)?;
    Ok(u64::try_from(number).map_err(|_| another_type(key)))
}

fn another_type(key: &Key) -> Error {
    Error::new(ErrorKind::WrongType, format!("a key has the wrong type: {key}"))
}

/// Parsed answer of one call.
pub(crate) struct LookAnswer {
    pub(crate) look: Look,
    /// Whether the script stopped before the last group.
    pub(crate) more: bool,
    /// Size in bytes of the bodies that the script copied.
    pub(crate) bytes: usize,
}

/// Parses the answer of a call that names no groups.
pub(crate) fn read(answer: Value) -> Result<LookAnswer> {
    let [_, _, _, _, _, _, _, _, _, more, bytes, _, _] = parts(&answer)?;
    let (more, bytes) = (reply::int(more.clone())? == 1, reply::count(bytes.clone())?);
    let Some(look) = log(answer)? else { return Err(unexpected("a log of another type")) };
    Ok(LookAnswer { look, more, bytes })
}

/// Parses the answer of a call that names groups, up to the one at which the script stopped. Returns it with the size in bytes
/// of the bodies that the script copied.
pub(crate) fn read_with_rest(
    answer: Value,
    log_key: &Key,
    delay: &Key,
    groups: &[RestKeys],
) -> Result<(Standing, usize)> {
    let [_, _, _, _, _, _, _, _, _, more, bytes, waiting, rest] = parts(&answer)?;
    let more = reply::int(more.clone())? == 1;
    let (bytes, [total, overdue, more_here, more_ever, first_message, first_due]) =
        (reply::count(bytes.clone())?, reply::tuple(waiting.clone())?);
    let (overdue, first) = (number(overdue)?, maybe(first_due, reply::score)?);
    let waiting = at_key(total, delay)?.map(|total| Waiting { total, overdue, first });
    let rest = reply::array(rest.clone())?.into_iter().zip(groups).map(|(of_group, keys)| {
        let [retry_length, retry_pending, parked, dead, next_up, origin, due] = reply::tuple(of_group)?;
        // Another program may have put something else there, which has no age.
        let origin = maybe(origin, reply::id).ok().flatten();
        Ok(LookRest {
            next_up: maybe(next_up, reply::id).ok().flatten(),
            sleeps: origin.zip(maybe(due, reply::score)?),
            retry_length: at_key(retry_length, &keys.retry_log)?,
            retry_pending: maybe(retry_pending, number)?,
            parked: at_key(parked, &keys.retry_due)?,
            dead: at_key(dead, &keys.dead_letters)?,
        })
    });
    let rest = rest.collect::<Result<_>>()?;
    let look = log(answer)?.ok_or_else(|| another_type(log_key));
    let (more_here, more_ever) = (number(more_here)?, number(more_ever)?);
    let first_message = maybe(first_message, reply::id)?;
    let look = look.map(|look| Look { more: more_here, more_ever, first_message, ..look });
    Ok((Standing::new(look, more, waiting, rest), bytes))
}

fn parts(answer: &Value) -> Result<&[Value; 13]> {
    match answer {
        Value::Array(parts) => {
            parts.as_slice().try_into().map_err(|_| unexpected("a snapshot of another form"))
        }
        Value::ServerError(error) => Err(answered(error.clone())),
        _ => Err(unexpected("no snapshot")),
    }
}

/// Returns the log of an answer; `None` if its key has another type.
fn log(answer: Value) -> Result<Option<Look>> {
    let [now, exists, length, first, last, removed, deleted, server, groups, ..]: [Value; 13] =
        reply::tuple(answer)?;
    let exists = reply::int(exists)?;
    if exists < 0 {
        return Ok(None);
    }
    let groups = reply::array(groups)?.into_iter().map(|group| {
        let [name, position, pending, oldest_pending, first_unread, lag, more_unread, more_pending] =
            reply::tuple(group)?;
        Ok(GroupLook {
            name: reply::bytes(name)?,
            position: reply::id(position)?,
            pending: Entries(number(pending)?),
            oldest_pending: maybe(oldest_pending, reply::id)?,
            first_unread: maybe(first_unread, reply::id)?,
            lag: maybe(lag, number)?,
            more_unread: number(more_unread)?,
            more_pending: number(more_pending)?,
        })
    });
    Ok(Some(Look {
        now: Timestamp::from_millis(number(now)?),
        exists: exists > 0,
        length: Entries(maybe(length, number)?.unwrap_or(0)),
        first: maybe(first, reply::id)?,
        last: maybe(last, reply::id)?,
        removed: maybe(removed, number)?,
        deleted: maybe(deleted, reply::id)?,
        server: maybe(server, reply::text)?,
        more: 0,
        more_ever: 0,
        first_message: None,
        groups: groups.collect::<Result<_>>()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_log_of_the_call_that_returned_it() {
        let look = |ms, name: &'static str| {
            let group = GroupLook { name: Bytes::from_static(name.as_bytes()), ..GroupLook::default() };
            Look { now: Timestamp::from_millis(ms), exists: true, groups: vec![group], ..Look::default() }
        };
        let rest = |_| LookRest {
            retry_length: Ok(0),
            retry_pending: None,
            parked: Ok(0),
            dead: Ok(0),
            next_up: None,
            sleeps: None,
        };
        let mut standing =
            Standing::new(Ok(look(1, "a")), false, Ok(Waiting::default()), (0..2).map(rest).collect());
        standing.add(Standing::new(
            Ok(look(2, "c")),
            false,
            Ok(Waiting::default()),
            (0..2).map(rest).collect(),
        ));
        standing.add(Standing::new(Err(another_type(&key())), false, Ok(Waiting::default()), vec![rest(0)]));
        let of = |at, name| standing.of_group(at, name).map(|look| (look.now.as_millis(), look.groups.len()));
        assert_eq!(of(0, "a").expect("read"), (1, 1));
        assert_eq!(of(1, "b").expect("read"), (1, 0), "not on the log");
        assert_eq!(of(2, "c").expect("read"), (2, 1));
        assert_eq!(of(3, "d").expect("read"), (2, 0));
        assert!(of(4, "e").is_err(), "it was replaced meanwhile");
        assert_eq!((standing.rest.len(), standing.log().expect("the first").now.as_millis()), (5, 1));
    }

    fn key() -> Key {
        millstream_core::keys::Keys::new().topics()
    }
}
