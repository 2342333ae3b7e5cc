//! Failures of single items of a list: each is reported, and the others are still shown.

use anyhow::{Result, bail};
use millstream::admin::GroupStats;
use millstream::delay::RecurringEntry;
use millstream::{ErrorKind, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context::Context;
use crate::exit::Exit;
use crate::human;

/// An item that could not be inspected, and the reason.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct Failed {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(in crate::commands) topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(in crate::commands) group: Option<String>,
    /// A delay queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(in crate::commands) queue: Option<String>,
    pub(in crate::commands) error: String,
}

impl Failed {
    pub(in crate::commands) fn topic(topic: &impl ToString, error: &millstream::Error) -> Self {
        Self { topic: Some(topic.to_string()), ..Self::new(error.to_string()) }
    }

    pub(in crate::commands) fn queue(queue: &impl ToString, error: &millstream::Error) -> Self {
        Self { queue: Some(queue.to_string()), ..Self::new(error.to_string()) }
    }

    /// Creates the record of a recurring message whose rule is not known here.
    pub(in crate::commands) fn rule(entry: &RecurringEntry, error: &millstream::Error) -> Self {
        Self::new(format!("recurring message {:?} of {}: {error}", entry.id.as_str(), entry.place))
    }

    fn new(error: String) -> Self {
        Self { topic: None, group: None, queue: None, error }
    }

    pub(in crate::commands) fn group(group: &impl ToString, error: &millstream::Error) -> Self {
        Self { group: Some(group.to_string()), ..Self::new(error.to_string()) }
    }

    pub(in crate::commands) fn of(self, topic: &impl ToString) -> Self {
        Self { topic: Some(topic.to_string()), ..self }
    }

    /// Creates the record of a topic that was listed and does not exist; `None` if it was deleted in between.
    pub(in crate::commands) async fn missing(cx: &Context, topic: &TopicName) -> Result<Option<Self>> {
        match cx.admin().survey(topic).await {
            Err(error) if error.is_transient() => Err(error.into()),
            Err(error) if error.kind() != ErrorKind::NotFound => Ok(Some(Self::topic(topic, &error))),
            _ => Ok(None),
        }
    }

    /// Creates the record of a part of a topic that could not be read.
    pub(in crate::commands) fn reason(topic: &TopicName, error: String) -> Self {
        Self { topic: Some(topic.to_string()), ..Self::new(error) }
    }

    /// Returns the parts of a group that could not be read.
    pub(in crate::commands) fn parts(
        topic: &TopicName,
        stats: &GroupStats,
    ) -> impl Iterator<Item = Self> + use<> {
        let of = |error: &str| Self::in_group(topic, &stats.group, error);
        stats.reasons().map(of).collect::<Vec<_>>().into_iter()
    }

    /// Creates the record of a part of a group that could not be read.
    pub(in crate::commands) fn in_group(
        topic: &impl ToString,
        group: &impl ToString,
        error: &(impl ToString + ?Sized),
    ) -> Self {
        Self { group: Some(group.to_string()), ..Self::new(error.to_string()) }.of(topic)
    }

    fn line(&self) -> String {
        let what = match (&self.topic, &self.group, &self.queue) {
            (Some(topic), Some(group), _) => format!("group {group} of topic {topic}: "),
            (Some(topic), None, _) => format!("topic {topic}: "),
            (None, Some(group), _) => format!("group {group}: "),
            (None, None, Some(queue)) => format!("delay queue {queue}: "),
            (None, None, None) => String::new(),
        };
        what + &self.error
    }

    /// Prints the reason for each item that is missing.
    pub(in crate::commands) fn note<'a>(cx: &Context, failed: impl IntoIterator<Item = &'a Self>) {
        failed.into_iter().for_each(|it| cx.output.note(&it.line()));
    }

    /// Returns the result of a command that has shown all other items.
    pub(in crate::commands) fn end<'a>(
        cx: &Context,
        failed: impl IntoIterator<Item = &'a Self>,
    ) -> Result<Exit> {
        let failed: Vec<&Self> = failed.into_iter().collect();
        Self::note(cx, failed.iter().copied());
        match failed.len() as u64 {
            0 => Ok(Exit::Done),
            some => bail!(
                "{} could not be read; `millstream verify` shows the faults",
                human::of(some, "thing", "things")
            ),
        }
    }
}

/// An item of a list, or the reason why it is missing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::commands) enum Listed<T> {
    Item(T),
    Failed(Failed),
}

impl<T> Listed<T> {
    pub(in crate::commands) fn known(all: &[Self]) -> impl Iterator<Item = &T> {
        all.iter().filter_map(|it| match it {
            Self::Item(it) => Some(it),
            Self::Failed(_) => None,
        })
    }

    pub(in crate::commands) fn failed(all: &[Self]) -> impl Iterator<Item = &Failed> {
        all.iter().filter_map(|it| match it {
            Self::Item(_) => None,
            Self::Failed(failed) => Some(failed),
        })
    }
}
