//! `CloudEvents`, in the form of the binding for Kafka.

mod binary;
mod error;
mod layer;
mod structured;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use millstream_core::{Headers, Outcome};
use millstream_runtime::extract::FromMessage;
use millstream_runtime::{Delivery, Producer, SendFuture};
use serde::Serialize;

pub use error::InvalidEvent;
pub use layer::CloudEvents;

/// The version of the specification.
const VERSION: &str = "1.0";
/// Media type of JSON.
const JSON: &str = "application/json";

/// Event of [CloudEvents](https://cloudevents.io) 1.0: attributes and data.
///
/// Messages have the form of the [binding for Kafka](https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/kafka-protocol-binding.md), since there is none for
/// Redis. In binary mode, which is written by default, attributes are headers (`ce_id`, `ce_source`, `ce_specversion`, `ce_type`, `ce_time` and so on, and
/// `content-type`), and the payload is the data. In structured mode the payload is JSON with all of it, and the content type is
/// `application/cloudevents+json`. Both are read; the layer [`CloudEvents`] writes structured mode, and makes binary mode of what it reads.
///
/// An event is valid by construction: each setter checks its argument.
///
/// ```
/// # use bytes::Bytes;
/// # use millstream_payload::{CloudEvent, InvalidEvent};
/// # use millstream_runtime::{Delivery, Producer};
/// # #[derive(serde::Serialize)]
/// # struct Order { cents: u64 }
/// # async fn example(producer: Producer<Bytes>) -> Result<(), Box<dyn std::error::Error>> {
/// let placed = CloudEvent::new("order-7", "/shop", "com.example.order.placed")?
///     .time("2026-11-26T12:00:00Z")?
///     .json(&Order { cents: 1_200 })?;
/// placed.send(&producer).key("customer-1").await?;
/// # Ok(()) }
///
/// async fn handle(message: Delivery<Bytes>) -> Result<(), InvalidEvent> {
///     let event = CloudEvent::read(message.headers(), &message.payload)?;
///     println!("{} from {}", event.kind(), event.source());
///     Ok(())
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct CloudEvent {
    id: String,
    source: String,
    kind: String,
    content_type: Option<String>,
    /// All other attributes.
    others: BTreeMap<String, AttributeValue>,
    data: Option<Bytes>,
}

/// Value of an attribute. Binary mode has text alone, so there all values are read as `Text`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// String, URI, URI reference, timestamp, or binary data in base64.
    Text(String),
    /// Integer.
    Integer(i32),
    /// Boolean.
    Boolean(bool),
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
            Self::Boolean(is) => is.fmt(f),
        }
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i32> for AttributeValue {
    fn from(number: i32) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(is: bool) -> Self {
        Self::Boolean(is)
    }
}

impl CloudEvent {
    /// Creates an event without data. Source and id together identify it: consumers may take another one of both for a repetition.
    ///
    /// # Errors
    /// [`InvalidEvent::Missing`] if one of the three is empty.
    pub fn new(
        id: impl Into<String>,
        source: impl Into<String>,
        kind: impl Into<String>,
    ) -> Result<Self, InvalidEvent> {
        let (id, source, kind) = (id.into(), source.into(), kind.into());
        for (name, value) in [("id", &id), ("source", &source), ("type", &kind)] {
            if value.is_empty() {
                return Err(InvalidEvent::Missing(name));
            }
        }
        Ok(Self { id, source, kind, content_type: None, others: BTreeMap::new(), data: None })
    }

    /// Sets the time of the event: a text of RFC 3339, such as that of a [`Timestamp`](millstream_core::Timestamp).
    ///
    /// # Errors
    /// [`InvalidEvent::Value`] if it is not of RFC 3339.
    pub fn time(self, time: impl Into<String>) -> Result<Self, InvalidEvent> {
        self.attribute("time", time.into())
    }

    /// Sets the subject: what the event is about within its source.
    ///
    /// # Errors
    /// [`InvalidEvent::Value`] if it is empty.
    pub fn subject(self, subject: impl Into<String>) -> Result<Self, InvalidEvent> {
        self.attribute("subject", subject.into())
    }

    /// Sets the URI of the schema of the data.
    ///
    /// # Errors
    /// [`InvalidEvent::Value`] if it is empty.
    pub fn data_schema(self, uri: impl Into<String>) -> Result<Self, InvalidEvent> {
        self.attribute("dataschema", uri.into())
    }

    /// Sets an extension attribute, for example `partitionkey`. Its name has lower-case letters and digits.
    ///
    /// # Errors
    /// [`InvalidEvent::Name`], also for the attributes that have methods of their own; [`InvalidEvent::Value`].
    pub fn extension(self, name: &str, value: impl Into<AttributeValue>) -> Result<Self, InvalidEvent> {
        if matches!(name, "id" | "source" | "type" | "specversion" | "datacontenttype" | "data") {
            return Err(InvalidEvent::name(name));
        }
        self.attribute(name, value)
    }

    /// Sets the data, with its media type.
    #[must_use]
    pub fn data(mut self, content_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        self.content_type = Some(content_type.into());
        self.data = Some(data.into());
        self
    }

    /// Sets the data as JSON.
    ///
    /// # Errors
    /// [`InvalidEvent::Json`] if the value cannot be serialized.
    pub fn json(self, value: &impl Serialize) -> Result<Self, InvalidEvent> {
        let data = serde_json::to_vec(value)?;
        Ok(self.data(JSON, data))
    }

    fn attribute(mut self, name: &str, value: impl Into<AttributeValue>) -> Result<Self, InvalidEvent> {
        let value = value.into();
        check_name(name)?;
        let is_valid = match (name, &value) {
            ("time", AttributeValue::Text(text)) => is_rfc_3339(text),
            ("subject" | "dataschema", AttributeValue::Text(text)) => !text.is_empty(),
            ("time" | "subject" | "dataschema", _) => false,
            _ => true,
        };
        if !is_valid {
            return Err(InvalidEvent::Value(name.to_owned()));
        }
        self.others.insert(name.to_owned(), value);
        Ok(self)
    }
}

impl CloudEvent {
    /// Returns the id: unique within the source.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the source: a URI reference.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the type.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the media type of the data: the attribute `datacontenttype`.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// Returns another attribute: `time`, `subject`, `dataschema`, or an extension.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&AttributeValue> {
        self.others.get(name)
    }

    /// Returns these attributes, in the order of their names.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &AttributeValue)> {
        self.others.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the data. In binary mode an empty payload is no data.
    #[must_use]
    pub fn payload(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// Sends the event in binary mode. Key, dedup id and so on are those of the returned send. Nothing makes a key of an attribute: use
    /// `.key(…)` with the one that you want, for example the extension `partitionkey`.
    pub fn send<'a>(&'a self, producer: &'a Producer<Bytes>) -> SendFuture<'a, Bytes> {
        static NONE: Bytes = Bytes::new();
        self.attach(producer.send(self.data.as_ref().unwrap_or(&NONE)))
    }

    /// Adds the attributes to the send of a value, which is the data: for producers with a codec. The content type is that of the event: set it with
    /// [`with_content_type`](Self::with_content_type).
    pub fn attach<'a, T>(&self, mut send: SendFuture<'a, T>) -> SendFuture<'a, T> {
        for (name, value) in self.headers().iter() {
            send = send.header(name, value);
        }
        send
    }

    /// Sets the media type of data that a codec makes.
    #[must_use]
    pub fn with_content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Reads a message in binary or structured mode.
    ///
    /// # Errors
    /// [`InvalidEvent`] if it is not an event, also for a structured mode other than JSON, and for a batch.
    pub fn read(headers: &Headers, payload: &Bytes) -> Result<Self, InvalidEvent> {
        match structured::mode(headers) {
            structured::Mode::Binary => Self::from_binary(headers, payload),
            structured::Mode::Json => Self::from_structured(payload),
            structured::Mode::Other => Err(InvalidEvent::Format),
        }
    }
}

/// Without data and values of attributes: they may be secrets.
impl fmt::Debug for CloudEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudEvent")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("type", &self.kind)
            .field("content_type", &self.content_type)
            .field("attributes", &self.others.keys())
            .field("bytes", &self.data.as_ref().map(Bytes::len))
            .finish()
    }
}

/// The attributes of an event in binary mode, as an argument of a handler; without data. The layer [`CloudEvents`] makes binary mode of
/// structured messages. A message that is no event is a dead letter with the reason `rejected`.
impl<S> FromMessage<S> for CloudEvent {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Self::from_binary(delivery.headers(), &Bytes::new()).map_err(Outcome::dead_letter)
    }
}

fn check_name(name: &str) -> Result<(), InvalidEvent> {
    let is_valid =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    is_valid.then_some(()).ok_or_else(|| InvalidEvent::name(name))
}

/// Whether it has the form `2018-04-05T17:31:00.123Z`, or with an offset, and numbers in their ranges.
fn is_rfc_3339(text: &str) -> bool {
    let number = |part: Option<&str>, most: u32| {
        let digits = part.filter(|part| part.len() >= 2 && part.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|part| part.parse::<u32>().ok()).is_some_and(|number| number <= most)
    };
    let (Some(date), Some(clock)) = (text.get(..10), text.get(11..19)) else { return false };
    let fits = |text: &str, form: &str| {
        text.bytes()
            .zip(form.bytes())
            .all(|(byte, form)| if form == b'0' { byte.is_ascii_digit() } else { byte == form })
    };
    let is_moment = fits(date, "0000-00-00")
        && matches!(text.as_bytes()[10], b'T' | b't' | b' ')
        && fits(clock, "00:00:00")
        && (1..=12).contains(&date[5..7].parse().unwrap_or(0))
        && (1..=31).contains(&date[8..].parse().unwrap_or(0))
        && number(clock.get(..2), 23)
        && number(clock.get(3..5), 59)
        && number(clock.get(6..), 60);
    let rest = &text[19..];
    let fraction =
        rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let has_fraction = rest.starts_with('.');
    let zone = if has_fraction { &rest[1 + fraction..] } else { rest };
    let is_zone = match zone {
        "Z" | "z" => true,
        _ => {
            zone.len() == 6
                && (fits(zone, "+00:00") || fits(zone, "-00:00"))
                && number(zone.get(1..3), 23)
                && number(zone.get(4..), 59)
        }
    };
    is_moment && is_zone && (!has_fraction || fraction > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for text in [
            "2018-04-05T17:31:00Z",
            "2018-04-05t17:31:00z",
            "2018-04-05T17:31:60.123456789+05:30",
            "1985-04-12T23:20:50.52Z",
            "1937-01-01T12:00:27.87-00:20",
        ] {
            assert!(is_rfc_3339(text), "{text}");
        }
        for text in [
            "",
            "2018-04-05",
            "2018-04-05T17:31:00",
            "2018-04-05T17:31Z",
            "2018-13-05T17:31:00Z",
            "2018-04-32T17:31:00Z",
            "2018-00-05T17:31:00Z",
            "2018-04-05T24:31:00Z",
            "2018-04-05T17:61:00Z",
            "2018-04-05T17:31:00.Z",
            "2018-04-05T17:31:00+0530",
            "2018-04-05T17:31:00+24:00",
            "2018-04-05T17:31:00Z ",
            "+018-04-05T17:31:00Z",
            "2018-04-05T17:31:0äZ",
            "2018-04-0ä",
            "äääääääääääääääää",
        ] {
            assert!(!is_rfc_3339(text), "{text}");
        }
    }
}
