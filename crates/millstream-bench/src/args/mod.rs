//! The command line of `millstream-bench`.

mod commands;
mod parse;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use commands::{
    AsyncLayer, Consume, Delay, E2e, Idle, Memory, Operate, Packed, PendingIn, Place, Produce, Question,
    Retry, Spread, Suite, Takeover, Victim,
};
pub(crate) use parse::Rate;

/// Minimum size of a payload: it contains the time at which the message should have been sent.
const LEAST_PAYLOAD: u32 = 8;

/// Measures throughput, latency, CPU and memory of Millstream, in comparison with bare redis-rs.
///
/// Without --url it starts a private redis-server, and removes it afterwards. `MILLSTREAM_URL` is not read.
#[derive(Debug, Parser)]
#[command(name = "millstream-bench", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) general: General,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  millstream-bench suite                                all cases with their targets, in about 20 minutes
  millstream-bench produce --baseline                   bulk produce, in comparison with pipelined XADD
  millstream-bench produce --tasks 64 --baseline        64 tasks, each awaiting its send
  millstream-bench consume --partitions 8 --baseline    read, handle, acknowledge, trim
  millstream-bench e2e --rate 1000/s --baseline         latency from the intended time of sending
  millstream-bench memory --json                        bytes per message, as one JSON object

Results are on stdout, progress and errors on stderr. RUST_LOG sets the log filter. Exit codes: 0 measured; 1 failed;
2 wrong usage.";

/// The commands.
// A single value per process.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs all cases that have a target, and the series that show how costs grow.
    Suite(Suite),
    /// Sends in bulk, or with --tasks one by one from many tasks.
    Produce(Produce),
    /// Reads stored messages, passes them to a handler that does nothing, and acknowledges them.
    Consume(Consume),
    /// Latency from the intended time of sending to the handler, at a fixed rate (open loop).
    E2e(E2e),
    /// Schedules in bulk for an hour later; with --rate, measures how late messages are handled.
    Delay(Delay),
    /// Lets every message fail once, come back and be acknowledged.
    Retry(Retry),
    /// Kills a consumer, and measures the time until another one handles its messages.
    Takeover(Takeover),
    /// Requests that consumers send to the server while there are no messages.
    Idle(Idle),
    /// Bytes of server memory per message that waits, is parked or delayed.
    Memory(Memory),
    /// Answers an operator's questions about many topics, or finds a message among many.
    Operate(Operate),
    /// The consumer that `takeover` kills.
    #[command(hide = true)]
    Victim(Victim),
}

/// Options of all commands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct General {
    /// Server to measure on. Default: a private redis-server.
    ///
    /// It should be idle, since requests of other clients are counted as well. Of a cluster (`redis+cluster://…`) the
    /// primaries are counted together, and there is no --baseline.
    ///
    /// All keys begin with `millstream-bench-…:` and are deleted afterwards.
    #[arg(long, global = true)]
    pub(crate) url: Option<String>,
    /// The server of --url, without TLS and without Sentinels, for its counters.
    #[arg(long, global = true, value_name = "URL", requires = "url")]
    pub(crate) counters: Option<String>,
    /// How the private server syncs its append-only file.
    #[arg(long, global = true, value_enum, default_value_t = Aof::No)]
    pub(crate) aof: Aof,
    /// Connects over TLS to the private server. The baseline is the same without TLS.
    ///
    /// The server has a certificate that is made for it, and both ports: so runs with and without TLS alternate on one
    /// server.
    #[arg(long, global = true)]
    pub(crate) tls: bool,
    /// Bytes of payload in each message, at least 8.
    #[arg(long, global = true, value_name = "BYTES", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(LEAST_PAYLOAD as i64..=1 << 20))]
    pub(crate) payload: u32,
    /// Number of runs; medians are shown. Default: 5, for `idle` 1.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) runs: Option<u32>,
    /// Number of earlier runs that do not count. Default: 0, for `suite` 1.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) warm_up: Option<u32>,
    /// Seed of the bytes in payloads. Default: random; --json shows it.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Prints one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Options of all commands that measure one kind of work.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Common {
    /// Does the same with bare redis-rs, in alternating runs, and shows the ratio.
    #[arg(long)]
    pub(crate) baseline: bool,
}

/// When the append-only file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Aof {
    /// There is no file.
    No,
    /// Once per second.
    Everysec,
    /// After every write.
    Always,
}

impl Aof {
    /// Returns its name as an option and in the server's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Everysec => "everysec",
            Self::Always => "always",
        }
    }
}

impl Cli {
    /// Checks combinations of arguments, which clap cannot check.
    ///
    /// # Errors
    /// The fault, for the user.
    pub(crate) fn check(&self) -> Result<(), String> {
        // clap would not see them together if one is in front of the command and the other behind it.
        if self.general.url.is_some() && self.general.aof != Aof::No {
            return Err("--aof: it applies to the private server, not to the one of --url".to_owned());
        }
        if self.general.url.is_some() && self.general.tls {
            return Err(
                "--tls: it applies to the private server; the --url of another one begins with rediss://"
                    .to_owned(),
            );
        }
        match &self.command {
            Command::Suite(_) | Command::Takeover(_) if self.general.tls => {
                Err("--tls: the suite is compared with bare redis-rs, and a takeover waits for a lease"
                    .to_owned())
            }
            Command::Produce(it) if u64::from(it.tasks) > it.messages.messages => {
                Err(format!("--tasks {}: there are fewer --messages ({})", it.tasks, it.messages.messages))
            }
            Command::Delay(Delay { rate: Some(Rate::Share(_)), .. }) => {
                Err("--rate: a share is for e2e; messages per second are required".to_owned())
            }
            Command::Consume(it) if it.pending > 0 && it.pending < u64::from(it.spread.partitions) => {
                Err(format!(
                    "--pending {}: that is less than one for each of the --partitions ({})",
                    it.pending, it.spread.partitions
                ))
            }
            Command::Idle(it) if it.members > it.spread.partitions => Err(format!(
                "--members {}: there are fewer --partitions ({}), and a member without one sends other requests",
                it.members, it.spread.partitions
            )),
            Command::Suite(it) => crate::suite::check(&it.only),
            _ => Ok(()),
        }
    }
}
