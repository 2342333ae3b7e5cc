//! `millstream queue dead`: tasks that were given up.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use millstream::delay::DeadTask;
use millstream::layers::core::{QueueName, Shard};
use millstream::{Limits, MessageId};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::trim::Trim;
use crate::commands::DryRun;
use crate::commands::message::{Body, sanitize};
use crate::commands::scheduled::recurring;
use crate::commands::shared::view::failed_attempts;
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, output};

/// Number of tasks read in one request.
const PAGE: usize = 100;

/// Lists, replays, purges and trims dead tasks
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead list mails
  millstream queue dead replay mails welcome-42")]
pub(super) struct Dead {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists dead tasks with their errors, oldest first
    #[command(after_help = "Examples:
  millstream queue dead list mails --limit 20
  millstream queue dead list mails --json | jq -r '.[].task'")]
    List {
        /// The delay queue
        queue: QueueName,
        /// Maximum number of tasks
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
    },
    /// Schedules dead tasks again, due immediately, as first attempts
    #[command(after_help = "Examples:
  millstream queue dead replay mails welcome-42 welcome-43
  millstream queue dead replay mails --all --yes")]
    Replay(Chosen),
    /// Deletes dead tasks permanently
    #[command(after_help = "Examples:
  millstream queue dead purge mails welcome-42
  millstream queue dead purge mails --all --yes")]
    Purge(Chosen),
    Trim(Trim),
}

/// Selection of dead tasks
#[derive(Args, Debug)]
struct Chosen {
    /// The delay queue
    queue: QueueName,
    /// Ids of tasks
    #[arg(value_name = "TASK", required_unless_present = "all", conflicts_with = "all")]
    tasks: Vec<String>,
    /// All tasks that are dead now
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// A dead task, for programs.
struct Shown<'a>(&'a DeadTask);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DeadTask { id, shard, task, reason, attempts, error, history, body } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("task", task.as_str())?;
        map.serialize_entry("id", &id.to_string())?;
        map.serialize_entry("shard", &shard.shard)?;
        map.serialize_entry("died_ms", &id.ms)?;
        map.serialize_entry("reason", reason.as_str())?;
        map.serialize_entry("attempts", attempts)?;
        map.serialize_entry("error", error)?;
        map.serialize_entry("history", &failed_attempts(history))?;
        Body::of(body).entries(&mut map)?;
        map.end()
    }
}

/// The results.
#[derive(Debug, Serialize)]
struct Outcome {
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

impl Dead {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        match self.what {
            What::List { queue, limit } => list(cx, &queue, limit).await,
            What::Replay(chosen) => chosen.each(cx, Action::Replay).await,
            What::Purge(chosen) => chosen.each(cx, Action::Purge).await,
            What::Trim(trim) => trim.run(cx).await,
        }
    }
}

async fn list(cx: &Context, queue: &QueueName, limit: usize) -> Result<Exit> {
    let dead = recurring::queue(cx, queue).await?.dead();
    let tasks = dead.list(limit).await?;
    let total = dead.count().await?;
    let shown: Vec<_> = tasks.iter().map(Shown).collect();
    cx.output.show(&shown, |shown| {
        let row = |Shown(it): &Shown<'_>| {
            let payload = it
                .envelope(&Limits::default())
                .map_or_else(|why| why.to_string(), |it| sanitize::short(&it.payload));
            let (task, error) = (
                sanitize::line(it.task.as_str().as_bytes()),
                sanitize::cut(&sanitize::line(it.error.as_bytes())),
            );
            [
                task,
                human::time(it.id.timestamp()),
                it.reason.to_string(),
                it.attempts.to_string(),
                error,
                payload,
            ]
        };
        output::table(&["task", "died", "reason", ">attempts", "error", "payload"], shown.iter().map(row))
    })?;
    if (tasks.len() as u64) < total {
        let (some, all) = (human::count(tasks.len() as u64), human::count(total));
        cx.output.note(&format!("{some} of {all}; --limit shows more"));
    }
    Ok(Exit::Done)
}

impl Chosen {
    async fn each(&self, cx: &Context, deed: Action) -> Result<Exit> {
        recurring::queue(cx, &self.queue).await?;
        // Limits the change to the tasks in the prompt, without those that died while it was read.
        let (found, missing) = self.find(cx).await?;
        let count = found.values().map(Vec::len).sum::<usize>() as u64;
        let what = human::of(count, "dead task", "dead tasks");
        if !self.dry.dry_run && count > 0 {
            match deed {
                Action::Purge => {
                    cx.confirm(&format!("Delete {what} of {} for good?", self.queue))?;
                }
                Action::Replay if self.all => {
                    cx.confirm(&format!("Replay {what} of {}?", self.queue))?;
                }
                Action::Replay => {}
            }
        }
        let done = if self.dry.dry_run { count } else { act(cx, &found, deed).await? };
        let missing: Vec<_> = missing.into_iter().collect();
        let outcome = Outcome { count: done, missing, dry_run: self.dry.dry_run };
        let verb = match deed {
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
        if !outcome.missing.is_empty() {
            bail!("{} of {} are not dead", outcome.missing.len(), self.tasks.len());
        }
        Ok(Exit::Done)
    }

    /// Returns the ids of the named dead tasks, or of all; and the names without a dead task. Only ids are kept in
    /// memory.
    async fn find(&self, cx: &Context) -> Result<(BTreeMap<Shard, Vec<MessageId>>, BTreeSet<String>)> {
        let mut missing: BTreeSet<String> = self.tasks.iter().cloned().collect();
        if missing.contains("") {
            return Err(Usage("a task has an id that is not empty".into()).into());
        }
        let mut found = BTreeMap::new();
        let tasks = cx.mq.backend().tasks()?;
        for shard in tasks.queue(&self.queue).await?.iter() {
            let mut ids = Vec::new();
            let mut after = MessageId::ZERO;
            let mut left = tasks.counts(&shard).await?.dead;
            // Bounded by the count, since tasks may die faster than they are read.
            while left > 0 {
                let page = tasks.dead_tasks(&shard, after, PAGE).await?;
                let Some(last) = page.last() else { break };
                after = last.id;
                left = left.saturating_sub(page.len() as u64);
                let wanted =
                    page.iter().filter(|it| self.all || self.tasks.iter().any(|id| id == it.task.as_str()));
                for task in wanted {
                    ids.push(task.id);
                    missing.remove(task.task.as_str());
                }
            }
            found.insert(shard, ids);
        }
        Ok((found, missing))
    }
}

/// Applies the operation to each task that still exists. Returns their number.
async fn act(cx: &Context, found: &BTreeMap<Shard, Vec<MessageId>>, deed: Action) -> Result<u64> {
    let tasks = cx.mq.backend().tasks()?;
    let mut done = 0;
    for (shard, ids) in found {
        for ids in ids.chunks(PAGE) {
            done += match deed {
                Action::Replay => tasks.replay_tasks(shard, ids).await?,
                Action::Purge => tasks.purge_tasks(shard, ids).await?,
            } as u64;
        }
    }
    Ok(done)
}
