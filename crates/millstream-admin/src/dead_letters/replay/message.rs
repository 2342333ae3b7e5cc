//! A letter as a message of another topic, by which a repetition is recognised.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::dedup::{DedupId, WINDOWS};
use millstream_core::log::{Append, DedupIdentity, Identity};
use millstream_core::partitioner::by_hash;
use millstream_core::wire::{self, Fields};
use millstream_core::{Capability, DeadLetter, Limits, MessageId, Partition, TopicPartition, TopicSpec};

use super::{REPLAYED_FROM, REPLAYED_ORIGIN, REPLAYED_REASON, ReplayTo, Replayer};
use crate::dead_letters::edit::Edit;

/// Minimum time for which a repetition of a send to a topic is recognised.
const RECOGNISED: Duration = Duration::from_secs(600);

impl Replayer {
    /// Returns a letter as a message to append to a topic, or the reason why it cannot be sent.
    pub(super) fn message(
        &self,
        letter: &DeadLetter,
        target: &TopicSpec,
    ) -> std::result::Result<Append, String> {
        let from = format!("{}/{}/{}", place(&letter.topic_partition), letter.group, letter.id);
        let headers = [
            (REPLAYED_FROM, from.clone()),
            (REPLAYED_ORIGIN, letter.origin.to_string()),
            (REPLAYED_REASON, letter.reason.as_str().to_owned()),
        ];
        let edited = self.replay.edit.apply_within(&letter.body, &self.replay.limits);
        let edited = edited.map_err(|why| why.to_string())?;
        let marked = Edit {
            set_headers: headers.map(|(name, value)| (name.to_owned(), Bytes::from(value))).to_vec(),
            ..Edit::default()
        };
        let fields = readable(marked.apply(&edited))?;
        let partition = match &self.replay.to {
            ReplayTo::Topic { partition: Some(partition), .. } => *partition,
            // A repetition has the same partition, also without a key.
            _ => {
                let key = fields.iter().find(|(name, _)| name == wire::KEY).map(|(_, key)| &key[..]);
                Partition(by_hash(key.unwrap_or(from.as_bytes()), target.partitions))
            }
        };
        let topic_partition = TopicPartition { topic: target.name.clone(), partition };
        let identity = if self.backend.supports(Capability::Dedup) {
            DedupIdentity { id: identity(letter.id, &fields), window: self.window(), earlier: Vec::new() }
                .into()
        } else {
            Identity::None
        };
        Ok(Append::new(topic_partition, fields).with(identity))
    }

    /// Returns the time for which a repetition is recognised: until others may claim the letter, and send it themselves.
    fn window(&self) -> Duration {
        self.replay.hold.saturating_mul(2).clamp(RECOGNISED, WINDOWS.1)
    }
}

/// Returns the id of a letter that is sent in this form. Its place is in the fields.
fn identity(id: MessageId, fields: &Fields) -> DedupId {
    let [high, low] = [0u8, 1].map(|part| {
        let mut hasher = DefaultHasher::new();
        (part, fields).hash(&mut hasher);
        hasher.finish()
    });
    DedupId::new(format!("{id} {high:016x}{low:016x}")).expect("1 to 128 bytes")
}

fn place(topic_partition: &TopicPartition) -> String {
    format!("{}/{}", topic_partition.topic, topic_partition.partition)
}

/// Returns the fields if they still form a message with what was added: an invalid one would become a dead letter again.
fn readable(fields: Fields) -> std::result::Result<Fields, String> {
    match wire::decode_body(&fields, &Limits::NONE) {
        Ok(_) => Ok(fields),
        Err(why) => Err(why.to_string()),
    }
}
