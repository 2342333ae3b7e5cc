//! `queue dead list`, `show`, `errors` and `export`.

use anyhow::Result;
use clap::Args;
use millstream::Limits;
use millstream::crates::core::QueueName;
use millstream::crates::core::error_groups::MAX_GROUPS;
use millstream::delay::DeadTask;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{DeadTaskWanted, dead, newest};
use crate::commands::message::{Body, json, sanitize};
use crate::commands::schemas::schema_as;
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shared::view::FailedAttempt;
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Lists dead tasks with their errors, shard by shard, oldest first
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead list mails --limit 20
  millstream queue dead list mails --json | jq -r '.data[].task'")]
pub(super) struct DeadTaskList {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    wanted: DeadTaskWanted,
    /// Maximum number of tasks
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: usize,
}

/// Shows a dead task with its attempts, headers and payload
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead show mails welcome-42
  millstream queue dead show mails welcome-42 --json | jq .data.payload")]
pub(super) struct DeadTaskShow {
    /// The delay queue
    queue: QueueName,
    /// Id of the task. If tasks with this id died several times, the newest is shown
    task: String,
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
pub(super) struct DeadTaskErrors {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    wanted: DeadTaskWanted,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

/// Writes dead tasks as lines of JSON; the tasks stay dead
///
/// With --json each is in the envelope of JSON output.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead export mails > tasks.jsonl
  millstream queue dead export mails --error timeout | jq -c .payload")]
pub(super) struct DeadTaskExport {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    wanted: DeadTaskWanted,
}

/// A dead task, for programs.
pub(super) struct DeadTaskShown<'a>(pub(super) &'a DeadTask);

/// Its fields.
#[derive(Serialize, JsonSchema)]
struct TaskView<'a> {
    task: &'a str,
    /// The id of the record of its death.
    id: String,
    shard: u32,
    died_ms: u64,
    reason: &'a str,
    attempts: u32,
    /// The error of the last attempt.
    error: &'a str,
    /// The failed attempts, as far as they are known.
    history: Vec<FailedAttempt>,
    #[serde(flatten)]
    body: Body,
}

impl Serialize for DeadTaskShown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DeadTask { id, shard, task, reason, attempts, error, history, body } = self.0;
        let view = TaskView {
            task: task.as_str(),
            id: id.to_string(),
            shard: shard.shard,
            died_ms: id.ms,
            reason: reason.as_str(),
            attempts: *attempts,
            error,
            history: FailedAttempt::all(history),
            body: Body::of(body),
        };
        view.serialize(serializer)
    }
}

schema_as!(DeadTaskShown<'_>, TaskView<'_>);

impl DeadTaskList {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let dead = dead(cx, &self.queue).await?;
        let filter = self.wanted.filter(&[])?;
        let is_filtered = !filter.is_empty();
        let (mut walk, mut progress) = (dead.walk(filter), CountProgress::new());
        let mut tasks = Vec::new();
        while !walk.is_done() && tasks.len() < self.limit {
            tasks.extend(walk.run_once().await?);
            progress.set(walk.looked_at(), "task", "tasks");
        }
        drop(progress);
        let is_cut = tasks.len() > self.limit || !walk.is_done();
        tasks.truncate(self.limit);
        let total = dead.count().await?;
        let shown: Vec<_> = tasks.iter().map(DeadTaskShown).collect();
        cx.output.show(&shown, |shown| {
            let titles = ["task", "died", "reason", ">attempts", "error", "payload"];
            output::table(&titles, shown.iter().map(|DeadTaskShown(it)| row(it)))
        })?;
        let some = human::count(tasks.len() as u64);
        if is_filtered && is_cut {
            cx.output.note(&format!("the first {some}; --limit shows more"));
        } else if !is_filtered && (tasks.len() as u64) < total {
            cx.output.note(&format!("{some} of {}; --limit shows more", human::count(total)));
        }
        Ok(Exit::Done)
    }
}

fn row(it: &DeadTask) -> [String; 6] {
    let envelope = it.envelope(&Limits::NONE);
    [
        sanitize::line(it.task.as_str().as_bytes()),
        human::time(it.id.timestamp()),
        it.reason.to_string(),
        it.attempts.to_string(),
        sanitize::cut(&sanitize::line(it.error.as_bytes())),
        envelope.map_or_else(|why| why.to_string(), |it| sanitize::short(&it.payload)),
    ]
}

impl DeadTaskShow {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let dead = dead(cx, &self.queue).await?;
        let (task, older) = newest(&dead, &self.queue, &self.task).await?;
        cx.output.show(&DeadTaskShown(&task), |DeadTaskShown(task)| story(task))?;
        if older > 0 {
            let older = human::of(older, "older dead task", "older dead tasks");
            cx.output.note(&format!("{older} with this id; `queue dead list` shows them"));
        }
        Ok(Exit::Done)
    }
}

/// Formats all known values of a dead task, for people.
fn story(task: &DeadTask) -> String {
    let line = |text: &str| sanitize::line(text.as_bytes());
    let mut pairs = vec![
        ("task", line(task.task.as_str())),
        ("queue", task.shard.queue.to_string()),
        ("shard", task.shard.shard.to_string()),
        ("died", human::time(task.id.timestamp())),
        ("reason", line(task.reason.as_str())),
        ("attempts", task.attempts.to_string()),
        ("error", line(&task.error)),
    ];
    for failed in task.history.failures() {
        let (at, attempt, error) = (human::time(failed.at), failed.attempt, line(&failed.error));
        pairs.push(("failed", format!("{at} attempt {attempt}: {error}")));
    }
    content(pairs, &Body::of(&task.body))
}

/// Formats pairs, and beneath them the key, headers and payload of a message.
pub(in crate::commands) fn content(mut pairs: Vec<(&'static str, String)>, body: &Body) -> String {
    match body {
        Body::Message(envelope) => {
            pairs.push(("key", human::or_none(envelope.key.as_ref(), |key| sanitize::line(key))));
            for (name, value) in envelope.headers.iter() {
                let (name, value) = (sanitize::line(name.as_bytes()), sanitize::line(value));
                pairs.push(("header", format!("{name}={value}")));
            }
            format!("{}\n{}", output::list(pairs), sanitize::text(&envelope.payload))
        }
        Body::Malformed(why, fields) => {
            pairs.push(("malformed", why.clone()));
            format!("{}\n{}", output::list(pairs), json::fields(fields))
        }
    }
}

impl DeadTaskErrors {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let dead = dead(cx, &self.queue).await?;
        let mut progress = CountProgress::new();
        let filter = self.wanted.filter(&[])?;
        let groups = dead.errors(filter, MAX_GROUPS, |read| progress.set(read, "task", "tasks")).await?;
        drop(progress);
        let view = ErrorsView::of(groups, self.limit, |task| task.to_string());
        cx.output.show(&view, |view| view.table(Clone::clone))?;
        view.notes("dead task", "dead tasks").iter().for_each(|note| cx.output.note(note));
        Ok(Exit::Done)
    }
}

impl DeadTaskExport {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let dead = dead(cx, &self.queue).await?;
        let (mut walk, mut exported) = (dead.walk(self.wanted.filter(&[])?), 0);
        let mut progress = CountProgress::new().beside_output();
        while !walk.is_done() {
            let mut lines = String::new();
            for task in walk.run_once().await? {
                // The same task when it is parsed, without control characters for a terminal.
                if cx.output.is_json() {
                    lines += &cx.output.line(&DeadTaskShown(&task))?;
                } else {
                    lines += &sanitize::json(&serde_json::to_string(&DeadTaskShown(&task))?);
                    lines.push('\n');
                }
                exported += 1;
            }
            cx.output.write(&lines)?;
            progress.set(exported, "task", "tasks");
        }
        drop(progress);
        cx.output.note(&human::of(exported, "task", "tasks"));
        Ok(Exit::Done)
    }
}
