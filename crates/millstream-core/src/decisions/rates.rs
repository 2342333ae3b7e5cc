//! Rates: how many tokens of a key become free in a time, and who may spend which of them when.
//!
//! GCRA, the generic cell rate algorithm, with reservations: a key's record says how far its tokens are reserved *ahead* of now, as the time
//! in which they become free. A reservation gets the next tokens behind that, whether or not their time has come. So nobody has to ask
//! again, and what nobody spends is lost to the rate: a crash never makes a token.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Largest number of tokens of a [`Rate`], largest burst and largest cost.
pub const MAX_TOKENS: u32 = 1_000_000;

/// Longest time in which the tokens of a [`Rate`] become free, and longest time for which a key is closed: 31 days.
pub const LONGEST_PERIOD: Duration = Duration::from_secs(31 * 86_400);

/// Shortest time for which a token can be spent once it is free: some timers and machines are late. So there are up to that much more tokens
/// in a window than its rate has: 0.5 % in ten seconds.
pub const SPENDABLE: Duration = Duration::from_millis(50);

/// How far ahead of now tokens are reserved. Who needs later ones asks again: so whatever is lost, by crashes, restarts or replies, is no
/// more than this time of the rate.
pub const HORIZON: Duration = Duration::from_secs(5);

/// Longest time of a record, in microseconds: what somebody else wrote must not make numbers that others cannot read.
const MOST_US: f64 = 9e15;

/// How many tokens become free in a time, evenly, and how many may be saved up.
///
/// As text `10/s`, `1000/90m`, or `10/s burst 20`: tokens, a whole number of `ms`, `s`, `m`, `h` or `d` (1 without one), and the burst.
///
/// ```
/// use millstream_core::rates::Rate;
///
/// assert_eq!("10/s".parse::<Rate>().unwrap(), Rate::per_second(10));
/// assert_eq!(Rate::per_hour(1_000).burst(50).to_string(), "1000/h burst 50");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    tokens: u32,
    per_ms: u64,
    /// `None`: it is not stated, and counts as 1.
    burst: Option<u32>,
}

impl Rate {
    /// Creates a rate of so many tokens in this time, which is rounded down to milliseconds. One that cannot be used is reported when the
    /// consumer starts.
    #[must_use]
    pub const fn new(tokens: u32, per: Duration) -> Self {
        let per_ms = per.as_secs().saturating_mul(1_000).saturating_add(per.subsec_millis() as u64);
        Self { tokens, per_ms, burst: None }
    }

    /// Creates a rate of so many tokens a second.
    #[must_use]
    pub const fn per_second(tokens: u32) -> Self {
        Self { tokens, per_ms: 1_000, burst: None }
    }

    /// Creates a rate of so many tokens a minute.
    #[must_use]
    pub const fn per_minute(tokens: u32) -> Self {
        Self { tokens, per_ms: 60_000, burst: None }
    }

    /// Creates a rate of so many tokens an hour.
    #[must_use]
    pub const fn per_hour(tokens: u32) -> Self {
        Self { tokens, per_ms: 3_600_000, burst: None }
    }

    /// Creates a rate of so many tokens in 24 hours.
    #[must_use]
    pub const fn per_day(tokens: u32) -> Self {
        Self { tokens, per_ms: 86_400_000, burst: None }
    }

    /// Sets how many tokens are saved up at most while nobody needs any: so many may be spent at once. Default: 1, so tokens are spent at
    /// even distances.
    #[must_use]
    pub const fn burst(mut self, tokens: u32) -> Self {
        self.burst = Some(tokens);
        self
    }

    /// Sets the burst, if none is stated.
    #[must_use]
    pub const fn or_burst(self, tokens: u32) -> Self {
        if self.burst.is_some() { self } else { self.burst(tokens) }
    }

    /// Returns this rate, which an operator has set in the place of another one. Without a burst of its own it has that of the other: in
    /// proportion, if all tokens of its time could be saved up.
    #[must_use]
    pub const fn in_place_of(self, other: Self) -> Self {
        match other.burst {
            Some(all) if all == other.tokens && all > 0 => {
                self.or_burst(if self.tokens > 0 { self.tokens } else { 1 })
            }
            Some(burst) => self.or_burst(burst),
            None => self,
        }
    }

    /// Returns how many tokens become free in [`per`](Self::per).
    #[must_use]
    pub const fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Returns the time in which they become free.
    #[must_use]
    pub const fn per(&self) -> Duration {
        Duration::from_millis(self.per_ms)
    }

    /// Returns how many may be saved up.
    #[must_use]
    pub const fn most_saved(&self) -> u32 {
        match self.burst {
            Some(burst) => burst,
            None => 1,
        }
    }

    /// Returns the time between two tokens, in microseconds; `None` if there are none.
    #[must_use]
    pub fn interval_us(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.per_ms as f64 * 1_000.0 / f64::from(self.tokens))
    }

    /// Returns how many tokens are reserved at once, for messages that wait: about 50, in 50 to 500 ms.
    #[must_use]
    pub fn chunk(&self) -> u32 {
        let in_ms = |ms: u64| u64::from(self.tokens) * ms / self.per_ms.max(1);
        // Fewer would be more requests than one for 50 messages; more in time would be lost with a process, and make others wait.
        50.clamp(in_ms(50), in_ms(500).max(in_ms(50))).clamp(1, u64::from(MAX_TOKENS)) as u32
    }

    /// Checks the numbers. No tokens are a rate too: nothing begins.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`].
    pub fn check(&self) -> Result<()> {
        if self.tokens > MAX_TOKENS || !(1..=MAX_TOKENS).contains(&self.most_saved()) {
            return Err(wrong(format!(
                "a rate has at most {MAX_TOKENS} tokens, and a burst of 1 to {MAX_TOKENS}"
            )));
        }
        if !(1..=LONGEST_PERIOD.as_millis()).contains(&u128::from(self.per_ms)) {
            return Err(wrong("the time of a rate is 1 ms to 31 days".into()));
        }
        Ok(())
    }
}

fn wrong(why: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}

/// Units of time, the longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, ms)| self.per_ms.is_multiple_of(*ms));
        let (unit, ms) = whole.copied().unwrap_or(("ms", 1));
        write!(f, "{}/", self.tokens)?;
        if self.per_ms != ms {
            write!(f, "{}", self.per_ms / ms)?;
        }
        f.write_str(unit)?;
        match self.burst {
            None => Ok(()),
            Some(burst) => write!(f, " burst {burst}"),
        }
    }
}

impl FromStr for Rate {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let unreadable = || wrong(format!("{text:?} is no rate: write 10/s, 1000/90m or '10/s burst 20'"));
        let (rate, burst) = match text.split_once(" burst ") {
            Some((rate, burst)) => (rate, Some(burst.trim().parse().map_err(|_| unreadable())?)),
            None => (text, None),
        };
        let (tokens, per) = rate.split_once('/').ok_or_else(unreadable)?;
        let unit = per.find(|c: char| !c.is_ascii_digit()).ok_or_else(unreadable)?;
        let (number, unit) = per.split_at(unit);
        let ms = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(unreadable)?.1;
        let number: u64 = if number.is_empty() { 1 } else { number.parse().map_err(|_| unreadable())? };
        let tokens = tokens.trim().parse().map_err(|_| unreadable())?;
        let rate = Self { tokens, per_ms: number.saturating_mul(ms), burst };
        rate.check()?;
        Ok(rate)
    }
}

/// What comes of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// The tokens are reserved. So many microseconds after the reply the first one may be spent; negative if that many more were saved up.
    /// The next ones follow at the distance of the rate.
    At(i64),
    /// Nothing is reserved: the first token is free in so many microseconds, which is too late for who asked.
    Later(u64),
    /// The rate has no tokens.
    Never,
}

/// How far the tokens of one key are reserved, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateState {
    /// Time until all tokens that are reserved are free.
    pub ahead: Duration,
    /// Time between two tokens, as the last reservation had it.
    pub interval: Duration,
    /// Time for which nobody may spend any; zero unless the key is closed.
    pub closed: Duration,
}

/// How far the tokens of one key are reserved.
///
/// Relative to a time of the server: a clock that goes back makes nobody wait for the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateRecord {
    /// When it was written, in milliseconds by the server's clock.
    pub at_ms: u64,
    /// Microseconds after that at which all reserved tokens are free.
    pub ahead_us: f64,
    /// The distance of tokens then.
    pub interval_us: f64,
    /// Microseconds after that for which nobody may spend any.
    pub closed_us: f64,
}

impl RateRecord {
    /// Whether it says nothing any more.
    #[must_use]
    pub fn is_idle(&self, now_us: u64) -> bool {
        self.at_ms as f64 * 1_000.0 + self.ahead_us.max(self.closed_us) <= now_us as f64
    }

    /// Parses a record as it is stored: `at ahead interval`, and `closed` unless it is 0.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let at_ms = parts.next()?.parse().ok()?;
        let mut number =
            || parts.next()?.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let (ahead_us, interval_us) = (number()?, number()?);
        let closed_us = number().unwrap_or(0.0);
        Some(Self { at_ms, ahead_us, interval_us, closed_us })
    }

    /// Returns what it says now; `None` if it says nothing any more.
    #[must_use]
    pub fn state(&self, now_us: u64) -> Option<RateState> {
        let mut now = *self;
        now.count_from(now_us, self.interval_us);
        let base = (now_us % 1_000) as f64;
        let time = |us: f64| Duration::try_from_secs_f64(us.max(0.0) / 1e6).unwrap_or(LONGEST_PERIOD);
        let ahead = time(now.ahead_us - base);
        let closed = time(now.closed_us - base);
        let says = !ahead.is_zero() || !closed.is_zero();
        says.then(|| RateState { ahead, interval: time(self.interval_us), closed })
    }

    /// Counts from now on, at this distance of tokens.
    fn count_from(&mut self, now_us: u64, interval_us: f64) {
        let now_ms = now_us / 1_000;
        // Not below zero: a clock that went back.
        let passed = now_ms.saturating_sub(self.at_ms) as f64 * 1_000.0;
        let base = (now_us % 1_000) as f64;
        // Of a rate that has become faster the same tokens are free sooner. One that has become slower begins anew: what others reserved
        // at its old distance would stop it for long.
        if interval_us < self.interval_us {
            let left = self.ahead_us - passed - base;
            self.ahead_us = left * interval_us / self.interval_us + passed + base;
        }
        self.at_ms = now_ms;
        self.ahead_us = (self.ahead_us - passed).clamp(base, MOST_US);
        self.closed_us = (self.closed_us - passed).clamp(0.0, MOST_US);
        // While tokens are out at two distances, the shorter one: or each change to and fro would shorten them again.
        let is_idle = self.ahead_us <= base || self.interval_us <= 0.0;
        self.interval_us = if is_idle { interval_us } else { self.interval_us.min(interval_us) };
    }

    /// Reserves tokens, unless the first one is free later than the [`HORIZON`]. One that does not `wait` gets them only if all are free
    /// now, or as many as can be saved up.
    pub fn reserve(&mut self, now_us: u64, rate: &Rate, tokens: u32, waits: bool) -> Lead {
        let Some(interval) = rate.interval_us() else { return Lead::Never };
        self.count_from(now_us, interval);
        let (base, saved) = ((now_us % 1_000) as f64, f64::from(rate.most_saved().max(1) - 1) * interval);
        // Tokens behind the time for which the key is closed come one after the other too.
        let ahead = self.ahead_us.max(if self.closed_us > base { self.closed_us + saved } else { 0.0 });
        let lead = ahead - saved - base;
        let needed = f64::from(tokens.min(rate.most_saved()).max(1) - 1) * interval;
        let latest = if waits { HORIZON.as_micros() as f64 } else { 0.0 };
        let too_late = if waits { lead } else { (lead + needed).floor() };
        if too_late > latest {
            return Lead::Later(lead.max(0.0).ceil() as u64);
        }
        self.ahead_us = (ahead + f64::from(tokens) * interval).min(MOST_US);
        Lead::At(lead.ceil() as i64)
    }

    /// Charges tokens beyond those reserved, or gives some back.
    pub fn charge(&mut self, now_us: u64, rate: &Rate, tokens: i64) {
        let Some(interval) = rate.interval_us() else { return };
        self.count_from(now_us, interval);
        self.ahead_us = (self.ahead_us + tokens as f64 * interval).clamp((now_us % 1_000) as f64, MOST_US);
    }

    /// Lets nobody spend tokens for this time, at least. No time opens the key again. What is reserved is void then: only what was spent of a
    /// burst counts. False if it was closed for as long before, or was not closed.
    pub fn close(&mut self, now_us: u64, rate: &Rate, time: Duration) -> bool {
        let interval = rate.interval_us().unwrap_or(self.interval_us);
        self.count_from(now_us, interval);
        let base = (now_us % 1_000) as f64;
        let until = if time.is_zero() { 0.0 } else { base + time.min(LONGEST_PERIOD).as_micros() as f64 };
        let changes = if time.is_zero() { self.closed_us > 0.0 } else { until > self.closed_us };
        if changes {
            let saved = f64::from(rate.most_saved().max(1) - 1) * interval;
            (self.closed_us, self.ahead_us) = (until, self.ahead_us.min(base + saved));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_795_953_731_671_250;

    fn lead(record: &mut RateRecord, now: u64, rate: &Rate, tokens: u32) -> i64 {
        match record.reserve(now, rate, tokens, true) {
            Lead::At(us) => us,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tokens_come_one_after_the_other() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_second(10));
        assert_eq!(lead(&mut record, NOW, &rate, 1), 0);
        assert_eq!(lead(&mut record, NOW, &rate, 2), 100_000);
        assert_eq!(lead(&mut record, NOW + 50_000, &rate, 1), 250_000);
        assert_eq!(record.reserve(NOW + 399_999, &rate, 1, false), Lead::Later(1), "who does not wait");
        assert_eq!(record.reserve(NOW + 400_000, &rate, 1, false), Lead::At(0));
        assert!(!record.is_idle(NOW + 499_999) && record.is_idle(NOW + 500_000));
        assert_eq!(lead(&mut record, NOW + 10_000_000, &rate, 1), 0, "nothing is saved up");
    }

    #[test]
    fn a_burst_is_saved_up() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_second(10).burst(5));
        assert_eq!(lead(&mut record, NOW, &rate, 4), -400_000, "five are there");
        assert_eq!(lead(&mut record, NOW, &rate, 1), 0);
        assert_eq!(lead(&mut record, NOW, &rate, 1), 100_000);
        assert_eq!(lead(&mut record, NOW + 60_000_000, &rate, 9), -400_000, "and no more");
    }

    #[test]
    fn a_closed_key_opens_at_its_rate() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_second(10).burst(5));
        lead(&mut record, NOW, &rate, 50);
        assert!(record.close(NOW, &rate, Duration::from_secs(3)));
        assert!(!record.close(NOW, &rate, Duration::from_secs(1)), "it is closed for longer");
        assert_eq!(record.reserve(NOW, &rate, 1, false), Lead::Later(3_000_000));
        assert_eq!(lead(&mut record, NOW, &rate, 1), 3_000_000, "what was reserved before is void");
        assert_eq!(lead(&mut record, NOW + 1_000_000, &rate, 1), 2_100_000);
        assert!(!record.is_idle(NOW + 2_000_000));
        assert!(record.close(NOW, &rate, Duration::from_secs(60)));
        assert_eq!(record.reserve(NOW, &rate, 1, true), Lead::Later(60_000_000), "beyond the horizon");
    }

    #[test]
    fn nothing_is_reserved_beyond_the_horizon() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_hour(1));
        assert_eq!(lead(&mut record, NOW, &rate, 1), 0);
        for _ in 0..100 {
            assert_eq!(record.reserve(NOW, &rate, 1, true), Lead::Later(3_600_000_000));
        }
        assert_eq!(lead(&mut record, NOW + 3_596_000_000, &rate, 1), 4_000_000);
    }

    #[test]
    fn rates_that_alternate_shorten_nothing_twice() {
        let (mut record, slow, quick) = (RateRecord::default(), Rate::per_second(50), Rate::per_second(100));
        lead(&mut record, NOW, &quick, 10);
        for n in 0..10 {
            let expected = 100_000 + n * 30_000;
            assert_eq!(lead(&mut record, NOW, &slow, 1), expected);
            assert_eq!(lead(&mut record, NOW, &quick, 1), expected + 20_000);
        }
    }

    #[test]
    fn records_are_read_by_operators() {
        let record = RateRecord::parse("1795953731671 250500 100000 5000250").expect("a record");
        let state = record.state(NOW).expect("it says something");
        let expected = [250_250, 100_000, 5_000_000].map(Duration::from_micros);
        assert_eq!([state.ahead, state.interval, state.closed], expected);
        assert_eq!(record.state(NOW + 6_000_000), None);
        let open = RateRecord::parse("1795953731671 250500 100000").expect("a record");
        assert_eq!(open.state(NOW).map(|state| state.closed), Some(Duration::ZERO));
        for foreign in ["", "x", "1 2", "1 -2 3", "1 2 NaN", "1 inf 3"] {
            assert_eq!(RateRecord::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_changed_rate_lets_nobody_wait_for_what_was_reserved_before() {
        let (mut record, slow, quick) = (RateRecord::default(), Rate::per_hour(1), Rate::per_second(1));
        lead(&mut record, NOW, &slow, 3);
        assert_eq!(lead(&mut record, NOW, &quick, 1), 3_000_000, "three tokens");
        assert_eq!(lead(&mut record, NOW, &slow, 1), 4_000_000, "four seconds, and not four hours");
    }

    #[test]
    fn a_rate_of_an_operator_keeps_the_burst_of_the_program() {
        let of = |rate: Rate, other: Rate| rate.in_place_of(other).most_saved();
        let day = Rate::per_day(10_000);
        assert_eq!(of(day, Rate::per_day(5_000).burst(5_000)), 10_000, "of a quota");
        assert_eq!(of(day, Rate::per_day(5_000).burst(50)), 50);
        assert_eq!(of(day, Rate::per_day(5_000)), 1);
        assert_eq!(of(day.burst(7), Rate::per_day(5_000).burst(50)), 7);
    }

    #[test]
    fn a_key_that_is_closed_can_be_opened() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_second(10));
        lead(&mut record, NOW, &rate, 20);
        assert!(!record.close(NOW, &rate, Duration::ZERO), "it is open");
        record.close(NOW, &rate, Duration::from_secs(60));
        assert!(record.close(NOW, &rate, Duration::ZERO));
        assert_eq!(lead(&mut record, NOW, &rate, 1), 0);
    }

    #[test]
    fn a_clock_that_goes_back_adds_no_wait() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_second(10));
        lead(&mut record, NOW, &rate, 3);
        let before = NOW - 3_600_000_000;
        assert_eq!(lead(&mut record, before, &rate, 1), 300_000);
        assert_eq!(lead(&mut record, before + 400_000, &rate, 1), 0);
    }

    #[test]
    fn what_is_charged_is_waited_for_and_what_is_given_back_is_not() {
        let (mut record, rate) = (RateRecord::default(), Rate::per_second(10));
        lead(&mut record, NOW, &rate, 1);
        record.charge(NOW, &rate, 4);
        assert_eq!(lead(&mut record, NOW, &rate, 1), 500_000);
        record.charge(NOW, &rate, -3);
        assert_eq!(lead(&mut record, NOW, &rate, 1), 300_000);
        record.charge(NOW, &rate, -1_000_000);
        assert_eq!(lead(&mut record, NOW, &rate, 1), 0, "no more than there were");
    }

    #[test]
    fn rates_are_texts() {
        for (text, rate) in [
            ("10/s", Rate::per_second(10)),
            ("0/d", Rate::new(0, Duration::from_secs(86_400))),
            ("1000/90m", Rate::new(1_000, Duration::from_secs(5_400))),
            ("5/250ms burst 20", Rate::new(5, Duration::from_millis(250)).burst(20)),
        ] {
            assert_eq!(text.parse::<Rate>().expect(text), rate);
            assert_eq!(rate.to_string(), text);
        }
        for text in
            ["", "10", "/s", "10/", "10/x", "10/0s", "10/40d", "10/s burst 0", "10/s burst", "-1/s", "1.5/s"]
        {
            assert_eq!(text.parse::<Rate>().expect_err(text).kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn chunks_are_about_fifty() {
        let chunks = [1, 10, 100, 1_000, 10_000].map(|tokens| Rate::per_second(tokens).chunk());
        assert_eq!(chunks, [1, 5, 50, 50, 500]);
        assert_eq!(Rate::per_hour(1).chunk(), 1);
    }

    proptest! {
        /// However reservations and times come: in no window are more tokens free than its rate and the burst have.
        #[test]
        fn no_window_has_more(
            tokens in 1_u32..5_000, burst in 1_u32..50,
            steps in prop::collection::vec((0_u64..200_000, 1_u32..80), 1..60),
        ) {
            let rate = Rate::per_second(tokens).burst(burst);
            let interval = rate.interval_us().expect("tokens");
            let (mut record, mut now, mut free) = (RateRecord::default(), NOW, Vec::new());
            for (wait, count) in steps {
                now += wait;
                let Lead::At(lead) = record.reserve(now, &rate, count, true) else { continue };
                let lead = lead as f64;
                free.extend((0..count).map(|n| (now - NOW) as f64 + (lead + f64::from(n) * interval).max(0.0)));
            }
            free.sort_by(f64::total_cmp);
            for (first, from) in free.iter().enumerate() {
                for (last, to) in free.iter().enumerate().skip(first) {
                    let most = (to - from) / interval + f64::from(burst) + 0.1;
                    prop_assert!((last - first + 1) as f64 <= most + 0.02 * (last - first) as f64, "{first}..={last}");
                }
            }
        }
    }
}
