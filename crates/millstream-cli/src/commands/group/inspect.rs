//! `group list` and `group describe`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::admin::OwnedPartition;
use millstream::{PartitionStats, TopicName};
use serde::Serialize;

use crate::commands::group::Of;
use crate::commands::shared::failures::{Failed, Listed};
use crate::commands::shared::view::GroupView;
use crate::context::Context;
use crate::exit::Exit;
use crate::human::ms;
use crate::{human, output};

/// Lists all groups of a topic with their state
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group list orders
  millstream group list orders --json | jq -r '.[].group'")]
pub(super) struct List {
    /// The topic
    topic: TopicName,
}

impl List {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let survey = cx.admin().survey(&self.topic).await?;
        let (overdue, delayed) = match survey.delayed {
            Ok(delayed) => (delayed.overdue, None),
            Err(error) => (0, Some(Failed::topic(&self.topic, &error))),
        };
        let groups = survey.groups.iter().map(|(group, stats)| match stats {
            Ok(stats) => Listed::Item(GroupView::of(stats, overdue)),
            Err(error) => Listed::Failed(Failed::group(group, error)),
        });
        let groups: Vec<_> = groups.collect();
        cx.output.show(&groups, |groups| {
            output::table(&GroupView::TITLES, Listed::known(groups).map(GroupView::row))
        })?;
        Failed::end(cx, delayed.iter().chain(Listed::failed(&groups)))
    }
}

/// Shows the state of a group in each partition of a topic, and the owners
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group describe orders billing
  millstream group describe orders billing --json | jq '.partitions[] | select(.owner == null)'")]
pub(super) struct Describe {
    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Serialize)]
struct View {
    topic: String,
    #[serde(flatten)]
    totals: GroupView,
    partitions: Vec<PartitionView>,
}

#[derive(Debug, Serialize)]
struct PartitionView {
    partition: u32,
    owner: Option<String>,
    /// The last entry that was delivered; `null` if the group does not exist.
    position: Option<String>,
    entries: u64,
    lag: Option<u64>,
    lag_at_least: u64,
    oldest_ms: Option<u64>,
    pending: u64,
    retrying: u64,
    due: u64,
    dead: u64,
}

impl PartitionView {
    fn of(stats: &PartitionStats, owned: &[OwnedPartition]) -> Self {
        let owned = owned.iter().find(|it| it.ownership.partition == stats.partition);
        Self {
            partition: stats.partition.0,
            owner: owned.and_then(|it| it.ownership.holder.as_ref()).map(|holder| holder.owner.clone()),
            position: stats.position.map(|id| id.to_string()),
            entries: stats.length,
            lag: stats.lag,
            lag_at_least: stats.lag_at_least,
            oldest_ms: stats.oldest.map(ms),
            pending: stats.pending,
            retrying: stats.retrying,
            due: stats.due,
            dead: stats.dead,
        }
    }

    fn row(&self) -> [String; 9] {
        [
            self.partition.to_string(),
            human::or_none(self.owner.as_deref(), human::member),
            self.position.clone().unwrap_or_else(|| "missing".to_owned()),
            human::count(self.entries),
            human::at_least(self.lag, self.lag_at_least),
            human::or_none(self.oldest_ms, |ms| human::duration(Duration::from_millis(ms))),
            human::count(self.pending),
            human::count(self.retrying),
            human::count(self.dead),
        ]
    }
}

impl Describe {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let Of { topic, group } = &self.of;
        let stats = cx.admin().group_stats(topic, group).await?;
        let overdue = cx.admin().waiting(topic).await?.overdue;
        let owned = cx.admin().owners(topic, group).await?.partitions;
        let view = View {
            topic: topic.to_string(),
            totals: GroupView::of(&stats, overdue),
            partitions: stats.partitions.iter().map(|it| PartitionView::of(it, &owned)).collect(),
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
            let partitions = output::table(&titles, view.partitions.iter().map(PartitionView::row));
            format!("{}\n\n{partitions}", GroupView::table(std::slice::from_ref(&view.totals)))
        })?;
        Ok(Exit::Done)
    }
}
