//! `topic list` and `topic describe`.

use anyhow::Result;
use clap::Args;
use millstream::{ErrorKind, GroupName, TopicName, TopicSpec};
use serde::Serialize;

use crate::commands::view::{GroupView, TopicView};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// All topics, by name
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic list
  millstream topic list --json | jq -r '.[].topic'")]
pub(super) struct List {}

impl List {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let admin = cx.admin();
        let mut topics = Vec::new();
        for name in admin.topics().await? {
            match admin.topic(&name).await {
                Ok(spec) => topics.push(TopicView::of(&spec)),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    // Deleted in between, or not to the end.
                    cx.output.note(&format!(
                        "topic {name} is listed and has no settings: verify {name} says more"
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        cx.output.show(&topics, |topics| {
            let titles = ["topic", ">partitions", "retention", ">max length"];
            output::table(&titles, topics.iter().map(TopicView::row))
        })?;
        Ok(Exit::Done)
    }
}

/// Settings of a topic, and how it stands with each of its groups
///
/// `lag` is what was never handed out to a group, `oldest` the age of what is not settled and the oldest of that. A lag that
/// would take too long to find out is shown as `>= 10,000`, or as `unknown`; in JSON it is `null` beside `lag_at_least`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic describe orders
  millstream topic describe orders --json | jq '.groups[] | {group, lag}'")]
pub(super) struct Describe {
    /// The topic
    topic: TopicName,
}

#[derive(Debug, Serialize)]
struct View {
    #[serde(flatten)]
    topic: TopicView,
    entries: u64,
    delayed: u64,
    overdue: u64,
    groups: Vec<GroupView>,
}

impl Describe {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let stats = cx.admin().stats(&self.topic).await?;
        let entries = match stats.groups.first() {
            Some(group) => group.totals.length,
            None => entries(cx, &stats.topic).await?,
        };
        let view = View {
            topic: TopicView::of(&stats.topic),
            entries,
            delayed: stats.delayed,
            overdue: stats.overdue,
            groups: stats.groups.iter().map(GroupView::of).collect(),
        };
        cx.output.show(&view, |view| {
            let mut list = view.topic.list();
            list.push(("entries", human::count(view.entries)));
            list.push((
                "delayed",
                format!("{}, {} of them due", human::count(view.delayed), human::count(view.overdue)),
            ));
            let groups =
                if view.groups.is_empty() { "no groups".to_owned() } else { GroupView::table(&view.groups) };
            format!("{}\n\n{groups}", output::list(list))
        })?;
        Ok(Exit::Done)
    }
}

/// Entries in the logs of a topic without groups. They are told with a group; one that is not there will do.
pub(super) async fn entries(cx: &Context, topic: &TopicSpec) -> Result<u64> {
    let nobody = GroupName::new("-")?;
    let stats = cx.mq.backend().catalog.stats(topic, &nobody).await?;
    Ok(stats.iter().map(|partition| partition.length).sum())
}
