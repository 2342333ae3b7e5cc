//! What can be asked of `millstream bench`.

mod commands;
mod parse;

use clap::{Args, Subcommand, ValueEnum};

pub(super) use commands::{
    Consume, Delay, E2e, Idle, Memory, PendingIn, Place, Produce, Retry, Spread, Suite, Takeover, Victim,
};
pub(super) use parse::Rate;

/// The smallest payload: it holds the time at which it should have been sent.
const LEAST_PAYLOAD: u32 = 8;

/// Measures throughput, latency, CPU and traffic of Millstream.
///
/// Unless --url stands on the command line a private redis-server is started for it and is gone afterwards, whatever
/// `MILLSTREAM_URL` or a file of settings says.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// A server to measure on. Default: a private redis-server
    // In front of the global one, which has another default. It comes with each of the commands.
    #[arg(long, global = true, value_name = "URL")]
    pub(super) url: Option<String>,
    #[command(subcommand)]
    pub(super) what: What,
}

const EXAMPLES: &str = "Examples:
  millstream bench suite                                everything, with targets, in about 20 minutes
  millstream bench produce --baseline                   bulk produce beside pipelined XADD
  millstream bench produce --tasks 64 --baseline        64 tasks, each awaiting its send
  millstream bench consume --partitions 8 --baseline    read, handle, acknowledge, trim
  millstream bench e2e --rate 1000/s --baseline         latency from the intended time of sending
  millstream bench memory --json                        bytes per message, as one JSON object";

/// What is measured.
#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// All cases that have a target, beside bare redis-rs, and what grows with what.
    Suite(Suite),
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
    /// What consumers ask of the server while nothing happens.
    Idle(Idle),
    /// Bytes of server memory per message that waits, is parked or delayed.
    Memory(Memory),
    /// The consumer that `takeover` kills.
    #[command(hide = true)]
    Victim(Victim),
}

/// Where it is measured, how often, and how it is told.
#[derive(Args, Clone, Debug)]
pub(super) struct General {
    /// A server to measure on. It should be idle: what others ask of it is counted as ours. All keys begin with
    /// `millstream-bench-…:` and are deleted afterwards. Default: a private redis-server, whatever `MILLSTREAM_URL` or a
    /// file of settings says.
    #[arg(long)]
    pub(super) url: Option<String>,
    /// How the private server writes its append-only file.
    #[arg(long, value_enum, default_value_t = Aof::No, conflicts_with = "url")]
    pub(super) aof: Aof,
    /// Bytes of payload in each message, at least 8.
    #[arg(long, value_name = "BYTES", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(LEAST_PAYLOAD as i64..=1 << 20))]
    pub(super) payload: u32,
    /// How often it is measured; medians are shown. Default: 5, and of `idle` 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) runs: Option<u32>,
    /// How often it is run before that, without being counted. Default: 0, and of `suite` 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) warm_up: Option<u32>,
    /// Chooses the bytes of the payloads. Default: a random one, which --json tells.
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Prints one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// What all commands have that measure one thing.
#[derive(Args, Clone, Debug)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) general: General,
    /// Does the same with bare redis-rs, in turns, and shows the ratio.
    #[arg(long)]
    pub(super) baseline: bool,
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

impl Aof {
    /// As the option and the server call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Everysec => "everysec",
            Self::Always => "always",
        }
    }
}

impl What {
    /// Where it is measured; `None` of what is told that otherwise.
    pub(super) fn general_mut(&mut self) -> Option<&mut General> {
        Some(match self {
            Self::Suite(it) => &mut it.general,
            Self::Produce(it) => &mut it.common.general,
            Self::Consume(it) => &mut it.common.general,
            Self::E2e(it) => &mut it.common.general,
            Self::Delay(it) => &mut it.common.general,
            Self::Retry(it) => &mut it.common.general,
            Self::Takeover(it) => &mut it.common.general,
            Self::Idle(it) => &mut it.common.general,
            Self::Memory(it) => &mut it.common.general,
            Self::Victim(_) => return None,
        })
    }
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
            What::Consume(it) if it.pending > 0 && it.pending < u64::from(it.spread.partitions) => {
                Err(format!(
                    "--pending {}: that is less than one for each of the --partitions ({})",
                    it.pending, it.spread.partitions
                ))
            }
            What::Idle(it) if it.members > it.spread.partitions => Err(format!(
                "--members {}: there are fewer --partitions ({}), and who owns none idles otherwise",
                it.members, it.spread.partitions
            )),
            What::Suite(it) => super::suite::check(&it.only),
            _ => Ok(()),
        }
    }
}
