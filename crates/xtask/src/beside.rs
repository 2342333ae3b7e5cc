//! Commands that run beside the tests: these leave most of the machine idle, since they wait for leases and outages.

use std::fs::{self, File};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::{env, io};

use anyhow::{Context, Result, anyhow, ensure};

use crate::run::{program, target};

/// Commands of this program, one after the other, in the background.
pub(crate) struct Beside(JoinHandle<Result<()>>);

impl Beside {
    /// Starts them. They get what the tests leave of the processors: their share beside a test is a hundredth.
    pub(crate) fn start(commands: &'static [&'static [&'static str]]) -> Self {
        Self(thread::spawn(move || {
            let mut failed = Vec::new();
            for command in commands {
                let log = target().join(format!("{}.log", command[0]));
                if let Err(error) = run(command, &log) {
                    failed.push(format!("{error:#}"));
                }
            }
            ensure!(failed.is_empty(), "{}", failed.join("; "));
            Ok(())
        }))
    }

    /// Waits for the end, and prints what they have printed.
    pub(crate) fn wait(self, commands: &[&[&str]]) -> Result<()> {
        let result = self.0.join().map_err(|_| anyhow!("the thread of the other commands panicked"))?;
        for command in commands {
            let name = command[0];
            let log = target().join(format!("{name}.log"));
            // A command that could not be started has none; that is in the result.
            if let Ok(mut log) = File::open(&log) {
                println!("\n== {name}, beside the tests");
                io::copy(&mut log, &mut io::stdout()).context("the output cannot be copied")?;
            }
        }
        result
    }
}

fn run(command: &[&str], log: &Path) -> Result<()> {
    let this = env::current_exe().context("where this program is")?;
    let this = this.to_str().context("the path of this program is not valid UTF-8")?;
    fs::create_dir_all(target())?;
    program("nice", ["-n", "19", this].into_iter().chain(command.iter().copied())).run_into(log)
}
