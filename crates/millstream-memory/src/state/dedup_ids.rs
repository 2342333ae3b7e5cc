//! Ids of entries by dedup id, which are dropped when their windows are over.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use millstream_core::MessageId;
use millstream_core::log::DedupId;

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
