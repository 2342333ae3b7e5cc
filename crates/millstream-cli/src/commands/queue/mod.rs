//! `millstream queue`: delay queues and their tasks.

mod change;
pub(in crate::commands) mod dead;
mod show;
mod work;

use anyhow::Result;
use bytes::Bytes;
use clap::{Args, Subcommand};
use futures_util::future::join_all;
use millstream::crates::core::{Place, QueueName};
use millstream::delay::{DelayQueue, Due, Placed, ScheduleTask, TaskCounts, WaitingTask};
use millstream::{DeadLetterRetention, ErrorKind, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::content::{ContentArgs, DueArgs};
use crate::commands::message::{Body, sanitize};
use crate::commands::scheduled::delayed::{Waits, first};
use crate::commands::scheduled::recurring;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::{Failed, Listed};
use crate::commands::shared::ids::{self, Words};
use crate::commands::shared::view::DeadLetterRetentionView;
use crate::commands::shared::watch::WatchArgs;
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, output, parse};

/// Manages delay queues and their tasks: lists, creates, deletes, adds, shows, cancels, reschedules, works, replays
///
/// A task waits until it is due, and then a worker claims it. A task that fails is retried, and after its last attempt
/// it is dead. `millstream schedule` manages recurring tasks.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue list
  millstream queue create mails --shards 4
  millstream queue tasks mails
  millstream queue dead replay mails --all")]
pub(crate) struct Queue {
    #[command(subcommand)]
    what: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Lists all delay queues with their counts
    #[command(after_help = "Examples:
  millstream queue list
  millstream queue list --watch=5
  millstream queue list --json | jq -r '.data[] | select(.dead > 0).queue'")]
    List {
        #[command(flatten)]
        watch: WatchArgs,
    },
    Create(change::QueueCreate),
    Alter(change::QueueAlter),
    Delete(change::QueueDelete),
    /// Shows how many tasks of a queue are waiting, overdue, claimed and dead, and how long dead ones are kept
    #[command(after_help = "Examples:
  millstream queue counts mails
  millstream queue counts mails --watch")]
    Counts {
        /// The delay queue
        queue: QueueName,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Lists waiting tasks in the order of their due times
    ///
    /// A shard that cannot be read is named on stderr, and in `errors` of JSON; the exit code is then 1.
    #[command(after_help = "Examples:
  millstream queue tasks mails --limit 20
  millstream queue tasks mails --json | jq -r '.data.tasks[].id'")]
    Tasks {
        /// The delay queue
        queue: QueueName,
        /// Maximum number of tasks
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = parse::limit)]
        limit: usize,
        #[command(flatten)]
        watch: WatchArgs,
    },
    Show(show::Show),
    Pause(change::Pause),
    Resume(change::QueueResume),
    /// Schedules a task
    #[command(after_help = "Examples:
  millstream queue add mails --payload '\"welcome\"' --delay 1h --id welcome-42
  millstream queue add mails --file mail.json --at 2026-01-31T12:00:00Z")]
    Add(QueueAdd),
    /// Cancels waiting tasks
    #[command(after_help = "Examples:
  millstream queue cancel mails welcome-42 --yes")]
    Cancel(QueueNamed),
    /// Changes the due time of waiting tasks
    #[command(after_help = "Examples:
  millstream queue reschedule mails welcome-42 --delay 2h")]
    Reschedule {
        #[command(flatten)]
        some: QueueNamed,
        #[command(flatten)]
        due: DueArgs,
    },
    /// Makes waiting tasks due immediately
    #[command(after_help = "Examples:
  millstream queue now mails welcome-42")]
    Now(QueueNamed),
    Work(work::Work),
    Dead(dead::Dead),
}

/// Selected tasks
#[derive(Args, Debug)]
struct QueueNamed {
    /// The delay queue
    queue: QueueName,
    /// Ids of tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Args, Debug)]
struct QueueAdd {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    content: ContentArgs,
    #[command(flatten)]
    due: DueArgs,
    /// Id of the task. It is not scheduled while a task with the same id is waiting or claimed. Default: random
    #[arg(long)]
    id: Option<String>,
    /// Replaces the waiting task with the same id
    #[arg(long, requires = "id")]
    replace: bool,
    /// Replaces the waiting task with the same id, and postpones it: it is due at the later of both times
    #[arg(long, requires = "id", conflicts_with = "replace")]
    debounce: bool,
    /// Replaces the waiting task with the same id, at the time at which that one is due
    #[arg(long, requires = "id", conflicts_with_all = ["replace", "debounce"])]
    keep_last: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// The counts of a queue.
#[derive(Debug, Serialize, JsonSchema)]
struct QueueCounts {
    queue: String,
    shards: u32,
    waiting: u64,
    /// The number of waiting tasks that are due.
    overdue: u64,
    claimed: u64,
    /// The number of claimed tasks whose claim has expired.
    expired: u64,
    dead: u64,
    /// The time since which it is paused; `null` if it is not.
    paused_at_ms: Option<u64>,
    dead_letter_retention: DeadLetterRetentionView,
    #[serde(skip)]
    retention: DeadLetterRetention,
}

/// Waiting tasks.
#[derive(Debug, Serialize, JsonSchema)]
struct Tasks {
    queue: String,
    total: u64,
    overdue: u64,
    tasks: Vec<Waits>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

/// The result of scheduling a task.
#[derive(Debug, Serialize, JsonSchema)]
struct QueueAdded {
    /// `null` in a dry run without --id, as the id would be a random one.
    id: Option<String>,
    /// `new`, `replaced`, `kept`, or `done` if a task with this id was completed and its id is not free yet.
    #[schemars(extend("enum" = ["new", "replaced", "kept", "done"]))]
    outcome: &'static str,
    dry_run: bool,
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("queue list", of::<Vec<Listed<QueueCounts>>>()),
    ("queue create", of::<change::QueueCreated>()),
    ("queue alter", of::<change::Altered>()),
    ("queue delete", of::<change::QueueView>()),
    ("queue counts", of::<QueueCounts>()),
    ("queue tasks", of::<Tasks>()),
    ("queue show", of::<show::QueueShown>()),
    ("queue pause", of::<change::QueuePauseView>()),
    ("queue resume", of::<change::QueuePauseView>()),
    ("queue add", of::<QueueAdded>()),
    ("queue cancel", of::<ids::Outcome>()),
    ("queue reschedule", of::<ids::Outcome>()),
    ("queue now", of::<ids::Outcome>()),
    ("queue work", None),
];

impl Queue {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            QueueCommand::List { watch } => Box::pin(watch.run(cx, move || Box::pin(list(cx)))),
            QueueCommand::Create(create) => Box::pin(create.run(cx)),
            QueueCommand::Alter(alter) => Box::pin(alter.run(cx)),
            QueueCommand::Delete(it) => Box::pin(it.run(cx)),
            QueueCommand::Counts { queue, watch } => {
                Box::pin(watch.run(cx, move || Box::pin(counts(cx, queue.clone()))))
            }
            QueueCommand::Tasks { queue, limit, watch } => {
                Box::pin(watch.run(cx, move || Box::pin(tasks(cx, queue.clone(), limit))))
            }
            QueueCommand::Show(it) => Box::pin(it.run(cx)),
            QueueCommand::Pause(it) => Box::pin(it.run(cx)),
            QueueCommand::Resume(it) => Box::pin(it.run(cx)),
            QueueCommand::Add(add) => Box::pin(add.run(cx)),
            QueueCommand::Cancel(some) => Box::pin(some.cancel(cx)),
            QueueCommand::Reschedule { some, due } => Box::pin(some.reschedule(cx, due)),
            QueueCommand::Now(some) => Box::pin(some.run_now(cx)),
            QueueCommand::Work(it) => Box::pin(it.run(cx)),
            QueueCommand::Dead(dead) => dead.run(cx),
        }
    }
}

impl QueueNamed {
    async fn cancel(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        if !self.dry.dry_run {
            let what = human::of(self.ids.len() as u64, "task", "tasks");
            cx.confirm(&format!("Cancel {what} of {}?", self.queue))?;
        }
        self.each(cx, &queue, "cancelled", async |id| Ok(queue.cancel(id).await?)).await
    }

    async fn reschedule(self, cx: &Context, due: DueArgs) -> Result<Exit> {
        let due =
            due.due().ok_or_else(|| Usage("when are they to be due? --delay or --at says it".into()))?;
        let queue = recurring::queue(cx, &self.queue).await?;
        self.each(cx, &queue, "rescheduled", async |id| Ok(queue.reschedule(id, due).await?)).await
    }

    async fn run_now(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        self.each(cx, &queue, "due now", async |id| Ok(queue.run_now(id).await?)).await
    }

    async fn each(
        &self,
        cx: &Context,
        queue: &DelayQueue<Bytes>,
        done: &'static str,
        act: impl AsyncFn(&str) -> Result<bool>,
    ) -> Result<Exit> {
        let words = Words { done, missing: "it does not wait (any more)" };
        let is_there = async |id: &str| Ok(queue.get(id).await?.is_some());
        ids::each(cx, self.dry, words, &self.ids, is_there, act).await
    }
}

impl QueueCounts {
    async fn of(queue: &DelayQueue<Bytes>) -> Result<Self> {
        let TaskCounts { waiting, claimed, expired, dead, paused } = queue.count().await?;
        let (name, shards) = (queue.name().to_string(), queue.shards());
        let (overdue, waiting) = (waiting.overdue, waiting.total);
        let retention = queue.settings().dead_letter_retention;
        let dead_letter_retention = DeadLetterRetentionView::of(retention);
        Ok(Self {
            queue: name,
            shards,
            waiting,
            overdue,
            claimed,
            expired,
            dead,
            paused_at_ms: paused.map(Timestamp::as_millis),
            dead_letter_retention,
            retention,
        })
    }
}

async fn list(cx: &Context) -> Result<Exit> {
    let names = cx.mq.backend().tasks()?.queues().await?;
    let counts = names.iter().map(async |name| QueueCounts::of(&recurring::queue(cx, name).await?).await);
    let mut all = Vec::new();
    for (name, counts) in names.iter().zip(join_all(counts).await) {
        all.push(match counts {
            Ok(counts) => Listed::Item(counts),
            Err(error) => match error.downcast_ref::<millstream::Error>() {
                // It was deleted in the meantime.
                Some(error) if error.kind() == ErrorKind::NotFound => continue,
                Some(error) if !error.is_transient() => Listed::Failed(Failed::queue(name, error)),
                _ => return Err(error),
            },
        });
    }
    cx.output.show(&all, |all| {
        let titles = ["queue", ">shards", ">waiting", ">overdue", ">claimed", ">expired", ">dead", "state"];
        let rows = Listed::known(all).map(|it| {
            let numbers = [u64::from(it.shards), it.waiting, it.overdue, it.claimed, it.expired, it.dead];
            let state = it.paused_at_ms.map_or_else(String::new, |_| "paused".to_owned());
            std::iter::once(it.queue.clone()).chain(numbers.map(human::count)).chain([state])
        });
        output::table(&titles, rows)
    })?;
    Failed::end(cx, Listed::failed(&all))
}

async fn counts(cx: &Context, queue: QueueName) -> Result<Exit> {
    let counts = QueueCounts::of(&recurring::queue(cx, &queue).await?).await?;
    cx.output.show(&counts, |it| {
        let pairs = [("waiting", it.waiting), ("overdue", it.overdue), ("claimed", it.claimed)];
        let more = [("expired", it.expired), ("dead", it.dead), ("shards", u64::from(it.shards))];
        let counts = pairs.into_iter().chain(more).map(|(name, it)| (name, human::count(it)));
        let retention = human::dead_letter_retention(it.retention);
        let paused = it.paused_at_ms.map(|at| ("paused since", human::time(Timestamp::from_millis(at))));
        output::list(paused.into_iter().chain(counts).chain([("dead letter retention", retention)]))
    })?;
    Ok(Exit::Done)
}

async fn tasks(cx: &Context, name: QueueName, limit: usize) -> Result<Exit> {
    let queue = recurring::queue(cx, &name).await?;
    let places: Vec<Place> = queue.settings().iter().map(Place::from).collect();
    let (waiting, tasks, errors) = first(cx, &places, limit).await?;
    let (queue, total, overdue) = (name.to_string(), waiting.total, waiting.overdue);
    let tasks = Tasks { queue, total, overdue, tasks, errors };
    let now = cx.now().await?;
    cx.output.show(&tasks, |it| {
        output::table(&["id", "due", ">in", "key", "payload"], it.tasks.iter().map(|task| task.row(now)))
    })?;
    if (tasks.tasks.len() as u64) < tasks.total {
        let (shown, total) = (human::count(tasks.tasks.len() as u64), human::count(tasks.total));
        cx.output.note(&format!("{shown} of {total}; --limit shows more"));
    }
    Failed::end(cx, &tasks.errors)
}

fn waits(task: &WaitingTask<Bytes>) -> Waits {
    let body = match task.envelope() {
        Ok(envelope) => Body::Message(envelope),
        Err(why) => Body::Malformed(why.to_string(), Vec::new()),
    };
    Waits::new(task.id.to_string(), task.due, None, body)
}

impl QueueAdded {
    fn of(id: Option<String>, placed: Placed, dry_run: bool) -> Self {
        let outcome = match placed {
            Placed::New => "new",
            Placed::Replaced => "replaced",
            Placed::Done => "done",
            _ => "kept",
        };
        Self { id, outcome, dry_run }
    }

    fn show(&self, cx: &Context) -> Result<Exit> {
        cx.output.show(self, |it| {
            let id = it.id.as_ref().map_or_else(|| "a task".to_owned(), |id| sanitize::line(id.as_bytes()));
            match (it.outcome, it.dry_run) {
                ("kept", _) => format!("{id}: not scheduled: a waiting or claimed task has this id"),
                (_, true) => format!("{id}: would be scheduled"),
                (_, false) => format!("{id}: scheduled"),
            }
        })?;
        Ok(Exit::Done)
    }
}

impl QueueAdd {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let envelope = self.content.envelope()?;
        let queue = recurring::queue(cx, &self.queue).await?;
        if self.dry.dry_run {
            return self.would(cx, &queue).await;
        }
        let task = queue.schedule(&envelope.payload);
        let task = match self.due.due() {
            None => task,
            Some(Due::In(delay)) => task.delay(delay),
            Some(Due::At(time)) => task.at(time),
        };
        let task = match (&self, &self.id) {
            (Self { debounce: true, .. }, Some(id)) => task.debounce(id),
            (Self { keep_last: true, .. }, Some(id)) => task.keep_last(id),
            (Self { replace: true, .. }, Some(id)) => task.id(id).replace(),
            (_, Some(id)) => task.id(id),
            (_, None) => task,
        };
        let task = envelope.key.iter().fold(task, ScheduleTask::key);
        let task = envelope.headers.iter().fold(task, |task, (name, value)| task.header(name, value)).await?;
        QueueAdded::of(Some(task.id.to_string()), task.placed, false).show(cx)
    }

    /// Shows the result that scheduling would have, as far as it is known: a claimed task with the same id is not
    /// detected.
    async fn would(self, cx: &Context, queue: &DelayQueue<Bytes>) -> Result<Exit> {
        let waits = match &self.id {
            Some(id) => queue.get(id.as_str()).await?.is_some(),
            None => false,
        };
        let placed = match (waits, self.replace || self.debounce || self.keep_last) {
            (false, _) => Placed::New,
            (true, true) => Placed::Replaced,
            (true, false) => Placed::Kept,
        };
        cx.output.note("dry run: nothing was done");
        QueueAdded::of(self.id, placed, true).show(cx)
    }
}
