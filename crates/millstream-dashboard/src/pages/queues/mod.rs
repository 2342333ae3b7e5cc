//! Delay queues and their tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use millstream::crates::core::tasks::TaskPlace;
use millstream::crates::core::{Limits, QueueName, ScheduleId};
use millstream::delay::DelayQueue;
use millstream::{WorkId, WorkPlace};

use super::{content, state};
use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::messages::{cancel as cancelling, steps, story, work};
use crate::paths;
use crate::reading::health;
use crate::reading::sampler::KnownQueue;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Button, Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Number of queues of a page.
const SHOWN: usize = 50;
/// Number of queues up to which a look counts all of them. Of more, it shows what was counted in the background.
const COUNTED: usize = 100;
/// Number of queues that are read at the same time.
const AT_ONCE: usize = 8;

/// Opens a queue that exists.
pub(crate) async fn open(cx: &Context, name: &QueueName) -> Result<DelayQueue<Bytes>, Failure> {
    let backend = cx.app.mq.backend();
    let spec = backend.tasks()?.queue(name).await?;
    Ok(DelayQueue::raw(name.as_str()).shards(spec.shards).limits(Limits::NONE).open(backend).await?)
}

pub(crate) fn queue_href(path: &str, queue: &QueueName) -> Href {
    Href::of(path, &[queue.as_str()])
}

/// A page below a queue.
pub(crate) fn queue_page(title: impl Into<Text>, queue: &QueueName, path: &'static str) -> Page {
    let mut page = Page::new(title)
        .crumb("Delay queues", Href::of(paths::QUEUES, &[]))
        .crumb(queue.as_str(), queue_href(paths::QUEUE, queue));
    let tabs =
        [("Tasks", paths::QUEUE), ("Dead tasks", paths::TASKS_DEAD), ("Schedules", paths::QUEUE_SCHEDULES)];
    page.tabs =
        tabs.into_iter().map(|(title, of)| (title, (of != path).then(|| queue_href(of, queue)))).collect();
    page
}

/// Makes the table of queues, those first that need attention.
pub(crate) fn table(queues: &BTreeMap<QueueName, KnownQueue>) -> Table {
    let titles = ["Queue", "State", ">Waiting", ">Overdue", ">Claimed", ">Dead", ">Shards"];
    let mut rows: Vec<_> = queues.iter().map(|(name, known)| row(name, known)).collect();
    rows.sort_by_key(|(tone, _)| Reverse(*tone));
    Table::new("Delay queues", &titles, "There is no delay queue.").rows(rows.into_iter().map(|(_, row)| row))
}

fn row(name: &QueueName, known: &KnownQueue) -> (u8, Vec<Cell>) {
    let href = || queue_href(paths::QUEUE, name);
    let link = Cell::link(name.as_str(), href());
    let queue = match known {
        Ok(queue) => queue,
        Err(error) => {
            let mut row = vec![link, Cell::chip(Text::short(&error.to_string()), Tone::Bad)];
            row.resize_with(7, || Cell::known(None));
            return (Tone::Bad as u8, row);
        }
    };
    let (counts, concerns) = (&queue.counts, health::of_queue(&queue.counts, queue.late_rules, queue.at));
    let row = vec![
        link,
        state(&concerns, href()),
        Cell::count(counts.waiting.total),
        Cell::alarm(Some(counts.waiting.overdue), Tone::Warn),
        Cell::count(counts.claimed),
        Cell::alarm(Some(counts.dead), Tone::Warn).to(queue_href(paths::TASKS_DEAD, name)),
        Cell::count(u64::from(queue.shards)),
    ];
    (health::urgency(&concerns), row)
}

/// Returns all delay queues as they are: those of a page are counted now, if there are not too many.
pub(crate) async fn all(cx: &Context) -> Result<BTreeMap<QueueName, KnownQueue>, Failure> {
    let names = cx.app.reading.queues().await?;
    let mut known = cx.app.reading.sampler.queues();
    known.retain(|name, _| names.binary_search(name).is_ok());
    if names.len() <= COUNTED {
        let counted = stream::iter(names.iter().cloned()).map(|name| async move {
            let counted = cx.app.reading.queue(&name).await.map(|it| *it);
            (name, counted)
        });
        known = counted.buffered(AT_ONCE).collect().await;
    }
    Ok(known)
}

/// Shows all queues.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let table = table(&all(&cx).await?).paged(SHOWN);
    Ok(Page::new("Delay queues").live().table(table))
}

/// Shows the tasks of a queue that wait.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let name = cx.queue()?;
    let queue = open(&cx, &name).await?;
    let limit = cx.query.clamped("limit", 1..=200, 50);
    let counts = queue.count().await?;
    let hidden = cx.app.hidden_in_queue(&name);
    let mut page = queue_page(format!("Delay queue {name}"), &name, paths::QUEUE).live();
    if let Some(since) = counts.paused {
        page.push(Part::notice(Tone::Warn, format!("The queue is paused since {since}: no task is begun.")));
    }
    if cx.access.allows(Permission::Operate) {
        let (label, path) = match counts.paused {
            None => ("Pause", paths::QUEUE_PAUSE),
            Some(_) => ("Resume", paths::QUEUE_RESUME),
        };
        page.actions = Cell::buttons(vec![Button::new(label, name.as_str(), queue_href(path, &name))]);
    }
    page.push(Part::Tiles(vec![
        ("Waiting", Cell::count(counts.waiting.total)),
        ("Overdue", Cell::alarm(Some(counts.waiting.overdue), Tone::Warn)),
        ("Claimed by workers", Cell::count(counts.claimed)),
        ("Claims that ran out", Cell::alarm(Some(counts.expired), Tone::Warn)),
        ("Dead", Cell::alarm(Some(counts.dead), Tone::Warn).to(queue_href(paths::TASKS_DEAD, &name))),
    ]));
    let tasks = queue.list(None, limit as usize).await?;
    let mut table =
        Table::new("Waiting, the next ones first", &["Id", "Due", "Key", "Payload", ""], "No task waits.");
    table = table.note(format!("{} of {}", tasks.len(), format::count(counts.waiting.total)));
    table.rows = tasks
        .into_iter()
        .map(|task| {
            let id = task.id.to_string();
            let [key, payload] = content(task.envelope(), &hidden);
            let mut buttons = Vec::new();
            if cx.access.allows(Permission::Operate) {
                buttons.push(
                    Button::new("run now", id.as_str(), queue_href(paths::TASK_NOW, &name))
                        .with("id", id.as_str()),
                );
            }
            let open = queue_href(paths::TASK, &name).with("id", &id);
            vec![
                Cell { mono: true, ..Cell::link(Text::short(&id), open) },
                Cell::time(task.due),
                key,
                payload,
                Cell::buttons(buttons),
            ]
        })
        .collect();
    page.push(Part::Table(table));
    let limit = Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 200 });
    page.push(Part::Form(Form::filter("Number of tasks", queue_href(paths::QUEUE, &name), vec![limit])));
    let id = Field::new("id", "Id", "").required();
    page.push(Part::Form(Form::filter("Find a task", queue_href(paths::TASK, &name), vec![id])));
    let kept = format::dead_letter_retention(queue.settings().dead_letter_retention);
    let settings =
        vec![("Shards", Cell::count(u64::from(queue.shards()))), ("Dead tasks are kept", Cell::text(kept))];
    page.push(Part::facts("Settings", settings));
    Ok(page)
}

/// Shows a task that waits, or that a worker has.
pub(crate) async fn task(cx: Context) -> Result<Page, Failure> {
    let (name, id) = (cx.queue()?, id(&cx.query)?);
    let tasks = cx.app.mq.backend().tasks()?;
    let missing = || Failure::missing(format!("no task {id:?} waits in this queue, and no worker has it"));
    let task_id = ScheduleId::new(&*id).map_err(|_| missing())?;
    let shard = tasks.queue(&name).await?.shard_of(&task_id);
    let task = tasks.find(&shard, &task_id).await?.ok_or_else(missing)?;
    let hidden = cx.app.hidden_in_queue(&name);
    let mut page = queue_page(format!("Task {id}"), &name, paths::TASK);
    let button =
        |label, path| Button::new(label, id.as_str(), queue_href(path, &name)).with("id", id.as_str());
    let (mut buttons, mut facts) = (Vec::new(), Vec::new());
    match task.state {
        TaskPlace::Waiting(due) => {
            facts.push(("Due", Cell::time(due)));
            if cx.access.allows(Permission::Operate) {
                buttons.push(button("run now", paths::TASK_NOW));
            }
            if cx.access.allows(Permission::Admin) {
                buttons.push(button("cancel", paths::TASK_CANCEL).danger());
            }
        }
        TaskPlace::Claimed(until) => {
            facts.push(("State", Cell::toned("a worker has it", Tone::Warn)));
            facts.push(("Its claim runs out", Cell::time(until)));
            if cx.access.allows(Permission::Admin) {
                buttons.push(button("cancel", paths::TASK_CANCEL).danger());
            }
        }
        TaskPlace::Finished(free) => {
            facts.push(("State", Cell::toned("done", Tone::Good)));
            facts.push(("Its id is free", Cell::time(free)));
        }
    }
    if task.attempt > 0 {
        facts.push(("Attempt", Cell::count(u64::from(task.attempt))));
    }
    if !task.error.is_empty() {
        let error = if hidden.hides_payload() {
            Cell::toned("redacted", Tone::Dim)
        } else {
            Cell::text(Text::short(&task.error))
        };
        facts.push(("Last error", error));
    }
    if !buttons.is_empty() {
        facts.push(("Actions", Cell::buttons(buttons)));
    }
    page.push(Part::facts("", facts));
    if !matches!(task.state, TaskPlace::Finished(_)) {
        let work = vec![WorkId::new(WorkPlace::Shard(shard.clone()), &task_id)];
        let waits = steps::add(&mut page, &cx, work, &hidden).await?;
        if cx.access.allows(Permission::Operate) {
            let form = waits.form(queue_href(paths::TASK_SIGNAL, &name));
            page.parts.extend(form.map(|form| Part::Form(form.hide("id", &*id))));
        }
        let envelope = task.envelope();
        if let (Ok(envelope), TaskPlace::Waiting(at) | TaskPlace::Claimed(at)) = (&envelope, task.state) {
            work::add(&mut page, &cx, shard, (&envelope.headers, at), &hidden).await?;
        }
        story::content(&mut page, &cx, envelope, &hidden);
    }
    Ok(page)
}

/// Pauses a queue, or resumes it.
pub(crate) async fn pause(cx: Context, _: Params) -> Result<Href, Failure> {
    let (name, pause) = (cx.queue()?, cx.route == paths::QUEUE_PAUSE);
    let queue = open(&cx, &name).await?;
    let order = Order::new(if pause { "queue pause" } else { "queue resume" }, Subject::queue(&name));
    let why = if pause { "it was paused already" } else { "it was not paused" };
    cx.act_once(order, why, async move { if pause { queue.pause().await } else { queue.resume().await } })
        .await
}

pub(crate) fn id(params: &Params) -> Result<String, Failure> {
    params
        .raw("id")
        .filter(|id| !id.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| Failure::invalid("id is missing"))
}

/// Makes a task due now.
pub(crate) async fn run_now(cx: Context, params: Params) -> Result<Href, Failure> {
    let (name, id) = (cx.queue()?, id(&params)?);
    let queue = open(&cx, &name).await?;
    let order = Order::new("queue now", Subject::queue(&name).select("id", &*id)).expecting(Some(1));
    cx.act_once(order, "it does not wait (any more)", async move { queue.run_now(&id).await }).await
}

/// Cancels a task, whether it waits or a worker has it.
pub(crate) async fn cancel(cx: Context, params: Params) -> Result<Href, Failure> {
    let (name, id) = (cx.queue()?, id(&params)?);
    let task = ScheduleId::new(&*id)?;
    let shard = cx.app.mq.backend().tasks()?.queue(&name).await?.shard_of(&task);
    let order = Order::new("queue cancel", Subject::queue(&name).select("id", &*id)).expecting(Some(1));
    let cancel = cx.admin().cancel_task(&shard, &task);
    cancelling::run(&cx, order, cancel).await
}

/// Signals a task that waits in its steps.
pub(crate) async fn signal(cx: Context, params: Params) -> Result<Href, Failure> {
    let (name, id) = (cx.queue()?, id(&params)?);
    let task = ScheduleId::new(&*id)?;
    let shard = cx.app.mq.backend().tasks()?.queue(&name).await?.shard_of(&task);
    let subject = Subject::queue(&name).select("id", &*id);
    let page = ("The task", queue_href(paths::TASK, &name).with("id", &*id));
    steps::run(&cx, (subject, page), WorkId::new(WorkPlace::Shard(shard), task), &params).await
}
