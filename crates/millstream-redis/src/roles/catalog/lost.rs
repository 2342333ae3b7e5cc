//! What was lost of the catalog's lists, or of what they list: nobody may take it for deleted.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

#[cfg(feature = "admin")]
use millstream_core::catalog::{Catalog, GroupState};
use millstream_core::error::{Error, ErrorKind, Result};
#[cfg(feature = "admin")]
use millstream_core::inspect::{GroupOverview, Overview, OverviewQuery};
use millstream_core::keys::Key;
use millstream_core::name::QueueName;
#[cfg(feature = "admin")]
use millstream_core::name::{GroupName, TopicName};
#[cfg(feature = "admin")]
use millstream_core::topic::TopicSpec;
use redis::{Pipeline, Value};

#[cfg(feature = "admin")]
use super::overview::OverviewReading;
use super::parse_names;
use crate::backend::Inner;
#[cfg(feature = "admin")]
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
#[cfg(feature = "admin")]
use crate::snapshots::look::Standing;

/// Number of keys of a server that are looked at where nothing is listed: some 30 ms of its time, in steps.
const LOOKED_AT: usize = 100_000;
/// Number of keys of one step.
const STEP: usize = 1_000;
/// Time between two looks that find nothing.
const LOOK_EVERY: Duration = Duration::from_secs(600);

impl Inner {
    /// Returns the names in a list. If it has none, or has another type, those whose settings are there: the list was lost. Of a
    /// server with many other keys, and where the user may not look for keys, these stay unknown.
    pub(crate) async fn names_or_found<T: Ord>(
        &self,
        list: &Key,
        settings: &Key,
        parse: fn(&str) -> Result<T>,
    ) -> Result<Vec<T>> {
        let listed = self.names(list, parse).await;
        let is_empty = match &listed {
            Ok(names) => names.is_empty(),
            Err(error) if error.kind() == ErrorKind::WrongType => true,
            Err(_) => return listed,
        };
        let looked = || self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_empty {
            looked().remove(list);
            return listed;
        }
        // A server with topics alone has no queues, and is asked for them all the time.
        if looked().get(list).is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return listed;
        }
        self.is_synchronised().await?;
        let (found, whole) = self.names_found(settings, LOOKED_AT / STEP).await?;
        if found.is_empty() {
            looked().insert(list.clone(), Instant::now());
            if !whole {
                tracing::warn!(%list, "the list is empty, and whether it was lost is not known: not all keys could be looked at");
            }
            return listed;
        }
        let part = if whole { "" } else { ", some of them not looked for" };
        tracing::warn!(%list, "the list was lost, and settings are there{part}: `verify` says more");
        let names = found.into_iter().map(|(name, _)| Value::BulkString(name.into_bytes())).collect();
        parse_names(list, Value::Array(names), parse)
    }

    /// Fails for a replica that has not got what its primary has: it would seem that there is nothing.
    async fn is_synchronised(&self) -> Result<()> {
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("ROLE");
        pipe.cmd("DBSIZE");
        let [role, keys] = reply::tuple(Value::Array(self.pool.send(&pipe).await?))?;
        // One whose link is down has what it had.
        let Value::Array(role) = role else { return Ok(()) };
        if keys != Value::Int(0) {
            return Ok(());
        }
        let mut words = role.into_iter().map(|word| reply::text(word).unwrap_or_default());
        match (words.next().as_deref(), words.nth(2).as_deref()) {
            (Some("slave"), Some(state)) if state != "connected" => {
                let why =
                    format!("it is a replica that has not got the data of its primary (its link: {state})");
                Err(Error::new(ErrorKind::Unavailable, why))
            }
            _ => Ok(()),
        }
    }

    /// Adds a name to a list. If the list was lost, with all others whose settings are there: nobody would miss these any more.
    pub(crate) async fn list_name(&self, list: &Key, settings: &Key, name: &str) -> Result<()> {
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("SISMEMBER").arg(list.as_str()).arg(name);
        pipe.cmd("EXISTS").arg(list.as_str());
        let answers = self.pool.send(&pipe).await?.into_iter().map(reply::int).collect::<Result<Vec<_>>>();
        let answers = answers.map_err(|error| error.during(format_args!("catalog {list}")))?;
        // One that is there is not written again, so that a caller that only starts is not refused by a server that takes no
        // writes.
        if answers[0] == 1 {
            return Ok(());
        }
        // All of them, once: afterwards nobody looks any more.
        let found =
            if answers[1] == 0 { self.names_found(settings, usize::MAX).await?.0 } else { Vec::new() };
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SADD").arg(list.as_str()).arg(name);
        found.iter().for_each(|(name, _)| _ = pipe.arg(name));
        self.one(list, &pipe).await?;
        // What was deleted meanwhile has left the list before, and its settings after.
        for (name, key) in found {
            if !self.has_settings(&key).await? {
                self.unlist(list, &name).await?;
            }
        }
        Ok(())
    }

    /// Takes a name out of a list.
    pub(crate) async fn unlist(&self, list: &Key, name: &str) -> Result<()> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SREM").arg(list.as_str()).arg(name);
        self.one(list, &pipe).await.map(drop)
    }

    /// Whether settings are at this key that are not being deleted.
    async fn has_settings(&self, key: &str) -> Result<bool> {
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("EXISTS").arg(key);
        pipe.cmd("HEXISTS").arg(key).arg("deleting");
        Ok(self.pool.send(&pipe).await? == [1, 0].map(Value::Int))
    }

    /// Looks for settings, in at most `steps` of each server. Returns the names of what has them with their keys, and whether it
    /// has looked at all keys.
    async fn names_found(&self, settings: &Key, steps: usize) -> Result<(Vec<(String, String)>, bool)> {
        let (mut found, mut whole) = (Vec::new(), true);
        for line in self.pool.all().await? {
            let (mut cursor, mut left) = ("0".to_owned(), steps);
            loop {
                let mut pipe = Pipeline::with_capacity(1);
                pipe.cmd("SCAN").arg(&cursor).arg("MATCH").arg(settings.as_str()).arg("COUNT").arg(STEP);
                let answer = line.send(&pipe).await?.pop().unwrap_or_default();
                // The user may not look.
                let Ok([next, keys]) = reply::tuple(answer) else {
                    whole = false;
                    break;
                };
                found.extend(reply::array(keys)?);
                (cursor, left) = (reply::text(next)?, left - 1);
                if cursor == "0" || left == 0 {
                    whole &= cursor == "0";
                    break;
                }
            }
        }
        let mut names = Vec::with_capacity(found.len());
        for key in found {
            let key = reply::text(key)?;
            let name = key.rsplit_once('{').and_then(|(_, name)| name.split_once('}'));
            if let Some((name, _)) = name
                && self.has_settings(&key).await?
            {
                names.push((name.to_owned(), key));
            }
        }
        Ok((names, whole))
    }

    #[cfg(feature = "admin")]
    /// Returns the error of a topic without settings: `missing`, or another one if it is listed and nobody deleted it.
    pub(crate) async fn settings_lost(&self, name: &TopicName, missing: Error) -> Result<Error> {
        let keys = &self.keys;
        let (meta, deleted) = (keys.topic_meta(name), keys.topic_deleted(name));
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("SISMEMBER").arg(keys.topics().as_str()).arg(name.as_str());
        pipe.cmd("EXISTS").arg(deleted.as_str());
        pipe.cmd("EXISTS").arg(meta.as_str());
        // Settings are there again, or the mark of a deletion.
        let answers: [Value; 3] = reply::tuple(Value::Array(self.pool.send(&pipe).await?))?;
        if answers != [1, 0, 0].map(Value::Int) {
            return Ok(missing);
        }
        let why = format!("topic {name} is listed and has lost its settings: verify repairs it");
        Ok(Error::new(ErrorKind::Protocol, why).at(name))
    }

    /// Returns the error of a delay queue without settings, in the same way.
    pub(crate) async fn queue_lost(&self, name: &QueueName, missing: Error) -> Result<Error> {
        let list = self.keys.queues();
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SISMEMBER").arg(list.as_str()).arg(name.as_str());
        if reply::int(self.one(&list, &pipe).await?)? == 0 {
            return Ok(missing);
        }
        let why = format!(
            "queue {name} is listed and has lost its settings: create it again with the number of shards that it had"
        );
        Ok(Error::new(ErrorKind::Protocol, why))
    }
}

#[cfg(feature = "admin")]
impl RedisBackend {
    /// Finds topics without a group in their lists, on whose logs groups are.
    pub(super) async fn find_lost_groups(&self, readings: &mut [OverviewReading]) -> Result<()> {
        for OverviewReading { overview, standings, .. } in readings {
            let may_be = overview.groups.is_empty() && overview.unlisted.is_none();
            if !may_be || !standings.iter().any(Standing::has_others) {
                continue;
            }
            // One that was created since the list was read is in it by now.
            let topic = &overview.topic.name;
            if self.groups(topic).await?.is_empty() && self.has_own_groups(&overview.topic).await? {
                let why = format!(
                    "groups of topic {topic} are on its logs, and not in its list: verify finds them"
                );
                overview.unlisted = Some(Error::new(ErrorKind::Protocol, why).at(topic));
            }
        }
        Ok(())
    }
}

/// Returns the overview of a topic with these groups, whose figures follow.
#[cfg(feature = "admin")]
pub(super) fn overview_of(
    spec: TopicSpec,
    groups: Result<Vec<GroupName>>,
    is_listed: bool,
    query: &OverviewQuery,
) -> Overview {
    let mut overview = Overview::new(spec);
    match groups {
        Ok(groups) => {
            // What is in them is replaced when it has been read.
            let owners = query.owners.then(|| Ok(Vec::new()));
            let empty = |group| {
                GroupOverview::new(group, Ok(Vec::new()), Ok(0), Ok(GroupState::new()), owners.clone())
            };
            overview.groups = groups.into_iter().map(empty).collect();
        }
        Err(error) => overview.unlisted = Some(error),
    }
    if !is_listed && overview.unlisted.is_none() {
        let topic = &overview.topic.name;
        let why = format!("topic {topic} is not in the list of topics: verify repairs it");
        overview.unlisted = Some(Error::new(ErrorKind::Protocol, why).at(topic));
    }
    overview
}
