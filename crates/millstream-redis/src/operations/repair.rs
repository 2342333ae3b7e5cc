//! Repairs of a group, which owners make too, and messages of which a repair knows the id alone.

use millstream_core::audit::{Fault, Finding, Loss};
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::log::Source;
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use millstream_core::wire::Fields;
use millstream_packing::{Unpacked, dictionary_of, unpack_with};
use redis::Pipeline;

use crate::backend::{CONSUMER, RedisBackend};
use crate::conn::replies::reply;
use crate::entries::unpacking::{cannot_read, named};
use crate::error::unexpected;
use crate::scripts::script;
use crate::stored::note;

/// Maximum number of calls of a repair that continues as long as it finds something.
const MAX_CALLS: usize = 10_000;

/// What the log has of a message.
enum InLog {
    Gone,
    /// An entry of its own.
    Entry,
    /// A pack, with the message; or the reason why it cannot be read.
    InPack(Result<Fields>),
}

/// Splits a finding's `<source>:<id>`; an id without a source belongs to the log.
pub(crate) fn split(id: &str) -> (Source, &str) {
    match id.split_once(':') {
        Some(("retry", id)) => (Source::Retry, id),
        Some(("log", id)) => (Source::Log, id),
        _ => (Source::Log, id),
    }
}

impl RedisBackend {
    /// Repairs a finding of a group. Returns whether it still held.
    pub(crate) async fn repair_group(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        finding: &Finding,
    ) -> Result<bool> {
        let keys = &self.inner.keys;
        let (source, id) = match finding.fault {
            Fault::RetryLeaked => (Source::Retry, finding.id.as_str()),
            Fault::PositionAhead => (split(&finding.id).0, ""),
            _ => split(&finding.id),
        };
        let (mut is_lost, mut body) = (finding.fault == Fault::Ghost, Vec::new());
        if finding.fault == Fault::RetryLost {
            match self.in_log(tp, id).await? {
                InLog::Entry => {}
                InLog::InPack(Ok(message)) => body = message,
                InLog::InPack(Err(error)) => {
                    tracing::warn!(%tp, id, "a lost retry is in a pack that cannot be read now: {error}");
                    return Ok(false);
                }
                // Only a dead letter without a body is left of the message.
                InLog::Gone => is_lost = true,
            }
        }
        let mut messages = 0;
        for _ in 0..MAX_CALLS {
            let call = self.inner.scripts.repair.call([
                &self.inner.stream(tp, group, source),
                &keys.retry_due(tp, group),
                &keys.retry_items(tp, group),
                &keys.held(tp, group),
                &keys.dead_letters(tp, group),
                &keys.lease(tp, group),
                &keys.fence(tp, group),
                &keys.packs(tp),
                &keys.settled(tp, group),
            ]);
            let words = [finding.fault.as_str(), note::word(source), group.as_str(), id, CONSUMER];
            let mut call = call.args(words).arg(tp.topic.as_str()).arg(tp.partition.0);
            if body.is_empty() {
                call.push("");
            }
            for (name, value) in &body {
                call.extend([&name[..], &value[..]]);
            }
            let now = reply::count(script::run_one(&self.inner.pool, call).await?)? as u64;
            messages += now;
            // A consumer may have more entries than one call moves.
            if now == 0 || finding.fault != Fault::ConsumerStray {
                break;
            }
        }
        if messages > 0 && is_lost {
            self.record_loss(&finding.scope, Loss::new(0, messages, 0, None)).await?;
        }
        Ok(messages > 0)
    }

    /// Returns what the log has of the message with this id. Text that is no id belongs to none.
    async fn in_log(&self, tp: &TopicPartition, id: &str) -> Result<InLog> {
        let Ok(id) = id.parse::<MessageId>() else { return Ok(InLog::Gone) };
        let log = self.inner.keys.log(tp);
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(log.as_str()).arg(id.to_string()).arg("+").arg("COUNT").arg(1);
        let found = reply::entries(self.inner.one(&log, &pipe).await?)?.pop();
        let Some((entry, Some(fields))) = found else { return Ok(InLog::Gone) };
        if entry != id && self.inner.first_message_of(tp, entry).await? > id {
            return Ok(InLog::Gone);
        }
        if !millstream_packing::is_pack(&fields) {
            return Ok(InLog::Entry);
        }
        let needed = dictionary_of(&fields).into_iter().collect();
        let dictionaries = self.inner.dictionaries_for(&tp.topic, needed).await?;
        let read = match unpack_with(&fields, |name| named(&dictionaries, name)) {
            Ok(Unpacked::Messages(messages)) => {
                let behind = usize::try_from(entry.seq - id.seq).unwrap_or(usize::MAX);
                messages.into_iter().rev().nth(behind).ok_or_else(|| "it has fewer messages".to_owned())
            }
            Ok(Unpacked::One) => Err("it is none".to_owned()),
            Err(error) => return Ok(InLog::InPack(Err(cannot_read(entry, &error)))),
        };
        Ok(InLog::InPack(read.map_err(|why| unexpected(format_args!("pack {entry}: {why}")))))
    }
}
