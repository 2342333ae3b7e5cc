//! The page of a group: its pending entries, its newest dead letters, and the full content of the one with the
//! cursor.

use millstream::admin::PendingEntry;
use millstream::{DeadLetter, GroupName, Limits, TopicName};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use crate::commands::top::text;
use crate::commands::top::view::ThemeLook;
use crate::commands::top::view::TopShown;
use crate::commands::top::view::grid::{Column, Field, Grid};
use crate::human;

const PENDING: [Column; 5] = [
    Column::text("MESSAGE", 20, 0),
    Column::number("PARTITION", 9, 2),
    Column::number("IDLE", 7, 1),
    Column::number("DELIVERIES", 10, 3),
    Column::rest("CONSUMER", 20, 4),
];

const DEAD: [Column; 6] = [
    Column::text("DIED (UTC)", 14, 0),
    Column::text("MESSAGE", 20, 5),
    Column::number("PARTITION", 9, 4),
    Column::number("ATTEMPTS", 8, 3),
    Column::text("REASON", 12, 2),
    Column::rest("ERROR", 20, 1),
];

/// Maximum number of characters shown of a payload.
const PAYLOAD: usize = 1_000;

impl TopShown<'_> {
    pub(super) fn group(self, frame: &mut Frame<'_>, area: Rect, topic: &TopicName, group: &GroupName) {
        let messages = self.model.detail_of(topic, group).and_then(|it| it.messages.as_ref());
        let letter = if area.height >= 16 { (area.height / 4).min(8) } else { 0 };
        let all = [Constraint::Fill(1), Constraint::Fill(1), Constraint::Length(letter)];
        let [above, middle, below] = Layout::vertical(all).areas(area);
        let (pending, more, letters) = match messages {
            Some((page, letters)) => (page.entries.as_slice(), page.next.is_some(), letters.as_slice()),
            None => (&[][..], false, &[][..]),
        };
        let of = self.model.topic(topic);
        let totals =
            of.as_ref().and_then(|it| it.groups.iter().find(|it| it.group == group)).map(|it| it.totals);
        let asking = |empty| if messages.is_some() { empty } else { "Asking …" };
        let few = if more { format!("the oldest {} of ", pending.len()) } else { String::new() };
        let count = totals.map_or_else(String::new, |it| format!("{few}{}", human::known(it.pending)));
        let grid = Grid {
            title: self.title(format!("Pending of {topic} / {group}"), count),
            columns: &PENDING,
            row: &|at| of_pending(&pending[at]),
            rows: pending.len(),
            cursor: Some((self.state.rows[0], !self.state.second)),
            empty: asking("Nothing is pending"),
        };
        grid.draw(frame, above, self.theme);
        let few = match totals {
            Some(totals) if totals.dead > Some(letters.len() as u64) => {
                format!("the newest {} of ", letters.len())
            }
            _ => String::new(),
        };
        let count = totals.map_or_else(String::new, |it| format!("{few}{}", human::known(it.dead)));
        let grid = Grid {
            title: self.title("Dead letters", count),
            columns: &DEAD,
            row: &|at| of_letter(&letters[at]),
            rows: letters.len(),
            cursor: Some((self.state.rows[1], self.state.second)),
            empty: asking("There is no dead letter"),
        };
        grid.draw(frame, middle, self.theme);
        if below.height > 0 && !letters.is_empty() {
            self.letter(frame, below, &letters[self.state.rows[1].min(letters.len() - 1)]);
        }
    }

    fn letter(&self, frame: &mut Frame<'_>, area: Rect, letter: &DeadLetter) {
        let block = Block::new()
            .borders(Borders::TOP)
            .border_style(self.theme.style(ThemeLook::Faint))
            .title(self.title(format!("Dead letter {}", letter.id), ""));
        let name = |name: &'static str| Span::styled(name, self.theme.style(ThemeLook::Faint));
        let mut lines = vec![Line::from_iter([name(" error    "), Span::raw(text::clean(&letter.error))])];
        match letter.envelope(&Limits::NONE) {
            Ok(message) => {
                let shown =
                    |bytes: &[u8]| text::clean(&String::from_utf8_lossy(&bytes[..bytes.len().min(PAYLOAD)]));
                if let Some(key) = &message.key {
                    lines.push(Line::from_iter([name(" key      "), Span::raw(shown(key))]));
                }
                lines.push(Line::from_iter([name(" payload  "), Span::raw(shown(&message.payload))]));
            }
            Err(error) => {
                lines.push(Line::from_iter([
                    name(" no message: "),
                    Span::raw(text::clean(&error.to_string())),
                ]));
            }
        }
        frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), area);
    }
}

fn of_pending(entry: &PendingEntry) -> Vec<Field> {
    let pending = &entry.pending;
    vec![
        (pending.id.to_string(), ThemeLook::Name),
        (entry.topic_partition.partition.0.to_string(), ThemeLook::Plain),
        (text::age(pending.idle), ThemeLook::Plain),
        (
            human::count(pending.deliveries),
            if pending.deliveries > 1 { ThemeLook::Doubtful } else { ThemeLook::Plain },
        ),
        (text::clean(&pending.consumer), ThemeLook::Plain),
    ]
}

fn of_letter(letter: &DeadLetter) -> Vec<Field> {
    vec![
        (text::moment(letter.id.timestamp()), ThemeLook::Name),
        (letter.origin.to_string(), ThemeLook::Plain),
        (letter.topic_partition.partition.0.to_string(), ThemeLook::Plain),
        (human::count(letter.attempts.into()), ThemeLook::Plain),
        (text::clean(letter.reason.as_str()), ThemeLook::Doubtful),
        (text::clean(&letter.error), ThemeLook::Plain),
    ]
}
