//! `millstream dlq list`, `show` and `count`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use millstream::admin::{Cursor, DeadLetterFilter, DeadLetterQuery};
use millstream::{DeadLetter, Limits, MessageId, Partition};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::commands::dlq::select::{DlqWanted, open};
use crate::commands::group::GroupOf;
use crate::commands::message::{Body, json, sanitize};
use crate::commands::schemas::schema_as;
use crate::commands::shared::view::FailedAttempt;
use crate::context::Context;
use crate::exit::{Exit, not_found};
use crate::{human, output};

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

/// A dead letter, for programs.
pub(super) struct DlqShown<'a>(pub(super) &'a DeadLetter);

/// Its fields.
#[derive(Serialize, JsonSchema)]
struct LetterView<'a> {
    id: String,
    topic: &'a str,
    partition: u32,
    group: &'a str,
    died_ms: u64,
    reason: &'a str,
    attempts: u32,
    /// The error of the last attempt.
    error: &'a str,
    /// The id of the message in the log.
    origin: String,
    /// The failed attempts, as far as they are known.
    history: Vec<FailedAttempt>,
    #[serde(flatten)]
    body: Body,
}

impl Serialize for DlqShown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DeadLetter { id, reason, attempts, error, origin, topic_partition, group, history, body } =
            self.0;
        let view = LetterView {
            id: id.to_string(),
            topic: topic_partition.topic.as_str(),
            partition: topic_partition.partition.0,
            group: group.as_str(),
            died_ms: id.ms,
            reason: reason.as_str(),
            attempts: *attempts,
            error,
            origin: origin.to_string(),
            history: FailedAttempt::all(history),
            body: Body::of(body),
        };
        view.serialize(serializer)
    }
}

schema_as!(DlqShown<'_>, LetterView<'_>);

/// Formats a table of letters.
pub(super) fn table<'a>(letters: impl IntoIterator<Item = &'a DeadLetter>) -> String {
    let row = |it: &DeadLetter| {
        let envelope = it.envelope(&Limits::NONE);
        let key = envelope.as_ref().ok().and_then(|it| it.key.clone());
        [
            it.id.to_string(),
            it.topic_partition.partition.to_string(),
            human::time(it.id.timestamp()),
            sanitize::line(it.reason.as_str().as_bytes()),
            it.attempts.to_string(),
            sanitize::cut(&sanitize::line(it.error.as_bytes())),
            human::or_none(key, |key| sanitize::cut(&sanitize::line(&key))),
            envelope.map_or_else(|why| why.to_string(), |it| sanitize::short(&it.payload)),
        ]
    };
    let titles = ["id", ">partition", "died", "reason", ">attempts", "error", "key", "payload"];
    output::table(&titles, letters.into_iter().map(row))
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
pub(super) struct DlqPage<'a> {
    letters: Vec<DlqShown<'a>>,
    looked_at: u64,
    next: Option<String>,
}

impl DlqList {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let queue = open(cx, &self.of, &filter).await?;
        let mut query = DeadLetterQuery {
            filter,
            newest_first: self.newest_first,
            limit: self.limit as usize,
            after: self.after,
            ..DeadLetterQuery::default()
        };
        // A page of the library is bounded in bytes and reads; the result here is bounded by its limit only.
        let (mut letters, mut looked_at) = (Vec::new(), 0);
        loop {
            let page = queue.page(&query).await?;
            (query.after, looked_at) = (page.next, looked_at + page.looked_at);
            letters.extend(page.letters);
            query.limit = self.limit as usize - letters.len();
            if query.limit == 0 || query.after.is_none() {
                break;
            }
        }
        let next = query.after.map(|next| next.to_string());
        let page = DlqPage { letters: letters.iter().map(DlqShown).collect(), looked_at, next };
        cx.output.show(&page, |page| table(page.letters.iter().map(|DlqShown(letter)| *letter)))?;
        if let Some(next) = page.next.filter(|_| !cx.output.is_json()) {
            cx.output.note(&format!("there is more: --after {next}"));
        }
        Ok(Exit::Done)
    }
}

impl DlqShow {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let partitions = self.partition.map(|partition| vec![Partition(partition)]);
        let filter = DeadLetterFilter { partitions, ids: Some(vec![self.id]), ..DeadLetterFilter::default() };
        let queue = open(cx, &self.of, &filter).await?;
        let found = queue.survey(&filter, None, 2).await?.sample;
        match &found[..] {
            [] => {
                let why = format!("there is no dead letter {} of group {}", self.id, self.of.group);
                return Err(not_found(why));
            }
            [letter] => cx.output.show(&DlqShown(letter), |DlqShown(letter)| story(letter))?,
            [..] => bail!("letters of several partitions have the id {}: --partition selects one", self.id),
        }
        Ok(Exit::Done)
    }
}

/// Formats all known values of a letter, for people.
pub(super) fn story(letter: &DeadLetter) -> String {
    let mut pairs = vec![
        ("letter", letter.id.to_string()),
        ("topic", letter.topic_partition.topic.to_string()),
        ("partition", letter.topic_partition.partition.to_string()),
        ("group", letter.group.to_string()),
        ("died", human::time(letter.id.timestamp())),
        ("reason", sanitize::line(letter.reason.as_str().as_bytes())),
        ("attempts", letter.attempts.to_string()),
        ("error", sanitize::line(letter.error.as_bytes())),
        ("origin", format!("{}, sent {}", letter.origin, human::time(letter.origin.timestamp()))),
    ];
    for failed in letter.history.failures() {
        let error = sanitize::line(failed.error.as_bytes());
        pairs.push(("failed", format!("{} attempt {}: {error}", human::time(failed.at), failed.attempt)));
    }
    match Body::of(&letter.body) {
        Body::Message(envelope) => {
            pairs.push(("key", human::or_none(envelope.key.as_ref(), |key| sanitize::line(key))));
            for (name, value) in envelope.headers.iter() {
                pairs.push((
                    "header",
                    format!("{}={}", sanitize::line(name.as_bytes()), sanitize::line(value)),
                ));
            }
            format!("{}\n{}", output::list(pairs), sanitize::text(&envelope.payload))
        }
        Body::Malformed(why, fields) => {
            pairs.push(("malformed", why));
            format!("{}\n{}", output::list(pairs), json::fields(&fields))
        }
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
        let queue = open(cx, &self.of, &filter).await?;
        let counted = if filter.is_empty() && !self.reasons {
            DlqCounted { count: queue.count().await?, reasons: None, partitions: None }
        } else {
            let survey = queue.survey(&filter, None, 0).await?;
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
