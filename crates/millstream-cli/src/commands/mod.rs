//! The commands: each has a module, a line in the list, and a line where it is run.

mod batch;
mod consume;
#[cfg(feature = "dashboard")]
mod dashboard;
mod dlq;
mod doctor;
pub(crate) mod exec;
#[cfg(feature = "exporter")]
mod exporter;
pub(crate) mod generate;
mod group;
mod lag;
mod limits;
mod lock;
mod memory;
pub(crate) mod message;
mod owners;
mod pending;
mod plan;
mod produce;
mod queue;
#[cfg(feature = "keda")]
mod scaler;
mod scheduled;
pub(crate) mod schemas;
mod shared;
mod shelf;
mod tail;
#[cfg(feature = "top")]
mod top;
mod topic;
mod verify;

use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::context::{self, Context};
use crate::exit::Exit;
use crate::global::Global;

/// All commands.
// There is one of it, once.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Topic(topic::TopicArgs),
    Group(group::GroupArgs),
    Lag(lag::Lag),
    Owners(owners::Owners),
    Pending(pending::Pending),
    Retries(scheduled::retries::Retries),
    Find(message::find::Find),
    Message(message::follow::MessageArgs),
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
    Batch(batch::Batches),
    Limits(limits::Limits),
    Lock(lock::Lock),
    Leader(lock::Leader),
    #[cfg(feature = "top")]
    Top(top::Top),
    #[cfg(feature = "dashboard")]
    Dashboard(dashboard::Dashboard),
    #[cfg(feature = "exporter")]
    Exporter(exporter::Exporter),
    #[cfg(feature = "keda")]
    Scaler(scaler::Scaler),
    Plan(plan::PlanArgs),
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
    pub(crate) fn run(self, global: &Global) -> Running<'_> {
        match self {
            Self::Topic(it) => connected(global, |cx| it.run(cx)),
            Self::Group(it) => connected(global, |cx| it.run(cx)),
            Self::Produce(it) => Box::pin(it.run(global)),
            Self::Consume(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Tail(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Delayed(it) => connected(global, |cx| it.run(cx)),
            Self::Schedule(it) => connected(global, |cx| it.run(cx)),
            Self::Queue(it) => connected(global, |cx| it.run(cx)),
            Self::Batch(it) => connected(global, |cx| it.run(cx)),
            Self::Limits(it) => connected(global, |cx| it.run(cx)),
            Self::Lock(it) => connected(global, |cx| it.run(cx)),
            Self::Leader(it) => connected(global, |cx| Box::pin(it.run(cx))),
            #[cfg(feature = "dashboard")]
            Self::Dashboard(it) => connected(global, |cx| Box::pin(it.run(cx))),
            #[cfg(feature = "exporter")]
            Self::Exporter(it) => connected(global, |cx| Box::pin(it.run(cx))),
            #[cfg(feature = "keda")]
            Self::Scaler(it) => connected(global, |cx| Box::pin(it.run(cx))),
            #[cfg(feature = "top")]
            Self::Top(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Lag(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Owners(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Pending(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Retries(it) => connected(global, |cx| it.run(cx)),
            Self::Find(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Message(it) => connected(global, |cx| it.run(cx)),
            Self::Memory(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Dlq(it) => connected(global, |cx| it.run(cx)),
            Self::Verify(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Doctor(it) => connected(global, |cx| Box::pin(it.run(cx))),
            Self::Plan(it) => ended(it.run(global.output())),
            Self::Acl(it) => ended(it.run(global, global.output())),
            Self::Completions(it) => ended(it.run(global.output())),
            Self::Man(it) => ended(it.run(global.output())),
            Self::Schema(it) => ended(it.run(global.output())),
        }
    }
}

/// A command that runs. Its type says nothing of the command: the states of all commands would otherwise be one type, which
/// the compiler makes and optimises as a whole.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<Exit>> + 'a>>;

/// A command that waits for its connection.
type Connected<'a> = Box<dyn for<'c> FnOnce(&'c Context) -> Running<'c> + 'a>;

/// Connects to the server, and runs a command with the connection.
fn connected<'a>(
    global: &'a Global,
    run: impl for<'c> FnOnce(&'c Context) -> Running<'c> + 'a,
) -> Running<'a> {
    async fn open(global: &Global, run: Connected<'_>) -> Result<Exit> {
        run(&Context::open(global).await?).await
    }
    Box::pin(open(global, Box::new(run)))
}

/// A command that has ended at once.
fn ended(result: Result<Exit>) -> Running<'static> {
    Box::pin(std::future::ready(result))
}

/// How long a stop may take.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct StopWithin {
    /// Maximum time of a stop after a signal. Commands that still run after seven tenths of it are killed, and what they had begun is
    /// handed back
    #[arg(long, value_name = "TIME", value_parser = crate::parse::duration, default_value = "25s")]
    pub(crate) shutdown_timeout: Duration,
}

impl StopWithin {
    /// Waits until running commands have had their time. It is over before that of handlers is: they have four fifths.
    async fn commands_are_over(self) {
        tokio::time::sleep(self.shutdown_timeout * 7 / 10).await;
    }

    /// Waits for the end of commands, and calls `cut` to kill them after another signal, or once the time is over.
    ///
    /// # Errors
    /// If signals cannot be received.
    pub(crate) async fn end<T>(self, end: impl Future<Output = T>, cut: impl FnOnce()) -> Result<T> {
        let (mut end, again) = (std::pin::pin!(end), context::stopped());
        let over = async {
            tokio::select! {
                again = again => again,
                () = self.commands_are_over() => Ok(()),
            }
        };
        tokio::select! {
            biased;
            ended = &mut end => return Ok(ended),
            over = over => over?,
        }
        cut();
        Ok(end.await)
    }
}

/// Option of all commands that change something.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DryRun {
    /// Shows the changes without making them
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
}
