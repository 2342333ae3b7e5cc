//! Rules of what recurs: when, and what of times at which nobody was there. Text and numbers in, numbers out.

mod cron;
mod text;

use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::recurring::MAX_FIRES;

use cron::Cron;

/// How late an occurrence may be before it counts as missed, unless the rule says otherwise.
pub const GRACE: Duration = Duration::from_secs(60);

/// The most missed occurrences that [`Missed::All`] makes up for.
pub const MAX_MISSED: u32 = 1_000;

/// The shortest time between two occurrences of a fixed rate.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// How many missed occurrences are counted, at least.
const COUNTED: usize = 100;

/// The longest one, and the latest time that a rule gives: numbers up to here are exact everywhere.
const FAR: u64 = 1 << 53;

/// What becomes of occurrences at which nobody was there: they are older than the grace when they are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// Nothing: it goes on with the next one.
    Skip,
    /// The newest one is made up for. The default: a report is made once after a night without a server, not eight times.
    #[default]
    Once,
    /// The newest ones, up to so many (at most [`MAX_MISSED`]), are made up for, each.
    All(u32),
}

/// When something recurs, and what of missed times.
///
/// It is stored as readable text (`Display` and `FromStr`): `cron Europe/Zurich once 0 9 * * *`, or
/// `every 60000 anchor 1700000000000 skip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    when: When,
    missed: Missed,
    /// In milliseconds.
    grace: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum When {
    Cron(Cron),
    /// At `anchor`, and every `period` after it; milliseconds.
    Every {
        period: u64,
        anchor: u64,
    },
}

/// What to fire, and when to come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The occurrences to be fired now, oldest first; at most [`MAX_FIRES`].
    pub fires: Vec<u64>,
    /// How many are passed over; of more than 100 it may be told too few.
    pub missed: usize,
    /// When it is due next; `None` if never again.
    pub next: Option<u64>,
}

impl Rule {
    /// By a cron pattern, in a time zone (`Europe/Zurich`, `UTC`): five fields (minute, hour, day of the month, month,
    /// weekday), or six with seconds in front.
    ///
    /// Clocks that are put forward: a time that does not exist fires at the first one after the gap. Clocks that are put
    /// back: a time that comes twice fires once. What recurs by a `*` or `/` in its hours, minutes or seconds
    /// ("every ten minutes") goes on by the clock on the wall instead: not in the gap, and in both of what comes twice.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names everything that is wrong.
    pub fn cron(pattern: &str, zone: &str) -> Result<Self> {
        Self::checked(When::Cron(Cron::new(pattern, zone)?))
    }

    /// Every `period` (whole milliseconds, at least [`SHORTEST`]), counted from `anchor`, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a period that is too short or too long.
    pub fn every(period: Duration, anchor: u64) -> Result<Self> {
        let period = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        Self::checked(When::Every { period, anchor })
    }

    fn checked(when: When) -> Result<Self> {
        let rule = Self { when, missed: Missed::default(), grace: GRACE.as_millis() as u64 };
        rule.check()?;
        Ok(rule)
    }

    /// What of missed times. Default: [`Missed::Once`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for more than [`MAX_MISSED`] of them.
    pub fn missed(self, missed: Missed) -> Result<Self> {
        let rule = Self { missed, ..self };
        rule.check()?;
        Ok(rule)
    }

    /// How late an occurrence may be before it counts as missed. Default: [`GRACE`], 60 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for more than can be counted.
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
                format!("it recurs every {period} ms, {shortest} to {FAR} are allowed")
            });
            problems
                .require(anchor <= FAR, || format!("its anchor is {anchor} ms, at most {FAR} are allowed"));
        }
        problems.require(self.grace <= FAR, || format!("grace is {} ms, at most {FAR}", self.grace));
        if let Missed::All(most) = self.missed {
            problems.require((1..=MAX_MISSED).contains(&most), || {
                format!("{most} missed times are to be made up for, 1 to {MAX_MISSED} are allowed")
            });
        }
        problems.finish()
    }

    /// The same rule but for its anchor: what is put again with each start of a program is not changed by that.
    pub(crate) fn is_but_for_anchor(&self, other: &Self) -> bool {
        let same = match (&self.when, &other.when) {
            (When::Every { period, .. }, When::Every { period: other, .. }) => period == other,
            (when, other) => when == other,
        };
        same && self.missed == other.missed && self.grace == other.grace
    }

    /// The first occurrence after `time` (milliseconds since 1970); `None` if there is none any more.
    #[must_use]
    pub fn next_after(&self, time: u64) -> Option<u64> {
        let next = match &self.when {
            When::Cron(cron) => cron.next_after(time)?,
            When::Every { anchor, .. } if time < *anchor => *anchor,
            When::Every { period, anchor } => {
                let nth = ((time - anchor) / period).checked_add(1)?;
                anchor.checked_add(nth.checked_mul(*period)?)?
            }
        };
        // Whatever a calendar makes of a time: it goes on, or ends.
        (next > time && next <= FAR).then_some(next)
    }

    /// The occurrences from `from` to before `to`, in order.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        let first = match from.checked_sub(1) {
            Some(before) => self.next_after(before),
            None => self.next_after(0),
        };
        std::iter::successors(first, |time| self.next_after(*time)).take_while(move |time| *time < to)
    }

    /// What is to be done at `now` with what was to recur at `expected`.
    #[must_use]
    pub fn plan(&self, expected: u64, now: u64) -> Plan {
        if now < expected {
            return Plan { next: Some(expected), ..Plan::default() };
        }
        let fresh = now.saturating_sub(self.grace).max(expected);
        let wanted = match self.missed {
            Missed::Skip => 0,
            Missed::Once => 1,
            Missed::All(most) => most as usize,
        };
        let missed = self.newest(expected, fresh, wanted);
        let made_up = missed.len().min(wanted);
        let fires = missed[missed.len() - made_up..].iter().copied();
        let mut fires: Vec<_> = fires.chain(self.between(fresh, now + 1)).take(MAX_FIRES + 1).collect();
        // What is too much for one call is due at once again, and not missed then either.
        let next = if fires.len() > MAX_FIRES { fires.pop() } else { self.next_after(now) };
        Plan { fires, missed: missed.len() - made_up, next }
    }

    /// The newest occurrences from `from` to before `to`: `wanted` of them or more, if there are so many.
    ///
    /// It looks at ever longer times before `to`, and halves one that has far more, so that a year that was missed is not
    /// gone through second by second.
    fn newest(&self, from: u64, to: u64, wanted: usize) -> Vec<u64> {
        let wanted = wanted.max(COUNTED);
        let many = 2 * wanted;
        let mut window = 2 * 60 * 1_000;
        // From where on there are too many, and from where on too few.
        let (mut early, mut late) = (None, to);
        loop {
            let start = match early {
                None => to.saturating_sub(window).max(from),
                Some(early) => u64::midpoint(early, late),
            };
            let found: Vec<_> = self.between(start, to).take(many + 1).collect();
            let (is_all, is_enough) = (found.len() <= many, found.len() >= wanted);
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

/// A rule that cannot be read, or makes no sense.
fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}
