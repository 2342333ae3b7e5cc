//! `group pause` and `group resume`.

use anyhow::Result;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::group::GroupOf;
use crate::context::Context;
use crate::exit::Exit;

/// Pauses all consumers of a group until the group is resumed
///
/// Consumers receive the pause with their next heartbeat at the latest. Then they read nothing and start no handler.
/// Running handlers complete, and their messages are settled. Messages that were read stay pending, partitions keep
/// their owners, and retries wait.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group pause orders billing")]
pub(super) struct GroupPause {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    dry: DryRun,
}

/// Ends the pause of a group
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group resume orders billing")]
pub(super) struct GroupResume {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GroupPauseView {
    topic: String,
    group: String,
    paused: bool,
    /// Whether the state changed, or would change.
    changed: bool,
    dry_run: bool,
}

impl GroupPause {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        set(cx, &self.of, true, self.dry.dry_run).await
    }
}

impl GroupResume {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        set(cx, &self.of, false, self.dry.dry_run).await
    }
}

async fn set(cx: &Context, of: &GroupOf, paused: bool, dry_run: bool) -> Result<Exit> {
    let (admin, GroupOf { topic, group }) = (cx.admin(), of);
    of.known(cx).await?;
    let changed = if dry_run {
        cx.output.note("dry run: nothing was done");
        admin.group_state(topic, group).await?.paused.is_some() != paused
    } else if paused {
        admin.pause_group(topic, group).await?
    } else {
        admin.resume_group(topic, group).await?
    };
    let view =
        GroupPauseView { topic: topic.to_string(), group: group.to_string(), paused, changed, dry_run };
    cx.output.show(&view, |_| {
        let what = match (changed, dry_run, paused) {
            (false, _, true) => "is already paused",
            (false, _, false) => "was not paused",
            (true, true, true) => "would be paused",
            (true, true, false) => "would be resumed",
            (true, false, true) => "is paused",
            (true, false, false) => "is resumed",
        };
        format!("group {group} of topic {topic} {what}")
    })?;
    Ok(Exit::Done)
}
