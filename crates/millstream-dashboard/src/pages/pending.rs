//! Messages that were handed out and are not settled.

use std::time::Duration;

use millstream::Partition;
use millstream::admin::{Owners, PendingEntry, PendingOrder, PendingQuery};
use millstream::crates::core::log::Source;

use super::limits::limit_key;
use super::{group_href, group_page};
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Maximum number of pending entries up to which they are sorted by idle time: that reads all of them.
const SORTED: u64 = 100_000;

/// Shows pending messages.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let here = group_href(paths::PENDING, &topic, &group);
    let limit = cx.query.clamped("limit", 1..=500, 50);
    let idle = cx.query.clamped("idle", 0..=86_400, 0);
    let deliveries = cx.query.clamped("deliveries", 0..=1_000_000, 0);
    let order = cx.query.text("order")?.unwrap_or("id");
    let order = match order {
        "idle" => PendingOrder::Idle,
        "deliveries" => PendingOrder::Deliveries,
        _ => PendingOrder::Id,
    };
    let snapshot = cx.app.reading.of_group(&topic, &group).await?;
    let total = snapshot.groups.get(&group).and_then(|it| it.stats.totals.pending);
    let mut page = group_page(format!("Pending messages of {group}"), &topic, &group, paths::PENDING).live();
    let too_many = order != PendingOrder::Id && total.is_none_or(|total| total > SORTED);
    let order = if too_many {
        let why =
            "There are too many pending messages to sort them here: they are in the order of their ids.";
        page.push(Part::notice(Tone::Warn, why));
        PendingOrder::Id
    } else {
        order
    };
    let query = PendingQuery {
        order,
        limit: limit as usize,
        after: cx.query.parsed("after")?,
        idle: Duration::from_secs(idle),
        deliveries,
    };
    let choices =
        [("id", "oldest first"), ("idle", "longest idle first"), ("deliveries", "most deliveries first")];
    let choices = choices.map(|(value, label)| (value.to_owned(), label.to_owned())).to_vec();
    let chosen = cx.query.raw("order").unwrap_or("id").to_owned();
    let fields = vec![
        Field::new("order", "Order", chosen).input(Input::Choice(choices)),
        Field::new("idle", "Idle for at least, in seconds", idle.to_string())
            .input(Input::Number { min: 0, max: 86_400 }),
        Field::new("deliveries", "Deliveries, at least", deliveries.to_string())
            .input(Input::Number { min: 0, max: 1_000_000 }),
        Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 500 }),
    ];
    page.push(Part::Form(Form::filter("Order", here.clone(), fields)));
    let found = cx.admin().pending(&topic, &group, &query).await?;
    for error in &found.errors {
        page.push(Part::notice(Tone::Bad, format!("partition {}: {}", error.partition.0, error.error)));
    }
    let titles = [
        ">Partition",
        "Message",
        "Handed out to",
        "Running since",
        ">Idle",
        ">Deliveries",
        "Attempt",
        "Due",
        "Last error",
    ];
    let mut table = Table::new("Pending", &titles, "Nothing is pending.");
    if let Some(total) = total {
        table = table.note(format!("{} of {}", found.entries.len(), format::count(total)));
    }
    let owners = cx.app.reading.owners(&topic, &group).await.ok();
    table.rows =
        found.entries.iter().map(|entry| row(&cx, &topic, &group, entry, owners.as_deref())).collect();
    if let Some(next) = found.next {
        let order = match order {
            PendingOrder::Id => "id",
            PendingOrder::Idle => "idle",
            PendingOrder::Deliveries => "deliveries",
        };
        let next = here.with("after", next).with("order", order).with("idle", idle);
        table = table.link("Next page", next.with("deliveries", deliveries).with("limit", limit));
    }
    Ok(page.table(table))
}

/// Words for who holds an entry that is pending under this name.
pub(crate) fn holder(owners: Option<&Owners>, partition: Partition, consumer: &str) -> String {
    match owners {
        None => consumer.to_owned(),
        Some(owners) => owners.holder(partition, consumer).unwrap_or("an owner that is gone").to_owned(),
    }
}

fn row(
    cx: &Context,
    topic: &millstream::TopicName,
    group: &millstream::GroupName,
    entry: &PendingEntry,
    owners: Option<&Owners>,
) -> Vec<Cell> {
    let (partition, pending) = (entry.topic_partition.partition.0, &entry.pending);
    let holder = holder(owners, entry.topic_partition.partition, &pending.consumer);
    let story = |id: &str| Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), id]);
    let id = pending.id.to_string();
    let message = match entry.source {
        Source::Log => Cell { mono: true, ..Cell::link(id.as_str(), story(&id)) },
        Source::Retry => Cell { mono: true, ..Cell::text(format!("{id} (a retry)")) }
            .and_links(vec![("retries".into(), group_href(paths::RETRIES, topic, group))]),
    };
    let note = pending.note.as_ref();
    let waits = owners.and_then(|it| it.waits(entry.topic_partition.partition, entry.source, pending.id));
    let runs = owners.and_then(|it| it.runs(entry.topic_partition.partition, entry.source, pending.id));
    let waits = waits.map(|it| format!("waits for {}", limit_key(cx, topic, &it.key)));
    let error = note.map(|note| note.error.clone()).filter(|error| !error.is_empty());
    let noted: Vec<_> = waits.into_iter().chain(error).collect();
    vec![
        Cell::text(partition.to_string()),
        message,
        Cell::mono(Text::short(&holder)),
        runs.map_or_else(Cell::none, |(_, it)| Cell::time(it.since)),
        Cell::duration(pending.idle),
        Cell::count(pending.deliveries),
        note.map_or_else(Cell::none, |note| Cell::text(note.attempt.to_string())),
        note.map_or_else(Cell::none, |note| match note.due {
            millstream::delay::Due::At(time) => Cell::time(time),
            millstream::delay::Due::In(time) => Cell::duration(time),
        }),
        if noted.is_empty() { Cell::none() } else { Cell::text(Text::short(&noted.join("; "))) },
    ]
}
