//! `millstream schedule`: recurring messages, in a topic or in a delay queue.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::crates::core::recurring::Recurrence;
use millstream::crates::core::{ScheduleId, wire};
use millstream::delay::{Placed, Recur, RecurringEntry, Rule};
use millstream::{Timestamp, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::content::ContentArgs;
use crate::commands::message::{Body, sanitize};
use crate::commands::scheduled::recurring::{Home, RecurringShown};
use crate::commands::scheduled::when::ScheduleWhen;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::{Failed, Listed};
use crate::commands::shared::ids::{self, Words};
use crate::commands::shelf::view::content;
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::{Exit, Usage, not_found};
use crate::output;

/// Manages recurring messages, by a cron pattern or at a fixed rate
///
/// They are messages of a topic, or with --queue tasks of a delay queue. Consumers of the topic or workers of the queue
/// send them, once for each time, regardless of the number of consumers.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream schedule list reports
  millstream schedule add reports daily --cron '0 9 * * *' --zone Europe/Zurich --payload '{\"kind\":\"sales\"}'
  millstream schedule next reports")]
pub(crate) struct Schedule {
    #[command(subcommand)]
    what: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Lists recurring messages with their rules, next times and payloads
    #[command(after_help = "Examples:
  millstream schedule list reports
  millstream schedule list mails --queue --json")]
    List(ScheduleOf),
    /// Shows a recurring message with its rule, its next three times, headers and payload
    #[command(after_help = "Examples:
  millstream schedule show reports daily
  millstream schedule show mails sweep --queue --json | jq .data.payload")]
    Show {
        #[command(flatten)]
        of: ScheduleOf,
        /// Id of the recurring message
        id: String,
    },
    /// Adds a recurring message, or changes the one with the same id if it differs
    #[command(after_help = "Examples:
  millstream schedule add reports daily --cron '0 9 * * 1-5' --zone Europe/Zurich --payload '\"sales\"' --key eu
  millstream schedule add mails sweep --queue --every 10m --payload '{}' --missed skip
  millstream schedule add reports daily --cron '0 9 * * *' --payload x --dry-run")]
    Add(ScheduleAdd),
    /// Pauses recurring messages; times in the pause are skipped
    #[command(after_help = "Examples:
  millstream schedule pause reports daily")]
    Pause(ScheduleNamed),
    /// Resumes recurring messages with their next time from now
    #[command(after_help = "Examples:
  millstream schedule resume reports daily")]
    Resume(ScheduleNamed),
    /// Sends recurring messages now, in addition to their times, even if they are paused
    #[command(after_help = "Examples:
  millstream schedule run reports daily")]
    Run(ScheduleNamed),
    /// Removes recurring messages; messages that were already sent stay
    #[command(after_help = "Examples:
  millstream schedule remove reports daily --yes")]
    Remove(ScheduleNamed),
    /// Shows the next times of recurring messages
    #[command(after_help = "Examples:
  millstream schedule next reports
  millstream schedule next reports daily --count 20 --json")]
    Next {
        #[command(flatten)]
        of: ScheduleOf,
        /// Ids of recurring messages. Default: all
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Number of times to show for each
        #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
        count: u16,
    },
}

/// The latest time: later than every occurrence of a rule.
const FOREVER: Timestamp = Timestamp::from_millis(u64::MAX);

/// The topic or the delay queue
#[derive(Args, Clone, Debug)]
struct ScheduleOf {
    /// The topic; with --queue, the delay queue
    #[arg(value_name = "TOPIC")]
    name: String,
    /// Uses a delay queue
    #[arg(long)]
    queue: bool,
}

/// Selected recurring messages
#[derive(Args, Debug)]
struct ScheduleNamed {
    #[command(flatten)]
    of: ScheduleOf,
    /// Ids of recurring messages
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Args, Debug)]
struct ScheduleAdd {
    #[command(flatten)]
    of: ScheduleOf,
    /// Id of the recurring message. The messages that it sends have the ids <id>@<milliseconds>
    id: String,
    #[command(flatten)]
    when: ScheduleWhen,
    #[command(flatten)]
    content: ContentArgs,
    #[command(flatten)]
    dry: DryRun,
}

/// Number of next due times that `list` and `show` print for each recurring message.
const TIMES: usize = 3;

/// A recurring message.
#[derive(Debug, Serialize, JsonSchema)]
struct ScheduleEntry {
    id: String,
    /// `orders/3`: a partition of a topic, or a shard of a queue.
    place: String,
    /// The rule as it is stored.
    rule: String,
    /// The rule in the words of the command line.
    rule_text: String,
    zone: String,
    paused: bool,
    /// `null` if it is paused or over.
    #[serde(rename = "next_ms")]
    #[schemars(with = "Option<u64>")]
    next: Option<Timestamp>,
    /// The next times; empty if it is paused or over, or if the rule is not known here.
    #[serde(rename = "times_ms")]
    #[schemars(with = "Vec<u64>")]
    times: Vec<Timestamp>,
    #[serde(flatten)]
    body: Body,
}

impl From<RecurringEntry> for ScheduleEntry {
    fn from(entry: RecurringEntry) -> Self {
        let RecurringEntry { place, id, rule, next, paused, message, .. } = entry;
        // A rule of a later version is shown as it is stored.
        let known: Option<Rule> = rule.parse().ok();
        let times = known.zip(next).map(|(rule, next)| rule.between(next, FOREVER).take(TIMES).collect());
        let RecurringShown { text: rule_text, zone } = RecurringShown::of(&rule);
        Self {
            id: id.to_string(),
            place: place.to_string(),
            rule,
            rule_text,
            zone: zone.name().to_owned(),
            paused,
            next,
            times: times.unwrap_or_default(),
            body: Body::of(&message),
        }
    }
}

impl ScheduleEntry {
    /// Returns the columns of the list.
    fn row(&self) -> [String; 5] {
        let shown = RecurringShown::of(&self.rule);
        let next = match (self.paused, self.next) {
            (true, _) => "paused".to_owned(),
            (false, next) => next.map_or_else(|| "over".to_owned(), |next| shown.time(next)),
        };
        let payload = match &self.body {
            Body::Message(it) => sanitize::short(&it.payload),
            Body::Malformed(why, _) => format!("no message: {}", sanitize::line(why.as_bytes())),
        };
        [sanitize::line(self.id.as_bytes()), self.place.clone(), next, shown.text, payload]
    }

    /// Formats all known values, for people.
    fn story(&self) -> String {
        let shown = RecurringShown::of(&self.rule);
        let state = match (self.paused, self.next) {
            (true, _) => "paused",
            (false, Some(_)) => "active",
            (false, None) => "over",
        };
        let mut pairs = vec![
            ("id", sanitize::line(self.id.as_bytes())),
            ("place", self.place.clone()),
            ("rule", shown.text.clone()),
            ("time zone", shown.zone.name().to_owned()),
            ("state", state.to_owned()),
        ];
        pairs.extend(self.times.iter().map(|time| ("next", shown.time(*time))));
        content(pairs, &self.body)
    }
}

/// The next times of a recurring message.
#[derive(Debug, Serialize, JsonSchema)]
struct Times {
    id: String,
    paused: bool,
    /// Empty if it is paused, or has no further occurrence.
    #[schemars(with = "Vec<u64>")]
    times_ms: Vec<Timestamp>,
}

/// A recurring message that was added.
#[derive(Debug, Serialize, JsonSchema)]
struct ScheduleAdded {
    id: String,
    /// `new`, `replaced` or `unchanged`; `None` in a dry run.
    #[schemars(extend("enum" = ["new", "replaced", "unchanged", null]))]
    outcome: Option<&'static str>,
    rule: String,
    /// Whether it is paused. A change does not end a pause.
    paused: bool,
    #[schemars(with = "Vec<u64>")]
    times_ms: Vec<Timestamp>,
    dry_run: bool,
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("schedule list", of::<Vec<Listed<ScheduleEntry>>>()),
    ("schedule show", of::<ScheduleEntry>()),
    ("schedule add", of::<ScheduleAdded>()),
    ("schedule pause", of::<ids::Outcome>()),
    ("schedule resume", of::<ids::Outcome>()),
    ("schedule run", of::<ids::Outcome>()),
    ("schedule remove", of::<ids::Outcome>()),
    ("schedule next", of::<Vec<Listed<Times>>>()),
];

impl Schedule {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            ScheduleCommand::List(of) => Box::pin(list(cx, of)),
            ScheduleCommand::Show { of, id } => Box::pin(show(cx, of, id)),
            ScheduleCommand::Add(add) => Box::pin(add.run(cx)),
            ScheduleCommand::Pause(some) => {
                Box::pin(some.each(cx, "paused", async |it| Ok(it.pause().await?)))
            }
            ScheduleCommand::Resume(some) => {
                Box::pin(some.each(cx, "resumed", async |it| Ok(it.resume().await?)))
            }
            ScheduleCommand::Run(some) => {
                Box::pin(some.each(cx, "due now", async |it| Ok(it.run_now().await?)))
            }
            ScheduleCommand::Remove(some) => Box::pin(some.remove(cx)),
            ScheduleCommand::Next { of, ids, count } => Box::pin(next(cx, of, ids, usize::from(count))),
        }
    }
}

impl ScheduleOf {
    async fn open(&self, cx: &Context) -> Result<Home> {
        Home::open(cx, &self.name, self.queue).await
    }

    async fn entries(&self, cx: &Context) -> Result<(Vec<RecurringEntry>, Vec<Failed>)> {
        let (mut entries, failed) = self.open(cx).await?.list().await?;
        entries.sort_by(|one, other| one.id.cmp(&other.id));
        Ok((entries, failed))
    }
}

impl ScheduleNamed {
    async fn remove(self, cx: &Context) -> Result<Exit> {
        if !self.dry.dry_run {
            cx.confirm(&format!("Let {} of {} no longer recur?", self.ids.join(", "), self.of.name))?;
        }
        self.each(cx, "removed", async |it| Ok(it.remove().await?)).await
    }

    async fn each(
        self,
        cx: &Context,
        done: &'static str,
        act: impl AsyncFn(Recur<'_, bytes::Bytes>) -> Result<bool>,
    ) -> Result<Exit> {
        let home = self.of.open(cx).await?;
        let (entries, failed) = if self.dry.dry_run { home.list().await? } else { Default::default() };
        Failed::note(cx, &failed);
        let words = Words { done, missing: "no such recurring rule" };
        let is_there = async |id: &str| Ok(entries.iter().any(|entry| entry.id.as_str() == id));
        ids::each(cx, self.dry, words, &self.ids, is_there, async |id| act(home.recur(id)).await).await
    }
}

impl ScheduleAdd {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let envelope = self.content.envelope()?;
        let home = self.of.open(cx).await?;
        let now = cx.now().await?;
        let rule = self.when.rule(now)?;
        let outcome = if self.dry.dry_run {
            // As it would be checked where it is stored.
            let (id, fields) = (ScheduleId::new(&self.id)?, wire::encode(&envelope));
            let next = rule.next_after(now);
            if next.is_none() {
                return Err(Usage(format!("{id} would never recur: `{rule}` has no time after now")).into());
            }
            Recurrence { id, rule: rule.to_string(), fields, next, paused: false }.check()?;
            if !self.of.queue {
                self.of.name.parse::<TopicName>()?.check_target()?;
            }
            None
        } else {
            let recur = self.when.of(home.recur(&self.id)).payload(&envelope.payload);
            let recur = envelope.key.iter().fold(recur, Recur::key);
            let recur = envelope.headers.iter().fold(recur, |recur, (name, value)| recur.header(name, value));
            Some(match recur.await? {
                Placed::New => "new",
                Placed::Replaced => "replaced",
                _ => "unchanged",
            })
        };
        // Read back from the server: an unchanged rule is counted from its original start.
        let stored = match outcome {
            None => None,
            Some(_) => home.list().await?.0.into_iter().find(|entry| entry.id.as_str() == self.id),
        };
        let after = now.saturating_add(Duration::from_millis(1));
        let (rule, from) = match &stored {
            None => (rule, after),
            Some(entry) => (entry.rule.parse()?, entry.next.unwrap_or(after)),
        };
        let added = ScheduleAdded {
            id: self.id,
            outcome,
            rule: rule.to_string(),
            paused: stored.is_some_and(|entry| entry.paused),
            times_ms: rule.between(from, FOREVER).take(5).collect(),
            dry_run: self.dry.dry_run,
        };
        let shown = RecurringShown::of(&added.rule);
        cx.output.show(&added, |added| {
            let outcome = added.outcome.unwrap_or("would be added, or changed");
            let paused = if added.paused { "\nbut it is paused" } else { "" };
            let times: Vec<_> =
                added.times_ms.iter().map(|time| format!("\n  {}", shown.time(*time))).collect();
            let due = if times.is_empty() { "never due" } else { "due at" };
            format!(
                "{}: {outcome}; {} it is {due}{}{}",
                sanitize::line(added.id.as_bytes()),
                shown.text,
                times.concat(),
                paused
            )
        })?;
        Ok(Exit::Done)
    }
}

async fn list(cx: &Context, of: ScheduleOf) -> Result<Exit> {
    let (entries, failed) = of.entries(cx).await?;
    let entries = entries.into_iter().map(|entry| Listed::Item(ScheduleEntry::from(entry)));
    let all: Vec<_> = entries.chain(failed.into_iter().map(Listed::Failed)).collect();
    cx.output.show(&all, |all| {
        let titles = ["id", "place", "next", "rule", "payload"];
        output::table(&titles, Listed::known(all).map(ScheduleEntry::row))
    })?;
    Failed::end(cx, Listed::failed(&all))
}

async fn show(cx: &Context, of: ScheduleOf, id: String) -> Result<Exit> {
    let (entries, failed) = of.entries(cx).await?;
    let Some(entry) = entries.into_iter().find(|entry| entry.id.as_str() == id) else {
        Failed::note(cx, &failed);
        return Err(no_rule(&of, &id));
    };
    cx.output.show(&ScheduleEntry::from(entry), ScheduleEntry::story)?;
    Ok(Exit::Done)
}

fn no_rule(of: &ScheduleOf, id: &str) -> anyhow::Error {
    not_found(format!("{} has no recurring rule {id:?}", of.name))
}

async fn next(cx: &Context, of: ScheduleOf, ids: Vec<String>, count: usize) -> Result<Exit> {
    let (entries, mut failed) = of.entries(cx).await?;
    if let Some(id) = ids.iter().find(|id| !entries.iter().any(|entry| entry.id.as_str() == **id)) {
        Failed::note(cx, &failed);
        return Err(no_rule(&of, id));
    }
    let wanted = |entry: &&RecurringEntry| ids.is_empty() || ids.iter().any(|id| entry.id.as_str() == id);
    let (mut all, mut shown) = (Vec::new(), Vec::new());
    for entry in entries.iter().filter(wanted) {
        let rule: Rule = match entry.rule.parse() {
            Ok(rule) => rule,
            // One of a later version.
            Err(error) => {
                failed.push(Failed::rule(entry, &error));
                continue;
            }
        };
        let from = entry.next;
        let times_ms = from.map_or_else(Vec::new, |from| rule.between(from, FOREVER).take(count).collect());
        shown.push(RecurringShown::of(&entry.rule));
        all.push(Listed::Item(Times { id: entry.id.to_string(), paused: entry.paused, times_ms }));
    }
    // What failed belongs to none of the ids, if there are some.
    let failed = failed.into_iter().filter(|_| ids.is_empty());
    all.extend(failed.map(Listed::Failed));
    cx.output.show(&all, |all| {
        let rows = Listed::known(all).zip(&shown).flat_map(|(it, shown)| {
            let id = sanitize::line(it.id.as_bytes());
            let none = if it.paused { "paused" } else { "over" };
            let times: Vec<_> = match &it.times_ms[..] {
                [] => vec![(FOREVER, none.to_owned())],
                times => times.iter().map(|time| (*time, shown.time(*time))).collect(),
            };
            times.into_iter().map(move |(at, time)| (at, [time, id.clone()]))
        });
        let mut rows: Vec<_> = rows.collect();
        // Times in different zones cannot be sorted as text.
        rows.sort();
        output::table(&["time", "id"], rows.into_iter().map(|(_, row)| row))
    })?;
    Failed::end(cx, Listed::failed(&all))
}
