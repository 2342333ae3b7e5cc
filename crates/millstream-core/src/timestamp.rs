//! Points in time by the server's clock.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Point in time by the server's clock, in milliseconds since 1970-01-01 00:00 UTC.
///
/// Due times, times of failures and deaths, and the times that servers answer with are of this type. They are comparable
/// with each other and not with the clock of a client: two machines may differ by any amount. Time that passes on one
/// machine is a [`Duration`].
///
/// `Display` writes RFC 3339 in UTC. Serialization writes the number of milliseconds, as Redis stores it.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::Timestamp;
///
/// let due = Timestamp::from_millis(1_700_000_000_000);
/// assert_eq!(due.to_string(), "2023-11-14T22:13:20.000Z");
/// let retried = due.saturating_add(Duration::from_secs(90));
/// assert_eq!(retried.saturating_duration_since(due), Duration::from_secs(90));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

/// The last millisecond of the year 9999: RFC 3339 has four digits for the year.
const LAST_OF_RFC_3339: u64 = 253_402_300_799_999;

impl Timestamp {
    /// Creates the time of this many milliseconds after 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the number of milliseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the time that is later by `duration`, rounded down to whole milliseconds; the latest time if there is none
    /// so late.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(duration)))
    }

    /// Returns the time that is earlier by `duration`, rounded down to whole milliseconds; 1970 if there is none so early.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(duration)))
    }

    /// Returns the time that passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Writes RFC 3339 in UTC: `2023-11-14T22:13:20.000Z`. After the year 9999, the number of milliseconds: `253402300800000 ms`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 86_400_000;
        if self.0 > LAST_OF_RFC_3339 {
            return write!(f, "{} ms", self.0);
        }
        let (days, rest) = (self.0 / DAY, self.0 % DAY);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", rest % 1_000)
    }
}

/// Returns year, month and day of the Gregorian calendar, given the number of days since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, each year ends with its leap day, if it has one, and 400 years are always as long.
    let since_march_0000 = days + 719_468;
    let (era, day_of_era) = (since_march_0000 / 146_097, since_march_0000 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Five months have 153 days, beginning with March, and again with August.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Rounds up to a whole millisecond: nothing that is due at the result is early. Times before 1970 become 1970.
///
/// The time is taken as one of the server's clock. That of the local clock may differ from it.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

/// A time that the platform cannot represent becomes the end of the year 9999.
impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let exact = UNIX_EPOCH.checked_add(Duration::from_millis(time.0));
        exact.unwrap_or_else(|| UNIX_EPOCH + Duration::from_millis(LAST_OF_RFC_3339))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_system_time_is_rounded_up_and_not_before_1970() {
        let at = |duration| Timestamp::from(UNIX_EPOCH + duration).as_millis();
        assert_eq!(at(Duration::from_millis(5)), 5);
        assert_eq!(at(Duration::from_micros(5_001)), 6);
        assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(1)), Timestamp::default());
    }

    #[test]
    fn arithmetic_saturates() {
        let time = Timestamp::from_millis(10);
        assert_eq!(time.saturating_add(Duration::from_micros(2_999)).as_millis(), 12);
        assert_eq!(time.saturating_sub(Duration::from_micros(2_999)).as_millis(), 8);
        assert_eq!(time.saturating_add(Duration::MAX).as_millis(), u64::MAX);
        assert_eq!(time.saturating_sub(Duration::MAX).as_millis(), 0);
        assert_eq!(time.saturating_duration_since(Timestamp::from_millis(11)), Duration::ZERO);
        assert_eq!(Timestamp::from_millis(11).saturating_duration_since(time), Duration::from_millis(1));
    }

    #[test]
    fn text_is_rfc_3339_up_to_the_year_9999() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (1_735_603_200_000, "2024-12-31T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST_OF_RFC_3339, "9999-12-31T23:59:59.999Z"),
            (LAST_OF_RFC_3339 + 1, "253402300800000 ms"),
            (u64::MAX, "18446744073709551615 ms"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
    }

    #[test]
    fn a_date_follows_the_one_before() {
        let mut before = date(0);
        assert_eq!(before, (1970, 1, 1));
        for days in 1..=LAST_OF_RFC_3339 / 86_400_000 {
            let (year, month, day) = date(days);
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let longest = match before.1 {
                2 => 28 + u64::from(is_leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match before {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == longest => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
            assert_eq!((year, month, day), expected);
            before = expected;
        }
    }

    #[test]
    fn json_has_the_bare_number() {
        let time = Timestamp::from_millis(1_700_000_000_123);
        assert_eq!(serde_json::to_string(&time).expect("a number"), "1700000000123");
        assert_eq!(serde_json::from_str::<Timestamp>("1700000000123").expect("a number"), time);
    }

    proptest! {
        #[test]
        fn every_system_time_comes_back(millis in 0..=LAST_OF_RFC_3339) {
            let time = Timestamp::from_millis(millis);
            prop_assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
