//! Dead tasks of a delay queue.

use millstream::Timestamp;
use millstream::crates::core::Limits;
use millstream::crates::core::error_groups::ErrorGroups;
use millstream::delay::DeadTaskFilter;
use tokio::time::{Duration, Instant};

use super::{open, queue_href, queue_page};
use crate::access::Permission;
use crate::actions::Order;
use crate::actions::tasks::{self, Change};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::content;
use crate::pages::dead::change::confirmed;
use crate::paths;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Maximum number of tasks that are examined for a page, and the time for it.
const LOOKS: u64 = 20_000;
const BUDGET: Duration = Duration::from_secs(3);
/// Number of tasks that are shown.
const SHOWN: usize = 50;
/// Maximum number of errors that are counted apart.
const GROUPS: usize = 200;

fn filter(params: &Params, hidden: &Redaction) -> Result<DeadTaskFilter, Failure> {
    let until: Option<u64> = params.parsed("until")?;
    Ok(DeadTaskFilter {
        undecodable_error: hidden.undecodable_error(),
        error: params.text("error")?.map(str::to_owned),
        fingerprint: params.parsed("fingerprint")?,
        until: until.map(Timestamp::from_millis),
        ..DeadTaskFilter::default()
    })
}

fn with_filter(mut href: Href, params: &Params) -> Href {
    for name in ["error", "fingerprint"] {
        if let Some(value) = params.raw(name).filter(|value| !value.is_empty()) {
            href = href.with(name, value);
        }
    }
    href
}

/// Shows dead tasks by error, and the first of them.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let name = cx.queue()?;
    let dead = open(&cx, &name).await?.dead();
    let hidden = cx.app.hidden_in_queue(&name);
    let (began, mut groups, mut first) = (Instant::now(), ErrorGroups::new(GROUPS), Vec::new());
    let mut walk = dead.walk(filter(&cx.query, &hidden)?);
    while !walk.is_done() && walk.looked_at() < LOOKS && began.elapsed() < BUDGET {
        for task in walk.run_once().await? {
            groups.add(&task.error, task.id.timestamp(), task.task.clone());
            if first.len() < SHOWN {
                first.push(task);
            }
        }
    }
    let is_complete = walk.is_done();
    let mut page = queue_page(format!("Dead tasks of {name}"), &name, paths::TASKS_DEAD);
    if !is_complete {
        let why = format!("{} tasks were examined: there are more.", format::count(walk.looked_at()));
        page.push(Part::notice(Tone::Warn, why));
    }
    let fields = vec![
        Field::new("error", "Error contains", cx.query.raw("error").unwrap_or_default()),
        Field::new("fingerprint", "Fingerprint", cx.query.raw("fingerprint").unwrap_or_default()),
    ];
    let here = || queue_href(paths::TASKS_DEAD, &name);
    page.push(Part::Form(Form::filter("Filter", here(), fields)));
    let links = |href: Href, params: &dyn Fn(Href) -> Href| {
        let mut links: Vec<(Text, Href)> = vec![("list".into(), params(href))];
        if cx.access.allows(Permission::Operate) {
            links.push(("replay…".into(), params(queue_href(paths::TASKS_REPLAY, &name))));
        }
        if cx.access.allows(Permission::Admin) {
            links.push(("purge…".into(), params(queue_href(paths::TASKS_PURGE, &name))));
        }
        links
    };
    let rows = groups.into_groups().into_iter().map(|error| {
        let with = |href: Href| href.with("fingerprint", error.fingerprint);
        vec![
            Cell::count(error.count),
            Cell::text(Text::short(&error.pattern)),
            Cell::time(error.first),
            Cell::time(error.last),
            Cell::links(links(here(), &with)),
        ]
    });
    let titles = [">Tasks", "Error", "First", "Last", ""];
    let mut table = Table::new("By error", &titles, "No task is dead.").rows(rows.collect::<Vec<_>>());
    table.links = links(here(), &|href| with_filter(href, &cx.query))
        .into_iter()
        .skip(1)
        .map(|(text, href)| (Text::from(format!("all that match: {text}")), href))
        .collect();
    page.push(Part::Table(table));
    let rows = first.iter().map(|task| {
        let [key, payload] = content(task.envelope(&Limits::NONE), &hidden);
        vec![
            Cell::mono(Text::short(task.task.as_str())),
            Cell::time(task.id.timestamp()),
            Cell::text(task.reason.as_str()),
            Cell::count(u64::from(task.attempts)),
            Cell::text(Text::short(&task.error)),
            key,
            payload,
        ]
    });
    let titles = ["Task", "Died", "Reason", ">Attempts", "Error", "Key", "Payload"];
    page.push(Part::Table(Table::new("The first of them", &titles, "No task is dead.").rows(rows)));
    Ok(page)
}

/// Asks before tasks are replayed.
pub(crate) async fn confirm_replay(cx: Context) -> Result<Page, Failure> {
    confirm(cx, paths::TASKS_REPLAY, Change::Replay).await
}

/// Asks before tasks are deleted.
pub(crate) async fn confirm_purge(cx: Context) -> Result<Page, Failure> {
    confirm(cx, paths::TASKS_PURGE, Change::Purge).await
}

async fn confirm(cx: Context, path: &'static str, change: Change) -> Result<Page, Failure> {
    let name = cx.queue()?;
    let dead = open(&cx, &name).await?.dead();
    let filter = filter(&cx.query, &cx.app.hidden_in_queue(&name))?;
    // What dies from now on was not counted, and is left alone. Servers of a cluster may differ by milliseconds.
    let now = cx.app.mq.backend().schedule().now().await?;
    let (began, mut count) = (Instant::now(), 0);
    let is_complete = if filter.is_empty() {
        count = dead.count().await?;
        true
    } else {
        let mut walk = dead.walk(filter);
        while !walk.is_done() && began.elapsed() < BUDGET {
            count += walk.run_once().await?.len() as u64;
        }
        walk.is_done()
    };
    let tasks = format::of(count, "dead task", "dead tasks");
    let (what, expected) = if is_complete {
        (tasks, count.to_string())
    } else {
        (format!("at least {tasks}"), "all".to_owned())
    };
    let (verb, effect) = match change {
        Change::Replay => ("Replay", "They are due at once, as first attempts."),
        Change::Purge => ("Purge", "They are deleted permanently."),
    };
    let mut page = queue_page(format!("{verb} {what} of {name}"), &name, path);
    page.push(Part::notice(if change == Change::Purge { Tone::Bad } else { Tone::Plain }, effect));
    if count > 0 {
        let field = Field::new("confirm", format!("Type {expected} to confirm"), "").required();
        let mut form = Form::action(format!("{verb} {what}"), queue_href(path, &name), vec![field], verb);
        for name in ["error", "fingerprint"] {
            if let Some(value) = cx.query.raw(name).filter(|value| !value.is_empty()) {
                form = form.hide(name, value);
            }
        }
        let form = form.hide("expected", expected).hide("until", now.as_millis().to_string());
        page.push(Part::Form(if change == Change::Purge { form.danger() } else { form }));
    }
    Ok(page)
}

/// Replays tasks.
pub(crate) async fn replay(cx: Context, params: Params) -> Result<Href, Failure> {
    change(cx, params, Change::Replay).await
}

/// Deletes tasks.
pub(crate) async fn purge(cx: Context, params: Params) -> Result<Href, Failure> {
    change(cx, params, Change::Purge).await
}

async fn change(cx: Context, params: Params, change: Change) -> Result<Href, Failure> {
    let name = cx.queue()?;
    let filter = filter(&params, &cx.app.hidden_in_queue(&name))?;
    let expected: String = params.needed("expected")?;
    confirmed(&params, &expected)?;
    let count: Option<u64> = match expected.as_str() {
        "all" => None,
        number => {
            Some(number.parse().map_err(|_| Failure::invalid("the selection is not valid: count again"))?)
        }
    };
    let dead = open(&cx, &name).await?.dead();
    let what = match change {
        Change::Replay => "queue dead replay",
        Change::Purge => "queue dead purge",
    };
    let chosen = ["error", "fingerprint"].into_iter();
    let chosen =
        chosen.filter_map(|name| Some((name, params.raw(name).filter(|it| !it.is_empty())?.to_owned())));
    let order = Order::new(what, Subject::queue(&name).select_all(chosen)).expecting(count);
    cx.act(order, |running| async move {
        tasks::settle(&running, &dead, filter, count.unwrap_or(u64::MAX), change).await
    })
    .await
}
