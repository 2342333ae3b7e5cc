//! Ids of entries by dedup id, which are dropped when their windows are over.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use millstream_core::capability::unsupported;
use millstream_core::log::{Append, Appended, DedupId, DedupIdentity, Identity, check_window};
use millstream_core::{MessageId, Result, TopicPartition};

use super::State;
use crate::clock::Now;

#[derive(Clone, Debug, Default)]
pub(crate) struct DedupIds {
    known: HashMap<DedupId, (MessageId, Now)>,
    /// The ids with the end of their windows, in the order in which they were stored.
    ends: VecDeque<(Now, DedupId)>,
}

impl DedupIds {
    pub(crate) fn get(&self, id: &DedupId, now: Now) -> Option<MessageId> {
        self.known.get(id).filter(|(_, end)| *end > now).map(|(stored, _)| *stored)
    }

    pub(crate) fn put(&mut self, id: DedupId, stored: MessageId, now: Now, window: Duration) {
        while let Some((end, oldest)) = self.ends.front()
            && *end <= now
        {
            // It may have been stored again since.
            if self.known.get(oldest).is_some_and(|(_, known)| known == end) {
                self.known.remove(oldest);
            }
            self.ends.pop_front();
        }
        // From the start of the millisecond in its id, as other backends count.
        let end = now.of_millisecond().plus(window);
        self.known.insert(id.clone(), (stored, end));
        self.ends.push_back((end, id));
    }
}

impl State {
    /// Appends an entry with an identity.
    pub(crate) fn append_once(&mut self, append: &Append, now: Now) -> Result<Appended> {
        let appended = match &append.by_id()?.identity {
            Identity::Dedup(dedup) => self.append_dedup(append, dedup, now)?,
            Identity::Unique(unique) => self.append_unique(append, unique, now.timestamp())?,
            _ => return Err(unsupported("this identity")),
        };
        Ok(append.identity.told(appended))
    }

    fn append_dedup(&mut self, append: &Append, dedup: &DedupIdentity, now: Now) -> Result<Appended> {
        let Append { topic_partition, fields, .. } = append;
        let DedupIdentity { id, window, earlier } = dedup;
        check_window(*window)?;
        for number in earlier.iter().copied().chain([topic_partition.partition]) {
            let tp = TopicPartition { topic: topic_partition.topic.clone(), partition: number };
            if let Some(known) = self.partition(&tp).dedup.get(id, now) {
                return Ok(Appended::before(number, known));
            }
        }
        let partition = self.partition(topic_partition);
        let stored = partition.append(now.timestamp(), fields)?;
        partition.dedup.put(id.clone(), stored, now, *window);
        partition.wake.notify_waiters();
        Ok(Appended::new(topic_partition.partition, stored))
    }
}
