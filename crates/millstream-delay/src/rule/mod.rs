//! Rules of recurring entries: their times, and the policy for missed ones. Text and numbers in, numbers out.

#[cfg(feature = "cron")]
mod cron;
#[cfg(not(feature = "cron"))]
mod no_cron;
mod text;

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::recurring::MAX_FIRES;

#[cfg(feature = "cron")]
use cron::Cron;
#[cfg(not(feature = "cron"))]
use no_cron::Cron;

/// Default of how late an occurrence may be before it counts as missed.
pub const GRACE: Duration = Duration::from_secs(60);

/// Maximum number of missed occurrences that [`Missed::All`] makes up for.
pub const MAX_MISSED: u32 = 1_000;

/// Shortest period of a fixed rate.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// Minimum number of missed occurrences that are counted exactly.
const COUNTED: usize = 100;

/// Longest period and grace, and latest time of a rule, in milliseconds: integers up to here are exact in every format,
/// also as doubles.
const FAR: u64 = 1 << 53;

/// Policy for missed occurrences: those that are older than the grace when they are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// Makes up for none: the entry continues with the next occurrence.
    Skip,
    /// Makes up for the newest one. The default: after a night without a server, a report is made once, not eight times.
    #[default]
    Once,
    /// Makes up for each of the newest ones, up to this number (at most [`MAX_MISSED`]).
    All(u32),
}

/// Times of a recurring entry, and the policy for missed ones.
///
/// It is stored as readable text (`Display` and `FromStr`): `cron Europe/Zurich once 0 9 * * *`, or `every 60000 anchor
/// 1700000000000 skip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    when: When,
    missed: Missed,
    /// Grace, in milliseconds.
    grace: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum When {
    /// Boxed: it is much larger than the other one.
    Cron(Box<Cron>),
    /// At `anchor`, and every `period` after it; both in milliseconds.
    Every { period: u64, anchor: u64 },
}

/// Occurrences to fire now, and the next due time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Occurrences to fire now, oldest first; at most [`MAX_FIRES`].
    pub fires: Vec<Timestamp>,
    /// Number of missed occurrences that are skipped; above 100 it may be too low.
    pub missed: usize,
    /// Next due time; `None` if there is no further one.
    pub next: Option<Timestamp>,
}

impl Rule {
    /// Returns a rule from a cron pattern in a time zone (`Europe/Zurich`, `UTC`): five fields (minute, hour, day of
    /// the month, month, weekday), or six with seconds first.
    ///
    /// When clocks are put forward, a time that does not exist fires at the first time after the gap. When clocks are
    /// put back, a time that occurs twice fires once. A pattern with `*` or `/` in its hours, minutes or seconds
    /// ("every ten minutes") follows the local clock instead: it does not fire in the gap, and fires in both passes of
    /// a repeated hour.
    ///
    /// A pattern that is never due (`0 0 31 2 *`), or whose step is larger than what it goes through (`*/90 * * * *`, which would
    /// be hourly), is refused. A stored one is read all the same.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists all problems.
    #[cfg(feature = "cron")]
    pub fn cron(pattern: &str, zone: &str) -> Result<Self> {
        Self::checked(When::Cron(Box::new(Cron::given(pattern, zone)?)))
    }

    /// Returns a rule for every `period` (whole milliseconds, at least [`SHORTEST`]), counted from `anchor`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a period that is too short or too long.
    pub fn every(period: Duration, anchor: Timestamp) -> Result<Self> {
        let period = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let anchor = anchor.as_millis();
        Self::checked(When::Every { period, anchor })
    }

    fn checked(when: When) -> Result<Self> {
        let rule = Self { when, missed: Missed::default(), grace: GRACE.as_millis() as u64 };
        rule.check()?;
        Ok(rule)
    }

    /// Sets the policy for missed occurrences. Default: [`Missed::Once`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for [`Missed::All`] with 0 or more than [`MAX_MISSED`].
    pub fn missed(self, missed: Missed) -> Result<Self> {
        let rule = Self { missed, ..self };
        rule.check()?;
        Ok(rule)
    }

    /// Sets how late an occurrence may be before it counts as missed. Default: [`GRACE`], 60 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a grace of more than 2^53 ms.
    pub fn grace(self, grace: Duration) -> Result<Self> {
        let rule = Self { grace: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX), ..self };
        rule.check()?;
        Ok(rule)
    }

    fn check(&self) -> Result<()> {
        let mut problems = Problems::new("rule");
        if let When::Every { period, anchor } = self.when {
            let shortest = SHORTEST.as_millis() as u64;
            problems.require((shortest..=FAR).contains(&period), || {
                format!("it recurs every {period} ms, {shortest} ms to {FAR} ms are allowed")
            });
            problems.require(anchor <= FAR, || {
                format!("its anchor is {anchor} ms, at most {FAR} ms are allowed")
            });
        }
        problems.require(self.grace <= FAR, || format!("grace is {} ms, at most {FAR}", self.grace));
        if let Missed::All(most) = self.missed {
            problems.require((1..=MAX_MISSED).contains(&most), || {
                format!("{most} missed times are to be made up for, 1 to {MAX_MISSED} are allowed")
            });
        }
        problems.finish()
    }

    /// Returns whether both rules are equal apart from the anchor: a program that stores its entries at each start gets
    /// a new anchor each time, which must not count as a change.
    pub(crate) fn is_but_for_anchor(&self, other: &Self) -> bool {
        let same = match (&self.when, &other.when) {
            (When::Every { period, .. }, When::Every { period: other, .. }) => period == other,
            (when, other) => when == other,
        };
        same && self.missed == other.missed && self.grace == other.grace
    }

    /// Returns the first occurrence after `time`; `None` if there is no further one.
    #[must_use]
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        self.millis_after(time.as_millis()).map(Timestamp::from_millis)
    }

    /// As [`next_after`](Self::next_after), in milliseconds since 1970.
    fn millis_after(&self, time: u64) -> Option<u64> {
        let next = match &self.when {
            When::Cron(cron) => cron.next_after(time)?,
            When::Every { anchor, .. } if time < *anchor => *anchor,
            When::Every { period, anchor } => {
                let nth = ((time - anchor) / period).checked_add(1)?;
                anchor.checked_add(nth.checked_mul(*period)?)?
            }
        };
        // Guards against a calendar result that does not advance, or is too far away: the rule ends instead.
        (next > time && next <= FAR).then_some(next)
    }

    /// Returns the occurrences in `from..to`, in order.
    pub fn between(&self, from: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        self.millis_between(from.as_millis(), to.as_millis()).map(Timestamp::from_millis)
    }

    /// As [`between`](Self::between), in milliseconds since 1970.
    fn millis_between(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        let first = match from.checked_sub(1) {
            Some(before) => self.millis_after(before),
            None => self.millis_after(0),
        };
        std::iter::successors(first, |time| self.millis_after(*time)).take_while(move |time| *time < to)
    }

    /// Computes what to do at `now` with an occurrence that was due at `expected`.
    #[must_use]
    pub fn plan(&self, expected: Timestamp, now: Timestamp) -> Plan {
        if now < expected {
            return Plan { next: Some(expected), ..Plan::default() };
        }
        let (expected, now) = (expected.as_millis(), now.as_millis());
        // Occurrences before `fresh` are missed; later ones fire under every policy.
        let fresh = now.saturating_sub(self.grace).max(expected);
        let wanted = match self.missed {
            Missed::Skip => 0,
            Missed::Once => 1,
            Missed::All(most) => most as usize,
        };
        let missed = self.newest(expected, fresh, wanted);
        let made_up = missed.len().min(wanted);
        let fires = missed[missed.len() - made_up..].iter().copied();
        let mut fires: Vec<_> =
            fires.chain(self.millis_between(fresh, now + 1)).take(MAX_FIRES + 1).collect();
        // The first occurrence beyond the limit of one call becomes the next due time: it is due again immediately, and
        // does not count as missed then either.
        let next = if fires.len() > MAX_FIRES { fires.pop() } else { self.millis_after(now) };
        Plan {
            fires: fires.into_iter().map(Timestamp::from_millis).collect(),
            missed: missed.len() - made_up,
            next: next.map(Timestamp::from_millis),
        }
    }

    /// Returns the newest occurrences in `from..to`, in milliseconds since 1970: at least `wanted` of them, if there are
    /// so many.
    ///
    /// It searches growing windows before `to`, and halves a window that has far too many. So after a missed year it
    /// does not iterate over every second.
    fn newest(&self, from: u64, to: u64, wanted: usize) -> Vec<u64> {
        let wanted = wanted.max(COUNTED);
        let many = 2 * wanted;
        let mut window = 2 * 60 * 1_000;
        // Starts of windows: `early` has too many occurrences, `late` too few.
        let (mut early, mut late) = (None, to);
        loop {
            let start = match early {
                None => to.saturating_sub(window).max(from),
                Some(early) => u64::midpoint(early, late),
            };
            let found: Vec<_> = self.millis_between(start, to).take(many + 1).collect();
            let (is_all, is_enough) = (found.len() <= many, found.len() >= wanted);
            // Done if the window holds all there are or enough of them, or if it cannot be halved any more.
            if is_all && (start == from || is_enough) || !is_all && late - start <= 1 {
                return found;
            }
            if is_all {
                late = start;
                window = window.saturating_mul(8);
            } else {
                early = Some(start);
            }
        }
    }
}

/// Error for a rule that cannot be parsed or is not valid.
fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}
