//! The options of each command.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::parse::{Rate, batch, rate, scale, seconds, seconds_or_none, stored, thousand};
use super::{Common, General};

#[derive(Args, Clone, Debug)]
pub(in crate::bench) struct Messages {
    /// Messages per run.
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(in crate::bench) messages: u64,
}

#[derive(Args, Clone, Copy, Debug)]
pub(in crate::bench) struct Spread {
    /// Partitions of the topic.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(in crate::bench) partitions: u32,
    /// How many keys the messages have in turn; 0: they have none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(in crate::bench) keys: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench suite --runs 5                    all cases, as a table with targets
  millstream bench suite --markdown                  the tables of docs/performance.md
  millstream bench suite --aof everysec              the ratios with an append-only file
  millstream bench suite --only consume-8,e2e-1000   only these
  millstream bench suite --scale 0.01 --runs 1       a quick try of everything")]
pub(in crate::bench) struct Suite {
    #[command(flatten)]
    pub(in crate::bench) general: General,
    /// The cases to run, by their names; --list tells them. Default: all but those that are optional.
    #[arg(long, value_name = "CASE,…", value_delimiter = ',')]
    pub(in crate::bench) only: Vec<String>,
    /// Says which cases there are, what each runs and what is asked of it, and runs nothing.
    #[arg(long)]
    pub(in crate::bench) list: bool,
    /// Multiplies messages and seconds of all cases: figures of a suite that is not whole are not to be compared with
    /// others.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub(in crate::bench) scale: f64,
    /// Prints the tables of docs/performance.md.
    #[arg(long, conflicts_with = "json")]
    pub(in crate::bench) markdown: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench produce --partitions 8 --baseline
  millstream bench produce --tasks 64 --baseline")]
pub(in crate::bench) struct Produce {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) messages: Messages,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// The most messages in one request.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = batch())]
    pub(in crate::bench) batch: u32,
    /// So many tasks send one by one and await each; 0: in bulk.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(in crate::bench) tasks: u32,
}

/// In which group messages stay pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::bench) enum PendingIn {
    /// In the one that is measured: they wait behind one that failed (`RetryOrder::BlockKey`).
    Own,
    /// In another one of the same topic.
    Other,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench consume --partitions 8 --baseline       read, handle, acknowledge, trim
  millstream bench consume --keep --baseline               without trimming
  millstream bench consume --pending 1000000               while a million others stay pending
  millstream bench consume --groups 4 --prefetch 1000")]
pub(in crate::bench) struct Consume {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) messages: Messages,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// The COUNT of the baseline's XREADGROUP.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = batch())]
    pub(in crate::bench) batch: u32,
    /// The most messages that a partition of ours reads ahead. Default: that of consumers.
    #[arg(long, value_name = "N", value_parser = batch())]
    pub(in crate::bench) prefetch: Option<u32>,
    /// Groups that each read everything, at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand(), conflicts_with = "pending")]
    pub(in crate::bench) groups: u32,
    /// Keeps what is consumed. By default it is trimmed (and the baseline deletes it with XDEL).
    #[arg(long)]
    pub(in crate::bench) keep: bool,
    /// So many older messages are pending all the time. They stand in front of what is consumed, and so nothing can be
    /// trimmed (the baseline deletes nothing then).
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = stored())]
    pub(in crate::bench) pending: u64,
    /// Whose they are.
    #[arg(long, value_enum, default_value_t = PendingIn::Own, requires = "pending")]
    pub(in crate::bench) pending_in: PendingIn,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench e2e --rate 1000/s --baseline
  millstream bench e2e --rate 50% --seconds 10 --baseline    of the rate that is reached at most")]
pub(in crate::bench) struct E2e {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// Messages per second (1000/s), or a share (50%) of the rate that Millstream reaches at most, which is measured
    /// first.
    #[arg(long, value_name = "N/s", default_value = "1000/s", value_parser = rate)]
    pub(in crate::bench) rate: Rate,
    /// How long a run sends.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(in crate::bench) seconds: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench delay --baseline                     messages of a topic
  millstream bench delay --queue --waiting 1000000      tasks, while a million others wait
  millstream bench delay --rate 1000/s                  how late they come")]
pub(in crate::bench) struct Delay {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) messages: Messages,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// Schedules tasks of a delay queue, and not messages of a topic; its shards are --partitions.
    #[arg(long)]
    pub(in crate::bench) queue: bool,
    /// How many wait already.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = stored())]
    pub(in crate::bench) waiting: u64,
    /// Schedules at this rate what is due a second later, and measures how late it is handled.
    #[arg(long, value_name = "N/s", value_parser = rate, conflicts_with_all = ["baseline", "messages"])]
    pub(in crate::bench) rate: Option<Rate>,
    /// How long a run with --rate schedules.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds, requires = "rate")]
    pub(in crate::bench) seconds: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench retry --delay 100 --baseline
  millstream bench retry --parked 1000000       while a million others are parked")]
pub(in crate::bench) struct Retry {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) messages: Messages,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// Milliseconds until a failed message comes back.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(in crate::bench) delay: u32,
    /// How many are parked already, for an hour.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = stored())]
    pub(in crate::bench) parked: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:
  millstream bench takeover --lease 2000 --baseline")]
pub(in crate::bench) struct Takeover {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    /// Partitions that the killed consumer owns.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = thousand())]
    pub(in crate::bench) partitions: u32,
    /// Milliseconds for which a lease holds without a renewal; for the baseline, the idle time of XAUTOCLAIM.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    pub(in crate::bench) lease: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench idle --partitions 8                            a minute, after the first one
  millstream bench idle --partitions 16 --members 4 --settle 10   shared between four members")]
pub(in crate::bench) struct Idle {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// Groups that wait at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand())]
    pub(in crate::bench) groups: u32,
    /// Consumers of each group, each with connections of its own, as processes have them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = thousand())]
    pub(in crate::bench) members: u32,
    /// How long it waits first, which is told by itself: the first minute is not like those after it.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds_or_none)]
    pub(in crate::bench) settle: Duration,
    /// How long a run waits after that.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub(in crate::bench) seconds: Duration,
}

/// Where a message can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::bench) enum Place {
    /// In the log.
    Waiting,
    /// For its retry.
    Parked,
    /// For its time, as a delayed message of a topic.
    Delayed,
    /// For its time, as a task of a delay queue.
    Task,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream bench memory --baseline               everywhere
  millstream bench memory --place parked --json    what waits for its retry")]
pub(in crate::bench) struct Memory {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    #[command(flatten)]
    pub(in crate::bench) messages: Messages,
    #[command(flatten)]
    pub(in crate::bench) spread: Spread,
    /// Where they wait. Default: everywhere, one after the other.
    #[arg(long, value_enum)]
    pub(in crate::bench) place: Option<Place>,
}

#[derive(Args, Debug)]
pub(in crate::bench) struct Victim {
    #[arg(long)]
    pub(in crate::bench) url: String,
    #[arg(long)]
    pub(in crate::bench) namespace: String,
    #[arg(long)]
    pub(in crate::bench) partitions: u32,
    #[arg(long)]
    pub(in crate::bench) lease: u32,
}
