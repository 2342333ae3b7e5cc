//! Sends as members of batches.

use std::fmt;
use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use millstream_core::batches::{BATCH_HEADER, BatchMember};
use millstream_core::schedule::Placed;
use millstream_core::{Envelope, Error, ErrorKind, Result};
use millstream_engine::batches::BatchItem;

use super::delayed::{Delayed, SendDelayed};
use super::record::{HasEnvelope, QualifiedSend, SendFuture, Sent};

fn mark(envelope: &mut Envelope, member: &BatchMember) {
    envelope.headers.remove(BATCH_HEADER);
    envelope.headers.append(BATCH_HEADER, member.to_string());
}

impl<T: Sync> BatchItem for SendFuture<'_, T> {
    type Stored = Sent;

    fn target(&self) -> String {
        self.producer.inner.topic.to_string()
    }

    fn store<'a>(mut self, member: &BatchMember) -> BoxFuture<'a, Result<Sent>>
    where
        Self: 'a,
    {
        mark(self.record.envelope_mut(), member);
        stored(self.into_future())
    }
}

impl<T: Sync> BatchItem for QualifiedSend<'_, T> {
    type Stored = Sent;

    fn target(&self) -> String {
        self.0.target()
    }

    fn store<'a>(mut self, member: &BatchMember) -> BoxFuture<'a, Result<Sent>>
    where
        Self: 'a,
    {
        mark(self.0.record.envelope_mut(), member);
        stored(self.into_future())
    }
}

impl<T: Sync> BatchItem for SendDelayed<'_, T> {
    type Stored = Delayed;

    fn target(&self) -> String {
        self.producer.inner.topic.to_string()
    }

    fn store<'a>(mut self, member: &BatchMember) -> BoxFuture<'a, Result<Delayed>>
    where
        Self: 'a,
    {
        mark(self.record.envelope_mut(), member);
        let sending = self.into_future();
        Box::pin(async move {
            let delayed = sending.await?;
            // One that was replaced is gone, with its place in its batch.
            let is_stored = matches!(delayed.placed, Placed::New | Placed::Replaced);
            if is_stored { Ok(delayed) } else { Err(exists(&delayed.id)) }
        })
    }
}

/// Not generic: compiled once for all payloads.
fn stored(sending: BoxFuture<'_, Result<Sent>>) -> BoxFuture<'_, Result<Sent>> {
    Box::pin(async move {
        let sent = sending.await?;
        if sent.is_duplicate { Err(exists(&sent.id)) } else { Ok(sent) }
    })
}

fn exists(id: &dyn fmt::Display) -> Error {
    let why = format!("nothing was added to the batch: a message with this id is there, as {id}");
    Error::new(ErrorKind::Exists, why)
}
