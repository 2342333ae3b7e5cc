//! Cells of tables and lists of facts.

use std::time::Duration;

use millstream::Timestamp;

use super::chart::Chart;
use super::form::Button;
use super::format;
use super::href::Href;
use super::text::Text;

/// How a value stands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    /// As usual.
    #[default]
    Plain,
    /// Of little interest, as a zero.
    Dim,
    /// In order.
    Good,
    /// To be looked at.
    Warn,
    /// To be acted on.
    Bad,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "dim",
            Self::Good => "good",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// Value of a cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) text: Text,
    pub(crate) tone: Tone,
    pub(crate) href: Option<Href>,
    /// A time, which is shown as one that is so long ago; the text is the exact one.
    pub(crate) time: Option<Timestamp>,
    /// Place among other cells of a column, unless its text is that.
    pub(crate) rank: Option<f64>,
    /// Words beside each other that stand out, each in a frame.
    pub(crate) chips: Vec<(Text, Tone)>,
    /// Whether every character counts: an id, a key, a payload.
    pub(crate) mono: bool,
    /// Whether it takes one line of a table, however long it is.
    pub(crate) line: bool,
    pub(crate) chart: Option<Chart>,
    /// How much is done, from 0 to 1, drawn as a bar.
    pub(crate) fraction: Option<f64>,
    /// Of the first cell of a row: the value that is sent if the row is checked.
    pub(crate) pick: Option<String>,
    pub(crate) buttons: Vec<Button>,
    /// Further links, after the text.
    pub(crate) links: Vec<(Text, Href)>,
}

impl Cell {
    pub(crate) fn text(text: impl Into<Text>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub(crate) fn none() -> Self {
        Self { text: "–".into(), tone: Tone::Dim, ..Self::default() }
    }

    /// A word that stands out, beside its colour.
    pub(crate) fn toned(text: impl Into<Text>, tone: Tone) -> Self {
        Self { text: text.into(), tone, ..Self::default() }
    }

    pub(crate) fn mono(text: impl Into<Text>) -> Self {
        Self { text: text.into(), mono: true, ..Self::default() }
    }

    /// The beginning of a text, on one line.
    pub(crate) fn line(text: impl Into<Text>) -> Self {
        Self { text: text.into(), line: true, ..Self::default() }
    }

    pub(crate) fn link(text: impl Into<Text>, href: Href) -> Self {
        Self { text: text.into(), href: Some(href), ..Self::default() }
    }

    pub(crate) fn links(links: Vec<(Text, Href)>) -> Self {
        Self { links, ..Self::default() }
    }

    pub(crate) fn count(number: u64) -> Self {
        let tone = if number == 0 { Tone::Dim } else { Tone::Plain };
        Self::toned(format::count(number), tone)
    }

    /// How much is done, from 0 to 1.
    pub(crate) fn fraction(done: f64) -> Self {
        let text = format!("{:.1} %", done * 100.0);
        Self { fraction: Some(done), rank: Some(done), ..Self::text(text) }
    }

    /// A number that may be unknown.
    pub(crate) fn known(number: Option<u64>) -> Self {
        number.map_or_else(|| Self::toned("?", Tone::Warn), Self::count)
    }

    /// A number that needs attention unless it is zero.
    pub(crate) fn alarm(number: Option<u64>, tone: Tone) -> Self {
        match number {
            Some(1..) => Self { tone, ..Self::known(number) },
            _ => Self::known(number),
        }
    }

    pub(crate) fn duration(time: Duration) -> Self {
        Self { rank: Some(time.as_secs_f64()), ..Self::text(format::duration(time)) }
    }

    pub(crate) fn duration_or_none(time: Option<Duration>) -> Self {
        time.map_or_else(Self::none, Self::duration)
    }

    pub(crate) fn bytes(number: u64) -> Self {
        Self { rank: Some(number as f64), ..Self::text(format::bytes(number)) }
    }

    pub(crate) fn time(time: Timestamp) -> Self {
        let rank = Some(time.as_millis() as f64);
        Self { text: format::time(time).into(), time: Some(time), rank, ..Self::default() }
    }

    pub(crate) fn time_or_none(time: Option<Timestamp>) -> Self {
        time.map_or_else(Self::none, Self::time)
    }

    pub(crate) fn chart(chart: Option<Chart>) -> Self {
        Self { chart, ..Self::default() }
    }

    pub(crate) fn buttons(buttons: Vec<Button>) -> Self {
        Self { buttons, ..Self::default() }
    }

    /// Words that stand out.
    pub(crate) fn chips(chips: Vec<(Text, Tone)>) -> Self {
        let rank = chips.iter().map(|(_, tone)| f64::from(*tone as u8)).reduce(f64::max);
        Self { chips, rank, ..Self::default() }
    }

    pub(crate) fn chip(text: impl Into<Text>, tone: Tone) -> Self {
        Self::chips(vec![(text.into(), tone)])
    }

    pub(crate) fn to(self, href: Href) -> Self {
        Self { href: Some(href), ..self }
    }

    pub(crate) fn and_links(self, links: Vec<(Text, Href)>) -> Self {
        Self { links, ..self }
    }

    /// Returns how its value stands out, also in its chips.
    pub(crate) fn worst(&self) -> Tone {
        self.chips.iter().map(|(_, tone)| *tone).fold(self.tone, Tone::max)
    }

    /// Returns its place among other cells of a column: unknown values after all others, and texts after numbers.
    pub(crate) fn place(&self) -> (u8, f64, String) {
        let text = self.all_text();
        let number = || text.trim_start_matches("≥ ").trim_end_matches("/s").replace(',', "").parse().ok();
        match self.rank.or_else(number) {
            Some(rank) => (0, rank, text),
            None => (if matches!(&*text, "?" | "–" | "") { 2 } else { 1 }, 0.0, text),
        }
    }

    /// Returns all that is shown of it, in lower case.
    pub(crate) fn all_text(&self) -> String {
        let parts = std::iter::once(&self.text).chain(self.chips.iter().map(|(text, _)| text));
        let parts = parts.chain(self.links.iter().map(|(text, _)| text));
        parts.map(|it| it.to_string().to_lowercase()).collect::<Vec<_>>().join(" ").trim().to_owned()
    }

    /// Classes of the element.
    pub(crate) fn class(&self) -> String {
        let class = |is: bool, class| if is { class } else { "" };
        let none = self.tone == Tone::Dim && self.text.to_string() == "–";
        [self.tone.class(), class(self.mono, "mono"), class(self.line, "line"), class(none, "none")]
            .iter()
            .filter(|it| !it.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" ")
    }
}
