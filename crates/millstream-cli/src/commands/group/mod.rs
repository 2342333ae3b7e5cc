//! `millstream group`: consumer groups as a whole.

mod change;
mod idle;
mod inspect;
mod reset;

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::{ErrorKind, GroupName, TopicName};

use crate::commands::Running;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::view::GroupView;
use crate::context::Context;

/// Lists, describes, creates, moves, pauses and deletes consumer groups
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group list orders
  millstream group describe orders billing
  millstream group reset orders billing --to '2h ago'")]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    what: GroupCommand,
}

#[derive(Debug, Subcommand)]
enum GroupCommand {
    List(inspect::GroupList),
    Describe(inspect::GroupDescribe),
    Create(change::GroupCreate),
    Reset(reset::Reset),
    Positions(reset::Positions),
    Pause(change::GroupPause),
    Resume(change::GroupResume),
    Delete(change::GroupDelete),
    Pins(idle::Pins),
    Expire(idle::Expire),
}

/// A group of a topic.
#[derive(Args, Clone, Debug)]
pub(crate) struct GroupOf {
    /// The topic
    pub(crate) topic: TopicName,
    /// The group
    pub(crate) group: GroupName,
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("group list", of::<Vec<GroupView>>()),
    ("group describe", of::<inspect::GroupInspectView>()),
    ("group create", of::<change::GroupCreated>()),
    ("group reset", of::<reset::GroupResetView>()),
    ("group positions", of::<Vec<reset::PositionView>>()),
    ("group pause", of::<change::GroupPauseView>()),
    ("group resume", of::<change::GroupPauseView>()),
    ("group delete", of::<change::Deleted>()),
    ("group pins", of::<Vec<idle::PinView>>()),
    ("group expire", of::<idle::GroupIdleView>()),
];

impl GroupArgs {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            GroupCommand::List(it) => Box::pin(it.run(cx)),
            GroupCommand::Describe(it) => Box::pin(it.run(cx)),
            GroupCommand::Create(it) => Box::pin(it.run(cx)),
            GroupCommand::Reset(it) => Box::pin(it.run(cx)),
            GroupCommand::Positions(it) => Box::pin(it.run(cx)),
            GroupCommand::Pause(it) => Box::pin(it.run(cx)),
            GroupCommand::Resume(it) => Box::pin(it.run(cx)),
            GroupCommand::Delete(it) => Box::pin(it.run(cx)),
            GroupCommand::Pins(it) => Box::pin(it.run(cx)),
            GroupCommand::Expire(it) => Box::pin(it.run(cx)),
        }
    }
}

impl GroupOf {
    /// Fails if the topic or its group does not exist. Where the list of groups cannot be read, the logs decide.
    pub(crate) async fn known(&self, cx: &Context) -> Result<()> {
        let Self { topic, group } = self;
        match cx.admin().groups(topic).await {
            Ok(groups) if groups.contains(group) => Ok(()),
            // The list may have lost it.
            Ok(_) => Ok(cx.admin().group_stats(topic, group).await.map(drop)?),
            Err(error) if error.kind() == ErrorKind::WrongType => {
                cx.admin().topic(topic).await?;
                cx.admin().group_stats(topic, group).await?;
                cx.output.note(&format!("topic {topic}: {error}"));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
