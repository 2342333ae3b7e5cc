//! What failed: dead letters, retries and dead tasks. How they are selected, shown, changed and trimmed is written once, here; `dlq`,
//! `retries` and `queue dead` are their names.

pub(in crate::commands) mod change;
pub(in crate::commands) mod read;
pub(in crate::commands) mod trim;
pub(in crate::commands) mod view;
mod whole_file;

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millstream::admin::{Filter, Shelf, ShelfFilter};
use millstream::crates::core::{Fingerprint, QueueName};
use millstream::{ErrorKind, MessageId, Partition, Reason, Timestamp};

use crate::commands::group::GroupOf;
use crate::context::Context;
use crate::exit::{Usage, not_found};
use crate::parse::{self, When};

/// Kind of what failed, with its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Kind {
    Letters,
    Retries,
    Tasks,
}

impl Kind {
    /// Returns the noun: `1 dead letter`, `2 dead letters`.
    pub(in crate::commands) fn noun(self) -> (&'static str, &'static str) {
        match self {
            Self::Letters => ("dead letter", "dead letters"),
            Self::Retries => ("retry", "retries"),
            Self::Tasks => ("dead task", "dead tasks"),
        }
    }
}

/// A shelf that a command has opened.
#[derive(Debug)]
pub(in crate::commands) struct Opened {
    pub(in crate::commands) shelf: Shelf,
    pub(in crate::commands) kind: Kind,
    /// Name of the group or the queue.
    pub(in crate::commands) of: String,
}

impl Opened {
    /// Opens the dead letters or the retries of an existing group.
    ///
    /// # Errors
    /// [`Usage`] if the filter names a partition that does not exist.
    pub(in crate::commands) async fn group(
        cx: &Context,
        kind: Kind,
        of: &GroupOf,
        filter: &ShelfFilter,
    ) -> Result<Self> {
        of.known(cx).await?;
        let shelf = match kind {
            Kind::Retries => cx.admin().retries(&of.topic, &of.group).await?,
            _ => (*cx.admin().dead_letters(&of.topic, &of.group).await?).clone(),
        };
        Self { shelf, kind, of: of.group.to_string() }.checked(filter, &format!("topic {}", of.topic))
    }

    /// Opens the dead tasks of an existing queue.
    ///
    /// # Errors
    /// [`Usage`] if the filter names a shard that does not exist.
    pub(in crate::commands) async fn queue(
        cx: &Context,
        queue: &QueueName,
        filter: &ShelfFilter,
    ) -> Result<Self> {
        let shelf = match cx.admin().dead_tasks(queue).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let why = "`millstream queue create` creates it";
                return Err(not_found(format!("delay queue {queue} does not exist; {why}")));
            }
            other => other?,
        };
        let opened = Self { shelf, kind: Kind::Tasks, of: queue.to_string() };
        opened.checked(filter, &format!("delay queue {queue}"))
    }

    fn checked(self, filter: &ShelfFilter, place: &str) -> Result<Self> {
        let has = self.shelf.partitions();
        match filter.partitions.iter().flatten().find(|partition| partition.0 >= has) {
            Some(none) => {
                Err(Usage(format!("there is no partition {none} of {place}, which has {has}")).into())
            }
            None => Ok(self),
        }
    }
}

/// Conditions on a message and its error
#[derive(Args, Clone, Debug, Default)]
struct MessageWanted {
    /// Those of these partitions, or shards. Default: all
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    partition: Vec<u32>,
    /// Those with this text in the error of the last attempt
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    error: Option<String>,
    /// Those with the error of this fingerprint, which `errors` shows
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<Fingerprint>,
    /// Those with this key
    #[arg(long)]
    key: Option<String>,
    /// Those with this header, or with this value of it
    #[arg(long, value_name = "NAME[=VALUE]")]
    header: Option<String>,
    /// Those with this text in their payload
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    filter: Option<String>,
}

impl MessageWanted {
    async fn filter(&self, cx: &Context, from: Option<When>, until: Option<When>) -> Result<ShelfFilter> {
        let now = if from.is_some() || until.is_some() { cx.now().await? } else { Timestamp::default() };
        let text = |text: &Option<String>| text.clone().map(Bytes::from);
        let header = self.header.as_ref().map(|header| match header.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(Bytes::from(value.to_owned()))),
            None => (header.clone(), None),
        });
        let partitions = self.partition.iter().copied().map(Partition).collect();
        Ok(ShelfFilter {
            partitions: (!self.partition.is_empty()).then_some(partitions),
            error: self.error.clone(),
            fingerprint: self.fingerprint,
            from: from.map(|when| when.at(now)),
            before: until.map(|when| when.at(now)),
            message: Filter { id: None, key: text(&self.key), header, payload: text(&self.filter) },
            ..ShelfFilter::default()
        })
    }
}

/// Filter of dead letters or dead tasks, in which all conditions must match
#[derive(Args, Clone, Debug, Default)]
pub(in crate::commands) struct DeadWanted {
    #[command(flatten)]
    message: MessageWanted,
    /// Those with this reason: exhausted, rejected, undecodable, malformed, crashed, killed, orphan
    #[arg(long, value_parser = reason)]
    reason: Option<Reason>,
    /// Those that died at this time or later: `2026-01-31T12:00:00Z`, `2h ago`
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    from: Option<When>,
    /// Those that died before this time
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    until: Option<When>,
    /// Those with at least this many attempts
    #[arg(long, value_name = "N")]
    min_attempts: Option<u32>,
    /// Those with at most this many attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
}

/// Filter of dead letters, in which all conditions must match
#[derive(Args, Clone, Debug, Default)]
pub(in crate::commands) struct DlqWanted {
    #[command(flatten)]
    dead: DeadWanted,
    /// The letter of the message with this id in the log of its partition
    #[arg(long, value_name = "ID")]
    origin: Option<MessageId>,
}

/// Filter of retries, in which all conditions must match
#[derive(Args, Clone, Debug, Default)]
pub(in crate::commands) struct RetriesWanted {
    #[command(flatten)]
    message: MessageWanted,
    /// Those whose next attempt has at least this number
    #[arg(long, value_name = "N")]
    min_attempt: Option<u32>,
    /// Those that are due at this time or later: `2026-01-31T12:00:00Z`, `in 5m`
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    due_from: Option<When>,
    /// Those that are due before this time
    #[arg(long, value_name = "WHEN", value_parser = parse::when)]
    due_until: Option<When>,
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

impl DeadWanted {
    /// Returns the filter for the library.
    pub(in crate::commands) async fn filter(&self, cx: &Context) -> Result<ShelfFilter> {
        Ok(ShelfFilter {
            reason: self.reason.clone(),
            min_attempts: self.min_attempts,
            max_attempts: self.max_attempts,
            ..self.message.filter(cx, self.from, self.until).await?
        })
    }
}

impl DlqWanted {
    /// Returns the filter for the library.
    pub(in crate::commands) async fn filter(&self, cx: &Context) -> Result<ShelfFilter> {
        Ok(ShelfFilter { origin: self.origin, ..self.dead.filter(cx).await? })
    }
}

impl RetriesWanted {
    /// Returns the filter for the library.
    pub(in crate::commands) async fn filter(&self, cx: &Context) -> Result<ShelfFilter> {
        let filter = self.message.filter(cx, self.due_from, self.due_until).await?;
        Ok(ShelfFilter { min_attempts: self.min_attempt, ..filter })
    }
}

/// What a command is about
#[derive(Args, Clone, Debug)]
pub(in crate::commands) struct Chosen {
    /// Ids
    #[arg(value_name = "ID", conflicts_with = "all")]
    ids: Vec<String>,
    /// All that exist now
    #[arg(long)]
    all: bool,
    /// Maximum number, the oldest or those that are due next first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(in crate::commands) limit: Option<u64>,
}

impl Chosen {
    /// Adds the ids to a filter.
    ///
    /// # Errors
    /// [`Usage`] if nothing selects anything, and for a wrong id.
    pub(in crate::commands) fn add(&self, kind: Kind, filter: &mut ShelfFilter) -> Result<()> {
        if !self.ids.is_empty() && kind == Kind::Tasks {
            if self.ids.iter().any(String::is_empty) {
                return Err(Usage("a task has an id that is not empty".into()).into());
            }
            filter.tasks = Some(self.ids.iter().cloned().collect());
        } else if !self.ids.is_empty() {
            let id = |id: &String| {
                id.parse::<MessageId>().map_err(|error| Usage(format!("{id:?} is no id: {error}")))
            };
            filter.ids = Some(self.ids.iter().map(id).collect::<Result<_, _>>()?);
        }
        if filter.is_empty() && !self.all {
            let which = format!("which {}?", kind.noun().1.trim_start_matches("dead "));
            let says = "Ids, a filter (--error, --fingerprint, --key, …) or --all says it";
            return Err(Usage(format!("{which} {says}")).into());
        }
        Ok(())
    }

    /// Returns whether ids select.
    pub(in crate::commands) fn is_named(&self) -> bool {
        !self.ids.is_empty()
    }
}
