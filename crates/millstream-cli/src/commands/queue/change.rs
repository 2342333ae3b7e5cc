//! `queue create` and `queue alter`.

use anyhow::Result;
use clap::Args;
use millstream::crates::core::tasks::{MAX_SHARDS, QueueChange, QueueSpec};
use millstream::crates::core::{Capability, QueueName};
use millstream::{DeadLetterRetention, ErrorKind};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::scheduled::recurring;
use crate::commands::shared::view::DeadLetterRetentionView;
use crate::context::Context;
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
            Err(error) if error.kind() == ErrorKind::NotFound => None,
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
