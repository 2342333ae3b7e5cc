//! Sends with a unique id: none is stored while a message with its id has still to be settled.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::log::{DedupId, Deduplicated, UniqueAppend};
use millstream_core::wire::Fields;
use millstream_core::{Partition, TopicName};
use tokio::time::Instant;

use super::backpressure::Bounded;
use super::dedup::emit;
use super::layers::Encoded;
use super::sink::{InTurn, Outgoing, Sink};
use super::{Producer, Record};

impl<T> Producer<T> {
    /// Encodes a record with a unique id.
    pub(super) fn encode_unique(&self, record: Record<'_, T>) -> Result<Encoded<UniqueAppend>> {
        let inner = &*self.inner;
        let (key, is_explicit) = (record.envelope.key.clone(), record.partition.is_some());
        let id = DedupId::named(record.unique.clone().unwrap_or_default(), "unique id")?;
        let encoded = self.encoded(record, Some(id.as_bytes()))?;
        let earlier = if is_explicit { Vec::new() } else { inner.partitions.all_earlier() };
        let routed = key.as_deref().or(Some(id.as_bytes()));
        let mut places = Vec::new();
        for count in earlier {
            let place = inner.partition_of(routed, count)?;
            if place != encoded.partition && !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(encoded.map(|append| UniqueAppend { append, id, send: fastrand::u64(..), earlier: places }))
    }
}

impl Outgoing for UniqueAppend {
    type Done = Deduplicated;

    const IS_REPEATABLE: bool = true;

    fn set_fields(&mut self, fields: Fields) {
        self.append.fields = fields;
    }

    fn order(&self) -> Option<Partition> {
        self.append.order()
    }

    fn charge(&self) -> usize {
        self.append.charge() + self.id.as_bytes().len()
    }
}

/// Sink that appends to the log what does not wait there already. One request at a time: one that is repeated must not come
/// behind a later one.
pub(super) struct ToLogUnique {
    bounded: Arc<Bounded>,
    in_turn: InTurn<Deduplicated>,
}

impl ToLogUnique {
    pub(super) fn new(bounded: Arc<Bounded>) -> Self {
        Self { bounded, in_turn: InTurn(VecDeque::new()) }
    }
}

#[async_trait]
impl Sink<UniqueAppend> for ToLogUnique {
    fn ahead(&self) -> usize {
        1
    }

    fn begin(&mut self, batch: Arc<Vec<UniqueAppend>>, deadline: Instant) {
        let bounded = self.bounded.clone();
        self.in_turn.begin(Box::pin(async move { bounded.append_unique(&batch, deadline).await }));
    }

    async fn finish(&mut self) -> Vec<Result<Deduplicated>> {
        self.in_turn.finish().await
    }

    fn stored(
        &self,
        topic: &TopicName,
        messages: &[UniqueAppend],
        results: &[Result<Deduplicated>],
        observer: &dyn Observer,
    ) {
        emit(topic, messages.iter().map(|message| &message.append), results, observer);
    }
}
