//! Overviews of topics: the commands for many topics, groups and partitions go together in a few requests.
//!
//! A request costs a server as much as a dozen small commands, and an operator asks about a thousand topics.

use std::collections::VecDeque;

use futures_util::future::join_all;
use millstream_core::catalog::PartitionSurvey;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::inspect::{LogState, Overview, OverviewQuery};
use millstream_core::keys::Key;
use millstream_core::name::{GroupName, TopicName};
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use super::lag::{Trust, at_once};
use super::lost::overview_of;
use super::snapshot::Ask;
use super::{CHUNK, groups, parse_names, settings};
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::roles::inspect::{OF_OWNER, owner_commands, ownership_or_unreadable};
use crate::scripts::script;
use crate::snapshots::look::{Look, Standing};

/// Topics that are read together.
const TOPICS: usize = 64;
/// Topics that are read at the same time, each by itself, where they cannot be read together.
const AT_ONCE: usize = 8;
/// Partitions that are read together, unless a topic has more.
const PARTITIONS: usize = 2_000;
/// Commands for each group of a topic, beside those for its partitions.
const OF_GROUP: usize = 2;

/// A topic that is being read.
pub(super) struct OverviewReading {
    pub(super) overview: Overview,
    partitions: Vec<TopicPartition>,
    /// Names of its groups, as in the overview.
    groups: Vec<GroupName>,
    pub(super) standings: Vec<Standing>,
    /// Number of members that are stored for each group, living or not.
    stored: Vec<Result<u64>>,
}

/// What a request asks about a group: some of its partitions.
struct OverviewPart {
    topic: usize,
    group: usize,
    from: usize,
    to: usize,
}

/// Why the numbers of messages of a log are not known.
const UNKNOWN: &str =
    "packs were deleted between others: its messages are counted again when it is trimmed past them";

impl RedisBackend {
    /// Reads the state of these topics.
    pub(crate) async fn overviews(
        &self,
        topics: &[TopicName],
        query: &OverviewQuery,
    ) -> Vec<Result<Overview>> {
        let mut all = Vec::with_capacity(topics.len());
        for some in topics.chunks(TOPICS) {
            match self.read_together(some, query).await {
                Ok(read) => all.extend(read),
                // One node of a cluster may be away, and it has not all of the topics.
                Err(_) if some.len() > 1 => {
                    for few in some.chunks(AT_ONCE) {
                        all.extend(join_all(few.iter().map(|topic| self.read_alone(topic, query))).await);
                    }
                }
                Err(error) => all.push(Err(error)),
            }
        }
        all
    }

    async fn read_alone(&self, topic: &TopicName, query: &OverviewQuery) -> Result<Overview> {
        let mut read = self.read_together(std::slice::from_ref(topic), query).await?;
        read.pop().unwrap_or_else(|| Err(lost()))
    }

    /// Reads these topics. Each has an error of its own, apart from transient ones.
    async fn read_together(
        &self,
        topics: &[TopicName],
        query: &OverviewQuery,
    ) -> Result<Vec<Result<Overview>>> {
        let (trust, stored) = self.settings_and_groups(topics, query).await?;
        let mut at = Vec::with_capacity(stored.len());
        let mut readings = Vec::new();
        for one in stored {
            at.push(one.map(|overview| {
                readings.push(OverviewReading::new(overview));
                readings.len() - 1
            }));
        }
        let mut rest = readings.as_mut_slice();
        while !rest.is_empty() {
            let (some, later) = rest.split_at_mut(fit(rest));
            self.read_standings(some, trust).await?;
            if query.group.is_none() {
                self.find_lost_groups(some).await?;
            }
            if query.pins {
                self.read_pins(some).await?;
            }
            self.read_groups(some, query).await?;
            self.count_living(some).await?;
            for reading in some {
                self.survey_groups(reading, trust).await?;
                // What it has is in the overview.
                reading.standings = Vec::new();
            }
            rest = later;
        }
        let mut read: VecDeque<Overview> = readings.into_iter().map(|reading| reading.overview).collect();
        Ok(at.into_iter().map(|one| one.and_then(|_| read.pop_front().ok_or_else(lost))).collect())
    }

    /// Reads the settings of topics and the lists of their groups.
    async fn settings_and_groups(
        &self,
        topics: &[TopicName],
        query: &OverviewQuery,
    ) -> Result<(Trust, Vec<Result<Overview>>)> {
        let keys = &self.inner.keys;
        let mut pipe = Pipeline::with_capacity(2 + 2 * topics.len());
        pipe.cmd("INFO").arg("server");
        pipe.cmd("SMISMEMBER").arg(keys.topics().as_str());
        topics.iter().for_each(|topic| _ = pipe.arg(topic.as_str()));
        for topic in topics {
            settings::command(&mut pipe, &keys.topic_meta(topic));
            if query.group.is_none() {
                pipe.cmd("SMEMBERS").arg(keys.topic_groups(topic).as_str());
            }
        }
        let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
        let trust = self.trust(answers.next());
        let listed = reply::array(answers.next().unwrap_or_default());
        // A list of another type has none of them. What else fails says so itself.
        let lost = listed.as_ref().is_err_and(|error| error.kind() == ErrorKind::WrongType);
        let mut listed = listed.unwrap_or_default().into_iter();
        let mut stored = Vec::with_capacity(topics.len());
        for topic in topics {
            let meta = keys.topic_meta(topic);
            let is_listed = !lost && listed.next() != Some(Value::Int(0));
            let spec = reply::ok(answers.next().unwrap_or_default())
                .map_err(|error| error.during(format_args!("catalog {meta}")))
                .and_then(|stored| settings::read(topic, stored))
                .inspect(|spec| self.inner.packings.learn(spec));
            let spec = match spec {
                Err(missing) if missing.kind() == ErrorKind::NotFound => {
                    Err(self.inner.settings_lost(topic, missing).await?)
                }
                spec => spec,
            };
            let groups = match &query.group {
                Some(group) => Ok(vec![group.clone()]),
                None => {
                    let key = keys.topic_groups(topic);
                    let members = reply::ok(answers.next().unwrap_or_default());
                    members
                        .and_then(|members| parse_names(&key, members, |name| GroupName::new(name)))
                        .map_err(|error| error.during(format_args!("catalog {key}")))
                }
            };
            stored.push(match (spec, groups) {
                // Somebody else knows when to ask again.
                (Ok(_), Err(error)) if error.is_transient() => Err(error),
                (spec, groups) => spec.map(|spec| overview_of(spec, groups, is_listed, query)),
            });
        }
        Ok((trust, stored))
    }

    /// Takes snapshots of all partitions with all groups.
    async fn read_standings(&self, readings: &mut [OverviewReading], trust: Trust) -> Result<()> {
        let asks: Vec<Ask<'_>> = readings
            .iter()
            .flat_map(|reading| {
                let groups = reading.groups.as_slice();
                reading.partitions.iter().map(move |topic_partition| Ask { topic_partition, groups })
            })
            .collect();
        // Counts are remembered with the server that they come from. Where the server's own figure counts, it is not needed
        // yet.
        let standings = match (trust, self.inner.servers.cluster()) {
            (Trust::Always, _) => self.standings(&asks, "").await?,
            (_, Some(_)) => self.standings(&asks, "1").await?,
            // Asking once, before and after, costs less than asking with each snapshot. An address that leads to the same server
            // at both ends has led there in between: neither number comes back.
            (_, None) => {
                let before = self.identity().await?;
                let mut standings = self.standings(&asks, "").await?;
                let after = self.identity().await?;
                let server = before.filter(|before| after.as_ref() == Some(before));
                for look in standings.iter_mut().flat_map(Standing::looks) {
                    look.server.clone_from(&server);
                }
                standings
            }
        };
        let mut standings = standings.into_iter();
        for reading in readings {
            reading.standings = standings.by_ref().take(reading.partitions.len()).collect();
            let logs = reading.partitions.iter().zip(&reading.standings);
            let logs: Vec<_> = logs.filter_map(|(tp, it)| Some((tp, it.log().ok()?))).collect();
            let mut missing = self.inner.missing_from(&logs, "").await?.into_iter();
            let state = |it: &Standing| {
                let log = it.log().map_err(Clone::clone)?;
                let Some(missing) = missing.next().and_then(|holes| holes.length) else {
                    return Err(Error::new(ErrorKind::Unsupported, UNKNOWN));
                };
                let length = log.length.with(log.more - missing);
                Ok(LogState::new(length, log.first_message, log.last))
            };
            reading.overview.logs = reading.standings.iter().map(state).collect();
            reading.overview.delayed = reading.standings.iter().map(|it| it.waiting.clone()).collect();
        }
        Ok(())
    }

    /// Finds the groups that keep entries. A log that cannot be read has none; its error is in the lengths.
    async fn read_pins(&self, readings: &mut [OverviewReading]) -> Result<()> {
        // A group that is on a log and not in the topic's list keeps entries too: so this asks for all that are there.
        // That is known where all of them were named.
        let known =
            || readings.iter().flat_map(|reading| reading.partitions.iter().zip(reading.standings.iter()));
        let asked: Vec<TopicPartition> =
            known().filter(|(_, it)| it.whole().is_none()).map(|(tp, _)| tp.clone()).collect();
        let asked = self.look(&asked, "").await?;
        let mut asked = asked.iter();
        let looks = known().filter_map(|(tp, standing)| {
            let look = match standing.whole() {
                Some(look) => look.ok(),
                None => asked.next()?.as_ref().ok(),
            };
            Some((tp, look?))
        });
        let looks: Vec<_> = looks.collect();
        let mut pins = self.pins_on(&looks).await?.into_iter().peekable();
        // In the order of topics.
        let mut of_topics = Vec::with_capacity(readings.len());
        for reading in readings.iter() {
            let mut of_topic = Vec::new();
            while let Some((_, pin)) = pins.next_if(|(tp, _)| tp.topic == reading.overview.topic.name) {
                of_topic.push(pin);
            }
            of_topics.push(of_topic);
        }
        for (reading, of_topic) in readings.iter_mut().zip(of_topics) {
            reading.overview.pins = Some(Ok(of_topic));
        }
        Ok(())
    }

    /// Reads what groups have that is not in the partitions, and owners.
    async fn read_groups(&self, readings: &mut [OverviewReading], query: &OverviewQuery) -> Result<()> {
        let mut parts = parts(readings, query).into_iter().peekable();
        while parts.peek().is_some() {
            let (mut some, mut rows) = (Vec::new(), 0);
            while let Some(part) =
                parts.next_if(|part| some.is_empty() || some.len().max(rows) + part.to - part.from < CHUNK)
            {
                rows += part.to - part.from;
                some.push(part);
            }
            let mut pipe = Pipeline::with_capacity(OF_GROUP * some.len() + OF_OWNER * rows);
            some.iter().for_each(|part| self.ask_part(&mut pipe, &readings[part.topic], part, query));
            let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
            for part in some {
                self.take_part(&mut readings[part.topic], &part, &mut answers, query)?;
            }
        }
        Ok(())
    }

    fn ask_part(
        &self,
        pipe: &mut Pipeline,
        reading: &OverviewReading,
        part: &OverviewPart,
        query: &OverviewQuery,
    ) {
        let keys = &self.inner.keys;
        let (topic, group) = (&reading.overview.topic.name, &reading.groups[part.group]);
        if part.from == 0 {
            pipe.cmd("ZCARD").arg(keys.members(topic, group).as_str());
            groups::state_command(pipe, &keys.group_state(topic, group));
        }
        if query.owners {
            let partitions = &reading.partitions[part.from..part.to];
            partitions.iter().for_each(|tp| owner_commands(pipe, keys, tp, group));
        }
    }

    fn take_part(
        &self,
        reading: &mut OverviewReading,
        part: &OverviewPart,
        answers: &mut impl Iterator<Item = Value>,
        query: &OverviewQuery,
    ) -> Result<()> {
        let keys = &self.inner.keys;
        let (topic, group) = (&reading.overview.topic.name, &reading.groups[part.group]);
        let of_group = &mut reading.overview.groups[part.group];
        if part.from == 0 {
            let (members, state) = (keys.members(topic, group), keys.group_state(topic, group));
            let stored = reply::int(answers.next().unwrap_or_default());
            let stored = stored.map_err(|error| error.during(format_args!("read {members}")));
            reading.stored[part.group] = lasting(stored)?.map(|stored| u64::try_from(stored).unwrap_or(0));
            of_group.state = lasting(groups::state(&state, answers.next().unwrap_or_default()))?;
        }
        if query.owners {
            let mut owners =
                |tp| ownership_or_unreadable(tp, group, answers.by_ref().take(OF_OWNER).collect());
            let read = reading.partitions[part.from..part.to].iter().map(&mut owners).collect();
            extend(of_group.owners.get_or_insert(Ok(Vec::new())), read)?;
        }
        Ok(())
    }

    /// Makes the state of each group on each partition from what was read.
    async fn survey_groups(&self, reading: &mut OverviewReading, trust: Trust) -> Result<()> {
        for (at, group) in reading.groups.iter().enumerate() {
            let surveys = self.surveys_of(reading, at, group, trust).await;
            extend(&mut reading.overview.groups[at].partitions, surveys)?;
        }
        Ok(())
    }

    async fn surveys_of(
        &self,
        reading: &OverviewReading,
        at: usize,
        group: &GroupName,
        trust: Trust,
    ) -> Result<Vec<PartitionSurvey>> {
        let mut surveys = Vec::with_capacity(reading.partitions.len());
        let chunks = reading.partitions.chunks(CHUNK).zip(reading.standings.chunks(CHUNK));
        for (partitions, standings) in chunks {
            let of_group = |it: &Standing| (it.of_group(at, group.as_str()), it.rest.get(at).cloned());
            let mut read: Vec<_> = standings.iter().map(of_group).collect();
            let is_known =
                |look: &Look| look.groups.iter().all(|stands| at_once(look, stands, trust).is_some());
            if trust == Trust::Always && !read.iter().flat_map(|(look, _)| look).all(is_known) {
                // Entries have to be counted, and counts are remembered with the server.
                let groups = std::slice::from_ref(group);
                let asks: Vec<Ask<'_>> =
                    partitions.iter().map(|topic_partition| Ask { topic_partition, groups }).collect();
                let again = self.standings(&asks, "1").await?;
                read =
                    again.into_iter().map(|mut it| (it.of_group(0, group.as_str()), it.rest.pop())).collect();
            }
            let surveyed = self.surveys(partitions, group, read, trust).await?;
            surveys.extend(surveyed.into_iter().map(|(survey, _)| survey));
        }
        Ok(surveys)
    }

    /// Counts the members whose time has not passed, of groups that have any.
    async fn count_living(&self, readings: &mut [OverviewReading]) -> Result<()> {
        let keys = &self.inner.keys;
        let mut lists: Vec<(Key, usize, usize)> = Vec::new();
        for (topic, reading) in readings.iter_mut().enumerate() {
            for (at, stored) in std::mem::take(&mut reading.stored).into_iter().enumerate() {
                match stored {
                    Ok(0) => {}
                    Ok(_) => {
                        let members = keys.members(&reading.overview.topic.name, &reading.groups[at]);
                        lists.push((members, topic, at));
                    }
                    Err(error) => reading.overview.groups[at].members = Err(error),
                }
            }
        }
        for some in lists.chunks(CHUNK) {
            let calls = some.iter().map(|(key, ..)| self.inner.scripts.count_due.call([key; 3]));
            let counted = script::run(&self.inner.pool, calls.collect()).await;
            for ((_, topic, at), counted) in some.iter().zip(counted) {
                let read = counted.and_then(|counted| {
                    let [all, overdue, _] = reply::tuple(counted)?;
                    Ok(reply::count(all)?.saturating_sub(reply::count(overdue)?))
                });
                readings[*topic].overview.groups[*at].members = lasting(read)?;
            }
        }
        Ok(())
    }
}

impl OverviewReading {
    fn new(overview: Overview) -> Self {
        let partitions = overview.topic.iter().collect();
        let groups: Vec<GroupName> = overview.groups.iter().map(|group| group.group.clone()).collect();
        let stored = groups.iter().map(|_| Ok(0)).collect();
        Self { overview, partitions, groups, standings: Vec::new(), stored }
    }
}

/// Returns how many of the topics are read together: at least one.
fn fit(readings: &[OverviewReading]) -> usize {
    let mut partitions = 0;
    let fit = readings.iter().take_while(|reading| {
        partitions += reading.partitions.len();
        partitions <= PARTITIONS
    });
    fit.count().max(1)
}

/// Returns the parts in which groups are read: at most [`CHUNK`] partitions each; none where owners are not asked for.
fn parts(readings: &[OverviewReading], query: &OverviewQuery) -> Vec<OverviewPart> {
    let mut parts = Vec::new();
    for (topic, reading) in readings.iter().enumerate() {
        let partitions = if query.owners { reading.partitions.len() } else { 1 };
        for group in 0..reading.groups.len() {
            for from in (0..partitions).step_by(CHUNK - 1) {
                let to = partitions.min(from + CHUNK - 1);
                parts.push(OverviewPart { topic, group, from, to });
            }
        }
    }
    parts
}

/// Separates errors: a transient one fails the whole topic, any other is the result of this part only.
fn lasting<T>(read: Result<T>) -> Result<Result<T>> {
    match read {
        Err(error) if error.is_transient() => Err(error),
        read => Ok(read),
    }
}

/// Adds what was read to what was read before. An error that is not transient stays in its place.
fn extend<T>(all: &mut Result<Vec<T>>, read: Result<Vec<T>>) -> Result<()> {
    match (all, read) {
        (_, Err(error)) if error.is_transient() => return Err(error),
        (Ok(all), Ok(read)) => all.extend(read),
        (all @ Ok(_), Err(error)) => *all = Err(error),
        (Err(_), _) => {}
    }
    Ok(())
}

/// Error of an answer that is shorter than the request.
fn lost() -> Error {
    Error::new(ErrorKind::Protocol, "the answer is shorter than the request")
}
