//! The topics that letters are replayed to: which there are, and how much room they have.

use std::collections::BTreeMap;

use millstream_core::log::{Append, full};
use millstream_core::{DeadLetter, ErrorKind, Result, TopicName, TopicPartition, TopicSpec};
use tokio::time::Instant;

use super::{FULL, Replayer};

impl Replayer {
    /// Returns the topic of this name. `None` if there is none.
    pub(super) async fn target(&mut self, name: &str) -> Result<Option<TopicSpec>> {
        if let Some(known) = self.targets.get(name) {
            return Ok(known.clone());
        }
        // Of our own topics none is a target.
        let topic = name.parse::<TopicName>().and_then(|topic| topic.check_target().map(|()| topic));
        let spec = match topic {
            Err(_) => None,
            Ok(topic) => match self.backend.catalog().topic(&topic).await {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                found => Some(found?),
            },
        };
        self.targets.insert(name.to_owned(), spec.clone());
        Ok(spec)
    }

    /// Takes out the messages whose partition has no room: their letters stay for a later step.
    pub(super) async fn leave_what_has_no_room(
        &mut self,
        messages: &mut Vec<(&DeadLetter, std::result::Result<Append, String>)>,
        bound: u64,
    ) -> Result<()> {
        let mut rooms: BTreeMap<TopicPartition, u64> = BTreeMap::new();
        for append in messages.iter().filter_map(|(_, message)| message.as_ref().ok()) {
            rooms.insert(append.topic_partition.clone(), 0);
        }
        let partitions: Vec<_> = rooms.keys().cloned().collect();
        for (room, length) in rooms.values_mut().zip(self.backend.log().lengths(&partitions).await?) {
            *room = bound.saturating_sub(length);
        }
        let mut is_full = None;
        messages.retain(|(_, message)| {
            let Ok(append) = message else { return true };
            match rooms.get_mut(&append.topic_partition) {
                Some(room @ 1..) => {
                    *room -= 1;
                    true
                }
                _ => {
                    is_full = Some(append.topic_partition.clone());
                    false
                }
            }
        });
        match is_full {
            Some(tp) if messages.is_empty() => {
                let since = *self.full_since.get_or_insert_with(Instant::now);
                if since.elapsed() < FULL.1 { Ok(()) } else { Err(full(&tp, bound)) }
            }
            _ => {
                self.full_since = None;
                Ok(())
            }
        }
    }
}
