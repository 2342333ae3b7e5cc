//! Dead letters, replayed and purged in steps.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream::admin::{DeadLetterFilter, Replay, Replayer};
use millstream::{DeadLetterQueue, MessageId, Partition, Result};
use tokio::time::Instant;

use super::Action;

/// Number of letters of one step of a purge.
const STEP: usize = 500;
/// Time for which errors that pass by themselves are repeated.
const OUTAGE_LIMIT: Duration = Duration::from_secs(20);
/// Pause before a step is repeated.
const AGAIN: Duration = Duration::from_millis(250);

/// Replays the letters that match.
///
/// # Errors
/// Those of `DeadLetterQueue::replayer`, and of its steps.
pub(crate) async fn replay(
    running: &Action,
    queue: &DeadLetterQueue,
    filter: &DeadLetterFilter,
    settings: Replay,
) -> Result<()> {
    let mut replayer = queue.replayer(filter, settings).await?;
    // The first error since the last success.
    let mut since: Option<Instant> = None;
    // Also one that is to stop deletes what it has sent: otherwise somebody could send it again.
    while !replayer.is_done() && (!running.is_cancelled() || replayer.has_sent()) {
        let step = if running.is_cancelled() { replayer.settle().await } else { replayer.run_once().await };
        match step {
            Ok(()) => since = None,
            Err(error)
                if error.is_transient()
                    && since.get_or_insert_with(Instant::now).elapsed() < OUTAGE_LIMIT =>
            {
                // Not that of the action, which does not pause any more when it is to stop.
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(error) => {
                if replayer.has_sent() {
                    running.note("some were sent and not deleted: after 30 s they can be replayed, and are sent again then");
                }
                return Err(error);
            }
        }
        show(running, &replayer);
        if !replayer.is_done() {
            running.pause(replayer.wait()).await;
        }
    }
    for refusal in &replayer.replayed().refusals {
        running.note(format!("{} of {} stays: {}", refusal.id, refusal.topic_partition, refusal.why));
    }
    Ok(())
}

fn show(running: &Action, replayer: &Replayer) {
    let replayed = replayer.replayed();
    running.set(replayed.replayed, replayed.passed_over + replayed.refused);
}

/// Deletes the letters that match, at most `most`. Each step reads letters, and deletes those ids.
///
/// # Errors
/// Those of `DeadLetterQueue::purge_where`.
pub(crate) async fn purge(
    running: &Action,
    queue: &DeadLetterQueue,
    filter: &DeadLetterFilter,
    most: Option<u64>,
) -> Result<()> {
    let mut walk = queue.walk(filter, most).await?;
    while !walk.is_done() && !running.is_cancelled() {
        let mut found: BTreeMap<Partition, Vec<MessageId>> = BTreeMap::new();
        for letter in walk.run_once(STEP).await? {
            found.entry(letter.topic_partition.partition).or_default().push(letter.id);
        }
        for (partition, ids) in found {
            let count = ids.len() as u64;
            let these = DeadLetterFilter {
                partitions: Some(vec![partition]),
                ids: Some(ids),
                ..DeadLetterFilter::default()
            };
            let purged = queue.purge_where(&these, None).await?;
            running.add(purged);
            running.skip(count - purged.min(count));
        }
    }
    Ok(())
}
