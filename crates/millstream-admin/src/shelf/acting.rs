//! Changes of what failed, step by step.

use std::collections::BTreeMap;

use millstream_core::schedule::{Placed, Scheduling};
use millstream_core::tasks::DeadTask;
use millstream_core::wire::Fields;
use millstream_core::{Due, MessageId, OnConflict, Partition, Result};

use super::{PORTION, Shelf, ShelfWalk};

/// Change of what is on a shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShelfAction {
    /// Replays dead letters and dead tasks; makes retries due now.
    Retry,
    /// Deletes dead letters and dead tasks permanently; makes retries dead letters.
    Drop,
}

/// What a [`ShelfActing`] changes: what a walk finds, or what was selected before.
#[derive(Debug)]
pub(super) enum Source {
    Walk(Box<ShelfWalk>),
    Ids(Vec<(Partition, MessageId)>),
}

/// Changes what was surveyed, step by step. It may be dropped between two steps.
#[derive(Debug)]
pub struct ShelfActing {
    pub(super) shelf: Shelf,
    pub(super) action: ShelfAction,
    pub(super) source: Source,
    pub(super) changed: u64,
}

impl ShelfActing {
    /// Runs one step. Returns the numbers of items that were changed, and of those that were gone, or that others have claimed.
    ///
    /// # Errors
    /// Transient ones: what was changed before the error stays changed. [`changed`](Self::changed) counts it; after
    /// [`ErrorKind::Unconfirmed`](millstream_core::ErrorKind::Unconfirmed) a part of the last request may have been done, too.
    pub async fn run_once(&mut self) -> Result<(u64, u64)> {
        let step: Vec<_> = match &mut self.source {
            Source::Walk(walk) => {
                let found = walk.run_once(PORTION).await?;
                found.iter().map(|it| (it.facts().partition, it.facts().id)).collect()
            }
            Source::Ids(ids) => ids.split_off(ids.len().saturating_sub(PORTION)),
        };
        let mut lanes: BTreeMap<Partition, Vec<MessageId>> = BTreeMap::new();
        for (partition, id) in &step {
            lanes.entry(*partition).or_default().push(*id);
        }
        let before = self.changed;
        for (partition, ids) in lanes {
            self.shelf.act_on(partition, &ids, self.action, &mut self.changed).await?;
        }
        let done = self.changed - before;
        Ok((done, (step.len() as u64).saturating_sub(done)))
    }

    /// Returns the number of items that were changed so far.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// Returns whether nothing is left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.source {
            Source::Walk(walk) => walk.is_done(),
            Source::Ids(ids) => ids.is_empty(),
        }
    }

    /// Runs all steps. Returns the number of changed items.
    ///
    /// # Errors
    /// Same as [`run_once`](Self::run_once).
    pub async fn run(mut self) -> Result<u64> {
        while !self.is_done() {
            self.run_once().await?;
        }
        Ok(self.changed)
    }
}

impl Shelf {
    /// Returns whether a dead task could be scheduled again now: false if its id waits. The ids of tasks that are worked on, or were
    /// completed within the window of their worker, are not known here.
    ///
    /// # Errors
    /// Those of [`Schedule::get`](millstream_core::Schedule::get).
    pub async fn can_replay(&self, task: &DeadTask) -> Result<bool> {
        let waits = self.admin.backend.schedule().get(&task.shard.clone().into(), &task.task).await?;
        Ok(waits.is_none())
    }

    /// Schedules a dead task again with another message, due immediately, as a first attempt, under its old id. Returns
    /// false if the id waits, is worked on, or was completed within the window of its worker: then nothing is changed.
    ///
    /// The task is scheduled before it is removed from the dead ones: after an error in between it is in both places, and
    /// a repetition returns false as long as the new one waits.
    ///
    /// # Errors
    /// [`ErrorKind::Encode`](millstream_core::ErrorKind::Encode) for a message without fields; those of
    /// [`Schedule::schedule`](millstream_core::Schedule::schedule) and [`Tasks::purge_tasks`](millstream_core::Tasks::purge_tasks).
    pub async fn replay_task_as(&self, task: &DeadTask, message: Fields) -> Result<bool> {
        let scheduling = Scheduling {
            place: task.shard.clone().into(),
            id: task.task.clone(),
            due: Due::NOW,
            fields: message,
            on_conflict: OnConflict::Keep,
        };
        let placed = self.admin.backend.schedule().schedule(&[scheduling]).await.pop();
        if placed.transpose()? != Some(Placed::New) {
            return Ok(false);
        }
        self.act_on(Partition(task.shard.shard), &[task.id], ShelfAction::Drop, &mut 0).await?;
        Ok(true)
    }
}
