//! `group pins` and `group expire`: groups that keep entries from being trimmed, and no longer read.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::TopicName;
use millstream::admin::{ExpiredGroup, InUse};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::context::Context;
use crate::exit::Exit;
use crate::human::ms;
use crate::{human, output, parse};

/// Shows for each partition the group that keeps the most entries from being trimmed
///
/// `entries` is the number of entries that are kept for this group alone. Unless that is the whole log, it is counted
/// up to 10,000: `>= 10,000`, and in JSON `exact` is `false`. `idle` is the time since the group last requested
/// entries.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group pins orders
  millstream group pins orders --json | jq '.data | map(.bytes) | add'")]
pub(super) struct Pins {
    /// The topic
    topic: TopicName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PinView {
    partition: u32,
    group: String,
    /// The oldest entry that is kept for the group.
    watermark: String,
    messages: u64,
    /// Whether all of them were counted.
    exact: bool,
    bytes: u64,
    /// `null` if it never read.
    idle_ms: Option<u64>,
}

impl PinView {
    fn row(&self) -> [String; 6] {
        [
            self.partition.to_string(),
            self.group.clone(),
            self.watermark.clone(),
            human::at_least(self.exact.then_some(self.messages), self.messages),
            human::bytes(self.bytes),
            self.idle_ms
                .map_or_else(|| "never read".to_owned(), |ms| human::duration(Duration::from_millis(ms))),
        ]
    }
}

impl Pins {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let pins = cx.admin().pins(&self.topic).await?;
        let pins: Vec<_> = pins
            .iter()
            .map(|pin| PinView {
                partition: pin.partition.0,
                group: pin.group.to_string(),
                watermark: pin.watermark.to_string(),
                messages: pin.messages,
                exact: pin.exact,
                bytes: pin.bytes,
                idle_ms: pin.idle.map(ms),
            })
            .collect();
        cx.output.show(&pins, |pins| {
            let titles = [">partition", "group", "oldest", ">messages", ">bytes", ">idle"];
            output::table(&titles, pins.iter().map(PinView::row))
        })?;
        Ok(Exit::Done)
    }
}

/// Deletes groups that keep entries, have no live members, and have not read for a long time
///
/// A group that has never read is not deleted, since its idle time is unknown; use `group delete`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group expire orders --idle 30d --dry-run
  millstream group expire orders --idle 30d --yes")]
pub(super) struct Expire {
    /// The topic
    topic: TopicName,
    /// Minimum time since the last read: `30d`
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    idle: Duration,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GroupIdleView {
    topic: String,
    dry_run: bool,
    groups: Vec<ExpiredView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ExpiredView {
    group: String,
    idle_ms: u64,
    messages: u64,
    bytes: u64,
}

impl GroupIdleView {
    fn of(topic: &TopicName, dry_run: bool, groups: &[ExpiredGroup]) -> Self {
        let groups = groups.iter().map(|it| ExpiredView {
            group: it.group.to_string(),
            idle_ms: ms(it.idle),
            messages: it.messages,
            bytes: it.bytes,
        });
        Self { topic: topic.to_string(), dry_run, groups: groups.collect() }
    }

    fn text(&self) -> String {
        let row = |it: &ExpiredView| {
            let idle = human::duration(Duration::from_millis(it.idle_ms));
            [it.group.clone(), idle, human::count(it.messages), human::bytes(it.bytes)]
        };
        output::table(&["group", ">idle", ">messages", ">bytes"], self.groups.iter().map(row))
    }
}

impl Expire {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, topic) = (cx.admin(), &self.topic);
        let found = admin.expire_groups(topic, self.idle, true).await?;
        let mut view = GroupIdleView::of(topic, self.dry.dry_run, &found);
        if self.dry.dry_run {
            cx.output.note("dry run: nothing was done. To be deleted:");
        } else if !found.is_empty() {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            let groups = human::of(found.len() as u64, "group", "groups");
            cx.confirm(&format!("Delete {groups} of topic {topic} with all their data, permanently?"))?;
            // Only groups that were shown, and only if they are still expired.
            let still = admin.expire_groups(topic, self.idle, true).await?;
            let named = |it: &ExpiredGroup| found.iter().any(|known| known.group == it.group);
            let expired: Vec<_> = still.into_iter().filter(named).collect();
            for it in &expired {
                admin.delete_group(topic, &it.group, InUse::Refuse).await?;
            }
            view = GroupIdleView::of(topic, false, &expired);
        }
        cx.output.show(&view, |view| match (view.dry_run, view.groups.len() as u64) {
            (_, 0) => "no group has expired".to_owned(),
            (true, _) => view.text(),
            (false, some) => format!("{} deleted", human::of(some, "group", "groups")),
        })?;
        Ok(Exit::Done)
    }
}
