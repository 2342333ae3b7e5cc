//! Options that say when something recurs.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use millstream::Timestamp;
use millstream::delay::{Missed, Recur, Rule};

use crate::exit::Usage;
use crate::parse;

/// The rule
#[derive(Args, Debug)]
pub(super) struct ScheduleWhen {
    /// Cron pattern: minute, hour, day of the month, month, weekday; optionally with seconds in front
    #[arg(long, value_name = "PATTERN", conflicts_with = "every", required_unless_present = "every")]
    cron: Option<String>,
    /// Time zone of the cron pattern, such as Europe/Zurich
    #[arg(long, default_value = "UTC", requires = "cron")]
    zone: String,
    /// Fixed interval: `10m`; at least 100ms
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    every: Option<Duration>,
    /// Policy for missed times: `skip`, `once` (send for the newest one), or `all:N` (for the newest N)
    #[arg(long, value_parser = missed, default_value = "once", value_name = "WHAT")]
    missed: Missed,
    /// Lateness from which a time counts as missed
    #[arg(long, value_parser = parse::duration, default_value = "60s", value_name = "TIME")]
    grace: Duration,
}

fn missed(text: &str) -> Result<Missed, String> {
    match (text, text.strip_prefix("all:").map(str::parse)) {
        ("skip", _) => Ok(Missed::Skip),
        ("once", _) => Ok(Missed::Once),
        (_, Some(Ok(number))) => Ok(Missed::All(number)),
        _ => Err(format!("{text:?} is none of skip, once and all:5")),
    }
}

impl ScheduleWhen {
    /// Returns the rule. `now` is the time from which an interval is counted.
    pub(super) fn rule(&self, now: Timestamp) -> Result<Rule> {
        let rule = match (&self.cron, self.every) {
            (Some(pattern), _) => Rule::cron(pattern, &self.zone)?,
            (None, Some(period)) => Rule::every(period, now)?,
            (None, None) => return Err(Usage("when is it to recur? --cron or --every says it".into()).into()),
        };
        Ok(rule.missed(self.missed)?.grace(self.grace)?)
    }

    pub(super) fn of<'a>(&self, recur: Recur<'a, Bytes>) -> Recur<'a, Bytes> {
        let recur = match (&self.cron, self.every) {
            (Some(pattern), _) => recur.cron(pattern, &self.zone),
            (None, Some(period)) => recur.every(period),
            (None, None) => recur,
        };
        recur.missed(self.missed).grace(self.grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_of_missed_times_has_three_words() {
        assert_eq!(missed("skip"), Ok(Missed::Skip));
        assert_eq!(missed("once"), Ok(Missed::Once));
        assert_eq!(missed("all:5"), Ok(Missed::All(5)));
        for wrong in ["", "all", "all:", "all:-1", "none"] {
            assert!(missed(wrong).is_err(), "{wrong}");
        }
    }
}
