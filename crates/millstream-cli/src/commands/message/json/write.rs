//! Formats messages as lines of JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use millstream::Headers;
use millstream::crates::core::wire::Field;
use schemars::JsonSchema;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::commands::message::sanitize::{self, is_control};
use crate::commands::message::{Body, MessageView};

/// A message as a line.
#[derive(Serialize, JsonSchema)]
pub(super) struct JsonLineWriter<'a> {
    topic: &'a str,
    partition: u32,
    id: String,
    time_ms: u64,
    /// The number of the attempt, for a message that was delivered to a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    attempt: Option<u32>,
    #[serde(flatten)]
    body: &'a Body,
}

impl Serialize for MessageView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { topic_partition, id, attempt, body } = self;
        let (topic, partition) = (topic_partition.topic.as_str(), topic_partition.partition.0);
        let line =
            JsonLineWriter { topic, partition, id: id.to_string(), time_ms: id.ms, attempt: *attempt, body };
        line.serialize(serializer)
    }
}

/// The fields that describe the message. Structs flatten them into theirs.
impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Message(envelope) => {
                match envelope.key.as_deref().map(std::str::from_utf8) {
                    None => map.serialize_entry("key", &None::<&str>)?,
                    Some(Ok(key)) => map.serialize_entry("key", key)?,
                    Some(Err(_)) => {
                        let key = envelope.key.as_deref().unwrap_or_default();
                        map.serialize_entry("key_base64", &BASE64.encode(key))?;
                    }
                }
                map.serialize_entry("headers", &Written(&envelope.headers))?;
                match std::str::from_utf8(&envelope.payload) {
                    Err(_) => map.serialize_entry("payload_base64", &BASE64.encode(&envelope.payload))?,
                    Ok(text) => match structure(text) {
                        Some(json) => map.serialize_entry("payload", json)?,
                        None => map.serialize_entry("payload", text)?,
                    },
                }
            }
            Self::Malformed(why, fields) => {
                map.serialize_entry("malformed", why)?;
                let fields: Vec<_> = fields.iter().map(|(name, value)| (Text(name), Text(value))).collect();
                map.serialize_entry("fields", &fields)?;
            }
        }
        map.end()
    }
}

/// Returns the text if it can be embedded in a line unchanged and is read back identically: it has no line ends, and
/// no characters that would have to be escaped. Numbers and words stay strings, so that a field has one type if
/// payloads are text.
fn structure(text: &str) -> Option<&RawValue> {
    if !text.starts_with(['{', '[']) || text.contains(is_control) {
        return None;
    }
    serde_json::from_str::<&RawValue>(text).ok().filter(|json| json.get() == text)
}

/// Headers as an object, with a list where a name occurs several times in a row; as a list of pairs where an object
/// would not preserve their order.
struct Written<'a>(&'a Headers);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut groups: Vec<(&str, Vec<Text<'_>>)> = Vec::new();
        let mut are_apart = false;
        for (name, value) in self.0.iter() {
            match groups.iter().position(|(it, _)| *it == name) {
                None => groups.push((name, vec![Text(value)])),
                Some(at) => {
                    are_apart |= at + 1 != groups.len();
                    groups[at].1.push(Text(value));
                }
            }
        }
        if are_apart {
            let mut list = serializer.serialize_seq(Some(self.0.len()))?;
            for (name, value) in self.0.iter() {
                list.serialize_element(&(name, Text(value)))?;
            }
            return list.end();
        }
        let mut map = serializer.serialize_map(Some(groups.len()))?;
        for (name, values) in groups {
            match &values[..] {
                [value] => map.serialize_entry(name, value)?,
                values => map.serialize_entry(name, values)?,
            }
        }
        map.end()
    }
}

/// Formats headers alone, as they are in a message.
pub(crate) fn headers(headers: &Headers) -> serde_json::Result<String> {
    serde_json::to_string(&Written(headers))
}

/// A string, or `{"base64": "…"}`.
struct Text<'a>(&'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &BASE64.encode(self.0))?;
        map.end()
    }
}

/// Formats the fields of an entry that is not a message, as JSON in one line.
pub(crate) fn fields(fields: &[Field]) -> String {
    let pairs: Vec<_> = fields.iter().map(|(name, value)| (Text(name), Text(value))).collect();
    sanitize::json(&serde_json::to_string(&pairs).unwrap_or_default()).into_owned()
}
