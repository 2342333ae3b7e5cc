//! All topics and groups at a glance.

use std::cmp::Reverse;
use std::sync::Arc;

use millstream::admin::{CatchUp, diagnose};
use millstream::{Error, TopicName};

use super::{group_href, state, topic_href};
use crate::access::Permission;
use crate::failure::Failure;
use crate::paths;
use crate::reading::health;
use crate::reading::snapshots::{Group, Snapshot};
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::chart::Chart;
use crate::view::form::{Field, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Number of topics of a page.
const SHOWN: u64 = 25;
/// Number of topics up to which all are read, to have those that need attention on the first page.
const ORDERED: u64 = 100;

/// A topic as it was read.
type Read = (TopicName, Result<Arc<Snapshot>, Error>);

/// Returns what is on a page.
fn on_page<T>(all: Vec<T>, number: u64) -> Vec<T> {
    all.into_iter().skip(((number - 1) * SHOWN) as usize).take(SHOWN as usize).collect()
}

/// Reads the topics of a page: those first that need attention, otherwise in the order of their names.
async fn topics_of(cx: &Context, names: Vec<TopicName>, number: u64) -> Vec<Read> {
    let is_ordered = names.len() as u64 <= ORDERED;
    let asked = if is_ordered { names } else { on_page(names, number) };
    let mut read: Vec<Read> = cx.app.reading.topics_of(&asked).await.into_iter().collect();
    read.sort_by_key(|(_, snapshot)| {
        // One that cannot be read may have anything.
        Reverse(snapshot.as_ref().map_or(Tone::Bad as u8, |it| health::urgency(&health::of_topic(it))))
    });
    if is_ordered { on_page(read, number) } else { read }
}

/// Shows a page of the topics, with their groups.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let find = cx.query.text("find")?.unwrap_or_default().to_owned();
    let all = cx.app.reading.topics().await?;
    let wanted = |name: &&TopicName| cx.may(name, Permission::Read) && name.as_str().contains(&find);
    let names: Vec<TopicName> = all.iter().filter(wanted).cloned().collect();
    let pages = (names.len() as u64).div_ceil(SHOWN).max(1);
    let number = cx.query.clamped("page", 1..=pages, 1);
    let total = names.len() as u64;
    let read = topics_of(&cx, names, number).await;

    let mut page = Page::new("Overview").live();
    let mut facts = facts(&cx, total).await;
    // Topics with many partitions are read less often than others.
    if let Some(oldest) = read.iter().filter_map(|(_, it)| it.as_ref().ok()).map(|it| it.at).min() {
        facts.push(("Figures since", Cell::time(oldest)));
    }
    page.push(Part::facts("", facts));
    let mut topics = Table::new(
        "Topics",
        &["Topic", "State", ">Partitions", ">Entries", ">Produced/s", ">Delayed", ">Groups"],
        if find.is_empty() {
            "There is no topic yet.".to_owned()
        } else {
            format!("No topic contains “{find}”.")
        },
    );
    let mut groups = Table::new(
        "Groups",
        &[
            "Group",
            "Topic",
            "State",
            ">Backlog",
            "Trend",
            ">Oldest not settled",
            ">Consumed/s",
            "Caught up",
            ">Retrying",
            ">Dead",
            ">Members",
        ],
        "No group reads these topics.",
    );
    let mut of_groups = Vec::new();
    for (name, snapshot) in &read {
        match snapshot {
            Ok(snapshot) => {
                topics.rows.push(topic_row(name, snapshot));
                of_groups.extend(snapshot.groups.values().map(|group| (name, snapshot, group)));
            }
            Err(error) => {
                let mut row = vec![
                    Cell::link(name.as_str(), topic_href(name)),
                    Cell::toned(error.to_string(), Tone::Bad),
                ];
                row.resize_with(topics.columns.len(), Cell::none);
                topics.rows.push(row);
            }
        }
    }
    of_groups.sort_by_key(|(name, _, group)| (Reverse(health::urgency(&health::of_group(group))), *name));
    groups.rows =
        of_groups.into_iter().map(|(name, snapshot, group)| group_row(name, snapshot, group)).collect();
    if pages > 1 {
        let order = if total > ORDERED { ". Pages are in the order of names" } else { "" };
        topics = topics.note(format!("Page {number} of {pages}{order}"));
        let of = |number: u64| Href::of(paths::OVERVIEW, &[]).with("find", &find).with("page", number);
        if number > 1 {
            topics = topics.link("Previous", of(number - 1));
        }
        if number < pages {
            topics = topics.link("Next", of(number + 1));
        }
    }
    if cx.access.allows(Permission::Admin) {
        topics = topics.link("Create a topic…", Href::of(paths::TOPIC_CREATE, &[]));
    }
    if pages > 1 || !find.is_empty() {
        let field = Field::new("find", "Name contains", find);
        page.push(Part::Form(Form::filter("Find topics", Href::of(paths::OVERVIEW, &[]), vec![field])));
    }
    Ok(page.table(topics).table(groups))
}

async fn facts(cx: &Context, topics: u64) -> Vec<(&'static str, Cell)> {
    let mut facts = vec![("Topics", Cell::count(topics))];
    if cx.access.allows(Permission::Read) {
        let server = match cx.app.reading.servers().await {
            Ok(servers) => {
                let reports = diagnose(&servers);
                let (tone, text) = super::server::summary(&reports);
                Cell::toned(text, tone)
            }
            Err(error) => Cell::toned(error.to_string(), Tone::Bad),
        };
        facts.push(("Server", server.to(Href::of(paths::REDIS, &[]))));
    }
    let running = cx.app.actions.all().iter().filter(|action| action.state().ended.is_none()).count() as u64;
    if running > 0 {
        facts.push(("Running actions", Cell::count(running).to(Href::of(paths::AUDIT, &[]))));
    }
    facts
}

fn topic_row(name: &TopicName, snapshot: &Snapshot) -> Vec<Cell> {
    vec![
        Cell::link(name.as_str(), topic_href(name)),
        state(&health::of_topic(snapshot), topic_href(name)),
        Cell::count(u64::from(snapshot.topic.partitions)),
        Cell::known(snapshot.length()),
        Cell::text(format::rate(snapshot.produced())),
        Cell::known(snapshot.delayed.map(|waiting| waiting.total)),
        Cell::count(snapshot.groups.len() as u64),
    ]
}

/// Words for the time until a group has caught up.
pub(crate) fn catch_up(group: &Group) -> Cell {
    match group.rates.catch_up(group.stats.backlog()) {
        None => Cell::toned("?", Tone::Dim),
        Some(CatchUp::Done) => Cell::toned("yes", Tone::Good),
        Some(CatchUp::In(time)) => Cell::text(format!("in {}", format::duration(time))),
        Some(CatchUp::Never) => Cell::toned("not at this rate", Tone::Warn),
    }
}

/// Number of messages that a group has to handle.
pub(crate) fn backlog(group: &Group) -> Cell {
    let (known, least) = (group.stats.backlog(), group.stats.backlog_at_least());
    let tone = if known == Some(0) { Tone::Dim } else { Tone::Plain };
    Cell::toned(format::at_least(known, least), tone)
}

/// Row of a group in a table of groups.
pub(crate) fn group_row(topic: &TopicName, snapshot: &Snapshot, group: &Group) -> Vec<Cell> {
    let (stats, totals) = (&group.stats, &group.stats.totals);
    let trend = snapshot.history(&stats.group, |it| it.backlog);
    vec![
        Cell::link(stats.group.as_str(), group_href(paths::GROUP, topic, &stats.group)),
        Cell::link(topic.as_str(), topic_href(topic)),
        state(&health::of_group(group), group_href(paths::GROUP, topic, &stats.group)),
        backlog(group),
        Cell::chart(Chart::of("backlog", &trend)),
        Cell::duration_or_none(totals.oldest),
        Cell::text(format::rate(group.rates.consumed)),
        catch_up(group),
        Cell::known(totals.retrying).to(group_href(paths::RETRIES, topic, &stats.group)),
        Cell::alarm(totals.dead, Tone::Warn).to(group_href(paths::DEAD, topic, &stats.group)),
        Cell::known(stats.members.map(|members| members as u64)),
    ]
}
