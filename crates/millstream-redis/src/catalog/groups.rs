//! Groups as a whole: registered, restored, paused, and remembered as deleted.

use millstream_core::catalog::{GroupState, REMEMBERED};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::name::{GroupName, TopicName};
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use super::{Mode, create_command, created};
use crate::backend::RedisBackend;
use crate::connection::Line;
use crate::error::unexpected;
use crate::{reply, script};

/// How far the deletion of a group has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Begin,
    End,
    /// At the end it turned out that there was no such group.
    Never,
}

/// What is answered of a group that was deleted.
pub(crate) fn gone(topic: &TopicName, group: &GroupName) -> Error {
    Error::new(ErrorKind::Deleted, format!("group {group} of topic {topic} was deleted"))
}

impl RedisBackend {
    /// True if the group was not registered before.
    pub(super) async fn register(&self, topic: &TopicName, group: &GroupName, mode: Mode) -> Result<bool> {
        let keys = &self.inner.keys;
        let (groups, state) = (keys.topic_groups(topic), keys.group_state(topic, group));
        let call = self.inner.scripts.create_group.call([&groups, &state]);
        let call = call.args([mode.as_str(), group.as_str()]);
        let answer = script::run_one(&self.inner.pool, call).await.map_err(|error| match error.kind() {
            ErrorKind::Deleted if mode == Mode::Create => {
                let why = format!(
                    "group {group} of topic {topic} is being deleted: delete it again if that was stopped"
                );
                Error::new(ErrorKind::Deleted, why)
            }
            ErrorKind::Deleted => gone(topic, group),
            _ => error.during(format_args!("register group {group} of {topic}")),
        })?;
        Ok(reply::int(answer)? == 1)
    }

    /// Marks a group as being deleted or deleted. True if there is one, as far as that is written down.
    pub(super) async fn forget_group(
        &self,
        topic: &TopicName,
        group: &GroupName,
        stage: Stage,
    ) -> Result<bool> {
        let keys = &self.inner.keys;
        let (groups, state) = (keys.topic_groups(topic), keys.group_state(topic, group));
        let call = self.inner.scripts.forget_group.call([&groups, &state, &keys.changes(topic, group)]);
        let word = match stage {
            Stage::Begin => "begin",
            Stage::End => "end",
            Stage::Never => "never",
        };
        let call = call.args([word, group.as_str()]).arg(millis());
        Ok(reply::int(script::run_one(&self.inner.pool, call).await?)? == 1)
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
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        Ok(reply::int(answer)? == 1)
    }

    pub(super) async fn stored_state(&self, topic: &TopicName, group: &GroupName) -> Result<GroupState> {
        let key = self.inner.keys.group_state(topic, group);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(key.as_str()).arg(&["paused", "deleting"]);
        let [paused, deleting] = reply::tuple(self.inner.one(&key, &pipe).await?)?;
        let mut state = GroupState::new();
        state.deleting = deleting != Value::Nil;
        if paused != Value::Nil {
            let since = reply::text(paused)?;
            state.paused =
                Some(since.parse().map_err(|_| unexpected(format_args!("{key} is paused since {since:?}")))?);
        }
        Ok(state)
    }

    pub(super) async fn restore_on(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        after: MessageId,
    ) -> Result<bool> {
        let keys = &self.inner.keys;
        let topic = &topic_partition.topic;
        let (log, retry_log) = (keys.log(topic_partition), keys.retry_log(topic_partition, group));
        // A group of a topic that was deleted would bring a part of it back.
        self.stored_topic(topic).await?;
        // Whatever lost the group may have lost the set as well.
        self.register(topic, group, Mode::Restore).await?;
        let mut pipe = Pipeline::new();
        pipe.cmd("XINFO").arg("STREAM").arg(log.as_str());
        let info = self.inner.pool.send(&pipe).await?.pop().unwrap_or_default();
        let newest =
            newest_id(info).map_err(|error| error.during(format_args!("restore a group on {log}")))?;
        // A log that ends below `after` is not the one that `after` was read from: it was deleted, or a
        // fail-over lost its end. What is in it, or comes with a smaller id, may never have been read.
        let after = if newest >= after { after } else { MessageId::ZERO };

        let mut pipe = Pipeline::with_capacity(2);
        create_command(&mut pipe, &log, group, &after.to_string());
        create_command(&mut pipe, &retry_log, group, "0");
        let [on_log, on_retry_log] = reply::tuple(Value::Array(self.inner.pool.send(&pipe).await?))?;
        let missing = created(on_log, &log)?;
        created(on_retry_log, &retry_log)?;
        self.undo_if_deleted(std::slice::from_ref(topic_partition), group).await?;
        Ok(missing)
    }

    /// Somebody may have begun to delete a group while it was created, and have been everywhere already: then it goes.
    pub(super) async fn undo_if_deleted(&self, on: &[TopicPartition], group: &GroupName) -> Result<()> {
        let keys = &self.inner.keys;
        let Some(TopicPartition { topic, .. }) = on.first() else { return Ok(()) };
        let state = keys.group_state(topic, group);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(state.as_str()).arg(&["deleting", "deleted"]);
        if self.inner.one(&state, &pipe).await? == Value::Array(vec![Value::Nil, Value::Nil]) {
            return Ok(());
        }
        for tp in on {
            let mut pipe = Pipeline::with_capacity(2);
            pipe.cmd("XGROUP").arg("DESTROY").arg(keys.log(tp).as_str()).arg(group.as_str());
            pipe.cmd("UNLINK").arg(keys.retry_log(tp, group).as_str());
            self.inner.pool.send(&pipe).await?;
        }
        Err(gone(topic, group))
    }
}

/// For how long it is remembered that something was deleted.
pub(super) fn millis() -> u64 {
    u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX)
}

/// The largest id a stream ever had; zero if there is none.
fn newest_id(info: Value) -> Result<MessageId> {
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
