//! Numbers of messages in ranges of packed logs: the entries, and what their packs hold beyond one message each.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;

/// A pack, as the stream of packs has it.
#[derive(Clone, Copy)]
struct Pack {
    id: MessageId,
    count: u64,
    /// Messages beyond one an entry, in this pack and all before it.
    more: u64,
}

/// What is known of an id.
struct Around {
    /// The newest pack up to it.
    up_to: Option<Pack>,
    /// The oldest pack above it.
    above: Option<Pack>,
}

impl Around {
    /// Returns the messages beyond one an entry up to the id; `before` are those that had left the stream of packs, and `first` is the
    /// first entry of the log.
    fn more(&self, id: MessageId, before: u64, first: MessageId) -> u64 {
        let more = self.up_to.map_or(before, |pack| pack.more);
        // Of the next pack, the first messages may be below the id.
        let next = self.above.filter(|pack| pack.id.ms == id.ms && pack.id > id && pack.id >= first);
        let behind = next.map(|pack| (pack.count, pack.id.seq - id.seq));
        more + behind.map_or(0, |(count, behind)| count.saturating_sub(behind))
    }
}

impl Inner {
    /// Returns how many messages more than entries there are above one id, up to another.
    pub(super) async fn more_between(
        &self,
        tp: &TopicPartition,
        above: MessageId,
        up_to: MessageId,
    ) -> Result<u64> {
        let (log, packs) = (self.keys.log(tp), self.keys.packs(tp));
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("XRANGE").arg(log.as_str()).arg("-").arg("+").arg("COUNT").arg(1);
        let first = reply::entries(self.one(&log, &pipe).await?)?.pop();
        // The newest pack is known when it has left the log: what is below the first entry does not count.
        let Some((first, _)) = first else { return Ok(0) };
        if up_to < first && above < first && up_to.ms != first.ms {
            return Ok(0);
        }
        let mut pipe = Pipeline::with_capacity(5);
        pipe.cmd("XRANGE").arg(packs.as_str()).arg("-").arg("+").arg("COUNT").arg(1);
        for id in [above, up_to] {
            let known = id.max(first.previous()).to_string();
            pipe.cmd("XREVRANGE").arg(packs.as_str()).arg(known).arg("-").arg("COUNT").arg(1);
            // There is nothing above the largest id.
            let from = if id == MessageId::MAX { "+".to_owned() } else { id.next().to_string() };
            pipe.cmd("XRANGE").arg(packs.as_str()).arg(from).arg("+").arg("COUNT").arg(1);
        }
        let answers = self.pool.send(&pipe).await?.into_iter().map(pack).collect::<Result<Vec<_>>>();
        let answers = answers.map_err(|error| error.during(format_args!("read {packs}")))?;
        let [oldest, low_up_to, low_above, high_up_to, high_above] = answers[..] else {
            return Err(unexpected("too few answers"));
        };
        let before = oldest.map_or(0, |pack| (pack.more + 1).saturating_sub(pack.count));
        let low = Around { up_to: low_up_to, above: low_above };
        let high = Around { up_to: high_up_to, above: high_above };
        Ok(high.more(up_to, before, first).saturating_sub(low.more(above, before, first)))
    }
}

fn pack(answer: Value) -> Result<Option<Pack>> {
    let Some((id, Some(fields))) = reply::entries(answer)?.pop() else { return Ok(None) };
    let number = |name: &str| {
        let value = fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let number = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        number.ok_or_else(|| unexpected(format_args!("a pack without {name}")))
    };
    Ok(Some(Pack { id, count: number("count")?, more: number("more")? }))
}
