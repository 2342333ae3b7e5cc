//! What failed, replayed and changed in steps.

use std::time::Duration;

use millstream::admin::{Replay, Replayed, Replayer, ShelfActing, ShelfFilter};
use millstream::{DeadLetterQueue, Result};
use tokio::time::Instant;

use super::Action;

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
    filter: &ShelfFilter,
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
                    running.note("some were sent and not deleted: after 30 s they can be replayed again, and within 10 minutes none of them is there twice");
                }
                return Err(error);
            }
        }
        show(running, &replayer);
        if !replayer.is_done() {
            running.pause(replayer.wait()).await;
        }
    }
    let Replayed { unconfirmed, refusals, .. } = replayer.replayed();
    if *unconfirmed > 0 {
        running.note(format!(
            "{unconfirmed} were gone after a request without an answer, which has most likely replayed them"
        ));
    }
    for refusal in refusals {
        running.note(format!("{} of {} stays: {}", refusal.id, refusal.topic_partition, refusal.why));
    }
    Ok(())
}

fn show(running: &Action, replayer: &Replayer) {
    let replayed = replayer.replayed();
    running.set(replayed.replayed, replayed.passed_over + replayed.unconfirmed + replayed.refused);
}

/// Changes what failed.
///
/// # Errors
/// Those of `ShelfActing::run_once`.
pub(crate) async fn change(running: &Action, mut acting: ShelfActing) -> Result<()> {
    while !acting.is_done() && !running.is_cancelled() {
        let (done, skipped) = acting.run_once().await?;
        running.add(done);
        running.skip(skipped);
    }
    Ok(())
}
