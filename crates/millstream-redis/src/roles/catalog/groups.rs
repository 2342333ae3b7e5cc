//! Groups as a whole: registered, restored, paused, and remembered as deleted.

use millstream_core::Timestamp;
use millstream_core::audit::Scope;
use millstream_core::catalog::{GroupState, REMEMBERED};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::name::{GroupName, TopicName};
use millstream_core::topic::{Partition, TopicPartition, TopicSpec};
use redis::{Pipeline, Value};

use super::Mode;
use super::deleting::Deletion;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::stored::losses::StreamInfo;

/// Stage of a group's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupStage {
    Begin,
    End,
    /// The last stage where no such group was found.
    Never,
    /// The group is deleted with its topic.
    Topic,
}

/// Returns the error for a group that was deleted.
pub(crate) fn gone(topic: &TopicName, group: &GroupName) -> Error {
    Error::new(ErrorKind::Deleted, format!("group {group} of topic {topic} was deleted")).at(topic)
}

impl RedisBackend {
    /// Registers a group if it is not registered. Returns the start position for partitions that it was never on;
    /// `None` if, as far as is known, it was on all of them.
    pub(super) async fn register(
        &self,
        topic: &TopicName,
        group: &GroupName,
        mode: Mode,
        start: &str,
    ) -> Result<Option<String>> {
        let keys = &self.inner.keys;
        let (groups, state) = (keys.topic_groups(topic), keys.group_state(topic, group));
        let call = self.inner.scripts.create_group.call([&groups, &state]);
        let call = call.args([mode.as_str(), group.as_str(), start]);
        let answer = script::run_one(&self.inner.pool, call).await.map_err(|error| match error.kind() {
            ErrorKind::Deleted if mode == Mode::Create => {
                let why = format!(
                    "group {group} of topic {topic} is being deleted: delete it again if that was stopped"
                );
                Error::new(ErrorKind::Deleted, why).at(topic)
            }
            ErrorKind::Deleted => gone(topic, group),
            _ => error.during(format_args!("register group {group} of {topic}")).at(topic),
        })?;
        let [_new, starts] = reply::tuple(answer)?;
        if starts == Value::Nil { Ok(None) } else { reply::text(starts).map(Some) }
    }

    /// Adds a group to the list of its topic again. Fails for one that was deleted.
    #[cfg(feature = "admin")]
    pub(crate) async fn list_again(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        // A topic that is gone has no list.
        self.stored_topic(topic).await?;
        self.register(topic, group, Mode::Restore, "").await.map(drop)
    }

    /// Creates a group on partitions that were added since `topic` was read, and returns those where it was missing.
    /// The caller of `expand` may have listed the groups before this one was registered. So every caller that creates
    /// a group checks the topic again afterwards.
    pub(super) async fn follow_growth(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Partition>> {
        let (mut known, mut missing) = (topic.partitions, Vec::new());
        loop {
            let stored = match self.stored_topic(&topic.name).await {
                Ok(stored) if stored.partitions > known => stored,
                // A group can be created before its topic exists, and after the topic was deleted.
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Deleted) => {
                    return Err(error);
                }
                _ => return Ok(missing),
            };
            let new: Vec<TopicPartition> = stored.iter().skip(known as usize).collect();
            // From the beginning, as if the group had existed when the partition was added.
            missing
                .extend(self.create_on(&new, group, "0").await?.into_iter().map(|(partition, _)| partition));
            self.undo_if_deleted(&new, group).await?;
            known = stored.partitions;
        }
    }

    /// Records that a group is on all partitions: from now on a missing one was lost.
    pub(super) async fn is_everywhere(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        let key = self.inner.keys.group_state(topic, group);
        let mut pipe = Pipeline::new();
        pipe.cmd("HDEL").arg(key.as_str()).arg("starts");
        self.inner.one(&key, &pipe).await.map(drop)
    }

    /// Marks a group as being deleted. Returns the deletion under way, and whether the stored state has the group.
    pub(super) async fn begin_to_forget(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<(Deletion, bool)> {
        let call = self.forgetting(topic, group, GroupStage::Begin, &Deletion::new());
        let [deletion, known] = reply::tuple(script::run_one(&self.inner.pool, call).await?)?;
        Ok((Deletion(reply::text(deletion)?), reply::int(known)? == 1))
    }

    /// Removes the keys that groups have for the whole topic, and the mark with them, if the deletion is still the
    /// same.
    pub(super) async fn forget_groups<'a>(
        &self,
        topic: &TopicName,
        groups: impl IntoIterator<Item = &'a GroupName>,
        stage: GroupStage,
        deletion: &Deletion,
    ) -> Result<()> {
        let calls: Vec<_> =
            groups.into_iter().map(|group| self.forgetting(topic, group, stage, deletion)).collect();
        if calls.is_empty() {
            return Ok(());
        }
        script::run(&self.inner.pool, calls).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    fn forgetting(
        &self,
        topic: &TopicName,
        group: &GroupName,
        stage: GroupStage,
        deletion: &Deletion,
    ) -> Call<'_> {
        let keys = &self.inner.keys;
        let (groups, state, changes) =
            (keys.topic_groups(topic), keys.group_state(topic, group), keys.changes(topic, group));
        let (members, member, assignment) =
            (keys.members(topic, group), keys.member(topic, group), keys.assignment(topic, group));
        let meta = keys.topic_meta(topic);
        let script = &self.inner.scripts.forget_group;
        let call = script.call([&groups, &state, &changes, &members, &member, &assignment, &meta]);
        let word = match stage {
            GroupStage::Begin => "begin",
            GroupStage::End => "end",
            GroupStage::Never => "never",
            GroupStage::Topic => "topic",
        };
        call.args([word, deletion.as_str(), group.as_str()]).arg(millis())
    }

    pub(super) async fn store_paused(
        &self,
        topic: &TopicName,
        group: &GroupName,
        paused: bool,
    ) -> Result<bool> {
        let keys = &self.inner.keys;
        self.stored_topic(topic).await?;
        let (groups, state) = (keys.topic_groups(topic), keys.group_state(topic, group));
        let call = self.inner.scripts.pause_group.call([&groups, &state, &keys.changes(topic, group)]);
        let call = call.arg(group.as_str()).arg(u8::from(paused));
        let answer = script::run_one(&self.inner.pool, call).await.map_err(|error| match error.kind() {
            ErrorKind::Deleted => gone(topic, group),
            _ => error,
        })?;
        if answer == Value::Nil {
            let why = format!("group {group} of topic {topic} does not exist");
            return Err(Error::new(ErrorKind::NotFound, why).at(topic));
        }
        Ok(reply::int(answer)? == 1)
    }

    pub(super) async fn stored_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        let key = self.inner.keys.group_state(topic, group);
        let mut pipe = Pipeline::new();
        state_command(&mut pipe, &key);
        state(&key, self.inner.one(&key, &pipe).await?)
    }

    pub(super) async fn restore_on(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool> {
        let keys = &self.inner.keys;
        let topic = &topic_partition.topic;
        let log = keys.log(topic_partition);
        // Check the topic: a group of a deleted topic would bring a part of it back.
        self.stored_topic(topic).await?;
        // The cause of the lost group may have removed the registration as well.
        self.register(topic, group, Mode::Restore, "").await?;
        let mut pipe = Pipeline::new();
        pipe.cmd("XINFO").arg("STREAM").arg(log.as_str());
        let info = self.inner.pool.send(&pipe).await?.pop().unwrap_or_default();
        let stream = StreamInfo::read(info)
            .map_err(|error| error.during(format_args!("restore a group on {log}")))?
            .unwrap_or_default();
        let newest = stream.last;
        // A log that ends below `after` is not the one from which `after` was read: it was deleted, or a fail-over
        // lost its end. Its entries, and later ones with smaller ids, may never have been read.
        let entry_lost = newest < after;
        let after = if entry_lost { MessageId::ZERO } else { after };

        let on = std::slice::from_ref(topic_partition);
        let missing = self.create_on(on, group, &after.to_string()).await?;
        self.undo_if_deleted(on, group).await?;
        if let [(_, was_there)] = &*missing {
            // Nor is one that begins above `after`, if nothing ever left it.
            if entry_lost || self.begins_above(topic_partition, &stream, after).await? {
                let loss = self.log_lost(topic_partition, group).await?;
                self.record_loss(&Scope::Group(topic_partition.clone(), group.clone()), loss).await?;
            } else if *was_there {
                self.record_if_log_lost(topic_partition, group).await?;
            }
        }
        Ok(!missing.is_empty())
    }

    /// Removes a group again if its deletion began while it was created: the deletion may have passed these partitions
    /// already.
    pub(super) async fn undo_if_deleted(&self, on: &[TopicPartition], group: &GroupName) -> Result<()> {
        let keys = &self.inner.keys;
        let Some(TopicPartition { topic, .. }) = on.first() else { return Ok(()) };
        let state = keys.group_state(topic, group);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(state.as_str()).arg(&["deleting", "deleted"]);
        for (at, tp) in on.iter().enumerate() {
            // Check before each step: once the group was created again, the partition belongs to the new one.
            if self.inner.one(&state, &pipe).await? == Value::Array(vec![Value::Nil, Value::Nil]) {
                return if at == 0 { Ok(()) } else { Err(gone(topic, group)) };
            }
            let mut pipe = Pipeline::with_capacity(2);
            pipe.cmd("XGROUP").arg("DESTROY").arg(keys.log(tp).as_str()).arg(group.as_str());
            pipe.cmd("UNLINK").arg(keys.retry_log(tp, group).as_str());
            self.inner.pool.send(&pipe).await?;
        }
        Err(gone(topic, group))
    }
}

/// Adds the command whose reply [`state`] takes.
pub(super) fn state_command(pipe: &mut Pipeline, key: &Key) {
    pipe.cmd("HMGET").arg(key.as_str()).arg(&["paused", "deleting"]);
}

/// Parses the stored state of a group.
pub(super) fn state(key: &Key, stored: Value) -> Result<GroupState> {
    let stored = reply::ok(stored).map_err(|error| error.during(format_args!("catalog {key}")))?;
    let [paused, deleting] = reply::tuple(stored)?;
    let mut state = GroupState::new();
    state.deleting = deleting != Value::Nil;
    if paused != Value::Nil {
        let since = reply::text(paused)?;
        let ms = since.parse().map_err(|_| unexpected(format_args!("{key} is paused since {since:?}")))?;
        state.paused = Some(Timestamp::from_millis(ms));
    }
    Ok(state)
}

/// Returns for how many milliseconds a deletion is remembered.
pub(super) fn millis() -> u64 {
    u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the largest id that a stream ever had; zero if there is no stream.
pub(super) fn newest_id(info: Value) -> Result<MessageId> {
    if reply::is_missing_key(&info) {
        return Ok(MessageId::ZERO);
    }
    for (name, value) in reply::pairs(reply::ok(info)?)? {
        if &*reply::bytes(name)? == b"last-generated-id" {
            return reply::id(value);
        }
    }
    Err(unexpected("a stream without a last id"))
}
