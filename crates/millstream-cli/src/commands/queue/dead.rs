//! `millstream queue dead`: tasks that were given up.

use anyhow::{Result, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use millstream::ErrorKind;
use millstream::admin::{Edit, Failed, ShelfAction, ShelfFilter};
use millstream::crates::core::QueueName;
use millstream::delay::DeadTask;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::dlq::edit::{EditArgs, Editor};
use crate::commands::message::sanitize;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shelf::change::{Changed, change};
use crate::commands::shelf::read::{ExportTo, Exported, errors, first};
use crate::commands::shelf::trim::{Trim, TrimView};
use crate::commands::shelf::view::{Shown, TaskView, story, table};
use crate::commands::shelf::{Chosen, DeadWanted, Opened};
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::{Exit, not_found};
use crate::{human, parse};

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
    List(DeadTaskList),
    Show(DeadTaskShow),
    Errors(DeadTaskErrors),
    Export(DeadTaskExport),
    Replay(DeadTaskReplay),
    Edit(DeadTaskEdit),
    Purge(DeadTaskPurge),
    Trim(DeadTaskTrim),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("queue dead list", of::<Vec<TaskView<'static>>>()),
    ("queue dead show", of::<TaskView<'static>>()),
    ("queue dead errors", of::<ErrorsView<String>>()),
    ("queue dead export", of::<Exported<TaskView<'static>>>()),
    ("queue dead edit", of::<Edited<TaskView<'static>>>()),
    ("queue dead replay", of::<Changed<TaskView<'static>>>()),
    ("queue dead purge", of::<Changed<TaskView<'static>>>()),
    ("queue dead trim", of::<TrimView>()),
];

impl Dead {
    pub(super) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            DeadTaskCommand::List(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Show(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Errors(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Export(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Replay(it) => Box::pin(it.chosen.change(cx, ShelfAction::Retry)),
            DeadTaskCommand::Edit(it) => Box::pin(it.run(cx)),
            DeadTaskCommand::Purge(it) => Box::pin(it.chosen.change(cx, ShelfAction::Drop)),
            DeadTaskCommand::Trim(it) => Box::pin(it.run(cx)),
        }
    }
}

/// Dead tasks of a queue
#[derive(Args, Debug)]
struct DeadTaskOf {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    wanted: DeadWanted,
}

impl DeadTaskOf {
    async fn open(&self, cx: &Context) -> Result<(Opened, ShelfFilter)> {
        let filter = self.wanted.filter(cx).await?;
        Ok((Opened::queue(cx, &self.queue, &filter).await?, filter))
    }
}

/// Lists dead tasks with their errors, oldest first
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead list mails --limit 20
  millstream queue dead list mails --json | jq -r '.data[].task'")]
struct DeadTaskList {
    #[command(flatten)]
    of: DeadTaskOf,
    /// Maximum number of tasks
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = parse::limit)]
    limit: usize,
}

impl DeadTaskList {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (opened, filter) = self.of.open(cx).await?;
        let (tasks, more) = first(&opened, &filter, self.limit).await?;
        let shown: Vec<_> = tasks.iter().map(Shown).collect();
        cx.output.show(&shown, |_| table(&tasks, millstream::Timestamp::default()))?;
        let some = human::count(tasks.len() as u64);
        if filter.is_empty() && more {
            let total = human::count(opened.shelf.count().await?);
            cx.output.note(&format!("{some} of {total}; --limit shows more"));
        } else if more {
            cx.output.note(&format!("the first {some}; --limit shows more"));
        }
        Ok(Exit::Done)
    }
}

/// Shows a dead task with its attempts, headers and payload
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead show mails welcome-42
  millstream queue dead show mails welcome-42 --json | jq .data.payload")]
struct DeadTaskShow {
    #[command(flatten)]
    task: OneTask,
}

impl DeadTaskShow {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (_, task, older) = self.task.newest(cx).await?;
        cx.output.show(&TaskView::of(&task), |_| {
            let place = vec![
                ("task", sanitize::line(task.task.as_str().as_bytes())),
                ("queue", task.shard.queue.to_string()),
                ("shard", task.shard.shard.to_string()),
            ];
            story(&Failed::Task(task.clone()).facts(), place)
        })?;
        note_older(cx, older);
        Ok(Exit::Done)
    }
}

fn note_older(cx: &Context, older: u64) {
    if older > 0 {
        let older = human::of(older, "older dead task", "older dead tasks");
        cx.output.note(&format!("{older} with this id; `queue dead list` shows them"));
    }
}

/// A dead task
#[derive(Args, Debug)]
struct OneTask {
    /// The delay queue
    queue: QueueName,
    /// Id of the task. If tasks with this id died several times, the newest is meant
    task: String,
}

impl OneTask {
    /// Returns the newest dead task with this id, and the number of older ones.
    ///
    /// # Errors
    /// If there is none.
    async fn newest(&self, cx: &Context) -> Result<(Opened, DeadTask, u64)> {
        let filter = ShelfFilter { tasks: Some([self.task.clone()].into()), ..ShelfFilter::default() };
        let opened = Opened::queue(cx, &self.queue, &filter).await?;
        let (mut walk, mut newest, mut found) = (opened.shelf.walk(&filter, None).await?, None, 0);
        while !walk.is_done() {
            let tasks = walk.run_once(usize::MAX).await?;
            found += tasks.len() as u64;
            newest = tasks.into_iter().filter_map(Failed::task).last().or(newest);
        }
        match newest {
            Some(newest) => Ok((opened, newest, found - 1)),
            None => {
                let Self { queue, task } = self;
                Err(not_found(format!("there is no dead task {task:?} in delay queue {queue}")))
            }
        }
    }
}

/// Groups dead tasks by their errors, the most frequent first
///
/// Errors that differ only in numbers, ids, quoted strings, paths, addresses or times are one group, with one fingerprint:
/// `list`, `export`, `replay` and `purge` select its tasks with --fingerprint. The example is the newest task. All tasks are
/// read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead errors mails
  millstream queue dead replay mails --fingerprint 8f3c0a51d27be694")]
struct DeadTaskErrors {
    #[command(flatten)]
    of: DeadTaskOf,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: usize,
}

impl DeadTaskErrors {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (opened, filter) = self.of.open(cx).await?;
        errors(cx, &opened, &filter, self.limit, |it| it.task.unwrap_or_default()).await
    }
}

/// Writes dead tasks as lines of JSON; the tasks stay dead
///
/// With --json each on stdout is in the envelope of JSON output.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead export mails > tasks.jsonl
  millstream queue dead export mails --error timeout | jq -c .payload")]
struct DeadTaskExport {
    #[command(flatten)]
    of: DeadTaskOf,
    #[command(flatten)]
    to: ExportTo,
}

impl DeadTaskExport {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (opened, filter) = self.of.open(cx).await?;
        self.to.run(cx, &opened, &filter).await
    }
}

/// Schedules dead tasks again, due immediately, as first attempts
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead replay mails welcome-42 welcome-43
  millstream queue dead replay mails --fingerprint 8f3c0a51d27be694
  millstream queue dead replay mails --all --yes")]
struct DeadTaskReplay {
    #[command(flatten)]
    chosen: DeadTaskChosen,
}

/// Deletes dead tasks permanently
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead purge mails welcome-42
  millstream queue dead purge mails --error 'no such mailbox' --dry-run
  millstream queue dead purge mails --all --yes")]
struct DeadTaskPurge {
    #[command(flatten)]
    chosen: DeadTaskChosen,
}

/// Selection of dead tasks
#[derive(Args, Debug)]
struct DeadTaskChosen {
    #[command(flatten)]
    of: DeadTaskOf,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    dry: DryRun,
}

impl DeadTaskChosen {
    async fn change(self, cx: &Context, action: ShelfAction) -> Result<Exit> {
        let (opened, filter) = self.of.open(cx).await?;
        change(cx, &opened, (&self.chosen, filter), action, self.dry).await
    }
}

/// Schedules a dead task again with changes, due immediately, as a first attempt
///
/// Without options for the changes, the payload is opened in $VISUAL or $EDITOR. If the process dies after the task was
/// scheduled and before it is removed from the dead ones, it is in both places.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead edit mails welcome-42
  millstream queue dead edit mails welcome-42 --set-payload '{\"to\":\"a@example.com\"}'")]
struct DeadTaskEdit {
    #[command(flatten)]
    task: OneTask,
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Serialize, JsonSchema)]
struct Edited<V> {
    /// Whether it is scheduled; in a dry run, whether it would be.
    scheduled: bool,
    /// The task as it was.
    before: V,
    dry_run: bool,
}

impl DeadTaskEdit {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (opened, task, older) = self.task.newest(cx).await?;
        let mut edit = self.edit.edit()?;
        let editor = if self.edit.edit || edit.is_empty() { Some(Editor::find()?) } else { None };
        let (dry_run, limits) = (self.dry.dry_run, self.edit.max_payload.limits());
        let edited = |edit: &Edit| match edit.apply_within(&task.body, &limits) {
            Err(error) if error.kind() == ErrorKind::Decode => {
                bail!("with these changes the task is no message: {error}; nothing was done")
            }
            message => Ok(message?),
        };
        if editor.is_some() {
            // Another one is to come: whether it can be is known before it is written.
            edit.payload = Some(Bytes::new());
        }
        let mut message = edited(&edit)?;
        if let Some(editor) = editor.filter(|_| !dry_run) {
            edit.payload = Some(editor.open(&task.body)?);
            message = edited(&edit)?;
        }
        let scheduled = match dry_run {
            true => opened.shelf.can_replay(&task).await?,
            false => opened.shelf.replay_task_as(&task, message).await?,
        };
        let id = sanitize::line(self.task.task.as_bytes());
        note_older(cx, older);
        if !scheduled {
            bail!("{id} could not be scheduled: its id is in use; it stays dead");
        }
        let edited = Edited { scheduled, before: TaskView::of(&task), dry_run };
        cx.output.show(&edited, |it| {
            let done = if it.dry_run { "would be scheduled again" } else { "scheduled again, with changes" };
            format!("{id}: {done}")
        })?;
        Ok(Exit::Done)
    }
}

/// Drops dead tasks by age and number
///
/// The running workers of a queue apply its retention of dead tasks by themselves. This command applies it at once, also to
/// a queue without workers, or applies another one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead trim mails --dry-run
  millstream queue dead trim mails --retention age:30d,length:100000")]
struct DeadTaskTrim {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    trim: Trim,
}

impl DeadTaskTrim {
    async fn run(self, cx: &Context) -> Result<Exit> {
        self.trim.run(cx, &Opened::queue(cx, &self.queue, &ShelfFilter::default()).await?).await
    }
}
