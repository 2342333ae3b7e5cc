//! Cells of tables and lists of facts.

use std::time::Duration;

use millstream::Timestamp;

use super::chart::Chart;
use super::form::Button;
use super::format;
use super::href::Href;
use super::text::Text;

/// How a value stands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// A time, which the script also shows in the local zone.
    pub(crate) time: Option<String>,
    /// Whether every character counts: an id, a key, a payload.
    pub(crate) mono: bool,
    pub(crate) chart: Option<Chart>,
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
        Self::text(format::duration(time))
    }

    pub(crate) fn duration_or_none(time: Option<Duration>) -> Self {
        time.map_or_else(Self::none, Self::duration)
    }

    pub(crate) fn bytes(number: u64) -> Self {
        Self::text(format::bytes(number))
    }

    /// A time in UTC, with milliseconds.
    pub(crate) fn time(time: Timestamp) -> Self {
        Self { text: format::time(time).into(), time: Some(time.to_string()), ..Self::default() }
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

    pub(crate) fn to(self, href: Href) -> Self {
        Self { href: Some(href), ..self }
    }

    pub(crate) fn and_links(self, links: Vec<(Text, Href)>) -> Self {
        Self { links, ..self }
    }

    /// Classes of the element.
    pub(crate) fn class(&self) -> String {
        let mono = if self.mono { "mono" } else { "" };
        [self.tone.class(), mono].iter().filter(|it| !it.is_empty()).copied().collect::<Vec<_>>().join(" ")
    }
}
