//! Draws the model and the state. This module makes no decisions, sends no queries and keeps no state.

mod grid;
mod group;
mod head;
mod help;
mod theme;
mod topic;
mod topics;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use crate::commands::top::model::Model;
use crate::commands::top::state::{State, TopPage};
use theme::ThemeLook;

pub(crate) use theme::Theme;
pub(crate) use topics::table;

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
        let all = Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]);
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
}
