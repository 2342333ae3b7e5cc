//! The dead-letters role: range reads, and scripts that claim, settle and put back.

use async_trait::async_trait;
use millstream_core::dead_letters::{
    Claim, DeadLetter, DeadLetterAction, DeadLetterRetention, DeadLetters, IMPORT_MEMORY, MAX_HOLD, TrimBy,
    TrimmedLetters, check_body,
};
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::inspect::{Page, Range};
use millstream_core::keys::Key;
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use millstream_core::wire::{self, Field};
use redis::{Pipeline, Value};

use crate::backend::{Inner, RedisBackend};
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::scripts::script;
use crate::scripts::script::Call;

/// Maximum number of letters of one script call.
const CHUNK: usize = 100;
/// Approximate maximum of bytes of bodies that are sent with one script call.
const CHUNK_BYTES: usize = 1 << 20;
/// Approximate number of entries that one XTRIM drops.
const PURGE_CHUNK: usize = 1_000;

#[async_trait]
impl DeadLetters for RedisBackend {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>> {
        let key = self.inner.keys.dead_letters(topic_partition, group);
        let lead = |fields: &[Field]| Some(fields.len() - wire::split_dead(fields).1.len());
        let Page { items, more, .. } = self.page(&key, range, limit, lead).await?;
        let letters = items.into_iter().map(|stored| {
            DeadLetter::from_entry(stored.id, topic_partition.clone(), group.clone(), &stored.fields)
        });
        Ok(Page::new(letters.collect(), more))
    }

    async fn claim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>> {
        let (by, keys) = (claim.check()?, &self.inner.keys);
        let (dlq, claims) =
            (keys.dead_letters(topic_partition, group), keys.dead_claims(topic_partition, group));
        let (hold, left_too) = (millis(claim.hold).max(1), if claim.left_too { "1" } else { "" });
        let (mut claimed, mut rest) = (Vec::new(), ids);
        while !rest.is_empty() {
            let mut call = self.inner.scripts.claim_dead.call([&dlq, &claims]);
            call = call.arg(by).arg(hold).arg(left_too);
            for id in rest.iter().take(CHUNK) {
                call.push(id.to_string());
            }
            let (done, ids) = self.inner.done(call).await?;
            claimed.extend(ids.into_iter().flatten());
            rest = script::behind(rest, done)?;
        }
        Ok(claimed)
    }

    async fn settle(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        deeds.iter().try_for_each(|(_, deed)| deed.check())?;
        let keys = &self.inner.keys;
        let dlq = keys.dead_letters(topic_partition, group);
        let retry_log = keys.retry_log(topic_partition, group);
        let claims = keys.dead_claims(topic_partition, group);
        let unique = (keys.unique(topic_partition), keys.unique_retry(topic_partition, group));
        let keys = [&dlq, &retry_log, &claims, &unique.0, &unique.1];
        let (mut settled, mut rest) = (Vec::new(), deeds);
        while !rest.is_empty() {
            let mut call = self.inner.scripts.settle_dead.call(keys);
            call.push(by.unwrap_or_default());
            let mut bytes = 0;
            for (id, deed) in rest.iter().take(CHUNK) {
                if bytes > CHUNK_BYTES {
                    break;
                }
                call.push(id.to_string());
                match deed {
                    DeadLetterAction::Replay => call.extend(["replay", "0"]),
                    DeadLetterAction::ReplayAs(body) => {
                        call.push("replay");
                        bytes += push_fields(&mut call, body);
                    }
                    DeadLetterAction::Purge => call.extend(["purge", "0"]),
                    DeadLetterAction::Leave(left) => {
                        call.extend(["leave", "1"]);
                        call.push(millis(*left));
                    }
                }
            }
            let (done, ids) = self.inner.done(call).await?;
            settled.extend(ids.into_iter().flatten());
            rest = script::behind(rest, done)?;
        }
        Ok(settled)
    }

    async fn put(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>> {
        letters.iter().try_for_each(|letter| check_body(&letter.body))?;
        let keys = &self.inner.keys;
        let (dlq, imports) =
            (keys.dead_letters(topic_partition, group), keys.dead_imports(topic_partition, group));
        let (mut put, mut rest) = (Vec::with_capacity(letters.len()), letters);
        while !rest.is_empty() {
            let mut call = self.inner.scripts.put_dead.call([&dlq, &imports]);
            call = call.arg(if again { "1" } else { "" }).arg(millis(IMPORT_MEMORY));
            let mut bytes = 0;
            for letter in rest.iter().take(CHUNK) {
                if bytes > CHUNK_BYTES {
                    break;
                }
                let here = DeadLetter {
                    topic_partition: topic_partition.clone(),
                    group: group.clone(),
                    ..letter.clone()
                };
                call.push(letter.id.to_string());
                bytes += push_fields(&mut call, &wire::dead_letter(&here, &here.body));
            }
            let (done, ids) = self.inner.done(call).await?;
            put.extend(ids);
            rest = script::behind(rest, done)?;
        }
        Ok(put)
    }

    async fn purge_through(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        last: MessageId,
    ) -> Result<usize> {
        let key = self.inner.keys.dead_letters(topic_partition, group);
        self.inner.drop_through(&key, last).await
    }

    async fn trim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        self.trim_dead_by(topic_partition, group, retention, by).await
    }
}

/// Adds the number of values and then names and values. Returns their size in bytes.
fn push_fields(call: &mut Call<'_>, fields: &[Field]) -> usize {
    call.push(2 * fields.len());
    let mut bytes = 0;
    for (name, value) in fields {
        call.extend([&name[..], &value[..]]);
        bytes += name.len() + value.len();
    }
    bytes
}

/// Returns milliseconds, rounded up.
fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.min(MAX_HOLD).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Inner {
    /// Runs one of these scripts. Returns how many of the letters it processed, and their ids, where '' becomes
    /// `None`.
    async fn done(&self, call: Call<'_>) -> Result<(usize, Vec<Option<MessageId>>)> {
        let [done, ids] = reply::tuple(script::run_one(&self.pool, call).await?)?;
        let id = |value: Value| {
            let id = reply::bytes(value)?;
            if id.is_empty() { Ok(None) } else { MessageId::from_bytes(&id).map(Some) }
        };
        Ok((reply::count(done)?, reply::array(ids)?.into_iter().map(id).collect::<Result<_>>()?))
    }

    /// Drops all entries of a stream up to an id, oldest first and in parts: whole nodes of the stream first, then the
    /// rest of one.
    pub(crate) async fn drop_through(&self, key: &Key, last: MessageId) -> Result<usize> {
        let mut dropped = 0;
        for how in ["~", "="] {
            loop {
                let mut pipe = Pipeline::new();
                pipe.cmd("XTRIM").arg(key.as_str()).arg("MINID").arg(how).arg(last.next().to_string());
                if how == "~" {
                    pipe.arg("LIMIT").arg(PURGE_CHUNK);
                }
                let answer = self.pool.send(&pipe).await?.pop().unwrap_or(Value::Nil);
                let trimmed =
                    reply::count(answer).map_err(|error| error.during(format_args!("purge {key}")))?;
                dropped += trimmed;
                if trimmed == 0 || how == "=" {
                    break;
                }
            }
        }
        Ok(dropped)
    }
}
