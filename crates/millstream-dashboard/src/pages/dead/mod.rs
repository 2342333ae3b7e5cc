//! Dead letters of a group: grouped by error, and as a list.

pub(crate) mod change;
pub(crate) mod export;
pub(crate) mod letter;

use millstream::admin::DeadLetterQuery;
use millstream::crates::core::Limits;
use millstream::{DeadLetterQueue, GroupName, TopicName};

use super::{content, group_href, group_page};
use crate::access::Permission;
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Maximum number of letters that are examined for a page.
const LOOKS: u64 = 20_000;

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
    let errors = cx.app.reading.errors(&snapshot.topic, &group).await?;
    let on = |path| group_href(path, &topic, &group);
    let mut page = group_page(format!("Dead letters of {group}"), &topic, &group, paths::DEAD).live();
    page.push(Part::facts(
        "",
        vec![
            ("Dead letters", Cell::alarm(total, Tone::Warn)),
            ("Errors", Cell::count(errors.groups.len() as u64)),
        ],
    ));
    let titles = [">Letters", "Error", "First", "Last", "Newest letter", ""];
    let mut table = Table::new("By error, the most frequent first", &titles, "No message died here.");
    let looked = format::count(errors.looked_at);
    table = table.note(if errors.is_complete {
        "Numbers, ids, times and quoted words in an error do not make it another error.".to_owned()
    } else {
        format!("The newest {looked} letters: there are more, and the numbers are lower bounds.")
    });
    table.rows = errors
        .groups
        .iter()
        .map(|error| {
            let (partition, id) = &error.example;
            let of = |path| on(path).with("fingerprint", error.fingerprint);
            let mut actions = vec![(Text::from("list"), of(paths::DEAD_LIST))];
            if cx.may(&topic, Permission::Operate) {
                actions.push(("replay…".into(), of(paths::DEAD_REPLAY)));
            }
            if cx.may(&topic, Permission::Admin) {
                actions.push(("purge…".into(), of(paths::DEAD_PURGE)));
            }
            let count = format::count(error.count);
            vec![
                Cell::text(if errors.is_complete { count } else { format!("≥ {count}") }),
                Cell::text(Text::short(&error.pattern)),
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
    if errors.others > 0 {
        page.push(Part::notice(
            Tone::Plain,
            format!("{} letters have further errors", format::count(errors.others)),
        ));
    }
    table = table.link("All letters", on(paths::DEAD_LIST));
    Ok(page.table(with_actions(&cx, table, &topic, &group)))
}

/// Adds the actions on everything that the query selects.
fn with_actions(cx: &Context, mut table: Table, topic: &TopicName, group: &GroupName) -> Table {
    let on = |path| selection::link(group_href(path, topic, group), &cx.query);
    let all = selection::link(Href::default(), &cx.query).path().is_empty();
    let which = if all { "all" } else { "all that match" };
    if cx.may(topic, Permission::Operate) {
        table = table.link(format!("Replay {which}…"), on(paths::DEAD_REPLAY));
    }
    if cx.may(topic, Permission::Admin) {
        table = table.link(format!("Purge {which}…"), on(paths::DEAD_PURGE));
    }
    if cx.app.hidden_in_topic(topic).is_none() {
        table = table.link(format!("Export {which}"), on(paths::DEAD_EXPORT));
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
    let query = DeadLetterQuery { filter, newest_first: true, limit: limit as usize, looks: LOOKS, after };
    let found = open(&cx).await?.page(&query).await?;
    let here = group_href(paths::DEAD_LIST, &topic, &group);
    let mut page = group_page(format!("Dead letters of {group}"), &topic, &group, paths::DEAD_LIST);
    let titles = ["Letter", "Died", ">Partition", "Reason", ">Attempts", "Error", "Key", "Payload"];
    let mut table = Table::new("Letters, the newest first", &titles, "No letter matches.");
    table = table.note(format!("{} of {} examined", found.letters.len(), format::count(found.looked_at)));
    table.rows = found
        .letters
        .iter()
        .map(|letter| {
            let (partition, id) = (letter.topic_partition.partition.0, letter.id.to_string());
            let [key, payload] = content(letter.envelope(&Limits::default()), &hidden);
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
    if let Some(next) = found.next {
        table = table.link(
            "Next page",
            selection::link(here.clone(), &cx.query).with("limit", limit).with("after", next),
        );
    }
    page.push(Part::Table(with_actions(&cx, table, &topic, &group)));
    let mut fields = selection::fields(&cx.query, &hidden, true);
    fields.push(Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 200 }));
    Ok(page.with(Part::Form(Form::filter("Filter", here, fields))))
}
