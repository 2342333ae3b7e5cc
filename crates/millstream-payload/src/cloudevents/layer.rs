//! Layers of events: modes, and checks.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::{BoxError, Envelope, Headers};
use millstream_runtime::{Answer, Delivery, Layer, Next, ProducerLayer};

use super::CloudEvent;
use super::binary::{CONTENT_TYPE, PREFIX, is_event};
use super::structured::{Mode, WRITTEN, mode};

/// Checks events, and converts their modes: a layer of producers and of consumers.
///
/// - In a consumer it makes binary mode of messages in structured mode: attributes become headers, and the payload is the data. So a codec decodes the
///   data, [`Router::by_header("ce_type")`](millstream_runtime::Router::by_header) routes, and a handler may have a [`CloudEvent`] as an
///   argument, whatever the producer writes.
/// - In a producer it checks that messages are events, and [`structured`](Self::structured) writes them in structured mode.
///
/// A message that is meant as an event and is not valid is a dead letter with the reason `undecodable`, and in a producer an error with the kind
/// `Encode`. Messages that are not meant as events, without `ce_specversion` and a content type of `CloudEvents`, pass a consumer as they
/// are; a producer refuses them.
///
/// In a producer it stands in front of compression and encryption, in a consumer behind them.
///
/// ```
/// # use bytes::Bytes;
/// # use millstream_core::Result;
/// # use millstream_payload::{CloudEvent, CloudEvents};
/// # use millstream_runtime::extract::{Payload, handler};
/// # use millstream_runtime::{Consumer, ConsumerBuilder, Router};
/// # #[derive(serde::Deserialize, serde::Serialize)]
/// # struct Order;
/// async fn placed(event: CloudEvent, Payload(order): Payload<Order>) {
///     println!("order of {}", event.source());
/// }
///
/// # async fn example(events: ConsumerBuilder<Bytes>) -> Result<Consumer> {
/// let router = Router::by_header("ce_type").on("com.example.order.placed", handler(placed));
/// events.layer(CloudEvents::new()).start_router(router).await
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudEvents {
    structured: bool,
}

impl CloudEvents {
    /// Creates a layer that writes binary mode.
    #[must_use]
    pub const fn new() -> Self {
        Self { structured: false }
    }

    /// Writes structured mode, for readers that know no headers. They cost more: the data is parsed, or written in base64.
    #[must_use]
    pub const fn structured(mut self) -> Self {
        self.structured = true;
        self
    }
}

/// Returns the headers that have nothing of an event.
fn others(headers: &Headers) -> Headers {
    let mut others = Headers::new();
    for (name, value) in headers.iter() {
        if name != CONTENT_TYPE && !name.starts_with(PREFIX) {
            others.append(name, value.clone());
        }
    }
    others
}

impl ProducerLayer for CloudEvents {
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        let event = CloudEvent::read(&message.headers, &message.payload)?;
        if self.structured && mode(&message.headers) == Mode::Binary {
            message.payload = event.to_structured()?;
            message.headers = others(&message.headers);
            message.headers.append(CONTENT_TYPE, WRITTEN);
        }
        Ok(())
    }
}

#[async_trait]
impl Layer for CloudEvents {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let mode = mode(delivery.headers());
        if mode == Mode::Binary && !is_event(delivery.headers()) {
            return next.run(delivery).await;
        }
        let event = match CloudEvent::read(delivery.headers(), &delivery.payload) {
            Ok(event) => event,
            Err(invalid) => return Answer::undecodable(invalid),
        };
        if mode == Mode::Json {
            let mut headers = others(delivery.headers());
            for (name, value) in event.headers().iter() {
                headers.append(name, value.clone());
            }
            *delivery.headers_mut() = headers;
            delivery.payload = event.payload().cloned().unwrap_or_default();
        }
        next.run(delivery).await
    }
}
