//! What failed: the dead letters of a group, its retries, and the dead tasks of a delay queue. Its lists, its errors, and its changes
//! are written once; each kind has its own routes.

pub(crate) mod change;
pub(crate) mod export;
pub(crate) mod letter;
pub(crate) mod letters;
pub(crate) mod retries;
pub(crate) mod tasks;

use millstream::admin::{Failed, FailedId, Shelf, ShelfFilter};
use millstream::crates::core::{ErrorGroups, Limits, QueueName};
use millstream::{DeadLetterQueue, GroupName, MessageId, Partition, TopicName};
use tokio::time::{Duration, Instant};

use super::queues::{queue_href, queue_page};
use super::{content, group_href, group_page, selection};
use crate::access::Permission;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::Cell;
use crate::view::chart::Chart;
use crate::view::format::count;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Table};

/// Number of bars of the curve of an error.
const BARS: usize = 24;
/// Number of items and of errors of a page.
const PAGE: usize = 50;
/// Maximum number of errors that are counted apart.
const GROUPS: usize = 200;
/// Number of items that are read between two looks at the clock.
const STEP: usize = 500;
/// Shortest beginning of all errors that is shown once.
const FOLDED: usize = 16;

/// Kind of what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Letters,
    Retries,
    Tasks,
}

/// Whose it is.
#[derive(Clone, Debug)]
enum Of {
    Group(TopicName, GroupName),
    Queue(QueueName),
}

/// Kind of what failed, and whose it is, as the path of a page names them.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    kind: Kind,
    of: Of,
    hidden: Redaction,
}

impl Place {
    /// Returns what the path names.
    ///
    /// # Errors
    /// Invalid names.
    fn new(cx: &Context, kind: Kind) -> Result<Self, Failure> {
        if kind == Kind::Tasks {
            let queue = cx.queue()?;
            let hidden = cx.app.hidden_in_queue(&queue);
            return Ok(Self { kind, of: Of::Queue(queue), hidden });
        }
        let (topic, group) = (cx.topic()?, cx.group()?);
        let hidden = cx.app.hidden_in_topic(&topic);
        Ok(Self { kind, of: Of::Group(topic, group), hidden })
    }

    /// Opens it.
    ///
    /// # Errors
    /// A group or a queue that does not exist.
    async fn open(&self, cx: &Context) -> Result<Shelf, Failure> {
        match (&self.of, self.kind) {
            (Of::Queue(queue), _) => Ok(cx.admin().dead_tasks(queue).await?),
            (Of::Group(topic, group), Kind::Retries) => {
                cx.app.reading.of_group(topic, group).await?;
                Ok(cx.admin().retries(topic, group).await?)
            }
            _ => Ok((*open_letters(cx).await?).clone()),
        }
    }

    /// Returns the noun: `1 dead letter`, `2 dead letters`.
    fn noun(&self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Letters => ("dead letter", "dead letters"),
            Kind::Retries => ("retry", "retries"),
            Kind::Tasks => ("dead task", "dead tasks"),
        }
    }

    fn name(&self) -> &str {
        match &self.of {
            Of::Group(_, group) => group.as_str(),
            Of::Queue(queue) => queue.as_str(),
        }
    }

    fn href(&self, path: &str) -> Href {
        match &self.of {
            Of::Group(topic, group) => group_href(path, topic, group),
            Of::Queue(queue) => queue_href(path, queue),
        }
    }

    fn page(&self, title: impl Into<Text>, path: &'static str) -> Page {
        match &self.of {
            Of::Group(topic, group) => group_page(title, topic, group, path),
            Of::Queue(queue) => queue_page(title, queue, path),
        }
    }

    fn may(&self, cx: &Context, permission: Permission) -> bool {
        match &self.of {
            Of::Group(topic, _) => cx.may(topic, permission),
            Of::Queue(_) => cx.access.allows(permission),
        }
    }

    fn subject(&self) -> Subject {
        match &self.of {
            Of::Group(topic, group) => Subject::group(topic, group),
            Of::Queue(queue) => Subject::queue(queue),
        }
    }

    /// Reads the filter of a page or a form.
    fn filter(&self, params: &Params) -> Result<ShelfFilter, Failure> {
        selection::filter(params, &self.hidden)
    }

    /// Returns the routes of its list and of its two changes.
    fn paths(&self) -> [&'static str; 3] {
        match self.kind {
            Kind::Letters => [paths::DEAD_LIST, paths::DEAD_REPLAY, paths::DEAD_PURGE],
            Kind::Retries => [paths::RETRIES, paths::RETRIES_NOW, paths::RETRIES_KILL],
            Kind::Tasks => [paths::TASKS_DEAD, paths::TASKS_REPLAY, paths::TASKS_PURGE],
        }
    }

    /// Returns the links to the changes that the user may make, with words for a selection, if it is one: `Replay those that match…`.
    fn actions(&self, cx: &Context, which: Option<&str>, with: impl Fn(Href) -> Href) -> Vec<(Text, Href)> {
        let [_, again, drop] = self.paths();
        let (verb, last) = match (self.kind, which) {
            (Kind::Retries, _) => ("Run now", "Give up"),
            (_, None) => ("replay", "purge"),
            _ => ("Replay", "Purge"),
        };
        let which = which.unwrap_or_default();
        let all = [(verb, again, Permission::Operate), (last, drop, Permission::Admin)].into_iter();
        let all = all.filter(|(_, _, permission)| self.may(cx, *permission));
        all.map(|(verb, path, _)| (format!("{verb}{which}…").into(), with(self.href(path)))).collect()
    }

    /// Returns a table of errors, the most frequent first. Numbers are lower bounds unless all were counted.
    fn errors(
        &self,
        cx: &Context,
        errors: ErrorGroups<FailedId>,
        is_complete: bool,
        empty: &'static str,
    ) -> Table {
        let [list, ..] = self.paths();
        let groups = errors.into_groups();
        let (first, last) = (groups.iter().map(|it| it.first).min(), groups.iter().map(|it| it.last).max());
        let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
        let patterns: Vec<&str> = groups.iter().map(|it| &*it.pattern).collect();
        let folded = common(&patterns);
        let note = begin(&patterns, folded);
        let rows = groups.iter().map(|error| {
            let numbers = error.times.spread(first, last, BARS);
            let pattern =
                if folded > 0 { format!("… {}", &error.pattern[folded..]) } else { error.pattern.clone() };
            let with = |href: Href| href.with("fingerprint", error.fingerprint);
            vec![
                Cell::text(format!("{}{}", if is_complete { "" } else { "≥ " }, count(error.count))),
                Cell::link(Text::short(&pattern), with(self.href(list))),
                Cell::chart(Some(Chart::bars(&format!("{} over time", self.noun().1), &numbers))),
                Cell::time(error.first),
                Cell::time(error.last),
                self.link(&error.example),
                Cell::links(self.actions(cx, None, with)),
            ]
        });
        let titles = [">Number", "Error", "When", "First", "Last", "The newest", ""];
        let table =
            Table::new("By error, the most frequent first", &titles, empty).rows(rows).named("errors");
        Table { note, paged: PAGE, ..table }
    }

    /// Examines what matches for a time, and returns it by error, the first of it, and whether that is all.
    async fn by_error(
        &self,
        cx: &Context,
        filter: &ShelfFilter,
        (most, budget): (u64, Duration),
    ) -> Result<(ErrorGroups<FailedId>, Vec<Failed>, bool), Failure> {
        let (began, mut groups, mut first) = (Instant::now(), ErrorGroups::new(GROUPS), Vec::new());
        let mut walk = self.open(cx).await?.walk(filter, None).await?;
        while !walk.is_done() && walk.looked_at() < most && began.elapsed() < budget {
            for item in walk.run_once(STEP).await? {
                let facts = item.facts();
                groups.add(facts.error, facts.at, facts.named());
                if first.len() < PAGE {
                    first.push(item);
                }
            }
        }
        Ok((groups, first, walk.is_done()))
    }

    /// Returns a cell that names an item.
    fn link(&self, it: &FailedId) -> Cell {
        let id = it.task.clone().unwrap_or_else(|| it.id.to_string());
        match (&self.of, self.kind) {
            (Of::Group(topic, group), Kind::Letters) => {
                let href = letter_href(paths::LETTER, topic, group, it.partition.0, &id);
                Cell { mono: true, ..Cell::link(id.as_str(), href) }
            }
            (Of::Group(topic, _), _) => message(topic, it.partition, it.id),
            _ => Cell::mono(Text::short(&id)),
        }
    }

    /// Returns a table of items.
    fn table(&self, title: &str, items: &[Failed], empty: &str) -> Table {
        let (id, at, attempts) = match self.kind {
            Kind::Letters => ("Letter", "Died", ">Attempts"),
            Kind::Retries => ("Message", "Due", ">Next attempt"),
            Kind::Tasks => ("Task", "Died", ">Attempts"),
        };
        let has_reasons = self.kind != Kind::Retries;
        let titles = [id, at, ">Partition", "Reason", attempts, "Error", "Key", "Payload"];
        let titles: Vec<&str> = titles.into_iter().filter(|it| has_reasons || *it != "Reason").collect();
        let errors: Vec<&str> = items.iter().map(|it| it.facts().error).collect();
        let folded = common(&errors);
        let rows = items.iter().map(|it| {
            let it = it.facts();
            let [key, payload] = content(it.envelope(&Limits::NONE), &self.hidden);
            let error = if folded > 0 { format!("… {}", &it.error[folded..]) } else { it.error.to_owned() };
            let mut row =
                vec![self.link(&it.named()), Cell::time(it.at), Cell::text(it.partition.to_string())];
            if has_reasons {
                row.push(it.reason.map_or_else(Cell::none, |reason| Cell::text(reason.as_str())));
            }
            row.extend([Cell::count(u64::from(it.attempts)), Cell::line(Text::short(&error)), key, payload]);
            row
        });
        let note = begin(&errors, folded);
        // A form above selects from all of them.
        Table { note, filters: false, ..Table::new(title, &titles, empty).rows(rows) }
    }
}

/// Returns the length of what all errors begin with, up to the end of a word, if it is long enough to be folded.
fn common(errors: &[&str]) -> usize {
    let [first, rest @ ..] = errors else { return 0 };
    let same = |other: &&str| {
        first
            .char_indices()
            .zip(other.chars())
            .find(|((_, a), b)| a != b)
            .map_or(first.len().min(other.len()), |((at, _), _)| at)
    };
    let length = rest.iter().map(same).min().unwrap_or_default();
    let end = first[..length].rfind([' ', ':', '/']).map_or(0, |at| at + 1);
    if end >= FOLDED { end } else { 0 }
}

/// Says what all errors begin with, if that is folded.
fn begin(errors: &[&str], folded: usize) -> Option<Text> {
    let common = errors.first().filter(|_| folded > 0)?[..folded].trim_end();
    Some(Text::short(&format!("All errors begin with “{common}”")))
}

/// Returns a cell that names a message.
fn message(topic: &TopicName, partition: Partition, id: MessageId) -> Cell {
    let id = id.to_string();
    let href = Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), &id]);
    Cell { mono: true, ..Cell::link(id, href) }
}

async fn open_letters(cx: &Context) -> Result<DeadLetterQueue, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    cx.app.reading.of_group(&topic, &group).await?;
    Ok(cx.admin().dead_letters(&topic, &group).await?)
}

fn letter_href(path: &str, topic: &TopicName, group: &GroupName, partition: u32, id: &str) -> Href {
    Href::of(path, &[topic.as_str(), group.as_str(), &partition.to_string(), id])
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn what_all_errors_begin_with_is_folded() {
        let errors = ["handler: reserve stock: no such item", "handler: reserve stock: no warehouse"];
        assert_eq!(&errors[0][common(&errors)..], "such item");
        assert_eq!(common(&["timed out", "timed up"]), 0, "too short");
        assert_eq!(common(&["one error alone, of some length"]), 0);
        assert_eq!(common(&[]), 0);
        assert_eq!(common(&["größere Störung: ä", "größere Störung: ö"]), "größere Störung: ".len());
    }
}
