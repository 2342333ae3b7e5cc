//! The keys and the columns, over everything else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::commands::top::view::TopShown;
use crate::commands::top::view::theme::ThemeLook;

const KEYS: [(&str, &str); 12] = [
    ("↑ ↓ j k", "move; PgUp PgDn Home End go further"),
    ("Enter", "inspect: topic, then messages of a group"),
    ("Esc", "back"),
    ("Tab", "the other list of a page"),
    ("s S", "sort by another column; turn it round"),
    ("/", "show topics and groups of some name"),
    ("Space", "freeze, and go on"),
    ("p", "pause a group, or let it go on"),
    ("^L", "draw anew"),
    ("q", "quit"),
    ("", ""),
    ("?", "not known: the server has lost count"),
];

const COLUMNS: [&str; 4] = [
    "IN/S     appended per second, over 5 s",
    "OUT/S    handled, or dead, per second",
    "LAG      never handed out to the group",
    "PENDING  handed out, not settled",
];

impl TopShown<'_> {
    pub(super) fn help(self, frame: &mut Frame<'_>, area: Rect) {
        let height = u16::try_from(KEYS.len() + COLUMNS.len() + 2).unwrap_or(u16::MAX);
        let [middle] = Layout::horizontal([Constraint::Max(56)]).flex(Flex::Center).areas(area);
        let [window] = Layout::vertical([Constraint::Max(height)]).flex(Flex::Center).areas(middle);
        let keys = KEYS.iter().map(|(key, does)| {
            Line::from_iter([
                Span::styled(format!(" {key:<8} "), self.theme.style(ThemeLook::Title)),
                Span::raw(*does),
            ])
        });
        let columns = COLUMNS.iter().map(|column| Line::raw(format!(" {column}")));
        let block = Block::bordered().title(" Help ").border_style(self.theme.style(ThemeLook::Title));
        frame.render_widget(Clear, window);
        frame.render_widget(Paragraph::new(keys.chain(columns).collect::<Vec<_>>()).block(block), window);
    }
}
