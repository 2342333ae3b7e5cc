//! Dead letters of a group: grouped by error, and as a list.

pub(crate) mod change;
pub(crate) mod export;
pub(crate) mod letter;

use std::time::Duration;

use millstream::admin::DeadLetterFilter;
use millstream::crates::core::Limits;
use millstream::{DeadLetterQueue, GroupName, TopicName};
use tokio::time::Instant;

use super::{content, group_href, group_page};
use crate::access::Permission;
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::reading::counts::LetterCount;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Time after which no further letters are examined for a page of the list.
const BUDGET: Duration = Duration::from_millis(40);

async fn open(cx: &Context) -> Result<DeadLetterQueue, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    cx.app.reading.of_group(&topic, &group).await?;
    Ok(cx.admin().dead_letters(&topic, &group).await?)
}

fn letter_href(path: &str, topic: &TopicName, group: &GroupName, partition: u32, id: &str) -> Href {
    Href::of(path, &[topic.as_str(), group.as_str(), &partition.to_string(), id])
}

/// Shows the errors of which letters died, the most frequent first.
pub(crate) async fn errors(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let snapshot = cx.app.reading.of_group(&topic, &group).await?;
    let total = snapshot.groups.get(&group).and_then(|it| it.stats.totals.dead);
    let undecodable_error = cx.app.hidden_in_topic(&topic).undecodable_error();
    let everything = DeadLetterFilter { undecodable_error, ..DeadLetterFilter::default() };
    let count = cx.app.reading.letters(&topic, &group, (Vec::new(), &everything)).await?;
    let (errors, others) = (count.errors.clone().into_groups(), count.errors.others());
    let on = |path| group_href(path, &topic, &group);
    let mut page = group_page(format!("Dead letters of {group}"), &topic, &group, paths::DEAD).live();
    let apart = format::count(errors.len() as u64);
    let apart = match count.is_complete {
        true => apart,
        false if count.looked_at == 0 => "being counted".to_owned(),
        false => format!("≥ {apart}"),
    };
    page.push(Part::facts(
        "",
        vec![
            ("Dead letters", Cell::alarm(total, Tone::Warn)),
            ("Different errors", Cell::text(apart)),
            ("Counted", counted(&count, total)),
        ],
    ));
    let titles = [">Letters", "Error", "First", "Last", "Newest letter", ""];
    let mut table = Table::new("By error, the most frequent first", &titles, empty(&count));
    table = table.note(if count.is_complete {
        "Numbers, ids, times and quoted words in an error do not make it another error.".to_owned()
    } else {
        format!(
            "Of the newest {}. Older ones are not counted yet.",
            format::of(count.looked_at, "letter", "letters")
        )
    });
    table.rows = errors
        .iter()
        .map(|error| {
            let (partition, id) = &error.example;
            let of = |path| on(path).with("fingerprint", error.fingerprint);
            let mut actions = Vec::new();
            if cx.may(&topic, Permission::Operate) {
                actions.push((Text::from("replay…"), of(paths::DEAD_REPLAY)));
            }
            if cx.may(&topic, Permission::Admin) {
                actions.push(("purge…".into(), of(paths::DEAD_PURGE)));
            }
            let letters = format::count(error.count);
            vec![
                Cell::text(if count.is_complete { letters } else { format!("≥ {letters}") }),
                Cell::link(Text::short(&error.pattern), of(paths::DEAD_LIST)),
                Cell::time(error.first),
                Cell::time(error.last),
                Cell {
                    mono: true,
                    ..Cell::link(
                        id.to_string(),
                        letter_href(paths::LETTER, &topic, &group, partition.0, &id.to_string()),
                    )
                },
                Cell::links(actions),
            ]
        })
        .collect();
    if others > 0 {
        let letters = format::of(others, "letter has", "letters have");
        page.push(Part::notice(
            Tone::Plain,
            format!("{letters} further errors, which are not counted apart."),
        ));
    }
    table = table.link("All letters", on(paths::DEAD_LIST));
    Ok(page.table(with_actions(&cx, table, &topic, &group)))
}

/// Says when letters were counted, or how far that is.
fn counted(count: &LetterCount, total: Option<u64>) -> Cell {
    if count.is_complete {
        return Cell::time(count.at);
    }
    let looked = format::count(count.looked_at);
    // The total is older, or younger, than the count.
    let of = total.filter(|total| *total >= count.looked_at).map(|it| format!(" of {}", format::count(it)));
    let text = format!("{looked}{} so far; counting goes on", of.unwrap_or_default());
    Cell::toned(text, Tone::Warn)
}

/// Says why there is no row.
fn empty(count: &LetterCount) -> &'static str {
    if count.is_complete {
        "No message died here."
    } else {
        "The letters are being counted: this page shows them in a few seconds."
    }
}

/// Adds the actions on everything that the query selects.
fn with_actions(cx: &Context, mut table: Table, topic: &TopicName, group: &GroupName) -> Table {
    let on = |path| selection::link(group_href(path, topic, group), &cx.query);
    let all = selection::link(Href::default(), &cx.query).path().is_empty();
    let which = if all { "" } else { " those that match" };
    if cx.may(topic, Permission::Operate) {
        table = table.link(format!("Replay{which}…"), on(paths::DEAD_REPLAY));
    }
    if cx.app.hidden_in_topic(topic).is_none() {
        table =
            table.link(if all { "Export all" } else { "Export those that match" }, on(paths::DEAD_EXPORT));
    }
    if cx.may(topic, Permission::Admin) {
        table = table.link(format!("Purge{which}…"), on(paths::DEAD_PURGE));
    }
    table
}

/// Shows letters that match, the newest first.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let hidden = cx.app.hidden_in_topic(&topic);
    let filter = selection::letters(&cx.query, &hidden)?;
    let limit = cx.query.clamped("limit", 1..=200, 50);
    let after = cx.query.parsed("after")?;
    let (began, mut found) = (Instant::now(), Vec::new());
    let mut walk = open(&cx).await?.walk_newest_first(&filter, after, Some(limit));
    while !walk.is_done() && (began.elapsed() < BUDGET || walk.looked_at() == 0) {
        found.extend(walk.run_once(limit as usize).await?);
    }
    let here = group_href(paths::DEAD_LIST, &topic, &group);
    let mut page = group_page(format!("Dead letters of {group}"), &topic, &group, paths::DEAD_LIST);
    let titles = ["Letter", "Died", ">Partition", "Reason", ">Attempts", "Error", "Key", "Payload"];
    let mut table = Table::new("Letters, the newest first", &titles, "No letter matches.");
    table = table.note(format!("{} shown, {} examined", found.len(), format::count(walk.looked_at())));
    table.rows = found
        .iter()
        .map(|letter| {
            let (partition, id) = (letter.topic_partition.partition.0, letter.id.to_string());
            let [key, payload] = content(letter.envelope(&Limits::NONE), &hidden);
            vec![
                Cell {
                    mono: true,
                    ..Cell::link(id.as_str(), letter_href(paths::LETTER, &topic, &group, partition, &id))
                },
                Cell::time(letter.id.timestamp()),
                Cell::text(partition.to_string()),
                Cell::text(letter.reason.as_str()),
                Cell::count(u64::from(letter.attempts)),
                Cell::text(Text::short(&letter.error)),
                key,
                payload,
            ]
        })
        .collect();
    if let Some(next) = walk.cursor() {
        let is_full = found.len() as u64 == limit;
        table = table.link(
            if is_full { "Next page" } else { "Search on" },
            selection::link(here.clone(), &cx.query).with("limit", limit).with("after", next),
        );
    }
    let mut fields = selection::fields(&cx.query, &hidden, true);
    fields.push(
        Field::new("limit", "Letters on a page", limit.to_string()).input(Input::Number { min: 1, max: 200 }),
    );
    page.push(Part::Form(Form::filter("Filter", here, fields).folding()));
    Ok(page.table(with_actions(&cx, table, &topic, &group)))
}
