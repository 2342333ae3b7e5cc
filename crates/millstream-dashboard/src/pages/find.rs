//! The search of every page: where a message is, by its id or its key.

use std::time::Duration;

use millstream::admin::{Locate, Located, LocatedIn};
use millstream::{GroupName, Partition, TopicName};

use super::queues::queue_href;
use super::{group_href, topic_href};
use crate::access::Permission;
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Time after which no further topic is looked through.
const TIME: Duration = Duration::from_secs(2);
/// Maximum number of places, and of names, of a page.
const SHOWN: usize = 50;

/// Shows where something is.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let wanted = cx.query.text("q")?.unwrap_or_default().trim().to_owned();
    let mut page = Page::new("Find");
    if wanted.is_empty() {
        let text = "An id of a message, of a dead letter, of a delayed message or of a task; a key; or a part of a name.";
        return Ok(page.with(Part::notice(Tone::Plain, text)));
    }
    let mut ask = Locate { time: TIME, ..Locate::new(wanted.clone()) };
    let topics = cx.app.reading.topics().await?;
    let topics = topics.iter().filter(|topic| cx.may(topic, Permission::Read));
    ask.topics = topics.map(|topic| (topic.clone(), !cx.app.hidden_in_topic(topic).hides_key())).collect();
    if cx.access.allows(Permission::Read) {
        ask.queues = cx.app.reading.queues().await?.to_vec();
    }
    let named = named(&cx, &ask);
    let found = cx.admin().locate(&ask).await?;
    let titles = ["In", "Of", ">Partition", "Group", "Id", "Time", "Error"];
    let empty = "It was found nowhere.";
    let shown = found.places.iter().take(SHOWN);
    let mut table = Table::new(format!("Where {} is", Text::short(&wanted)), &titles, empty)
        .rows(shown.map(|it| row(&cx, it)));
    if found.places.len() > SHOWN {
        table = table.note(format!("The first {SHOWN} of {}", format::count(found.places.len() as u64)));
    }
    page.push(Part::Table(table));
    if !named.rows.is_empty() {
        page.push(Part::Table(named));
    }
    if !found.left.is_empty() {
        let left = found.left.iter().map(|left| vec![Cell::text(Text::short(left))]);
        page.push(Part::Table(
            Table::new("Not looked through", &["What"], "").named("left").paged(SHOWN).rows(left),
        ));
    }
    Ok(page)
}

/// Returns the topics, groups and delay queues whose name has the text.
fn named(cx: &Context, ask: &Locate) -> Table {
    let (known, mut rows) = (cx.app.reading.sampler.topics(), Vec::new());
    for (topic, _) in &ask.topics {
        if topic.as_str().contains(&ask.wanted) {
            rows.push(vec![Cell::text("topic"), Cell::link(topic.as_str(), topic_href(topic))]);
        }
        let groups = known.get(topic).into_iter().flatten().flat_map(|it| it.groups.keys());
        rows.extend(groups.filter(|group| group.as_str().contains(&ask.wanted)).map(|group| {
            let name = format!("{group} of {topic}");
            vec![Cell::text("group"), Cell::link(name, group_href(paths::GROUP, topic, group))]
        }));
    }
    for queue in ask.queues.iter().filter(|queue| queue.as_str().contains(&ask.wanted)) {
        rows.push(vec![
            Cell::text("delay queue"),
            Cell::link(queue.as_str(), queue_href(paths::QUEUE, queue)),
        ]);
    }
    Table::new("Names", &["Kind", "Name"], "").named("names").paged(SHOWN).rows(rows)
}

fn row(cx: &Context, it: &Located) -> Vec<Cell> {
    let (of, href) = match (&it.topic, &it.queue) {
        (Some(topic), _) => {
            (Cell::link(topic.as_str(), topic_href(topic)), of_topic(topic, it.group.as_ref(), it))
        }
        (None, Some(queue)) => {
            let path = if it.place == LocatedIn::Tasks { paths::TASK } else { paths::TASKS_DEAD };
            let href = queue_href(path, queue);
            let href = if it.place == LocatedIn::Tasks {
                href.with("id", &it.id)
            } else {
                href.with("find", &it.id)
            };
            (Cell::link(queue.as_str(), queue_href(paths::QUEUE, queue)), href)
        }
        (None, None) => (Cell::none(), Href::default()),
    };
    let group = it.topic.as_ref().zip(it.group.as_ref()).map_or_else(Cell::none, |(topic, group)| {
        Cell::link(group.as_str(), group_href(paths::GROUP, topic, group))
    });
    let tone = match it.place {
        LocatedIn::DeadLetters | LocatedIn::DeadTasks => Tone::Bad,
        LocatedIn::Retries => Tone::Warn,
        _ => Tone::Plain,
    };
    let of_queue = || it.queue.as_ref().map(|queue| cx.app.hidden_in_queue(queue));
    let hidden = it.topic.as_ref().map(|topic| cx.app.hidden_in_topic(topic)).or_else(of_queue);
    let hides = hidden.is_some_and(|hidden| hidden.undecodable_error().is_some());
    let error = if it.error.is_empty() || hides { Cell::none() } else { Cell::line(Text::short(&it.error)) };
    vec![
        Cell::toned(it.place.as_str(), tone),
        of,
        Cell::text(it.partition.0.to_string()),
        group,
        Cell { mono: true, ..Cell::link(Text::short(&it.id), href) },
        Cell::time(it.at),
        error,
    ]
}

/// Returns the page of something that was found in a topic.
fn of_topic(topic: &TopicName, group: Option<&GroupName>, it: &Located) -> Href {
    let Partition(partition) = it.partition;
    match (it.place, group) {
        (LocatedIn::Delayed, _) => Href::of(paths::DELAYED, &[topic.as_str()]).with("id", &it.id),
        (LocatedIn::DeadLetters, Some(group)) => {
            Href::of(paths::LETTER, &[topic.as_str(), group.as_str(), &partition.to_string(), &it.id])
        }
        // The story of a message has its place in each group.
        _ => Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), &it.id]),
    }
}
