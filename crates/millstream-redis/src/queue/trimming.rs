//! Trimming of dead tasks: calls of the script `trim_tasks` for a retention, and the sum of their results.

use millstream_core::dead_letters::DeadLetterRetention;
use millstream_core::error::Result;
use millstream_core::schedule::Shard;
use millstream_core::tasks::{TrimTasksBy, TrimmedTasks};
use redis::Value;

use crate::backend::Inner;
use crate::conn::replies::reply;
use crate::scripts::retention::figures;
use crate::scripts::script;

/// Maximum number of calls for a worker, one after the other.
const CALLS: usize = 64;

/// Position up to which dead tasks were counted.
#[derive(Default)]
struct TaskTrimPosition {
    after: String,
    /// Number of tasks up to it.
    passed: u64,
}

impl Inner {
    pub(crate) async fn trim_dead_tasks(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        let mut trimmed = TrimmedTasks::default();
        if retention.is_keep() {
            return Ok(trimmed);
        }
        let key = self.keys.dead_tasks(shard);
        let (mode, until) = match by {
            TrimTasksBy::Worker { until } => ("worker", until.as_millis().to_string()),
            TrimTasksBy::Operator => ("operator", String::new()),
            TrimTasksBy::DryRun => ("count", String::new()),
        };
        let is_worker = matches!(by, TrimTasksBy::Worker { .. });
        let (age, length) = figures(retention);
        let mut position = TaskTrimPosition::default();
        for n in 0.. {
            let call = self.scripts.trim_tasks.call([&key]);
            let call = call.args([mode, &until, &age, &length, &position.after]).arg(position.passed);
            let answer = script::run_one(&self.messages, call).await;
            match answer.and_then(|answer| add(&mut trimmed, answer)) {
                Ok(None) => return Ok(trimmed),
                Ok(Some(_)) if is_worker && n + 1 == CALLS => break,
                Ok(Some(next)) => position = next,
                // Return the result so far, or the dropped tasks would never be counted. `more` stays set, and the next trim
                // meets the error again if it persists.
                Err(error) if n > 0 && is_worker => {
                    let dropped = trimmed.dropped();
                    tracing::warn!(dead_tasks = %key, %error, dropped, "trimming was stopped");
                    break;
                }
                Err(error) => return Err(error.during(format_args!("trim {key}"))),
            }
        }
        trimmed.more = true;
        Ok(trimmed)
    }
}

/// Adds the result of a call. Returns the position at which the next one continues; `None` at the end.
fn add(trimmed: &mut TrimmedTasks, answer: Value) -> Result<Option<TaskTrimPosition>> {
    let [aged, excess, more, after, passed] = reply::tuple(answer)?;
    let number = |value: Value| reply::count(value).map(|number| number as u64);
    trimmed.aged += number(aged)?;
    trimmed.excess += number(excess)?;
    let position = TaskTrimPosition { after: reply::text(after)?, passed: number(passed)? };
    Ok((reply::int(more)? == 1).then_some(position))
}
