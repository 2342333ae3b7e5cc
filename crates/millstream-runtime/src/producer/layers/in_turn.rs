//! Sends of a producer whose messages may wait for a layer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{Limits, Partition, wire};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::turns::Turn;
use super::{Layers, Unfinished};
use crate::producer::ProducerConfig;
use crate::producer::batcher::{Batcher, interrupted, unanswered};
use crate::producer::sink::Outgoing;

/// Message with its partition, encoded, and without fields if it has to wait for a layer.
pub(in crate::producer) struct Encoded<C> {
    pub(in crate::producer) message: C,
    pub(in crate::producer) partition: Partition,
    /// Bytes of its payload before the layers.
    pub(in crate::producer) body: usize,
    /// What becomes its fields.
    pub(in crate::producer) unfinished: Option<Box<Unfinished>>,
}

impl<C> Encoded<C> {
    pub(in crate::producer) fn map<D>(self, to: impl FnOnce(C) -> D) -> Encoded<D> {
        let Self { message, partition, body, unfinished } = self;
        Encoded { message: to(message), partition, body, unfinished }
    }
}

impl<C: Outgoing> Encoded<C> {
    /// Returns the number of bytes that it occupies.
    pub(in crate::producer) fn charge(&self) -> usize {
        let unfinished = self.unfinished.as_ref().map_or(0, |unfinished| unfinished.envelope.payload.len());
        self.message.charge() + unfinished
    }

    /// Queues it, when the layers have ended and behind those before it, and waits for its result, up to `limit`.
    pub(in crate::producer) async fn send(
        self,
        layers: Arc<Layers>,
        limits: Limits,
        batcher: Arc<Batcher<C>>,
        limit: Option<Duration>,
    ) -> Result<C::Done> {
        if self.unfinished.is_none() && layers.turns.as_ref().is_none_or(super::Turns::is_free) {
            return batcher.send(self.message, limit).await;
        }
        // A time that the clock cannot reach is no limit.
        let until = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        let result = self.begin(layers, limits, batcher)?;
        let result = match until {
            None => result.await,
            Some((limit, until)) => timeout_at(until, result).await.map_err(|_| unanswered(limit))?,
        };
        result.map_err(|_| interrupted())?
    }

    /// Takes its turn and begins the send, in a task: others wait for their turn behind it, also if nobody polls this one any more.
    pub(in crate::producer) fn begin(
        self,
        layers: Arc<Layers>,
        limits: Limits,
        batcher: Arc<Batcher<C>>,
    ) -> Result<JoinHandle<Result<C::Done>>> {
        let turn = layers.turns.as_ref().map(|turns| turns.take(self.partition)).transpose()?;
        Ok(tokio::spawn(self.in_turn(layers, limits, batcher, turn)))
    }

    async fn in_turn(
        self,
        layers: Arc<Layers>,
        limits: Limits,
        batcher: Arc<Batcher<C>>,
        mut turn: Option<Turn>,
    ) -> Result<C::Done> {
        let Self { mut message, unfinished, .. } = self;
        let deadline = batcher.deadline();
        let ready = timeout_at(deadline, async {
            if let Some(unfinished) = unfinished {
                let envelope = layers.finish(*unfinished).await?;
                envelope.check(&limits)?;
                message.set_fields(wire::encode(&envelope));
            }
            if let Some(turn) = &mut turn {
                turn.wait().await;
            }
            Ok(())
        });
        ready.await.unwrap_or_else(|_| {
            let why = "the layers of this or of an earlier message did not end within the delivery timeout";
            Err(Error::new(ErrorKind::Unavailable, why))
        })?;
        batcher.send_by(message, deadline, turn).await
    }
}

/// Sends messages that may wait for layers: each as if it were sent alone, as many at a time as one request may have and the buffer
/// has room for.
pub(in crate::producer) async fn one_by_one<C: Outgoing, B>(
    layers: &Arc<Layers>,
    config: &ProducerConfig,
    batcher: &Arc<Batcher<C>>,
    mut encoded: impl Iterator<Item = Result<(B, Encoded<C>)>>,
) -> Vec<Result<(B, C::Done)>> {
    let (mut outcomes, mut waiting, mut bytes) = (Vec::new(), VecDeque::new(), 0);
    loop {
        while waiting.len() < config.max_batch && bytes < config.buffer_memory {
            let Some(next) = encoded.next() else { break };
            let begun = next.and_then(|(beside, encoded)| {
                let charge = encoded.charge();
                let sending = encoded.begin(layers.clone(), config.limits, batcher.clone())?;
                bytes += charge;
                Ok((beside, charge, sending))
            });
            waiting.push_back(begun);
        }
        match waiting.pop_front() {
            None => return outcomes,
            Some(Err(error)) => outcomes.push(Err(error)),
            Some(Ok((beside, charge, sending))) => {
                let result = sending.await.unwrap_or_else(|_| Err(interrupted()));
                bytes -= charge;
                outcomes.push(result.map(|done| (beside, done)));
            }
        }
    }
}
