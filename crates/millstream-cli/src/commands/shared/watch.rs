//! The option `--watch`: a command that repeats what it shows.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::{Error, Timestamp};

use crate::commands::Running;
use crate::context::{self, Context, stopped};
use crate::exit::Exit;
use crate::{human, parse};

/// Repetition of a list
#[derive(Args, Clone, Copy, Debug)]
pub(in crate::commands) struct WatchArgs {
    /// Repeats until it is stopped, by default every 2 seconds; another interval requires the equals sign: `--watch=5`
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = parse::interval)]
    watch: Option<Duration>,
}

impl WatchArgs {
    /// Runs `show` once, or again and again until a signal. A transient error of a repetition is reported, and does not
    /// end the command; the first round has to succeed.
    ///
    /// # Errors
    /// Those of `show`.
    pub(in crate::commands) async fn run<'a>(
        self,
        cx: &Context,
        show: impl Fn() -> Running<'a>,
    ) -> Result<Exit> {
        self.repeat(cx, &show).await
    }

    async fn repeat<'a>(self, cx: &Context, show: &dyn Fn() -> Running<'a>) -> Result<Exit> {
        let Some(every) = self.watch else { return show().await };
        let is_terminal = std::io::stdout().is_terminal();
        let rounds = async {
            let mut is_first = true;
            loop {
                if !cx.output.is_json() {
                    // Moves to the upper left corner and clears the screen.
                    let clear = if is_terminal { "\x1b[H\x1b[2J" } else { "" };
                    let now = human::time(Timestamp::from_millis(context::local_ms()?));
                    cx.output.write(&format!("{clear}{now}, every {}\n", human::duration(every)))?;
                }
                match show().await {
                    Err(error) if !is_first && is_transient(&error) => {
                        cx.output.note(&format!("not now: {error:#}"));
                    }
                    Err(error) => return Err(error),
                    Ok(_) => {}
                }
                is_first = false;
                if !cx.output.is_json() {
                    cx.output.write("\n")?;
                }
                tokio::time::sleep(every).await;
            }
        };
        tokio::select! {
            biased;
            signal = stopped() => signal.map(|()| Exit::Done),
            ended = rounds => ended,
        }
    }
}

fn is_transient(error: &anyhow::Error) -> bool {
    error.chain().find_map(|it| it.downcast_ref::<Error>()).is_some_and(Error::is_transient)
}
