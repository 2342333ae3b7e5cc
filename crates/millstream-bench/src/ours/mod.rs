//! The workloads on Millstream.

mod consume;
mod delay;
mod e2e;
mod explain;
mod idle;
mod memory;
mod operate;
mod produce;
mod retry;
mod takeover;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use millstream::crates::core::Backend;
use millstream::{Consumer, GroupName, Millstream, Retention, Start, Topic};
use tokio::time::timeout;

use crate::args::Spread;

pub(crate) use consume::consume;
pub(crate) use delay::{late, schedule};
pub(crate) use e2e::{e2e, most};
pub(crate) use idle::idle;
pub(crate) use memory::memory;
pub(crate) use operate::{fill_topics, operate};
pub(crate) use produce::{awaiting, bulk};
pub(crate) use retry::retry;
pub(crate) use takeover::{takeover, victim};

const TOPIC: Topic<Bytes> = Topic::raw("bench");
pub(crate) const GROUP: &str = "g0";
/// Number of messages passed to the producer at once: enough for requests to follow each other without a gap, but not
/// all.
const PORTION: u64 = 50_000;
/// Interval between two checks whether everything is done.
const POLL: Duration = Duration::from_millis(1);
/// Maximum time without progress. Longer than the retry delay of a failed message.
const STALL_LIMIT: Duration = Duration::from_secs(120);
/// Maximum time for a consumer to trim after everything is settled.
const TRIM: Duration = Duration::from_secs(10);

fn topic(spread: Spread, keep: bool) -> Topic<Bytes> {
    let topic = TOPIC.partitions(spread.partitions);
    let topic = topic.retention(if keep { Retention::Keep } else { Retention::Consumed });
    match spread.packed {
        Some(packed) => topic.packed(packed.packing()),
        None => topic,
    }
}

fn groups(groups: u32) -> impl Iterator<Item = String> {
    (0..groups).map(|number| format!("g{number}"))
}

/// Creates all groups before the first one reads, since messages that all existing groups have consumed are trimmed.
async fn create_groups(backend: &Backend, topic: &Topic<Bytes>, names: u32, start: Start) -> Result<()> {
    let topic = backend.catalog().create_topic(&topic.spec()?).await?;
    for name in groups(names) {
        backend.catalog().create_group(&topic, &GroupName::new(name)?, start).await?;
    }
    Ok(())
}

/// Detects that a report has not changed for longer than any step here takes.
struct Stall<R> {
    last: R,
    since: Instant,
}

impl<R: PartialEq + fmt::Debug> Stall<R> {
    fn new(report: R) -> Self {
        Self { last: report, since: Instant::now() }
    }

    fn check(&mut self, now: R) -> Result<()> {
        if self.last != now {
            *self = Self::new(now);
        } else if self.since.elapsed() > STALL_LIMIT {
            bail!("nothing has been done for {STALL_LIMIT:?}; so far: {now:?}");
        }
        Ok(())
    }
}

/// Waits for a condition on a consumer. Fails if the consumer ends or makes no progress.
async fn until(consumer: &Consumer, mut done: impl FnMut(&Consumer) -> bool) -> Result<()> {
    let mut stall = Stall::new(consumer.report());
    while !done(consumer) {
        stall.check(consumer.report())?;
        // Not its health, which uses CPU that would be counted.
        if timeout(POLL, consumer.ended()).await.is_ok() {
            bail!("a consumer ended by itself: {:?}", consumer.health().state);
        }
    }
    Ok(())
}

/// Waits until this many messages are acknowledged on the server.
async fn until_acked(consumer: &Consumer, messages: u64) -> Result<()> {
    until(consumer, |it| it.report().acked >= messages && it.health().in_flight == 0).await
}

/// Returns the number of partitions that it owns.
fn owned(consumer: &Consumer) -> usize {
    consumer.health().topics.iter().map(|topic| topic.owned.len()).sum()
}

/// Waits until it owns this many partitions.
async fn until_owned(consumer: &Consumer, partitions: u32) -> Result<()> {
    until(consumer, |it| owned(it) >= partitions as usize).await
}

/// Waits until the log contains no consumed messages.
async fn until_trimmed(mq: &Millstream, topic: &Topic<Bytes>) -> Result<()> {
    let deadline = Instant::now() + TRIM;
    loop {
        let left: u64 = mq.stats(topic, GROUP).await?.iter().map(|partition| partition.length).sum();
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{left} messages are still in the log {TRIM:?} after they were consumed");
        }
        // Each check sends a few commands per partition, which are counted.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_report_that_never_changes_is_a_stall() {
        let mut stall = Stall::new(1);
        stall.since = Instant::now().checked_sub(2 * STALL_LIMIT).unwrap();
        stall.check(2).unwrap();
        stall.check(2).unwrap();
        stall.since = stall.since.checked_sub(2 * STALL_LIMIT).unwrap();
        assert!(stall.check(2).unwrap_err().to_string().contains("so far: 2"));
    }
}
