//! `topic delete`.

use anyhow::Result;
use clap::Args;
use millstream::admin::{InUse, TopicStats};
use millstream::{ErrorKind, TopicName};
use serde::Serialize;

use super::look;
use crate::commands::DryRun;
use crate::commands::view::GroupView;
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
use crate::human;

/// Deletes a topic with everything that is kept for it
///
/// Its log, its groups with what is pending, parked and dead, what was sent for later and what recurs. It is refused while
/// somebody consumes it. Stop its producers first: nobody knows of them, and one that goes on brings the log back.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic delete orders --dry-run
  millstream topic delete orders --yes")]
pub(super) struct Delete {
    /// The topic
    topic: TopicName,
    /// Also if somebody consumes it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// What goes with it, or went.
#[derive(Debug, Serialize)]
struct View {
    topic: String,
    deleted: bool,
    dry_run: bool,
    /// Somebody consumes it: it is refused unless it is forced.
    in_use: bool,
    entries: u64,
    delayed: u64,
    groups: Vec<GroupView>,
}

impl View {
    fn text(&self) -> String {
        let one = |number, one, many| human::of(number, one, many);
        let sum = |of: fn(&GroupView) -> u64| self.groups.iter().map(of).sum::<u64>();
        let mut text = format!(
            "topic {} with {}, {} for later, {} parked for a retry, {}",
            self.topic,
            one(self.entries, "entry", "entries"),
            human::count(self.delayed),
            human::count(sum(|it| it.retrying)),
            one(sum(|it| it.dead), "dead letter", "dead letters"),
        );
        if !self.groups.is_empty() {
            text += &format!("\n\n{}\n", GroupView::table(&self.groups));
        }
        text
    }
}

impl Delete {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let mut view = match admin.stats(&self.topic).await {
            Ok(stats) => self.view(cx, &stats).await?,
            // Stopped half-way before: the rest is still to be done.
            Err(error)
                if error.kind() == ErrorKind::NotFound && admin.topics().await?.contains(&self.topic) =>
            {
                let (topic, groups) = (self.topic.to_string(), Vec::new());
                View { topic, deleted: false, dry_run, in_use: false, entries: 0, delayed: 0, groups }
            }
            Err(error) => return Err(error.into()),
        };
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

    async fn view(&self, cx: &Context, stats: &TopicStats) -> Result<View> {
        let entries = match stats.groups.first() {
            Some(group) => group.totals.length,
            None => look::entries(cx, &stats.topic).await?,
        };
        Ok(View {
            topic: self.topic.to_string(),
            deleted: false,
            dry_run: self.dry.dry_run,
            in_use: stats.groups.iter().any(|group| group.members + group.owned > 0),
            entries,
            delayed: stats.delayed,
            groups: stats.groups.iter().map(GroupView::of).collect(),
        })
    }
}
