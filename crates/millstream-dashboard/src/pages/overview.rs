//! All topics, groups and delay queues at a glance.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream::admin::{CatchUp, diagnose};
use millstream::crates::core::QueueName;
use millstream::{Error, TopicName};

use super::{group_href, queues, state, topic_href};
use crate::access::Permission;
use crate::failure::Failure;
use crate::paths;
use crate::reading::health;
use crate::reading::sampler::{self, Known, KnownQueue, Sample};
use crate::reading::snapshots::{Group, Snapshot};
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::chart::{Chart, Lines};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Number of groups, topics and queues of a page.
const SHOWN: usize = 25;
/// Number of topics up to which a look reads all of them. Of more, it shows what was read in the background.
const ALL: usize = 100;

/// Columns of a table of groups.
const GROUPS: [&str; 11] = [
    "Group",
    "Topic",
    "State",
    ">Backlog",
    "Trend",
    ">Oldest",
    ">Consumed/s",
    "Caught up",
    ">Retrying",
    ">Dead",
    ">Members",
];

/// Makes an empty table of groups, with or without their topics.
pub(crate) fn groups_table(with_topics: bool, empty: &str) -> Table {
    let titles: Vec<&str> = GROUPS.into_iter().filter(|it| with_topics || *it != "Topic").collect();
    Table::new("Groups", &titles, empty).paged(SHOWN)
}

/// Returns the state of topics: read now, or in the background if there are many.
async fn read(cx: &Context, names: &[TopicName]) -> BTreeMap<TopicName, Known> {
    if names.len() <= ALL {
        return cx.app.reading.topics_of(names).await;
    }
    let mut known = cx.app.reading.sampler.topics();
    known.retain(|name, _| names.binary_search(name).is_ok());
    known
}

/// Shows groups, topics and queues, each with those first that need attention.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let all = cx.app.reading.topics().await?;
    let names: Vec<TopicName> = all.iter().filter(|name| cx.may(name, Permission::Read)).cloned().collect();
    let read = read(&cx, &names).await;
    let (mut of_groups, mut of_topics) = (Vec::new(), Vec::new());
    for (name, snapshot) in &read {
        let Ok(snapshot) = snapshot else {
            of_topics.push((Tone::Bad as u8, name));
            continue;
        };
        let groups = snapshot.groups.values().map(|group| (urgency(group), name, snapshot, group));
        of_groups.extend(groups);
        of_topics.push((health::urgency(&health::of_topic(snapshot)), name));
    }
    of_groups.sort_by_key(|(urgency, name, ..)| (Reverse(*urgency), *name));
    of_topics.sort_by_key(|(urgency, _)| Reverse(*urgency));
    let queues = match cx.access.allows(Permission::Read) {
        true => queues::all(&cx).await,
        false => Ok(BTreeMap::new()),
    };
    let (queues, unread) = match queues {
        Ok(queues) => (queues, None),
        Err(failure) => (BTreeMap::new(), Some(failure.why)),
    };

    let mut page = Page::new("Overview").live();
    if cx.access.allows(Permission::Admin) {
        page.actions = Cell::links(vec![("Create a topic…".into(), Href::of(paths::TOPIC_CREATE, &[]))]);
    }
    if read.len() < names.len() {
        let (read, all) = (format::count(read.len() as u64), format::count(names.len() as u64));
        page.push(Part::notice(Tone::Plain, format!("{read} of {all} topics were read so far.")));
    }
    let is_all = names.len() == all.len();
    let snapshots = || read.values().filter_map(|it| it.as_deref().ok());
    page.push(Part::Tiles(tiles(&cx, snapshots, &queues, is_all)));
    let samples = cx.app.reading.sampler.samples();
    // They are sums over all topics.
    if is_all && samples.len() > 1 {
        page.push(Part::Lines(hour(&samples)));
    }
    page.push(Part::facts("", facts(&cx, names.len() as u64, snapshots).await));
    let groups = groups_table(
        true,
        if names.is_empty() { "There is no topic yet." } else { "No group reads these topics." },
    );
    let query: Vec<(&str, &str)> = cx.query.pairs().collect();
    let groups = groups.made(&query, of_groups.len(), |at| {
        let (_, name, snapshot, group) = of_groups[at];
        group_row(name, snapshot, group)
    });
    page.push(Part::Table(groups));
    if let Some(why) = unread {
        page.push(Part::notice(Tone::Bad, format!("The delay queues cannot be read: {why}")));
    }
    if !queues.is_empty() {
        page.push(Part::Table(queues::table(&queues).named("queues").paged(SHOWN)));
    }
    let titles = ["Topic", "State", ">Partitions", ">Entries", ">Produced/s", ">Delayed", ">Groups"];
    let topics = Table::new("Topics", &titles, "There is no topic yet.").named("topics").paged(SHOWN);
    Ok(page.table(topics.made(&query, of_topics.len(), |at| match &read[of_topics[at].1] {
        Ok(snapshot) => topic_row(of_topics[at].1, snapshot),
        Err(error) => unread_row(of_topics[at].1, error),
    })))
}

/// Returns how urgent a group is: by the worst of its concerns, then by the age of what it has not settled.
pub(crate) fn urgency(group: &Group) -> (u8, Duration) {
    (health::urgency(&health::of_group(group)), group.stats.totals.oldest.unwrap_or_default())
}

fn tiles<'a, I: Iterator<Item = &'a Snapshot>>(
    cx: &Context,
    snapshots: impl Fn() -> I,
    queues: &BTreeMap<QueueName, KnownQueue>,
    is_all: bool,
) -> Vec<(&'static str, Cell)> {
    let groups = || snapshots().flat_map(|it| it.groups.values());
    let now = Sample::of(snapshots());
    let samples = if is_all { cx.app.reading.sampler.samples() } else { Vec::new() };
    let trend = |what: &str, of: fn(&Sample) -> Option<f64>| {
        Chart::of(what, &samples.iter().map(of).collect::<Vec<_>>())
    };
    let of_queues = |of: fn(&millstream::delay::TaskCounts) -> u64| {
        queues.values().flatten().map(|queue| of(&queue.counts)).sum::<u64>()
    };
    let oldest = groups().filter_map(|it| it.stats.totals.oldest.max(it.stats.totals.oldest_parked)).max();
    let is_late = groups().any(health::is_late);
    let dead = groups().filter_map(|it| it.stats.totals.dead).sum::<u64>() + of_queues(|it| it.dead);
    let overdue = snapshots().filter_map(|it| it.delayed).map(|it| it.overdue).sum::<u64>();
    let overdue = overdue + of_queues(|it| it.waiting.overdue);
    let members: u64 = groups().filter_map(|it| it.stats.members).sum::<usize>() as u64;
    let figure = |number: Option<f64>| number.unwrap_or_default() as u64;
    let rate = now.failed.unwrap_or_default();
    vec![
        ("Backlog", Cell { chart: trend("backlog", |it| it.backlog), ..Cell::count(figure(now.backlog)) }),
        (
            "Oldest not settled",
            Cell { tone: if is_late { Tone::Warn } else { Tone::Plain }, ..Cell::duration_or_none(oldest) },
        ),
        (
            "Failing/s",
            Cell {
                chart: trend("newly failing", |it| it.failed),
                ..Cell::toned(format::rate(now.failed), if rate > 0.0 { Tone::Warn } else { Tone::Dim })
            },
        ),
        ("Dead", Cell { chart: trend("dead", |it| it.dead), ..Cell::alarm(Some(dead), Tone::Warn) }),
        ("Overdue", Cell::alarm(Some(overdue), Tone::Warn)),
        ("Members", Cell::count(members)),
    ]
}

/// Draws the last hour.
fn hour(samples: &[Sample]) -> Lines {
    let line = |name, of: fn(&Sample) -> Option<f64>| (name, samples.iter().map(of).collect::<Vec<_>>());
    let lines = [
        line("produced", |it| it.produced),
        line("handled", |it| it.handled),
        line("failed", |it| it.failed),
    ];
    let rate = |it: Option<f64>| format!("{}/s", format::rate(it));
    Lines::of("Messages per second in the last hour", "1 h ago to now", sampler::SAMPLES, &lines, rate)
}

async fn facts<'a, I: Iterator<Item = &'a Snapshot>>(
    cx: &Context,
    topics: u64,
    snapshots: impl Fn() -> I,
) -> Vec<(&'static str, Cell)> {
    let mut facts = vec![("Topics", Cell::count(topics))];
    // Topics with many partitions are read less often than others.
    if let Some(oldest) = snapshots().map(|it| it.at).min() {
        facts.push(("Figures since", Cell::time(oldest)));
    }
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

/// Row of a topic that cannot be read.
fn unread_row(name: &TopicName, error: &Error) -> Vec<Cell> {
    let why = Cell::chip(Text::short(&error.to_string()), Tone::Bad);
    let mut row = vec![Cell::link(name.as_str(), topic_href(name)), why];
    row.resize_with(7, || Cell::known(None));
    row
}

/// Words for the time until a group has caught up.
pub(crate) fn catch_up(group: &Group) -> Cell {
    match group.rates.catch_up(group.stats.backlog()) {
        None => Cell::toned("?", Tone::Dim),
        Some(CatchUp::Done) => Cell { rank: Some(0.0), ..Cell::toned("yes", Tone::Good) },
        Some(CatchUp::In(time)) => {
            Cell { rank: Some(time.as_secs_f64()), ..Cell::text(format!("in {}", format::duration(time))) }
        }
        Some(CatchUp::Never) => Cell { rank: Some(f64::MAX), ..Cell::toned("not at this rate", Tone::Warn) },
    }
}

/// Number of messages that a group has to handle.
pub(crate) fn backlog(group: &Group) -> Cell {
    let (known, least) = (group.stats.backlog(), group.stats.backlog_at_least());
    let tone = if known == Some(0) { Tone::Dim } else { Tone::Plain };
    Cell::toned(format::at_least(known, least), tone)
}

/// Age of the oldest message that a group has not settled, also if it waits for a retry.
pub(crate) fn oldest(group: &Group) -> Cell {
    let tone = if health::is_late(group) { Tone::Warn } else { Tone::Plain };
    Cell { tone, ..Cell::duration_or_none(group.stats.totals.oldest.max(group.stats.totals.oldest_parked)) }
}

/// Row of a group in a table of groups.
pub(crate) fn group_row(topic: &TopicName, snapshot: &Arc<Snapshot>, group: &Group) -> Vec<Cell> {
    let (stats, totals) = (&group.stats, &group.stats.totals);
    let trend = snapshot.history(&stats.group, |it| it.backlog);
    vec![
        Cell::link(stats.group.as_str(), group_href(paths::GROUP, topic, &stats.group)),
        Cell::link(topic.as_str(), topic_href(topic)),
        state(&health::of_group(group), group_href(paths::GROUP, topic, &stats.group)),
        backlog(group),
        Cell::chart(Chart::of("backlog", &trend)),
        oldest(group),
        Cell::text(format::rate(group.rates.consumed)),
        catch_up(group),
        Cell::known(totals.retrying).to(group_href(paths::RETRIES, topic, &stats.group)),
        Cell::alarm(totals.dead, Tone::Warn).to(group_href(paths::DEAD, topic, &stats.group)),
        Cell::known(stats.members.map(|members| members as u64)),
    ]
}
