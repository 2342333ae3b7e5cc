//! How a command ends: its exit code, and what is said of an error.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Error, Result};

use crate::commands::message::plain;
use crate::output::Closed;

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done,
    /// It looked, and found something wrong.
    Wrong,
}

/// An error of whoever typed the command, which clap cannot see.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A wait that a signal ended before what was waited for came.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The exit code; an error is told on stderr first.
pub(crate) fn code(ended: Result<Exit>) -> ExitCode {
    let error = match ended {
        Ok(Exit::Done) => return ExitCode::SUCCESS,
        Ok(Exit::Wrong) => return ExitCode::from(3),
        Err(error) => error,
    };
    let code = code_of(&error);
    if code != 0 {
        // As lines of clap begin. Whoever closed stderr does not want to know.
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("error: {}\n", plain::text(format!("{error:#}").as_bytes())),
        );
    }
    ExitCode::from(code)
}

fn code_of(error: &Error) -> u8 {
    if error.is::<Closed>() {
        // Whoever read has enough.
        0
    } else if error.is::<Usage>() {
        2
    } else if error.is::<Interrupted>() {
        130
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn an_error_has_the_code_of_its_kind_also_with_words_around_it() {
        assert_eq!(code_of(&anyhow!("no server")), 1);
        let usage = Err::<(), _>(Error::new(Usage("no".into()))).context("around").expect_err("an error");
        assert_eq!(code_of(&usage), 2);
        assert_eq!(code_of(&Error::new(Interrupted)), 130);
        assert_eq!(code_of(&Error::new(Closed)), 0);
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(code_of(&Error::new(broken)), 1, "the pipe of somebody else");
    }
}
