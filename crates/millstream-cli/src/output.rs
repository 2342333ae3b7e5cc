//! Output of commands: data on stdout, as tables for people or as JSON for programs; notes on stderr.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::commands::message::sanitize;
use crate::envelope::{self, ErrorView};

/// The output settings of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    json: bool,
    colours: bool,
    /// Path of the command, as it is in the envelope: `topic list`.
    command: &'static str,
}

/// Error: the reader of stdout has closed it. It ends a command silently.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stdout is closed")
    }
}

impl std::error::Error for Closed {}

/// The meaning of a word, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Doubtful,
    Bad,
}

impl Output {
    pub(crate) fn new(json: bool, command: &'static str) -> Self {
        Self { json, colours: !json && colours(&io::stdout()), command }
    }

    /// The output of what is no command with JSON output, such as a generated page.
    pub(crate) fn plain() -> Self {
        Self::new(false, "")
    }

    /// Whether the output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a value in the envelope, as one line of JSON with control characters escaped, or as the text made of it,
    /// which has to be escaped by its maker. Commands that stream call it once per record.
    ///
    /// # Errors
    /// If it cannot be written; [`Closed`] if stdout is closed.
    pub(crate) fn show<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json { self.write(&self.line(value)?) } else { self.write_lines(text(value)) }
    }

    fn write_lines(&self, mut text: String) -> Result<()> {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.write(&text)
    }

    /// Returns the line of a value in the envelope, for commands that print several at once.
    ///
    /// # Errors
    /// If the value has no JSON form.
    pub(crate) fn line<T: Serialize>(&self, value: &T) -> Result<String> {
        Ok(envelope::data(self.command, value)? + "\n")
    }

    /// Prints the error that ends the command in the envelope, if the output is JSON. If stdout is closed, it is dropped.
    pub(crate) fn fail(&self, error: &ErrorView) {
        if let (true, Ok(line)) = (self.json, envelope::error(self.command, error)) {
            let _ = self.write(&(line + "\n"));
        }
    }

    /// Writes text to stdout unchanged, for text that is the data itself.
    ///
    /// # Errors
    /// The errors of [`show`](Self::show).
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
            other => Ok(other?),
        }
    }

    /// Prints a note about the data or the work on stderr, also with `--json`, with control characters escaped.
    pub(crate) fn note(&self, text: &str) {
        // If stderr is closed, the note is dropped.
        let _ = writeln!(io::stderr(), "{}", sanitize::text(text.as_bytes()));
    }

    /// Colours a word, if colours are enabled. In a table the escape codes would count as visible characters.
    pub(crate) fn paint(&self, tone: Tone, word: &str) -> String {
        if !self.colours {
            return word.to_owned();
        }
        let code = match tone {
            Tone::Good => 32,
            Tone::Doubtful => 33,
            Tone::Bad => 31,
        };
        format!("\x1b[{code}m{word}\x1b[0m")
    }
}

/// Whether a stream is a terminal on which colours are wanted.
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Formats a table without lines, with control characters in its cells escaped. A title that begins with `>` denotes
/// a column of numbers, which are aligned to the right.
pub(crate) fn table<R, C>(titles: &[&str], rows: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item = C>,
    C: Into<String>,
{
    table_of(titles, rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect())
}

fn table_of(titles: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles.iter().map(|title| title.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.into_iter().map(|cell| sanitize::text(cell.as_bytes())));
    }
    for (column, title) in table.column_iter_mut().zip(titles) {
        column.set_padding((0, 2));
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Formats names with their values, one per line.
pub(crate) fn list<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    list_of(&pairs.into_iter().collect::<Vec<_>>())
}

fn list_of(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name:width$}  {}", sanitize::text(value.as_bytes())))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_words_to_the_left_and_numbers_to_the_right() {
        let text = table(&["topic", ">entries"], [["orders", "1,234"], ["a-longer-one", "5"]]);
        assert_eq!(text, "topic         entries\norders          1,234\na-longer-one        5");
        assert_eq!(table(&["topic", ">entries"], Vec::<Vec<String>>::new()), "topic  entries");
    }

    #[test]
    fn a_list_stands_in_two_columns() {
        assert_eq!(
            list([("topic", "orders".into()), ("partitions", "8".into())]),
            "topic       orders\npartitions  8"
        );
    }

    #[test]
    fn json_and_pipes_have_no_colours() {
        let painted = Output { json: false, colours: true, command: "" }.paint(Tone::Bad, "error");
        assert_eq!(painted, "\x1b[31merror\x1b[0m");
        assert_eq!(Output::new(true, "doctor").paint(Tone::Bad, "error"), "error");
    }
}
