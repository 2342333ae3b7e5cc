//! Dead tasks: parsed from their entries, listed, replayed and purged.

use millstream_core::dead_letters::Reason;
use millstream_core::error::{Error, Result};
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::schedule::{ScheduleId, Shard};
use millstream_core::tasks::DeadTask;
use millstream_core::wire::{Field, Fields, PACKED};
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::queue::scheduling::known;
use crate::scripts::script;
use crate::stored::item;

/// Maximum number of dead tasks on one page.
const MAX_PAGE: usize = 1_000;
/// Maximum size of a page in bytes of bodies: a page that reaches it ends early.
const PAGE_BYTES: usize = 4 << 20;
/// Number of tasks in the first read, when their size is not known yet.
const PORTION: usize = 4;
/// Maximum number of tasks of one call of the script `replay_tasks`.
const REPLAY_CHUNK: usize = 100;
/// Maximum number of ids of one XDEL.
const PURGE_CHUNK: usize = 1_000;
/// Fields in front of the body, in this order.
const LEAD: [&str; 7] = ["reason", "attempts", "error", "history", "task", "queue", "shard"];

/// Parses an entry. An entry of somebody else is returned too: with an empty reason, and with itself as the body.
fn read(id: MessageId, shard: &Shard, fields: &[Field]) -> Result<DeadTask> {
    let ours = fields.len() >= LEAD.len() && LEAD.iter().zip(fields).all(|(name, (n, _))| n == name);
    let (lead, body) = fields.split_at(if ours { LEAD.len() } else { 0 });
    let text = |nth: usize| lead.get(nth).map_or_else(String::new, lossy);
    // A task without a valid id is returned under the id of its entry.
    let task = lead.get(4).and_then(|(_, task)| known(task));
    let task = task.map_or_else(|| ScheduleId::new(id.to_string()), Ok)?;
    Ok(DeadTask {
        id,
        shard: shard.clone(),
        task,
        reason: Reason::parse(&text(0)),
        attempts: text(1).parse().unwrap_or(0),
        error: text(2),
        history: History::parse(&text(3)),
        body: whole(body),
    })
}

fn lossy((_, value): &Field) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Returns the original body: a script packs a body that has too many fields.
fn whole(body: &[Field]) -> Fields {
    match body {
        [(name, packed)] if name == PACKED => {
            item::unpack::<0>(packed).map_or_else(|| body.to_vec(), |(_, fields)| fields)
        }
        body => body.to_vec(),
    }
}

impl Inner {
    pub(crate) async fn list_dead(
        &self,
        shard: &Shard,
        after: MessageId,
        limit: usize,
    ) -> Result<Vec<DeadTask>> {
        if limit == 0 || after == MessageId::MAX {
            return Ok(Vec::new());
        }
        let key = self.keys.dead_tasks(shard);
        let (limit, mut page) = (limit.min(MAX_PAGE), Vec::new());
        let (mut after, mut bytes, mut largest) = (after, 0, 0);
        while page.len() < limit && bytes < PAGE_BYTES {
            let portion = if page.is_empty() { PORTION } else { (PAGE_BYTES - bytes) / largest.max(1) };
            let portion = portion.clamp(1, limit - page.len());
            let mut pipe = Pipeline::new();
            pipe.cmd("XRANGE").arg(key.as_str()).arg(format!("({after}")).arg("+");
            pipe.arg("COUNT").arg(portion);
            let answer = self.bulk.send(&pipe).await?.pop().unwrap_or(Value::Nil);
            let entries = reply::entries(answer).map_err(|error| error.during(format_args!("list {key}")))?;
            let last = entries.len() < portion;
            for (id, fields) in entries {
                let fields = fields.unwrap_or_default();
                let size = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
                (after, bytes, largest) = (id, bytes + size, largest.max(size));
                page.push(read(id, shard, &fields)?);
            }
            if last || after == MessageId::MAX {
                break;
            }
        }
        Ok(page)
    }

    pub(crate) async fn replay_dead(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        let (keys, place) = (&self.keys, shard.clone().into());
        let keys = [
            keys.dead_tasks(shard),
            keys.delay(&place),
            keys.delay_items(&place),
            keys.claims(shard),
            keys.wake(&place),
        ];
        let mut moved = 0;
        let mut rest = ids;
        while !rest.is_empty() {
            let chunk = rest.get(..REPLAY_CHUNK).unwrap_or(rest);
            let mut call = self.scripts.replay_tasks.call(keys.each_ref());
            for id in chunk {
                call.push(id.to_string());
            }
            let [replayed, done] = reply::tuple(script::run_one(&self.pool, call).await?)?;
            moved += reply::count(replayed)?;
            rest = script::behind(rest, reply::count(done)?)?;
        }
        Ok(moved)
    }

    /// Deletes all current entries, oldest first and in parts: whole nodes of the stream first, then the rest of one.
    pub(crate) async fn purge_all_dead(&self, shard: &Shard) -> Result<usize> {
        let key = self.keys.dead_tasks(shard);
        let during = |error: Error| error.during(format_args!("purge {key}"));
        let mut pipe = Pipeline::new();
        pipe.cmd("XREVRANGE").arg(key.as_str()).arg("+").arg("-").arg("COUNT").arg(1);
        let newest = self.pool.send(&pipe).await?.pop().unwrap_or(Value::Nil);
        let Some((newest, _)) = reply::entries(newest).map_err(during)?.pop() else { return Ok(0) };
        self.drop_through(&key, newest).await
    }

    pub(crate) async fn purge_dead(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        let key = self.keys.dead_tasks(shard);
        let during = |error: Error| error.during(format_args!("purge {key}"));
        let mut purged = 0;
        for chunk in ids.chunks(PURGE_CHUNK) {
            let mut pipe = Pipeline::new();
            pipe.cmd("XDEL").arg(key.as_str());
            for id in chunk {
                pipe.arg(id.to_string());
            }
            let answer = self.pool.send(&pipe).await?.pop().unwrap_or(Value::Nil);
            purged += reply::count(answer).map_err(during)?;
        }
        Ok(purged)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn an_entry_of_somebody_else_is_all_body() {
        let shard = Shard::new("mails".parse().expect("name"), 0);
        let foreign: Fields = vec![("reason".into(), "x".into()), ("task".into(), "t".into())];
        let id = MessageId::new(5, 1);
        let dead = read(id, &shard, &foreign).expect("shown");
        assert_eq!((dead.task.as_str(), dead.reason.as_str(), dead.body), ("5-1", "", foreign));

        let mut ours: Fields =
            LEAD.iter().map(|name| (Bytes::from_static(name.as_bytes()), "7".into())).collect();
        let body: Fields = vec![("payload".into(), "p".into())];
        ours.push(("packed".into(), item::pack(&[], &body).expect("packed").into()));
        let dead = read(id, &shard, &ours).expect("read");
        assert_eq!((dead.task.as_str(), dead.attempts, dead.body), ("7", 7, body));
    }
}
