//! Trimming of dead letters: calls of the script `trim_dead` for a retention, and the sum of their results.

use millstream_core::dead_letters::{DeadLetterRetention, TrimBy, TrimmedLetters};
use millstream_core::error::{Error, Result};
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use redis::Value;

use crate::backend::RedisBackend;
use crate::conn::replies::reply;
use crate::error::fenced;
use crate::scripts::retention::figures;
use crate::scripts::script;

/// Maximum number of calls for an owner, one after the other.
const CALLS: usize = 64;

/// Position up to which dead letters were examined.
#[derive(Default)]
struct DeadTrimPosition {
    after: String,
    /// Number of letters up to it that stay.
    passed: u64,
}

impl RedisBackend {
    pub(crate) async fn trim_dead_by(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        let mut trimmed = TrimmedLetters::default();
        if retention.is_keep() {
            return Ok(trimmed);
        }
        let keys = &self.inner.keys;
        let keys = [keys.fence(tp, group), keys.dead_letters(tp, group), keys.dead_claims(tp, group)];
        let (mode, token) = match by {
            TrimBy::Owner(lease) => ("lease", lease.token.as_str()),
            TrimBy::Operator => ("operator", ""),
            TrimBy::DryRun => ("count", ""),
        };
        let (age, length) = figures(retention);
        let mut position = DeadTrimPosition::default();
        for n in 0.. {
            let call = self.inner.scripts.trim_dead.call(keys.each_ref());
            let call = call.args([mode, token, &age, &length, &position.after]).arg(position.passed);
            let answer = script::run_one(&self.inner.messages, call).await;
            let on = |error: Error| match by {
                TrimBy::Owner(lease) => fenced(error, lease),
                _ => error.at(tp),
            };
            match answer.and_then(|answer| add(&mut trimmed, answer)).map_err(on) {
                Ok(None) => return Ok(trimmed),
                Ok(Some(_)) if matches!(by, TrimBy::Owner(_)) && n + 1 == CALLS => break,
                Ok(Some(next)) => position = next,
                // Return the result so far, or the dropped letters would never be counted. `more` stays set, and the next
                // trim meets the error again if it persists.
                Err(error) if n > 0 && matches!(by, TrimBy::Owner(_)) => {
                    let dropped = trimmed.dropped();
                    tracing::warn!(dead_letters = %keys[1], %error, dropped, "trimming was stopped");
                    break;
                }
                Err(error) => return Err(error.during(format_args!("trim {}", keys[1]))),
            }
        }
        trimmed.more = true;
        Ok(trimmed)
    }
}

/// Adds the result of a call. Returns the position at which the next one continues; `None` at the end.
fn add(trimmed: &mut TrimmedLetters, answer: Value) -> Result<Option<DeadTrimPosition>> {
    let [aged, excess, claimed, more, after, passed] = reply::tuple(answer)?;
    let number = |value: Value| reply::count(value).map(|number| number as u64);
    trimmed.aged += number(aged)?;
    trimmed.excess += number(excess)?;
    trimmed.claimed += number(claimed)?;
    let position = DeadTrimPosition { after: reply::text(after)?, passed: number(passed)? };
    Ok((reply::int(more)? == 1).then_some(position))
}
