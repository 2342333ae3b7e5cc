//! What an action is about: the topic, group, queue or lock, and the selection within it.

use std::collections::BTreeMap;
use std::fmt;

use millstream::admin::LimitPattern;
use millstream::crates::core::QueueName;
use millstream::{GroupName, TopicName};
use serde::{Deserialize, Serialize};

use crate::redaction::Redaction;

/// Longest value of a selection, in bytes: an id that a client made up may be longer.
const LONGEST: usize = 1_024;
/// Text in place of what is hidden.
const HIDDEN: &str = "(redacted)";

/// What an action is about. Texts are as they were given, and are escaped where they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subject {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<String>,
    /// Keys of limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
    /// The ids, or the conditions of the filter. Empty: everything.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) select: BTreeMap<String, String>,
    /// How the action works: a rate, a target.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) settings: BTreeMap<String, String>,
}

fn bounded(value: impl Into<String>) -> String {
    let mut value = value.into();
    if value.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
        value.truncate(end);
        value.push('…');
    }
    value
}

impl Subject {
    pub(crate) fn topic(topic: &TopicName) -> Self {
        Self { topic: Some(topic.to_string()), ..Self::default() }
    }

    pub(crate) fn group(topic: &TopicName, group: &GroupName) -> Self {
        Self { group: Some(group.to_string()), ..Self::topic(topic) }
    }

    pub(crate) fn queue(queue: &QueueName) -> Self {
        Self { queue: Some(queue.to_string()), ..Self::default() }
    }

    pub(crate) fn lock(lock: impl fmt::Display) -> Self {
        Self { lock: Some(lock.to_string()), ..Self::default() }
    }

    pub(crate) fn limit(pattern: &LimitPattern) -> Self {
        Self { limit: Some(pattern.to_string()), ..Self::default() }
    }

    /// Adds a condition, or an id.
    pub(crate) fn select(mut self, name: &str, value: impl Into<String>) -> Self {
        self.select.insert(name.to_owned(), bounded(value));
        self
    }

    /// Adds conditions.
    pub(crate) fn select_all(self, conditions: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        conditions.into_iter().fold(self, |subject, (name, value)| subject.select(name, value))
    }

    /// Adds a setting.
    pub(crate) fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.settings.insert(name.to_owned(), bounded(value));
        self
    }

    /// Replaces what quotes hidden parts of messages.
    pub(crate) fn redacted(mut self, hidden: &Redaction) -> Self {
        let mut replace = |name: &str, is_hidden: bool, by: String| {
            if is_hidden && let Some(value) = self.select.get_mut(name) {
                *value = by;
            }
        };
        replace("payload", hidden.hides_payload(), HIDDEN.to_owned());
        replace("key", hidden.hides_key(), HIDDEN.to_owned());
        let header =
            self.select.get("header").and_then(|it| it.split_once('=')).map(|(name, _)| name.to_owned());
        if let Some(name) = header.filter(|name| hidden.hides_header(name)) {
            self.select.insert("header".to_owned(), format!("{name}={HIDDEN}"));
        }
        self
    }
}

impl Subject {
    /// Names the place alone: `group billing of topic orders`.
    pub(crate) fn place(&self) -> String {
        let Self { topic, group, queue, lock, limit, .. } = self;
        let parts = [("group", group), ("topic", topic), ("queue", queue), ("lock", lock), ("limit", limit)];
        let named = parts.iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?)));
        named.collect::<Vec<_>>().join(" of ")
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        for (at, (name, value)) in self.select.iter().enumerate() {
            write!(f, "{} {name} = {value}", if at > 0 { "," } else { ", those where" })?;
        }
        for (name, value) in &self.settings {
            write!(f, "; {name}: {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
        Subject::group(&topic, &group)
            .select("payload", "secret")
            .select("header", "token=abc")
            .set("rate", "5")
    }

    #[test]
    fn it_is_shown_in_words() {
        let shown =
            "group billing of topic orders, those where header = token=abc, payload = secret; rate: 5";
        assert_eq!(subject().to_string(), shown);
        assert_eq!(Subject::lock("invoice:1").to_string(), "lock invoice:1");
        let long = Subject::default().select("id", "ü".repeat(2_000)).to_string();
        assert!(long.len() < 1_100 && long.ends_with('…'), "{}", long.len());
    }

    #[test]
    fn what_it_quotes_is_redacted() {
        let hidden = Redaction::none().payload().key().header("Token");
        let shown = subject().select("key", "k").redacted(&hidden).to_string();
        assert!(!shown.contains("secret") && !shown.contains("abc") && !shown.contains("= k"), "{shown}");
        assert_eq!(shown.matches(HIDDEN).count(), 3, "{shown}");
        assert_eq!(subject().redacted(&Redaction::none()), subject());
    }
}
