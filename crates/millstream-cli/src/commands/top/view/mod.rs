//! Draws the model and the state. This module makes no decisions, sends no queries and keeps no state.

mod grid;
mod group;
mod head;
mod topic;
mod topics;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::commands::top::model::Model;
use crate::commands::top::state::{State, TopPage};

pub(crate) use head::due;
pub(crate) use topics::table;

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

/// The input of drawing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopShown<'a> {
    pub(crate) model: &'a Model,
    pub(crate) state: &'a State,
    /// The current time, since the start of the screen.
    pub(crate) now: Duration,
    /// The time without a reply after which the screen reports it.
    pub(crate) stale_after: Duration,
    pub(crate) theme: Theme,
}

impl TopShown<'_> {
    /// Draws the screen, at any size.
    pub(crate) fn draw(self, frame: &mut Frame<'_>) {
        let head = if self.others().is_some() { 3 } else { 2 };
        let all = Layout::vertical([Constraint::Length(head), Constraint::Fill(1), Constraint::Length(1)]);
        let [head, body, foot] = all.areas(frame.area());
        self.head(frame, head);
        match &self.state.page {
            TopPage::Topics => self.topics(frame, body),
            TopPage::Topic { topic, group } => self.topic(frame, body, topic, group.as_ref()),
            TopPage::Group { topic, group } => self.group(frame, body, topic, group),
        }
        self.foot(frame, foot);
        if self.state.help {
            self.help(frame, body);
        }
    }

    /// Draws the keys, the confirmation prompt, or the input.
    fn foot(self, frame: &mut Frame<'_>, area: Rect) {
        if let Some(order) = &self.state.asked {
            let what = if order.pause { "Pause" } else { "Resume" };
            let asks = format!(" {what} {} of {}, for all its consumers? ", order.group, order.topic);
            let spans = [
                Span::styled(asks, self.theme.style(ThemeLook::Doubtful)),
                Span::styled(" y ", self.theme.style(ThemeLook::Cursor)),
                Span::raw(" yes, anything else no"),
            ];
            frame.render_widget(Line::from_iter(spans), area);
            return;
        }
        if self.state.typing {
            let spans = [
                Span::styled(" filter: ", self.theme.style(ThemeLook::Title)),
                Span::raw(crate::commands::top::text::clean(&self.state.filter)),
                Span::styled("█", self.theme.style(ThemeLook::Faint)),
                Span::styled("   Enter keeps it, Esc clears it", self.theme.style(ThemeLook::Faint)),
            ];
            frame.render_widget(Line::from_iter(spans), area);
            return;
        }
        let keys: &[(&str, &str)] = match self.state.page {
            TopPage::Topics => &[
                ("q", "quit"),
                ("?", "help"),
                ("Enter", "inspect"),
                ("s", "sort"),
                ("/", "filter"),
                ("Space", "freeze"),
                ("p", "pause"),
            ],
            TopPage::Topic { .. } => &[
                ("Esc", "back"),
                ("?", "help"),
                ("Enter", "messages"),
                ("Tab", "other list"),
                ("Space", "freeze"),
                ("q", "quit"),
            ],
            TopPage::Group { .. } => {
                &[("Esc", "back"), ("?", "help"), ("Tab", "other list"), ("Space", "freeze"), ("q", "quit")]
            }
        };
        let spans = keys.iter().flat_map(|(key, does)| {
            let key = Span::styled(format!(" {key} "), self.theme.style(ThemeLook::Cursor));
            [key, Span::raw(format!(" {does} "))]
        });
        frame.render_widget(Line::from_iter(spans), area);
    }

    /// Returns the title of a list.
    fn title<'a>(self, name: impl Into<String>, rest: impl Into<String>) -> Line<'a> {
        let (name, rest) = (name.into(), rest.into());
        let name = Span::styled(format!("─ {name} "), self.theme.style(ThemeLook::Title));
        let rest = if rest.is_empty() { rest } else { format!("· {rest} ") };
        Line::from_iter([name, Span::styled(rest, self.theme.style(ThemeLook::Faint))])
    }

    fn help(self, frame: &mut Frame<'_>, area: Rect) {
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

/// The meaning of a text, which determines its style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ThemeLook {
    #[default]
    Plain,
    /// Unimportant: zeros, rules, hints.
    Faint,
    /// A name.
    Name,
    Title,
    Good,
    Doubtful,
    Bad,
    /// The line with the cursor, in the list that has the focus.
    Cursor,
}

/// Whether colours are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) colours: bool,
}

impl Theme {
    pub(crate) fn style(self, look: ThemeLook) -> Style {
        let style = Style::new();
        let coloured = |colour| if self.colours { style.fg(colour) } else { style };
        match look {
            ThemeLook::Plain => style,
            ThemeLook::Faint if self.colours => style.fg(Color::DarkGray),
            ThemeLook::Faint => style.add_modifier(Modifier::DIM),
            ThemeLook::Name => style.add_modifier(Modifier::BOLD),
            ThemeLook::Title => coloured(Color::Cyan).add_modifier(Modifier::BOLD),
            ThemeLook::Good => coloured(Color::Green),
            ThemeLook::Doubtful => coloured(Color::Yellow),
            ThemeLook::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
            ThemeLook::Cursor if self.colours => style.fg(Color::Black).bg(Color::Cyan),
            ThemeLook::Cursor => style.add_modifier(Modifier::REVERSED),
        }
    }
}
