//! The audit log, the newest entries first.

use std::collections::BTreeSet;

use millstream::admin::Cursor;
use millstream::admin::human::{self, When};
use millstream::{Timestamp, TopicName};

use super::actions::{href, result};
use crate::access::Permission;
use crate::audit::entry::{Entry, Event};
use crate::audit::exports;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Number of actions of a page.
const SHOWN: usize = 100;
/// Maximum number of pages of messages that are read for one page: most of them may be about topics that the user may not see.
const READS: usize = 5;

const TITLES: [&str; 8] = ["Time", "Who", "What", "On", ">Asked", ">Changed", ">Skipped", "Result"];

/// Shows who has changed what.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let table = Table::new("Changes, the newest first", &TITLES, "Nothing was changed yet.");
    let of_exports = cx.query.raw("of") == Some("exports");
    match cx.app.audit.topic().cloned() {
        Some(topic) if of_exports => {
            let table = Table::new("Exports, the newest first", &TITLES, "Nothing was exported yet.");
            let note = "Further exports of a user from a group within ten minutes are one line, with their number as what was asked.";
            stored(&cx, &exports::topic(&topic)?, table.note(note)).await
        }
        Some(topic) => stored(&cx, &topic, table.link("Exports", exports_href())).await,
        None => Ok(Page::new("Audit log").live().table(of_process(&cx, table))),
    }
}

fn exports_href() -> Href {
    Href::of(paths::AUDIT, &[]).with("of", "exports")
}

/// Adds the actions of this process, where no log is kept.
fn of_process(cx: &Context, table: Table) -> Table {
    let note = "The list is that of this process and starts anew with it. All actions are also events of tracing, with the \
                target millstream_dashboard::audit.";
    let all = cx.app.actions.all();
    let may = |topic: Option<&TopicName>| match topic {
        Some(topic) => cx.may(topic, Permission::Read),
        None => cx.access.allows(Permission::Read),
    };
    let shown = all.iter().filter(|action| may(action.topic())).take(SHOWN);
    table.note(note).rows(shown.map(|action| {
        let (state, subject) = (action.state(), action.order.subject.clone());
        vec![
            Cell::time(action.began),
            Cell::text(Text::short(&action.user)),
            Cell::link(action.order.what, href(paths::ACTION, action)),
            on(cx, subject),
            action.order.expected.map_or_else(Cell::none, Cell::count),
            Cell::count(state.done),
            Cell::count(state.skipped),
            result(&state),
        ]
    }))
}

/// Adds entries of the topic.
async fn stored(cx: &Context, topic: &TopicName, mut table: Table) -> Result<Page, Failure> {
    let from: Option<Cursor> = cx.query.parsed("after")?;
    let (mut after, mut ended) = (from, BTreeSet::new());
    let is_exports = topic != cx.app.audit.topic().unwrap_or(topic);
    let waiting: Vec<Entry> =
        cx.app.audit.waiting().into_iter().filter(|it| it.is_export() == is_exports).collect();
    for entry in waiting.iter().rev().filter(|entry| from.is_none() && is_visible(cx, entry)) {
        table.rows.push(row(cx, entry, written_at(entry)));
    }
    for _ in 0..READS {
        let Some(read) = cx.app.reading.audit(&cx.app.audit, topic, after).await?.as_ref().clone() else {
            break;
        };
        for message in &read.messages {
            let time = message.stored.id.timestamp();
            match Entry::of(message) {
                Some(entry) if !is_visible(cx, &entry) => {}
                // Its end, which has the same and more, is above.
                Some(entry) if entry.event == Event::Begin && ended.contains(&entry.id) => {}
                Some(entry) => {
                    if entry.event == Event::End {
                        ended.insert(entry.id.clone());
                    }
                    table.rows.push(row(cx, &entry, time));
                }
                None if cx.access.is_unlimited() => {
                    let mut row = vec![Cell::time(time), Cell::none(), Cell::toned("no entry", Tone::Warn)];
                    row.push(Cell::mono(format!("message {}", message.stored.id)));
                    row.resize_with(TITLES.len(), Cell::none);
                    table.rows.push(row);
                }
                None => {}
            }
        }
        after = read.next;
        if after.is_none() || table.rows.len() >= SHOWN / 2 {
            break;
        }
    }
    if let Some(next) = after {
        let here = if is_exports { exports_href() } else { Href::of(paths::AUDIT, &[]) };
        table = table.link("Older", here.with("after", next));
    }
    let mut page = Page::new("Audit log");
    if !waiting.is_empty() {
        let why = format!(
            "{} of this process: the server does not take writes. They are in its memory and its log, and are stored as soon as it does.",
            format::of(waiting.len() as u64, "entry is not stored", "entries are not stored")
        );
        page.push(Part::notice(Tone::Bad, why));
    }
    page.live = from.is_none();
    if from.is_some() {
        table = table.link("Newest", Href::of(paths::AUDIT, &[]));
    }
    let note = format!("It is kept in topic {topic}, for all dashboards that use this topic.");
    Ok(page.with(Part::Table(table.note(note))))
}

/// Returns the time that an entry has itself: the server has given it none yet.
fn written_at(entry: &Entry) -> Timestamp {
    match human::when(&entry.time) {
        Some(When::At(time)) => time,
        _ => Timestamp::default(),
    }
}

/// Returns whether the user may know of an entry.
fn is_visible(cx: &Context, entry: &Entry) -> bool {
    match entry.subject.topic.as_deref().map(TopicName::new) {
        Some(Ok(topic)) => cx.may(&topic, Permission::Read),
        // Not a name that the dashboard has written.
        Some(Err(_)) => cx.access.is_unlimited(),
        None => cx.access.allows(Permission::Read),
    }
}

/// What an action is about, without what is hidden from this dashboard: another process may have written it.
fn on(cx: &Context, subject: Subject) -> Cell {
    Cell::text(Text::short(&super::seen(cx, subject).to_string()))
}

fn row(cx: &Context, entry: &Entry, time: Timestamp) -> Vec<Cell> {
    let action = cx.app.actions.get(&entry.id);
    let state = match (entry.event, entry.result.as_deref(), &action) {
        (Event::Begin, _, Some(action)) => result(&action.state()),
        (Event::Begin, ..) => Cell::toned("begun", Tone::Warn),
        (Event::Stop, ..) => Cell::toned("asked to stop", Tone::Warn),
        (Event::End, Some("done"), _) => Cell::toned("done", Tone::Good),
        (Event::End, Some("cancelled"), _) => Cell::toned("cancelled", Tone::Warn),
        (Event::End, result, _) => {
            let why = entry.error.as_deref().unwrap_or_default();
            Cell::toned(Text::short(&format!("{}: {why}", result.unwrap_or("ended"))), Tone::Bad)
        }
    };
    let what = Text::short(&entry.action);
    vec![
        Cell::time(time),
        Cell::text(Text::short(&entry.user)),
        action.map_or_else(
            || Cell::text(what.clone()),
            |action| Cell::link(what.clone(), href(paths::ACTION, &action)),
        ),
        on(cx, entry.subject.clone()),
        entry.asked.map_or_else(Cell::none, Cell::count),
        entry.done.map_or_else(Cell::none, Cell::count),
        entry.skipped.map_or_else(Cell::none, Cell::count),
        state,
    ]
}
