//! The state of the screen, and its transitions. Pure: a key and the model determine a new state and perhaps an
//! effect.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use millstream::{GroupName, TopicName};

use crate::commands::top::model::{Focus, Model, Order};
use crate::commands::top::rows::{self, Place, TopLine, TopSort};

/// Number of rows of a page for page-up and page-down.
const PAGE: usize = 10;

/// The page that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TopPage {
    /// All topics.
    #[default]
    Topics,
    /// A topic: its groups, and the partitions of one of them.
    Topic { topic: TopicName, group: Option<GroupName> },
    /// A group: its pending entries and its dead letters.
    Group { topic: TopicName, group: GroupName },
}

/// An action that follows from a key, other than drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    Quit,
    /// Execute this confirmed order.
    Order(Order),
    /// Redraw the whole screen, since another program has written on it.
    Redraw,
}

/// The state of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) page: TopPage,
    /// The line of the cursor on the first page. Stored as a place, not as a number, since lines change their order.
    pub(crate) at: Option<Place>,
    /// Whether the second of the two lists on the other pages has the cursor. `rows` has its position in each.
    pub(crate) second: bool,
    pub(crate) rows: [usize; 2],
    pub(crate) sort: TopSort,
    pub(crate) reversed: bool,
    pub(crate) filter: String,
    /// Whether keys are input for the filter.
    pub(crate) typing: bool,
    pub(crate) frozen: bool,
    pub(crate) help: bool,
    /// The order that waits for confirmation.
    pub(crate) asked: Option<Order>,
}

impl State {
    /// Handles a key.
    pub(crate) fn press(&mut self, key: KeyEvent, model: &Model) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Effect::Quit,
                KeyCode::Char('l') => Effect::Redraw,
                _ => Effect::Nothing,
            };
        }
        if let Some(order) = self.asked.take() {
            return if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                Effect::Order(order)
            } else {
                Effect::Nothing
            };
        }
        if self.typing {
            self.type_filter(key.code);
            return Effect::Nothing;
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') { Effect::Quit } else { Effect::Nothing };
        }
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Char(' ') => self.frozen = !self.frozen,
            KeyCode::Up | KeyCode::Char('k') => self.go(model, |at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(model, |at, _| at + 1),
            KeyCode::PageUp => self.go(model, |at, _| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.go(model, |at, _| at + PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.go(model, |_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.go(model, |_, last| last),
            KeyCode::Tab | KeyCode::BackTab if self.page != TopPage::Topics => self.second = !self.second,
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.enter(model),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('h') => self.leave(model),
            KeyCode::Char('s') if self.page == TopPage::Topics => self.sort = self.sort.next(),
            KeyCode::Char('S') if self.page == TopPage::Topics => self.reversed = !self.reversed,
            KeyCode::Char('p') => self.asked = self.pause_or_resume(model),
            KeyCode::Char('/') if self.page == TopPage::Topics => self.typing = true,
            _ => {}
        }
        Effect::Nothing
    }

    /// Returns the order that `p` would give for the group with the cursor; `None` on a topic's line.
    fn pause_or_resume(&self, model: &Model) -> Option<Order> {
        let (topic, group) = match &self.page {
            TopPage::Topics => {
                let lines = self.lines(model);
                let place = lines.get(self.line(&lines)).map(TopLine::place)?;
                (place.topic, place.group?)
            }
            TopPage::Topic { topic, group } => group_of(model, topic, group.as_ref())?,
            TopPage::Group { topic, group } => (topic.clone(), group.clone()),
        };
        let groups = model.topic(&topic)?.groups;
        let pause = !groups.iter().find(|it| *it.group == group)?.paused;
        Some(Order { topic, group, pause })
    }

    /// Returns the details that the current page needs.
    pub(crate) fn focus(&self, model: &Model) -> Focus {
        match &self.page {
            TopPage::Topics => {
                let lines = self.lines(model);
                let place = lines.get(self.line(&lines)).map(TopLine::place);
                Focus {
                    group: place.and_then(|it| group_of(model, &it.topic, it.group.as_ref())),
                    messages: false,
                }
            }
            TopPage::Topic { topic, group } => {
                Focus { group: group_of(model, topic, group.as_ref()), messages: false }
            }
            TopPage::Group { topic, group } => {
                Focus { group: Some((topic.clone(), group.clone())), messages: true }
            }
        }
    }

    /// Returns the lines of the first page.
    pub(crate) fn lines<'a>(&self, model: &'a Model) -> Vec<TopLine<'a>> {
        rows::lines(model, self.sort, self.reversed, &self.filter)
    }

    /// Returns the index of the line with the cursor, or the line of its topic if it no longer exists.
    pub(crate) fn line(&self, lines: &[TopLine<'_>]) -> usize {
        let Some(at) = &self.at else { return 0 };
        let same = lines.iter().position(|line| line.place() == *at);
        same.or_else(|| lines.iter().position(|line| line.place().topic == at.topic)).unwrap_or(0)
    }

    /// Returns the position of the cursor in its list.
    pub(crate) fn row(&self) -> usize {
        self.rows[usize::from(self.second)]
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            _ => {}
        }
    }

    /// Moves the cursor: `to` receives its position and the last row.
    fn go(&mut self, model: &Model, to: impl Fn(usize, usize) -> usize) {
        if self.page == TopPage::Topics {
            let lines = self.lines(model);
            let last = lines.len().saturating_sub(1);
            self.at = lines.get(to(self.line(&lines), last).min(last)).map(TopLine::place);
            return;
        }
        let last = self.length(model).saturating_sub(1);
        let row = to(self.row().min(last), last).min(last);
        self.rows[usize::from(self.second)] = row;
        if let (TopPage::Topic { topic, group }, false) = (&mut self.page, self.second) {
            let groups = model.topic(topic).map(|it| it.groups).unwrap_or_default();
            *group = groups.get(row).map(|it| it.group.clone());
            self.rows[1] = 0;
        }
    }

    /// Returns the number of rows of the list with the cursor.
    fn length(&self, model: &Model) -> usize {
        match &self.page {
            TopPage::Topics => self.lines(model).len(),
            TopPage::Topic { topic, .. } => {
                model.topic(topic).map_or(0, |it| if self.second { it.logs.len() } else { it.groups.len() })
            }
            TopPage::Group { topic, group } => {
                let messages = model.detail_of(topic, group).and_then(|it| it.messages.as_ref());
                messages.map_or(
                    0,
                    |(pending, letters)| {
                        if self.second { letters.len() } else { pending.entries.len() }
                    },
                )
            }
        }
    }

    fn enter(&mut self, model: &Model) {
        let next = match &self.page {
            TopPage::Topics => {
                let lines = self.lines(model);
                let Some(place) = lines.get(self.line(&lines)).map(TopLine::place) else { return };
                self.at = Some(place.clone());
                TopPage::Topic {
                    group: group_of(model, &place.topic, place.group.as_ref()).map(|it| it.1),
                    topic: place.topic,
                }
            }
            TopPage::Topic { topic, group } => match group_of(model, topic, group.as_ref()) {
                Some((topic, group)) => TopPage::Group { topic, group },
                None => return,
            },
            TopPage::Group { .. } => return,
        };
        (self.page, self.second, self.rows) = (next, false, [0, 0]);
        self.stand_on_group(model);
    }

    fn leave(&mut self, model: &Model) {
        let next = match &self.page {
            // On the first page, only the filter can be left.
            TopPage::Topics => {
                self.filter.clear();
                return;
            }
            TopPage::Topic { topic, .. } => {
                if self.at.as_ref().is_none_or(|at| at.topic != *topic) {
                    self.at = Some(Place { topic: topic.clone(), group: None });
                }
                TopPage::Topics
            }
            TopPage::Group { topic, group } => {
                TopPage::Topic { topic: topic.clone(), group: Some(group.clone()) }
            }
        };
        (self.page, self.second, self.rows) = (next, false, [0, 0]);
        self.stand_on_group(model);
    }

    /// Moves the cursor to the group that a topic's page shows: a row is a number, and groups are created and
    /// deleted.
    pub(crate) fn stand_on_group(&mut self, model: &Model) {
        if let TopPage::Topic { topic, group } = &self.page {
            let groups = model.topic(topic).map(|it| it.groups).unwrap_or_default();
            let at = group.as_ref().and_then(|name| groups.iter().position(|it| it.group == name));
            self.rows[0] = at.unwrap_or(0);
        }
    }
}

/// Returns the group if it exists, otherwise the first one of its topic.
fn group_of(model: &Model, topic: &TopicName, group: Option<&GroupName>) -> Option<(TopicName, GroupName)> {
    let groups = model.topic(topic)?.groups;
    let found = groups.iter().find(|it| Some(it.group) == group).or(groups.first())?;
    Some((topic.clone(), found.group.clone()))
}
