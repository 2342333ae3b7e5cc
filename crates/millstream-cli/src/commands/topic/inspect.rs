//! `topic list` and `topic describe`.

use anyhow::Result;
use clap::Args;
use millstream::admin::TopicSurvey;
use millstream::crates::core::inspect::LogState;
use millstream::{ErrorKind, MessageId, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::shared::failures::{Failed, Listed};
use crate::commands::shared::view::{GroupView, TopicView};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Lists all topics by name
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic list
  millstream topic list --json | jq -r '.data[].topic'")]
pub(super) struct TopicList {}

impl TopicList {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let admin = cx.admin();
        let mut topics = Vec::new();
        for name in admin.topics().await? {
            match admin.topic(&name).await {
                Ok(spec) => topics.push(Listed::Item(TopicView::of(&spec))),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    topics.extend(Failed::missing(cx, &name).await?.map(Listed::Failed));
                }
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(error) => topics.push(Listed::Failed(Failed::topic(&name, &error))),
            }
        }
        cx.output.show(&topics, |topics| {
            let titles = ["topic", ">partitions", "retention", ">max length"];
            output::table(&titles, Listed::known(topics).map(TopicView::row))
        })?;
        Failed::end(cx, Listed::failed(&topics))
    }
}

/// Shows the settings of a topic, its partitions with their oldest and newest entries, and the state of each of its groups
///
/// `lag` is the number of entries that were never handed out to a group, `oldest` the age of the oldest message that is unread,
/// pending or due for a retry. `backlog` is all remaining work: lag, pending,
/// retrying, and delayed messages that are due.
///
/// A lag that would take too long to count is shown as `>= 10,000` or `?`; in JSON it is `null`, with `lag_at_least`.
/// Figures that cannot be read are `?`, and `null` in JSON; the exit code is then 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic describe orders
  millstream topic describe orders --json | jq '.data.groups[] | {group, backlog}'")]
pub(super) struct TopicDescribe {
    /// The topic
    topic: TopicName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TopicInspectView {
    #[serde(flatten)]
    topic: TopicView,
    /// `null` if it is unknown.
    entries: Option<u64>,
    /// The id of the oldest entry of all partitions that can be read.
    first_id: Option<String>,
    /// The id of the newest one.
    last_id: Option<String>,
    logs: Vec<LogView>,
    delayed: Option<u64>,
    overdue: Option<u64>,
    groups: Vec<GroupView>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

/// The log of a partition.
#[derive(Debug, Serialize, JsonSchema)]
struct LogView {
    partition: u32,
    /// `null` if the log cannot be read.
    entries: Option<u64>,
    /// The id of the oldest entry that is there: `"1795695574653-0"`. Its first number is the server's time, in milliseconds.
    first_id: Option<String>,
    last_id: Option<String>,
}

impl LogView {
    fn of(partition: usize, log: &millstream::Result<LogState>) -> Self {
        let log = log.as_ref().ok();
        let id = |id: fn(&LogState) -> Option<MessageId>| log.and_then(id).map(|id| id.to_string());
        Self {
            partition: partition as u32,
            entries: log.map(|log| log.length),
            first_id: id(|log| log.first),
            last_id: id(|log| log.last),
        }
    }

    fn row(&self) -> Vec<String> {
        let id = |id: &Option<String>| match self.entries {
            Some(_) => human::or_none(id.as_ref(), String::clone),
            None => "?".to_owned(),
        };
        vec![self.partition.to_string(), known(self.entries), id(&self.first_id), id(&self.last_id)]
    }
}

impl TopicDescribe {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let survey = cx.admin().survey(&self.topic).await?;
        let TopicCounted { entries, delayed, overdue, groups, errors, .. } = counted(&survey);
        let logs = survey.logs.iter().enumerate().map(|(at, log)| LogView::of(at, log)).collect();
        let (first_id, last_id) =
            survey.ends().map(|(first, last)| (first.to_string(), last.to_string())).unzip();
        let topic = TopicView::of(&survey.topic);
        let view =
            TopicInspectView { topic, entries, first_id, last_id, logs, delayed, overdue, groups, errors };
        cx.output.show(&view, |view| {
            let mut list = view.topic.list();
            list.push(("entries", known(view.entries)));
            list.push(("first id", human::or_none(view.first_id.as_ref(), String::clone)));
            list.push(("last id", human::or_none(view.last_id.as_ref(), String::clone)));
            list.push(("delayed", format!("{}, {} of them due", known(view.delayed), known(view.overdue))));
            let groups = match &*view.groups {
                [] => "no groups".to_owned(),
                groups => GroupView::table(groups),
            };
            let titles = ["partition", ">entries", "first id", "last id"];
            let logs = output::table(&titles, view.logs.iter().map(LogView::row));
            format!("{}\n\n{logs}\n\n{groups}", output::list(list))
        })?;
        Failed::end(cx, &view.errors)
    }
}

/// Formats a number, if it is known.
pub(super) fn known(number: Option<u64>) -> String {
    human::known(number)
}

/// The data of a topic, as far as it can be counted.
#[derive(Debug, Default)]
pub(super) struct TopicCounted {
    pub(super) entries: Option<u64>,
    pub(super) delayed: Option<u64>,
    pub(super) overdue: Option<u64>,
    pub(super) groups: Vec<GroupView>,
    pub(super) in_use: bool,
    pub(super) errors: Vec<Failed>,
}

pub(super) fn counted(survey: &TopicSurvey) -> TopicCounted {
    let mut counted = TopicCounted::default();
    let name = &survey.topic.name;
    match &survey.delayed {
        Ok(waiting) => (counted.delayed, counted.overdue) = (Some(waiting.total), Some(waiting.overdue)),
        Err(error) => counted.errors.push(Failed::topic(name, error)),
    }
    if let Some(error) = &survey.unlisted {
        counted.errors.push(Failed::topic(name, error));
        counted.groups.push(GroupView::unknown(None, error));
    }
    for (group, stats) in &survey.groups {
        match stats {
            Ok(stats) => {
                // Where members or owners are unknown, the deletion refuses without force.
                counted.in_use |= stats.members.unwrap_or(0) + stats.owned.unwrap_or(0) > 0;
                counted.errors.extend(Failed::parts(name, stats));
                counted.groups.push(GroupView::of(stats, counted.overdue));
            }
            Err(error) => {
                counted.errors.push(Failed::group(&group, error).of(&name));
                counted.groups.push(GroupView::unknown(Some(group), error));
            }
        }
    }
    counted.entries = survey.logs.iter().map(|log| log.as_ref().ok().map(|log| log.length)).sum();
    if survey.groups.is_empty() {
        // Groups report a log that cannot be read by themselves.
        let unread = survey.logs.iter().filter_map(|log| log.as_ref().err());
        counted.errors.extend(unread.map(|error| Failed::topic(name, error)));
    }
    counted
}
