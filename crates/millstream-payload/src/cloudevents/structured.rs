//! Structured mode: all of the event is one JSON document.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use millstream_core::Headers;
use serde_json::value::{RawValue, to_raw_value};

use super::binary::CONTENT_TYPE;
use super::{AttributeValue, CloudEvent, InvalidEvent, JSON, VERSION};

/// Beginning of the content types of structured modes.
const CLOUDEVENTS: &str = "application/cloudevents";
/// Content type that is written.
pub(super) const WRITTEN: &str = "application/cloudevents+json; charset=UTF-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Binary,
    Json,
    /// A structured mode that cannot be read.
    Other,
}

/// Returns the mode of a message, as the binding tells them apart.
pub(super) fn mode(headers: &Headers) -> Mode {
    let Some(content_type) = headers.get_str(CONTENT_TYPE) else { return Mode::Binary };
    let kind = essence(content_type);
    if !kind.starts_with(CLOUDEVENTS) {
        Mode::Binary
    } else if kind == "application/cloudevents+json" {
        Mode::Json
    } else {
        Mode::Other
    }
}

/// Returns a media type without parameters, in lower case.
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_json(content_type: &str) -> bool {
    let kind = essence(content_type);
    kind.split_once('/').is_some_and(|(_, subtype)| subtype == "json" || subtype.ends_with("+json"))
}

impl CloudEvent {
    /// Returns the event as JSON, the payload of structured mode. Data whose media type is one of JSON, or missing, is a part of it; other data is
    /// written in base64.
    ///
    /// # Errors
    /// [`InvalidEvent::Data`] if the data should be JSON and is not.
    pub fn to_structured(&self) -> Result<Bytes, InvalidEvent> {
        let mut members: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
        for (name, value) in &self.others {
            let value = match value {
                AttributeValue::Text(text) => to_raw_value(text)?,
                AttributeValue::Integer(number) => to_raw_value(number)?,
                AttributeValue::Boolean(is) => to_raw_value(is)?,
            };
            members.insert(name, value);
        }
        let texts =
            [("specversion", VERSION), ("id", &self.id), ("source", &self.source), ("type", &self.kind)];
        for (name, text) in texts.into_iter().chain(self.content_type().map(|it| ("datacontenttype", it))) {
            members.insert(name, to_raw_value(text)?);
        }
        if let Some(data) = &self.data {
            if self.content_type().is_none_or(is_json) {
                let json: &RawValue = serde_json::from_slice(data).map_err(|_| InvalidEvent::Data)?;
                members.insert("data", json.to_owned());
            } else {
                members.insert("data_base64", to_raw_value(&STANDARD.encode(data))?);
            }
        }
        Ok(serde_json::to_vec(&members)?.into())
    }

    pub(super) fn from_structured(payload: &Bytes) -> Result<Self, InvalidEvent> {
        let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(payload)?;
        // Of an attribute, null is the same as none. Data may be null.
        members.retain(|name, value| name == "data" || value.get() != "null");
        let mut text = |name: &str| match members.remove(name) {
            None => Ok(None),
            Some(value) => match serde_json::from_str::<String>(value.get()) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(InvalidEvent::Value(name.to_owned())),
            },
        };
        if text("specversion")?.ok_or(InvalidEvent::Missing("specversion"))? != VERSION {
            return Err(InvalidEvent::Version);
        }
        let mut required = |name| Ok::<_, InvalidEvent>(text(name)?.unwrap_or_default());
        let mut event = Self::new(required("id")?, required("source")?, required("type")?)?;
        event.content_type = text("datacontenttype")?;
        let encoded = text("data_base64")?;
        let data = members.remove("data");
        event.data = match (encoded, data) {
            (None, None) => None,
            (Some(encoded), None) => Some(STANDARD.decode(encoded).map_err(|_| InvalidEvent::Data)?.into()),
            (None, Some(data)) if event.content_type().is_none_or(is_json) => {
                // What was only implied has to be said in binary mode.
                event.content_type.get_or_insert_with(|| JSON.to_owned());
                Some(data.get().to_owned().into())
            }
            (None, Some(data)) => {
                let text: String = serde_json::from_str(data.get()).map_err(|_| InvalidEvent::Data)?;
                Some(text.into())
            }
            (Some(_), Some(_)) => return Err(InvalidEvent::Data),
        };
        for (name, value) in members {
            let invalid = || InvalidEvent::Value(name.clone());
            super::check_name(&name)?;
            let value = match value.get().as_bytes().first() {
                Some(b'"') => AttributeValue::Text(serde_json::from_str(value.get()).map_err(|_| invalid())?),
                Some(b't' | b'f') => AttributeValue::Boolean(value.get() == "true"),
                Some(b'-' | b'0'..=b'9') => {
                    AttributeValue::Integer(value.get().parse().map_err(|_| invalid())?)
                }
                _ => return Err(invalid()),
            };
            event = event.extension(&name, value)?;
        }
        Ok(event)
    }
}
