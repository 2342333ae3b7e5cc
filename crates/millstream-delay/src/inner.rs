//! State of an open queue, which its handles and workers share, and the encoding of payloads.

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::error::Result;
use millstream_core::panics::{self, Panicked};
use millstream_core::schedule::ScheduleId;
use millstream_core::span::Tracing;
use millstream_core::{Backend, Codec, Envelope, Error, ErrorKind, Limits, Observer, Place, QueueSpec, wire};

/// State of an open queue.
pub(crate) struct Inner<T: 'static> {
    pub(crate) backend: Backend,
    pub(crate) spec: QueueSpec,
    pub(crate) codec: &'static dyn Codec<T>,
    pub(crate) limits: Limits,
    pub(crate) observer: Arc<dyn Observer>,
    /// Its tracer, if it has one.
    pub(crate) tracing: Option<Tracing>,
}

impl<T> Inner<T> {
    /// Encodes a payload into its wire form.
    pub(crate) fn encode(&self, payload: &T, envelope: Envelope) -> Result<wire::Fields> {
        encode(self.codec, &self.limits, payload, envelope).inspect_err(|error| {
            if let Some(panicked) = Panicked::within(error) {
                self.observer.observe(&panicked.event());
            }
        })
    }

    /// Decodes a payload from its wire form.
    pub(crate) fn decode(&self, payload: &Bytes) -> Result<T> {
        panics::decode(self.codec, payload).map_err(|source| {
            let (text, _) = panics::error_text(&*source);
            Error::new(ErrorKind::Decode, format!("cannot decode: {text}")).with_source(source)
        })
    }

    /// Returns the place of a task with this id.
    pub(crate) fn place_of(&self, id: &ScheduleId) -> Place {
        self.spec.shard_of(id).into()
    }
}

/// Encodes a payload and its envelope into the wire form.
pub(crate) fn encode<T>(
    codec: &dyn Codec<T>,
    limits: &Limits,
    payload: &T,
    envelope: Envelope,
) -> Result<wire::Fields> {
    let payload = panics::encode(codec, payload)?;
    let envelope = Envelope { payload, ..envelope };
    envelope.check(limits)?;
    Ok(wire::encode(&envelope))
}
