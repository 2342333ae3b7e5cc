//! Dead tasks of a delay queue, replayed and purged in steps.

use bytes::Bytes;
use millstream::Result;
use millstream::delay::{DeadTaskFilter, DeadTasks};

use super::Action;

/// Change of dead tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Replay,
    Purge,
}

/// Changes the dead tasks that match, at most so many.
///
/// # Errors
/// Those of `DeadTasks::replay` and `DeadTasks::purge`.
pub(crate) async fn settle(
    running: &Action,
    dead: &DeadTasks<Bytes>,
    filter: DeadTaskFilter,
    most: u64,
    change: Change,
) -> Result<()> {
    let (mut walk, mut left) = (dead.walk(filter), most);
    while !walk.is_done() && left > 0 && !running.is_cancelled() {
        let mut tasks = walk.run_once().await?;
        tasks.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= tasks.len() as u64;
        let done = match change {
            Change::Replay => dead.replay(&tasks).await?,
            Change::Purge => dead.purge(&tasks).await?,
        };
        running.add(done);
        running.skip(tasks.len() as u64 - done.min(tasks.len() as u64));
    }
    Ok(())
}
