//! Layers: code of the user between codec and server, for every payload type.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::panics::text_of;
use millstream_core::{BoxError, Envelope};

/// Changes each message behind the codec and before it is stored: it may compress or encrypt the payload, and add headers.
///
/// Layers are added with [`ProducerBuilder::layer`](crate::ProducerBuilder::layer), and run in the order in which they were added. Those of a
/// consumer undo what they do in the opposite order: `compress, encrypt` here, `decrypt, decompress` there. The limits of a message count
/// for what the last one leaves. The key stays as it is, since it has a partition. A layer of one side alone makes dead letters with
/// the reason `undecodable`.
///
/// It is called where the message is sent, and must not block.
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
    /// The send fails with [`ErrorKind::Encode`]; nothing is stored. A panic does the same.
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError>;
}

/// The layers of a producer, in their order.
#[derive(Default)]
pub(super) struct Layers(Vec<Arc<dyn ProducerLayer>>);

impl Layers {
    pub(super) fn add(&mut self, layer: impl ProducerLayer) {
        self.0.push(Arc::new(layer));
    }

    /// Calls them, one after the other.
    pub(super) fn apply(&self, message: &mut Envelope) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let key = message.key.clone();
        for layer in &self.0 {
            let called = catch_unwind(AssertUnwindSafe(|| layer.send(message)));
            called
                .unwrap_or_else(|panic| Err(format!("a layer panicked: {}", text_of(panic)).into()))
                .map_err(|error| Error::new(ErrorKind::Encode, format!("a layer failed: {error}")))?;
        }
        message.key = key;
        Ok(())
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} layers", self.0.len())
    }
}
