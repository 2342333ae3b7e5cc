//! Scheduling: one `EVALSHA` of `HSET` and `ZADD` per 100 messages.

use std::ops::Range;

use anyhow::Result;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::connect;
use crate::args::{Delay, Spread};
use crate::measure::{Measured, Stage};
use crate::work::AN_HOUR;

/// The minimum of a schedule: the items and their due times. Ids and items come in pairs.
const SCHEDULE: &str = "
local at, due, items = redis.call('TIME')[1] * 1000 + ARGV[1], {}, {}
for i = 2, #ARGV, 2 do
  due[#due + 1], due[#due + 2] = at, ARGV[i]
  items[#items + 1], items[#items + 2] = ARGV[i], ARGV[i + 1]
end
redis.call('HSET', KEYS[2], unpack(items))
redis.call('ZADD', KEYS[1], unpack(due))";

/// Number of messages per call.
const BATCH: usize = 100;

/// Schedules messages that are due in an hour.
pub(crate) async fn schedule(stage: &Stage, of: &Delay) -> Result<Measured> {
    let mut connection = connect(&stage.url).await?;
    let (waiting, messages) = (of.waiting, of.messages.messages);
    add(&mut connection, stage, of.spread, 0..waiting).await?;
    let meter = stage.meter().await?;
    add(&mut connection, stage, of.spread, waiting..waiting + messages).await?;
    meter.stop(messages).await
}

/// Sends one call after the other, each after the reply of the previous one, round robin over the partitions.
pub(super) async fn add(
    connection: &mut MultiplexedConnection,
    stage: &Stage,
    spread: Spread,
    messages: Range<u64>,
) -> Result<()> {
    let script = Script::new(SCHEDULE);
    script.load_async(connection).await?;
    let places = super::keys(&stage.namespace, spread.partitions);
    for (call, first) in messages.clone().step_by(BATCH).enumerate() {
        let place = &places[call % places.len()];
        let mut call = script.key(format!("{place}:due"));
        call.key(format!("{place}:items")).arg(AN_HOUR.as_millis() as u64);
        for n in first..messages.end.min(first + BATCH as u64) {
            // Ids of the same length as those of Millstream.
            call.arg(format!("{n:022}")).arg(&stage.payload[..]);
        }
        call.invoke_async::<()>(connection).await?;
    }
    Ok(())
}
