//! The exact lag: the server's figure where it can be trusted, otherwise a count, otherwise nothing.
//!
//! A server keeps a count of the entries that a group has read. On some servers a read behind deleted or trimmed
//! entries makes it wrong: it counts one where it passed many. `docs/protocol.md` lists servers and findings.
//! A figure that was right once stays right as long as nothing happens that could make it wrong (`lag_cache.rs`). A
//! count that is too long for one call continues in the next. A count that was disturbed by trimming is repeated.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;

use super::count_range::{Walk, above};
use super::snapshot::Ask;
use crate::backend::RedisBackend;
use crate::conn::replies::reply::Entries;
use crate::snapshots::lag_cache::{Proof, Tally};
use crate::snapshots::look::{GroupLook, Look};

/// Result for one lag: the messages in packs are added by who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lag {
    Exact(Entries),
    AtLeast(Entries),
}

/// Trust in the lag of groups that the server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The figure is right or missing.
    Always,
    /// The figure is right or missing as long as no entry ever left the log.
    WhileNothingLeft,
    Never,
}

impl Trust {
    /// Derives the trust from `INFO server`. Tested on Redis 7.0.15, 8.0.2 and 8.6.3, Valkey 8.0.1 and 9.1.2.
    pub(super) fn of(info: &str) -> Self {
        let version = info.lines().find_map(|line| line.trim().strip_prefix("redis_version:"));
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        // Valkey reports the Redis version 7.2.4 as long as it is compatible with it, and still has the fault.
        let valkey = info.contains("valkey_version:");
        match major {
            Some(8..) if !valkey => Self::Always,
            Some(7..) => Self::WhileNothingLeft,
            _ => Self::Never,
        }
    }
}

/// Returns the lag if it is known without counting.
pub(super) fn at_once(look: &Look, group: &GroupLook, trust: Trust) -> Option<u64> {
    let Some(unread) = group.first_unread else { return Some(0) };
    if look.first == Some(unread) {
        return Some(look.length.0);
    }
    match trust {
        Trust::Always => group.lag,
        Trust::WhileNothingLeft => group.lag.filter(|_| look.removed == Some(0)),
        Trust::Never => None,
    }
}

/// Maximum number of repeated counts in one call, where trimming disturbs them: a consumer trims once a second.
const AGAIN: usize = 3;
/// Number of marks that a tally gets for the entries counted in one call.
const MARKS_PER_CALL: u64 = 5;

/// Log to count.
struct Of<'a> {
    log: &'a Key,
    /// Approximate size of the log in bytes.
    bytes: u64,
    look: &'a Look,
    /// Maximum number of entries that one call counts.
    budget: u64,
}

/// One side of a lag that is being counted.
struct Side {
    tally: Tally,
    /// Count of the entries before the first mark, where that has to be repeated.
    head: Option<Walk>,
    /// Count of the entries that were not counted yet.
    walk: Walk,
    /// Maximum number of entries that one call counts.
    budget: u64,
}

impl Side {
    /// Continues with the remembered tally of the range above `start` up to `end`, as far as it is still valid.
    fn new(of: &Of<'_>, before: Option<Tally>, start: MessageId, end: MessageId) -> Self {
        let Of { log, bytes, look, budget } = *of;
        let walk = |from, to, limit| {
            Walk::new(log.clone(), above(from), to, limit).with_entries_of(bytes, look.length)
        };
        let new = || (Tally::new(look, start, budget / MARKS_PER_CALL), false);
        let (tally, anew) = before.and_then(|tally| tally.fit(look, start, end)).unwrap_or_else(new);
        let first = if anew { tally.first() } else { None };
        let head = first.map(|(from, to)| walk(from, to, u64::MAX));
        let walk = walk(tally.up_to(), end, budget);
        Self { tally, head, walk, budget }
    }

    /// Returns the unfinished walk that comes next.
    fn current(&mut self) -> Option<&mut Walk> {
        let head = self.head.as_mut().filter(|head| !head.is_over());
        Some(head.unwrap_or(&mut self.walk)).filter(|walk| !walk.is_over())
    }

    /// Adds the last step to the tally.
    fn stepped(&mut self) {
        match self.head.take() {
            Some(head) if head.is_over() => self.tally.recount(head.counted),
            Some(head) => self.head = Some(head),
            None => {
                let new = self.walk.take_counted();
                if new > 0 {
                    self.tally.add(self.walk.up_to(), new);
                }
            }
        }
    }

    fn is_over(&mut self) -> bool {
        self.current().is_none()
    }

    /// Returns the number of entries, if all were counted.
    fn complete(&self) -> Option<u64> {
        (self.head.is_none() && self.walk.is_complete()).then(|| self.tally.total())
    }

    /// Returns the tally if it is worth remembering.
    fn keep(self) -> Option<Tally> {
        self.head.is_none().then_some(self.tally)
    }

    /// Returns the number of entries that this call has counted.
    fn spent(&self) -> u64 {
        self.walk.counted + self.head.as_ref().map_or(0, |head| head.counted)
    }

    /// Returns whether the count took, or takes, more than one call.
    fn is_long(&self) -> bool {
        self.tally.total() > self.budget || !self.walk.is_complete()
    }
}

/// A lag that is being counted: the entries that the group has passed, and those that it has not read.
struct Count {
    /// Index of the partition.
    at: usize,
    passed: Side,
    unread: Side,
}

impl Count {
    /// Returns the unfinished walks; none if one side is complete.
    fn walks(&mut self) -> impl Iterator<Item = &mut Walk> {
        let over = self.is_over();
        self.passed.current().into_iter().chain(self.unread.current()).filter(move |_| !over)
    }

    /// Returns whether the count is over: one complete side is enough.
    fn is_over(&mut self) -> bool {
        self.is_complete() || (self.passed.is_over() && self.unread.is_over())
    }

    /// Returns whether one side was counted completely.
    fn is_complete(&self) -> bool {
        self.passed.complete().or(self.unread.complete()).is_some()
    }

    /// Returns the lag at the time of the first snapshot, if the second one shows that nothing relevant has changed
    /// meanwhile.
    fn exact(&self, look: &Look, group: &GroupLook, now: &Look) -> Option<u64> {
        let whole = now.removed.is_some() && now.removed == look.removed;
        let unread = group.first_unread.filter(|unread| now.first.is_some_and(|first| first <= *unread));
        let untouched = unread.is_some() && now.deleted.is_some_and(|deleted| deleted <= group.position);
        match (self.unread.complete(), self.passed.complete()) {
            (Some(unread), _) if whole || untouched => Some(unread),
            (_, Some(passed)) if whole && now.first == look.first => look.length.0.checked_sub(passed),
            _ => None,
        }
    }
}

/// A complete count that trimming has disturbed.
struct Disturbed {
    /// Index of the partition.
    at: usize,
    /// Snapshot taken after the count.
    now: Look,
    /// Rest of the budget, in entries.
    left: u64,
}

impl RedisBackend {
    /// Returns the lag of one group on each of these partitions at the time of `looks`; `None` where the group does
    /// not exist. Where trimming disturbed a count, it is repeated from a new snapshot, as long as the budget lasts.
    pub(super) async fn lags(
        &self,
        partitions: &[TopicPartition],
        looks: &mut [Look],
        group: &str,
        trust: Trust,
    ) -> Result<Vec<Option<Lag>>> {
        let whole = vec![self.inner.config.lag_budget; partitions.len()];
        let (mut lags, mut disturbed) = self.count_lags(partitions, looks, &whole, group, trust).await?;
        for _ in 0..AGAIN {
            if disturbed.is_empty() {
                break;
            }
            let of: Vec<_> = disturbed.iter().map(|it| partitions[it.at].clone()).collect();
            let left: Vec<_> = disturbed.iter().map(|it| it.left).collect();
            let nows: Vec<_> = disturbed.iter().map(|it| it.now.clone()).collect();
            let (found, still) = self.count_lags(&of, &nows, &left, group, trust).await?;
            for ((it, lag), now) in disturbed.iter().zip(found).zip(nows) {
                (lags[it.at], looks[it.at]) = (lag, now);
            }
            let at = |it: Disturbed| Disturbed { at: disturbed[it.at].at, ..it };
            disturbed = still.into_iter().map(at).collect();
        }
        Ok(lags)
    }

    /// Takes a second snapshot of these partitions, with what packs hold for the group, and identifies the server.
    async fn look_again(&self, partitions: &[TopicPartition], group: &str) -> Result<Vec<Look>> {
        let packed = partitions.iter().any(|tp| self.inner.packings.is_packed(&tp.topic));
        let named = GroupName::new(group).ok().filter(|_| packed);
        let Some(named) = named else { return self.look_and_ask_who(partitions).await };
        let groups = std::slice::from_ref(&named);
        let asks: Vec<Ask<'_>> =
            partitions.iter().map(|topic_partition| Ask { topic_partition, groups }).collect();
        self.standings(&asks, "1").await?.iter().map(|it| it.of_group(0, group)).collect()
    }

    /// Counts once, with one budget per partition. Also returns the counts that were disturbed and can be repeated.
    async fn count_lags(
        &self,
        partitions: &[TopicPartition],
        looks: &[Look],
        budgets: &[u64],
        group: &str,
        trust: Trust,
    ) -> Result<(Vec<Option<Lag>>, Vec<Disturbed>)> {
        let counted = &self.inner.counted;
        let mut lags = Vec::with_capacity(looks.len());
        let mut open = Vec::new();
        for (at, (tp, look)) in partitions.iter().zip(looks).enumerate() {
            let Some(stands) = look.group(group) else {
                lags.push(None);
                continue;
            };
            let log = self.inner.keys.log(tp);
            let mut remembered = counted.of(&log, group, look);
            let proven = |proof: Proof| trust != Trust::Never && proof.holds(look, stands);
            let lag = at_once(look, stands, trust)
                .or_else(|| if remembered.proof.is_some_and(proven) { stands.lag } else { None });
            lags.push(Some(lag.map_or(Lag::AtLeast(Entries(1)), |lag| Lag::Exact(Entries(lag)))));
            match lag {
                Some(lag) => {
                    remembered.proof = Proof::of(look, stands, lag);
                    (remembered.passed, remembered.unread) = (None, None);
                    counted.keep(&log, group, remembered);
                }
                None => open.push((at, log, stands, remembered)),
            }
        }
        if open.is_empty() {
            return Ok((lags, Vec::new()));
        }
        let logs: Vec<Key> = open.iter().map(|(_, log, ..)| log.clone()).collect();
        let bytes = self.inner.bytes_of(&logs).await?;
        let mut counts = Vec::with_capacity(open.len());
        for ((at, log, stands, remembered), bytes) in open.iter_mut().zip(bytes) {
            let (look, position) = (&looks[*at], stands.position);
            let bottom = look.first.map_or(MessageId::ZERO, MessageId::previous);
            let of = Of { log, bytes, look, budget: budgets[*at] / 2 };
            let side = |before, start, end| Side::new(&of, before, start, end);
            // Entries that are appended from now on do not count.
            let last = look.last.unwrap_or(position);
            let passed = side(remembered.passed.take(), bottom, position);
            let unread = side(remembered.unread.take(), position.max(bottom), last);
            counts.push(Count { at: *at, passed, unread });
        }
        while counts.iter_mut().any(|count| !count.is_over()) {
            self.inner.step(counts.iter_mut().flat_map(Count::walks)).await?;
            counts.iter_mut().for_each(|count| {
                count.passed.stepped();
                count.unread.stepped();
            });
        }

        let again: Vec<_> = counts.iter().map(|count| partitions[count.at].clone()).collect();
        let nows = self.look_again(&again, group).await?;
        let mut disturbed = Vec::new();
        for ((count, now), (at, log, stands, mut remembered)) in counts.into_iter().zip(nows).zip(open) {
            let look = &looks[at];
            let same_server = now.server == look.server;
            let exact = count.exact(look, stands, &now).filter(|_| same_server);
            lags[at] = Some(match exact {
                Some(exact) => Lag::Exact(Entries(exact)),
                None => Lag::AtLeast(Entries(count.unread.tally.total().max(1))),
            });
            let left = budgets[at].saturating_sub(count.passed.spent() + count.unread.spent());
            if exact.is_none() && count.is_complete() && same_server && left > 1 {
                disturbed.push(Disturbed { at, now, left });
            }
            remembered.proof = exact.and_then(|exact| Proof::of(look, stands, exact));
            // A short count takes no longer than checking a remembered one.
            let keep = remembered.proof.is_none() && count.passed.is_long() && count.unread.is_long();
            if keep && same_server {
                let Count { passed, unread, .. } = count;
                (remembered.passed, remembered.unread) = (passed.keep(), unread.keep());
            }
            counted.keep(&log, group, remembered);
        }
        Ok((lags, disturbed))
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
        let look =
            Look { length: Entries(9), first: id(2), last: id(10), removed: Some(1), ..Look::default() };
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
