//! Prompts the user for the fate of a letter.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context as _, Result};
use millstream::DeadLetter;
use tokio::sync::oneshot;

use crate::commands::dlq::consume::Fate;
use crate::commands::shelf::view::letter_story;
use crate::exit::Usage;

/// Checks that the user can be prompted.
///
/// # Errors
/// [`Usage`] if stdin is no terminal.
pub(super) fn possible() -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Usage("--then ask needs a terminal: say leave, replay or purge".to_owned()).into())
}

/// Shows a letter, and prompts until the answer is valid; returns `None` to quit.
///
/// # Errors
/// If the prompt fails.
pub(super) async fn ask(letter: &DeadLetter) -> Result<Option<Fate>> {
    let story = letter_story(letter);
    let (answered, fate) = oneshot::channel();
    // On a detached thread: a read from a terminal ends only when the user types.
    std::thread::Builder::new()
        .name("question".to_owned())
        .spawn(move || {
            // The caller may be gone.
            let _ = answered.send(answer(&story));
        })
        .context("cannot start the prompt")?;
    fate.await.context("the prompt ended without an answer")?
}

fn answer(story: &str) -> Result<Option<Fate>> {
    let mut stderr = io::stderr();
    writeln!(stderr, "{story}\n")?;
    loop {
        write!(stderr, "leave, replay, purge or quit? [l/r/p/q] ")?;
        stderr.flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if let Some(answer) = understood(&line) {
            return Ok(answer);
        }
    }
}

/// Parses an answer; returns `None` if it is invalid.
fn understood(line: &str) -> Option<Option<Fate>> {
    match line.trim().to_lowercase().as_str() {
        "l" | "leave" => Some(Some(Fate::Leave)),
        "r" | "replay" => Some(Some(Fate::Replay)),
        "p" | "purge" => Some(Some(Fate::Purge)),
        "q" | "quit" => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_word_or_its_letter() {
        assert_eq!(understood("l\n"), Some(Some(Fate::Leave)));
        assert_eq!(understood(" Replay\n"), Some(Some(Fate::Replay)));
        assert_eq!(understood("p"), Some(Some(Fate::Purge)));
        assert_eq!(understood("quit"), Some(None));
        assert_eq!([understood(""), understood("y"), understood("pp")], [None; 3]);
    }
}
