//! The JSON envelope: the form of every line that a command prints with `--json`.

use anyhow::Error;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::commands::message::sanitize;
use crate::exit::{Interrupted, Usage};

/// Version of the envelope. It rises if a field of the envelope or of an error is removed, or changes its type or meaning.
/// The data of a command is not part of it.
pub(crate) const VERSION: u32 = 1;

#[derive(Serialize)]
struct DataLine<'a> {
    version: u32,
    command: &'a str,
    data: &'a RawValue,
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    version: u32,
    command: &'a str,
    error: &'a ErrorView,
}

/// Error of a command.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorView {
    /// Kind of the error, for programs to match on.
    #[schemars(regex(pattern = "^[a-z_]+$"))]
    kind: &'static str,
    /// The message that is on stderr too.
    message: String,
    /// What may help, if anything is known.
    advice: Option<String>,
    /// The topic that it concerns, if it is known.
    topic: Option<String>,
    /// The partition of the topic that it concerns, if it is known.
    partition: Option<u32>,
    /// The operation that failed, if it is known.
    operation: Option<String>,
}

/// Returns the line of a value, without the line feed.
///
/// # Errors
/// If the value has no JSON form.
pub(crate) fn data<T: Serialize>(command: &str, data: &T) -> serde_json::Result<String> {
    data_line(command, &to_raw_value(data)?)
}

/// Apart from [`data`], which is made anew for each type.
fn data_line(command: &str, data: &RawValue) -> serde_json::Result<String> {
    let line = serde_json::to_string(&DataLine { version: VERSION, command, data })?;
    Ok(sanitize::json(&line).into_owned())
}

/// Returns the line of an error, without the line feed.
///
/// # Errors
/// None is known to occur.
pub(crate) fn error(command: &str, error: &ErrorView) -> serde_json::Result<String> {
    let line = serde_json::to_string(&ErrorLine { version: VERSION, command, error })?;
    Ok(sanitize::json(&line).into_owned())
}

impl ErrorView {
    /// Creates it from an error that ended a command.
    pub(crate) fn of(error: &Error, advice: Option<String>) -> Self {
        let known = error.chain().find_map(|it| it.downcast_ref::<millstream::Error>());
        let kind = if error.is::<Usage>() {
            "usage"
        } else if error.is::<Interrupted>() {
            "interrupted"
        } else {
            known.map_or("other", |it| it.kind().as_str())
        };
        Self {
            kind,
            message: format!("{error:#}"),
            advice,
            topic: known.and_then(millstream::Error::topic).map(str::to_owned),
            partition: known.and_then(millstream::Error::partition),
            operation: known.and_then(millstream::Error::operation).map(str::to_owned),
        }
    }

    /// Creates it from an error in the arguments.
    pub(crate) fn of_arguments(error: &clap::Error) -> Self {
        let (message, advice) = match error.kind() {
            // Its text is the whole help.
            clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                ("a subcommand is missing".to_owned(), Some("--help lists them".to_owned()))
            }
            _ => texts(&error.to_string()),
        };
        Self { kind: "usage", message, advice, topic: None, partition: None, operation: None }
    }
}

/// Splits the report of a wrong argument into its message, which is the first paragraph, and its tips.
fn texts(report: &str) -> (String, Option<String>) {
    let message = report.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>();
    let tips: Vec<_> = report.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).collect();
    let message = message.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    (message, (!tips.is_empty()).then(|| tips.join("; ")))
}

/// Returns the schema of a line of a command: its data, unless it prints none, or an error.
pub(crate) fn schema(command: &str, data: Option<&Schema>, error: &Schema) -> Schema {
    let line = |name: &str, content: &Schema| {
        json_schema!({
            "type": "object",
            "properties": {
                "version": { "const": VERSION },
                "command": { "const": command },
                name: content,
            },
            "required": ["version", "command", name],
            "additionalProperties": false,
        })
    };
    let lines: Vec<_> =
        data.map(|data| line("data", data)).into_iter().chain([line("error", error)]).collect();
    json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("millstream {command} --json"),
        "oneOf": lines,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};
    use millstream::ErrorKind;

    use super::*;

    #[test]
    fn an_error_has_the_kind_of_its_cause() {
        let kind = |error: Error| ErrorView::of(&error.context("around"), None).kind;
        assert_eq!(kind(anyhow!("no server")), "other");
        assert_eq!(kind(Usage("no".into()).into()), "usage");
        assert_eq!(kind(Interrupted.into()), "interrupted");
        assert_eq!(kind(millstream::Error::new(ErrorKind::WrongType, "read").into()), "wrong_type");
    }

    #[test]
    fn an_error_names_what_it_concerns() {
        let orders = millstream::TopicPartition::new("orders".parse().expect("a name"), 3);
        let error = millstream::Error::new(ErrorKind::Unavailable, "refused").at(&orders).during("append");
        let error = Err::<(), _>(error).context("line 7").expect_err("an error");
        let view = serde_json::to_value(ErrorView::of(&error, Some("later".into()))).expect("JSON");
        let expected = serde_json::json!({
            "kind": "unavailable", "message": "line 7: append: refused", "advice": "later",
            "topic": "orders", "partition": 3, "operation": "append",
        });
        assert_eq!(view, expected);
    }

    #[test]
    fn wrong_arguments_are_a_sentence_and_tips() {
        let report = "error: unexpected argument '--jsn' found\n\n  tip: a similar argument exists: '--json'\n\n\
                      Usage: millstream topic list --json\n\nFor more information, try '--help'.\n";
        let (message, advice) = texts(report);
        assert_eq!(message, "unexpected argument '--jsn' found");
        assert_eq!(advice.as_deref(), Some("a similar argument exists: '--json'"));
        let (message, advice) = texts("error: these are missing:\n  <TOPIC>\n  <GROUP>\n\nUsage: x\n");
        assert_eq!((message.as_str(), advice), ("these are missing: <TOPIC> <GROUP>", None));
    }
}
