//! The styles. Only the sixteen colours that every terminal has, in the shades of its user; without colours, other
//! attributes distinguish the styles.

use ratatui::style::{Color, Modifier, Style};

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
