//! The two lines at the top: the server, and the sums over all topics.

use std::time::Duration;

use millstream::Timestamp;
use millstream::admin::Server;
use millstream::delay::TaskCounts;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use crate::commands::top::model::{Others, TopSchedule, TopTopicView, rates};
use crate::commands::top::rows;
use crate::commands::top::text;
use crate::commands::top::view::ThemeLook;
use crate::commands::top::view::TopShown;
use crate::human;

/// Time after which an occurrence that has not fired is late.
const LATE: Duration = Duration::from_secs(60);

/// Length of a curve, if there is space.
const CURVE: usize = 16;

/// Minimum length of a curve: a shorter one is meaningless.
const SHORTEST_CURVE: usize = 6;

/// Sum of which a part may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    at_least: u64,
    unknown: bool,
}

impl Sum {
    fn add(&mut self, known: Option<u64>, at_least: u64) {
        self.at_least += known.unwrap_or(at_least);
        self.unknown |= known.is_none();
    }

    /// Formats it: `7`, `>= 7`, `?`.
    fn text(self, width: usize) -> String {
        text::lag((!self.unknown).then_some(self.at_least), self.at_least, width)
    }
}

/// Sums over all groups.
#[derive(Default)]
struct Sums {
    lag: Sum,
    pending: Sum,
    retrying: Sum,
    delayed: Sum,
    dead: Sum,
}

impl Sums {
    /// Returns the sums of these topics, and of as many that are unknown.
    fn of(topics: &[TopTopicView<'_>], unknown: bool) -> Self {
        let mut sums = Self::default();
        let Self { lag, pending, retrying, delayed, dead } = &mut sums;
        for topic in topics {
            delayed.add(topic.delayed, 0);
            for group in &topic.groups {
                lag.add(group.totals.lag, group.totals.lag_at_least);
                pending.add(group.totals.pending, 0);
                retrying.add(group.totals.retrying, 0);
                dead.add(group.totals.dead, 0);
            }
        }
        for sum in [lag, pending, retrying, delayed, dead] {
            sum.unknown |= unknown;
        }
        sums
    }
}

impl TopShown<'_> {
    pub(super) fn head(self, frame: &mut Frame<'_>, area: Rect) {
        let lines = [Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1)];
        let [first, second, third] = Layout::vertical(lines).areas(area);
        let name = Span::styled(" millstream top ", self.theme.style(ThemeLook::Title));
        let state = self.state_of_things();
        let width = u16::try_from(state.width()).unwrap_or(u16::MAX);
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).areas(first);
        let server = Span::styled(self.server(), self.theme.style(ThemeLook::Faint));
        frame.render_widget(Line::from_iter([name, server]), left);
        frame.render_widget(state, right);
        frame.render_widget(self.sums(usize::from(second.width)), second);
        if let Some(others) = self.others() {
            frame.render_widget(others, third);
        }
    }

    /// Returns the line of delay queues and schedules, if there are some.
    pub(super) fn others(&self) -> Option<Line<'static>> {
        let Others { queues, schedules, now } = &self.model.others;
        let mut spans = Vec::new();
        let mut add = |name: &str, value: String, look| {
            spans.push(Span::styled(format!(" {name} "), self.theme.style(ThemeLook::Faint)));
            spans.push(Span::styled(format!("{value} "), self.theme.style(look)));
        };
        if let Some((worst, counts)) = queues.first() {
            let sum = |of: fn(&TaskCounts) -> u64| queues.iter().map(|(_, counts)| of(counts)).sum::<u64>();
            add("queues", human::count(queues.len() as u64), ThemeLook::Plain);
            add("waiting", human::count(sum(|it| it.waiting.total)), ThemeLook::Plain);
            match sum(|it| it.waiting.overdue) {
                0 => {}
                overdue => {
                    let most = human::count(counts.waiting.overdue);
                    add(
                        "overdue",
                        format!("{} ({worst} {most})", human::count(overdue)),
                        ThemeLook::Doubtful,
                    );
                }
            }
            match sum(|it| it.dead) {
                0 => {}
                dead => add("dead tasks", human::count(dead), ThemeLook::Bad),
            }
        }
        if let Some(first) = schedules.first() {
            let late = first.next.is_some_and(|next| now.saturating_duration_since(next) > LATE);
            let look = if late { ThemeLook::Bad } else { ThemeLook::Plain };
            add("schedules", human::count(schedules.len() as u64), ThemeLook::Plain);
            add("next", format!("{} {}", text::clean(&first.id), due(first, *now)), look);
        }
        (!spans.is_empty()).then(|| Line::from_iter(spans))
    }

    /// Returns the state of the sampling: frozen, without a reply, or the duration of the last round.
    fn state_of_things(&self) -> Line<'static> {
        let since = self.model.answered.map(|at| self.now.saturating_sub(at));
        let late = since.is_some_and(|since| since > self.stale_after);
        let (text, look) = match since {
            _ if self.state.frozen => (" FROZEN ".to_owned(), ThemeLook::Doubtful),
            None if self.model.failing => (" NO ANSWER YET ".to_owned(), ThemeLook::Bad),
            None => (" asking … ".to_owned(), ThemeLook::Faint),
            Some(since) if late || self.model.failing => {
                (format!(" NO ANSWER FOR {} ", text::age(since)), ThemeLook::Bad)
            }
            Some(_) => (format!(" asked in {} ms ", self.model.took.as_millis()), ThemeLook::Faint),
        };
        Line::styled(text, self.theme.style(look))
    }

    fn server(&self) -> String {
        described(&self.model.servers)
    }

    fn sums(&self, width: usize) -> Line<'static> {
        let filter = &self.state.filter;
        let topics = rows::filtered(self.model, filter);
        let sums = Sums::of(&topics, rows::unknown(self.model, filter).next().is_some());
        let known = self.model.curve.len() > 1;
        // The curve is that of all topics.
        let last = match filter.is_empty() {
            true => self.model.curve.back().copied().filter(|_| known),
            false => known.then(|| rates(&topics)),
        };
        let worry = |sum: Sum, look| if sum.at_least > 0 { look } else { ThemeLook::Plain };
        let rate = |of: fn(&(f64, f64)) -> f64| format!("{:>7}", text::rate(last.as_ref().map(of), 7));
        let (came, went): (Side, Side) = (|it| it.0, |it| it.1);
        let said = [
            ("in/s", rate(came), ThemeLook::Good, Some(came)),
            ("out/s", rate(went), ThemeLook::Good, Some(went)),
            ("lag", sums.lag.text(12), ThemeLook::Plain, None),
            ("pending", sums.pending.text(9), ThemeLook::Plain, None),
            ("retrying", sums.retrying.text(7), worry(sums.retrying, ThemeLook::Doubtful), None),
            ("delayed", sums.delayed.text(7), ThemeLook::Plain, None),
            ("dead", sums.dead.text(7), worry(sums.dead, ThemeLook::Bad), None),
        ];
        // Where not everything fits, numbers that are included in others are dropped first.
        let mut said = said.to_vec();
        let taken = |said: &[(&str, String, ThemeLook, Option<Side>)]| -> usize {
            said.iter().map(|(name, value, ..)| name.len() + value.len() + 3).sum()
        };
        for less in ["delayed", "retrying", "pending"] {
            if taken(&said) > width {
                said.retain(|(name, ..)| *name != less);
            }
        }
        let taken = taken(&said);
        let room = (width.saturating_sub(taken) / 2).saturating_sub(1).min(CURVE);
        let spans = said.into_iter().flat_map(|(name, value, look, curved)| {
            let curved = curved.filter(|_| room >= SHORTEST_CURVE && filter.is_empty());
            let curve = curved.map(|of| format!("{} ", curve(self.model.curve.iter().skip(1).map(of), room)));
            [
                Span::styled(format!(" {name} "), self.theme.style(ThemeLook::Faint)),
                Span::styled(format!("{value} "), self.theme.style(look)),
                Span::styled(curve.unwrap_or_default(), self.theme.style(look)),
            ]
        });
        Line::from_iter(spans)
    }
}

/// Says when a schedule fires next: `in 3m20s`, `late by 2h`, `paused`.
pub(crate) fn due(it: &TopSchedule, now: Timestamp) -> String {
    match it.next {
        _ if it.paused => "paused".to_owned(),
        None => "never again".to_owned(),
        Some(next) => {
            let late = now.saturating_duration_since(next);
            let left = next.saturating_duration_since(now);
            if late > LATE {
                format!("late by {}", text::age(late))
            } else {
                format!("in {}", text::age(left))
            }
        }
    }
}

/// Describes the servers: sums of what they use, and the worst of the rest.
fn described(servers: &[Server]) -> String {
    let there: Vec<_> = servers.iter().filter(|server| server.away.is_none()).collect();
    let Some(first) = there.first() else { return String::new() };
    let mut parts = vec![text::clean(&format!("{} {}", first.kind, first.version.as_deref().unwrap_or("")))];
    if servers.len() > 1 {
        parts.push(match servers.len() - there.len() {
            0 => format!("{} servers", servers.len()),
            away => format!("{} servers, {away} GIVE NO ANSWER", servers.len()),
        });
    }
    let each = |of: fn(&Server) -> Option<u64>| there.iter().map(|server| of(server)).sum::<Option<u64>>();
    let uptime = there.iter().filter_map(|server| server.uptime).min();
    let latency = there.iter().filter_map(|server| server.latency).max();
    parts.extend(uptime.map(|it| format!("up {}", text::age(it))));
    parts.extend(each(|server| server.used_memory).map(human::bytes));
    let clients = each(|server| server.clients.map(|(now, _)| now));
    parts.extend(clients.map(|now| human::of(now, "connection", "connections")));
    parts.extend(latency.map(|it| format!("{:.2} ms away", it.as_secs_f64() * 1e3)));
    parts.join(" · ")
}

/// Selects one of the two rates of a sample.
type Side = fn(&(f64, f64)) -> f64;

/// Formats the last values as a curve, whose height is the largest of them.
fn curve(values: impl DoubleEndedIterator<Item = f64>, width: usize) -> String {
    let mut last: Vec<f64> = values.rev().take(width).collect();
    last.reverse();
    let most = last.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let drawn: String = last.into_iter().map(|value| human::step(value / most)).collect();
    format!("{drawn:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_are_described_by_their_sums_and_those_that_are_away() {
        let server = |used, milliseconds| {
            let mut server = Server::default();
            (server.kind, server.version) = ("redis".into(), Some("8.0.1".into()));
            (server.used_memory, server.clients) = (Some(used), Some((7, 100)));
            server.latency = Some(Duration::from_millis(milliseconds));
            server
        };
        let all = [server(1 << 20, 1), server(2 << 20, 3)];
        assert_eq!(described(&all[..1]), "redis 8.0.1 · 1.0 MiB · 7 connections · 1.00 ms away");
        assert_eq!(described(&all), "redis 8.0.1 · 2 servers · 3.0 MiB · 14 connections · 3.00 ms away");
        let mut away = all.to_vec();
        (away[0].away, away[0].used_memory) = (Some("no answer".into()), None);
        let said = described(&away);
        assert!(said.starts_with("redis 8.0.1 · 2 servers, 1 GIVE NO ANSWER · 2.0 MiB"), "{said}");
        assert_eq!(described(&[]), "");
    }

    #[test]
    fn a_curve_is_as_high_as_its_largest_value() {
        assert_eq!(curve([0.0, 50.0, 100.0].into_iter(), 5), "  ▁▅█");
        assert_eq!(curve([9.0, 1.0, 1.0].into_iter(), 2), "██");
        assert_eq!(curve([0.0, 0.0].into_iter(), 2), "▁▁");
        assert_eq!(curve(std::iter::empty(), 2), "  ");
    }
}
