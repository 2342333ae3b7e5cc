//! One batch: its counts, where its members were sent, and which of them are missing or dead.

use millstream::batch::{BatchParent, BatchState, BlockState};
use millstream::crates::core::QueueName;
use millstream::crates::core::steps::OF_MEMBERS;
use millstream::{TopicName, TopicPartition, WorkId, WorkPlace};

use super::change::{QUEUE, has_ended, may_cancel};
use super::{failure, hidden, href, id, seen, word};
use crate::access::Permission;
use crate::failure::Failure;
use crate::pages::{topic_href, topic_page};
use crate::paths;
use crate::reading::batches::{RANGES, Ranges};
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Number of rows of a page of the places to which members were sent.
const SENT: usize = 25;

/// Shows a batch.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let id = id(&cx)?;
    let batch = cx.app.reading.batch(&id).await.map_err(|error| failure(&id, error))?;
    let (state, topic) = (&batch.state, &id.place.topic);
    let mut page = topic_page(format!("Batch {id}"), topic, paths::BATCH)
        .crumb("Batches", Href::of(paths::BATCHES, &[topic.as_str()]));
    page.live = state.ended.is_none();
    if cx.may(topic, Permission::Admin) && !has_ended(state) {
        if may_cancel(&cx, state) {
            page.actions.links.push(("Cancel the members…".into(), href(paths::BATCH_CANCEL, &id)));
        }
        page.actions.links.push(("Close…".into(), href(paths::BATCH_CLOSE, &id)));
    }
    page.push(Part::facts("", counts(state)));
    let mut facts = vec![
        ("Created", Cell::time(state.created)),
        ("Sealed", Cell::time_or_none(state.sealed)),
        ("All had ended", Cell::time_or_none(state.ended)),
    ];
    if let Some(parent) = &state.parent {
        facts.extend(match parent {
            BatchParent::Batch(member) => [
                ("Member of", seen(&cx, &member.batch)),
                ("Its number there", Cell::text(member.number.to_string())),
            ],
            BatchParent::Step(id, name) => {
                let name = Cell::text(Text::short(name.trim_end_matches(OF_MEMBERS)));
                [("Its end is waited for by", waiting(&cx, id)), ("In step", name)]
            }
        });
    }
    facts.push(("Figures of", Cell::time(batch.at)));
    page.push(Part::facts("Times", facts));
    let missing = ranges("Missing: they have not ended", &batch.missing, "None is missing.");
    let dead = ranges("Dead: given up, dropped or cancelled", &batch.dead, "None is dead.");
    Ok(page.table(missing.named("missing")).table(dead.named("dead")).table(sent(&cx, &state.blocks)))
}

/// Returns the message or task whose step a batch is, if the user may see it.
fn waiting(cx: &Context, work: &WorkId) -> Cell {
    let cell = |href| Cell::mono(Text::short(&work.to_string())).to(href);
    match &work.place {
        WorkPlace::Group(TopicPartition { topic, partition }, _) if cx.may(topic, Permission::Read) => {
            cell(Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), &work.id]))
        }
        WorkPlace::Shard(shard) if cx.access.allows(Permission::Read) => {
            cell(Href::of(paths::TASK, &[shard.queue.as_str()]).with("id", &work.id))
        }
        _ => hidden(),
    }
}

fn counts(state: &BatchState) -> Vec<(&'static str, Cell)> {
    let share = |count: u32, tone: Tone| {
        if state.members == 0 {
            return super::count(count);
        }
        let share = f64::from(count) / f64::from(state.members);
        let text = format!("{} ({:.1} %)", format::count(u64::from(count)), share * 100.0);
        let tone = if count == 0 { Tone::Dim } else { tone };
        Cell { text: text.into(), tone, ..Cell::fraction(share) }
    };
    let mut counts = vec![
        ("State", word(state)),
        ("Members", super::count(state.members)),
        ("Done", share(state.done, Tone::Plain)),
        ("Dead", share(state.dead, Tone::Warn)),
        ("Missing", share(state.missing(), Tone::Plain)),
    ];
    if state.left_out > 0 {
        counts.push(("Left out: nobody confirmed that they are stored", super::count(state.left_out)));
    }
    counts
}

fn range(first: u32, last: u32) -> Cell {
    let text = if first == last { first.to_string() } else { format!("{first} to {last}") };
    Cell { rank: Some(f64::from(first)), ..Cell::text(text) }
}

fn ranges(title: &str, of: &Ranges, empty: &str) -> Table {
    let rows = of.ranges.iter().map(|(first, last)| {
        vec![range(*first, *last), Cell::count(u64::from(last.saturating_sub(*first)) + 1)]
    });
    let table = Table::new(title, &["Numbers", ">Members"], empty).rows(rows);
    if !of.more {
        return table;
    }
    let all = "There are more: `millstream batch show --all` has all of them";
    table.note(if of.ranges.len() == RANGES {
        format!("The first {RANGES} ranges. {all}")
    } else {
        all.to_owned()
    })
}

/// Table of the topics and delay queues to which members were sent.
fn sent(cx: &Context, blocks: &[BlockState]) -> Table {
    // Numbers are reserved in small blocks: those to the same place are one range.
    let mut places: Vec<(u32, u32, &str, bool)> = Vec::new();
    for BlockState { block, target, confirmed } in blocks.iter().filter(|it| it.block.to > it.block.from) {
        match places.last_mut() {
            Some((_, to, last, was)) if *to == block.from && *last == target && *was == *confirmed => {
                *to = block.to;
            }
            _ => places.push((block.from, block.to, target, *confirmed)),
        }
    }
    let rows = places.iter().map(|(from, to, target, confirmed)| {
        let confirmed = match confirmed {
            true => Cell::text("yes"),
            false => Cell::toned("not so far, or never", Tone::Dim),
        };
        vec![range(*from, to - 1), place(cx, target), confirmed]
    });
    let titles = ["Numbers", "Topic or delay queue", "Confirmed"];
    let table = Table::new("Where its members were sent", &titles, "No member was added.").named("sent");
    table.paged(SENT).rows(rows)
}

/// Returns a place to which members were sent, as far as the user may see it. A client has named it: it may be no name.
fn place(cx: &Context, target: &str) -> Cell {
    if let Some(queue) = target.strip_prefix(QUEUE).and_then(|name| QueueName::new(name).ok()) {
        return match cx.access.allows(Permission::Read) {
            true => Cell::link(format!("delay queue {queue}"), Href::of(paths::QUEUE, &[queue.as_str()])),
            false => hidden(),
        };
    }
    match TopicName::new(target) {
        Ok(topic) if cx.may(&topic, Permission::Read) => Cell::link(topic.as_str(), topic_href(&topic)),
        Err(_) if cx.access.is_unlimited() => Cell::text(Text::short(target)),
        _ => hidden(),
    }
}
