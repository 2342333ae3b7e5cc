//! One action: its progress, its result, and the button that stops it.

use std::sync::Arc;
use std::time::SystemTime;

use millstream::{GroupName, Timestamp};

use crate::access::Permission;
use crate::actions::{Action, Ended, State};
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::Form;
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part};

pub(crate) fn href(path: &str, action: &Action) -> Href {
    Href::of(path, &[&action.id])
}

/// Words for the result of an action of this process.
pub(crate) fn result(state: &State) -> Cell {
    match &state.ended {
        None => Cell::toned("running", Tone::Warn),
        Some((_, Ended::Done)) => Cell::toned("done", Tone::Good),
        Some((_, Ended::Cancelled)) => Cell::toned("cancelled", Tone::Warn),
        Some((_, Ended::Failed(why))) => Cell::toned(format!("failed: {why}"), Tone::Bad),
    }
}

fn find(cx: &Context) -> Result<Arc<Action>, Failure> {
    let id = cx.path.text("id")?.unwrap_or_default();
    cx.app.actions.get(id).ok_or_else(|| Failure::missing("this action is not known"))
}

/// Shows an action, while it runs and after that.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let action = find(&cx)?;
    let state = action.state();
    let subject = super::seen(&cx, action.order.subject.clone());
    let mut page = Page::new(format!("{}: {}", action.order.what, subject.place()))
        .crumb("Audit log", Href::of(paths::AUDIT, &[]));
    page.live = state.ended.is_none();
    let ended = state.ended.as_ref().map(|(at, _)| *at);
    let took =
        ended.unwrap_or_else(|| Timestamp::from(SystemTime::now())).saturating_duration_since(action.began);
    let mut facts = vec![
        ("Result", result(&state)),
        (
            "Changed",
            Cell::text(match action.order.expected {
                Some(expected) => format!("{} of {}", format::count(state.done), format::count(expected)),
                None => format::count(state.done),
            }),
        ),
        ("Who", Cell::text(action.user.as_str())),
        ("Begun", Cell::time(action.began)),
        ("Took", Cell::duration(took)),
    ];
    if state.skipped > 0 {
        facts.insert(2, ("Skipped: gone, claimed by others, or refused", Cell::count(state.skipped)));
    }
    if let Some(items) = state.examined {
        facts.push(("Items examined", Cell::count(items)));
    }
    if let Some(topic) = action.topic() {
        facts.push(("Topic", Cell::link(topic.as_str(), super::topic_href(topic))));
        // Not one that is hidden from this user: its text is no name.
        if let Some(group) = subject.group.as_deref().and_then(|name| name.parse::<GroupName>().ok()) {
            let of = |path| super::group_href(path, topic, &group);
            facts.push(("Group", Cell::link(group.as_str(), of(paths::GROUP))));
            facts.push(("Dead letters of the group", Cell::link("show", of(paths::DEAD))));
        }
    }
    page.push(Part::facts("", facts));
    let about = subject.select.iter().chain(&subject.settings);
    let about = about.map(|(name, value)| {
        // A list of ids, which may be broken between them.
        let value = if name == "up_to" { value.replace(',', ", ") } else { value.clone() };
        (name.replace('_', " "), Cell::mono(value))
    });
    let about: Vec<_> = about.collect();
    if !about.is_empty() {
        page.push(Part::Facts { title: "Selection and settings".to_owned(), rows: about });
    }
    for note in &state.notes {
        page.push(Part::notice(Tone::Plain, note.as_str()));
    }
    if let Some((title, page_of_result)) = &action.order.page {
        page.push(Part::Links(vec![((*title).into(), page_of_result.clone())]));
    }
    let may = match action.topic() {
        Some(topic) => cx.may(topic, Permission::Operate),
        None => cx.access.allows(Permission::Operate),
    };
    if state.ended.is_none() && may {
        let cancel = href(paths::ACTION_CANCEL, &action);
        page.push(Part::Form(Form::action(
            "Stop: what was changed stays changed",
            cancel,
            Vec::new(),
            "Stop",
        )));
    }
    Ok(page)
}

/// Stops an action.
pub(crate) async fn cancel(cx: Context, _: Params) -> Result<Href, Failure> {
    let action = find(&cx)?;
    cx.app.actions.stop(&action, cx.access.user()).await;
    Ok(href(paths::ACTION, &action))
}
