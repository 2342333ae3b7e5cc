//! Rates of groups from two or more readings of their state, and the time until they have caught up.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use millstream_core::catalog::PartitionSurvey;
use millstream_core::{GroupName, TopicName};

use super::GroupStats;

/// Default of the time over which rates are measured.
const WINDOW: Duration = Duration::from_secs(10);

/// Maximum number of readings that are kept for each group, besides the last one.
const READINGS: u32 = 10;

/// Rates of a group in a topic. A rate is `None` until two readings can be compared: after the first one, and after one
/// whose counters cannot follow from those before. That is so if a log was deleted or lost entries, the group was moved
/// ([`reset_group`](crate::Admin::reset_group)) or changed hands, dead letters were replayed, or a counter is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Messages per second that were appended to the topic.
    pub produced: Option<f64>,
    /// Messages per second that the group finished: acknowledged or given up.
    pub consumed: Option<f64>,
}

/// Time until a group has caught up, if both rates stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    /// There is no backlog.
    Done,
    /// It has caught up after this time.
    In(Duration),
    /// The backlog does not shrink.
    Never,
}

impl Rates {
    /// Returns the time until a backlog is handled; `None` if a rate or the backlog is unknown. More than 100 years count
    /// as never.
    #[must_use]
    pub fn catch_up(&self, backlog: Option<u64>) -> Option<CatchUp> {
        let backlog = backlog?;
        if backlog == 0 {
            return Some(CatchUp::Done);
        }
        let gain = self.consumed? - self.produced?;
        let time = Duration::try_from_secs_f64(backlog as f64 / gain);
        let most = Duration::from_secs(100 * 365 * 86_400);
        Some(time.ok().filter(|time| gain > 0.0 && *time < most).map_or(CatchUp::Never, CatchUp::In))
    }
}

/// Measures the rates of groups. It is given their state from time to time, and needs little memory for each, whatever the
/// number of partitions and readings.
///
/// ```
/// # use std::time::Instant;
/// # use millstream_admin::{Admin, RateMeter};
/// # use millstream_core::{Result, TopicName};
/// # async fn example(admin: Admin, topic: TopicName) -> Result<()> {
/// let (since, mut meter) = (Instant::now(), RateMeter::new());
/// loop {
///     for group in admin.stats(&topic).await?.groups {
///         let rates = meter.record(&topic, &group, since.elapsed());
///         println!("{}: {:?} per second", group.group, rates.consumed);
///     }
/// #   break;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct RateMeter {
    groups: BTreeMap<(TopicName, GroupName), History>,
}

impl RateMeter {
    /// Creates a meter without readings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the state of a group at a time, which does not decrease from call to call, and returns its rates over the
    /// last ten seconds, or over the time since the reading before if that is longer.
    pub fn record(&mut self, topic: &TopicName, group: &GroupStats, at: Duration) -> Rates {
        let reading = Reading::of(group, at);
        self.groups.entry((topic.clone(), group.group.clone())).or_default().record(reading)
    }

    /// Forgets groups that were last recorded before this time: they were deleted, or are no longer of interest.
    pub fn forget_before(&mut self, at: Duration) {
        self.groups.retain(|_, history| history.last.as_ref().is_some_and(|last| last.at >= at));
    }
}

/// Counters of a group at one time.
#[derive(Debug)]
struct Reading {
    at: Duration,
    /// `None` if it is unknown.
    members: Option<usize>,
    partitions: Vec<Counters>,
}

/// Counters of a partition, which only grow.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    appended: Option<u64>,
    /// Number of messages that the group has finished.
    done: Option<u64>,
    /// Epoch of the owner.
    epoch: Option<u64>,
}

/// Sums of the counters at an earlier time; `None` where later ones cannot be compared with them.
#[derive(Debug)]
struct Sums {
    at: Duration,
    appended: Option<u64>,
    done: Option<u64>,
}

#[derive(Debug, Default)]
struct History {
    /// Oldest first, and at least a tenth of the window apart.
    sums: VecDeque<Sums>,
    last: Option<Reading>,
}

impl Reading {
    fn of(group: &GroupStats, at: Duration) -> Self {
        let counters = |(index, survey): (usize, &PartitionSurvey)| Counters {
            appended: survey.stats.appended,
            done: done(survey),
            epoch: group.epochs.get(index).copied().flatten(),
        };
        let partitions = group.partitions.iter().enumerate().map(counters).collect();
        Self { at, members: group.members, partitions }
    }

    fn sums(&self) -> Sums {
        let sum = |count: fn(&Counters) -> Option<u64>| self.partitions.iter().map(count).sum();
        Sums { at: self.at, appended: sum(|it| it.appended), done: sum(|it| it.done) }
    }

    /// Returns whether these counts of appended, and of finished messages can follow from those of an earlier reading.
    fn follows(&self, before: &Self) -> (bool, bool) {
        let (mut appended, mut done) = (true, true);
        if self.partitions.len() < before.partitions.len() {
            return (false, false);
        }
        for (index, now) in self.partitions.iter().enumerate() {
            // A partition that was added had counted nothing.
            let none = Counters { appended: Some(0), done: Some(0), epoch: now.epoch };
            let before = before.partitions.get(index).unwrap_or(&none);
            appended &= now.appended.zip(before.appended).is_some_and(|(now, before)| now >= before);
            done &= now.done.zip(before.done).is_some_and(|(now, before)| now >= before);
            // A group is moved only while it has no owner, so its next owner has another epoch.
            done &= now.epoch == before.epoch;
        }
        // Nobody handles anything, so the group was moved.
        let is_idle = self.members == Some(0) && before.members == Some(0);
        done &= !is_idle || self.sums().done == before.sums().done;
        (appended, appended && done)
    }
}

/// Returns the number of messages that a group has ever finished. Messages that wait for a retry are not.
fn done(survey: &PartitionSurvey) -> Option<u64> {
    let left = survey.stats.lag?.checked_add(survey.pending()?)?.checked_add(survey.retrying()?)?;
    Some(survey.stats.appended?.saturating_sub(left))
}

impl History {
    fn record(&mut self, reading: Reading) -> Rates {
        if let Some(last) = &self.last {
            let (appended, done) = reading.follows(last);
            let sums = last.sums();
            if self.sums.back().is_none_or(|newest| last.at.saturating_sub(newest.at) >= WINDOW / READINGS) {
                self.sums.push_back(sums);
            }
            for sums in &mut self.sums {
                sums.appended = sums.appended.filter(|_| appended);
                sums.done = sums.done.filter(|_| done);
            }
        }
        // Keeps the newest reading that is at least as old as the window.
        while self.sums.get(1).is_some_and(|second| reading.at.saturating_sub(second.at) >= WINDOW) {
            self.sums.pop_front();
        }
        let now = reading.sums();
        let rate = |count: fn(&Sums) -> Option<u64>| {
            let before = self.sums.iter().find(|sums| count(sums).is_some())?;
            let span = now.at.saturating_sub(before.at).as_secs_f64();
            let grown = count(&now)?.checked_sub(count(before)?)?;
            (span > 0.0).then(|| grown as f64 / span)
        };
        let rates = Rates { produced: rate(|sums| sums.appended), consumed: rate(|sums| sums.done) };
        self.last = Some(reading);
        rates
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::catalog::PartitionStats;
    use millstream_core::{MessageId, Partition};

    use super::*;
    use crate::stats::Totals;

    /// A group of two partitions that has handled so many of the messages of each.
    fn group(appended: [u64; 2], handled: [u64; 2]) -> GroupStats {
        let partition = |index: usize| {
            let mut stats = PartitionStats::empty(Partition(index as u32));
            stats.position = Some(MessageId::ZERO);
            stats.appended = Some(appended[index]);
            stats.lag = Some(appended[index] - handled[index]);
            stats.lag_at_least = appended[index] - handled[index];
            PartitionSurvey::new(stats)
        };
        let partitions = vec![partition(0), partition(1)];
        let group = "billing".parse().expect("a name");
        let (totals, epochs) = (Totals::of(&partitions), vec![Some(7), Some(3)]);
        let (members, owned, unreadable) = (Some(1), Some(2), Vec::new());
        GroupStats { group, partitions, totals, paused: None, members, owned, epochs, unreadable }
    }

    struct Clock(RateMeter, TopicName, Duration);

    impl Clock {
        fn new() -> Self {
            Self(RateMeter::new(), "orders".parse().expect("a name"), Duration::ZERO)
        }

        /// Records a state `seconds` after the one before.
        fn after(&mut self, seconds: u64, group: &GroupStats) -> (Option<f64>, Option<f64>) {
            self.2 += Duration::from_secs(seconds);
            let rates = self.0.record(&self.1, group, self.2);
            (rates.produced, rates.consumed)
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let mut clock = Clock::new();
        assert_eq!(clock.after(0, &group([100, 50], [10, 10])), (None, None), "one reading is no rate");
        assert_eq!(clock.after(2, &group([110, 60], [30, 20])), (Some(10.0), Some(15.0)));
        assert_eq!(clock.after(2, &group([110, 60], [30, 20])), (Some(5.0), Some(7.5)), "over the window");
        // The window moves on: the first readings no longer count.
        for _ in 0..10 {
            clock.after(2, &group([110, 60], [30, 20]));
        }
        assert_eq!(clock.after(2, &group([110, 60], [30, 20])), (Some(0.0), Some(0.0)));
        assert_eq!(clock.after(20, &group([150, 60], [30, 20])), (Some(2.0), Some(0.0)), "a longer pause");
        assert_eq!(clock.after(0, &group([150, 60], [30, 20])), (Some(2.0), Some(0.0)), "no time passed");
    }

    #[test]
    fn what_cannot_follow_is_unknown_and_does_not_come_back() {
        let start = || {
            let mut clock = Clock::new();
            clock.after(0, &group([100, 100], [50, 50]));
            assert_eq!(clock.after(1, &group([101, 101], [51, 51])), (Some(2.0), Some(2.0)));
            clock
        };
        // A log that was deleted, or a server that lost its last writes.
        let mut clock = start();
        assert_eq!(clock.after(1, &group([90, 200], [80, 80])), (None, None));
        assert_eq!(clock.after(1, &group([91, 200], [81, 80])), (Some(1.0), Some(1.0)), "counted anew");
        // Moved back; the other counter is not affected.
        let mut clock = start();
        assert_eq!(clock.after(1, &group([103, 101], [0, 51])), (Some(2.0), None));
        assert_eq!(clock.after(1, &group([103, 101], [5, 51])).1, Some(5.0));
        // Moved forward: consumers were stopped for it, and started again.
        let mut clock = start();
        let mut moved = group([102, 102], [102, 102]);
        moved.epochs = vec![Some(8), Some(3)];
        assert_eq!(clock.after(1, &moved), (Some(2.0), None));
        // Moved forward while nobody runs.
        let mut clock = Clock::new();
        let idle =
            |handled| GroupStats { members: Some(0), epochs: vec![None, None], ..group([100, 100], handled) };
        clock.after(0, &idle([10, 10]));
        assert_eq!(clock.after(1, &idle([10, 10])), (Some(0.0), Some(0.0)));
        assert_eq!(clock.after(1, &idle([100, 100])), (Some(0.0), None));
        assert_eq!(clock.after(1, &idle([100, 100])), (Some(0.0), Some(0.0)));
        // A counter that the server has lost.
        let mut clock = start();
        let mut unknown = group([102, 102], [52, 52]);
        unknown.partitions[1].stats.lag = None;
        assert_eq!(clock.after(1, &unknown), (Some(2.0), None));
        unknown.partitions[0].stats.appended = None;
        assert_eq!(clock.after(1, &unknown), (None, None));
        assert_eq!(clock.after(1, &group([103, 102], [53, 52])), (None, None), "not over the gap");
        assert_eq!(clock.after(1, &group([104, 102], [54, 52])), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn an_added_partition_had_counted_nothing_and_a_missing_one_is_another_topic() {
        let mut clock = Clock::new();
        let mut one = group([10, 0], [10, 0]);
        one.partitions.pop();
        one.epochs.pop();
        clock.after(0, &one);
        assert_eq!(clock.after(1, &group([10, 6], [10, 2])), (Some(6.0), Some(2.0)));
        assert_eq!(clock.after(1, &one), (None, None));
    }

    #[test]
    fn memory_does_not_grow_with_the_readings() {
        let mut clock = Clock::new();
        let topic = clock.1.clone();
        for step in 0..5_000_u64 {
            let at = Duration::from_millis(step * 10);
            clock.0.record(&topic, &group([step, 0], [step, 0]), at);
        }
        let kept: Vec<_> = clock.0.groups.values().map(|history| history.sums.len()).collect();
        assert!(kept[0] <= READINGS as usize + 1, "{kept:?}");
        let rates = clock.0.record(&topic, &group([5_000, 0], [5_000, 0]), Duration::from_secs(50));
        assert!((rates.consumed.expect("a rate") - 100.0).abs() < 0.01, "{rates:?}");
        clock.0.forget_before(Duration::from_secs(51));
        assert!(clock.0.groups.is_empty());
    }

    #[test]
    fn the_time_to_catch_up_is_known_if_all_is() {
        let rates = |produced, consumed| Rates { produced, consumed };
        let running = rates(Some(10.0), Some(30.0));
        assert_eq!(running.catch_up(Some(100)), Some(CatchUp::In(Duration::from_secs(5))));
        assert_eq!(running.catch_up(Some(0)), Some(CatchUp::Done));
        assert_eq!(running.catch_up(None), None);
        assert_eq!(rates(Some(30.0), Some(30.0)).catch_up(Some(1)), Some(CatchUp::Never));
        assert_eq!(rates(Some(31.0), Some(30.0)).catch_up(Some(1)), Some(CatchUp::Never));
        assert_eq!(rates(Some(0.0), Some(1e-9)).catch_up(Some(u64::MAX)), Some(CatchUp::Never));
        assert_eq!(rates(None, Some(30.0)).catch_up(Some(1)), None);
        assert_eq!(rates(Some(1.0), None).catch_up(Some(1)), None);
        assert_eq!(rates(None, None).catch_up(Some(0)), Some(CatchUp::Done), "whatever the rates");
    }
}
