//! Options that select dead letters.

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use millstream::admin::{DeadLetterFilter, DeadLetterQueue, Filter, Survey};
use millstream::crates::core::Fingerprint;
use millstream::{MessageId, Partition, Reason, Timestamp};

use crate::commands::group::GroupOf;
use crate::context::Context;
use crate::exit::{Usage, not_found};
use crate::parse::{self, When};

/// Maximum number of affected letters that are shown.
const SAMPLE: usize = 10;

/// Filter of letters, in which all conditions must match
#[derive(Args, Clone, Debug, Default)]
pub(super) struct DlqWanted {
    /// Letters of these partitions. Default: all
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    partition: Vec<u32>,
    /// Letters with this reason: exhausted, rejected, undecodable, malformed, crashed, killed, orphan
    #[arg(long, value_parser = reason)]
    reason: Option<Reason>,
    /// Letters with this text in the error of the last attempt
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Letters with the error of this fingerprint, which `dlq errors` shows
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<Fingerprint>,
    /// Letters with this key
    #[arg(long)]
    key: Option<String>,
    /// Letters with this header, or with this value of it
    #[arg(long, value_name = "NAME[=VALUE]")]
    header: Option<String>,
    /// Letters with this text in their payload
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Letters that were stored at this time or later: `2026-01-31T12:00:00Z`, `2h ago`
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    from: Option<When>,
    /// Letters that were stored before this time
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    until: Option<When>,
    /// Letters with at least this many attempts
    #[arg(long, value_name = "N")]
    min_attempts: Option<u32>,
    /// Letters with at most this many attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// The letter of the message with this id in the log
    #[arg(long, value_name = "ID")]
    origin: Option<MessageId>,
}

/// Parses a reason. One that is misspelt would select nothing.
fn reason(word: &str) -> Result<Reason, String> {
    match Reason::parse(word) {
        Reason::Other(_) => {
            Err("reasons are exhausted, rejected, undecodable, malformed, crashed, killed and orphan".into())
        }
        known => Ok(known),
    }
}

impl DlqWanted {
    /// Returns the filter for the library.
    pub(super) async fn filter(&self, cx: &Context) -> Result<DeadLetterFilter> {
        let now =
            if self.from.is_some() || self.until.is_some() { cx.now().await? } else { Timestamp::default() };
        let text = |text: &Option<String>| text.clone().map(Bytes::from);
        let header = self.header.as_ref().map(|header| match header.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(Bytes::from(value.to_owned()))),
            None => (header.clone(), None),
        });
        Ok(DeadLetterFilter {
            undecodable_error: None,
            partitions: (!self.partition.is_empty())
                .then(|| self.partition.iter().copied().map(Partition).collect()),
            ids: None,
            origin: self.origin,
            reason: self.reason.clone(),
            error: self.error.clone(),
            fingerprint: self.fingerprint,
            min_attempts: self.min_attempts,
            max_attempts: self.max_attempts,
            died_from: self.from.map(|when| when.at(now)),
            died_before: self.until.map(|when| when.at(now)),
            message: Filter { id: None, key: text(&self.key), header, payload: text(&self.filter) },
            up_to: None,
        })
    }
}

/// Selection of letters
#[derive(Args, Clone, Debug)]
pub(super) struct DlqChosen {
    #[command(flatten)]
    pub(super) of: GroupOf,
    /// Ids of letters
    #[arg(value_name = "ID")]
    ids: Vec<MessageId>,
    #[command(flatten)]
    wanted: DlqWanted,
    /// All letters that exist now
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Maximum number of letters, oldest first
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u64>,
}

impl DlqChosen {
    /// Opens the letters, and returns the filter that selects them.
    ///
    /// # Errors
    /// [`Usage`] if no option selects letters.
    pub(super) async fn open(&self, cx: &Context) -> Result<(DeadLetterQueue, DeadLetterFilter)> {
        let mut filter = self.wanted.filter(cx).await?;
        if !self.ids.is_empty() {
            filter.ids = Some(self.ids.clone());
        }
        if filter.is_empty() && !self.all {
            let message =
                "which letters? Ids, a filter (--reason, --error, --fingerprint, --key, …) or --all says it";
            return Err(Usage(message.into()).into());
        }
        Ok((open(cx, &self.of, &filter).await?, filter))
    }

    /// Whether letters were selected by their ids.
    pub(super) fn is_named(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Counts the selected letters, and returns the first ones, or all that were named.
    ///
    /// # Errors
    /// [`Usage`] if letters of several partitions have one of the ids.
    pub(super) async fn survey(
        &self,
        queue: &DeadLetterQueue,
        filter: &DeadLetterFilter,
    ) -> Result<(Survey, Missing)> {
        let named = self.ids.len().saturating_mul(queue.topic().partitions as usize);
        let survey = queue.survey(filter, self.limit, named.max(SAMPLE)).await?;
        let mut missing = Missing(Vec::new());
        for id in &self.ids {
            let letters = survey.sample.iter().filter(|letter| letter.id == *id);
            match letters.count() {
                // With a limit, ids behind it are not looked up.
                0 if self.limit.is_none() => missing.0.push(*id),
                0 | 1 => {}
                _ => {
                    let message =
                        format!("letters of several partitions have the id {id}: --partition selects one");
                    return Err(Usage(message).into());
                }
            }
        }
        Ok((survey, missing))
    }
}

/// Letters that were named and do not exist.
#[derive(Debug)]
pub(super) struct Missing(Vec<MessageId>);

impl Missing {
    /// Returns an error if there are any. Called at the end, after the other letters were handled.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        Err(not_found(format!("not found: {}", ids.join(", "))))
    }
}

/// Opens the dead letters of an existing group.
pub(super) async fn open(cx: &Context, of: &GroupOf, filter: &DeadLetterFilter) -> Result<DeadLetterQueue> {
    of.known(cx).await?;
    let letters = cx.admin().dead_letters(&of.topic, &of.group).await?;
    let has = letters.topic().partitions;
    if let Some(none) = filter.partitions.iter().flatten().find(|partition| partition.0 >= has) {
        return Err(
            Usage(format!("there is no partition {none} of topic {}, which has {has}", of.topic)).into()
        );
    }
    Ok(letters)
}
