//! The exact lag: what the server says where that can be believed, else what is counted, else nothing.
//!
//! A server keeps a count of what a group has read, and it goes wrong on some: a read behind deleted or trimmed entries
//! counts one where it passed many. `docs/protocol.md` has the table of what was found on which server.

use millstream_core::error::Result;
use millstream_core::keys::Key;
use millstream_core::topic::TopicPartition;

use super::look::{GroupLook, Look};
use super::walk::{Walk, above};
use crate::backend::RedisBackend;

/// How many entries are counted of one partition at most, half of them on each side of the group.
pub(super) const BUDGET: u64 = 20_000;

/// What is known of a lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lag {
    Exact(u64),
    AtLeast(u64),
}

/// What the server says of the lag of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Right, or nothing.
    Always,
    /// Right, or nothing, as long as no entry ever left the log.
    WhileNothingLeft,
    Never,
}

impl Trust {
    /// By what `INFO server` says. Found out on Redis 7.0.15, 8.0.2 and 8.6.3, Valkey 8.0.1 and 9.1.2.
    pub(super) fn of(info: &str) -> Self {
        let version = info.lines().find_map(|line| line.trim().strip_prefix("redis_version:"));
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        // Valkey says 7.2.4 for as long as it is compatible with that, and has kept the fault.
        let valkey = info.contains("valkey_version:");
        match major {
            Some(8..) if !valkey => Self::Always,
            Some(7..) => Self::WhileNothingLeft,
            _ => Self::Never,
        }
    }
}

/// The lag, if it can be told without counting.
pub(super) fn at_once(look: &Look, group: &GroupLook, trust: Trust) -> Option<u64> {
    let Some(unread) = group.first_unread else { return Some(0) };
    if look.first == Some(unread) {
        return Some(look.length);
    }
    match trust {
        Trust::Always => group.lag,
        Trust::WhileNothingLeft => group.lag.filter(|_| look.removed == Some(0)),
        Trust::Never => None,
    }
}

/// A lag that is being counted: entries that the group has passed, and those that it has not.
struct Count {
    /// Which of the partitions.
    at: usize,
    look: Look,
    passed: Walk,
    unread: Walk,
}

impl Count {
    fn is_over(&self) -> bool {
        let exhausted = self.passed.is_over() && self.unread.is_over();
        exhausted || self.passed.is_complete() || self.unread.is_complete()
    }
}

impl RedisBackend {
    /// The lag of one group on each of these partitions, as they were looked at; nothing where it is not there.
    pub(super) async fn lags(
        &self,
        partitions: &[TopicPartition],
        looks: &[Look],
        group: &str,
        trust: Trust,
    ) -> Result<Vec<Option<Lag>>> {
        let mut lags = Vec::with_capacity(looks.len());
        let mut open = Vec::new();
        for (at, look) in looks.iter().enumerate() {
            let Some(group) = look.group(group) else {
                lags.push(None);
                continue;
            };
            let lag = at_once(look, group, trust);
            lags.push(Some(lag.map_or(Lag::AtLeast(1), Lag::Exact)));
            if lag.is_none() {
                open.push((at, group.position));
            }
        }
        if open.is_empty() {
            return Ok(lags);
        }
        let logs: Vec<Key> = open.iter().map(|(at, _)| self.inner.keys.log(&partitions[*at])).collect();
        let bytes = self.inner.bytes_of(&logs).await?;
        let counts = open.into_iter().zip(logs).zip(bytes).map(|(((at, position), log), bytes)| {
            let look = looks[at].clone();
            let walk =
                |from, to| Walk::new(log.clone(), from, to, BUDGET / 2).with_entries_of(bytes, look.length);
            // What is appended from now on does not count.
            let last = look.last.unwrap_or(position);
            let (passed, unread) = (walk(look.first, position), walk(above(position), last));
            Count { at, look, passed, unread }
        });
        let mut counts: Vec<Count> = counts.collect();
        while counts.iter().any(|count| !count.is_over()) {
            let running = counts.iter_mut().filter(|count| !count.is_over());
            self.inner.step(running.flat_map(|count| [&mut count.passed, &mut count.unread])).await?;
        }

        let again: Vec<_> = counts.iter().map(|count| partitions[count.at].clone()).collect();
        for (count, now) in counts.iter().zip(self.look_at(&again).await?) {
            let unread = count.unread.counted;
            // Nothing may have left the log meanwhile, or the length does not belong to what was counted.
            let same = (now.first, now.removed) == (count.look.first, count.look.removed);
            lags[count.at] = Some(if count.unread.is_complete() {
                Lag::Exact(unread)
            } else if count.passed.is_complete() && same {
                Lag::Exact(count.look.length.saturating_sub(count.passed.counted))
            } else {
                Lag::AtLeast(unread.max(1))
            });
        }
        Ok(lags)
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::id::MessageId;

    use super::*;

    #[test]
    fn only_servers_that_keep_count_are_believed() {
        let redis =
            |version: &str| format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n");
        for (info, trust) in [
            (redis("6.2.14"), Trust::Never),
            (redis("7.0.15"), Trust::WhileNothingLeft),
            (redis("7.4.1"), Trust::WhileNothingLeft),
            (redis("8.0.2"), Trust::Always),
            (redis("8.6.3"), Trust::Always),
            (redis("10.0.0"), Trust::Always),
            (redis("7.2.4") + "server_name:valkey\r\nvalkey_version:9.1.2\r\n", Trust::WhileNothingLeft),
            (redis("8.0.0") + "valkey_version:12.0.0\r\n", Trust::WhileNothingLeft),
            (String::new(), Trust::Never),
        ] {
            assert_eq!(Trust::of(&info), trust, "{info}");
        }
    }

    #[test]
    fn both_ends_of_a_log_need_no_count() {
        let id = |ms| Some(MessageId::new(ms, 0));
        let look = Look { length: 9, first: id(2), last: id(10), removed: Some(1), ..Look::default() };
        let group = |first_unread, lag| GroupLook { first_unread, lag, ..GroupLook::default() };
        for trust in [Trust::Always, Trust::WhileNothingLeft, Trust::Never] {
            assert_eq!(at_once(&look, &group(None, Some(7)), trust), Some(0), "everything is read");
            assert_eq!(at_once(&look, &group(id(2), Some(7)), trust), Some(9), "nothing is read");
        }
        let inside = group(id(5), Some(7));
        let whole = Look { removed: Some(0), ..look.clone() };
        let old = Look { removed: None, ..look.clone() };
        assert_eq!(at_once(&look, &inside, Trust::Always), Some(7));
        assert_eq!(at_once(&look, &group(id(5), None), Trust::Always), None);
        assert_eq!(at_once(&look, &inside, Trust::WhileNothingLeft), None);
        assert_eq!(at_once(&whole, &inside, Trust::WhileNothingLeft), Some(7));
        assert_eq!(at_once(&old, &inside, Trust::WhileNothingLeft), None);
        assert_eq!(at_once(&whole, &inside, Trust::Never), None);
    }
}
