//! A topic: its partitions, its groups, and the memory that it takes.

use std::cmp::Reverse;

use millstream::TopicName;
use millstream::admin::{Memory, ServerMemory, Size};

use super::{overview, topic_page};
use crate::access::Permission;
use crate::failure::Failure;
use crate::paths;
use crate::reading::health;
use crate::reading::snapshots::Snapshot;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::chart::Chart;
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Number of partitions of a page.
const PARTITIONS: usize = 128;

/// Shows the state of a topic.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    let snapshot = cx.app.reading.topic(&topic).await?;
    let mut page = topic_page(format!("Topic {topic}"), &topic, paths::TOPIC).live();
    // Those of groups are in their table.
    let of_group = |text: &str| snapshot.groups.keys().any(|name| text.starts_with(&format!("{name}: ")));
    for concern in health::of_topic(&snapshot).into_iter().filter(|it| !of_group(&it.text)) {
        page.push(Part::notice(concern.tone, concern.text));
    }
    for reason in &snapshot.unreadable {
        page.push(Part::notice(Tone::Bad, reason.as_str()));
    }
    if cx.may(&topic, Permission::Admin) && !topic.is_audit() {
        let to = |path| Href::of(path, &[topic.as_str()]);
        page.actions = Cell::links(vec![
            ("Change settings or add partitions…".into(), to(paths::TOPIC_ALTER)),
            ("Delete the topic…".into(), to(paths::TOPIC_DELETE)),
        ]);
    }
    page.push(Part::Tiles(tiles(&topic, &snapshot)));
    let mut groups = overview::groups_table(false, "No group reads this topic.");
    let mut all: Vec<_> = snapshot.groups.values().collect();
    all.sort_by_key(|group| Reverse(overview::urgency(group)));
    groups.rows = all.into_iter().map(|group| overview::group_row(&topic, &snapshot, group)).collect();
    groups.rows.iter_mut().for_each(|row| drop(row.remove(1)));
    page.push(Part::Table(groups));
    page.push(Part::facts("Settings", settings(&snapshot)));
    Ok(page.table(partitions(&topic, &snapshot)))
}

fn tiles(topic: &TopicName, snapshot: &Snapshot) -> Vec<(&'static str, Cell)> {
    let produced = snapshot.groups.keys().next().map(|group| snapshot.history(group, |it| it.produced));
    let trend = Chart::of("produced per second", &produced.unwrap_or_default());
    let rate = Cell { chart: trend, ..Cell::text(format!("{}/s", format::rate(snapshot.produced()))) };
    let delayed = match snapshot.delayed {
        None => Cell::known(None),
        Some(waiting) if waiting.overdue > 0 => {
            Cell::text(format!("{}, {} due", format::count(waiting.total), format::count(waiting.overdue)))
        }
        Some(waiting) => Cell::count(waiting.total),
    };
    vec![
        ("Entries", Cell::known(snapshot.length())),
        ("Produced", rate),
        ("Delayed", delayed.to(Href::of(paths::DELAYED, &[topic.as_str()]))),
        ("Partitions", Cell::count(u64::from(snapshot.topic.partitions))),
        ("Groups", Cell::count(snapshot.groups.len() as u64)),
    ]
}

fn settings(snapshot: &Snapshot) -> Vec<(&'static str, Cell)> {
    let spec = &snapshot.topic;
    let bound = |bound| format!("{} entries in a partition", format::count(bound));
    vec![
        ("Entries are kept", Cell::text(format::retention(spec.retention))),
        ("Producers hold back at", Cell::text(spec.max_length.map_or_else(|| "no bound".to_owned(), bound))),
        ("Dead letters are kept", Cell::text(format::dead_letter_retention(spec.dead_letter_retention))),
        ("Messages are packed", Cell::text(format::packing(spec.packing.as_ref()))),
        ("Figures of", Cell::time(snapshot.at)),
    ]
}

fn partitions(topic: &TopicName, snapshot: &Snapshot) -> Table {
    let mut table = Table::new("Partitions", &[">Partition", ">Entries"], "This topic has no partition.")
        .named("partitions");
    table.paged = PARTITIONS;
    // The backlog of each group, for as many groups as fit beside each other.
    let groups: Vec<_> = snapshot.groups.values().take(6).collect();
    table.rows = snapshot
        .logs
        .iter()
        .enumerate()
        .map(|(at, log)| {
            let messages = Href::of(paths::MESSAGES, &[topic.as_str()]).with("partition", at);
            vec![Cell::link(at.to_string(), messages), Cell::known(log.length())]
                .into_iter()
                .chain(groups.iter().map(|group| {
                    let Some(survey) = group.stats.partitions.get(at) else { return Cell::none() };
                    let stats = &survey.stats;
                    // What is handed out, or waits for a retry, is behind too.
                    let others = survey.pending().unwrap_or_default() + survey.retrying().unwrap_or_default();
                    let backlog = stats.lag.map(|lag| lag + others);
                    let shown = format::at_least(backlog, stats.lag_at_least + others);
                    let epoch = group.stats.epochs.get(at).copied().flatten();
                    let owner = if epoch.is_some() { "" } else { ", no owner" };
                    let tone = match (backlog, epoch) {
                        (_, None) if group.stats.members.is_some_and(|members| members > 0) => Tone::Warn,
                        (Some(0), _) => Tone::Dim,
                        _ => Tone::Plain,
                    };
                    Cell::toned(format!("{shown}{owner}"), tone)
                }))
                .collect()
        })
        .collect();
    for group in &groups {
        table.column(&format!(">Backlog of {}", group.stats.group));
    }
    for group in &groups {
        let href = super::group_href(paths::GROUP, topic, &group.stats.group);
        table = table.link(format!("Owners in {}", group.stats.group), href);
    }
    if snapshot.groups.len() > groups.len() {
        table = table.note(format!("The backlogs of the first {} groups", groups.len()));
    }
    table
}

/// Shows the memory that a topic takes.
pub(crate) async fn memory(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    let memory = cx.app.reading.memory(&topic).await?;
    let mut page = topic_page(format!("Memory of {topic}"), &topic, paths::TOPIC_MEMORY);
    for reason in &memory.unreadable {
        page.push(Part::notice(Tone::Bad, reason.as_str()));
    }
    let servers = cx.app.reading.servers().await?;
    page.push(Part::facts("", memory_facts(&memory, ServerMemory::of(&servers))));
    let titles = ["Part", ">Items", ">Size", ">Each"];
    let structures =
        memory.structures.iter().map(|(structure, size)| (structure.as_str().replace('_', " "), size));
    page.push(Part::Table(sizes(Table::new("By structure", &titles, "Nothing is stored."), structures)));
    let groups = memory.groups.iter().map(|(group, size)| (group.to_string(), size));
    page.push(Part::Table(sizes(
        Table::new("By group", &titles, "No group has data of its own.").named("groups"),
        groups,
    )));
    let mut largest: Vec<_> = memory.partitions.iter().collect();
    largest.sort_by_key(|(_, size)| Reverse(size.bytes));
    let partitions =
        largest.into_iter().map(|(partition, size)| (format!("partition {}", partition.0), size));
    let by_partition = Table::new("By partition, largest first", &titles, "Nothing is stored.");
    Ok(page.table(sizes(by_partition.named("partitions").paged(PARTITIONS), partitions)))
}

fn memory_facts(memory: &Memory, server: ServerMemory) -> Vec<(&'static str, Cell)> {
    let mut facts = vec![("This topic, estimated from a sample", Cell::bytes(memory.bytes()))];
    if let Some(used) = server.used {
        facts.push(("The server", Cell::bytes(used)));
    }
    facts.push(("Its limit", server.max.map_or_else(|| Cell::text("none"), Cell::bytes)));
    facts
}

fn sizes<'a>(table: Table, sizes: impl Iterator<Item = (String, &'a Size)>) -> Table {
    table.rows(sizes.map(|(name, size)| {
        let each = size.each().map_or_else(Cell::none, Cell::bytes);
        vec![Cell::text(name), Cell::count(size.items), Cell::bytes(size.bytes), each]
    }))
}
