//! One message: its content, and where it is now for each group.

use std::fmt::Display;

use millstream::admin::{Known, WorkState};
use millstream::crates::core::steps::STEPS_HEADER;
use millstream::crates::core::{Envelope, Limits};
use millstream::{GroupName, History, MessageId, Partition, TopicName, TopicPartition, WorkId, WorkPlace};

use super::{find, steps, work};
use crate::access::Permission;
use crate::failure::Failure;
use crate::pages::{batches, group_href, topic_page};
use crate::paths;
use crate::reading::snapshots::Group;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::Form;
use crate::view::format;
use crate::view::href::Href;
use crate::view::json;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Longest payload that is shown; a longer one can be saved as a file.
const SHOWN: usize = 1 << 20;
/// Maximum number of groups of a page.
const GROUPS: usize = 20;

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
    let tp = TopicPartition { topic: topic.clone(), partition };
    let of_group = |name: &GroupName| WorkId::new(WorkPlace::Group(tp.clone(), name.clone()), id);
    let work = snapshot.groups.keys().take(GROUPS).map(of_group).collect();
    let waits = steps::add(&mut page, &cx, work, &hidden).await?;
    let place = [topic.as_str(), &partition.0.to_string(), &id.to_string()];
    if cx.may(&topic, Permission::Operate) {
        page.parts.extend(waits.form(Href::of(paths::MESSAGE_SIGNAL, &place)).map(Part::Form));
    }
    if cx.may(&topic, Permission::Admin) && !snapshot.groups.is_empty() {
        let cancel = Href::of(paths::MESSAGE_CANCEL, &place);
        let title = "Cancel: what has not begun does not begin, and handlers are asked to stop";
        page.push(Part::Form(Form::action(title, cancel, Vec::new(), "Cancel for all groups").danger()));
    }
    if let Some(message) = found {
        let envelope = message.decode(&Limits::NONE).envelope;
        if let Ok(envelope) = &envelope {
            work::add(&mut page, &cx, tp, (&envelope.headers, id.timestamp()), &hidden).await?;
        }
        content(&mut page, &cx, envelope, &hidden);
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
    let tp = TopicPartition { topic: topic.clone(), partition };
    let owners = cx.app.reading.owners(topic, name).await.ok();
    let survey = group.stats.partitions.iter().find(|it| it.stats.partition == partition);
    let known = Known {
        is_stored,
        stats: survey.map(|it| &it.stats),
        owners: owners.as_deref(),
        undecodable_error: cx.app.hidden_in_topic(topic).undecodable_error(),
    };
    let found = cx.admin().message_status(&tp, name, id, known).await?;
    let warn = |text: String, path| Cell { tone: Tone::Warn, ..Cell::link(text, on(path)) };
    let (place, since) = match found.state {
        WorkState::Dead(letter, _) => {
            let (partition, id) = (partition.0.to_string(), letter.to_string());
            let href = Href::of(paths::LETTER, &[topic.as_str(), name.as_str(), &partition, &id]);
            (Cell { tone: Tone::Bad, ..Cell::link("dead letter", href) }, Cell::time(letter.timestamp()))
        }
        WorkState::Running(by, since) => {
            (warn(format!("running now, on {}", Text::short(&by)), paths::GROUP), Cell::time(since))
        }
        WorkState::HandedOut { to, ago } => {
            let to = to.map_or_else(|| "an owner that is gone".into(), |to| Text::short(&to));
            let since =
                ago.map_or_else(Cell::none, |ago| Cell::text(format!("{} ago", format::duration(ago))));
            (warn(format!("pending, handed out to {to}"), paths::PENDING), since)
        }
        WorkState::Retrying { at, in_place: true } => {
            (warn("pending, waits for a retry in its place".to_owned(), paths::PENDING), Cell::time(at))
        }
        WorkState::Retrying { at, .. } => {
            (warn("waits for a retry".to_owned(), paths::RETRIES), Cell::time(at))
        }
        WorkState::InStep { wait, until } => {
            (warn(format!("waits in step {}", Text::short(&wait)), paths::RETRIES), Cell::time(until))
        }
        WorkState::Unknown => {
            (Cell::toned("unknown: not everything was looked through", Tone::Warn), Cell::none())
        }
        WorkState::Cancelled => (Cell::toned("cancelled", Tone::Warn), Cell::none()),
        WorkState::Settled => (Cell::toned("settled", Tone::Good), Cell::none()),
        WorkState::Gone => {
            (Cell::toned("unknown: it is not stored, and was not read", Tone::Warn), Cell::none())
        }
        _ => (Cell::toned("not read yet", Tone::Plain), Cell::none()),
    };
    let attempt = found.attempt.map_or_else(Cell::none, |attempt| Cell::count(u64::from(attempt)));
    let error = if found.error.is_empty() { Cell::none() } else { Cell::text(Text::short(&found.error)) };
    Ok(vec![Cell::link(name.as_str(), on(paths::GROUP)), place, since, attempt, error])
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

/// Adds key, headers and payload to a page, and the batch that the headers name.
pub(crate) fn content(
    page: &mut Page,
    cx: &Context,
    envelope: Result<Envelope, impl Display>,
    hidden: &Redaction,
) {
    let (stepped, envelope) = match envelope {
        Ok(envelope) => {
            let header = envelope.headers.get(STEPS_HEADER).filter(|_| !hidden.hides_steps());
            (header.and_then(steps::of_header), hidden.apply(envelope))
        }
        Err(why) => {
            page.push(Part::notice(Tone::Bad, format!("The entry is no message: {why}")));
            return;
        }
    };
    // Of what is shown of the headers: a batch that is hidden there is not linked.
    page.parts.extend(batches::of_headers(cx, &envelope.headers));
    let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Text::block(text),
        Err(_) => Text::block(&bytes.escape_ascii().to_string()),
    };
    if let Some(key) = &envelope.key {
        page.push(Part::Code { title: "Key".into(), text: bytes(key) });
    }
    if !envelope.headers.is_empty() {
        let rows = envelope.headers.iter().map(|(name, value)| {
            let value = match stepped.clone().filter(|_| name == STEPS_HEADER) {
                Some(steps) => steps,
                None => Cell { mono: true, ..Cell::text(bytes(value)) },
            };
            vec![Cell::mono(Text::line(name)), value]
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
