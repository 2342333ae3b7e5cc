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
    /// Returns the messages beyond one an entry up to the id; `before` are those that had left the stream of packs.
    fn more(&self, id: MessageId, before: u64) -> u64 {
        let more = self.up_to.map_or(before, |pack| pack.more);
        // Of the next pack, the first messages may be below the id.
        let behind =
            self.above.filter(|pack| pack.id.ms == id.ms).map(|pack| (pack.count, pack.id.seq - id.seq));
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
        let packs = self.keys.packs(tp);
        let mut pipe = Pipeline::with_capacity(5);
        pipe.cmd("XRANGE").arg(packs.as_str()).arg("-").arg("+").arg("COUNT").arg(1);
        for id in [above, up_to] {
            pipe.cmd("XREVRANGE").arg(packs.as_str()).arg(id.to_string()).arg("-").arg("COUNT").arg(1);
            // There is nothing above the largest id.
            let from = if id == MessageId::MAX { "+".to_owned() } else { id.next().to_string() };
            pipe.cmd("XRANGE").arg(packs.as_str()).arg(from).arg("+").arg("COUNT").arg(1);
        }
        let answers = self.pool.send(&pipe).await?.into_iter().map(pack).collect::<Result<Vec<_>>>();
        let answers = answers.map_err(|error| error.during(format_args!("read {packs}")))?;
        let [oldest, low_up_to, low_above, high_up_to, high_above] = answers[..] else {
            return Err(unexpected("too few answers"));
        };
        let before = oldest.map_or(0, |pack| pack.more + 1 - pack.count);
        let low = Around { up_to: low_up_to, above: low_above.filter(|pack| pack.id > above) };
        let high = Around { up_to: high_up_to, above: high_above.filter(|pack| pack.id > up_to) };
        Ok(high.more(up_to, before).saturating_sub(low.more(above, before)))
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
