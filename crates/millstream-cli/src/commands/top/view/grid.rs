//! A list in columns under a title: as many columns as fit, and the rows around the cursor.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Row, Table, TableState};

use crate::commands::top::text;
use crate::commands::top::view::{Theme, ThemeLook};

/// A column. The columns of the lowest rank are kept longest where space is short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// The width; for the column that takes the remaining width, the minimum.
    pub(crate) width: u16,
    pub(crate) rank: u8,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    /// Takes the remaining width; every grid has one such column.
    Rest,
}

impl Column {
    pub(crate) const fn text(title: &'static str, width: u16, rank: u8) -> Self {
        Self { title, width, rank, kind: Kind::Text }
    }

    pub(crate) const fn number(title: &'static str, width: u16, rank: u8) -> Self {
        Self { title, width, rank, kind: Kind::Number }
    }

    pub(crate) const fn rest(title: &'static str, width: u16, rank: u8) -> Self {
        Self { title, width, rank, kind: Kind::Rest }
    }
}

/// The content of a cell.
pub(crate) type Field = (String, ThemeLook);

/// Dims zeros.
pub(crate) fn number(text: String, look: ThemeLook) -> Field {
    let nothing = matches!(text.as_str(), "0" | "-" | "");
    (text, if nothing { ThemeLook::Faint } else { look })
}

/// The content of a grid.
pub(crate) struct Grid<'a> {
    pub(crate) title: Line<'a>,
    pub(crate) columns: &'a [Column],
    /// Returns the fields of a row, in the order of columns.
    pub(crate) row: &'a dyn Fn(usize) -> Vec<Field>,
    pub(crate) rows: usize,
    /// The row of the cursor, and whether keys move it.
    pub(crate) cursor: Option<(usize, bool)>,
    /// The text shown if there are no rows.
    pub(crate) empty: &'a str,
}

impl Grid<'_> {
    pub(crate) fn draw(self, frame: &mut Frame<'_>, area: Rect, theme: Theme) {
        let block = Block::new()
            .borders(Borders::TOP)
            .border_style(theme.style(ThemeLook::Faint))
            .title(self.title)
            .title_alignment(Alignment::Left);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        if self.rows == 0 {
            let [line, _] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inside);
            frame
                .render_widget(Line::styled(format!(" {}", self.empty), theme.style(ThemeLook::Faint)), line);
            return;
        }
        let kept = fit(self.columns, inside.width);
        let visible = usize::from(inside.height.saturating_sub(1));
        let at = self.cursor.map_or(0, |(at, _)| at.min(self.rows - 1));
        let first = first(at, visible, self.rows);
        let kept = widths(self.columns, kept, inside.width);
        let shown = |mut fields: Vec<Field>| {
            let mut after_number = false;
            let cells = kept.iter().map(|(at, width)| {
                let field = fields.get_mut(*at).map(std::mem::take).unwrap_or_default();
                let kind = self.columns[*at].kind;
                let apart = after_number && kind != Kind::Number;
                after_number = kind == Kind::Number;
                cell(kind, usize::from(*width), apart, field, theme)
            });
            Row::new(cells.collect::<Vec<_>>())
        };
        let rows = (first..self.rows.min(first + visible)).map(|number| shown((self.row)(number)));
        let titles = self.columns.iter().map(|column| (column.title.to_owned(), ThemeLook::Title)).collect();
        let constraints = kept.iter().map(|(_, width)| Constraint::Length(*width));
        let table = Table::new(rows, constraints).header(shown(titles)).column_spacing(1);
        let table = match self.cursor {
            Some((_, true)) => table.row_highlight_style(theme.style(ThemeLook::Cursor)),
            Some((_, false)) => table.row_highlight_style(theme.style(ThemeLook::Name)),
            None => table,
        };
        let mut state = TableState::default().with_selected(self.cursor.map(|_| at - first));
        frame.render_stateful_widget(table, inside, &mut state);
    }
}

/// Formats a cell. Text that is too long is cut, with a mark. After a number, it is a little further apart.
fn cell<'a>(kind: Kind, width: usize, apart: bool, (text, look): Field, theme: Theme) -> Cell<'a> {
    let gap = if apart { " " } else { "" };
    let text = format!("{gap}{}", text::fit(&text, width.saturating_sub(gap.len())));
    let line = Line::from(Span::styled(text, theme.style(look)));
    Cell::from(if kind == Kind::Number { line.alignment(Alignment::Right) } else { line })
}

/// Returns the width of each of these columns.
fn widths(columns: &[Column], kept: Vec<usize>, width: u16) -> Vec<(usize, u16)> {
    let taken: u16 = kept.iter().map(|at| columns[*at].width + 1).sum();
    let left = (width + 1).saturating_sub(taken);
    let wide = |at: usize| match columns[at].kind {
        Kind::Rest => columns[at].width + left,
        Kind::Text | Kind::Number => columns[at].width,
    };
    kept.into_iter().map(|at| (at, wide(at))).collect()
}

/// Returns the columns that fit, in their order.
fn fit(columns: &[Column], width: u16) -> Vec<usize> {
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|column| columns[*column].rank);
    let mut left = i32::from(width) + 1;
    let mut kept = Vec::new();
    for column in by_rank {
        let needs = i32::from(columns[column].width) + 1;
        // The first column is always shown, cut off if necessary.
        if needs > left && !kept.is_empty() {
            break;
        }
        left -= needs;
        kept.push(column);
    }
    kept.sort_unstable();
    kept
}

/// Returns the first visible row, such that the cursor is visible, and in the middle if possible.
fn first(cursor: usize, visible: usize, rows: usize) -> usize {
    cursor.saturating_sub(visible / 2).min(rows.saturating_sub(visible))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::rest("NAME", 10, 0),
        Column::number("A", 5, 2),
        Column::number("B", 5, 1),
        Column::text("C", 5, 3),
    ];

    #[test]
    fn columns_go_by_rank_and_stay_in_order() {
        assert_eq!(fit(&COLUMNS, 28), [0, 1, 2, 3]);
        assert_eq!(fit(&COLUMNS, 27), [0, 1, 2]);
        assert_eq!(fit(&COLUMNS, 21), [0, 2]);
        assert_eq!(fit(&COLUMNS, 15), [0]);
        assert_eq!(fit(&COLUMNS, 0), [0]);
    }

    #[test]
    fn the_cursor_is_seen() {
        for (cursor, visible, rows, expected) in [
            (0, 10, 100, 0),
            (4, 10, 100, 0),
            (50, 10, 100, 45),
            (99, 10, 100, 90),
            (3, 10, 5, 0),
            (3, 0, 5, 3),
        ] {
            assert_eq!(first(cursor, visible, rows), expected, "{cursor} of {rows} in {visible}");
        }
    }
}
