//! Output formats of messages: a table for people, JSON for programs, bytes, or a template.

use std::io::{IsTerminal, Write, stdout};

use anyhow::Result;
use clap::Args;

use crate::commands::message::template::{self, Template};
use crate::commands::message::{Body, MessageView, json, sanitize};
use crate::context::Context;
use crate::human;
use crate::output::{Closed, Output};

/// Output format of messages
#[derive(Args, Clone, Debug)]
pub(crate) struct FormatArgs {
    /// `table`, `json` (one line per message, which `produce --format json` reads), `payload` (its bytes and a line feed),
    /// or a template such as `'%p %k %s\n'`. Default: `table`; with --json, the message in the envelope of JSON output.
    ///
    /// Placeholders of a template: %s payload, %S its length, %k key, %K its length, %h headers, %t topic, %p
    /// partition, %o id, %T time in milliseconds, %a attempt, %% a percent sign; \n, \r, \t, \0, \\ and \xNN.
    ///
    /// On a terminal, control characters in messages are shown as escapes such as \x1b. Into a pipe or a file,
    /// `payload` and templates write the bytes unchanged.
    #[arg(long, value_name = "FORMAT", value_parser = parse)]
    format: Option<Format>,
}

/// The output format of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
    /// JSON in the envelope of a command.
    Envelope(Output),
    Payload,
    Template(Template),
}

fn parse(text: &str) -> Result<Format, String> {
    match text {
        "table" => Ok(Format::Table),
        "json" => Ok(Format::Json),
        "payload" => Ok(Format::Payload),
        template if template.contains('%') => {
            Template::parse(template).map(Format::Template).map_err(|error| error.to_string())
        }
        _ => Err(format!(
            "table, json, payload and templates as '%k %s\\n' are; in a template: {}",
            template::HELP
        )),
    }
}

impl FormatArgs {
    /// Returns a printer for the selected format.
    pub(crate) fn printer(&self, cx: &Context) -> Printer {
        let format = match &self.format {
            Some(format) => format.clone(),
            None if cx.output.is_json() => Format::Envelope(cx.output),
            None => Format::Table,
        };
        let is_terminal = stdout().is_terminal();
        Printer { format, is_terminal, titled: !is_terminal }
    }
}

/// Prints messages.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    is_terminal: bool,
    /// Whether the column titles were printed already, or are to be omitted.
    titled: bool,
}

impl Printer {
    /// Prints messages, and returns after they are flushed.
    ///
    /// # Errors
    /// If they cannot be written; [`Closed`] if stdout is closed.
    pub(crate) fn print<'a>(&mut self, views: impl IntoIterator<Item = &'a MessageView>) -> Result<()> {
        let mut out = Vec::new();
        for view in views {
            self.write(view, &mut out)?;
        }
        if out.is_empty() {
            return Ok(());
        }
        let mut stdout = stdout().lock();
        match stdout.write_all(&out).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Closed.into()),
            other => Ok(other?),
        }
    }

    fn write(&mut self, view: &MessageView, out: &mut Vec<u8>) -> Result<()> {
        match &self.format {
            Format::Json => {
                let line = serde_json::to_string(view)?;
                out.extend_from_slice(sanitize::json(&line).as_bytes());
                out.push(b'\n');
            }
            Format::Envelope(output) => out.extend_from_slice(output.line(view)?.as_bytes()),
            Format::Payload => {
                match &view.body {
                    Body::Message(it) if self.is_terminal => {
                        out.extend_from_slice(sanitize::text(&it.payload).as_bytes());
                    }
                    Body::Message(it) => out.extend_from_slice(&it.payload),
                    Body::Malformed(_, fields) => out.extend_from_slice(json::fields(fields).as_bytes()),
                }
                out.push(b'\n');
            }
            Format::Template(template) => out.extend(template.fill(view, self.is_terminal)),
            Format::Table => {
                if !std::mem::replace(&mut self.titled, true) {
                    out.extend_from_slice(TITLES.as_bytes());
                }
                out.extend_from_slice(row(view).as_bytes());
            }
        }
        Ok(())
    }
}

const TITLES: &str = "time                      part  id                    key           payload\n";

/// Formats one line. Widths are fixed, since later messages are not known yet.
fn row(view: &MessageView) -> String {
    let (key, payload) = match &view.body {
        Body::Message(envelope) => {
            let key = envelope.key.as_ref().map_or_else(|| "-".to_owned(), |key| sanitize::line(key));
            let mut payload = sanitize::short(&envelope.payload);
            if !envelope.headers.is_empty() {
                payload = format!("[{}] {payload}", sanitize::cut(&template::headers(&envelope.headers)));
            }
            (key, payload)
        }
        Body::Malformed(why, fields) => {
            ("-".to_owned(), format!("no message: {why}: {}", sanitize::cut(&json::fields(fields))))
        }
    };
    let again =
        view.attempt.filter(|attempt| *attempt > 1).map_or_else(String::new, |it| format!("(attempt {it}) "));
    let (time, partition, id) =
        (human::time(view.id.timestamp()), view.topic_partition.partition.0, view.id.to_string());
    let line = format!("{time:<24}  {partition:>4}  {id:<20}  {key:<12}  {again}{payload}");
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use millstream::{Envelope, MessageId, TopicPartition};

    use super::*;

    fn view(body: Body) -> MessageView {
        let topic_partition = TopicPartition::new("orders".parse().expect("a name"), 3);
        MessageView { topic_partition, id: MessageId::new(1_700_000_000_000, 1), attempt: None, body }
    }

    #[test]
    fn a_row_is_one_line_whatever_stands_in_it() {
        let nasty = Envelope::new("a\n\x1b[2J").with_key("k\r").with_header("h\x07", "\u{202e}");
        let row = row(&view(Body::Message(nasty)));
        let expected = "2023-11-14T22:13:20.000Z     3  1700000000000-1       k\\r           [h\\x07=\\u{202e}] a\\n\\x1b[2J\n";
        assert_eq!(row, expected);
        let none = Body::Malformed("no payload field".into(), vec![("a\x1b".into(), "\u{9b}".into())]);
        let none = super::row(&view(none));
        assert!(!none.trim_end().contains(sanitize::is_control), "{none}");
    }

    #[test]
    fn a_long_payload_is_cut_and_says_so() {
        let row = row(&view(Body::Message(Envelope::new("é".repeat(sanitize::SHOWN + 10)))));
        assert!(row.ends_with("é… (20 B more)\n"), "{row}");
    }

    #[test]
    fn formats_are_named_or_templates() {
        assert_eq!(parse("json"), Ok(Format::Json));
        assert!(matches!(parse("%k"), Ok(Format::Template(_))));
        for wrong in ["jsn", "", "%q"] {
            assert!(parse(wrong).expect_err(wrong).contains("%k"), "{wrong}");
        }
    }
}
