//! The styles. Only the sixteen colours that every terminal has, in the shades of its user; without colours, other
//! attributes distinguish the styles.

use ratatui::style::{Color, Modifier, Style};

/// The meaning of a text, which determines its style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Look {
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
    pub(crate) fn style(self, look: Look) -> Style {
        let style = Style::new();
        let coloured = |colour| if self.colours { style.fg(colour) } else { style };
        match look {
            Look::Plain => style,
            Look::Faint if self.colours => style.fg(Color::DarkGray),
            Look::Faint => style.add_modifier(Modifier::DIM),
            Look::Name => style.add_modifier(Modifier::BOLD),
            Look::Title => coloured(Color::Cyan).add_modifier(Modifier::BOLD),
            Look::Good => coloured(Color::Green),
            Look::Doubtful => coloured(Color::Yellow),
            Look::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
            Look::Cursor if self.colours => style.fg(Color::Black).bg(Color::Cyan),
            Look::Cursor => style.add_modifier(Modifier::REVERSED),
        }
    }
}
