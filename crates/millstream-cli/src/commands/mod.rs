//! The commands: each has a module, a line in the list, and a line where it is run.

mod consume;
#[cfg(feature = "dashboard")]
mod dashboard;
mod dlq;
mod doctor;
mod exec;
#[cfg(feature = "exporter")]
mod exporter;
pub(crate) mod generate;
mod group;
mod lag;
mod lock;
mod memory;
pub(crate) mod message;
mod owners;
mod pending;
mod produce;
mod queue;
#[cfg(feature = "keda")]
mod scaler;
mod scheduled;
pub(crate) mod schemas;
mod shared;
mod tail;
#[cfg(feature = "top")]
mod top;
mod topic;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::exit::Exit;
use crate::global::Global;

/// All commands.
// There is one of it, once.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Topic(topic::Topic),
    Group(group::Group),
    Lag(lag::Lag),
    Owners(owners::Owners),
    Pending(pending::Pending),
    Retries(scheduled::retries::Retries),
    Memory(memory::Memory),
    Dlq(dlq::Dlq),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
    Produce(produce::Produce),
    Tail(tail::Tail),
    Consume(consume::Consume),
    Delayed(scheduled::delayed::Delayed),
    Schedule(scheduled::schedule::Schedule),
    Queue(queue::Queue),
    Lock(lock::Lock),
    Leader(lock::leader::Leader),
    #[cfg(feature = "top")]
    Top(top::Top),
    #[cfg(feature = "dashboard")]
    Dashboard(dashboard::Dashboard),
    #[cfg(feature = "exporter")]
    Exporter(exporter::Exporter),
    #[cfg(feature = "keda")]
    Scaler(scaler::Scaler),
    Acl(generate::acl::Acl),
    Completions(generate::completions::Completions),
    Man(generate::man::Man),
    Schema(generate::schema::SchemaArgs),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// Any error of the command.
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        // Boxed, as the future would otherwise have the size of the largest one.
        match self {
            Self::Topic(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Group(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Produce(it) => Box::pin(it.run(global)).await,
            Self::Consume(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Tail(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Delayed(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Schedule(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Queue(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Lock(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Leader(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            #[cfg(feature = "dashboard")]
            Self::Dashboard(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            #[cfg(feature = "exporter")]
            Self::Exporter(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            #[cfg(feature = "keda")]
            Self::Scaler(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            #[cfg(feature = "top")]
            Self::Top(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Lag(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Owners(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Pending(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Retries(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Memory(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Dlq(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Verify(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Doctor(it) => Box::pin(it.run(&Context::open(global).await?)).await,
            Self::Acl(it) => it.run(global, global.output()),
            Self::Completions(it) => it.run(global.output()),
            Self::Man(it) => it.run(global.output()),
            Self::Schema(it) => it.run(global.output()),
        }
    }

    /// Checks combinations of arguments, which clap cannot check.
    ///
    /// # Errors
    /// The fault, for the user.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Pending(it) => it.check(),
            _ => Ok(()),
        }
    }
}

/// Option of all commands that change something.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DryRun {
    /// Shows the changes without making them
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
}
