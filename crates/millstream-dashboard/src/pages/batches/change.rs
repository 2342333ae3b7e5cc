//! Cancels the members of a batch, or closes it, after a confirmation, and shows what came of it.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use millstream::TopicName;
use millstream::batch::BatchState;

use super::{count, failure, href, id, word};
use crate::access::Permission;
use crate::actions::{Action, Order};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::topic_page;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part};

/// Beginning of the targets that are delay queues.
pub(super) const QUEUE: &str = "queue/";
/// Word that confirms a change of a batch that is open: its members cannot be counted.
const ALL: &str = "all";

fn targets(state: &BatchState) -> BTreeSet<&str> {
    state.blocks.iter().map(|block| &*block.target).collect()
}

/// Returns whether there is nothing to cancel or to close.
pub(super) fn has_ended(state: &BatchState) -> bool {
    state.sealed.is_some() && state.missing() == 0
}

/// Returns whether the user may cancel messages wherever members were sent. Rights to the topic of the batch are none to those places.
pub(super) fn may_cancel(cx: &Context, state: &BatchState) -> bool {
    targets(state).into_iter().all(|target| match TopicName::new(target) {
        // The same as for the pages of the audit log.
        Ok(topic) => cx.may(&topic, Permission::Admin) && (!topic.is_audit() || cx.access.is_unlimited()),
        Err(_) => cx.access.allows(Permission::Admin),
    })
}

/// What a route does with a batch.
struct Change {
    is_cancel: bool,
    verb: &'static str,
    what: &'static str,
    effect: &'static str,
}

fn change_of(route: &str) -> Change {
    match route {
        paths::BATCH_CANCEL => Change {
            is_cancel: true,
            verb: "Cancel the members",
            what: "batch cancel",
            effect: "No member that is missing begins, in whatever group. Handlers that run are asked to stop, and what waits for its time \
                     is removed. Each that is cancelled is dead. The batch completes when all have ended.",
        },
        _ => Change {
            is_cancel: false,
            verb: "Close",
            what: "batch close",
            effect: "Each member that is missing counts as dead, and the batch completes. This is for members that nobody will handle any \
                     more. It stops nothing: one that is handled all the same is done then.",
        },
    }
}

/// Reads the batch in the path, and fails unless the user may change it so.
async fn read(cx: &Context, change: &Change) -> Result<BatchState, Failure> {
    let id = id(cx)?;
    let state = cx.admin().batch(&id).await.map_err(|error| failure(&id, error))?;
    if change.is_cancel && !may_cancel(cx, &state) {
        let user = cx.access.user();
        let why = format!(
            "{user} may not do this: it needs the right `admin` to all topics and delay queues where members were sent"
        );
        return Err(Failure::forbidden(why));
    }
    Ok(state)
}

/// Asks before a change.
pub(crate) async fn confirm(cx: Context) -> Result<Page, Failure> {
    let (id, change) = (id(&cx)?, change_of(cx.route));
    let state = read(&cx, &change).await?;
    let topic = &id.place.topic;
    let mut page = topic_page(format!("{}: batch {id}", change.verb), topic, cx.route)
        .crumb("Batches", Href::of(paths::BATCHES, &[topic.as_str()]))
        .crumb("Batch", href(paths::BATCH, &id));
    page.push(Part::facts(
        "",
        vec![
            ("State", word(&state)),
            ("Members", count(state.members)),
            ("Done", count(state.done)),
            ("Dead", Cell::alarm(Some(u64::from(state.dead)), Tone::Warn)),
            ("Missing", count(state.missing())),
        ],
    ));
    if has_ended(&state) {
        page.push(Part::notice(Tone::Plain, "All of its members have ended: nothing is left to change."));
        return Ok(page);
    }
    page.push(Part::notice(Tone::Bad, change.effect));
    let is_open = state.sealed.is_none();
    if is_open {
        let why = match change.is_cancel {
            true => "The batch is open: members that are added later are cancelled too.",
            false => "The batch is open: it is sealed first, and gets no further members.",
        };
        page.push(Part::notice(Tone::Warn, why));
    }
    let expected = if is_open { ALL.to_owned() } else { state.missing().to_string() };
    let what =
        if is_open { "the number of members can change" } else { "the number of those that are missing" };
    let label = format!("Type {expected} to confirm ({what})");
    let form = Form::action(
        change.verb,
        href(cx.route, &id),
        vec![Field::new("confirm", label, "").required()],
        change.verb,
    );
    page.push(Part::Form(form.danger().hide("expected", expected)));
    Ok(page)
}

/// Makes a change that was confirmed.
pub(crate) async fn change(cx: Context, params: Params) -> Result<Href, Failure> {
    let (id, change) = (id(&cx)?, change_of(cx.route));
    let expected: String = params.needed("expected")?;
    params.confirmed(&expected)?;
    let before = read(&cx, &change).await?;
    let mut counted = None;
    if expected != ALL {
        let number: u32 = expected
            .parse()
            .map_err(|_| Failure::invalid("the number of members is not valid: count again"))?;
        // What is confirmed is what happens: a batch that is sealed gets no further members.
        if before.sealed.is_none() || before.missing() > number {
            let why = "nothing was changed: more members are missing by now: count again";
            return Err(Failure::new(StatusCode::CONFLICT, why).of("confirm"));
        }
        counted = Some(u64::from(number));
    }
    let subject = Subject::topic(&id.place.topic).select("batch", id.to_string());
    let order = Order::new(change.what, subject).expecting(counted);
    let order = order.shown_at("The batch", href(paths::BATCH, &id));
    let (admin, app) = (cx.admin(), cx.app.clone());
    if !change.is_cancel {
        return cx
            .act(order, |action| async move {
                let after = admin.close_batch(&id).await?;
                action.add(u64::from(after.dead.saturating_sub(before.dead)));
                note_counts(&action, &after);
                Ok(())
            })
            .await;
    }
    cx.act(order, |action| async move {
        let cancelled = admin.cancel_batch(&id).await;
        // Also after an error: a part may be done.
        for topic in targets(&before).into_iter().filter_map(|target| TopicName::new(target).ok()) {
            app.reading.changed(&topic, None);
        }
        let cancelled = cancelled?;
        action.add(cancelled.removed);
        if cancelled.removed > 0 {
            let removed = format::of(cancelled.removed, "member", "members");
            action.note(format!("{removed} waited for a time or a retry: removed"));
        }
        if !cancelled.gone.is_empty() {
            // Not their names: who sees the action may not see them.
            let gone = format::of(cancelled.gone.len() as u64, "topic or delay queue", "topics and delay queues");
            action.note(format!("{gone} of members not found: close the batch if it does not end"));
        }
        if cancelled.state.missing() > 0 {
            let missing = format::of(u64::from(cancelled.state.missing()), "member", "members");
            action.note(format!(
                "{missing} not ended so far: a consumer or worker says so of each when it comes to it, and handlers that run were asked to stop"
            ));
        }
        note_counts(&action, &cancelled.state);
        Ok(())
    })
    .await
}

/// Notes the counts of a batch after a change.
fn note_counts(action: &Action, state: &BatchState) {
    let [members, done, dead, missing] =
        [state.members, state.done, state.dead, state.missing()].map(|it| format::count(u64::from(it)));
    action.note(format!("the batch has {members} members now: {done} done, {dead} dead, {missing} missing"));
}
