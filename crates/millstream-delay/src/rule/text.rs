//! Rules as text: the stored form, which is also shown to users.

use std::fmt;
use std::str::FromStr;

use millstream_core::error::{Error, Result};

use super::{Cron, GRACE, Missed, Rule, When, invalid};

/// Maximum length of a rule, in bytes.
const MAX_LEN: usize = 1_024;

/// Writes `cron <zone> <missed> <pattern>` or `every <ms> anchor <ms> <missed>`, where missed is `skip`, `once` or
/// `all:<n>`, and may be followed by `grace:<ms>`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missed = Words { missed: self.missed, grace: self.grace };
        match &self.when {
            When::Cron(cron) => write!(f, "cron {} {missed} {}", cron.zone(), cron.pattern()),
            When::Every { period, anchor } => write!(f, "every {period} anchor {anchor} {missed}"),
        }
    }
}

struct Words {
    missed: Missed,
    grace: u64,
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.missed {
            Missed::Skip => f.write_str("skip")?,
            Missed::Once => f.write_str("once")?,
            Missed::All(most) => write!(f, "all:{most}")?,
        }
        if u128::from(self.grace) != GRACE.as_millis() {
            write!(f, " grace:{}", self.grace)?;
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() > MAX_LEN {
            return Err(invalid(format!("a rule of {} bytes, at most {MAX_LEN} are allowed", text.len())));
        }
        let words: Vec<_> = text.split_whitespace().collect();
        let (when, rest) = match words.as_slice() {
            ["cron", zone, rest @ ..] => {
                let pattern = rest.iter().position(|word| !is_policy(word)).unwrap_or(rest.len());
                (When::Cron(Box::new(Cron::new(&rest[pattern..].join(" "), zone)?)), &rest[..pattern])
            }
            ["every", period, "anchor", anchor, rest @ ..] => {
                (When::Every { period: number(period)?, anchor: number(anchor)? }, rest)
            }
            _ => return Err(unreadable(text)),
        };
        let (missed, grace) = match rest {
            [missed] => (missed, GRACE.as_millis() as u64),
            [missed, grace] => {
                (missed, number(grace.strip_prefix("grace:").ok_or_else(|| unreadable(text))?)?)
            }
            _ => return Err(unreadable(text)),
        };
        let missed = match *missed {
            "skip" => Missed::Skip,
            "once" => Missed::Once,
            other => Missed::All(number(other.strip_prefix("all:").ok_or_else(|| unreadable(text))?)?),
        };
        let rule = Self { when, missed, grace };
        rule.check()?;
        Ok(rule)
    }
}

fn is_policy(word: &str) -> bool {
    matches!(word, "skip" | "once") || word.starts_with("all:") || word.starts_with("grace:")
}

fn number<N: FromStr>(word: &str) -> Result<N> {
    word.parse().map_err(|_| invalid(format!("{word:?} is no number that a rule can have")))
}

fn unreadable(text: &str) -> Error {
    invalid(format!("{text:?} is no rule that this version knows"))
}
