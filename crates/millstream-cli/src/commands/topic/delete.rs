//! `topic delete`.

use anyhow::Result;
use clap::Args;
use millstream::admin::InUse;
use millstream::{ErrorKind, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::shared::failures::Failed;
use crate::commands::shared::view::GroupView;
use crate::commands::topic::inspect::{self, TopicCounted};
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
use crate::human;

/// Deletes a topic with all its data
///
/// The data are its log, its groups with pending, parked and dead messages, its delayed messages and its recurring
/// rules. A topic with running consumers is not deleted. Stop its producers first: they are not registered, and a
/// running one creates the log again.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic delete orders --dry-run
  millstream topic delete orders --yes")]
pub(super) struct Delete {
    /// The topic
    topic: TopicName,
    /// Deletes it even if it has running consumers
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// The data that is, or was, deleted with the topic.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TopicDeleteView {
    topic: String,
    deleted: bool,
    dry_run: bool,
    /// Whether the topic has consumers: deleting it then requires force.
    in_use: bool,
    /// `null` if it could not be counted.
    entries: Option<u64>,
    delayed: Option<u64>,
    groups: Vec<GroupView>,
    /// The parts that could not be counted; they are deleted as well.
    errors: Vec<Failed>,
}

impl TopicDeleteView {
    fn text(&self) -> String {
        let one = |number, one, many| human::of(number, one, many);
        let entries =
            self.entries.map_or_else(|| "unknown entries".to_owned(), |it| one(it, "entry", "entries"));
        let sum = |of: fn(&GroupView) -> Option<u64>| self.groups.iter().map(of).sum::<Option<u64>>();
        let mut text = format!(
            "topic {} with {}, {} for later, {} parked for a retry, {}",
            self.topic,
            entries,
            inspect::known(self.delayed),
            human::known(sum(|it| it.retrying)),
            sum(|it| it.dead)
                .map_or_else(|| "? dead letters".to_owned(), |it| one(it, "dead letter", "dead letters")),
        );
        if !self.groups.is_empty() {
            text += &format!("\n\n{}\n", GroupView::table(&self.groups));
        }
        for failed in &self.errors {
            text += &format!("\ncould not be counted: {}", failed.error);
        }
        text
    }
}

impl Delete {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let counted = match admin.survey(&self.topic).await {
            Ok(survey) => inspect::counted(&survey),
            // An earlier deletion was interrupted: the rest is still to be deleted.
            Err(error)
                if error.kind() == ErrorKind::NotFound && admin.topics().await?.contains(&self.topic) =>
            {
                TopicCounted { entries: Some(0), delayed: Some(0), ..TopicCounted::default() }
            }
            // Data that cannot be counted can still be deleted.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Protocol | ErrorKind::WrongType | ErrorKind::Unsupported
                ) =>
            {
                TopicCounted { errors: vec![Failed::topic(&self.topic, &error)], ..TopicCounted::default() }
            }
            Err(error) => return Err(error.into()),
        };
        let TopicCounted { entries, delayed, groups, in_use, errors, .. } = counted;
        let topic = self.topic.to_string();
        let mut view =
            TopicDeleteView { topic, deleted: false, dry_run, in_use, entries, delayed, groups, errors };
        if dry_run {
            let refused = if view.in_use && !self.force { "it is in use, and needs --force. " } else { "" };
            cx.output.note(&format!("dry run: nothing was done. {refused}What would be deleted:"));
        } else {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            cx.confirm(&format!("Delete topic {}, for ever?", self.topic))?;
            let in_use = if self.force { InUse::Force } else { InUse::Refuse };
            to_the_end(admin.delete_topic(&self.topic, in_use)).await?;
            view.deleted = true;
        }
        cx.output.show(&view, |view| match view.deleted {
            true => format!("topic {} is deleted", view.topic),
            false => view.text(),
        })?;
        Ok(Exit::Done)
    }
}
