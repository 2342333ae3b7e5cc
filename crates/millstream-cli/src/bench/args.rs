//! What can be asked of `millstream bench`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

/// The smallest payload: it holds the time at which it should have been sent.
const LEAST_PAYLOAD: u32 = 8;

/// Measures throughput, latency, CPU and traffic of Millstream.
///
/// Without --url a private redis-server is started for it and is gone afterwards.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(super) what: What,
}

const EXAMPLES: &str = "Examples:
  millstream bench produce --baseline                   bulk produce beside pipelined XADD
  millstream bench produce --tasks 64 --baseline        64 tasks, each awaiting its send
  millstream bench consume --partitions 8 --baseline    read, handle, acknowledge, trim
  millstream bench e2e --rate 1000/s --baseline         latency from the intended time of sending
  millstream bench memory --json                        bytes per message, as one JSON object";

/// What is measured.
#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// Sends in bulk, or with --tasks one by one from many tasks.
    Produce(Produce),
    /// Reads, handles with a handler that does nothing, and acknowledges what is stored.
    Consume(Consume),
    /// From the intended time of sending to the handler, at a fixed rate (open loop).
    E2e(E2e),
    /// Schedules in bulk what is due in an hour; with --rate, how late it comes.
    Delay(Delay),
    /// Every message fails once, comes back and is acknowledged.
    Retry(Retry),
    /// A consumer is killed: how long until another one handles what it had in hand.
    Takeover(Takeover),
    /// What a consumer asks of the server while nothing happens.
    Idle(Idle),
    /// Bytes of server memory per message that waits, is parked or delayed.
    Memory(Memory),
    /// The consumer that `takeover` kills.
    #[command(hide = true)]
    Victim(Victim),
}

/// What all of them have.
#[derive(Args, Clone, Debug)]
pub(super) struct Common {
    /// A server to measure on. It should be idle: what others ask of it is counted as ours. All keys begin with
    /// `millstream-bench-…:` and are deleted afterwards. Default: a private redis-server.
    #[arg(long, env = "MILLSTREAM_URL", hide_env_values = true)]
    pub(super) url: Option<String>,
    /// How the private server writes its append-only file.
    #[arg(long, value_enum, default_value_t = Aof::No, conflicts_with = "url")]
    pub(super) aof: Aof,
    /// Bytes of payload in each message, at least 8.
    #[arg(long, value_name = "BYTES", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(LEAST_PAYLOAD as i64..=1 << 20))]
    pub(super) payload: u32,
    /// How often it is measured. Medians are shown.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) runs: u32,
    /// Does the same with bare redis-rs, in turns, and shows the ratio.
    #[arg(long)]
    pub(super) baseline: bool,
    /// Prints one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// When the append-only file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Aof {
    /// There is no file.
    No,
    /// Once a second.
    Everysec,
    /// After every write.
    Always,
}

#[derive(Args, Clone, Debug)]
pub(super) struct Messages {
    /// Messages per run.
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(super) messages: u64,
}

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Partitions of the topic.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(super) partitions: u32,
    /// How many keys the messages have in turn; 0: they have none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) keys: u32,
}

/// Messages in one request.
fn batch() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=10_000)
}

#[derive(Args, Debug)]
pub(super) struct Produce {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) messages: Messages,
    #[command(flatten)]
    pub(super) spread: Spread,
    /// The most messages in one request.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = batch())]
    pub(super) batch: u32,
    /// So many tasks send one by one and await each; 0: in bulk.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(super) tasks: u32,
}

#[derive(Args, Debug)]
pub(super) struct Consume {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) messages: Messages,
    #[command(flatten)]
    pub(super) spread: Spread,
    /// The most messages that a partition reads ahead; of the baseline, its COUNT.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = batch())]
    pub(super) batch: u32,
    /// Groups that each read everything, at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) groups: u32,
    /// Keeps what is consumed. By default it is trimmed (and the baseline deletes it with XDEL).
    #[arg(long)]
    pub(super) keep: bool,
}

#[derive(Args, Debug)]
pub(super) struct E2e {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) spread: Spread,
    /// Messages per second (1000/s), or a share (50%) of the rate that Millstream reaches at most, which is measured
    /// first.
    #[arg(long, value_name = "N/s", default_value = "1000/s", value_parser = rate)]
    pub(super) rate: Rate,
    /// How long a run sends.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(super) seconds: Duration,
}

#[derive(Args, Debug)]
pub(super) struct Delay {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) messages: Messages,
    #[command(flatten)]
    pub(super) spread: Spread,
    /// Schedules tasks of a delay queue, and not messages of a topic; its shards are --partitions.
    #[arg(long)]
    pub(super) queue: bool,
    /// How many wait already.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) waiting: u64,
    /// Schedules at this rate what is due a second later, and measures how late it is handled.
    #[arg(long, value_name = "N/s", value_parser = rate, conflicts_with_all = ["baseline", "messages"])]
    pub(super) rate: Option<Rate>,
    /// How long a run with --rate schedules.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(super) seconds: Duration,
}

#[derive(Args, Debug)]
pub(super) struct Retry {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) messages: Messages,
    #[command(flatten)]
    pub(super) spread: Spread,
    /// Milliseconds until a failed message comes back.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(super) delay: u32,
    /// How many are parked already, for an hour.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "baseline")]
    pub(super) parked: u64,
}

#[derive(Args, Debug)]
pub(super) struct Takeover {
    #[command(flatten)]
    pub(super) common: Common,
    /// Partitions that the killed consumer owns.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) partitions: u32,
    /// Milliseconds for which a lease holds without a renewal; for the baseline, the idle time of XAUTOCLAIM.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    pub(super) lease: u32,
}

#[derive(Args, Debug)]
pub(super) struct Idle {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) spread: Spread,
    /// Groups that wait at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) groups: u32,
    /// How long a run waits.
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    pub(super) seconds: Duration,
}

#[derive(Args, Debug)]
pub(super) struct Memory {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) messages: Messages,
    #[command(flatten)]
    pub(super) spread: Spread,
}

#[derive(Args, Debug)]
pub(super) struct Victim {
    #[arg(long)]
    pub(super) url: String,
    #[arg(long)]
    pub(super) namespace: String,
    #[arg(long)]
    pub(super) partitions: u32,
    #[arg(long)]
    pub(super) lease: u32,
}

/// How often something is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rate {
    /// Times a second.
    PerSecond(f64),
    /// A share of the most that can be reached.
    Share(f64),
}

fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("{text:?} is not a rate: 1000/s, 1000 and 50% are");
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        return (1.0..=100.0).contains(&percent).then_some(Rate::Share(percent / 100.0)).ok_or_else(wrong);
    }
    let number: f64 = text.strip_suffix("/s").unwrap_or(text).parse().map_err(|_| wrong())?;
    (0.1..=1e7).contains(&number).then_some(Rate::PerSecond(number)).ok_or_else(wrong)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 =
        text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| "not a number".to_owned())?;
    if !(0.1..=86_400.0).contains(&number) {
        return Err("0.1 to 86400 are allowed".to_owned());
    }
    Ok(Duration::from_secs_f64(number))
}

impl Bench {
    /// What cannot be said of a single option.
    ///
    /// # Errors
    /// What is wrong, for whoever typed it.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.what {
            What::Produce(it) if u64::from(it.tasks) > it.messages.messages => {
                Err(format!("--tasks {}: there are fewer --messages ({})", it.tasks, it.messages.messages))
            }
            What::Delay(Delay { rate: Some(Rate::Share(_)), .. }) => {
                Err("--rate: a share is for e2e; say messages per second".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_a_second_or_a_share() {
        assert_eq!(rate("1000/s"), Ok(Rate::PerSecond(1000.0)));
        assert_eq!(rate("0.5"), Ok(Rate::PerSecond(0.5)));
        assert_eq!(rate("50%"), Ok(Rate::Share(0.5)));
        for wrong in ["", "0", "-1", "many", "101%", "0%", "1/m", "NaN", "inf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("1.5s"), Ok(Duration::from_millis(1_500)));
        assert!(seconds("0").is_err() && seconds("NaN").is_err() && seconds("1e9").is_err());
    }
}
