//! A group: its lag, its members and owners, and its pause.

use std::collections::BTreeMap;

use millstream::admin::{OwnedPartition, Owners, Standing};
use millstream::crates::core::leases::Holder;
use millstream::{GroupName, TopicName};

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
use crate::view::form::Form;
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Maximum number of partitions and of members of a page.
const SHOWN: usize = 512;

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
    page.push(Part::facts("", facts(&topic, &snapshot, group)));
    // Above the tables, which have hundreds of rows.
    let (href, mut links) = (|path| group_href(path, &topic, &name), Vec::new());
    if cx.may(&topic, Permission::Operate) {
        if group.stats.paused.is_some() {
            page.push(Part::Form(resume_form(href(paths::RESUME))));
        } else {
            links.push(("Pause the group…".into(), href(paths::PAUSE)));
        }
    }
    links.push(("Download the positions".into(), href(paths::POSITIONS)));
    if cx.may(&topic, Permission::Admin) {
        links.push(("Move the group to another position…".into(), href(paths::RESET)));
    }
    page.push(Part::Links(links));
    page.push(Part::Table(partitions(&topic, group, &owners)));
    page.push(Part::Table(members(&owners)));
    Ok(page)
}

fn facts(topic: &TopicName, snapshot: &Snapshot, group: &Group) -> Vec<(&'static str, Cell)> {
    let (stats, totals) = (&group.stats, &group.stats.totals);
    let history = |figure| snapshot.history(&stats.group, figure);
    let href = |path| group_href(path, topic, &stats.group);
    let backlog = Cell { chart: Chart::of("backlog", &history(|it| it.backlog)), ..overview::backlog(group) };
    let consumed = Cell {
        chart: Chart::of("consumed per second", &history(|it| it.consumed)),
        ..Cell::text(format!("{}/s", format::rate(group.rates.consumed)))
    };
    let mut facts = vec![
        ("Backlog", backlog),
        ("Oldest message not settled", Cell::duration_or_none(totals.oldest)),
        ("Behind since", Cell::time_or_none(totals.oldest.map(|age| snapshot.at.saturating_sub(age)))),
        ("Consumed", consumed),
        ("Produced", Cell::text(format!("{}/s", format::rate(group.rates.produced)))),
        ("Catches up in", overview::catch_up(group)),
        ("Not read yet", Cell::text(format::at_least(totals.lag, totals.lag_at_least))),
        ("Pending", Cell::known(totals.pending).to(href(paths::PENDING))),
        ("Waiting for a retry", Cell::known(totals.retrying).to(href(paths::RETRIES))),
        ("Dead letters", Cell::alarm(totals.dead, Tone::Warn).to(href(paths::DEAD))),
        ("Members", Cell::known(stats.members.map(|members| members as u64))),
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
        Standing::Settled => Cell::toned("owned", Tone::Good),
        Standing::Moving => Cell::toned("is about to move", Tone::Warn),
        Standing::Waiting => Cell::toned("assigned, without an owner", Tone::Warn),
        Standing::Unassigned => Cell::toned("owned, not assigned", Tone::Warn),
        Standing::Idle => Cell::toned("no consumer", Tone::Dim),
        Standing::Unknown => Cell::toned("unknown", Tone::Bad),
    }
}

fn partitions(topic: &TopicName, group: &Group, owners: &Owners) -> Table {
    let by_number: BTreeMap<_, _> = owners.partitions.iter().map(|it| (it.ownership.partition, it)).collect();
    let titles = [
        ">Partition",
        "Owner",
        "Owned since",
        "State",
        ">Not read yet",
        ">Oldest not settled",
        ">Pending",
        ">Retrying",
        ">Dead",
        "Lease ends in",
        ">Epoch",
    ];
    let table = Table::new("Partitions", &titles, "This topic has no partition.");
    let count = group.stats.partitions.len();
    let table = table.rows(group.stats.partitions.iter().take(SHOWN).map(|survey| {
        let stats = &survey.stats;
        let owned = by_number.get(&stats.partition);
        let holder = owned.and_then(|it| it.ownership.holder.as_ref());
        let lag = format::at_least(stats.lag, stats.lag_at_least);
        let of = |path| group_href(path, topic, &group.stats.group).with("partition", stats.partition.0);
        vec![
            Cell::text(stats.partition.0.to_string()),
            holder.map_or_else(Cell::none, |holder| Cell::mono(holder.owner.as_str())),
            Cell::time_or_none(holder.and_then(Holder::since)),
            owned.map_or_else(Cell::none, |it| standing(it)),
            Cell::toned(lag, if stats.lag == Some(0) { Tone::Dim } else { Tone::Plain }),
            Cell::duration_or_none(stats.oldest),
            Cell::known(survey.pending()),
            Cell::known(survey.retrying()),
            Cell::alarm(survey.dead(), Tone::Warn).to(of(paths::DEAD_LIST)),
            holder.map_or_else(Cell::none, |holder| Cell::duration(holder.expires_in)),
            holder.map_or_else(Cell::none, |holder| Cell::text(holder.epoch.to_string())),
        ]
    }));
    if count > SHOWN {
        table.note(format!("The first {SHOWN} of {}", format::count(count as u64)))
    } else {
        table
    }
}

fn members(owners: &Owners) -> Table {
    let by_owner = owners.by_owner();
    let titles = ["Member", ">Partitions", "Which", "Last heartbeat", "State"];
    let table = Table::new("Members", &titles, "No consumer of this group runs.");
    table.rows(owners.roster.members.iter().take(SHOWN).map(|member| {
        let owned = by_owner.get(&member.id.to_string()).map(Vec::as_slice).unwrap_or_default();
        let mut which: Vec<String> = owned.iter().take(24).map(|it| it.0.to_string()).collect();
        if owned.len() > which.len() {
            which.push("…".into());
        }
        let ago = owners.roster.last_heartbeats.get(&member.id);
        let state = if owners.roster.is_overdue(member) {
            Cell::toned("its heartbeats ran out", Tone::Bad)
        } else {
            Cell::toned("alive", Tone::Good)
        };
        vec![
            Cell::mono(member.id.to_string()),
            Cell::count(owned.len() as u64),
            Cell::text(which.join(" ")),
            ago.map_or_else(Cell::none, |ago| Cell::text(format!("{} ago", format::duration(*ago)))),
            state,
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
