//! Failed messages of a group that wait for their next attempt: parked ones, and due ones in the retry log that were not
//! handed out yet.

use std::collections::VecDeque;

use futures_util::stream::{self, StreamExt};
use millstream_core::catalog::PartitionSurvey;
use millstream_core::inspect::{MAX_PAGE, Parked, Range, Stored, Stream};
use millstream_core::log::{Receipt, Source};
use millstream_core::{
    Error, ErrorKind, GroupName, Limits, MessageId, Result, TopicName, TopicPartition, wire,
};

use super::store::Of;
use super::{Failed, Retry, Shelf, ShelfFilter};
use crate::Admin;
use crate::reading::pending::PartError;
use crate::stats::lasting;

/// Number of partitions that are read at the same time.
const AT_ONCE: usize = 8;
/// Number of messages of one request.
const PAGE: usize = 500;

/// Failed message that waits for its next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRetry {
    /// The message. If it is `ready`, the due time is that at which it was moved to the retry log.
    pub retry: Retry,
    /// Whether it is due and in the retry log, from which the group reads it next.
    pub ready: bool,
}

/// Messages of a group that wait for their next attempt.
#[derive(Clone, Debug)]
pub struct WaitingRetries {
    /// Number of waiting messages, due ones included; `None` if it is unknown for a partition.
    pub total: Option<u64>,
    /// The first ones, in the order of due times.
    pub retries: Vec<WaitingRetry>,
    /// Partitions that are left out, in part or as a whole, since they cannot be read.
    pub errors: Vec<PartError>,
}

fn keep_first(retries: &mut Vec<WaitingRetry>, limit: usize) {
    let key =
        |Retry { topic_partition, parked }: &Retry| (parked.due, topic_partition.partition, parked.origin);
    retries.sort_by_key(|it| key(&it.retry));
    retries.truncate(limit);
}

impl Admin {
    /// Returns the first `limit` messages of a group that wait for their next attempt, over all partitions that can be
    /// read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; transient ones.
    pub async fn waiting_retries(
        &self,
        topic: &TopicName,
        group: &GroupName,
        limit: usize,
    ) -> Result<WaitingRetries> {
        let spec = self.backend.catalog().topic(topic).await?;
        let surveys = self.backend.catalog().survey(&spec, group).await?;
        let total = surveys.iter().map(PartitionSurvey::retrying).sum();
        let waiting = spec.iter().zip(surveys).filter(|(_, survey)| survey.retrying() != Some(0));
        let shelf = &Shelf { admin: self.clone(), of: Of::Retries(spec.clone(), group.clone()) };
        let lists = waiting.map(|(tp, survey)| async move {
            let none_ready = survey.due() == Some(0);
            let here = ShelfFilter { partitions: Some(vec![tp.partition]), ..ShelfFilter::default() };
            let parked = lasting(shelf.first(&here, limit).await)?;
            let parked = parked.map(|found| found.into_iter().filter_map(Failed::retry).collect());
            let mut ready = Vec::new();
            let read = match none_ready || limit == 0 {
                true => Ok(()),
                false => self.ready(&tp, group, |retry| (ready.push(retry), ready.len() < limit).1).await,
            };
            let ready = lasting(read)?.map(|()| ready);
            Ok::<_, Error>((tp.partition, [parked, ready]))
        });
        let mut lists = std::pin::pin!(stream::iter(lists).buffered(AT_ONCE));
        let (mut retries, mut errors) = (Vec::new(), Vec::new());
        while let Some(list) = lists.next().await {
            let (partition, both) = list?;
            for (found, ready) in both.into_iter().zip([false, true]) {
                match found {
                    Ok(found) => {
                        let found: Vec<Retry> = found;
                        retries.extend(found.into_iter().map(|retry| WaitingRetry { retry, ready }));
                        // Of many partitions no more are held than are returned, and those of this one.
                        keep_first(&mut retries, limit);
                    }
                    Err(error) => errors.push(PartError { partition, error }),
                }
            }
        }
        Ok(WaitingRetries { total, retries, errors })
    }

    /// Passes on the entries of a retry log that are not handed out, until `take` returns false. Those that are handed out are
    /// pending: both lists are read in the order of ids, and compared.
    async fn ready(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        mut take: impl FnMut(Retry) -> bool,
    ) -> Result<()> {
        let (stream, mut range) = (Stream::Retry(group.clone()), Range::ALL);
        let (mut pending, mut after, mut more) = (VecDeque::new(), MessageId::ZERO, true);
        loop {
            let page = self.backend.inspect()?.entries(tp, &stream, range, PAGE).await?;
            let Some(last) = page.items.last() else { return Ok(()) };
            range = range.behind(last.id);
            for stored in page.items {
                while pending.front().is_some_and(|id| *id < stored.id) || pending.is_empty() && more {
                    pending.pop_front();
                    if pending.is_empty() && more {
                        let inspect = self.backend.inspect()?;
                        let rows = inspect.pending(tp, group, Source::Retry, after, MAX_PAGE).await?;
                        (after, more) = (rows.items.last().map_or(after, |row| row.id), rows.more);
                        pending = rows.items.into_iter().map(|row| row.id).collect();
                    }
                }
                if pending.front() != Some(&stored.id)
                    && !take(Retry { topic_partition: tp.clone(), parked: of(&stored) })
                {
                    return Ok(());
                }
            }
            if !page.more {
                return Ok(());
            }
        }
    }
}

impl Shelf {
    /// Passes on the matching retries that are due and not handed out yet, with the replayed letters among them, until `take` returns
    /// false. They are in the retry log, from which the group reads them next, and not on the shelf any more. Of other kinds there are
    /// none.
    ///
    /// # Errors
    /// Transient ones.
    pub async fn ready_retries(
        &self,
        filter: &ShelfFilter,
        mut take: impl FnMut(Failed) -> bool,
    ) -> Result<()> {
        let Of::Retries(topic, group) = &self.of else { return Ok(()) };
        // Most partitions have none.
        let surveys = match self.admin.backend.catalog().survey(topic, group).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
            surveys => surveys?,
        };
        let mut goes_on = true;
        for lane in self.lanes(filter) {
            if surveys.get(lane.0 as usize).is_some_and(|survey| survey.due() == Some(0)) {
                continue;
            }
            let tp = TopicPartition { topic: topic.name.clone(), partition: lane };
            let take = |retry: Retry| {
                let retry = Failed::Retry(retry);
                if filter.fits(&retry.facts(), &Limits::NONE) {
                    goes_on = take(retry);
                }
                goes_on
            };
            self.admin.ready(&tp, group, take).await?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

/// Converts an entry of a retry log.
fn of(stored: &Stored) -> Parked {
    let receipt = Receipt::new(Source::Retry, stored.id);
    let decoded = wire::decode(receipt, &stored.fields, &Limits::NONE);
    Parked {
        origin: decoded.origin,
        due: stored.id.timestamp(),
        attempt: decoded.attempt,
        error: decoded.error.unwrap_or_default(),
        history: decoded.history,
        body: decoded.envelope.map_or_else(|_| stored.fields.clone(), |envelope| wire::encode(&envelope)),
    }
}
