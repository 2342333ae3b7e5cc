//! `millstream top`: topics, groups, consumers and errors on one screen, as they change.
//!
//! `sampler` queries the server in rounds, `model` has the results and collects them, `state` is the state of the screen
//! and its keys, `view` draws both, and `screen` is the event loop.

mod model;
mod plain;
mod rows;
mod sampler;
mod screen;
mod state;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tokio::sync::{mpsc, watch};

use crate::commands::schemas::{Table, of};
use crate::context::{self, Context};
use crate::exit::{Exit, Usage};
use crate::log_buffer::Hold;
use crate::{human, output, parse};
use model::{Focus, Model};

use sampler::Sampler;
use screen::Screen;

/// Shows topics, groups, consumers and errors on a live screen, with rates and lag
///
/// Arrows or j and k move, Enter inspects (a topic, then the messages of a group), Esc goes back, s sorts, / filters,
/// Space freezes, p pauses or resumes a group, ? explains, q quits. If the server is slow, the screen updates less
/// often.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream top
  millstream top --interval 5s
  millstream top --once --json | jq '.data.topics[] | select(.groups[].dead > 0) | .topic'")]
pub(crate) struct Top {
    /// Interval between two updates, at least 100ms
    #[arg(long, value_parser = parse::reads, value_name = "TIME", default_value = "1s")]
    interval: Duration,
    /// Prints the state once and ends; requires no terminal. It measures twice, one interval apart, to compute rates
    #[arg(long)]
    once: bool,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("top", of::<plain::Everything>())];

impl Top {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let sampler = Sampler::new(cx.mq.clone(), self.interval);
        if self.once {
            return once(sampler.unlimited(), self.interval, cx).await;
        }
        if cx.output.is_json() {
            return Err(Usage("--json needs --once: a screen is for people".to_owned()).into());
        }
        if !io::stdout().is_terminal() {
            return Err(
                Usage("stdout is not a terminal: --once prints how everything stands".to_owned()).into()
            );
        }
        screen(sampler, self.interval).await
    }
}

/// Samples twice, and prints the result.
async fn once(mut sampler: Sampler, interval: Duration, cx: &Context) -> Result<Exit> {
    let mut model = Model::default();
    whole(&mut sampler, &mut model).await?;
    tokio::time::sleep(interval).await;
    whole(&mut sampler, &mut model).await?;
    let is_empty = model.topics().next().is_none() && model.others.queues.is_empty();
    if let Some(seen) = model.problems.front().filter(|_| is_empty) {
        bail!("could not {}: {}", seen.problem.doing, text::clean(&seen.problem.error));
    }
    cx.output.show(&plain::Everything::of(&model), |_| plain::text(&model))?;
    for seen in &model.problems {
        cx.output.note(&text::clean(&format!("could not {}: {}", seen.problem.doing, seen.problem.error)));
    }
    match model.problems.len() as u64 {
        0 => Ok(Exit::Done),
        some => {
            let things = human::of(some, "thing", "things");
            bail!("{things} could not be read; `millstream verify` shows the faults")
        }
    }
}

/// Runs as many rounds as it takes to sample every topic.
async fn whole(sampler: &mut Sampler, model: &mut Model) -> Result<()> {
    let mut asked = std::collections::BTreeSet::new();
    loop {
        let round = sampler.run_once(&Focus::default()).await;
        if let Some(problem) = round.problems.iter().find(|problem| problem.transient) {
            bail!("could not {}: {}", problem.doing, problem.error);
        }
        let names = round.names.clone().unwrap_or_default();
        let before = asked.len();
        asked.extend(round.unreadable.iter().cloned());
        asked.extend(round.topics.iter().map(|topic| topic.topic.name.clone()));
        model.take(round);
        // A topic that cannot be sampled must not keep the loop running.
        if asked.len() == before || names.iter().all(|name| asked.contains(name)) {
            return Ok(());
        }
    }
}

async fn screen(sampler: Sampler, interval: Duration) -> Result<Exit> {
    let (focus, focused) = watch::channel(Focus::default());
    let (order, orders) = mpsc::channel(4);
    let (send, rounds) = mpsc::channel(4);
    let stopped = context::stopped();
    tokio::pin!(stopped);
    // Log lines are held back until the terminal is restored.
    let hold = Hold::back();
    let terminal = screen::Raw::take()?;
    let keys = screen::keys();
    let colours = output::colours(&io::stdout());
    let asking = tokio::spawn(sampler.run(focused, orders, send));
    let ended = async {
        let mut screen = Screen::new(screen::stdout()?, keys, rounds, (focus, order), interval, colours);
        tokio::select! {
            biased;
            stopped = &mut stopped => stopped,
            ended = screen.run() => ended,
        }
    };
    let ended = ended.await;
    asking.abort();
    drop(terminal);
    drop(hold);
    ended.map(|()| Exit::Done)
}
