//! One message: its content, and where it is now for each group.

use std::fmt::Display;
use std::time::Duration;

use millstream::admin::{Failed, Owners, Range, ShelfFilter, ShelfQuery, Stream};
use millstream::crates::core::log::Source;
use millstream::crates::core::wire;
use millstream::crates::core::{Envelope, Limits};
use millstream::{GroupName, History, MessageId, Partition, TopicName, TopicPartition};

use super::{find, work};
use crate::failure::Failure;
use crate::pages::{group_href, topic_page};
use crate::paths;
use crate::reading::snapshots::Group;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::format;
use crate::view::href::Href;
use crate::view::json;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Longest payload that is shown; a longer one can be saved as a file.
const SHOWN: usize = 1 << 20;
/// Maximum number of groups of a page.
const GROUPS: usize = 20;
/// Maximum number of letters, and of entries of a retry log, that are examined for a group.
const LOOKS: u64 = 5_000;
const REDELIVERIES: usize = 500;
/// Time after which the search for a retry ends.
const BUDGET: Duration = Duration::from_secs(2);

/// Shows a message.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let (topic, (partition, id)) = (cx.topic()?, cx.place()?);
    let hidden = cx.app.hidden_in_topic(&topic);
    let found = find(&cx).await?;
    let mut page = topic_page(format!("Message {id}"), &topic, paths::MESSAGE);
    let mut facts =
        vec![("Partition", Cell::text(partition.0.to_string())), ("Appended", Cell::time(id.timestamp()))];
    match &found {
        Some(message) => {
            let size: usize =
                message.stored.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
            facts.push(("Size", Cell::bytes(size as u64)));
            if !hidden.hides_payload() {
                let file =
                    Href::of(paths::PAYLOAD, &[topic.as_str(), &partition.0.to_string(), &id.to_string()]);
                facts.push(("Payload", Cell::link("save as a file", file)));
            }
        }
        None => {
            let why =
                "It is not in the log: its retention has dropped it, it was deleted, or it never was there.";
            page.push(Part::notice(Tone::Warn, why));
        }
    }
    page.push(Part::facts("", facts));
    let snapshot = cx.app.reading.topic(&topic).await?;
    let titles = ["Group", "Where it is now", "Since", ">Attempt", "Error"];
    let mut table = Table::new("For each group", &titles, "No group reads this topic.");
    for (name, group) in snapshot.groups.iter().take(GROUPS) {
        table.rows.push(place(&cx, &topic, name, group, partition, id, found.is_some()).await?);
    }
    if snapshot.groups.len() > GROUPS {
        table = table.note(format!("The first {GROUPS} of {}", snapshot.groups.len()));
    }
    page.push(Part::Table(table));
    if let Some(message) = found {
        let envelope = message.decode(&Limits::NONE).envelope;
        if let Ok(envelope) = &envelope {
            let tp = TopicPartition { topic, partition };
            work::add(&mut page, &cx, tp, (&envelope.headers, id.timestamp()), &hidden).await?;
        }
        content(&mut page, envelope, &hidden);
    }
    Ok(page)
}

/// Returns the row of a group: where the message is for it.
async fn place(
    cx: &Context,
    topic: &TopicName,
    name: &GroupName,
    group: &Group,
    partition: Partition,
    id: MessageId,
    is_stored: bool,
) -> Result<Vec<Cell>, Failure> {
    let on = |path| group_href(path, topic, name);
    let head = Cell::link(name.as_str(), on(paths::GROUP));
    let row = |place: Cell, since: Cell, attempt: Option<u64>, error: &str| {
        let attempt = attempt.map_or_else(Cell::none, Cell::count);
        let error = if error.is_empty() { Cell::none() } else { Cell::text(Text::short(error)) };
        vec![head.clone(), place, since, attempt, error]
    };
    let tp = TopicPartition { topic: topic.clone(), partition };
    let inspect = cx.app.mq.backend().inspect()?;
    let dead = dead_letter(cx, topic, name, partition, id).await?;
    if let Some(letter) = dead {
        let href = Href::of(
            paths::LETTER,
            &[topic.as_str(), name.as_str(), &partition.0.to_string(), &letter.id.to_string()],
        );
        let place = Cell { tone: Tone::Bad, ..Cell::link("dead letter", href) };
        return Ok(row(
            place,
            Cell::time(letter.id.timestamp()),
            Some(u64::from(letter.attempts)),
            &letter.error,
        ));
    }
    let owners = cx.app.reading.owners(topic, name).await.ok();
    let holder = |consumer: &str| {
        Text::short(&crate::pages::pending::holder(owners.as_deref(), partition, consumer)).to_string()
    };
    let running = owners.as_deref().map(Owners::running).unwrap_or_default();
    if let Some((by, it)) = running.into_iter().rfind(|(_, it)| (it.partition, it.origin) == (partition, id))
    {
        let by = Text::short(by.id.as_str());
        let place =
            Cell { tone: Tone::Warn, ..Cell::link(format!("running now, on {by}"), on(paths::GROUP)) };
        return Ok(row(place, Cell::time(it.since), Some(u64::from(it.attempt)), ""));
    }
    let page = inspect.pending(&tp, name, Source::Log, id.previous(), 1).await?;
    if let Some(pending) = page.items.into_iter().find(|it| it.id == id) {
        let since = Cell::text(format!("{} ago", format::duration(pending.idle)));
        let note = pending.note.as_ref();
        let place = Cell {
            tone: Tone::Warn,
            ..Cell::link(format!("pending, handed out to {}", holder(&pending.consumer)), on(paths::PENDING))
        };
        let (attempt, error) =
            note.map_or((None, ""), |note| (Some(u64::from(note.attempt)), note.error.as_str()));
        return Ok(row(place, since, attempt, error));
    }
    let filter = ShelfFilter::one(partition, id);
    let retries = cx.admin().retries(topic, name).await?;
    // A search that takes too long finds nothing.
    let parked = match tokio::time::timeout(BUDGET, retries.first(&filter, 1)).await {
        Ok(found) => found?.into_iter().next(),
        Err(_) => None,
    };
    if let Some(retry) = parked {
        let place = Cell { tone: Tone::Warn, ..Cell::link("waits for a retry", on(paths::RETRIES)) };
        let retry = retry.facts();
        return Ok(row(place, Cell::time(retry.at), Some(u64::from(retry.attempts)), retry.error));
    }
    let newest = Range { newest_first: true, ..Range::ALL };
    let redelivered = inspect.entries(&tp, &Stream::Retry(name.clone()), newest, REDELIVERIES).await?;
    for entry in redelivered.items {
        let receipt = millstream::crates::core::log::Receipt::new(Source::Retry, entry.id);
        let decoded = wire::decode(receipt, &entry.fields, &Limits::NONE);
        if decoded.origin == id {
            let page = inspect.pending(&tp, name, Source::Retry, entry.id.previous(), 1).await?;
            let pending = page.items.into_iter().find(|it| it.id == entry.id);
            let words = pending.map_or_else(
                || "due again, not read yet".to_owned(),
                |it| format!("pending, handed out again to {}", holder(&it.consumer)),
            );
            let place = Cell { tone: Tone::Warn, ..Cell::link(words, on(paths::PENDING)) };
            let error = decoded.error.unwrap_or_default();
            return Ok(row(
                place,
                Cell::time(entry.id.timestamp()),
                Some(u64::from(decoded.attempt)),
                &error,
            ));
        }
    }
    let survey = group.stats.partitions.iter().find(|it| it.stats.partition == partition);
    let is_read = survey.and_then(|it| it.stats.position).is_some_and(|position| position >= id);
    let place = match (is_read, is_stored) {
        (true, _) => Cell::toned("settled", Tone::Good),
        (false, true) => Cell::toned("not read yet", Tone::Plain),
        (false, false) => Cell::toned("unknown: it is not stored, and was not read", Tone::Warn),
    };
    Ok(row(place, Cell::none(), None, ""))
}

async fn dead_letter(
    cx: &Context,
    topic: &TopicName,
    group: &GroupName,
    partition: Partition,
    id: MessageId,
) -> Result<Option<millstream::DeadLetter>, Failure> {
    let filter = ShelfFilter {
        partitions: Some(vec![partition]),
        origin: Some(id),
        undecodable_error: cx.app.hidden_in_topic(topic).undecodable_error(),
        // A message dies after it was appended.
        from: Some(id.timestamp()),
        ..ShelfFilter::default()
    };
    let query = ShelfQuery { filter, limit: 1, looks: LOOKS, ..ShelfQuery::default() };
    let page = cx.admin().dead_letters(topic, group).await?.page(&query).await?;
    Ok(page.items.into_iter().find_map(Failed::letter))
}

/// Table of failed attempts.
pub(crate) fn attempts(history: &History) -> Table {
    let rows = history.failures().iter().map(|failed| {
        vec![
            Cell::count(u64::from(failed.attempt)),
            Cell::time(failed.at),
            Cell::text(Text::line(&failed.error)),
        ]
    });
    Table::new("Failed attempts", &[">Attempt", "Time", "Error"], "No failed attempt is recorded.").rows(rows)
}

/// Adds key, headers and payload to a page.
pub(crate) fn content(page: &mut Page, envelope: Result<Envelope, impl Display>, hidden: &Redaction) {
    let envelope = match envelope {
        Ok(envelope) => hidden.apply(envelope),
        Err(why) => {
            page.push(Part::notice(Tone::Bad, format!("The entry is no message: {why}")));
            return;
        }
    };
    let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Text::block(text),
        Err(_) => Text::block(&bytes.escape_ascii().to_string()),
    };
    if let Some(key) = &envelope.key {
        page.push(Part::Code { title: "Key".into(), text: bytes(key) });
    }
    if !envelope.headers.is_empty() {
        let rows = envelope.headers.iter().map(|(name, value)| {
            vec![Cell::mono(Text::line(name)), Cell { mono: true, ..Cell::text(bytes(value)) }]
        });
        page.push(Part::Table(Table::new("Headers", &["Name", "Value"], "").rows(rows)));
    }
    let size = format::bytes(envelope.payload.len() as u64);
    let shown = &envelope.payload[..envelope.payload.len().min(SHOWN)];
    let cut = if shown.len() < envelope.payload.len() { ", the first 1 MiB" } else { "" };
    let stored = String::from_utf8_lossy(shown);
    match json::indented(&stored) {
        Some(indented) if std::str::from_utf8(shown).is_ok() => {
            page.push(Part::Code {
                title: format!("Payload ({size}{cut}, JSON with line breaks added)"),
                text: Text::block(&indented),
            });
        }
        _ => page.push(Part::Code { title: format!("Payload ({size}{cut})"), text: bytes(shown) }),
    }
}
