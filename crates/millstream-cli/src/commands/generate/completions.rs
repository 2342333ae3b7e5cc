//! `millstream completions`: the completion scripts for shells.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::Cli;
use crate::exit::Exit;
use crate::output::Output;

/// Prints the completion script of a shell
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream completions bash > ~/.local/share/bash-completion/completions/millstream
  millstream completions zsh > ~/.zfunc/_millstream
  millstream completions fish > ~/.config/fish/completions/millstream.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, output: Output) -> Result<Exit> {
        let mut text = Vec::new();
        generate(self.shell, &mut Cli::command(), "millstream", &mut text);
        output.write(&String::from_utf8(text)?)?;
        Ok(Exit::Done)
    }
}
