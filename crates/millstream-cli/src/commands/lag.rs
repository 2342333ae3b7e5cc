//! `millstream lag`: how far groups are behind.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use millstream::{Error, ErrorKind, GroupName, TopicName};
use serde::Serialize;

use super::view::GroupView;
use crate::context::{Context, stopped};
use crate::exit::Exit;
use crate::{human, output, parse};

/// How far groups are behind: of a topic, or of all
///
/// A lag that would take too long to find out is shown as `>= 10,000`, or as `unknown`; in JSON it is `null` beside
/// `lag_at_least`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lag
  millstream lag orders --group billing --watch=5
  millstream lag --json | jq '.groups[] | select(.lag == null or .lag > 1000)'")]
pub(crate) struct Lag {
    /// The topic. Default: all topics
    topic: Option<TopicName>,
    /// Only this group
    #[arg(long, short)]
    group: Option<GroupName>,
    /// Again and again, until it is stopped. Default: every 2 seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = parse::interval)]
    watch: Option<Duration>,
}

/// One look.
#[derive(Debug, Serialize)]
struct View {
    /// Milliseconds since 1970.
    at_ms: u64,
    groups: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    topic: String,
    #[serde(flatten)]
    group: GroupView,
}

impl View {
    fn text(&self) -> String {
        let titles: Vec<&str> = ["topic"].into_iter().chain(GroupView::TITLES).collect();
        let row = |it: &Row| [it.topic.clone()].into_iter().chain(it.group.row()).collect::<Vec<_>>();
        output::table(&titles, self.groups.iter().map(row))
    }
}

impl Lag {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let Some(every) = self.watch else {
            cx.output.show(&self.look(cx).await?, View::text)?;
            return Ok(Exit::Done);
        };
        let redraws = !cx.output.is_json() && std::io::stdout().is_terminal();
        let watch = async {
            loop {
                self.look_again(cx, every, redraws).await?;
                tokio::time::sleep(every).await;
            }
        };
        tokio::select! {
            biased;
            heard = stopped() => heard.map(|()| Exit::Done),
            ended = watch => ended,
        }
    }

    /// One look of many: what may pass is told, and no end.
    async fn look_again(&self, cx: &Context, every: Duration, redraws: bool) -> Result<()> {
        let view = match self.look(cx).await {
            Ok(view) => view,
            Err(error) if error.downcast_ref::<Error>().is_some_and(Error::is_transient) => {
                cx.output.note(&format!("not now: {error:#}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        cx.output.show(&view, |view| {
            // To the upper left corner, and all below it is gone.
            let clear = if redraws { "\x1b[H\x1b[2J" } else { "" };
            format!(
                "{clear}{}, every {}\n{}\n\n",
                human::time(view.at_ms),
                human::duration(every),
                view.text()
            )
        })
    }

    async fn look(&self, cx: &Context) -> Result<View> {
        let admin = cx.admin();
        let topics = match &self.topic {
            Some(topic) => vec![topic.clone()],
            None => admin.topics().await?,
        };
        let mut groups = Vec::new();
        for topic in topics {
            let stats = match admin.stats(&topic).await {
                // One of all that was deleted in between, or not to the end.
                Err(error) if error.kind() == ErrorKind::NotFound && self.topic.is_none() => continue,
                other => other?,
            };
            let wanted =
                stats.groups.iter().filter(|it| self.group.as_ref().is_none_or(|group| it.group == *group));
            groups.extend(wanted.map(|it| Row { topic: topic.to_string(), group: GroupView::of(it) }));
        }
        match (&self.group, &self.topic) {
            (Some(group), Some(topic)) if groups.is_empty() => {
                bail!("group {group} of topic {topic} does not exist")
            }
            (Some(group), None) if groups.is_empty() => bail!("group {group} does not exist in any topic"),
            _ => Ok(View { at_ms: crate::context::local_ms()?, groups }),
        }
    }
}
