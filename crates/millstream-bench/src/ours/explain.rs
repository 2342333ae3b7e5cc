//! The times at which messages pass each hop, between the send that was due and the handler.
//!
//! A log in front of the backend's own one notes them: that costs each message two map entries, and the program no feature.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use comfy_table::{CellAlignment, Table, presets};
use millstream::crates::core;
use millstream::crates::core::log::ProgressRight;
use millstream::crates::core::log::{
    Append, Appended, Appender, Durability, Fetched, Log, Measured, Reader, Receipt, Settled, Settlement,
    Trimmed, UnleasedTrim,
};
use millstream::crates::core::progress::{ProgressLine, ProgressReport};
use millstream::crates::core::wire::{Fields, PAYLOAD};
use millstream::crates::core::{Backend, Lease, Result, Retention, TopicPartition};
use millstream::{MessageResult, ResultId};

use crate::pacer::Clock;
use crate::report::number;

/// Where a message is seen, in this order, with what takes the time since the one before.
const HOPS: [(Hop, &str); 5] = [
    (Hop::Called, "the sender wakes up (timer, scheduler)"),
    (Hop::Begun, "the producer encodes and makes a batch"),
    (Hop::Answered, "XADD: the connection, the server, the connection"),
    (Hop::Read, "from the answer of the send to the reader's page"),
    (Hop::Handled, "the page is decoded, the handler begins"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    Called,
    Begun,
    Answered,
    Read,
    Handled,
}

/// Nanoseconds since the message was due, by hop; the reader may have a message before its sender has the answer.
type Times = [Option<u64>; HOPS.len()];

/// The times of the messages of one run, by the time at which each was due.
#[derive(Clone)]
pub(crate) struct Hops {
    clock: Clock,
    times: Arc<Mutex<HashMap<u64, Times>>>,
}

impl Hops {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, times: Arc::default() }
    }

    fn times(&self) -> MutexGuard<'_, HashMap<u64, Times>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the message with this payload is at this hop now.
    pub(crate) fn pass(&self, hop: Hop, payload: &[u8]) {
        let Some(due) = payload.first_chunk().map(|due| u64::from_le_bytes(*due)) else { return };
        let since = self.clock.now().saturating_sub(due);
        self.times().entry(due).or_default()[hop as usize] = Some(since);
    }

    fn pass_all<'a>(&self, hop: Hop, all: impl Iterator<Item = &'a Fields>) {
        let payloads =
            all.filter_map(|fields| fields.iter().find(|(name, _)| &name[..] == PAYLOAD.as_bytes()));
        payloads.for_each(|(_, payload)| self.pass(hop, payload));
    }

    /// Returns the backend with a log in front that notes when messages pass.
    pub(crate) fn over(&self, backend: &Backend) -> Backend {
        let log = Noting { inner: backend.log().clone(), hops: self.clone() };
        backend.clone().with_log(Arc::new(log))
    }

    /// Formats what the time from the due send to the handler was spent on: by all messages, and by the slowest.
    pub(crate) fn table(&self) -> String {
        let times = self.times();
        let mut all: Vec<[u64; HOPS.len()]> = times.values().filter_map(shares).collect();
        all.sort_unstable_by_key(|shares| shares.iter().sum::<u64>());
        let beyond = |share: f64| &all[(all.len() as f64 * share) as usize..];
        let groups = [("all", &all[..]), ("beyond p99", beyond(0.99)), ("beyond p99.9", beyond(0.999))];
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let header = groups.iter().map(|(name, of)| format!("{name} ({}), µs", of.len()));
        table.set_header([String::new()].into_iter().chain(header));
        let mean = |of: &[[u64; HOPS.len()]], hop: usize| {
            of.iter().map(|shares| shares[hop] as f64 / 1e3).sum::<f64>() / of.len().max(1) as f64
        };
        for (at, (_, what)) in HOPS.iter().enumerate() {
            let cells = groups.iter().map(|(_, of)| number(mean(of, at)));
            table.add_row([(*what).to_owned()].into_iter().chain(cells));
        }
        let sum = |of: &[[u64; HOPS.len()]]| (0..HOPS.len()).map(|at| mean(of, at)).sum::<f64>();
        let cells = groups.iter().map(|(_, of)| number(sum(of)));
        table.add_row(["sum".to_owned()].into_iter().chain(cells));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("mean time at each hop\n{table}\n")
    }
}

/// Returns the time spent before each hop, in nanoseconds; `None` if the message was not seen everywhere. Where the reader has it
/// before the sender has its answer, the whole way is that of `XADD`.
fn shares(times: &Times) -> Option<[u64; HOPS.len()]> {
    let [called, begun, answered, read, handled] = [times[0]?, times[1]?, times[2]?, times[3]?, times[4]?];
    let answered = answered.min(read);
    let at = [called, begun, answered, read, handled];
    let mut before = 0;
    Some(at.map(|at| {
        let share = at.saturating_sub(before);
        before = before.max(at);
        share
    }))
}

struct Noting {
    inner: Arc<dyn Log>,
    hops: Hops,
}

#[async_trait]
impl Log for Noting {
    async fn append(&self, batch: &[Append]) -> Vec<Result<Appended>> {
        self.inner.append(batch).await
    }

    fn appender(&self, durability: Durability) -> Option<Box<dyn Appender>> {
        let (inner, hops) = (self.inner.appender(durability)?, self.hops.clone());
        Some(Box::new(NotingAppender { inner, hops, begun: Default::default() }))
    }

    async fn reader(&self, lease: &Lease) -> Result<Box<dyn Reader>> {
        Ok(Box::new(NotingReader { inner: self.inner.reader(lease).await?, hops: self.hops.clone() }))
    }

    async fn settle(&self, lease: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.inner.settle(lease, batch).await
    }

    async fn trim(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.inner.trim(lease, retention).await
    }

    async fn trim_unleased(&self, topic_partition: &TopicPartition, rule: UnleasedTrim) -> Result<Trimmed> {
        self.inner.trim_unleased(topic_partition, rule).await
    }

    async fn append_measured(&self, batch: &[Append]) -> Measured {
        self.inner.append_measured(batch).await
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        self.inner.lengths(partitions).await
    }

    async fn result(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        self.inner.result(id, wait).await
    }

    async fn report_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        self.inner.report_progress(right, report).await
    }

    async fn progress(&self, id: &ResultId, above: u64, wait: Duration) -> Result<Vec<ProgressLine>> {
        self.inner.progress(id, above, wait).await
    }
}

struct NotingAppender {
    inner: Box<dyn Appender>,
    hops: Hops,
    begun: std::collections::VecDeque<Arc<Vec<Append>>>,
}

#[async_trait]
impl Appender for NotingAppender {
    fn begin(&mut self, batch: Arc<Vec<Append>>) {
        self.hops.pass_all(Hop::Begun, batch.iter().map(|append| &append.fields));
        self.begun.push_back(batch.clone());
        self.inner.begin(batch);
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        let results = self.inner.finish().await;
        if let Some(batch) = self.begun.pop_front() {
            self.hops.pass_all(Hop::Answered, batch.iter().map(|append| &append.fields));
        }
        results
    }
}

struct NotingReader {
    inner: Box<dyn Reader>,
    hops: Hops,
}

#[async_trait]
impl Reader for NotingReader {
    async fn fetch(&mut self, max: usize, wait: Duration) -> core::Result<Fetched> {
        let fetched = self.inner.fetch(max, wait).await?;
        self.hops.pass_all(Hop::Read, fetched.entries.iter().map(|entry| &entry.fields));
        Ok(fetched)
    }

    fn start_over(&mut self) {
        self.inner.start_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_at_the_hops_adds_up_also_where_the_reader_was_first() {
        let times = |at: [u64; 5]| at.map(Some);
        assert_eq!(shares(&times([1, 3, 9, 20, 26])), Some([1, 2, 6, 11, 6]));
        assert_eq!(shares(&times([1, 3, 30, 20, 26])), Some([1, 2, 17, 0, 6]));
        assert_eq!(shares(&[Some(1), None, Some(2), Some(3), Some(4)]), None);
    }
}
