//! `queue dead replay` and `purge`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;
use millstream::MessageId;
use millstream::crates::core::{QueueName, Shard};
use millstream::delay::DeadTasks;
use schemars::JsonSchema;
use serde::Serialize;

use super::{DeadTaskWanted, dead};
use crate::commands::DryRun;
use crate::commands::message::sanitize;
use crate::commands::shared::count_progress::CountProgress;
use crate::context::Context;
use crate::exit::{Exit, Usage, not_found};
use crate::human;

/// Number of tasks changed in one request.
const PAGE: usize = 100;

/// Schedules dead tasks again, due immediately, as first attempts
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead replay mails welcome-42 welcome-43
  millstream queue dead replay mails --fingerprint 8f3c0a51d27be694
  millstream queue dead replay mails --all --yes")]
pub(super) struct DeadTaskReplay {
    #[command(flatten)]
    chosen: DeadTaskChosen,
}

/// Deletes dead tasks permanently
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead purge mails welcome-42
  millstream queue dead purge mails --error 'no such mailbox' --dry-run
  millstream queue dead purge mails --all --yes")]
pub(super) struct DeadTaskPurge {
    #[command(flatten)]
    chosen: DeadTaskChosen,
}

/// Selection of dead tasks
#[derive(Args, Debug)]
struct DeadTaskChosen {
    /// The delay queue
    queue: QueueName,
    /// Ids of tasks
    #[arg(value_name = "TASK", conflicts_with = "all")]
    tasks: Vec<String>,
    #[command(flatten)]
    wanted: DeadTaskWanted,
    /// All tasks that are dead now
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// The results.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeadTaskOutcome {
    /// The number of tasks; in a dry run, of those that would be changed.
    count: u64,
    /// The named tasks that are not dead, or could not be replayed.
    missing: Vec<String>,
    dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Replay,
    Purge,
}

impl DeadTaskReplay {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.chosen.each(cx, Action::Replay).await
    }
}

impl DeadTaskPurge {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.chosen.each(cx, Action::Purge).await
    }
}

/// Ids of tasks by shard.
type Found = BTreeMap<Shard, Vec<MessageId>>;

impl DeadTaskChosen {
    async fn each(&self, cx: &Context, action: Action) -> Result<Exit> {
        let filter = self.wanted.filter(&self.tasks)?;
        if filter.is_empty() && !self.all {
            let message = "which tasks? Ids, a filter (--error, --fingerprint) or --all says it";
            return Err(Usage(message.into()).into());
        }
        let dead = dead(cx, &self.queue).await?;
        // Limits the change to the tasks in the prompt, without those that died while it was read.
        let (found, missing) = self.find(&dead).await?;
        let count = found.values().map(Vec::len).sum::<usize>() as u64;
        let what = human::of(count, "dead task", "dead tasks");
        if !self.dry.dry_run && count > 0 {
            match action {
                Action::Purge => {
                    cx.confirm(&format!("Delete {what} of {} permanently?", self.queue))?;
                }
                Action::Replay if self.tasks.is_empty() => {
                    cx.confirm(&format!("Replay {what} of {}?", self.queue))?;
                }
                Action::Replay => {}
            }
        }
        let done = if self.dry.dry_run { count } else { act(cx, &found, action).await? };
        let missing: Vec<_> = missing.into_iter().collect();
        let outcome = DeadTaskOutcome { count: done, missing, dry_run: self.dry.dry_run };
        let verb = match action {
            Action::Replay => "replayed",
            Action::Purge => "deleted",
        };
        cx.output.show(&outcome, |it| {
            let verb = if it.dry_run { format!("would be {verb}") } else { verb.to_owned() };
            format!("{} {verb}", human::of(it.count, "dead task", "dead tasks"))
        })?;
        for task in &outcome.missing {
            cx.output.note(&format!("{}: it is not dead", sanitize::line(task.as_bytes())));
        }
        if !self.all && done < count {
            let left = human::of(count - done, "task", "tasks");
            bail!("{left} could not be {verb}: deleted meanwhile, or the id is in use");
        }
        match outcome.missing.len() as u64 {
            0 => Ok(Exit::Done),
            missing => {
                let (all, are) = (
                    human::of(self.tasks.len() as u64, "task", "tasks"),
                    if missing == 1 { "is" } else { "are" },
                );
                Err(not_found(format!("{} of {all} {are} not dead", human::count(missing))))
            }
        }
    }

    /// Returns the ids of the selected dead tasks, and the names without a dead task. Only ids are kept in memory.
    async fn find(&self, dead: &DeadTasks<bytes::Bytes>) -> Result<(Found, BTreeSet<String>)> {
        let mut missing: BTreeSet<String> = self.tasks.iter().cloned().collect();
        let mut found = Found::new();
        let (mut walk, mut progress) = (dead.walk(self.wanted.filter(&self.tasks)?), CountProgress::new());
        while !walk.is_done() {
            for task in walk.run_once().await? {
                missing.remove(task.task.as_str());
                found.entry(task.shard).or_default().push(task.id);
            }
            progress.set(walk.looked_at(), "task", "tasks");
        }
        Ok((found, missing))
    }
}

/// Applies the operation to each task that still exists. Returns their number.
async fn act(cx: &Context, found: &Found, action: Action) -> Result<u64> {
    let tasks = cx.mq.backend().tasks()?;
    let mut done = 0;
    for (shard, ids) in found {
        for ids in ids.chunks(PAGE) {
            done += match action {
                Action::Replay => tasks.replay_tasks(shard, ids).await?,
                Action::Purge => tasks.purge_tasks(shard, ids).await?,
            } as u64;
        }
    }
    Ok(done)
}
