//! `millstream man`: manual pages.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::Cli;
use crate::exit::Exit;
use crate::human;
use crate::output::Output;

/// Prints the manual page, or writes the pages of all commands into a folder
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream man | man -l -
  millstream man ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// Folder for the pages, created if it does not exist. Default: prints the page of `millstream`
    folder: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, output: Output) -> Result<Exit> {
        let mut root = Cli::command();
        // Page names contain the whole path: millstream-topic-list.
        root.build();
        let Some(folder) = self.folder else {
            output.write(&page(&root)?)?;
            return Ok(Exit::Done);
        };
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut pages = Vec::new();
        collect(&root, &mut pages)?;
        for (name, text) in &pages {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        output.note(&format!("{} in {}", human::of(pages.len() as u64, "page", "pages"), folder.display()));
        Ok(Exit::Done)
    }
}

/// Adds the pages of a command and its subcommands.
fn collect(command: &Command, pages: &mut Vec<(String, String)>) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push((format!("{name}.1"), page(command)?));
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|it| collect(it, pages))
}

fn page(command: &Command) -> Result<String> {
    let mut text = Vec::new();
    Page::new(command.clone()).render(&mut text)?;
    Ok(String::from_utf8(text)?)
}
