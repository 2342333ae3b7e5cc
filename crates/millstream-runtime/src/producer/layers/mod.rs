//! Layers: code of the user between codec and server, for every payload type.

mod in_turn;
mod turns;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::panics::text_of;
use millstream_core::{BoxError, Envelope};

pub(super) use in_turn::{Encoded, one_by_one};

use turns::Turns;

/// Changes each message behind the codec and before it is stored: it may compress or encrypt the payload, and add headers.
///
/// Layers are added with [`ProducerBuilder::layer`](crate::ProducerBuilder::layer), and run in the order in which they were added. Those of a
/// consumer undo what they do in the opposite order: `compress, encrypt` here, `decrypt, decompress` there. The limits of a message
/// count for what the last one leaves. The key stays as it is, since it has a partition. A layer of one side alone makes dead letters with
/// the reason `undecodable`.
///
/// It is called where the message is sent, and must not block: one that has to wait is an [`AsyncProducerLayer`].
///
/// ```
/// use millstream_core::{BoxError, Envelope};
/// use millstream_runtime::ProducerLayer;
///
/// /// Says who sent it.
/// struct FromHost(String);
///
/// impl ProducerLayer for FromHost {
///     fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
///         message.headers.append("host", self.0.clone());
///         Ok(())
///     }
/// }
/// ```
pub trait ProducerLayer: Send + Sync + 'static {
    /// Changes a message.
    ///
    /// # Errors
    /// The send fails with [`ErrorKind::Encode`]; nothing is stored. A panic does the same. An [`Error`] keeps its kind.
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError>;
}

/// A [`ProducerLayer`] that waits, for example for a store of large payloads or for a service that signs messages. Added with
/// [`ProducerBuilder::async_layer`](crate::ProducerBuilder::async_layer), in one order with the others.
///
/// Messages wait for it at the same time. Those of one partition keep the order in which their sends began, whatever each of them
/// waited for: a message behind one that waits is queued after it. Messages of other partitions do not wait. A send that has begun goes on
/// if its future is dropped, as without layers. The layers have the [`delivery_timeout`](crate::ProducerBuilder::delivery_timeout) of the
/// send, and their time is part of it. While they wait, a message does not count for the
/// [`buffer_memory`](crate::ProducerBuilder::buffer_memory), except in [`Producer::send_all`](crate::Producer::send_all).
///
/// ```
/// use async_trait::async_trait;
/// use millstream_core::{BoxError, Envelope};
/// use millstream_runtime::AsyncProducerLayer;
/// # struct Signer;
/// # impl Signer { async fn sign(&self, _: &[u8]) -> Result<Vec<u8>, std::io::Error> { Ok(Vec::new()) } }
///
/// /// Signs payloads with a key that a service keeps.
/// struct Signed(Signer);
///
/// #[async_trait]
/// impl AsyncProducerLayer for Signed {
///     async fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
///         let signature = self.0.sign(&message.payload).await?;
///         message.headers.append("signature", signature);
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait AsyncProducerLayer: Send + Sync + 'static {
    /// Whether the layer has anything to do for this message. If not, the message is sent as without this layer, unless it is behind one
    /// that waits. Default: yes.
    fn applies(&self, message: &Envelope) -> bool {
        let _ = message;
        true
    }

    /// Changes a message.
    ///
    /// # Errors
    /// The send fails with [`ErrorKind::Encode`]; nothing is stored. A panic does the same. An [`Error`] keeps its kind, so that a caller can
    /// see that a service was not available; `Unconfirmed` becomes `Unavailable`, since the message is certainly not stored. If the
    /// time limit ends first, the send fails with [`ErrorKind::Unavailable`].
    async fn send(&self, message: &mut Envelope) -> Result<(), BoxError>;
}

enum Step {
    Now(Arc<dyn ProducerLayer>),
    Later(Arc<dyn AsyncProducerLayer>),
}

/// The layers of a producer, in their order.
#[derive(Default)]
pub(super) struct Layers {
    steps: Vec<Step>,
    /// Order of the messages, if some may wait for a layer.
    turns: Option<Turns>,
}

/// Message that waits for a layer: this one and those behind it have still to be called.
pub(super) struct Unfinished {
    pub(super) envelope: Envelope,
    pub(super) next: usize,
}

impl Layers {
    pub(super) fn add(&mut self, layer: impl ProducerLayer) {
        self.steps.push(Step::Now(Arc::new(layer)));
    }

    pub(super) fn add_async(&mut self, layer: impl AsyncProducerLayer) {
        self.steps.push(Step::Later(Arc::new(layer)));
        self.turns.get_or_insert_default();
    }

    /// Whether a message waits for a layer, or may be behind one that does.
    pub(super) fn has_to_wait<C>(&self, message: &Encoded<C>) -> bool {
        self.turns.as_ref().is_some_and(|turns| message.unfinished.is_some() || !turns.is_free())
    }

    /// Calls the layers, one after the other, up to the first one that the message has to wait for: then it returns that one's position.
    pub(super) fn apply(&self, message: &mut Envelope) -> Result<Option<usize>> {
        if self.steps.is_empty() {
            return Ok(None);
        }
        let key = message.key.clone();
        for (position, step) in self.steps.iter().enumerate() {
            match step {
                Step::Now(layer) => caught(|| layer.send(message))?,
                Step::Later(layer) => {
                    if caught(|| Ok(layer.applies(message)))? {
                        message.key = key;
                        return Ok(Some(position));
                    }
                }
            }
        }
        message.key = key;
        Ok(None)
    }

    /// Calls the layers that are left.
    async fn finish(&self, unfinished: Unfinished) -> Result<Envelope> {
        let Unfinished { envelope: mut message, next } = unfinished;
        let key = message.key.clone();
        for step in self.steps.iter().skip(next) {
            match step {
                Step::Now(layer) => caught(|| layer.send(&mut message))?,
                Step::Later(layer) => {
                    if caught(|| Ok(layer.applies(&message)))? {
                        let called =
                            AssertUnwindSafe(async { layer.send(&mut message).await }).catch_unwind();
                        called.await.unwrap_or_else(|panic| Err(panicked(panic))).map_err(failed)?;
                    }
                }
            }
        }
        message.key = key;
        Ok(message)
    }

    /// Waits until all messages that wait for a layer by now are queued, or have failed.
    pub(super) async fn flush(&self) {
        if let Some(turns) = &self.turns {
            turns.flush().await;
        }
    }

    /// Refuses later messages that would have to wait, and waits for the earlier ones.
    pub(super) async fn close(&self) {
        if let Some(turns) = &self.turns {
            turns.close();
            turns.flush().await;
        }
    }
}

fn caught<R>(layer: impl FnOnce() -> Result<R, BoxError>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(layer)).unwrap_or_else(|panic| Err(panicked(panic))).map_err(failed)
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> BoxError {
    format!("a layer panicked: {}", text_of(panic)).into()
}

/// Error of a send whose layer failed.
fn failed(error: BoxError) -> Error {
    let kind = match error.downcast_ref::<Error>().map(Error::kind) {
        // What is not confirmed is the work of the layer. The message is certainly not stored.
        Some(ErrorKind::Unconfirmed) => ErrorKind::Unavailable,
        Some(kind) => kind,
        None => ErrorKind::Encode,
    };
    Error::new(kind, format!("a layer failed: {error}")).with_source(error)
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} layers", self.steps.len())
    }
}
