//! `millstream retries`: failed messages of a group that wait for their next attempt.

mod change;
mod list;

use anyhow::Result;
use bytes::Bytes;
use clap::{Args, Subcommand};
use millstream::admin::{Filter, RetryFilter, RetryQueue};
use millstream::crates::core::Fingerprint;
use millstream::{MessageId, Partition, Timestamp};

use crate::commands::Running;
use crate::commands::group::GroupOf;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::errors::ErrorsView;
use crate::context::Context;
use crate::exit::Usage;
use crate::parse::{self, When};

/// Lists messages that wait for a retry, makes them due now, or gives them up
///
/// A message that a group failed to handle waits until its retry is due, and then returns to this group only. Until
/// then it is neither pending nor dead.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries list orders billing
  millstream retries now orders billing --error 'connection refused'
  millstream retries kill orders billing 1700000000000-0")]
pub(crate) struct Retries {
    #[command(subcommand)]
    what: RetriesCommand,
}

#[derive(Debug, Subcommand)]
enum RetriesCommand {
    List(list::List),
    Errors(list::RetriesErrors),
    Now(change::Now),
    Kill(change::Kill),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("retries list", of::<list::RetriesView>()),
    ("retries errors", of::<ErrorsView<list::RetriesExample>>()),
    ("retries now", of::<change::RetriesOutcome>()),
    ("retries kill", of::<change::RetriesOutcome>()),
];

impl Retries {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            RetriesCommand::List(it) => Box::pin(it.run(cx)),
            RetriesCommand::Errors(it) => Box::pin(it.run(cx)),
            RetriesCommand::Now(it) => Box::pin(it.run(cx)),
            RetriesCommand::Kill(it) => Box::pin(it.run(cx)),
        }
    }
}

/// Filter of retries, in which all conditions must match
#[derive(Args, Clone, Debug, Default)]
struct RetriesWanted {
    /// Retries of these partitions. Default: all
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    partition: Vec<u32>,
    /// Retries with this text in the error of the last attempt
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Retries with the error of this fingerprint, which `retries errors` shows
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<Fingerprint>,
    /// Retries whose next attempt has at least this number
    #[arg(long, value_name = "N")]
    min_attempt: Option<u32>,
    /// Retries that are due at this time or later: `2026-01-31T12:00:00Z`, `in 5m`
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    due_from: Option<When>,
    /// Retries that are due before this time
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    due_until: Option<When>,
    /// Retries with this key
    #[arg(long)]
    key: Option<String>,
    /// Retries with this header, or with this value of it
    #[arg(long, value_name = "NAME[=VALUE]")]
    header: Option<String>,
    /// Retries with this text in their payload
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

impl RetriesWanted {
    /// Returns the filter for the library. Without ids, all messages are meant.
    async fn filter(&self, cx: &Context, ids: &[MessageId]) -> Result<RetryFilter> {
        let is_timed = self.due_from.is_some() || self.due_until.is_some();
        let now = if is_timed { cx.now().await? } else { Timestamp::default() };
        let text = |text: &Option<String>| text.clone().map(Bytes::from);
        let header = self.header.as_ref().map(|header| match header.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(Bytes::from(value.to_owned()))),
            None => (header.clone(), None),
        });
        Ok(RetryFilter {
            partitions: (!self.partition.is_empty())
                .then(|| self.partition.iter().copied().map(Partition).collect()),
            ids: (!ids.is_empty()).then(|| ids.to_vec()),
            error: self.error.clone(),
            fingerprint: self.fingerprint,
            min_attempt: self.min_attempt,
            due_from: self.due_from.map(|when| when.at(now)),
            due_before: self.due_until.map(|when| when.at(now)),
            message: Filter { id: None, key: text(&self.key), header, payload: text(&self.filter) },
        })
    }
}

/// Opens the retries of an existing group.
async fn open(cx: &Context, of: &GroupOf, filter: &RetryFilter) -> Result<RetryQueue> {
    of.known(cx).await?;
    let retries = cx.admin().retries(&of.topic, &of.group).await?;
    let has = retries.topic().partitions;
    if let Some(none) = filter.partitions.iter().flatten().find(|partition| partition.0 >= has) {
        let message = format!("there is no partition {none} of topic {}, which has {has}", of.topic);
        return Err(Usage(message).into());
    }
    Ok(retries)
}
