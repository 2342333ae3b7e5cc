//! Messages that are no valid events.

/// Message that is not a valid event. It never shows values of attributes or data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A required attribute is missing or empty.
    #[error("the event has no {0}")]
    Missing(&'static str),
    /// The event has another version of the specification than 1.0.
    #[error("the event has another version of CloudEvents than 1.0")]
    Version,
    /// The name of an attribute has other characters than lower-case letters and digits, or may not be set. It shows the beginning, escaped.
    #[error("\"{0}\" is no name of an attribute")]
    Name(String),
    /// The value of this attribute is not of its type, or not UTF-8.
    #[error("the value of the attribute {0} is not of its type")]
    Value(String),
    /// The content type is one of `CloudEvents` that cannot be read: another format than JSON, or a batch.
    #[error("the event is a batch, or in another format than JSON")]
    Format,
    /// The data is not what its media type says, is not base64, or is there twice.
    #[error("the data of the event is not what its content type says")]
    Data,
    /// The event is no JSON object, or its data cannot be written as JSON.
    #[error("the event is no valid JSON")]
    Json,
}

impl InvalidEvent {
    pub(super) fn name(name: &str) -> Self {
        Self::Name(name.chars().take(64).collect::<String>().escape_default().to_string())
    }
}

/// Without its text, which may quote the payload.
impl From<serde_json::Error> for InvalidEvent {
    fn from(_: serde_json::Error) -> Self {
        Self::Json
    }
}
