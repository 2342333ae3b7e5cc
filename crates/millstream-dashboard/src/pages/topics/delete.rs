//! Deletion of a topic, after a count of what goes with it.

use millstream::admin::InUse;
use millstream::{Error, ErrorKind, TopicName};

use super::{confirm, refuse_audit};
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::{overview, topic_page};
use crate::paths;
use crate::reading::snapshots::{Group, Snapshot};
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Shows what would be deleted, and asks for a confirmation.
pub(crate) async fn confirm_page(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    refuse_audit(&topic)?;
    let mut page = topic_page(format!("Delete {topic}"), &topic, paths::TOPIC_DELETE);
    match cx.app.reading.topic(&topic).await {
        Ok(snapshot) => counted(&mut page, &topic, &snapshot),
        Err(error) if is_deletable(&cx, &topic, &error).await? => {
            let why = format!("It cannot be counted what would be deleted: {error}");
            page.push(Part::notice(Tone::Bad, why));
        }
        Err(error) => return Err(error.into()),
    }
    let why = "The topic is deleted for good with its log, its groups with pending, waiting and dead messages, its delayed messages \
               and its recurring ones. Stop its producers first: they are not registered anywhere, and one that continues creates \
               the log again.";
    page.push(Part::notice(Tone::Warn, why));
    let choices = [("refuse", "is refused, and nothing is changed"), ("force", "deletes it all the same")];
    let choices = choices.map(|(value, label)| (value.to_owned(), label.to_owned())).to_vec();
    let in_use = Field::new("in_use", "With running consumers, the deletion", "refuse".to_owned());
    let fields = vec![in_use.input(Input::Choice(choices)), confirm(&topic, "delete it")];
    let here = Href::of(paths::TOPIC_DELETE, &[topic.as_str()]);
    page.push(Part::Form(Form::action("Delete the topic", here, fields, "Delete the topic").danger()));
    Ok(page)
}

/// Returns whether a topic that cannot be read can be deleted.
async fn is_deletable(cx: &Context, topic: &TopicName, error: &Error) -> Result<bool, Failure> {
    Ok(match error.kind() {
        // The rest of a deletion that was interrupted.
        ErrorKind::NotFound => cx.admin().topics().await?.contains(topic),
        ErrorKind::Protocol | ErrorKind::WrongType | ErrorKind::Unsupported => true,
        _ => false,
    })
}

fn counted(page: &mut Page, topic: &TopicName, snapshot: &Snapshot) {
    let sum = |of: fn(&Group) -> Option<u64>| snapshot.groups.values().map(of).sum::<Option<u64>>();
    let members = sum(|it| it.stats.members.map(|members| members as u64));
    page.push(Part::facts(
        "What is deleted",
        vec![
            ("Entries", Cell::known(snapshot.length())),
            ("Delayed", Cell::known(snapshot.delayed.map(|waiting| waiting.total))),
            ("Waiting for a retry", Cell::known(sum(|it| it.stats.totals.retrying))),
            ("Dead letters", Cell::alarm(sum(|it| it.stats.totals.dead), Tone::Warn)),
            ("Groups", Cell::count(snapshot.groups.len() as u64)),
            ("Running consumers", Cell::alarm(members, Tone::Bad)),
        ],
    ));
    let titles = ["Group", ">Backlog", ">Retrying", ">Dead", ">Members"];
    let table = Table::new("Groups", &titles, "No group reads this topic.");
    page.push(Part::Table(table.rows(snapshot.groups.values().map(|group| {
        let (stats, totals) = (&group.stats, &group.stats.totals);
        vec![
            Cell::link(stats.group.as_str(), crate::pages::group_href(paths::GROUP, topic, &stats.group)),
            overview::backlog(group),
            Cell::known(totals.retrying),
            Cell::alarm(totals.dead, Tone::Warn),
            Cell::alarm(stats.members.map(|members| members as u64), Tone::Bad),
        ]
    }))));
}

/// Deletes the topic.
pub(crate) async fn delete(cx: Context, params: Params) -> Result<Href, Failure> {
    let topic = cx.topic()?;
    refuse_audit(&topic)?;
    let (in_use, word) = match params.text("in_use")?.unwrap_or("refuse") {
        "refuse" => (InUse::Refuse, "refuse"),
        "force" => (InUse::Force, "force"),
        other => {
            return Err(
                Failure::invalid(format!("in_use {other:?} is neither refuse nor force")).of("in_use")
            );
        }
    };
    params.confirmed(topic.as_str())?;
    let (admin, app) = (cx.admin(), cx.app.clone());
    let order = Order::new("topic delete", Subject::topic(&topic).set("in_use", word));
    cx.act(order, |action| async move {
        let deleted = admin.delete_topic(&topic, in_use).await;
        // Also after an error: a part of it may be gone.
        app.reading.listed(&topic);
        deleted?;
        action.add(1);
        app.verifications.forget(&topic);
        Ok(())
    })
    .await
}
