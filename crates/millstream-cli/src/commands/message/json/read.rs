//! Parses lines of JSON into messages.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use millstream::{Envelope, MessageId};
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A message from a line of JSON, and the options for sending it.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) envelope: Envelope,
    pub(crate) partition: Option<u32>,
    /// Unparsed: the command parses such text.
    pub(crate) delay: Option<String>,
    pub(crate) at: Option<String>,
    /// The id under which it waits.
    pub(crate) id: Option<String>,
    /// The id by which a send that is repeated is recognised.
    pub(crate) dedup: Option<String>,
    /// The id with which no second message is stored while one has to be settled.
    pub(crate) unique: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonLine {
    key: Option<String>,
    key_base64: Option<String>,
    #[serde(default)]
    headers: Pairs,
    #[serde(default, deserialize_with = "there")]
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    partition: Option<u32>,
    delay: Option<String>,
    #[serde(alias = "due")]
    at: Option<String>,
    id: Option<String>,
    dedup: Option<String>,
    unique: Option<String>,
    // Other fields of a shown message, which cannot be sent.
    #[serde(rename = "topic")]
    _topic: Option<IgnoredAny>,
    #[serde(rename = "time_ms")]
    _time: Option<IgnoredAny>,
    #[serde(rename = "due_ms")]
    _due: Option<IgnoredAny>,
    #[serde(rename = "attempt")]
    _attempt: Option<IgnoredAny>,
}

/// Parses a line.
///
/// # Errors
/// The fault in the line.
pub(crate) fn read(line: &[u8]) -> Result<Read, String> {
    let line: JsonLine = serde_json::from_slice(line).map_err(|error| describe(&error))?;
    let key = match (line.key, line.key_base64) {
        (Some(_), Some(_)) => return Err("both key and key_base64".into()),
        (Some(key), None) => Some(key.into()),
        (None, Some(key)) => Some(bytes("key_base64", &key)?),
        (None, None) => None,
    };
    let payload = match (line.payload, line.payload_base64) {
        (Some(_), Some(_)) => return Err("both payload and payload_base64".into()),
        (Some(json), None) => payload(&json)?,
        (None, Some(payload)) => bytes("payload_base64", &payload)?,
        (None, None) => return Err("neither payload nor payload_base64".into()),
    };
    let mut envelope = Envelope { key, payload, ..Envelope::default() };
    for (name, value) in line.headers.0 {
        envelope.headers.append(name, value);
    }
    let id = line.id.filter(|id| {
        // The id of an entry, as it is shown, does not apply to the message that is sent. A delayed message has its
        // own id.
        line.delay.is_some() || line.at.is_some() || id.parse::<MessageId>().is_err()
    });
    let JsonLine { partition, delay, at, dedup, unique, .. } = line;
    Ok(Read { envelope, partition, delay, at, id, dedup, unique })
}

/// Converts a string to its text, and any other value to its JSON, unchanged.
fn payload(json: &RawValue) -> Result<Bytes, String> {
    if json.get().starts_with('"') {
        let text: String = serde_json::from_str(json.get()).map_err(|error| format!("payload: {error}"))?;
        return Ok(text.into());
    }
    Ok(json.get().to_owned().into())
}

/// Formats an error with its position in the line. The line number is omitted, as it is always 1.
fn describe(error: &serde_json::Error) -> String {
    let what = if error.is_data() { "" } else { "not JSON: " };
    format!("{what}{}", error.to_string().replace("at line 1 column", "at column"))
}

fn bytes(name: &str, base64: &str) -> Result<Bytes, String> {
    BASE64.decode(base64).map(Bytes::from).map_err(|error| format!("{name}: {error}"))
}

/// Reads `null` as a value, not as absence.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Headers in the format of `write.rs`.
#[derive(Default)]
struct Pairs(Vec<(String, Bytes)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("headers: an object, or a list of pairs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, values)) = map.next_entry::<String, Values>()? {
                    pairs.extend(values.0.into_iter().map(|value| (name.clone(), value)));
                }
                Ok(Pairs(pairs))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, Value(value))) = list.next_element::<(String, Value)>()? {
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }

            fn visit_unit<E>(self) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }
        }
        deserializer.deserialize_any(Each)
    }
}

/// The value of a header, or several values.
struct Values(Vec<Bytes>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "the value of a header is a string, {\"base64\": …}, or a list of these"
        )]
        enum Either {
            One(Value),
            Many(Vec<Value>),
        }
        Ok(Self(match Either::deserialize(deserializer)? {
            Either::One(Value(value)) => vec![value],
            Either::Many(values) => values.into_iter().map(|Value(value)| value).collect(),
        }))
    }
}

/// A single value in the format of `write.rs`.
struct Value(Bytes);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Encoded {
            base64: String,
        }
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "the value of a header is a string or {\"base64\": …}")]
        enum Either {
            Text(String),
            Bytes(Encoded),
        }
        match Either::deserialize(deserializer)? {
            Either::Text(text) => Ok(Self(text.into())),
            Either::Bytes(Encoded { base64 }) => {
                bytes("a header", &base64).map(Self).map_err(D::Error::custom)
            }
        }
    }
}
