//! `millstream dlq list`, `show` and `count`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use millstream::admin::{Cursor, Failed, ShelfFilter, ShelfQuery};
use millstream::{DeadLetter, MessageId, Partition, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::message::{Body, json, sanitize};
use crate::commands::shelf::view::{LetterView, Shown, letter_story, table};
use crate::commands::shelf::{DlqWanted, Kind, Opened};
use crate::context::Context;
use crate::exit::{Exit, Usage, not_found};
use crate::human;

/// Lists dead letters with their errors, oldest first
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq list orders billing --limit 20
  millstream dlq list orders billing --reason rejected --from '1h ago' --newest-first
  millstream dlq list orders billing --json | jq -r '.data.letters[].id'")]
pub(super) struct DlqList {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: DlqWanted,
    /// Maximum number of letters
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Shows the newest first
    #[arg(long)]
    newest_first: bool,
    /// Cursor of the page, from `next` of the page before
    #[arg(long, value_name = "CURSOR")]
    after: Option<Cursor>,
}

/// Shows a dead letter with its attempts, headers and payload
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq show orders billing 1700000000000-0
  millstream dlq show orders billing 1700000000000-0 --json | jq .data.payload")]
pub(super) struct DlqShow {
    #[command(flatten)]
    of: GroupOf,
    /// Id of the letter
    id: MessageId,
    /// Its partition, if letters of several partitions have this id. Default: all are searched
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
}

/// Counts dead letters
///
/// Without options this takes one request, however many there are. With a filter or --reasons, all letters are read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq count orders billing
  millstream dlq count orders billing --reasons
  millstream dlq count orders billing --error timeout --from '1h ago'")]
pub(super) struct Count {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: DlqWanted,
    /// Also counts by reason and by partition
    #[arg(long)]
    reasons: bool,
}

/// The titles of [`line`]s.
pub(super) const TITLES: &str =
    "died                      part  id                    reason       attempts  then    error; payload\n";

/// Formats a letter in one line, with its fate. Widths are fixed, since later letters are not known yet.
pub(super) fn line(letter: &DeadLetter, then: &str) -> String {
    let payload = match Body::of(&letter.body) {
        Body::Message(envelope) => sanitize::short(&envelope.payload),
        Body::Malformed(why, fields) => {
            format!(
                "no message: {}: {}",
                sanitize::line(why.as_bytes()),
                sanitize::cut(&json::fields(&fields))
            )
        }
    };
    let (died, partition, id) =
        (human::time(letter.id.timestamp()), letter.topic_partition.partition.0, letter.id.to_string());
    let reason = sanitize::line(letter.reason.as_str().as_bytes());
    let error = sanitize::cut(&sanitize::line(letter.error.as_bytes()));
    let attempts = letter.attempts;
    format!(
        "{died:<24}  {partition:>4}  {id:<20}  {reason:<11}  {attempts:>8}  {then:<6}  {error}; {payload}"
    )
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DlqPage<V> {
    letters: Vec<V>,
    looked_at: u64,
    next: Option<String>,
}

impl DlqList {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let opened = Opened::group(cx, Kind::Letters, &self.of, &filter).await?;
        let (newest_first, limit, after) = (self.newest_first, self.limit as usize, self.after);
        let query = ShelfQuery { filter, newest_first, limit, after, ..ShelfQuery::default() };
        let (mut walk, mut letters) = (opened.shelf.walk_from(&query), Vec::new());
        while !walk.is_done() {
            letters.extend(walk.run_once(limit).await?);
        }
        let next = walk.cursor().map(|next| next.to_string());
        let shown = letters.iter().map(Shown).collect();
        let page = DlqPage { letters: shown, looked_at: walk.looked_at(), next };
        cx.output.show(&page, |_| table(&letters, Timestamp::default()))?;
        if let Some(next) = page.next.filter(|_| !cx.output.is_json()) {
            cx.output.note(&format!("there is more: --after {next}"));
        }
        Ok(Exit::Done)
    }
}

impl DlqShow {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let partitions = self.partition.map(|partition| vec![Partition(partition)]);
        let filter = ShelfFilter { partitions, ids: Some(vec![self.id]), ..ShelfFilter::default() };
        let opened = Opened::group(cx, Kind::Letters, &self.of, &filter).await?;
        match &opened.shelf.first(&filter, 2).await?[..] {
            [] => {
                let why = format!("there is no dead letter {} of group {}", self.id, self.of.group);
                return Err(not_found(why));
            }
            [Failed::Letter(letter)] => cx.output.show(&LetterView::of(letter), |_| letter_story(letter))?,
            [..] => {
                let why = format!(
                    "dead letters of several partitions have the id {}: --partition selects one",
                    self.id
                );
                return Err(Usage(why).into());
            }
        }
        Ok(Exit::Done)
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DlqCounted {
    count: u64,
    /// `null` if they were not requested.
    reasons: Option<BTreeMap<String, u64>>,
    partitions: Option<BTreeMap<u32, u64>>,
}

impl Count {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let Opened { shelf, .. } = Opened::group(cx, Kind::Letters, &self.of, &filter).await?;
        let counted = if filter.is_empty() && !self.reasons {
            DlqCounted { count: shelf.count().await?, reasons: None, partitions: None }
        } else {
            let survey = shelf.survey(&filter, None, 0, |_| {}).await?;
            let partitions = survey.partitions.into_iter().map(|(partition, count)| (partition.0, count));
            DlqCounted {
                count: survey.matched,
                reasons: Some(survey.reasons),
                partitions: Some(partitions.collect()),
            }
        };
        cx.output.show(&counted, |counted| {
            let mut lines = human::of(counted.count, "dead letter", "dead letters");
            for (reason, count) in counted.reasons.iter().flatten() {
                lines += &format!("\n  {}: {}", sanitize::line(reason.as_bytes()), human::count(*count));
            }
            for (partition, count) in counted.partitions.iter().flatten().filter(|_| self.reasons) {
                lines += &format!("\n  partition {partition}: {}", human::count(*count));
            }
            lines
        })?;
        Ok(Exit::Done)
    }
}
