//! An entry of the audit log, as it is stored.

use std::time::SystemTime;

use millstream::Timestamp;
use millstream::admin::{Message, REPLAYED_FROM};
use millstream::crates::core::Limits;
use serde::{Deserialize, Serialize};

use super::subject::Subject;

/// Words of the command line for what makes room, or stops something.
const RELIEVES: [&str; 21] = [
    "group pause",
    "group resume",
    "group reset",
    "queue pause",
    "queue resume",
    "queue cancel",
    "message cancel",
    "batch cancel",
    "queue dead purge",
    "schedule pause",
    "schedule resume",
    "delayed cancel",
    "dlq purge",
    "retries kill",
    "topic alter",
    "topic delete",
    "limits set",
    "limits unset",
    "lock release",
    "verify",
    "verify --repair",
];

/// Words of an export, which changes nothing.
pub(crate) const EXPORT: &str = "dlq export";

/// Version of the form of entries. Fields may be added without another version.
const VERSION: u32 = 1;

/// What an entry records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    /// An action is about to begin.
    #[default]
    Begin,
    /// A user has asked a running action to stop.
    Stop,
    /// An action has ended.
    End,
}

impl Event {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Stop => "stop",
            Self::End => "end",
        }
    }
}

/// Entry of the audit log: the JSON of a message. An end repeats what its beginning has, so that each can be read alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) version: u32,
    pub(crate) event: Event,
    /// Id of the action, also the key of the message.
    pub(crate) id: String,
    /// Time of the event, by the clock of the dashboard's process.
    pub(crate) time: String,
    pub(crate) user: String,
    /// Words of the command line: `dlq replay`.
    pub(crate) action: String,
    #[serde(flatten)]
    pub(crate) subject: Subject,
    /// Number that was counted before, and confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<u64>,
    /// Time of the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) done: Option<u64>,
    /// Those that were gone, claimed by others, or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<u64>,
    /// `done`, `cancelled` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Entry {
    /// Creates the entry of an event that happens now.
    pub(crate) fn now(event: Event, id: &str, user: &str, action: &str, subject: Subject) -> Self {
        let time = Timestamp::from(SystemTime::now()).to_string();
        let (id, user, action) = (id.to_owned(), user.to_owned(), action.to_owned());
        Self { version: VERSION, event, id, time, user, action, subject, ..Self::default() }
    }

    /// Returns whether it is about what makes room, or stops something.
    pub(crate) fn relieves(&self) -> bool {
        RELIEVES.contains(&&*self.action)
    }

    /// Returns whether it is about an export.
    pub(crate) fn is_export(&self) -> bool {
        self.action == EXPORT
    }

    /// Reads an entry. `None` for a message of another form.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let envelope = message.decode(&Limits::default()).envelope.ok()?;
        // Earlier versions replay dead letters to any topic.
        if envelope.headers.get(REPLAYED_FROM).is_some() {
            return None;
        }
        serde_json::from_slice(&envelope.payload).ok()
    }

    /// Writes it as an event of tracing.
    pub(crate) fn trace(&self) {
        let Self { id, user, action, asked, done, skipped, result, error, .. } = self;
        let (event, on) = (self.event.as_str(), self.subject.to_string());
        tracing::info!(
            target: "millstream_dashboard::audit", id, user, action, on, asked, done, skipped, result, error, "{event}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_an_entry_is_the_documented_one() {
        let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
        let subject = Subject::group(&topic, &group).select("fingerprint", "00ff").set("rate", "5");
        let mut entry = Entry::now(Event::Begin, "a1", "ann", "dlq replay", subject);
        entry.time = "2026-01-31T12:00:00.000Z".into();
        entry.asked = Some(37);
        let begin = r#"{"version":1,"event":"begin","id":"a1","time":"2026-01-31T12:00:00.000Z","user":"ann","action":"dlq replay","#;
        let about = r#""topic":"orders","group":"billing","select":{"fingerprint":"00ff"},"settings":{"rate":"5"},"asked":37}"#;
        let text = serde_json::to_string(&entry).expect("JSON");
        assert_eq!(text, format!("{begin}{about}"));
        assert_eq!(serde_json::from_str::<Entry>(&text).expect("an entry"), entry);
        let later = text.replace("\"asked\"", "\"new_field\":1,\"asked\"");
        assert_eq!(serde_json::from_str::<Entry>(&later).expect("of a later version"), entry);
    }
}
