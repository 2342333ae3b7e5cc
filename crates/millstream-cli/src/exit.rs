//! How a command ends: its exit code, and what is said of an error.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Error, Result};
use millstream::ErrorKind;

use crate::commands::message::sanitize;
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

/// A topic, group or queue that is not there: those who typed its name are told of names that are like it.
pub(crate) fn not_found(why: String) -> Error {
    millstream::Error::new(ErrorKind::NotFound, why).into()
}

/// What can be done about an error, if its kind says that.
fn advice(error: &Error) -> Option<&'static str> {
    let error = error.chain().find_map(|it| it.downcast_ref::<millstream::Error>())?;
    let is_new = error.to_string().starts_with("connect to ");
    match error.kind() {
        ErrorKind::Unavailable if is_new => Some("--url or MILLSTREAM_URL says where it is"),
        ErrorKind::Denied if is_new => {
            Some("redis://user:password@host in MILLSTREAM_URL, or in the file of --config")
        }
        ErrorKind::Denied => Some("`millstream doctor` names every command that this user lacks"),
        ErrorKind::WrongType => Some("`millstream verify` names every key that somebody else uses"),
        _ => None,
    }
}

/// The exit code; an error is told on stderr first.
pub(crate) fn code(ended: Result<Exit>) -> ExitCode {
    let error = match ended {
        Ok(Exit::Done) => return ExitCode::SUCCESS,
        Ok(Exit::Wrong) => return ExitCode::from(3),
        Err(error) => error,
    };
    let code = code_of(&error);
    if code != 0 {
        // As lines of clap begin.
        let text = sanitize::text(format!("{error:#}").as_bytes());
        let advice = advice(&error).map(|advice| format!("; {advice}")).unwrap_or_default();
        // Whoever closed stderr does not want to know.
        let _ = writeln!(std::io::stderr(), "error: {text}{advice}");
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
    fn what_can_be_done_is_told_once_and_only_where_it_helps() {
        let of = |kind, text: &str| advice(&Error::new(millstream::Error::new(kind, text)).context("around"));
        assert!(
            of(ErrorKind::Denied, "connect to redis://h: no").is_some_and(|it| it.contains("MILLSTREAM_URL"))
        );
        assert!(of(ErrorKind::Denied, "append").is_some_and(|it| it.contains("doctor")));
        assert!(of(ErrorKind::WrongType, "read").is_some_and(|it| it.contains("verify")));
        assert_eq!(of(ErrorKind::Unavailable, "append"), None, "it is known where it is");
        assert_eq!(advice(&anyhow!("no server")), None);
    }

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
