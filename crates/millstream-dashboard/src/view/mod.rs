//! A page as a value: its parts are filled by `pages`, and one template writes them as HTML.

pub(crate) mod arrange;
pub(crate) mod cell;
pub(crate) mod chart;
pub(crate) mod form;
pub(crate) mod format;
pub(crate) mod href;
pub(crate) mod json;
pub(crate) mod text;

use std::time::SystemTime;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use millstream::Timestamp;

use crate::{assets, paths};
use arrange::{Find, SortOrder};
use cell::{Cell, Tone};
use chart::Lines;
use form::{Form, Input};
use href::Href;
use text::Text;

/// Column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) title: Text,
    /// Whether it has numbers, which are aligned to the right.
    pub(crate) number: bool,
    /// Link that sorts by it.
    pub(crate) sort: Option<Href>,
    /// Order that the rows have by it.
    pub(crate) order: Option<SortOrder>,
}

impl Column {
    /// A column whose title starts with `>` has numbers.
    fn new(title: &str) -> Self {
        let (title, number) = title.strip_prefix('>').map_or((title, false), |title| (title, true));
        Self { title: title.into(), number, sort: None, order: None }
    }
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
    /// Before the names of its parameters in the query, if it is not the only table of a page.
    pub(crate) name: &'static str,
    /// Number of rows of a page; 0 shows all.
    pub(crate) paged: usize,
    /// Whether its rows can be filtered by what they show.
    pub(crate) filters: bool,
    pub(crate) find: Option<Find>,
    /// Form that is sent with the rows that are checked.
    pub(crate) pick: Option<Pick>,
}

impl Table {
    /// Creates a table. A column whose title starts with `>` has numbers.
    pub(crate) fn new(title: impl Into<String>, columns: &[&str], empty: impl Into<String>) -> Self {
        let columns = columns.iter().map(|title| Column::new(title)).collect();
        Self { title: title.into(), columns, empty: empty.into(), filters: true, ..Self::default() }
    }

    /// Sets the name that its parameters have in the query.
    pub(crate) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Shows so many rows on a page.
    pub(crate) fn paged(self, paged: usize) -> Self {
        Self { paged, ..self }
    }

    pub(crate) fn rows(self, rows: impl IntoIterator<Item = Vec<Cell>>) -> Self {
        Self { rows: rows.into_iter().collect(), ..self }
    }

    /// Returns whether it is too wide for a telephone, where its rows are cards then: numbers need little space, texts much.
    pub(crate) fn is_wide(&self) -> bool {
        self.columns.len() > 4 || self.columns.iter().filter(|column| !column.number).count() > 1
    }

    /// Adds a column. If its title starts with `>`, it has numbers.
    pub(crate) fn column(&mut self, title: &str) {
        self.columns.push(Column::new(title));
    }

    /// Adds a sentence to its note.
    pub(crate) fn note(self, note: impl Into<Text>) -> Self {
        let note: Text = note.into();
        let note =
            self.note.as_ref().map_or_else(|| note.clone(), |before| format!("{before}. {note}").into());
        Self { note: Some(note), ..self }
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
    /// Figures of which each is large.
    Tiles(Vec<(&'static str, Cell)>),
    /// Lines over the same time.
    Lines(Lines),
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
    /// Buttons and links for what the page is about, under its title.
    pub(crate) actions: Cell,
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

    /// Returns the worst of what it shows as a state: its notices and chips.
    fn worst(&self) -> Tone {
        let of_cell = |cell: &Cell| if cell.chips.is_empty() { Tone::Plain } else { cell.worst() };
        let of_part = |part: &Part| match part {
            Part::Notice { tone, .. } => *tone,
            Part::Table(table) => table.rows.iter().flatten().map(of_cell).max().unwrap_or_default(),
            Part::Facts { rows, .. } => rows.iter().map(|(_, cell)| of_cell(cell)).max().unwrap_or_default(),
            _ => Tone::Plain,
        };
        self.parts.iter().map(of_part).max().unwrap_or_default()
    }
}

/// Buttons beside the check boxes of a table.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    /// Name under which each row that is checked sends its value.
    pub(crate) name: &'static str,
    /// Label, where it leads, and whether something is lost.
    pub(crate) buttons: Vec<(&'static str, Href, bool)>,
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
    /// Text in the field of the search.
    pub(crate) wanted: String,
}

#[derive(Template)]
#[template(path = "page.html")]
struct Whole<'a> {
    page: &'a Page,
    frame: &'a Frame,
    style: String,
    script: String,
    now: Timestamp,
    find: Href,
}

impl Whole<'_> {
    fn to(&self, href: &Href) -> String {
        href.at_depth(self.frame.depth)
    }

    fn ago(&self, time: &Timestamp) -> String {
        format::ago(*time, self.now)
    }

    /// Mark before the title, and colour of the icon.
    fn worst(&self) -> (&'static str, &'static str) {
        match self.page.worst() {
            Tone::Bad => ("✖ ", "c4281c"),
            Tone::Warn => ("▲ ", "b26a00"),
            _ => ("", "0b6e6e"),
        }
    }
}

/// Writes a page as HTML.
pub(crate) fn render(page: &Page, frame: &Frame) -> Response {
    let asset = |asset: &assets::Asset| Href::of("/assets/{name}", &[asset.name()]).at_depth(frame.depth);
    let (style, script) = (asset(assets::style()), asset(assets::script()));
    let (now, find) = (Timestamp::from(SystemTime::now()), Href::of(paths::FIND, &[]));
    let whole = Whole { page, frame, style, script, now, find };
    match whole.render() {
        Ok(html) => (page.status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_and_the_icon_have_the_worst_state() {
        let table = |tone| Table::new("Groups", &["State"], "").rows([vec![Cell::chip("state", tone)]]);
        let html = |page: &Page| {
            let (style, script, now, find) =
                (String::new(), String::new(), Timestamp::from_millis(0), Href::default());
            let frame = Frame::default();
            Whole { page, frame: &frame, style, script, now, find }.render().expect("a page")
        };
        for (tone, title) in [(Tone::Good, "Overview"), (Tone::Warn, "▲ Overview"), (Tone::Bad, "✖ Overview")]
        {
            let html = html(&Page::new("Overview").table(table(Tone::Good)).table(table(tone)));
            assert!(html.contains(&format!("<title>{title} · Millstream</title>")), "{html}");
            let colour = if tone == Tone::Bad { "%23c4281c" } else { "" };
            assert!(html.contains(&format!("fill='{colour}")), "{html}");
        }
        let mut page = Page::new("Group");
        page.push(Part::notice(Tone::Bad, "no consumer runs"));
        assert_eq!(page.worst(), Tone::Bad);
    }
}
