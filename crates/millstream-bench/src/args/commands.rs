//! The options of each command.

use std::time::Duration;

use clap::{Args, ValueEnum};
use millstream::{Concurrency, PackCompression, Packing};

use super::Common;
use super::parse::{Rate, batch, concurrency, rate, scale, seconds, seconds_or_none, stored, thousand};

#[derive(Args, Clone, Debug)]
pub(crate) struct Messages {
    /// Number of messages per run.
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) messages: u64,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// Number of partitions of the topic.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) partitions: u32,
    /// Number of keys, which the messages have in turn; 0: no keys.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keys: u32,
    /// Packs messages of the topic, with this compression. The baseline has one entry for each message.
    #[arg(long, value_enum, value_name = "COMPRESSION")]
    pub(crate) packed: Option<Packed>,
}

/// Compression of a topic's packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Packed {
    /// Not compressed.
    None,
    /// LZ4.
    Lz4,
    /// zstd.
    Zstd,
    /// zstd with a dictionary, which is trained before; single messages are packed too.
    ZstdDictionary,
}

impl Packed {
    /// Returns the packing of the topic.
    pub(crate) fn packing(self) -> Packing {
        let packing = Packing::new();
        match self {
            Self::None => packing.compression(PackCompression::None),
            Self::Lz4 => packing.compression(PackCompression::Lz4),
            Self::Zstd => packing.compression(PackCompression::Zstd),
            Self::ZstdDictionary => packing.compression(PackCompression::ZstdDictionary).min_messages(1),
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream-bench suite --runs 5                    all cases, as a table with targets
  millstream-bench suite --markdown                  the tables of docs/performance.md
  millstream-bench suite --aof everysec              the ratios with an append-only file
  millstream-bench suite --only consume-8,e2e-1000   only these
  millstream-bench suite --scale 0.01 --runs 1       everything, with few messages")]
pub(crate) struct Suite {
    /// Names of the cases to run; --list shows them. Default: all that are not optional.
    #[arg(long, value_name = "CASE,…", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Lists the cases with their commands and targets, and runs nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Factor for the messages and seconds of all cases. Only figures with the same factor are comparable.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub(crate) scale: f64,
    /// Prints the tables of docs/performance.md.
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  millstream-bench produce --partitions 8 --baseline
  millstream-bench produce --tasks 64 --baseline
  millstream-bench produce --async-layer passes --baseline  behind an asynchronous layer, beside the same without
  millstream-bench produce --ids --chunk 256 --baseline")]
pub(crate) struct Produce {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// Maximum number of messages in one request.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = batch())]
    pub(crate) batch: u32,
    /// Number of tasks that each send one message at a time and await the reply; 0: sends in bulk.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) tasks: u32,
    /// Number of messages that are passed to the producer at a time, in bulk. The next ones wait for their results.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) chunk: u32,
    /// Sends as an idempotent producer. The baseline is the same producer with plain sends.
    #[arg(long)]
    pub(crate) dedup: bool,
    /// Gives each message a dedup id. The baseline is the same producer with plain sends.
    #[arg(long, conflicts_with = "dedup")]
    pub(crate) ids: bool,
    /// The topic keeps this many messages of a partition, and the producer drops the others. The baseline is the same producer
    /// with a topic that drops nothing.
    #[arg(long, value_name = "N", conflicts_with_all = ["dedup", "ids"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) length: Option<u64>,
    /// Sends through an asynchronous layer. The baseline is the same producer without it.
    #[arg(long, value_enum, value_name = "WAY", conflicts_with_all = ["dedup", "ids", "length"])]
    pub(crate) async_layer: Option<AsyncLayer>,
}

impl Produce {
    /// Whether it is compared with the same producer and plain sends.
    pub(crate) fn is_beside_plain(&self) -> bool {
        self.dedup || self.ids || self.length.is_some() || self.async_layer.is_some()
    }
}

/// An asynchronous layer of a producer that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AsyncLayer {
    /// It does not apply to any message, as `ClaimCheck` to small ones.
    Passes,
    /// It is called for each message, and never has to wait.
    Ready,
    /// It waits once for each message, for a task that runs before.
    Yields,
}

/// The group in which messages stay pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PendingIn {
    /// The measured group: they wait behind a failed message (`RetryOrder::BlockKey`).
    Own,
    /// Another group of the same topic.
    Other,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  millstream-bench consume --partitions 8 --baseline       read, handle, acknowledge, trim
  millstream-bench consume --keep --baseline               without trimming
  millstream-bench consume --pending 1000000               while a million others stay pending
  millstream-bench consume --concurrency unordered:64      up to 64 handlers at once
  millstream-bench consume --layers 3 --baseline           with layers, beside the same without
  millstream-bench consume --groups 4 --prefetch 1000")]
pub(crate) struct Consume {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// COUNT of the baseline's XREADGROUP.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = batch())]
    pub(crate) batch: u32,
    /// Maximum number of messages that Millstream reads ahead per partition. Default: that of consumers.
    #[arg(long, value_name = "N", value_parser = batch())]
    pub(crate) prefetch: Option<u32>,
    /// Messages of a partition that Millstream handles at once: `serial`, `unordered:N`, or `per-key:N`.
    #[arg(long, value_name = "ORDER", default_value = "serial", value_parser = concurrency, conflicts_with = "pending")]
    pub(crate) concurrency: Concurrency,
    /// Number of layers around the handler, which do nothing. The baseline is the same consumer without them.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100),
          conflicts_with = "pending")]
    pub(crate) layers: u32,
    /// Number of limits by the keys of the messages, which are never reached. The baseline is the same consumer without them.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=8),
          conflicts_with = "pending", requires = "keys")]
    pub(crate) limits: u32,
    /// Messages a second of one rate limit for all. The baseline is the same consumer without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "pending")]
    pub(crate) rate: Option<u32>,
    /// Number of groups, which each read all messages at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand(), conflicts_with = "pending")]
    pub(crate) groups: u32,
    /// Keeps consumed messages. By default they are trimmed, and the baseline deletes them with XDEL.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Number of older messages that are pending all the time.
    ///
    /// They are in front of the consumed messages, so nothing can be trimmed, and the baseline deletes nothing.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = stored())]
    pub(crate) pending: u64,
    /// Group in which they are pending.
    #[arg(long, value_enum, default_value_t = PendingIn::Own, requires = "pending")]
    pub(crate) pending_in: PendingIn,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream-bench e2e --rate 1000/s --baseline
  millstream-bench e2e --rate 50% --seconds 10 --baseline    of the maximum rate
  millstream-bench e2e --reply                               until the reply is there")]
pub(crate) struct E2e {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// Messages per second (1000/s), or a share (50%) of the maximum rate of Millstream, which is measured first.
    #[arg(long, value_name = "N/s", default_value = "1000/s", value_parser = rate)]
    pub(crate) rate: Rate,
    /// Seconds for which a run sends.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Prints after each run where the messages spent their time: all of them, and the slowest. It costs some of it.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Sends requests, and measures until the reply is there. The baseline has none.
    #[arg(long, conflicts_with = "explain")]
    pub(crate) reply: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream-bench delay --baseline                     messages of a topic
  millstream-bench delay --queue --waiting 1000000      tasks, while a million others wait
  millstream-bench delay --rate 1000/s                  lateness of messages")]
pub(crate) struct Delay {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// Schedules tasks of a delay queue with --partitions shards, instead of messages of a topic.
    #[arg(long)]
    pub(crate) queue: bool,
    /// Number of messages or tasks that are scheduled already.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = stored())]
    pub(crate) waiting: u64,
    /// Schedules at this rate, each due one second later, and measures the lateness.
    #[arg(long, value_name = "N/s", value_parser = rate, conflicts_with_all = ["baseline", "messages"])]
    pub(crate) rate: Option<Rate>,
    /// Seconds for which a run with --rate schedules.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds, requires = "rate")]
    pub(crate) seconds: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream-bench retry --delay 100 --baseline
  millstream-bench retry --parked 1000000       while a million others are parked")]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// Milliseconds until a failed message is retried.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) delay: u32,
    /// Number of messages that are parked already, for an hour.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = stored())]
    pub(crate) parked: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:
  millstream-bench takeover --lease 2000 --baseline")]
pub(crate) struct Takeover {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Number of partitions that the killed consumer owns.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = thousand())]
    pub(crate) partitions: u32,
    /// Ttl of leases in milliseconds; for the baseline, the idle time of XAUTOCLAIM.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    pub(crate) lease: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream-bench idle --partitions 8                            the second minute
  millstream-bench idle --partitions 16 --members 4 --settle 10   shared between four members")]
pub(crate) struct Idle {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// Number of such topics, each with its own consumers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand())]
    pub(crate) topics: u32,
    /// Number of groups that wait at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand())]
    pub(crate) groups: u32,
    /// Number of consumers in each group, each with its own connections, like separate processes. Those of several topics
    /// share them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand())]
    pub(crate) members: u32,
    /// Seconds to wait first. They are shown separately, since consumers send more requests in the first minute.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds_or_none)]
    pub(crate) settle: Duration,
    /// Seconds to count requests after that; then the CPU is measured for as long.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

impl Idle {
    /// Returns how many partitions are owned: those of each topic once for each group.
    pub(crate) fn waits(&self) -> u32 {
        self.spread.partitions * self.groups * self.topics
    }
}

/// The place in which a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// In the log.
    Waiting,
    /// Parked until its retry is due.
    Parked,
    /// Scheduled, as a delayed message of a topic.
    Delayed,
    /// Scheduled, as a task of a delay queue.
    Task,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream-bench memory --baseline               all places
  millstream-bench memory --place parked --json    messages that wait for their retry")]
pub(crate) struct Memory {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) spread: Spread,
    /// Place in which messages wait. Default: all places, one after the other.
    #[arg(long, value_enum)]
    pub(crate) place: Option<Place>,
}

/// A question of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// How far behind is each group? As `lag`, and a frame of `top`.
    Lag,
    /// How much memory does each topic take?
    Memory,
    /// Is every message in its place?
    Verify,
    /// What are the gauges of the server? As one round of the sampler.
    Scrape,
    /// Which of all messages of a topic contains a text? As `tail --from earliest --filter`.
    Find,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  millstream-bench operate --baseline                                                      all questions, 1,000 topics
  millstream-bench operate --question find --partitions 16 --messages 1000000 --baseline   16 million messages")]
pub(crate) struct Operate {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Question to answer. Default: all but `find`, one after the other.
    #[arg(long, value_enum)]
    pub(crate) question: Option<Question>,
    /// Number of topics, each with one group; of `find`, always one.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) topics: u32,
    /// Number of partitions of each topic.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) partitions: u32,
    /// Number of messages in each partition, which the group has not read.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) messages: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Victim {
    #[arg(long)]
    pub(crate) namespace: String,
    #[arg(long)]
    pub(crate) partitions: u32,
    #[arg(long)]
    pub(crate) lease: u32,
}
