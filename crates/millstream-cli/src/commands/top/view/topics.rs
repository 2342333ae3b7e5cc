//! The first page: all topics with their groups, their consumers, and errors.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream::TopicName;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use crate::commands::top::model::{TopGroupView, TopTopicView};
use crate::commands::top::rows::{self, Place};
use crate::commands::top::text;
use crate::commands::top::view::ThemeLook;
use crate::commands::top::view::TopShown;
use crate::commands::top::view::grid::{Column, Field, Grid, Kind, number};
use crate::{human, output};

const COLUMNS: [Column; 13] = [
    Column::rest("TOPIC / GROUP", 14, 0),
    Column::number("PARTS", 5, 11),
    Column::number("ENTRIES", 10, 8),
    Column::number("IN/S", 8, 4),
    Column::number("OUT/S", 8, 5),
    Column::number("BACKLOG", 9, 1),
    Column::number("LAG", 10, 3),
    Column::number("OLDEST", 6, 6),
    Column::number("PENDING", 8, 7),
    Column::number("RETRYING", 8, 9),
    Column::number("DELAYED", 8, 10),
    Column::number("DEAD", 7, 2),
    Column::number("OWNED", 7, 12),
];

/// Maximum width that names get before columns do. Names that are cut off all look the same.
const NAMES: usize = 32;

/// Returns the columns, with enough width for these names if possible.
fn columns(lines: &[rows::TopLine<'_>]) -> [Column; 13] {
    let len = |line: &rows::TopLine<'_>| match line {
        rows::TopLine::Topic(topic) => topic.topic.name.as_str().len(),
        rows::TopLine::Unknown(topic) => topic.as_str().len(),
        rows::TopLine::Group { group, .. } => named(group).0.len() + BRANCH,
    };
    let longest = lines.iter().map(len).max().unwrap_or(0).min(NAMES);
    let mut columns = COLUMNS;
    columns[0].width = columns[0].width.max(u16::try_from(longest).unwrap_or(0));
    columns
}

/// Width of the branch in front of the name of a group.
const BRANCH: usize = 3;

/// Height below which the topics get the space of the lists below.
const ENOUGH: u16 = 26;

/// Height of the lists below the topics, if there is enough space.
const CONSUMERS: u16 = 6;
const ERRORS: u16 = 6;
const FEW_ERRORS: u16 = 4;
const TOPICS: u16 = 6;

impl TopShown<'_> {
    pub(super) fn topics(self, frame: &mut Frame<'_>, area: Rect) {
        let (consumers, errors) = match area.height {
            ENOUGH.. => (CONSUMERS, ERRORS),
            height if height >= TOPICS + ERRORS => (0, FEW_ERRORS),
            _ => (0, 0),
        };
        let all = [Constraint::Fill(1), Constraint::Length(consumers), Constraint::Length(errors)];
        let [topics, consumers, errors] = Layout::vertical(all).areas(area);

        let lines = self.state.lines(self.model);
        let at = self.state.line(&lines);
        let row = |line: usize| match &lines[line] {
            rows::TopLine::Topic(topic) => of_topic(topic, self.stale(topic.at)),
            rows::TopLine::Unknown(topic) => of_unknown(topic),
            rows::TopLine::Group { group, last, .. } => of_group(group, *last),
        };
        let columns = columns(&lines);
        let grid = Grid {
            title: self.title("Topics", self.about_topics()),
            columns: &columns,
            row: &row,
            rows: lines.len(),
            cursor: Some((at, true)),
            empty: self.why_empty(),
        };
        grid.draw(frame, topics, self.theme);
        if consumers.height > 0 {
            self.consumers(frame, consumers, lines.get(at).map(rows::TopLine::place).as_ref());
        }
        if errors.height > 0 {
            self.errors(frame, errors);
        }
    }

    fn why_empty(&self) -> &'static str {
        match self.model.answered {
            None => "No answer yet",
            Some(_) if !self.state.filter.is_empty() => "No topic of that name",
            Some(_) => "There is no topic here",
        }
    }

    fn about_topics(&self) -> String {
        let read = self.model.topics().count();
        let mut parts = vec![match self.model.unknown().count() {
            0 => human::count(read as u64),
            more => format!("{} of {} read", human::count(read as u64), human::count((read + more) as u64)),
        }];
        let least = if self.state.reversed { ", reversed" } else { "" };
        parts.push(format!("by {}{least}", self.state.sort.as_str()));
        if !self.state.filter.is_empty() {
            parts.push(format!("with {:?}", text::clean(&self.state.filter)));
        }
        parts.join(" · ")
    }

    /// Whether a sample is older than it should be in comparison with the others.
    fn stale(&self, at: Duration) -> bool {
        self.model.answered.is_some_and(|last| last.saturating_sub(at) > self.stale_after)
    }

    /// Draws the members of the group with the cursor.
    fn consumers(&self, frame: &mut Frame<'_>, area: Rect, place: Option<&Place>) {
        let groups = place.and_then(|it| self.model.topic(&it.topic)).map(|it| it.groups).unwrap_or_default();
        let wanted = place.and_then(|it| it.group.as_ref());
        let group = groups.iter().find(|it| Some(it.group) == wanted).or(groups.first()).map(|it| it.group);
        let found = place.zip(group).map(|(place, group)| (&place.topic, group));
        self.members(frame, area, found);
    }

    /// Draws failed queries, and the newest dead letters.
    fn errors(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::new()
            .borders(Borders::TOP)
            .border_style(self.theme.style(ThemeLook::Faint))
            .title(self.title("Errors", "newest dead letters, and what could not be asked"));
        let style = |look| self.theme.style(look);
        // All of it is about the topics that are shown.
        let filter = &self.state.filter;
        let shown: Option<BTreeSet<&TopicName>> = (!filter.is_empty())
            .then(|| rows::filtered(self.model, filter).iter().map(|it| &it.topic.name).collect());
        let fits = |topic: &TopicName| shown.as_ref().is_none_or(|shown| shown.contains(topic));
        let problems = self.model.problems.iter().filter(|seen| seen.problem.topic.as_ref().is_none_or(fits));
        let problems = problems.map(|seen| {
            let since = self.now.saturating_sub(seen.last);
            let times =
                if seen.times > 1 { format!(" ({} times)", human::count(seen.times)) } else { String::new() };
            Line::from_iter([
                Span::styled(
                    format!(" {:>14}", format!("{} ago", text::age(since))),
                    style(ThemeLook::Faint),
                ),
                Span::styled(format!("  {}", text::clean(&seen.problem.doing)), style(ThemeLook::Bad)),
                Span::raw(format!(": {}{times}", text::clean(&seen.problem.error))),
            ])
        });
        let letters = self.model.letters.iter().filter(|it| fits(&it.topic_partition.topic)).map(|letter| {
            let of = &letter.topic_partition;
            Line::from_iter([
                Span::styled(format!(" {}", text::moment(letter.id.timestamp())), style(ThemeLook::Faint)),
                Span::styled(
                    format!("  {} / {} p{}", of.topic, letter.group, of.partition.0),
                    style(ThemeLook::Name),
                ),
                Span::styled(
                    format!("  {}", text::clean(letter.reason.as_str())),
                    style(ThemeLook::Doubtful),
                ),
                Span::raw(format!(" after {}: ", human::of(letter.attempts.into(), "attempt", "attempts"))),
                Span::raw(text::clean(&letter.error)),
            ])
        });
        // Current failures come first: without replies there are no dead letters either.
        let mut lines: Vec<Line<'_>> =
            problems.take(if self.model.failing { 2 } else { 1 }).chain(letters).collect();
        if lines.is_empty() {
            lines.push(Line::styled(" None", style(ThemeLook::Faint)));
        }
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }
}

/// Returns the same lines as text, for output without a screen.
pub(crate) fn table(lines: &[rows::TopLine<'_>]) -> String {
    let titles = COLUMNS.map(|column| match column.kind {
        Kind::Number => format!(">{}", column.title),
        Kind::Text | Kind::Rest => column.title.to_owned(),
    });
    let rows = lines.iter().map(|line| match line {
        rows::TopLine::Topic(topic) => of_topic(topic, false),
        rows::TopLine::Unknown(topic) => of_unknown(topic),
        rows::TopLine::Group { group, last, .. } => of_group(group, *last),
    });
    let rows = rows.map(|row| row.into_iter().map(|(text, _)| text).collect::<Vec<_>>());
    output::table(&titles.each_ref().map(String::as_str), rows)
}

fn of_topic(topic: &TopTopicView<'_>, stale: bool) -> Vec<Field> {
    let none = || (String::new(), ThemeLook::Plain);
    let look = if stale { ThemeLook::Faint } else { ThemeLook::Name };
    vec![
        (topic.topic.name.to_string(), look),
        number(topic.topic.partitions.to_string(), ThemeLook::Plain),
        number(text::known(topic.entries, 10), ThemeLook::Plain),
        number(text::rate(topic.produced, 8), ThemeLook::Good),
        none(),
        none(),
        none(),
        none(),
        none(),
        none(),
        number(
            text::known(topic.delayed, 8),
            if topic.overdue != Some(0) { ThemeLook::Doubtful } else { ThemeLook::Plain },
        ),
        none(),
        none(),
    ]
}

/// Returns the row of a topic that could not be read.
fn of_unknown(topic: &TopicName) -> Vec<Field> {
    let mut row = vec![(topic.to_string(), ThemeLook::Doubtful)];
    row.resize(COLUMNS.len(), ("?".to_owned(), ThemeLook::Doubtful));
    row
}

fn of_group(group: &TopGroupView<'_>, last: bool) -> Vec<Field> {
    let none = || (String::new(), ThemeLook::Plain);
    let [consumed, lag, oldest, pending, retrying, dead, owned] = standing(group);
    let branch = if last { "└" } else { "├" };
    let (name, look) = named(group);
    let name = (format!(" {branch} {name}"), look);
    let backlog = number(text::lag(group.backlog, group.backlog_at_least, 9), ThemeLook::Plain);
    vec![name, none(), none(), none(), consumed, backlog, lag, oldest, pending, retrying, none(), dead, owned]
}

/// Returns the name of a group, with a mark if it is paused.
pub(super) fn named(group: &TopGroupView<'_>) -> Field {
    if group.paused {
        (format!("{} (paused)", group.group), ThemeLook::Doubtful)
    } else {
        (group.group.to_string(), ThemeLook::Plain)
    }
}

/// Returns the statistics of a group: out/s, lag, oldest, pending, retrying, dead, owned.
pub(super) fn standing(group: &TopGroupView<'_>) -> [Field; 7] {
    let (totals, partitions) = (group.totals, group.partitions.len());
    let idle = group.members == Some(0) && group.owned == Some(0);
    let waits = totals.lag_at_least > 0 || totals.pending > Some(0);
    let doubtful = group.owned.is_none_or(|owned| owned < partitions) && (waits || !idle);
    let owned = if doubtful { ThemeLook::Doubtful } else { ThemeLook::Plain };
    let owners = text::known(group.owned.map(|it| it as u64), 7);
    [
        number(text::rate(group.consumed, 8), ThemeLook::Good),
        number(
            text::lag(totals.lag, totals.lag_at_least, 10),
            if idle { ThemeLook::Doubtful } else { ThemeLook::Plain },
        ),
        match totals.oldest {
            None if totals.length.is_none() => number("?".to_owned(), ThemeLook::Plain),
            oldest => number(text::age_or_none(oldest), ThemeLook::Plain),
        },
        number(text::known(totals.pending, 8), ThemeLook::Plain),
        number(text::known(totals.retrying, 8), ThemeLook::Doubtful),
        number(text::known(totals.dead, 7), ThemeLook::Bad),
        number(format!("{owners}/{partitions}"), owned),
    ]
}
