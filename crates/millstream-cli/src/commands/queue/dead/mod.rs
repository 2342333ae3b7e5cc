//! `millstream queue dead`: tasks that were given up.

mod change;
mod edit;
mod inspect;
mod trim;

use std::collections::BTreeSet;

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::crates::core::Fingerprint;
use millstream::crates::core::QueueName;
use millstream::crates::core::tasks::DeadTask;
use millstream::delay::{DeadTaskFilter, DeadTasks};

use crate::commands::Running;
use crate::commands::scheduled::recurring;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::context::Context;
use crate::exit::{Usage, not_found};

pub(in crate::commands) use inspect::content;

/// Lists, shows, groups by error, exports, replays, edits, purges and trims dead tasks
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead list mails
  millstream queue dead errors mails
  millstream queue dead replay mails welcome-42")]
pub(super) struct Dead {
    #[command(subcommand)]
    what: DeadTaskCommand,
}

#[derive(Debug, Subcommand)]
enum DeadTaskCommand {
    List(inspect::DeadTaskList),
    Show(inspect::DeadTaskShow),
    Errors(inspect::DeadTaskErrors),
    Export(inspect::DeadTaskExport),
    Replay(change::DeadTaskReplay),
    Edit(edit::Edit),
    Purge(change::DeadTaskPurge),
    Trim(trim::DeadTaskTrim),
}

/// Filter of dead tasks, in which all conditions must match
#[derive(Args, Clone, Debug, Default)]
struct DeadTaskWanted {
    /// Tasks with this text in the error of the last attempt
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Tasks with the error of this fingerprint, which `queue dead errors` shows
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<Fingerprint>,
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("queue dead list", of::<Vec<inspect::DeadTaskShown<'static>>>()),
    ("queue dead show", of::<inspect::DeadTaskShown<'static>>()),
    ("queue dead errors", of::<ErrorsView<String>>()),
    ("queue dead export", of::<inspect::DeadTaskShown<'static>>()),
    ("queue dead edit", of::<edit::Edited<'static>>()),
    ("queue dead replay", of::<change::DeadTaskOutcome>()),
    ("queue dead purge", of::<change::DeadTaskOutcome>()),
    ("queue dead trim", of::<trim::DeadTaskTrimmed>()),
];

impl DeadTaskWanted {
    /// Returns the filter for the library. Without ids, all tasks are meant.
    fn filter(&self, tasks: &[String]) -> Result<DeadTaskFilter> {
        if tasks.iter().any(String::is_empty) {
            return Err(Usage("a task has an id that is not empty".into()).into());
        }
        let tasks: Option<BTreeSet<_>> = (!tasks.is_empty()).then(|| tasks.iter().cloned().collect());
        Ok(DeadTaskFilter {
            tasks,
            error: self.error.clone(),
            fingerprint: self.fingerprint,
            ..DeadTaskFilter::default()
        })
    }
}

impl Dead {
    pub(super) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            DeadTaskCommand::List(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Show(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Errors(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Export(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Replay(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Edit(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Purge(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Trim(it) => Box::pin(it.run(cx)),
        }
    }
}

/// Returns the dead tasks of an existing queue.
async fn dead(cx: &Context, queue: &QueueName) -> Result<DeadTasks<bytes::Bytes>> {
    Ok(recurring::queue(cx, queue).await?.dead())
}

/// Returns the newest dead task with this id, and the number of older ones.
///
/// # Errors
/// If there is none.
async fn newest(dead: &DeadTasks<bytes::Bytes>, queue: &QueueName, task: &str) -> Result<(DeadTask, u64)> {
    let filter = DeadTaskWanted::default().filter(&[task.to_owned()])?;
    let (mut walk, mut progress) = (dead.walk(filter), CountProgress::new());
    let (mut newest, mut found) = (None::<DeadTask>, 0);
    while !walk.is_done() {
        for task in walk.run_once().await? {
            found += 1;
            if newest.as_ref().is_none_or(|newest| newest.id < task.id) {
                newest = Some(task);
            }
        }
        progress.set(walk.looked_at(), "task", "tasks");
    }
    match newest {
        Some(newest) => Ok((newest, found - 1)),
        None => Err(not_found(format!("there is no dead task {task:?} in delay queue {queue}"))),
    }
}
