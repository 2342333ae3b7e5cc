//! `group create`, `delete`, `pause` and `resume`.

use anyhow::Result;
use clap::Args;
use millstream::ErrorKind;
use millstream::admin::InUse;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::group::GroupOf;
use crate::commands::shared;
use crate::commands::shared::failures::{Failed, Listed};
use crate::commands::shared::view::GroupView;
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
use crate::human;
use crate::parse::{self, Position};

/// Creates a group on all partitions of a topic
///
/// A consumer creates its group when it starts. A group that was created earlier keeps entries from being trimmed until
/// they are settled.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group create orders billing
  millstream group create orders audit --from '2h ago'")]
pub(super) struct GroupCreate {
    #[command(flatten)]
    of: GroupOf,
    /// Start position: `earliest`, `latest`, an id, a time (`2026-01-31T12:00:00Z`) or `2h ago`
    #[arg(long, value_name = "POSITION", value_parser = parse::position, default_value = "earliest")]
    from: Position,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GroupCreated {
    topic: String,
    group: String,
    /// Whether the group is new in the topic.
    new: bool,
    /// The partitions in which it was created now, or would be.
    partitions: Vec<u32>,
    dry_run: bool,
}

impl GroupCreate {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let GroupOf { topic, group } = &self.of;
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let (new, partitions) = if dry_run {
            let spec = admin.topic(topic).await?;
            let new = !admin.groups(topic).await?.contains(group);
            let stats = cx.mq.backend().catalog().stats(&spec, group).await?;
            let missing = stats.iter().filter(|it| it.position.is_none()).map(|it| it.partition.0);
            (new, missing.collect::<Vec<_>>())
        } else {
            let start = self.from.start(cx.now().await?);
            let created = admin.create_group(topic, group, start).await?;
            (created.new, created.partitions.iter().map(|partition| partition.0).collect())
        };
        let view =
            GroupCreated { topic: topic.to_string(), group: group.to_string(), new, partitions, dry_run };
        if dry_run {
            cx.output.note("dry run: nothing was done");
        }
        cx.output.show(&view, |view| {
            let GroupCreated { topic, group, partitions, .. } = view;
            let would = if dry_run { "would be" } else { "is" };
            match (view.new, partitions.len() as u64) {
                (_, 0) => format!("group {group} of topic {topic} was there already"),
                (true, some) => {
                    format!(
                        "group {group} of topic {topic} {would} created on {}",
                        human::of(some, "partition", "partitions")
                    )
                }
                (false, some) => format!(
                    "group {group} of topic {topic} was there, and missing on {}, where it {would} created",
                    human::of(some, "partition", "partitions")
                ),
            }
        })?;
        Ok(Exit::Done)
    }
}

/// Deletes a group with all its data
///
/// The data are its pending and parked messages, dead letters, members and leases. The next trim drops the log entries
/// that only this group kept. A group with live members is not deleted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group delete orders billing --dry-run
  millstream group delete orders billing --yes")]
pub(super) struct GroupDelete {
    #[command(flatten)]
    of: GroupOf,
    /// Deletes it even if it has live members
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Deleted {
    topic: String,
    deleted: bool,
    dry_run: bool,
    /// Whether the group has live members: deleting it then requires force.
    in_use: bool,
    #[serde(skip)]
    named: String,
    /// The data that is deleted with it; or the reason why it cannot be counted.
    #[serde(flatten)]
    group: Listed<GroupView>,
}

impl Deleted {
    fn text(&self) -> String {
        let (group, topic) = (&self.named, &self.topic);
        let GroupView { pending, retrying, dead, error, .. } = match &self.group {
            Listed::Item(group) => group,
            Listed::Failed(failed) => {
                return format!("group {group} of topic {topic}: could not be counted: {}", failed.error);
            }
        };
        let dead = dead.map_or_else(
            || "? dead letters".to_owned(),
            |dead| human::of(dead, "dead letter", "dead letters"),
        );
        let why = error.as_ref().map(|error| format!("; a part could not be counted: {error}"));
        format!(
            "group {group} of topic {topic} with {} pending, {} parked for a retry, {dead}{}",
            human::known(*pending),
            human::known(*retrying),
            why.unwrap_or_default(),
        )
    }
}

impl GroupDelete {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let GroupOf { topic, group } = &self.of;
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let (in_use, counted) = match admin.group_stats(topic, group).await {
            Ok(stats) => {
                let overdue = match admin.waiting(topic).await {
                    Err(error) if error.is_transient() => return Err(error.into()),
                    waiting => waiting.ok().map(|waiting| waiting.overdue),
                };
                // Where members or owners are unknown, the deletion refuses without force.
                let in_use = stats.members.unwrap_or(0) + stats.owned.unwrap_or(0) > 0;
                (in_use, Listed::Item(GroupView::of(&stats, overdue)))
            }
            // Data that cannot be counted can still be deleted.
            Err(error) if error.kind() == ErrorKind::WrongType || error.kind() == ErrorKind::Protocol => {
                (false, Listed::Failed(Failed::group(group, &error)))
            }
            Err(error) => return Err(error.into()),
        };
        let mut view = Deleted {
            topic: topic.to_string(),
            deleted: false,
            dry_run,
            in_use,
            group: counted,
            named: group.to_string(),
        };
        if dry_run {
            let refused = if in_use && !self.force { "it is in use, and needs --force. " } else { "" };
            cx.output.note(&format!("dry run: nothing was done. {refused}What would be deleted:"));
        } else {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            cx.confirm(&format!("Delete group {group} of topic {topic}, for ever?"))?;
            let in_use = if self.force { InUse::Force } else { InUse::Refuse };
            to_the_end(admin.delete_group(topic, group, in_use)).await?;
            view.deleted = true;
        }
        cx.output.show(&view, |view| match view.deleted {
            true => format!("group {group} of topic {topic} is deleted"),
            false => view.text(),
        })?;
        Ok(Exit::Done)
    }
}

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
        let what = shared::paused(changed, dry_run, paused);
        format!("group {group} of topic {topic} {what}")
    })?;
    Ok(Exit::Done)
}
