//! Messages of which a repair knows the id alone, as the log has them.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::topic::TopicPartition;
use millstream_core::wire::Fields;
use millstream_packing::{Unpacked, dictionary_of, unpack_with};
use redis::Pipeline;

use crate::backend::RedisBackend;
use crate::conn::replies::reply;
use crate::entries::unpacking::{cannot_read, named};
use crate::error::unexpected;

/// What the log has of a message.
pub(super) enum InLog {
    Gone,
    /// An entry of its own.
    Entry,
    /// A pack, with the message; or the reason why it cannot be read.
    InPack(Result<Fields>),
}

impl RedisBackend {
    /// Returns what the log has of the message with this id. Text that is no id belongs to none.
    pub(super) async fn in_log(&self, tp: &TopicPartition, id: &str) -> Result<InLog> {
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
