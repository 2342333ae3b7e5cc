//! `millstream dlq errors`.

use anyhow::Result;
use clap::Args;
use millstream::admin::{FailedId, ShelfFilter};
use millstream::crates::core::error_groups::{ErrorGroups, MAX_GROUPS};
use millstream::{ErrorKind, GroupName, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shared::failures::Failed;
use crate::commands::shelf::read::grouped;
use crate::commands::shelf::{DlqWanted, Kind, Opened};
use crate::context::Context;
use crate::exit::Exit;
use crate::parse;

/// Groups dead letters by their errors, the most frequent first
///
/// Errors that differ only in numbers, ids, quoted strings, paths, addresses or times are one group, with one fingerprint:
/// `list`, `count`, `export`, `replay` and `purge` select its letters with --fingerprint. The example is the newest letter.
/// All letters are read. A partition that cannot be read is named on stderr; the exit code is then 1.
///
/// Without a group it reads the letters of all groups of the topic, and without a topic those of all topics, as one: an error
/// that occurs in several groups is counted once, and its example names the topic and the group.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq errors
  millstream dlq errors orders billing
  millstream dlq errors orders billing --from '1h ago' --limit 5
  millstream dlq errors orders billing --json | jq -r '.data.errors[0].fingerprint'
  millstream dlq replay orders billing --fingerprint 8f3c0a51d27be694")]
pub(super) struct Errors {
    /// The topic. Default: all topics
    topic: Option<TopicName>,
    /// The group. Default: all groups of the topic
    group: Option<GroupName>,
    #[command(flatten)]
    wanted: DlqWanted,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse::limit)]
    limit: usize,
}

/// The newest letter with an error.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DlqExample {
    topic: String,
    group: String,
    partition: u32,
    id: String,
}

impl Errors {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let (asked, mut failed) = self.asked(cx).await?;
        let (mut groups, mut progress, mut before) = (ErrorGroups::new(MAX_GROUPS), CountProgress::new(), 0);
        for of in &asked {
            let (some, unread) =
                self.of(cx, of, &filter, |read| progress.set(before + read, "letter", "letters")).await?;
            failed.extend(unread.iter().map(|error| Failed::in_group(&of.topic, &of.group, error)));
            before += some.count();
            groups.merge(some, |it| DlqExample {
                topic: of.topic.to_string(),
                group: of.group.to_string(),
                partition: it.partition.0,
                id: it.id.to_string(),
            });
        }
        drop(progress);
        let is_one = self.group.is_some();
        let view = ErrorsView::of(groups, self.limit, |it: DlqExample| match is_one {
            true => (it.id.clone(), it),
            false => (format!("{}/{} of {}: {}", it.topic, it.partition, it.group, it.id), it),
        });
        view.show(cx, Kind::Letters.noun())?;
        Failed::end(cx, &failed)
    }

    /// Returns the groups whose letters are read, and what could not be found out.
    async fn asked(&self, cx: &Context) -> Result<(Vec<GroupOf>, Vec<Failed>)> {
        if let (Some(topic), Some(group)) = (&self.topic, &self.group) {
            return Ok((vec![GroupOf { topic: topic.clone(), group: group.clone() }], Vec::new()));
        }
        let admin = cx.admin();
        let topics = self.topic.clone().map_or_else(Vec::new, |topic| vec![topic]);
        let topics = if topics.is_empty() { admin.topics().await? } else { topics };
        let (mut asked, mut failed) = (Vec::new(), Vec::new());
        for (topic, survey) in topics.iter().zip(admin.surveys(&topics).await) {
            match survey {
                Ok(survey) => {
                    failed.extend(survey.unlisted.iter().map(|error| Failed::topic(topic, error)));
                    // Those that have none need no further request.
                    let groups = survey.groups.into_iter().filter(|(_, stats)| {
                        stats.as_ref().map_or(true, |stats| stats.totals.dead != Some(0))
                    });
                    asked.extend(groups.map(|(group, _)| GroupOf { topic: topic.clone(), group }));
                }
                // One of all topics was deleted in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound && self.topic.is_none() => {}
                Err(error) if error.is_transient() || self.topic.is_some() => return Err(error.into()),
                Err(error) => failed.push(Failed::topic(topic, &error)),
            }
        }
        Ok((asked, failed))
    }

    async fn of(
        &self,
        cx: &Context,
        of: &GroupOf,
        filter: &ShelfFilter,
        progress: impl FnMut(u64),
    ) -> Result<(ErrorGroups<FailedId>, Vec<millstream::Error>)> {
        if self.group.is_none() {
            // A partition that is asked for may be missing in some of the topics.
            let letters = cx.admin().dead_letters(&of.topic, &of.group).await?;
            return grouped(&letters, filter, progress).await;
        }
        let opened = Opened::group(cx, Kind::Letters, of, filter).await?;
        grouped(&opened.shelf, filter, progress).await
    }
}
