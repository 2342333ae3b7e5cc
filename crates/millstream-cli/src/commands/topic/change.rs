//! `topic create`, `topic alter` and `topic expand`.

use anyhow::{Result, bail};
use clap::{ArgGroup, Args, ValueEnum};
use millstream::{
    DeadLetterRetention, ErrorKind, PackCompression, Packing, Retention, TopicChange, TopicName, TopicSpec,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::shared::view::TopicView;
use crate::context::Context;
use crate::exit::{Exit, exists};
use crate::{human, output, parse};

/// Creates a topic
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic create orders --partitions 8
  millstream topic create events --partitions 4 --retention age:7d --max-length 1000000 --if-missing")]
pub(super) struct TopicCreate {
    /// Name of the topic: 1 to 128 characters of A-Z a-z 0-9 . _ -
    topic: TopicName,
    /// Number of partitions: as many consumers of a group can work at the same time
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    partitions: u32,
    /// When entries leave the log: `consumed` when all groups have settled them, `consumed-after:7d` when they are also
    /// older than that; `age:7d` and `length:1000000` even if they were not read; `keep` never
    #[arg(long, value_name = "RETENTION", value_parser = parse::retention, default_value = "consumed")]
    retention: Retention,
    /// Maximum number of messages in the log of a partition; producers wait or fail beyond it. Default: no bound
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_length: Option<u64>,
    /// Which dead letters of a group are dropped: `age:30d` those that are older, `length:100000` those that have as many
    /// newer ones in their partition, `age:30d,length:100000` both; `keep` none. Default: `keep`, and `length:100000` with `--packed`
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention)]
    dead_letter_retention: Option<DeadLetterRetention>,
    /// Packs messages that a producer sends together into one entry, with this compression. `topic alter` can change the
    /// compression later, but not whether the topic is packed
    #[arg(long, value_enum, value_name = "COMPRESSION")]
    packed: Option<Compression>,
    /// Least number of messages for which a pack is made. 1, which `--packed zstd-dictionary` allows, packs single messages too. Default: 4
    #[arg(long, value_name = "N", requires = "packed")]
    packed_min: Option<u32>,
    /// Succeeds if the topic exists already, and does not change it
    #[arg(long)]
    if_missing: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// Compression of a topic's packs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compression {
    /// Not compressed
    None,
    /// LZ4: fast
    Lz4,
    /// zstd: small
    Zstd,
    /// zstd with a dictionary: smaller, once `topic train` has made one
    ZstdDictionary,
}

impl Compression {
    fn packing(self, min_messages: Option<u32>) -> Packing {
        let packing = Packing::new();
        let packing = min_messages.map_or(packing, |least| packing.min_messages(least));
        packing.compression(self.compression())
    }

    const fn compression(self) -> PackCompression {
        match self {
            Self::None => PackCompression::None,
            Self::Lz4 => PackCompression::Lz4,
            Self::Zstd => PackCompression::Zstd,
            Self::ZstdDictionary => PackCompression::ZstdDictionary,
        }
    }
}

/// The settings of a topic, stored or in a dry run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Changed {
    #[serde(flatten)]
    topic: TopicView,
    /// Whether anything differs from before, or would.
    changed: bool,
    dry_run: bool,
}

impl Changed {
    fn show(self, cx: &Context) -> Result<Exit> {
        cx.output.show(&self, |it| output::list(it.topic.list()))?;
        Ok(Exit::Done)
    }
}

impl TopicCreate {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let of_dead = self.dead_letter_retention;
        let of_dead = of_dead.unwrap_or(DeadLetterRetention::by_default(self.packed.is_some()));
        let spec = TopicSpec::new(self.topic.clone(), self.partitions)?
            .with_retention(self.retention)
            .with_max_length(self.max_length)
            .with_dead_letter_retention(of_dead)
            .with_packing(self.packed.map(|packed| packed.packing(self.packed_min)));
        spec.check()?;
        match admin.topic(&self.topic).await {
            Ok(stored) if self.if_missing => {
                cx.output.note(&format!("topic {} already exists: nothing was done", self.topic));
                return Changed { topic: TopicView::of(&stored), changed: false, dry_run }.show(cx);
            }
            Ok(_) => {
                let why = format!(
                    "topic {} already exists; `topic alter` and `topic expand` change it",
                    self.topic
                );
                return Err(exists(why));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        if dry_run {
            cx.output.note("dry run: nothing was done");
            return Changed { topic: TopicView::of(&spec), changed: true, dry_run }.show(cx);
        }
        let stored = admin.create_topic(&spec).await?;
        if stored != spec {
            // The first settings win, and another caller created the topic first.
            cx.output.note(&format!("topic {} was created at the same time by another process", self.topic));
        }
        Changed { topic: TopicView::of(&stored), changed: true, dry_run }.show(cx)
    }
}

/// Changes the retention, the bound or the packing of a topic, or the retention of its dead letters
///
/// Running consumers and producers apply the change within a minute.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("change")
    .args(["retention", "max_length", "no_max_length", "dead_letter_retention", "packed"]).required(true).multiple(true))]
#[command(after_help = "Examples:
  millstream topic alter orders --retention consumed-after:7d
  millstream topic alter orders --dead-letter-retention age:30d,length:100000
  millstream topic alter events --packed zstd-dictionary --packed-min 1
  millstream topic alter orders --no-max-length --dry-run")]
pub(super) struct TopicAlter {
    /// The topic
    topic: TopicName,
    /// When entries leave the log; see `topic create`
    #[arg(long, value_name = "RETENTION", value_parser = parse::retention)]
    retention: Option<Retention>,
    /// Maximum number of messages in the log of a partition
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "no_max_length")]
    max_length: Option<u64>,
    /// Removes the bound
    #[arg(long)]
    no_max_length: bool,
    /// Which dead letters are dropped; see `topic create`
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention)]
    dead_letter_retention: Option<DeadLetterRetention>,
    /// Compression of packs; only of a topic that is packed
    #[arg(long, value_enum, value_name = "COMPRESSION")]
    packed: Option<Compression>,
    /// Least number of messages for which a pack is made; see `topic create`. Default: as before. From 1 to another compression than
    /// `zstd-dictionary`, name it
    #[arg(long, value_name = "N", requires = "packed")]
    packed_min: Option<u32>,
    #[command(flatten)]
    dry: DryRun,
}

impl TopicAlter {
    /// Replaces settings of a topic whose stored ones are invalid.
    async fn mend(&self, cx: &Context, change: &TopicChange, error: &millstream::Error) -> Result<Exit> {
        cx.output.note(&error.to_string());
        if self.dry.dry_run {
            bail!("dry run: nothing was done; the result is known only when the invalid setting is replaced");
        }
        cx.confirm(&format!("Replace the settings of topic {}?", self.topic))?;
        let stored = cx.admin().alter_topic(&self.topic, change).await?;
        Changed { topic: TopicView::of(&stored), changed: true, dry_run: false }.show(cx)
    }

    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let mut change = TopicChange::new();
        change.retention = self.retention;
        change.dead_letter_retention = self.dead_letter_retention;
        // For a topic that is not packed, or whose settings are invalid.
        change.packing = self.packed.map(|packed| packed.packing(self.packed_min));
        change.max_length = if self.no_max_length { Some(None) } else { self.max_length.map(Some) };
        let before = match admin.topic(&self.topic).await {
            // An invalid setting can be set right. If another one is invalid too, the change is refused and names it.
            Err(error) if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported) => {
                return self.mend(cx, &change, &error).await;
            }
            before => before?,
        };
        if let (Some(packed), Some(packing)) = (self.packed, before.packing) {
            // What is not named stays, as everywhere here.
            let least = self.packed_min.map_or(packing, |least| packing.min_messages(least));
            change.packing = Some(least.compression(packed.compression()));
        }
        let after = change.of(before.clone())?;
        let changed = before != after;
        if dry_run || !changed {
            cx.output.note(if dry_run {
                "dry run: nothing was done"
            } else {
                "it is so already: nothing was done"
            });
            return Changed { topic: TopicView::of(&after), changed, dry_run }.show(cx);
        }
        if after.retention != before.retention && after.retention != Retention::Keep {
            let (old, new) = (human::retention(before.retention), human::retention(after.retention));
            let loses = if after.retention.is_lossy() { ", read or not" } else { "" };
            cx.confirm(&format!(
                "Retention of {} from {old} to {new}: drop what it does not keep{loses}?",
                self.topic
            ))?;
        }
        let (old, new) = (before.dead_letter_retention, after.dead_letter_retention);
        if new != old && !new.is_keep() {
            let (old, new) = (human::dead_letter_retention(old), human::dead_letter_retention(new));
            cx.confirm(&format!(
                "Retention of dead letters of {} from {old} to {new}: drop for good what it does not keep?",
                self.topic
            ))?;
        }
        let stored = admin.alter_topic(&self.topic, &change).await?;
        Changed { topic: TopicView::of(&stored), changed, dry_run }.show(cx)
    }
}

/// Adds partitions to a topic; their number cannot be reduced again
///
/// Keys may be assigned to other partitions from then on, so later messages of a key can be handled before earlier
/// ones. If that matters, let the groups settle all messages first.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic expand orders 16
  millstream topic expand orders 16 --yes")]
pub(super) struct Expand {
    /// The topic
    topic: TopicName,
    /// New number of partitions
    partitions: u32,
    #[command(flatten)]
    dry: DryRun,
}

impl Expand {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, dry_run) = (cx.admin(), self.dry.dry_run);
        let before = admin.topic(&self.topic).await?;
        if self.partitions < before.partitions {
            let has = human::of(before.partitions.into(), "partition", "partitions");
            bail!("topic {} has {has} and cannot have fewer", self.topic);
        }
        let after = TopicSpec::new(self.topic.clone(), self.partitions)?
            .with_retention(before.retention)
            .with_max_length(before.max_length)
            .with_dead_letter_retention(before.dead_letter_retention)
            .with_packing(before.packing)
            .with_dictionary(before.dictionary);
        let changed = after != before;
        if dry_run || !changed {
            cx.output.note(if dry_run {
                "dry run: nothing was done"
            } else {
                "it has as many: nothing was done"
            });
            return Changed { topic: TopicView::of(&after), changed, dry_run }.show(cx);
        }
        cx.confirm(&format!(
            "Expand topic {} from {} to {} partitions, for ever?",
            self.topic, before.partitions, self.partitions
        ))?;
        let stored = admin.expand_topic(&self.topic, self.partitions).await?;
        Changed { topic: TopicView::of(&stored), changed, dry_run }.show(cx)
    }
}
