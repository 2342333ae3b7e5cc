//! The end of a command: its exit code, and the error message.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Error, Result};
use millstream::ErrorKind;

use crate::commands::message::sanitize;
use crate::envelope::ErrorView;
use crate::output::{Closed, Output};

/// The result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command did what was requested.
    Done,
    /// The command checked something and found a fault.
    Wrong,
}

/// An error in the arguments that clap cannot detect.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Error: a signal ended a wait before its condition was met.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// An error that ended a command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// What may help, beyond the advice for the kind of the error.
    pub(crate) advice: Option<String>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, advice: None }
    }
}

/// Returns the error for something that does not exist. Similar names of topics, groups and queues are suggested to the
/// user.
pub(crate) fn not_found(why: String) -> Error {
    millstream::Error::new(ErrorKind::NotFound, why).into()
}

/// Returns the error for something that exists already, and is different.
pub(crate) fn exists(why: String) -> Error {
    millstream::Error::new(ErrorKind::Exists, why).into()
}

/// Advice on a payload that is too large.
pub(crate) const MORE_PAYLOAD: &str = "--max-payload allows more";

/// Returns advice on an error, if there is any for its kind.
fn advice(error: &Error) -> Option<&'static str> {
    let error = error.chain().find_map(|it| it.downcast_ref::<millstream::Error>())?;
    let text = error.to_string();
    let is_new = text.starts_with("connect to ");
    match error.kind() {
        ErrorKind::Unavailable if is_new => Some("--url or MILLSTREAM_URL sets its address"),
        // Of the command that was refused, whenever that was.
        ErrorKind::Denied if text.contains("lacks a permission") => {
            Some("`millstream doctor` lists every command that this user lacks")
        }
        // The error has the cure.
        ErrorKind::Denied if text.contains("certificate") || text.contains("TLS session") => None,
        ErrorKind::Denied if text.contains("ask Sentinels") => {
            Some("--sentinel-password-file or MILLSTREAM_SENTINEL_PASSWORD sets their password")
        }
        // Also of a connection that was open, if the password was changed meanwhile.
        ErrorKind::Denied
            if is_new || text.contains("credentials") || text.contains("asks for a password") =>
        {
            Some("redis://user:password@host in MILLSTREAM_URL, or in the file of --config")
        }
        ErrorKind::Denied => Some("`millstream doctor` lists every command that this user lacks"),
        ErrorKind::TooLarge if text.contains("bytes of payload") => Some(MORE_PAYLOAD),
        ErrorKind::WrongType => Some("`millstream verify` lists every key of a wrong type"),
        _ => None,
    }
}

/// Returns the exit code; prints an error first, on stderr and, as JSON, as the last line of stdout.
pub(crate) fn code(ended: Result<Exit, Failure>, output: Output) -> ExitCode {
    let Failure { error, advice: more } = match ended {
        Ok(Exit::Done) => return ExitCode::SUCCESS,
        Ok(Exit::Wrong) => return ExitCode::from(3),
        Err(failure) => failure,
    };
    let code = code_of(&error);
    if code != 0 {
        // Starts like the error messages of clap.
        let text = sanitize::text(format!("{error:#}").as_bytes());
        let advice = more.or_else(|| advice(&error).map(str::to_owned));
        let added = advice.iter().map(|advice| format!("; {advice}")).collect::<String>();
        // If stderr is closed, the message is dropped.
        let _ = writeln!(std::io::stderr(), "error: {text}{added}");
        output.fail(&ErrorView::of(&error, advice));
    }
    ExitCode::from(code)
}

fn code_of(error: &Error) -> u8 {
    if error.is::<Closed>() {
        // The reader has closed stdout and needs no more.
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
    fn advice_is_given_once_and_only_where_it_helps() {
        let of = |kind, text: &str| advice(&Error::new(millstream::Error::new(kind, text)).context("around"));
        assert!(
            of(ErrorKind::Denied, "connect to redis://h: no").is_some_and(|it| it.contains("MILLSTREAM_URL"))
        );
        assert!(of(ErrorKind::Denied, "append").is_some_and(|it| it.contains("doctor")));
        let right = "connect to redis://h: this user lacks a permission: info";
        assert!(of(ErrorKind::Denied, right).is_some_and(|it| it.contains("doctor")), "not the password");
        let password = "append: the server refuses these credentials";
        assert!(of(ErrorKind::Denied, password).is_some_and(|it| it.contains("MILLSTREAM_URL")));
        let sentinel = "connect to redis+sentinel://h/s: ask Sentinels for the primary of s: the server asks for a password";
        assert!(of(ErrorKind::Denied, sentinel).is_some_and(|it| it.contains("--sentinel-password-file")));
        let certificate = "connect to rediss://h: the server's certificate is not trusted";
        assert_eq!(of(ErrorKind::Denied, certificate), None, "no password helps");
        assert!(of(ErrorKind::WrongType, "read").is_some_and(|it| it.contains("verify")));
        assert_eq!(of(ErrorKind::Unavailable, "append"), None, "the address is known");
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
        assert_eq!(code_of(&Error::new(broken)), 1, "not the pipe of stdout");
    }
}
