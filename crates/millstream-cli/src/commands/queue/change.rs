//! `queue create`, `alter`, `delete`, `pause` and `resume`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use millstream::crates::core::tasks::{MAX_SHARDS, QueueChange, QueueSpec};
use millstream::crates::core::{Capability, QueueName};
use millstream::{DeadLetterRetention, ErrorKind};
use schemars::JsonSchema;
use serde::Serialize;

use super::QueueCounts;
use crate::commands::DryRun;
use crate::commands::scheduled::recurring;
use crate::commands::shared;
use crate::commands::shared::view::DeadLetterRetentionView;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, exists};
use crate::{human, output, parse};

/// Creates a delay queue. Programs that open a queue create it as well
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue create mails
  millstream queue create mails --shards 8 --dead-letter-retention age:30d --dry-run")]
pub(super) struct QueueCreate {
    /// The delay queue
    queue: QueueName,
    /// Number of shards, over which the tasks are spread; it cannot be changed later
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    shards: u32,
    /// Which dead tasks are dropped: `age:30d` those that are older, `length:100000` those that have as many newer ones in
    /// their shard, `age:30d,length:100000` both; `keep` none. `queue alter` changes it
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention, default_value = "keep")]
    dead_letter_retention: DeadLetterRetention,
    #[command(flatten)]
    dry: DryRun,
}

/// The result of creating a queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QueueCreated {
    queue: String,
    shards: u32,
    dead_letter_retention: DeadLetterRetentionView,
    /// Whether it was created; `false` if it existed.
    created: bool,
    dry_run: bool,
}

impl QueueCreate {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (tasks, retention) = (cx.mq.backend().tasks()?, self.dead_letter_retention);
        let wanted = QueueSpec::new(self.queue, self.shards).with_dead_letter_retention(retention);
        let there = match tasks.queue(&wanted.name).await {
            // One that has lost its settings gets them back; a damaged one is refused below.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Protocol) => None,
            other => Some(other?),
        };
        let created = there.is_none();
        if created && !retention.is_keep() {
            cx.mq.backend().require(Capability::TrimDeadTasks)?;
        }
        let stored = match there {
            Some(there) => there,
            None if self.dry.dry_run => wanted.clone(),
            None => tasks.create_queue(&wanted).await?,
        };
        let QueueSpec { name, shards, .. } = &stored;
        if *shards != wanted.shards {
            let has = human::of((*shards).into(), "shard", "shards");
            return Err(exists(format!("delay queue {name} exists with {has}, which cannot be changed")));
        }
        if stored.dead_letter_retention != retention {
            let has = human::dead_letter_retention(stored.dead_letter_retention);
            let why = format!(
                "delay queue {name} exists, and its retention of dead tasks is {has}; `queue alter` changes it"
            );
            return Err(exists(why));
        }
        let dead_letter_retention = DeadLetterRetentionView::of(retention);
        let (queue, shards, dry_run) = (name.to_string(), *shards, self.dry.dry_run);
        let view = QueueCreated { queue, shards, dead_letter_retention, created, dry_run };
        cx.output.show(&view, |it| {
            let what = match (it.created, it.dry_run) {
                (false, _) => "already exists",
                (true, true) => "would be created",
                (true, false) => "is created",
            };
            let shards = human::of(it.shards.into(), "shard", "shards");
            format!("delay queue {} {what}, with {shards}", it.queue)
        })?;
        Ok(Exit::Done)
    }
}

/// Changes the retention of dead tasks of a delay queue
///
/// Running workers apply the change within two minutes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue alter mails --dead-letter-retention age:30d,length:100000
  millstream queue alter mails --dead-letter-retention keep --dry-run")]
pub(super) struct QueueAlter {
    /// The delay queue
    queue: QueueName,
    /// Which dead tasks are dropped; see `queue create`
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention)]
    dead_letter_retention: DeadLetterRetention,
    #[command(flatten)]
    dry: DryRun,
}

/// The settings of a queue, stored or in a dry run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Altered {
    queue: String,
    shards: u32,
    dead_letter_retention: DeadLetterRetentionView,
    /// Whether anything differs from before, or would.
    changed: bool,
    dry_run: bool,
    #[serde(skip)]
    retention: DeadLetterRetention,
}

impl Altered {
    fn show(spec: &QueueSpec, changed: bool, dry_run: bool, cx: &Context) -> Result<Exit> {
        let retention = spec.dead_letter_retention;
        let dead_letter_retention = DeadLetterRetentionView::of(retention);
        let (queue, shards) = (spec.name.to_string(), spec.shards);
        let view = Self { queue, shards, dead_letter_retention, changed, dry_run, retention };
        cx.output.show(&view, |it| {
            output::list([
                ("queue", it.queue.clone()),
                ("shards", human::count(it.shards.into())),
                ("dead letter retention", human::dead_letter_retention(it.retention)),
            ])
        })?;
        Ok(Exit::Done)
    }
}

impl QueueAlter {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let dry_run = self.dry.dry_run;
        let change = QueueChange::new().dead_letter_retention(self.dead_letter_retention);
        let queue = recurring::queue(cx, &self.queue).await?;
        let before = queue.settings();
        let after = change.of(before.clone())?;
        let changed = *before != after;
        if dry_run || !changed {
            cx.output.note(if dry_run {
                "dry run: nothing was done"
            } else {
                "it is so already: nothing was done"
            });
            return Altered::show(&after, changed, dry_run, cx);
        }
        if !after.dead_letter_retention.is_keep() {
            let retention = human::dead_letter_retention;
            let (old, new) =
                (retention(before.dead_letter_retention), retention(after.dead_letter_retention));
            cx.confirm(&format!(
                "Retention of dead tasks of {} from {old} to {new}: drop for good what it does not keep?",
                self.queue
            ))?;
        }
        Altered::show(&queue.alter(&change).await?, changed, dry_run, cx)
    }
}

/// Deletes a delay queue with all its tasks
///
/// The tasks are those that wait, are claimed or are dead, and the recurring ones. A queue with claimed tasks is not
/// deleted. Stop its workers first, and the programs that schedule tasks: they are not registered, and what they schedule
/// afterwards is left behind.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue delete mails --dry-run
  millstream queue delete mails --yes")]
pub(super) struct QueueDelete {
    /// The delay queue
    queue: QueueName,
    /// Deletes it even if workers have claimed tasks
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// The data that is, or was, deleted with the queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QueueView {
    queue: String,
    deleted: bool,
    dry_run: bool,
    waiting: u64,
    claimed: u64,
    dead: u64,
    /// The number of recurring rules.
    recurring: usize,
}

impl QueueView {
    fn text(&self) -> String {
        let recurring = human::of(self.recurring as u64, "recurring rule", "recurring rules");
        format!(
            "delay queue {} with {}, {} claimed, {} dead and {recurring}",
            self.queue,
            human::of(self.waiting, "waiting task", "waiting tasks"),
            human::count(self.claimed),
            human::count(self.dead),
        )
    }
}

impl QueueDelete {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        let counts = QueueCounts::of(&queue).await?;
        let mut view = QueueView {
            queue: self.queue.to_string(),
            deleted: false,
            dry_run: self.dry.dry_run,
            waiting: counts.waiting,
            claimed: counts.claimed,
            dead: counts.dead,
            recurring: queue.recurring_list().await?.len(),
        };
        let in_use = view.claimed > 0 && !self.force;
        if view.dry_run {
            let refused = if in_use { "it is in use, and needs --force. " } else { "" };
            cx.output.note(&format!("dry run: nothing was done. {refused}What would be deleted:"));
        } else if in_use {
            let claimed = human::of(view.claimed, "task", "tasks");
            bail!(
                "workers have claimed {claimed} of delay queue {}: stop them first, or --force it",
                self.queue
            );
        } else {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            cx.confirm(&format!("Delete delay queue {}, for ever?", self.queue))?;
            to_the_end(queue.delete()).await?;
            view.deleted = true;
        }
        cx.output.show(&view, |view| match view.deleted {
            true => format!("delay queue {} is deleted", view.queue),
            false => view.text(),
        })?;
        Ok(Exit::Done)
    }
}

/// Pauses all workers of a delay queue until the queue is resumed
///
/// When the command ends, no task is claimed any more. Tasks that workers have claimed are worked on to their end. Tasks can be
/// scheduled, and those that become due wait.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue pause mails
  millstream queue pause mails --wait 30s")]
pub(super) struct Pause {
    /// The delay queue
    queue: QueueName,
    /// Also waits until nothing is worked on, at most for this time; the exit code is 3 if something is left
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    dry: DryRun,
}

/// Ends the pause of a delay queue
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue resume mails")]
pub(super) struct QueueResume {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QueuePauseView {
    queue: String,
    paused: bool,
    /// Whether the state changed, or would change.
    changed: bool,
    /// The number of tasks that workers have claimed.
    claimed: u64,
    dry_run: bool,
}

impl Pause {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        set(cx, &self.queue, true, self.wait, self.dry.dry_run).await
    }
}

impl QueueResume {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        set(cx, &self.queue, false, None, self.dry.dry_run).await
    }
}

async fn set(
    cx: &Context,
    name: &QueueName,
    paused: bool,
    wait: Option<Duration>,
    dry_run: bool,
) -> Result<Exit> {
    let queue = recurring::queue(cx, name).await?;
    let changed = if dry_run {
        cx.output.note("dry run: nothing was done");
        queue.count().await?.paused.is_some() != paused
    } else if paused {
        to_the_end(queue.pause()).await?
    } else {
        to_the_end(queue.resume()).await?
    };
    let claimed = match wait {
        Some(wait) if !dry_run => queue.pause_and_wait(wait).await?,
        _ => queue.count().await?.claimed,
    };
    let view = QueuePauseView { queue: name.to_string(), paused, changed, claimed, dry_run };
    cx.output.show(&view, |_| {
        let what = shared::paused(changed, dry_run, paused);
        let left = match claimed {
            0 => String::new(),
            some => format!("; {} worked on", human::of(some, "task is", "tasks are")),
        };
        format!("delay queue {name} {what}{left}")
    })?;
    Ok(if wait.is_some() && claimed > 0 { Exit::Wrong } else { Exit::Done })
}
