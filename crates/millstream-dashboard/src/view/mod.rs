//! A page as a value: its parts are filled by `pages`, and one template writes them as HTML.

pub(crate) mod cell;
pub(crate) mod chart;
pub(crate) mod form;
pub(crate) mod format;
pub(crate) mod href;
pub(crate) mod json;
pub(crate) mod text;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use crate::assets;
use cell::{Cell, Tone};
use form::{Form, Input};
use href::Href;
use text::Text;

/// Column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) title: Text,
    /// Whether it has numbers, which are aligned to the right.
    pub(crate) number: bool,
}

/// Table of a page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) note: Option<Text>,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Text if there is no row.
    pub(crate) empty: String,
    pub(crate) links: Vec<(Text, Href)>,
}

impl Table {
    /// Creates a table. A column whose title starts with `>` has numbers.
    pub(crate) fn new(title: impl Into<String>, columns: &[&str], empty: impl Into<String>) -> Self {
        let columns = columns.iter().map(|title| match title.strip_prefix('>') {
            Some(title) => Column { title: title.into(), number: true },
            None => Column { title: (*title).into(), number: false },
        });
        let (title, columns, empty) = (title.into(), columns.collect(), empty.into());
        Self { title, columns, empty, ..Self::default() }
    }

    pub(crate) fn rows(self, rows: impl IntoIterator<Item = Vec<Cell>>) -> Self {
        Self { rows: rows.into_iter().collect(), ..self }
    }

    /// Returns whether it is too wide for a telephone, where its rows are cards then: numbers need little space, texts much.
    pub(crate) fn is_wide(&self) -> bool {
        self.columns.len() > 4 || self.columns.iter().filter(|column| !column.number).count() > 1
    }

    /// Adds a column with numbers.
    pub(crate) fn column(&mut self, title: impl Into<Text>) {
        self.columns.push(Column { title: title.into(), number: true });
    }

    pub(crate) fn note(self, note: impl Into<Text>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    pub(crate) fn link(mut self, text: impl Into<Text>, href: Href) -> Self {
        self.links.push((text.into(), href));
        self
    }
}

/// Part of a page.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Notice {
        tone: Tone,
        text: Text,
    },
    Facts {
        title: String,
        rows: Vec<(String, Cell)>,
    },
    Table(Table),
    Form(Form),
    /// Text as it is stored.
    Code {
        title: String,
        text: Text,
    },
    Links(Vec<(Text, Href)>),
}

impl Part {
    pub(crate) fn notice(tone: Tone, text: impl Into<Text>) -> Self {
        Self::Notice { tone, text: text.into() }
    }

    pub(crate) fn facts(title: impl Into<String>, rows: Vec<(&str, Cell)>) -> Self {
        let rows = rows.into_iter().map(|(name, cell)| (name.to_owned(), cell)).collect();
        Self::Facts { title: title.into(), rows }
    }
}

/// A page of the dashboard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) title: Text,
    /// Pages above this one.
    pub(crate) crumbs: Vec<(Text, Href)>,
    /// Pages beside this one; the one without a link is this page.
    pub(crate) tabs: Vec<(&'static str, Option<Href>)>,
    pub(crate) parts: Vec<Part>,
    /// Whether the script fetches it again from time to time.
    pub(crate) live: bool,
    pub(crate) status: StatusCode,
}

impl Page {
    pub(crate) fn new(title: impl Into<Text>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    pub(crate) fn live(self) -> Self {
        Self { live: true, ..self }
    }

    pub(crate) fn crumb(mut self, text: impl Into<Text>, href: Href) -> Self {
        self.crumbs.push((text.into(), href));
        self
    }

    pub(crate) fn push(&mut self, part: Part) {
        self.parts.push(part);
    }

    pub(crate) fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    pub(crate) fn table(self, table: Table) -> Self {
        self.with(Part::Table(table))
    }
}

/// What every page has around its content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    /// Number of slashes in the path of the page.
    pub(crate) depth: usize,
    /// Name of the user.
    pub(crate) user: Text,
    /// Words for what the user may do.
    pub(crate) may: &'static str,
    /// Pages that the user may see, and whether it is this one.
    pub(crate) nav: Vec<(&'static str, Href, bool)>,
}

#[derive(Template)]
#[template(path = "page.html")]
struct Whole<'a> {
    page: &'a Page,
    frame: &'a Frame,
    style: String,
    script: String,
}

impl Whole<'_> {
    fn to(&self, href: &Href) -> String {
        href.at_depth(self.frame.depth)
    }
}

/// Writes a page as HTML.
pub(crate) fn render(page: &Page, frame: &Frame) -> Response {
    let asset = |asset: &assets::Asset| Href::of("/assets/{name}", &[asset.name()]).at_depth(frame.depth);
    let whole = Whole { page, frame, style: asset(assets::style()), script: asset(assets::script()) };
    match whole.render() {
        Ok(html) => (page.status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
