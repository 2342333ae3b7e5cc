//! Finds the places of a message by its id or its key, within a bounded time.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use millstream_core::inspect::{OverviewQuery, Range};
use millstream_core::schedule::{Place, ScheduleId};
use millstream_core::{
    ErrorKind, GroupName, MessageId, Partition, QueueName, Result, Timestamp, TopicName, TopicPartition,
};
use tokio::time::Instant;

use crate::reading::messages::{Browse, Filter};
use crate::shelf::{Failed, Shelf, ShelfFilter, ShelfQuery};
use crate::{Admin, TopicSurvey, Totals, human};

/// Number of topics whose state is read together.
const TOGETHER: usize = 64;
/// Number of topics and queues that are looked through at the same time.
const AT_ONCE: usize = 8;
/// Maximum number of places that are returned for each topic, queue and kind.
const SHOWN: usize = 20;

/// What is looked for, and where.
#[derive(Clone, Debug)]
pub struct Locate {
    /// An id of a message (`1700000000000-0`), of a delayed message or of a task; or a key.
    pub wanted: String,
    /// Topics that are looked through, and whether their keys may be compared.
    pub topics: Vec<(TopicName, bool)>,
    /// Delay queues that are looked through.
    pub queues: Vec<QueueName>,
    /// Number of entries of a log, of dead letters, and of retries of a group that are examined for a key. Default: 5,000.
    pub looks: u64,
    /// Time after which nothing further is begun. Default: 2 seconds.
    pub time: Duration,
}

impl Locate {
    /// Looks for an id or a key nowhere yet.
    #[must_use]
    pub fn new(wanted: impl Into<String>) -> Self {
        let (topics, queues) = (Vec::new(), Vec::new());
        Self { wanted: wanted.into(), topics, queues, looks: 5_000, time: Duration::from_secs(2) }
    }
}

/// Kind of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LocatedIn {
    /// The log of a partition.
    Log,
    /// The dead letters of a group.
    DeadLetters,
    /// The retries of a group.
    Retries,
    /// The delayed messages of a topic.
    Delayed,
    /// The tasks of a delay queue that wait.
    Tasks,
    /// The dead tasks of a delay queue.
    DeadTasks,
}

impl LocatedIn {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::DeadLetters => "dead letters",
            Self::Retries => "retries",
            Self::Delayed => "delayed",
            Self::Tasks => "tasks",
            Self::DeadTasks => "dead tasks",
        }
    }
}

/// A place where a message was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Located {
    /// Kind of the place.
    pub place: LocatedIn,
    /// Its topic; `None` in a delay queue.
    pub topic: Option<TopicName>,
    /// Its delay queue.
    pub queue: Option<QueueName>,
    /// Its group, of a dead letter or a retry.
    pub group: Option<GroupName>,
    /// Partition, or shard.
    pub partition: Partition,
    /// Id there: of the message, of the dead letter, of the delayed message or of the task.
    pub id: String,
    /// Id of the message in its log, of a dead letter.
    pub origin: Option<MessageId>,
    /// When it was appended, died, or is due.
    pub at: Timestamp,
    /// Error of what failed; empty if there is none.
    pub error: String,
}

/// Places where a message was found, and what was not looked through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Locations {
    /// The places.
    pub places: Vec<Located>,
    /// What was not looked through, and why, in words; empty if everything was.
    pub left: Vec<String>,
}

/// What is looked for, in each form that it can have.
struct Wanted<'a> {
    text: &'a str,
    id: Option<MessageId>,
    scheduled: Option<ScheduleId>,
    looks: u64,
    until: Instant,
}

impl Admin {
    /// Finds a message by its id in the logs, among dead letters (also by the id that it had in its log), retries and delayed
    /// messages, and in delay queues; and by its key among the newest entries of each log, dead letters and retries. What it does
    /// not look through, it names.
    ///
    /// # Errors
    /// None of single topics and queues: they are [named](Locations::left). Those of the backend where it is not there at all.
    pub async fn locate(&self, ask: &Locate) -> Result<Locations> {
        self.backend.inspect()?;
        let wanted = Wanted {
            text: &ask.wanted,
            id: ask.wanted.parse().ok(),
            scheduled: ScheduleId::new(&ask.wanted).ok(),
            looks: ask.looks,
            until: Instant::now() + ask.time,
        };
        let (wanted, mut found, mut late) = (&wanted, Locations::default(), [0, 0]);
        for some in ask.topics.chunks(TOGETHER) {
            if wanted.is_over() {
                late[0] += some.len() as u64;
                continue;
            }
            // Most topics have nothing where a message could be.
            let names: Vec<TopicName> = some.iter().map(|(topic, _)| topic.clone()).collect();
            let surveys = self.surveys_with(&names, &OverviewQuery::default()).await;
            let topics = some.iter().cloned().zip(surveys);
            let topics = stream::iter(topics).map(|((topic, keys), survey)| async move {
                let of = match survey {
                    _ if wanted.is_over() => None,
                    Ok(survey) => Some(self.in_topic(&topic, &survey, keys, wanted).await),
                    Err(error) => Some(Err(error)),
                };
                (topic, of)
            });
            let mut topics = topics.buffered(AT_ONCE);
            while let Some((name, of)) = topics.next().await {
                found.add(&format!("topic {name}"), of, &mut late[0]);
            }
        }
        let queues = stream::iter(ask.queues.clone()).map(|queue| async move {
            let of = if wanted.is_over() { None } else { Some(self.in_queue(&queue, wanted).await) };
            (queue, of)
        });
        let mut queues = queues.buffered(AT_ONCE);
        while let Some((name, of)) = queues.next().await {
            found.add(&format!("delay queue {name}"), of, &mut late[1]);
        }
        for (number, (one, many)) in
            late.into_iter().zip([("topic", "topics"), ("delay queue", "delay queues")])
        {
            if number > 0 {
                found.left.push(format!("{}: the time was over", human::of(number, one, many)));
            }
        }
        Ok(found)
    }

    async fn in_topic(
        &self,
        name: &TopicName,
        survey: &TopicSurvey,
        keys: bool,
        wanted: &Wanted<'_>,
    ) -> Result<Locations> {
        let (spec, mut found) = (&survey.topic, Locations::default());
        // What is not known may have anything, and messages of packs have ids of their own.
        let is_known = survey.logs.iter().all(Result::is_ok) && spec.packing.is_none();
        let in_log = |id: &MessageId| {
            !is_known || survey.ends().is_some_and(|(first, last)| (first..=last).contains(id))
        };
        let by_key = keys.then(|| Bytes::copy_from_slice(wanted.text.as_bytes()));
        let filters = [
            wanted.id.filter(in_log).map(|id| Filter { id: Some(id), ..Filter::default() }),
            by_key
                .clone()
                .filter(|_| !is_known || survey.ends().is_some())
                .map(|key| Filter { key: Some(key), ..Filter::default() }),
        ];
        for filter in filters.into_iter().flatten() {
            let range = Range { newest_first: true, ..Range::ALL };
            let browse = Browse { range, limit: SHOWN, ..Browse::default() };
            let page = self.find(name, &browse, &filter, wanted.looks).await?;
            if page.next.is_some() && filter.id.is_none() {
                let looked = human::of(page.looked_at, "entry", "entries");
                found.left.push(format!("topic {name}: the log beyond the newest {looked}"));
            }
            found.places.extend(page.messages.into_iter().map(|message| {
                let TopicPartition { topic, partition } = message.topic_partition;
                let (id, at) = (message.stored.id.to_string(), message.stored.id.timestamp());
                Located { topic: Some(topic), ..Located::new(LocatedIn::Log, partition, id, at) }
            }));
        }
        if !keys {
            found.left.push(format!("topic {name}: keys, which are redacted"));
        }
        if let Some(error) = &survey.unlisted {
            found.left.push(format!("topic {name}: its groups: {error}"));
        }
        for (group, stats) in &survey.groups {
            let has = |figure: fn(&Totals) -> Option<u64>| {
                stats.as_ref().map_or(true, |it| figure(&it.totals) != Some(0))
            };
            let [has_letters, has_retries] = [has(|it| it.dead), has(|it| it.retrying)];
            if !has_letters && !has_retries {
                continue;
            }
            if wanted.is_over() {
                found.left.push(format!("topic {name}: groups from {group} on: the time was over"));
                break;
            }
            let of = |place| {
                move |failed: &Failed| {
                    let it = failed.facts();
                    let origin = (place == LocatedIn::DeadLetters).then_some(it.origin);
                    let located = Located::new(place, it.partition, it.id.to_string(), it.at);
                    Located { topic: Some(name.clone()), origin, error: it.error.to_owned(), ..located }
                }
            };
            let letters: Shelf = (*self.dead_letters(name, group).await?).clone();
            let retries = self.retries(name, group).await?;
            let shelves =
                [(LocatedIn::DeadLetters, letters, has_letters), (LocatedIn::Retries, retries, has_retries)];
            for (place, shelf, _) in shelves.into_iter().filter(|(.., has)| *has) {
                let mut filters = Vec::new();
                if let Some(id) = wanted.id {
                    filters.push(ShelfFilter { ids: Some(vec![id]), ..ShelfFilter::default() });
                    if place == LocatedIn::DeadLetters {
                        // A message dies after it was appended.
                        let (origin, from) = (Some(id), Some(id.timestamp()));
                        filters.push(ShelfFilter { origin, from, ..ShelfFilter::default() });
                    }
                }
                if let Some(key) = &by_key {
                    let message = Filter { key: Some(key.clone()), ..Filter::default() };
                    filters.push(ShelfFilter { message, ..ShelfFilter::default() });
                }
                for filter in filters {
                    let what = format!("topic {name}: {} of {group}", place.as_str());
                    let mut items = found.search(&shelf, filter.clone(), wanted, &what).await?;
                    // Those that are due, and not handed out yet.
                    shelf.ready_retries(&filter, |retry| (items.push(retry), items.len() < SHOWN).1).await?;
                    let places =
                        items.iter().map(of(place)).map(|it| Located { group: Some(group.clone()), ..it });
                    found.places.extend(places);
                }
            }
        }
        let waits = survey.delayed.as_ref().map_or(true, |it| it.total > 0);
        if let Some(id) = wanted.scheduled.as_ref().filter(|_| waits) {
            for tp in spec.iter() {
                if wanted.is_over() {
                    found.left.push(format!(
                        "topic {name}: delayed messages from partition {} on: the time was over",
                        tp.partition
                    ));
                    break;
                }
                let place = Place::from(tp.clone());
                if let Some(it) = self.backend.schedule().get(&place, id).await? {
                    let located = Located::new(LocatedIn::Delayed, tp.partition, it.id.to_string(), it.due);
                    found.places.push(Located { topic: Some(name.clone()), ..located });
                }
            }
        }
        // By the id of a letter and by that of its message the same was searched.
        found.left.dedup();
        let mut seen = BTreeSet::new();
        let name_of = |it: &Located| (it.place, it.group.clone(), it.partition, it.id.clone());
        found.places.retain(|it| seen.insert(name_of(it)));
        Ok(found)
    }

    async fn in_queue(&self, name: &QueueName, wanted: &Wanted<'_>) -> Result<Locations> {
        let (spec, mut found) = (self.backend.tasks()?.queue(name).await?, Locations::default());
        let Some(id) = &wanted.scheduled else { return Ok(found) };
        let shard = spec.shard_of(id);
        let partition = Partition(shard.shard);
        if let Some(it) = self.backend.schedule().get(&Place::from(shard), id).await? {
            let located = Located::new(LocatedIn::Tasks, partition, it.id.to_string(), it.due);
            found.places.push(Located { queue: Some(name.clone()), ..located });
        }
        let tasks = Some(BTreeSet::from([id.to_string()]));
        let filter = ShelfFilter { tasks, partitions: Some(vec![partition]), ..ShelfFilter::default() };
        let what = format!("delay queue {name}: dead tasks");
        for failed in found.search(&self.dead_tasks(name).await?, filter, wanted, &what).await? {
            let it = failed.facts();
            let located = Located::new(LocatedIn::DeadTasks, it.partition, id.to_string(), it.at);
            found.places.push(Located { queue: Some(name.clone()), error: it.error.to_owned(), ..located });
        }
        Ok(found)
    }
}

impl Wanted<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Located {
    fn new(place: LocatedIn, partition: Partition, id: String, at: Timestamp) -> Self {
        let (topic, queue, group, origin, error) = (None, None, None, None, String::new());
        Self { place, topic, queue, group, partition, id, origin, at, error }
    }
}

impl Locations {
    /// Adds what was found in a topic or queue; `None` is one for which there was no time.
    fn add(&mut self, name: &str, of: Option<Result<Self>>, late: &mut u64) {
        match of {
            None => *late += 1,
            Some(Ok(of)) => {
                self.places.extend(of.places);
                self.left.extend(of.left);
            }
            // It was deleted meanwhile.
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => {}
            Some(Err(error)) => self.left.push(format!("{name}: {error}")),
        }
    }

    /// Searches what failed, and says how far it has not looked.
    async fn search(
        &mut self,
        shelf: &Shelf,
        filter: ShelfFilter,
        wanted: &Wanted<'_>,
        what: &str,
    ) -> Result<Vec<Failed>> {
        let query = ShelfQuery { filter, limit: SHOWN, looks: wanted.looks, ..ShelfQuery::default() };
        let page = shelf.page(&query).await?;
        if page.next.is_some() && page.items.len() < SHOWN {
            self.left.push(format!("{what} beyond the first {}", human::count(page.looked_at)));
        }
        Ok(page.items)
    }
}
