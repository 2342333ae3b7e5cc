//! The page of a topic: its groups, the partitions of the one with the cursor, and its members.

use millstream::admin::{Owners, Standing};
use millstream::{GroupName, TopicName};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};

use crate::commands::top::model::{TopPartitionView, TopTopicView};
use crate::commands::top::text;
use crate::commands::top::view::ThemeLook;
use crate::commands::top::view::TopShown;
use crate::commands::top::view::grid::{Column, Field, Grid, number};
use crate::commands::top::view::topics::{named, standing};
use crate::human;

const GROUPS: [Column; 9] = [
    Column::rest("GROUP", 14, 0),
    Column::number("OUT/S", 8, 4),
    Column::number("LAG", 10, 1),
    Column::number("OLDEST", 6, 6),
    Column::number("PENDING", 8, 3),
    Column::number("RETRYING", 8, 5),
    Column::number("DEAD", 7, 2),
    Column::number("MEMBERS", 7, 8),
    Column::number("OWNED", 7, 7),
];

const PARTITIONS: [Column; 11] = [
    Column::number("PARTITION", 9, 0),
    Column::number("ENTRIES", 10, 7),
    Column::number("IN/S", 8, 5),
    Column::number("OUT/S", 8, 6),
    Column::number("LAG", 10, 1),
    Column::number("OLDEST", 6, 8),
    Column::number("PENDING", 8, 2),
    Column::number("RETRYING", 8, 9),
    Column::number("DEAD", 7, 4),
    Column::rest("OWNER", 12, 3),
    Column::text("STATE", 8, 10),
];

const MEMBERS: [Column; 3] =
    [Column::text("MEMBER", 36, 0), Column::number("HEARTBEAT", 12, 1), Column::rest("PARTITIONS", 12, 2)];

impl TopShown<'_> {
    pub(super) fn topic(
        self,
        frame: &mut Frame<'_>,
        area: Rect,
        name: &TopicName,
        group: Option<&GroupName>,
    ) {
        let Some(topic) = self.model.topic(name) else {
            let (title, row) = (self.title(format!("Topic {name}"), ""), |_| Vec::new());
            let empty = "It no longer exists";
            Grid { title, columns: &GROUPS, row: &row, rows: 0, cursor: None, empty }
                .draw(frame, area, self.theme);
            return;
        };
        let groups = u16::try_from(topic.groups.len().max(1)).unwrap_or(u16::MAX).saturating_add(2);
        // The lists share the height. Partitions usually need the most.
        let groups = groups.min(area.height / 3).max(3);
        let members = if area.height >= 18 { (area.height / 4).min(8) } else { 0 };
        let all = [Constraint::Length(groups), Constraint::Fill(1), Constraint::Length(members)];
        let [above, middle, below] = Layout::vertical(all).areas(area);

        let row = |at: usize| {
            let group = &topic.groups[at];
            let [consumed, lag, oldest, pending, retrying, dead, owned] = standing(group);
            let members = number(text::known(group.members.map(|it| it as u64), 7), ThemeLook::Plain);
            vec![named(group), consumed, lag, oldest, pending, retrying, dead, members, owned]
        };
        let shown = group.and_then(|name| topic.groups.iter().position(|it| it.group == name));
        let grid = Grid {
            title: self.title(format!("Topic {name}"), about(&topic)),
            columns: &GROUPS,
            row: &row,
            rows: topic.groups.len(),
            cursor: shown.map(|at| (at, !self.state.second)),
            empty: "Nobody reads it",
        };
        grid.draw(frame, above, self.theme);
        let shown = shown.map(|at| &topic.groups[at]);
        let partitions = shown.map_or(&topic.logs, |group| &group.partitions);
        let owners = shown.and_then(|it| self.model.detail_of(name, it.group)).map(|it| &it.owners);
        let title =
            shown.map_or_else(|| "Partitions".to_owned(), |it| format!("Partitions for {}", it.group));
        let grid = Grid {
            title: self.title(title, human::count(partitions.len() as u64)),
            columns: &PARTITIONS,
            row: &|at: usize| of_partition(&partitions[at], owners, shown.is_some()),
            rows: partitions.len(),
            cursor: Some((self.state.rows[1], self.state.second)),
            empty: "None",
        };
        grid.draw(frame, middle, self.theme);
        if below.height > 0 {
            self.members(frame, below, shown.map(|it| (name, it.group)));
        }
    }

    /// Draws the members of a group, with their partitions and the age of their last heartbeats.
    pub(super) fn members(self, frame: &mut Frame<'_>, area: Rect, of: Option<(&TopicName, &GroupName)>) {
        let detail = of.and_then(|(topic, group)| self.model.detail_of(topic, group));
        let owned: Vec<(String, Vec<u32>)> = detail.map_or_else(Vec::new, |detail| {
            let by = detail.owners.by_owner().into_iter();
            by.map(|(owner, partitions)| (owner, partitions.into_iter().map(|it| it.0).collect())).collect()
        });
        let last_heartbeat = |owner: &str| {
            let last = &detail?.owners.roster.last_heartbeats;
            last.iter().find(|(id, _)| id.as_str() == owner).map(|(_, ago)| *ago)
        };
        let row = |at: usize| {
            let (owner, partitions) = &owned[at];
            let ago = last_heartbeat(owner)
                .map_or_else(|| "no member".to_owned(), |ago| format!("{} ago", text::age(ago)));
            let partitions = if partitions.is_empty() { "-".to_owned() } else { text::ranges(partitions) };
            vec![
                (text::clean(owner), ThemeLook::Name),
                (ago, ThemeLook::Plain),
                number(partitions, ThemeLook::Plain),
            ]
        };
        let title = match of {
            Some((topic, group)) => self.title("Consumers", format!("{topic} / {group}")),
            None => self.title("Consumers", ""),
        };
        let empty = match (of, detail) {
            (None, _) => "No group",
            (Some(_), None) => "Asking …",
            (Some(_), Some(_)) => "Nobody",
        };
        let grid = Grid { title, columns: &MEMBERS, row: &row, rows: owned.len(), cursor: None, empty };
        grid.draw(frame, area, self.theme);
    }
}

fn about(topic: &TopTopicView<'_>) -> String {
    let mut parts = vec![
        human::of(u64::from(topic.topic.partitions), "partition", "partitions"),
        topic.entries.map_or_else(|| "? entries".to_owned(), |it| human::of(it, "entry", "entries")),
        format!("in {}/s", text::rate(topic.produced, 9)),
        format!("{} delayed", human::known(topic.delayed)),
    ];
    if topic.overdue > Some(0) {
        parts.push(format!("{} overdue", human::known(topic.overdue)));
    }
    parts.join(" · ")
}

fn of_partition(partition: &TopPartitionView<'_>, owners: Option<&Owners>, of_group: bool) -> Vec<Field> {
    let (survey, stats) = (partition.survey, &partition.survey.stats);
    // A log that cannot be read may have the group.
    let there = stats.position.is_some() || survey.length().is_none();
    // Without a group these fields are empty.
    let of =
        |text: String, look: ThemeLook| if of_group { number(text, look) } else { (String::new(), look) };
    let at = usize::try_from(stats.partition.0).unwrap_or(usize::MAX);
    let owned = owners.and_then(|owners| owners.partitions.get(at));
    let owner = owned.and_then(|it| it.ownership.holder.as_ref()).map(|it| text::clean(&it.owner));
    let (standing, look) = match owned.map(|it| it.standing) {
        None | Some(Standing::Settled | Standing::Idle) => ("", ThemeLook::Plain),
        Some(Standing::Moving) => ("moving", ThemeLook::Doubtful),
        Some(Standing::Waiting) => ("waiting", ThemeLook::Bad),
        Some(Standing::Unassigned) => ("alone", ThemeLook::Plain),
        Some(Standing::Unknown) => ("?", ThemeLook::Bad),
    };
    let owner = if owned.is_some() { owner.unwrap_or_else(|| "-".to_owned()) } else { String::new() };
    let (standing, look) = if of_group && !there { ("no group", ThemeLook::Bad) } else { (standing, look) };
    vec![
        (stats.partition.0.to_string(), ThemeLook::Name),
        number(text::known(survey.length(), 10), ThemeLook::Plain),
        number(text::rate(partition.produced, 8), ThemeLook::Good),
        of(text::rate(partition.consumed, 8), ThemeLook::Good),
        of(text::lag(stats.lag, stats.lag_at_least, 10), ThemeLook::Plain),
        match stats.oldest {
            None if survey.length().is_none() => of("?".to_owned(), ThemeLook::Plain),
            oldest => of(text::age_or_none(oldest), ThemeLook::Plain),
        },
        of(text::known(survey.pending(), 8), ThemeLook::Plain),
        of(text::known(survey.retrying(), 8), ThemeLook::Doubtful),
        of(text::known(survey.dead(), 7), ThemeLook::Bad),
        number(owner, ThemeLook::Plain),
        (standing.to_owned(), look),
    ]
}
