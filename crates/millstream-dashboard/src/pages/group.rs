//! A group: its lag, its members and owners, and its pause.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream::admin::human::member;
use millstream::admin::{OwnedPartition, Owners, Standing};
use millstream::crates::core::leases::Holder;
use millstream::{GroupName, TopicName};

use super::limits::limit_key;
use super::{group_href, group_page, overview};
use crate::access::Permission;
use crate::actions::Order;
use crate::audit::pauses::{PAUSE, Pauser};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::reading::health;
use crate::reading::snapshots::{Group, Snapshot};
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::chart::Chart;
use crate::view::form::{Button, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Number of partitions and of members of a page.
const SHOWN: usize = 128;
/// Number of running messages that are shown.
const RUNNING: usize = 20;

fn missing(topic: &TopicName, group: &GroupName) -> Failure {
    Failure::missing(format!("group {group} of topic {topic} does not exist"))
}

/// Shows the state of a group.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let (topic, name) = (cx.topic()?, cx.group()?);
    let snapshot = cx.app.reading.of_group(&topic, &name).await?;
    let group = snapshot.groups.get(&name).ok_or_else(|| missing(&topic, &name))?;
    let owners = cx.app.reading.owners(&topic, &name).await?;
    let mut page = group_page(format!("Group {name}"), &topic, &name, paths::GROUP).live();
    for concern in health::of_group(group) {
        page.push(Part::notice(concern.tone, concern.text));
    }
    for reason in group.stats.reasons().chain(owners.reasons()) {
        page.push(Part::notice(Tone::Bad, reason));
    }
    let (href, mut actions) = (|path| group_href(path, &topic, &name), Cell::default());
    if cx.may(&topic, Permission::Operate) {
        if group.stats.paused.is_some() {
            actions.buttons.push(Button::new("Resume", name.as_str(), href(paths::RESUME)));
        } else {
            actions.links.push(("Pause the group…".into(), href(paths::PAUSE)));
        }
    }
    if cx.may(&topic, Permission::Admin) {
        actions.links.push(("Move the group to another position…".into(), href(paths::RESET)));
    }
    actions.links.push(("Download the positions".into(), href(paths::POSITIONS)));
    page.actions = actions;
    page.push(Part::Tiles(tiles(&topic, &snapshot, group)));
    page.push(Part::facts("", facts(&topic, &snapshot, group)));
    if let Some(running) = running(&topic, &name, &owners) {
        page.push(Part::Table(running));
    }
    if let Some(limited) = limited(&cx, &topic, &name, &owners) {
        page.push(Part::Table(limited));
    }
    page.push(Part::Table(partitions(&topic, group, &owners)));
    page.push(Part::Table(members(&topic, &name, &owners)));
    Ok(page)
}

/// How far it is behind, and how it goes on.
fn tiles(topic: &TopicName, snapshot: &Arc<Snapshot>, group: &Group) -> Vec<(&'static str, Cell)> {
    let (stats, totals) = (&group.stats, &group.stats.totals);
    let history = |figure| snapshot.history(&stats.group, figure);
    let href = |path| group_href(path, topic, &stats.group);
    let backlog = Cell { chart: Chart::of("backlog", &history(|it| it.backlog)), ..overview::backlog(group) };
    let consumed = Cell {
        chart: Chart::of("consumed per second", &history(|it| it.consumed)),
        ..Cell::text(format!("{}/s", format::rate(group.rates.consumed)))
    };
    vec![
        ("Backlog", backlog),
        ("Oldest not settled", overview::oldest(group)),
        ("Consumed", consumed),
        ("Caught up", overview::catch_up(group)),
        ("Retrying", Cell::known(totals.retrying).to(href(paths::RETRIES))),
        ("Dead letters", Cell::alarm(totals.dead, Tone::Warn).to(href(paths::DEAD))),
        ("Members", Cell::known(stats.members.map(|members| members as u64))),
    ]
}

fn facts(topic: &TopicName, snapshot: &Snapshot, group: &Group) -> Vec<(&'static str, Cell)> {
    let (stats, totals) = (&group.stats, &group.stats.totals);
    // What waits for a retry is behind, too.
    let behind = totals.oldest.max(totals.oldest_parked);
    let mut facts = vec![
        ("Behind since", Cell::time_or_none(behind.map(|age| snapshot.at.saturating_sub(age)))),
        ("Produced", Cell::text(format!("{}/s", format::rate(group.rates.produced)))),
        ("Not read yet", Cell::text(format::at_least(totals.lag, totals.lag_at_least))),
        ("Pending", Cell::known(totals.pending).to(group_href(paths::PENDING, topic, &stats.group))),
        ("Paused since", stats.paused.map_or_else(|| Cell::text("not paused"), Cell::time)),
        ("Figures of", Cell::time(snapshot.at)),
    ];
    if stats.paused.is_some() {
        let who = match &group.pauser {
            Pauser::User(user) => Cell::text(Text::short(user)),
            Pauser::Unrecorded => Cell::toned("not in the audit log", Tone::Dim),
            Pauser::Unread => Cell::toned("?", Tone::Warn),
        };
        facts.insert(facts.len() - 1, ("Paused by", who));
    }
    facts
}

fn resume_form(action: Href) -> Form {
    Form::action("Resume the group", action, Vec::new(), "Resume")
}

/// Says what a pause does, and asks before.
pub(crate) async fn confirm_pause(cx: Context) -> Result<Page, Failure> {
    let (topic, name) = (cx.topic()?, cx.group()?);
    let snapshot = cx.app.reading.of_group(&topic, &name).await?;
    let group = snapshot.groups.get(&name).ok_or_else(|| missing(&topic, &name))?;
    let href = |path| group_href(path, &topic, &name);
    let mut page = group_page(format!("Pause {name}"), &topic, &name, paths::PAUSE);
    if group.stats.paused.is_some() {
        page.push(Part::notice(Tone::Plain, "The group is paused already."));
        page.push(Part::Form(resume_form(href(paths::RESUME))));
        return Ok(page.with(Part::facts("", facts(&topic, &snapshot, group))));
    }
    let effect = "Members of the group start no further handler until it is resumed, also those that start later. Handlers that \
                  run end, and their messages are settled. Partitions keep their owners, and the backlog grows.";
    page.push(Part::notice(Tone::Warn, effect));
    let title = "Pause the group: all its members, until it is resumed";
    page.push(Part::Form(Form::action(title, href(paths::PAUSE), Vec::new(), "Pause")));
    Ok(page.with(Part::facts("", facts(&topic, &snapshot, group))))
}

fn standing(partition: &OwnedPartition) -> Cell {
    match partition.standing {
        Standing::Settled => Cell::chip("owned", Tone::Good),
        Standing::Moving => Cell::chip("is about to move", Tone::Warn),
        Standing::Waiting => Cell::chip("assigned, without an owner", Tone::Warn),
        Standing::Unassigned => Cell::chip("owned, not assigned", Tone::Warn),
        Standing::Idle => Cell::chip("no consumer", Tone::Dim),
        Standing::Unknown => Cell::chip("unknown", Tone::Bad),
    }
}

/// Link to what a member has been handed out.
fn of_member(topic: &TopicName, group: &GroupName, member: &str) -> Href {
    group_href(paths::PENDING, topic, group).with("limit", 500).with("find", member)
}

fn partitions(topic: &TopicName, group: &Group, owners: &Owners) -> Table {
    let by_number: BTreeMap<_, _> = owners.partitions.iter().map(|it| (it.ownership.partition, it)).collect();
    let titles = [
        ">Partition",
        "Owner",
        "State",
        ">Not read yet",
        ">Oldest",
        ">Pending",
        ">Retrying",
        ">Dead",
        "Since",
        ">Lease left",
        ">Epoch",
    ];
    let table = Table::new("Who owns what", &titles, "This topic has no partition.").paged(SHOWN);
    table.rows(group.stats.partitions.iter().map(|survey| {
        let stats = &survey.stats;
        let owned = by_number.get(&stats.partition);
        let holder = owned.and_then(|it| it.ownership.holder.as_ref());
        let lag = format::at_least(stats.lag, stats.lag_at_least);
        let of = |path| group_href(path, topic, &group.stats.group).with("partition", stats.partition.0);
        let owner = |holder: &Holder| {
            let owner =
                Cell::link(member(&holder.owner), of_member(topic, &group.stats.group, &holder.owner));
            Cell { mono: true, ..owner }
        };
        vec![
            Cell::text(stats.partition.0.to_string()),
            holder.map_or_else(Cell::none, owner),
            owned.map_or_else(Cell::none, |it| standing(it)),
            Cell::toned(lag, if stats.lag == Some(0) { Tone::Dim } else { Tone::Plain }),
            Cell::duration_or_none(stats.oldest),
            Cell::known(survey.pending()),
            Cell::known(survey.retrying()).to(of(paths::RETRIES)),
            Cell::alarm(survey.dead(), Tone::Warn).to(of(paths::DEAD_LIST)),
            Cell::time_or_none(holder.and_then(Holder::since)),
            holder.map_or_else(Cell::none, |holder| Cell::duration(holder.expires_in)),
            holder.map_or_else(Cell::none, |holder| Cell::text(holder.epoch.to_string())),
        ]
    }))
}

/// The messages that have been in their handlers the longest.
fn running(topic: &TopicName, group: &GroupName, owners: &Owners) -> Option<Table> {
    let all = owners.running();
    let count = all.len() as u64 + owners.running_unnamed();
    let titles = ["Message", ">Partition", "Since", ">Attempt", "Member"];
    let mut table = Table::new("Running now, for a second or longer", &titles, "Nothing runs.");
    if count > RUNNING as u64 {
        table = table.note(format!("The longest {RUNNING} of {}", format::count(count)));
    }
    let rows = all.iter().take(RUNNING).map(|(by, it)| {
        let id = it.origin.to_string();
        let story = Href::of(paths::MESSAGE, &[topic.as_str(), &it.partition.0.to_string(), &id]);
        vec![
            Cell { mono: true, ..Cell::link(id, story) },
            Cell::text(it.partition.0.to_string()),
            Cell::time(it.since),
            Cell::count(u64::from(it.attempt)),
            Cell {
                mono: true,
                ..Cell::link(member(by.id.as_str()), of_member(topic, group, by.id.as_str()))
            },
        ]
    });
    (!all.is_empty()).then(|| table.rows(rows))
}

/// The messages that have waited for limits the longest.
fn limited(cx: &Context, topic: &TopicName, group: &GroupName, owners: &Owners) -> Option<Table> {
    let all = owners.waiting();
    let count = all.len() as u64 + owners.waiting_unnamed();
    let titles = ["Message", ">Partition", "Since", "Waits for", "Member"];
    let mut table = Table::new("Waiting for limits", &titles, "Nothing waits.");
    if count > RUNNING as u64 {
        table = table.note(format!("{} wait; those that wait longest are shown", format::count(count)));
    }
    let rows = all.iter().take(RUNNING).map(|(by, it)| {
        let (id, partition) = (it.message.origin.to_string(), it.message.partition.0.to_string());
        let story = Href::of(paths::MESSAGE, &[topic.as_str(), &partition, &id]);
        let by = Cell::link(member(by.id.as_str()), of_member(topic, group, by.id.as_str()));
        vec![
            Cell { mono: true, ..Cell::link(id, story) },
            Cell::text(partition),
            Cell::time(it.message.since),
            Cell::mono(limit_key(cx, topic, &it.key)),
            Cell { mono: true, ..by },
        ]
    });
    (!all.is_empty()).then(|| table.rows(rows))
}

fn members(topic: &TopicName, group: &GroupName, owners: &Owners) -> Table {
    let by_owner = owners.by_owner();
    let titles = ["Member", "State", ">Partitions", "Which", ">Running long", "Last heartbeat"];
    let table =
        Table::new("Members", &titles, "No consumer of this group runs.").named("members").paged(SHOWN);
    table.rows(owners.roster.members.iter().map(|member| {
        let name = member.id.to_string();
        let owned = by_owner.get(&name).map(Vec::as_slice).unwrap_or_default();
        let mut which: Vec<String> = owned.iter().take(24).map(|it| it.0.to_string()).collect();
        if owned.len() > which.len() {
            which.push("…".into());
        }
        let ago = owners.roster.last_heartbeats.get(&member.id);
        let state = if owners.roster.is_overdue(member) {
            Cell::chip("its heartbeats ran out", Tone::Bad)
        } else {
            Cell::chip("alive", Tone::Good)
        };
        vec![
            Cell { mono: true, ..Cell::link(name.as_str(), of_member(topic, group, &name)) },
            state,
            Cell::count(owned.len() as u64),
            Cell::text(which.join(" ")),
            Cell::count(member.running.messages.len() as u64 + member.running.more),
            ago.map_or_else(Cell::none, |ago| Cell {
                rank: Some(ago.as_secs_f64()),
                ..Cell::text(format!("{} ago", format::duration(*ago)))
            }),
        ]
    }))
}

/// Pauses a group, or resumes it.
pub(crate) async fn change(cx: Context, _: Params) -> Result<Href, Failure> {
    let (topic, group, pause) = (cx.topic()?, cx.group()?, cx.route == paths::PAUSE);
    let what = if pause { PAUSE } else { "group resume" };
    let (admin, order) = (cx.admin(), Order::new(what, Subject::group(&topic, &group)));
    let why = if pause { "it was paused already" } else { "it was not paused" };
    cx.act_once(order, why, async move {
        if pause { admin.pause_group(&topic, &group).await } else { admin.resume_group(&topic, &group).await }
    })
    .await
}
