//! Binary mode: attributes are headers.

use bytes::Bytes;
use millstream_core::Headers;

use super::{AttributeValue, CloudEvent, InvalidEvent, VERSION};

/// Beginning of the names of headers with attributes.
pub(super) const PREFIX: &str = "ce_";
/// Header with the media type of the payload.
pub(super) const CONTENT_TYPE: &str = "content-type";

/// Whether a message in binary mode is meant as an event.
pub(super) fn is_event(headers: &Headers) -> bool {
    headers.get("ce_specversion").is_some()
}

impl CloudEvent {
    /// Returns the attributes as headers of binary mode.
    #[must_use]
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::new();
        headers.append("ce_specversion", VERSION);
        headers.append("ce_id", self.id.clone());
        headers.append("ce_source", self.source.clone());
        headers.append("ce_type", self.kind.clone());
        for (name, value) in &self.others {
            headers.append(format!("{PREFIX}{name}"), value.to_string());
        }
        if let Some(content_type) = &self.content_type {
            headers.append(CONTENT_TYPE, content_type.clone());
        }
        headers
    }

    pub(super) fn from_binary(headers: &Headers, payload: &Bytes) -> Result<Self, InvalidEvent> {
        let text = |name: &'static str| match headers.get(name) {
            None => Ok(None),
            Some(_) => {
                headers.get_str(name).map(Some).ok_or_else(|| InvalidEvent::Value(plain(name).to_owned()))
            }
        };
        if text("ce_specversion")?.ok_or(InvalidEvent::Missing("specversion"))? != VERSION {
            return Err(InvalidEvent::Version);
        }
        let required = |name| Ok::<_, InvalidEvent>(text(name)?.unwrap_or_default());
        let mut event = Self::new(required("ce_id")?, required("ce_source")?, required("ce_type")?)?;
        event.content_type = text(CONTENT_TYPE)?.map(str::to_owned);
        for (name, value) in headers.iter() {
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            if matches!(name, "specversion" | "id" | "source" | "type") {
                continue;
            }
            let value = std::str::from_utf8(value).map_err(|_| InvalidEvent::name(name))?;
            // The first one counts, as with all headers.
            if event.get(name).is_none() {
                event = event.extension(name, AttributeValue::from(value))?;
            }
        }
        event.data = (!payload.is_empty()).then(|| payload.clone());
        Ok(event)
    }
}

fn plain(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}
