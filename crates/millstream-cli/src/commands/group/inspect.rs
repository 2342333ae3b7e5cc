//! `group list` and `group describe`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::TopicName;
use millstream::admin::{OwnedPartition, Standing};
use millstream::crates::core::catalog::PartitionSurvey;
use millstream::crates::core::inspect::Structure;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::shared::failures::Failed;
use crate::commands::shared::view::GroupView;
use crate::context::Context;
use crate::exit::Exit;
use crate::human::ms;
use crate::{human, output};

/// Lists all groups of a topic with their state
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group list orders
  millstream group list orders --json | jq -r '.data[].group'")]
pub(super) struct GroupList {
    /// The topic
    topic: TopicName,
}

impl GroupList {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let survey = cx.admin().survey(&self.topic).await?;
        let mut errors = Vec::new();
        let overdue = match &survey.delayed {
            Ok(delayed) => Some(delayed.overdue),
            Err(error) => {
                errors.push(Failed::topic(&self.topic, error));
                None
            }
        };
        let mut groups = Vec::new();
        if let Some(error) = &survey.unlisted {
            errors.push(Failed::topic(&self.topic, error));
            groups.push(GroupView::unknown(None, error));
        }
        for (group, stats) in &survey.groups {
            match stats {
                Ok(stats) => {
                    errors.extend(Failed::parts(&self.topic, stats));
                    groups.push(GroupView::of(stats, overdue));
                }
                Err(error) => {
                    errors.push(Failed::group(group, error).of(&self.topic));
                    groups.push(GroupView::unknown(Some(group), error));
                }
            }
        }
        cx.output.show(&groups, |groups| GroupView::table(groups))?;
        Failed::end(cx, &errors)
    }
}

/// Shows the state of a group in each partition of a topic, and the owners
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group describe orders billing
  millstream group describe orders billing --json | jq '.data.partitions[] | select(.owner == null)'")]
pub(super) struct GroupDescribe {
    #[command(flatten)]
    of: GroupOf,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GroupInspectView {
    topic: String,
    #[serde(flatten)]
    totals: GroupView,
    partitions: Vec<GroupPartitionView>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct GroupPartitionView {
    partition: u32,
    owner: Option<String>,
    /// The last entry that was delivered; `null` if the group does not exist, or the log cannot be read.
    position: Option<String>,
    entries: Option<u64>,
    lag: Option<u64>,
    lag_at_least: u64,
    oldest_ms: Option<u64>,
    pending: Option<u64>,
    retrying: Option<u64>,
    due: Option<u64>,
    dead: Option<u64>,
    /// The reason why figures are unknown that cannot be read; the first one if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    error: Option<String>,
    #[serde(skip)]
    unowned: &'static str,
    #[serde(skip)]
    missing: &'static str,
}

impl GroupPartitionView {
    fn of(survey: &PartitionSurvey, owned: &[OwnedPartition]) -> Self {
        let stats = &survey.stats;
        let owned = owned.iter().find(|it| it.ownership.partition == stats.partition);
        Self {
            partition: stats.partition.0,
            owner: owned.and_then(|it| it.ownership.holder.as_ref()).map(|holder| holder.owner.clone()),
            position: stats.position.map(|id| id.to_string()),
            entries: survey.length(),
            lag: stats.lag,
            lag_at_least: stats.lag_at_least,
            oldest_ms: stats.oldest.map(ms),
            pending: survey.pending(),
            retrying: survey.retrying(),
            due: survey.due(),
            dead: survey.dead(),
            error: survey.unreadable.first().map(|it| it.reason.clone()),
            unowned: if owned.is_none_or(|it| it.standing == Standing::Unknown) { "?" } else { "-" },
            missing: if survey.reads(Structure::Log) { "missing" } else { "?" },
        }
    }

    fn row(&self) -> [String; 9] {
        [
            self.partition.to_string(),
            self.owner.as_deref().map_or_else(|| self.unowned.to_owned(), human::member),
            self.position.clone().unwrap_or_else(|| self.missing.to_owned()),
            human::known(self.entries),
            human::at_least(self.lag, self.lag_at_least),
            match self.oldest_ms {
                None if self.entries.is_none() => "?".to_owned(),
                oldest => human::or_none(oldest, |ms| human::duration(Duration::from_millis(ms))),
            },
            human::known(self.pending),
            human::known(self.retrying),
            human::known(self.dead),
        ]
    }
}

impl GroupDescribe {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let GroupOf { topic, group } = &self.of;
        let stats = cx.admin().group_stats(topic, group).await?;
        let mut errors: Vec<Failed> = Failed::parts(topic, &stats).collect();
        let overdue = match cx.admin().waiting(topic).await {
            Ok(waiting) => Some(waiting.overdue),
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                errors.push(Failed::topic(topic, &error));
                None
            }
        };
        // What cannot be read of the owners is among the reasons of the statistics too.
        let owned = cx.admin().owners(topic, group).await?.partitions;
        let view = GroupInspectView {
            topic: topic.to_string(),
            totals: GroupView::of(&stats, overdue),
            partitions: stats.partitions.iter().map(|it| GroupPartitionView::of(it, &owned)).collect(),
            errors,
        };
        cx.output.show(&view, |view| {
            let titles = [
                ">partition",
                "owner",
                "position",
                ">entries",
                ">lag",
                ">oldest",
                ">pending",
                ">retrying",
                ">dead",
            ];
            let partitions = output::table(&titles, view.partitions.iter().map(GroupPartitionView::row));
            format!("{}\n\n{partitions}", GroupView::table(std::slice::from_ref(&view.totals)))
        })?;
        Failed::end(cx, &view.errors)
    }
}
