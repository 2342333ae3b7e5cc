//! Parsers of option values.

use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use millstream::Concurrency;

/// The rate of messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    /// Messages per second.
    PerSecond(f64),
    /// A share of the maximum rate, from 0.01 to 1.
    Share(f64),
}

/// Parses a rate: `1000/s`, `1000` or `50%`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("{text:?} is not a rate: 1000/s, 1000 and 50% are");
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        return (1.0..=100.0).contains(&percent).then_some(Rate::Share(percent / 100.0)).ok_or_else(wrong);
    }
    let number: f64 = text.strip_suffix("/s").unwrap_or(text).parse().map_err(|_| wrong())?;
    (0.1..=1e7).contains(&number).then_some(Rate::PerSecond(number)).ok_or_else(wrong)
}

/// Parses a duration in seconds, at least 0.1: `5`, `1.5s`.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    within(text, 0.1)
}

/// Parses a duration in seconds, which may be zero.
pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    within(text, 0.0)
}

fn within(text: &str, least: f64) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| "not a number".to_owned())?;
    if !(least..=86_400.0).contains(&number) {
        return Err(format!("{least} to 86400 are allowed"));
    }
    Ok(Duration::from_secs_f64(number))
}

/// Parses how many messages of a partition are handled at once: `serial`, `unordered:64`, `per-key:64`.
pub(super) fn concurrency(text: &str) -> Result<Concurrency, String> {
    let wrong = || format!("{text:?} is no concurrency: serial, unordered:64 and per-key:64 are");
    if text == "serial" {
        return Ok(Concurrency::Serial);
    }
    let (order, at_once) = text.split_once(':').ok_or_else(wrong)?;
    let at_once = at_once.parse().ok().filter(|at_once| (1..=10_000).contains(at_once)).ok_or_else(wrong)?;
    match order {
        "unordered" => Ok(Concurrency::Unordered(at_once)),
        "per-key" => Ok(Concurrency::PerKey(at_once)),
        _ => Err(wrong()),
    }
}

/// Parses the factor of a suite's messages and seconds.
pub(super) fn scale(text: &str) -> Result<f64, String> {
    let factor = text.parse().map_err(|_| "not a number".to_owned())?;
    let allowed = 0.000_1..=100.0;
    allowed.contains(&factor).then_some(factor).ok_or_else(|| "0.0001 to 100 are allowed".to_owned())
}

/// Parses a number of messages in one request.
pub(super) fn batch() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=10_000)
}

/// Parses a number of things that are opened one by one: groups, members.
pub(super) fn thousand() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1_000)
}

/// Parses a number of messages that are stored before a run: more would not fit into memory anyway.
pub(super) fn stored() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(0..=100_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_per_second_or_a_share() {
        assert_eq!(rate("1000/s"), Ok(Rate::PerSecond(1000.0)));
        assert_eq!(rate("0.5"), Ok(Rate::PerSecond(0.5)));
        assert_eq!(rate("50%"), Ok(Rate::Share(0.5)));
        for wrong in ["", "0", "-1", "many", "101%", "0%", "1/m", "NaN", "inf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("1.5s"), Ok(Duration::from_millis(1_500)));
        assert_eq!(seconds_or_none("0"), Ok(Duration::ZERO));
        assert!(seconds("0").is_err() && seconds("NaN").is_err() && seconds("1e9").is_err());
        assert!(seconds_or_none("-1").is_err() && seconds_or_none("NaN").is_err());
    }

    #[test]
    fn a_concurrency_is_an_order_and_a_number() {
        assert_eq!(concurrency("serial"), Ok(Concurrency::Serial));
        assert_eq!(concurrency("unordered:64"), Ok(Concurrency::Unordered(64)));
        assert_eq!(concurrency("per-key:1"), Ok(Concurrency::PerKey(1)));
        for wrong in ["", "unordered", "per-key:0", "unordered:10001", "serial:2", "key:2"] {
            assert!(concurrency(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scale_is_a_factor() {
        assert_eq!(scale("0.01"), Ok(0.01));
        assert!(scale("0").is_err() && scale("NaN").is_err() && scale("1e3").is_err());
    }
}
