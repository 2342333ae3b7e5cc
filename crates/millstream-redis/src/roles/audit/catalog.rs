//! Checks of data that is spread over hash slots: the catalog, the groups on a log, and the types of all keys.

use millstream_core::audit::{Audited, Fault, Finding, Scope};
use millstream_core::cancels::WorkPlace;
use millstream_core::catalog::Catalog;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::name::{GroupName, QueueName, TopicName};
use millstream_core::packing::{PackCompression, Packing};
use millstream_core::schedule::Place;
use millstream_core::topic::{Retention, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::replies::reply;

/// Maximum number of members of a set in one command.
const CHUNK: usize = 500;

impl RedisBackend {
    pub(super) async fn types(&self, scope: &Scope) -> Result<Audited> {
        let keys = &self.inner.keys;
        let place_keys = |place: &Place, wake| {
            vec![
                (keys.delay(place), "zset"),
                (keys.delay_items(place), "hash"),
                (keys.recur(place), "zset"),
                (keys.recur_items(place), "hash"),
                (keys.wake(place), wake),
            ]
        };
        let expected = match scope {
            Scope::Topic(topic) => self.topic_keys(topic).await?,
            Scope::Partition(tp) => {
                let mut all = place_keys(&tp.clone().into(), "stream");
                all.push((keys.log(tp), "stream"));
                all.push((keys.dedup(tp), "hash"));
                all.push((keys.dedup_old(tp), "hash"));
                all.push((keys.unique(tp), "hash"));
                all.push((keys.packs(tp), "stream"));
                all.push((keys.batches(tp), "zset"));
                all.push((keys.batch_notes(&tp.clone().into()), "stream"));
                all
            }
            Scope::Shard(shard) => {
                let mut all = place_keys(&shard.clone().into(), "list");
                all.push((keys.claims(shard), "zset"));
                all.push((keys.task_states(shard), "hash"));
                all.push((keys.finished(shard), "zset"));
                all.push((keys.watcher(shard), "hash"));
                all.push((keys.dead_tasks(shard), "stream"));
                all.push((keys.cancels(&WorkPlace::Shard(shard.clone())), "hash"));
                all.push((keys.steps(&WorkPlace::Shard(shard.clone())), "hash"));
                all.push((keys.batch_notes(&shard.clone().into()), "stream"));
                all
            }
            Scope::Queue(queue) => vec![(keys.queues(), "set"), (keys.queue_meta(queue), "hash")],
            Scope::Group(tp, group) => vec![
                (keys.retry_log(tp, group), "stream"),
                (keys.dead_letters(tp, group), "stream"),
                (keys.dead_claims(tp, group), "hash"),
                (keys.dead_imports(tp, group), "hash"),
                (keys.lease(tp, group), "string"),
                (keys.fence(tp, group), "hash"),
                (keys.unique_retry(tp, group), "hash"),
                (keys.retry_due(tp, group), "zset"),
                (keys.retry_items(tp, group), "hash"),
                (keys.held(tp, group), "hash"),
                (keys.settled(tp, group), "hash"),
                (keys.cancels(&WorkPlace::Group(tp.clone(), group.clone())), "hash"),
                (keys.steps(&WorkPlace::Group(tp.clone(), group.clone())), "hash"),
            ],
        };
        let mut expected = expected;
        if let Scope::Group(tp, group) = scope {
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("HGET").arg(keys.fence(tp, group).as_str()).arg("reader");
            // A fence of another type is found below.
            if let Ok(reader) = reply::text(self.ask(&pipe).await?.pop().unwrap_or_default())
                && !reader.is_empty()
            {
                expected.push((keys.gate(tp, group, &reader), "stream"));
            }
        }
        let mut page = Audited::new(expected.len() as u64);
        for expected in expected.chunks(CHUNK) {
            let mut pipe = Pipeline::with_capacity(expected.len());
            for (key, _) in expected {
                pipe.cmd("TYPE").arg(key.as_str());
            }
            for (answer, (key, expected)) in self.ask(&pipe).await?.into_iter().zip(expected) {
                let found = reply::text(answer)?;
                if found != "none" && found != *expected {
                    let detail = format!("is a {found}, not a {expected}");
                    page.findings.push(Finding::new(Fault::WrongType, scope, key.as_str(), detail));
                }
            }
        }
        Ok(page)
    }

    /// Returns the keys of a topic as a whole and of each of its groups, with their types.
    async fn topic_keys(&self, topic: &TopicName) -> Result<Vec<(Key, &'static str)>> {
        let keys = &self.inner.keys;
        let mut all = vec![
            (keys.topics(), "set"),
            (keys.topic_meta(topic), "hash"),
            (keys.topic_partitions(topic), "set"),
            (keys.topic_groups(topic), "set"),
            (keys.topic_deleted(topic), "string"),
            (keys.topic_dictionaries(topic), "hash"),
        ];
        for group in self.groups_if_any(topic).await? {
            all.push((keys.members(topic, &group), "zset"));
            all.push((keys.member(topic, &group), "hash"));
            all.push((keys.assignment(topic, &group), "hash"));
            all.push((keys.changes(topic, &group), "stream"));
            all.push((keys.group_state(topic, &group), "hash"));
        }
        Ok(all)
    }

    /// Returns the groups of a topic; empty where their list has a wrong type, which the check of types reports.
    async fn groups_if_any(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        match self.groups(topic).await {
            Err(error) if error.kind() == ErrorKind::WrongType => Ok(Vec::new()),
            other => other,
        }
    }

    pub(super) async fn groups_of(&self, scope: &Scope, tp: &TopicPartition) -> Result<Audited> {
        let keys = &self.inner.keys;
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XINFO").arg("GROUPS").arg(keys.log(tp).as_str());
        let answer = self.ask(&pipe).await?.pop().unwrap_or_default();
        if reply::is_missing_key(&answer) {
            return Ok(Audited::default());
        }
        let mut names = Vec::new();
        for info in reply::array(answer)? {
            for (name, value) in reply::pairs(info)? {
                if &*reply::bytes(name)? == b"name" {
                    names.push(reply::text(value)?);
                }
            }
        }
        let mut page = Audited::new(names.len() as u64);
        // Read the list after the logs: a group is listed before it is created on the logs.
        let listed = self.listed(&keys.topic_groups(&tp.topic), &names).await?;
        for (name, _) in names.iter().zip(listed).filter(|(_, listed)| !listed) {
            let fault = match GroupName::new(name) {
                // One of ours has a retry log: another program creates none.
                Ok(group) if self.is_on_retry_log(tp, &group).await? => Fault::GroupForgotten,
                _ => Fault::GroupUnlisted,
            };
            page.findings.push(Finding::new(fault, scope, name, "on the log"));
        }
        Ok(page)
    }

    /// Returns whether groups of Millstream are on the logs of a topic and not in its list. Those of other programs are not listed, and
    /// hold up a trim: `verify` names them. A group is on all logs, so the first one that has any decides.
    pub(in crate::roles) async fn has_own_groups(&self, spec: &TopicSpec) -> Result<bool> {
        for tp in spec.iter() {
            let found = self.groups_of(&Scope::Partition(tp.clone()), &tp).await?;
            if found.looked_at > 0 {
                return Ok(found.findings.iter().any(|it| it.fault == Fault::GroupForgotten));
            }
        }
        Ok(false)
    }

    async fn is_on_retry_log(&self, tp: &TopicPartition, group: &GroupName) -> Result<bool> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XINFO").arg("GROUPS").arg(self.inner.keys.retry_log(tp, group).as_str());
        let groups = self.ask(&pipe).await?.pop().unwrap_or_default();
        match reply::group(groups, group.as_str()) {
            // The check of types reports this.
            Err(error) if error.kind() == ErrorKind::WrongType => Ok(false),
            there => Ok(there?.is_some()),
        }
    }

    /// Adds a group to the list of its topic again, unless it was deleted.
    pub(super) async fn list_group(&self, tp: &TopicPartition, name: &str) -> Result<bool> {
        match self.list_again(&tp.topic, &GroupName::new(name)?).await {
            Err(error) if error.kind() == ErrorKind::Deleted => Ok(false),
            listed => listed.map(|()| true),
        }
    }

    /// Checks that a delay queue is listed and has settings.
    pub(super) async fn queue_of(&self, scope: &Scope, queue: &QueueName) -> Result<Audited> {
        let mut page = Audited::new(1);
        let listed = self.listed(&self.inner.keys.queues(), &[queue.as_str()]).await? == [true];
        let fault = match self.inner.queue(queue).await {
            Ok(_) if listed => return Ok(page),
            Ok(_) => Fault::QueueUnlisted,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(page),
            Err(error) if error.kind() == ErrorKind::Protocol => {
                let meta = self.inner.keys.queue_meta(queue);
                let mut pipe = Pipeline::with_capacity(1);
                pipe.cmd("HLEN").arg(meta.as_str());
                let fields = reply::count(self.ask(&pipe).await?.pop().unwrap_or_default())?;
                let fault = if fields == 0 { Fault::QueueWithoutSettings } else { Fault::SettingsDamaged };
                page.findings.push(Finding::new(fault, scope, meta.as_str(), error.to_string()));
                return Ok(page);
            }
            Err(error) => return Err(error),
        };
        page.findings.push(Finding::new(fault, scope, queue.as_str(), "not in the list"));
        Ok(page)
    }

    /// Adds a delay queue to the list again, if it has settings.
    pub(super) async fn list_queue(&self, queue: &QueueName) -> Result<bool> {
        let list = self.inner.keys.queues();
        let [_, settings] = self.inner.keys.patterns_of_settings();
        self.inner.list_name(&list, &settings, queue.as_str()).await?;
        match self.inner.queue(queue).await {
            Ok(_) => Ok(true),
            // It was deleted meanwhile: its settings are the last that goes.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Protocol) => {
                self.inner.unlist(&list, queue.as_str()).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns which of these members are in a set.
    pub(super) async fn listed<T: AsRef<str>>(&self, set: &Key, members: &[T]) -> Result<Vec<bool>> {
        let mut listed = Vec::with_capacity(members.len());
        for chunk in members.chunks(CHUNK) {
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("SMISMEMBER").arg(set.as_str());
            for member in chunk {
                pipe.arg(member.as_ref());
            }
            let answer = self.ask(&pipe).await?.pop().unwrap_or_default();
            for one in reply::array(answer).map_err(|error| error.during(format_args!("look at {set}")))? {
                listed.push(reply::int(one)? == 1);
            }
        }
        Ok(listed)
    }

    pub(super) async fn catalog_of(&self, scope: &Scope, topic: &TopicName) -> Result<Audited> {
        let keys = &self.inner.keys;
        let partitions = keys.topic_partitions(topic);
        let mut page = Audited::new(1);
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("SISMEMBER").arg(keys.topics().as_str()).arg(topic.as_str());
        pipe.cmd("SCARD").arg(partitions.as_str());
        let [listed, card] = reply::tuple(Value::Array(self.ask(&pipe).await?))?;
        let (listed, card) = (reply::int(listed)? == 1, reply::count(card)?);
        let mut found = |fault, id: &str, detail: String| {
            page.findings.push(Finding::new(fault, scope, id, detail));
        };
        let spec = match self.topic(topic).await {
            Ok(spec) => spec,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if self.is_being_deleted(topic).await? {
                    let detail = format!("topic {topic}, {card} partitions are listed");
                    found(Fault::DeletionUnfinished, topic.as_str(), detail);
                } else if listed {
                    let detail = format!("{card} partitions are listed");
                    found(Fault::TopicWithoutSettings, topic.as_str(), detail);
                }
                return Ok(page);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported) => {
                self.check_format(topic).await?;
                found(Fault::SettingsDamaged, keys.topic_meta(topic).as_str(), error.to_string());
                return Ok(page);
            }
            Err(error) => return Err(error),
        };
        if !listed {
            found(Fault::TopicUnlisted, topic.as_str(), format!("{} partitions", spec.partitions));
        }
        let logs: Vec<String> = spec.iter().map(|tp| keys.log(&tp).to_string()).collect();
        let known = self.listed(&partitions, &logs).await?;
        for (log, _) in logs.iter().zip(&known).filter(|(_, known)| !**known) {
            found(Fault::PartitionUnlisted, log, "not in the list".to_owned());
        }
        let there = known.iter().filter(|known| **known).count();
        if card > there {
            let detail = format!("{card} are listed, {} should be", spec.partitions);
            found(Fault::PartitionsUnfinished, topic.as_str(), detail);
        }
        page.looked_at += logs.len() as u64;
        self.states_of_groups(scope, topic, &mut page).await?;
        Ok(page)
    }

    /// Returns whether a log of the topic has packs, by the list of them.
    async fn has_packs(&self, spec: &TopicSpec) -> Result<bool> {
        let mut pipe = Pipeline::with_capacity(1);
        for tp in spec.iter() {
            pipe.cmd("EXISTS").arg(self.inner.keys.packs(&tp).as_str());
        }
        Ok(self.ask(&pipe).await?.contains(&Value::Int(1)))
    }

    async fn is_being_deleted(&self, topic: &TopicName) -> Result<bool> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HEXISTS").arg(self.inner.keys.topic_meta(topic).as_str()).arg("deleting");
        Ok(reply::int(self.ask(&pipe).await?.pop().unwrap_or_default())? == 1)
    }

    async fn states_of_groups(&self, scope: &Scope, topic: &TopicName, page: &mut Audited) -> Result<()> {
        for chunk in self.groups_if_any(topic).await?.chunks(CHUNK) {
            let states: Vec<Key> =
                chunk.iter().map(|group| self.inner.keys.group_state(topic, group)).collect();
            let mut pipe = Pipeline::with_capacity(chunk.len());
            for state in &states {
                pipe.cmd("HMGET").arg(state.as_str()).arg(&["deleting", "paused"]);
            }
            for ((group, state), answer) in chunk.iter().zip(&states).zip(self.ask(&pipe).await?) {
                let [deleting, paused] = match reply::tuple(answer) {
                    // The check of types reports this.
                    Err(error) if error.kind() == ErrorKind::WrongType => continue,
                    other => other?,
                };
                let mut found = |fault, id: &str, detail: String| {
                    page.findings.push(Finding::new(fault, scope, id, detail));
                };
                if deleting != Value::Nil {
                    found(Fault::DeletionUnfinished, group.as_str(), format!("group {group}"));
                }
                if let Some(paused) = reply::maybe_bytes(paused)?
                    && !is_number(&paused)
                {
                    let since = String::from_utf8_lossy(&paused);
                    found(Fault::SettingsDamaged, state.as_str(), format!("paused since {since:?}"));
                }
            }
        }
        Ok(())
    }

    pub(super) async fn repair_topic(&self, topic: &TopicName, fault: Fault) -> Result<bool> {
        let scope = Scope::Topic(topic.clone());
        let found = self.catalog_of(&scope, topic).await?.findings;
        if !found.iter().any(|finding| finding.fault == fault) {
            return Ok(false);
        }
        if fault != Fault::TopicWithoutSettings {
            let stored = self.topic(topic).await?;
            return self.create_topic(&stored).await.map(|_| true);
        }
        let keys = &self.inner.keys;
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SCARD").arg(keys.topic_partitions(topic).as_str());
        let answer = self.ask(&pipe).await?.pop().unwrap_or_default();
        let partitions = u32::try_from(reply::count(answer)?).unwrap_or(u32::MAX);
        if partitions > 0 {
            // The former retention is unknown: keep everything.
            let mut spec = TopicSpec::new(topic.clone(), partitions)?.with_retention(Retention::Keep);
            if self.has_packs(&spec).await? {
                // Packs say themselves how they are compressed.
                spec = spec.with_packing(Some(Packing::new().compression(PackCompression::None)));
            }
            match self.restore_topic(&spec).await {
                // Created again since the check.
                Err(error) if error.kind() == ErrorKind::Deleted && self.topic(topic).await.is_ok() => {
                    return Ok(false);
                }
                // The topic was deleted on purpose and is only left in the list: remove it there.
                Err(error) if error.kind() == ErrorKind::Deleted => {}
                other => return other.map(|_| true),
            }
        }
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SREM").arg(keys.topics().as_str()).arg(topic.as_str());
        Ok(reply::int(self.ask(&pipe).await?.pop().unwrap_or_default())? == 1)
    }
}

/// Returns whether the text is a whole number that Lua counts exactly.
pub(super) fn is_number(text: &[u8]) -> bool {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    number.is_some_and(|number| number <= 1 << 53)
}
