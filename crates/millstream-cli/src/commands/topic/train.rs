//! `topic train`.

use anyhow::Result;
use clap::Args;
use millstream::TopicName;
use millstream::admin::{PackedSize, Trained, Training};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Trains a dictionary for the packs of a topic
///
/// The newest messages of its logs are read; four in five train the dictionary, and the others are packed with and without it.
/// It is stored if that makes the smallest packs that the topic allows 2 % smaller than now, and running producers use it within a
/// minute. Dictionaries stay until the topic is deleted: entries that were packed with them need them. The topic has to be packed
/// with `zstd-dictionary`: see `topic create` and `topic alter`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic train orders --dry-run
  millstream topic train orders --messages 50000 --size 32768")]
pub(super) struct Train {
    /// The topic
    topic: TopicName,
    /// Maximum number of messages to read: 100 to 100,000
    #[arg(long, value_name = "N", default_value_t = Training::new().messages)]
    messages: usize,
    /// Maximum size of the dictionary in bytes: 256 to 65,536
    #[arg(long, value_name = "BYTES", default_value_t = Training::new().size)]
    size: usize,
    #[command(flatten)]
    dry: DryRun,
}

/// A dictionary that was trained.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TopicOutcome {
    topic: String,
    /// The number of messages that it was trained on.
    messages: usize,
    /// The number of other messages, on which it was compared.
    compared: usize,
    /// The size of the dictionary, in bytes.
    size: usize,
    /// The version that producers used before; `null` for none.
    previous: Option<u32>,
    /// How many bytes the compared messages take, in packs of different numbers of messages. The first is the least that the topic packs.
    packs: Vec<TopicRow>,
    /// Whether it is better than what producers use now.
    better: bool,
    /// The version under which it was stored; `null` if it was not.
    version: Option<u32>,
    dry_run: bool,
}

/// Bytes of the compared messages in packs of one number of messages.
#[derive(Debug, Serialize, JsonSchema)]
struct TopicRow {
    /// Messages in a pack.
    messages: usize,
    /// One message an entry, not compressed.
    plain_bytes: u64,
    /// In packs as producers make them now.
    before_bytes: u64,
    /// In packs with the new dictionary.
    after_bytes: u64,
}

impl TopicRow {
    fn of(it: PackedSize) -> Self {
        let PackedSize { messages, plain, before, after, .. } = it;
        Self { messages, plain_bytes: plain, before_bytes: before, after_bytes: after }
    }

    fn row(&self, messages: usize) -> [String; 5] {
        let each = |bytes: u64| format!("{:.1}", bytes as f64 / messages.max(1) as f64);
        let ratio = self.before_bytes as f64 / self.after_bytes.max(1) as f64;
        [
            human::count(self.messages as u64),
            each(self.plain_bytes),
            each(self.before_bytes),
            each(self.after_bytes),
            format!("{ratio:.2}"),
        ]
    }
}

impl TopicOutcome {
    fn of(topic: &TopicName, trained: Trained, dry_run: bool) -> Self {
        let better = trained.is_better();
        let Trained { messages, compared, size, previous, packs, version, .. } = trained;
        let (topic, packs) = (topic.to_string(), packs.into_iter().map(TopicRow::of).collect());
        Self { topic, messages, compared, size, previous, packs, better, version, dry_run }
    }

    fn text(&self) -> String {
        let titles = [">messages a pack", ">bytes each", ">packed now", ">with it", ">ratio"];
        let table = output::table(&titles, self.packs.iter().map(|row| row.row(self.compared)));
        let done = match (self.version, self.better) {
            (Some(version), _) => format!("stored as version {version}"),
            (None, true) => "not stored, since this is a dry run".to_owned(),
            (None, false) => "not stored, since it saves less than 2 %".to_owned(),
        };
        format!(
            "{}: a dictionary of {} from {}, {done}\n{table}",
            self.topic,
            human::bytes(self.size as u64),
            human::of(self.messages as u64, "message", "messages")
        )
    }
}

impl Train {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let mut training = Training::new();
        (training.messages, training.size) = (self.messages, self.size);
        training.dry_run = self.dry.dry_run;
        let admin = cx.admin();
        let trained = admin.train_topic(&self.topic, training).await?;
        cx.output.show(&TopicOutcome::of(&self.topic, trained, training.dry_run), TopicOutcome::text)?;
        Ok(Exit::Done)
    }
}
