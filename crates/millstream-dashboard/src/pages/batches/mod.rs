//! Batches: those of a topic, and links of messages to theirs. One batch and its changes are in the modules below.

pub(crate) mod change;
pub(crate) mod show;

use std::cmp::Reverse;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream::batch::{BatchEvent, BatchEventKind, BatchMember, BatchState};
use millstream::crates::core::Headers;
use millstream::{BatchId, Error, ErrorKind};

use super::topic_page;
use crate::access::Permission;
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Maximum number of batches that are shown: the state of each is read.
const SHOWN: usize = 200;
/// Maximum number of batches that are listed of a partition.
const LISTED: usize = 10_000;
/// Number of partitions, and of states, that are read at the same time.
const AT_ONCE: usize = 32;

pub(crate) fn href(path: &str, id: &BatchId) -> Href {
    let (partition, number) = (id.place.partition.to_string(), format!("{:032x}", id.number));
    Href::of(path, &[id.place.topic.as_str(), &partition, &number])
}

/// Returns the batch in the path.
fn id(cx: &Context) -> Result<BatchId, Failure> {
    let (topic, partition) = (cx.topic()?, cx.path.needed::<u32>("partition")?);
    let number = cx.path.text("number")?.unwrap_or_default();
    Ok(format!("{topic}/{partition}/{number}").parse::<BatchId>()?)
}

/// Says of a batch that is not there what may have become of it.
fn failure(id: &BatchId, error: Error) -> Failure {
    if error.kind() != ErrorKind::NotFound {
        return error.into();
    }
    let why = "it was never created, or it is gone: a batch is kept for 7 days after its end, unless its creator says otherwise";
    Failure::missing(format!("there is no batch {id}: {why}"))
}

/// Returns the id of a batch as a cell, with a link if the user may see it.
fn linked(cx: &Context, id: &BatchId) -> Cell {
    let cell = Cell::mono(id.to_string());
    if cx.may(&id.place.topic, Permission::Read) { cell.to(href(paths::BATCH, id)) } else { cell }
}

/// Returns the id of a batch as a cell, if the user may see it: it has the name of a topic.
pub(crate) fn seen(cx: &Context, id: &BatchId) -> Cell {
    if cx.may(&id.place.topic, Permission::Read) { linked(cx, id) } else { hidden() }
}

fn hidden() -> Cell {
    Cell::toned("(hidden)", Tone::Dim)
}

/// Returns the word for the state of a batch, as the command line has it.
fn word(state: &BatchState) -> Cell {
    match (state.sealed, state.ended, state.succeeded) {
        (None, ..) => Cell::text("open"),
        (_, _, true) => Cell::toned("succeeded", Tone::Good),
        (_, Some(_), _) => Cell::toned("complete", Tone::Warn),
        _ => Cell::text("running"),
    }
}

fn count(number: u32) -> Cell {
    Cell::count(u64::from(number))
}

/// Shows the batches that send their messages to a topic.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    let (backend, spec) = (cx.app.mq.backend(), cx.admin().topic(&topic).await?);
    let role = backend.batches()?;
    let mut page = topic_page(format!("Batches of {topic}"), &topic, paths::BATCHES);
    let titles = ["Batch", "State", ">Members", ">Done", ">Dead", ">Missing", "Created"];
    let mut table = Table::new("Batches, those that run first", &titles, "");
    let wanted = cx.query.parsed::<BatchId>("id")?;
    if let Some(other) = wanted.as_ref().filter(|id| id.place.topic != topic) {
        let why = format!("batch {other} sends its messages to topic {}", other.place.topic);
        return Err(Failure::invalid(why).of("id"));
    }
    let shown = match wanted {
        Some(id) => {
            table.empty = "There is no such batch, or not any longer.".to_owned();
            vec![id]
        }
        None => {
            table.empty = "No batch sends its messages here.".to_owned();
            let lists = stream::iter(spec.iter()).map(|place| async move { role.list(&place, LISTED).await });
            let lists: Vec<Vec<BatchId>> = lists.buffered(AT_ONCE).try_collect().await?;
            let all: usize = lists.iter().map(Vec::len).sum();
            let is_cut = lists.iter().any(|list| list.len() >= LISTED);
            let shown = newest(lists);
            if shown.len() < all {
                let all = format::at_least((!is_cut).then_some(all as u64), all as u64);
                table =
                    table.note(format!("{} of {all}, those that are kept for the longest time", shown.len()));
            }
            shown
        }
    };
    let states = stream::iter(shown).map(|id| async move {
        let state = role.state(&id).await?;
        Ok::<_, Error>(state.map(|state| (id, state)))
    });
    let states: Vec<Option<(BatchId, BatchState)>> = states.buffered(AT_ONCE).try_collect().await?;
    // One that has expired since is left out.
    let mut found: Vec<_> = states.into_iter().flatten().collect();
    found.sort_by_key(|(_, state)| (state.ended.is_some(), Reverse(state.created)));
    page.push(Part::Table(table.rows(found.iter().map(|(id, state)| {
        vec![
            linked(&cx, id),
            word(state),
            count(state.members),
            count(state.done),
            Cell::alarm(Some(u64::from(state.dead)), Tone::Warn),
            count(state.missing()),
            Cell::time(state.created),
        ]
    }))));
    let field = Field::new("id", "Id", cx.query.raw("id").unwrap_or_default());
    page.push(Part::Form(Form::filter("Find", Href::of(paths::BATCHES, &[topic.as_str()]), vec![field])));
    Ok(page)
}

/// Returns the batches of lists in which those that expire first are in front: one of the end of each in turn, since those that
/// have not ended are kept for the longest time.
fn newest(mut lists: Vec<Vec<BatchId>>) -> Vec<BatchId> {
    let mut shown = Vec::new();
    while shown.len() < SHOWN && lists.iter().any(|list| !list.is_empty()) {
        shown.extend(lists.iter_mut().filter_map(Vec::pop));
    }
    shown.truncate(SHOWN);
    shown
}

/// Returns what the headers of a message say about a batch: of which one it is a member, or which one has sent it.
pub(crate) fn of_headers(cx: &Context, headers: &Headers) -> Option<Part> {
    let mut facts = Vec::new();
    if let Some(BatchMember { batch, number, group, .. }) = BatchMember::of(headers) {
        facts.extend([
            ("Member of", linked(cx, &batch)),
            ("Its number there", Cell::text(number.to_string())),
        ]);
        facts.extend(group.map(|group| ("It counts for group", Cell::text(group.as_str()))));
    }
    if let Some(event) = BatchEvent::of(headers) {
        let kind = match event.kind {
            BatchEventKind::Progress(percent) => format!("progress, {percent} %"),
            kind => kind.as_str().to_owned(),
        };
        let [members, done, dead] =
            [event.members, event.done, event.dead].map(|it| format::count(u64::from(it)));
        facts.extend([
            ("Sent by", linked(cx, &event.batch)),
            ("Event", Cell::text(kind)),
            ("Counts at that moment", Cell::text(format!("{members} members, {done} done, {dead} dead"))),
        ]);
    }
    (!facts.is_empty()).then(|| Part::facts("Batch", facts))
}
