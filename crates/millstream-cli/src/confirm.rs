//! Prompts for confirmation before a change.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Result, bail};

use crate::exit::Usage;

/// Prompts on the terminal.
///
/// # Errors
/// If the answer is not yes; [`Usage`] if stdin is no terminal.
pub(crate) fn ask(question: &str) -> Result<()> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let why = "nothing was done: it has to be confirmed, and stdin is not a terminal; say --yes, or --dry-run to look";
        return Err(Usage(why.to_owned()).into());
    }
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if !is_yes(&answer) {
        bail!("nothing was done: it was not confirmed");
    }
    Ok(())
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        assert!(["y\n", "Yes\n", "YES", " y "].into_iter().all(is_yes));
        assert!(!["", "\n", "n\n", "yess", "yes no", "ja"].into_iter().any(is_yes));
    }
}
