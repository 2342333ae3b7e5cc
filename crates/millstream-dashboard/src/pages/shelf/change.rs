//! Changes of all that matches: counted, confirmed, and made in the background. The route says what is changed, and how.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use millstream::admin::{Failed, Replay, ReplayTo, ShelfAction, ShelfFilter};
use millstream::{MessageId, Partition, Timestamp, TopicName};
use tokio::time::Instant;

use super::{Kind, Place, open_letters};
use crate::access::Permission;
use crate::actions::{Order, shelf};
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::reading::counts::SAMPLE;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part};

/// Word that confirms an action whose extent is not known.
const ALL: &str = "all";
/// Time after which no further retries or tasks are counted.
const BUDGET: Duration = Duration::from_secs(3);
/// Maximum number of retries that one action changes: their ids are kept meanwhile.
const MOST: u64 = 1_000_000;

/// Change that a route makes: its kind, what is done, and its words on the page and on the command line.
fn change_of(route: &str) -> (Kind, ShelfAction, &'static str, &'static str) {
    match route {
        paths::DEAD_REPLAY => (Kind::Letters, ShelfAction::Retry, "Replay", "dlq replay"),
        paths::DEAD_PURGE => (Kind::Letters, ShelfAction::Drop, "Purge", "dlq purge"),
        paths::RETRIES_NOW => (Kind::Retries, ShelfAction::Retry, "Run now", "retries now"),
        paths::RETRIES_KILL => (Kind::Retries, ShelfAction::Drop, "Give up", "retries kill"),
        paths::TASKS_REPLAY => (Kind::Tasks, ShelfAction::Retry, "Replay", "queue dead replay"),
        _ => (Kind::Tasks, ShelfAction::Drop, "Purge", "queue dead purge"),
    }
}

/// Asks before a change.
pub(crate) async fn confirm(cx: Context) -> Result<Page, Failure> {
    let (kind, action, verb, _) = change_of(cx.route);
    let place = Place::new(&cx, kind)?;
    let counted = count(&cx, &place, &place.filter(&cx.query)?).await?;
    let (one, many) = place.noun();
    let what = format::of(counted.matched, one, many);
    let what = if counted.so_far.is_none() { what } else { format!("at least {what}") };
    let mut page = place.page(format!("{verb} {many} of {}", place.name()), cx.route);
    if let Some(looked_at) = counted.so_far {
        // The script shows the progress, unless somebody types.
        page.live = kind == Kind::Letters;
        let looked = format::of(looked_at, one, many);
        let goes_on = if page.live { "; counting goes on while this page is open" } else { "" };
        page.push(Part::notice(Tone::Warn, format!("{looked} examined so far{goes_on}.")));
    }
    let expected = match counted.so_far {
        None => counted.matched.to_string(),
        Some(_) => ALL.to_owned(),
    };
    let conditions = selection::conditions(&cx.query)?;
    if !conditions.is_empty() {
        let rows = conditions.into_iter().map(|(name, value)| (name.to_owned(), Cell::mono(value)));
        // A fingerprint says nothing to people.
        let example = counted.sample.first().map(|it| Cell::text(Text::short(it.facts().error)));
        let rows = rows.chain(example.map(|error| ("error of one of them".to_owned(), error)));
        page.push(Part::Facts { title: "Those that match".to_owned(), rows: rows.collect() });
    }
    let effect = match (kind, action) {
        (Kind::Letters, ShelfAction::Drop) => {
            "They are deleted permanently. An export can be imported again."
        }
        (Kind::Retries, ShelfAction::Retry) => "They are due at once, as their next attempts.",
        (Kind::Retries, ShelfAction::Drop) => "They become dead letters with the reason killed.",
        (_, ShelfAction::Retry) => "They come back at once, as first attempts.",
        (_, ShelfAction::Drop) => "They are deleted permanently.",
    };
    let is_lost = action == ShelfAction::Drop && kind != Kind::Retries;
    page.push(Part::notice(if is_lost { Tone::Bad } else { Tone::Plain }, effect));
    if counted.matched > 0 {
        let is_replay = (kind, action) == (Kind::Letters, ShelfAction::Retry);
        let mut fields = Vec::new();
        if is_replay {
            let hint = "empty: back to the group, as first attempts. A name: as new messages for all groups of that topic";
            fields.extend([
                Field::new("limit", "How many of them", "").hint("the oldest first; empty: all that match"),
                Field::new("rate", "Letters per second", "").hint("empty: no limit"),
                Field::new("to_topic", "To a topic", "").hint(hint),
            ]);
        }
        let other = if is_replay { ", or the number of them that you chose," } else { "" };
        fields.push(Field::new("confirm", format!("Type {expected}{other} to confirm"), "").required());
        let form = Form::action(format!("{verb} {what}"), place.href(cx.route), fields, verb);
        let form = if action == ShelfAction::Drop { form.danger() } else { form };
        let ends =
            if counted.so_far.is_none() { selection::write_ends(&counted.up_to) } else { String::new() };
        let form = form.hide("expected", expected).hide("ends", ends);
        let form = match counted.until {
            Some(until) => form.hide("until", until.to_string()),
            None => form,
        };
        let form = match cx.query.raw("id") {
            Some(id) => form.hide("id", id),
            None => form,
        };
        page.push(Part::Form(selection::hide(form, &cx.query)));
    }
    let (title, empty) = match counted.so_far {
        None => ("The first of them", "Nothing matches."),
        Some(_) => ("Some of them", "Nothing that matches was found yet."),
    };
    Ok(page.table(place.table(title, &counted.sample, empty)))
}

/// What a confirmation is about.
struct Counted {
    matched: u64,
    /// Number of items that were examined, if not all were. Then `matched` is a lower bound.
    so_far: Option<u64>,
    /// Newest item of each partition: what dies later is not part of the action.
    up_to: BTreeMap<Partition, MessageId>,
    /// In its place, the time from which on what dies is not part of it.
    until: Option<Timestamp>,
    /// The first ones, if all were examined.
    sample: Vec<Failed>,
}

/// Counts what matches.
async fn count(cx: &Context, place: &Place, filter: &ShelfFilter) -> Result<Counted, Failure> {
    if place.kind == Kind::Letters && !filter.is_empty() {
        let selected = (selection::key(&cx.query), filter);
        let count = cx.app.reading.letters(&cx.topic()?, &cx.group()?, selected).await?;
        return Ok(Counted {
            matched: count.matched,
            so_far: (!count.is_complete).then_some(count.looked_at),
            up_to: count.up_to.clone(),
            until: None,
            sample: count.last.iter().rev().cloned().collect(),
        });
    }
    let shelf = place.open(cx).await?;
    if filter.is_empty() && place.kind != Kind::Retries {
        // The server knows their number. It is read first: what dies meanwhile is beyond it.
        // Servers of a cluster may differ by milliseconds.
        let now = cx.app.mq.backend().schedule().now().await?;
        let matched = shelf.count().await?;
        let (up_to, until) = match place.kind {
            Kind::Letters => (open_letters(cx).await?.newest().await?, None),
            _ => (BTreeMap::new(), Some(now.saturating_add(Duration::from_millis(1)))),
        };
        let sample = shelf.first(filter, SAMPLE).await?;
        return Ok(Counted { matched, so_far: None, up_to, until, sample });
    }
    let (began, mut matched, mut sample) = (Instant::now(), 0, Vec::new());
    let mut walk = shelf.walk(filter, Some(MOST)).await?;
    while !walk.is_done() && began.elapsed() < BUDGET {
        let found = walk.run_once(SAMPLE * 100).await?;
        matched += found.len() as u64;
        sample.extend(found.into_iter().take(SAMPLE - sample.len().min(SAMPLE)));
    }
    let so_far = (!walk.is_done()).then(|| walk.looked_at());
    let up_to = if place.kind == Kind::Retries { BTreeMap::new() } else { walk.ends().clone() };
    Ok(Counted { matched, so_far, up_to, until: None, sample })
}

/// Fails unless the user may send messages of a topic to another one: there they are seen by all who may see that one.
fn check_target(cx: &Context, topic: &TopicName, target: &TopicName) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::forbidden(why).of("to_topic"));
    if target.is_audit() {
        return refuse(format!("topic {target} is the audit log: nothing is sent there but its entries"));
    }
    if topic.is_audit() {
        return refuse(format!("entries of the audit log are not for those who may see topic {target}"));
    }
    if !cx.may(target, Permission::Operate) {
        return refuse(format!("{} may not send to topic {target}", cx.access.user()));
    }
    if !cx.app.hidden_in_topic(target).covers(&cx.app.hidden_in_topic(topic)) {
        return refuse(format!(
            "parts of messages that are redacted in topic {topic} are not in topic {target}"
        ));
    }
    Ok(())
}

/// Makes a change that was confirmed.
pub(crate) async fn change(cx: Context, params: Params) -> Result<Href, Failure> {
    let (kind, action, _, what) = change_of(cx.route);
    let place = Place::new(&cx, kind)?;
    let mut filter = place.filter(&params)?;
    let is_replay = (kind, action) == (Kind::Letters, ShelfAction::Retry);
    let expected: String = params.needed("expected")?;
    // Whoever wants some of them types that number: what is confirmed is what happens.
    let some = params.text("limit")?.filter(|_| is_replay);
    params.confirmed(some.map_or(&*expected, str::trim))?;
    let mut limit: Option<u64> = None;
    if expected != ALL {
        let ends = selection::read_ends(params.raw("ends").unwrap_or_default())?;
        filter.up_to = Some(ends).filter(|ends| kind == Kind::Letters || !ends.is_empty());
        let number = expected.parse();
        limit = Some(number.map_err(|_| Failure::invalid("the selection is not valid: count again"))?);
    }
    let mut subject = place.subject().select_all(selection::conditions(&params)?);
    if !is_replay {
        let order = Order::new(what, subject).expecting(limit);
        let limit = if kind == Kind::Retries { limit.or(Some(MOST)) } else { limit };
        let acting = place.open(&cx).await?.act(&filter, limit, action, None).await?;
        return cx.act(order, |running| async move { shelf::change(&running, acting).await }).await;
    }
    let topic = cx.topic()?;
    let rate: Option<f64> = params.parsed("rate")?;
    if let Some(some) = params.parsed::<NonZeroU64>("limit")? {
        // At most as many as were confirmed.
        limit = Some(limit.unwrap_or(u64::MAX).min(some.get()));
        subject = subject.set("limit", some.to_string());
    }
    if let Some(rate) = rate {
        subject = subject.set("rate", rate.to_string());
    }
    let mut to = ReplayTo::Group;
    if let Some(target) = params.parsed::<TopicName>("to_topic")? {
        check_target(&cx, &topic, &target)?;
        subject = subject.set("to_topic", target.as_str());
        to = ReplayTo::Topic { topic: target, partition: None };
    }
    let settings = Replay { to, rate, limit, ..Replay::default() };
    let queue = open_letters(&cx).await?;
    // Refuses invalid settings before the action begins.
    drop(queue.replayer(&filter, settings.clone()).await?);
    let order = Order::new(what, subject).expecting(limit);
    cx.act(order, |running| async move { shelf::replay(&running, &queue, &filter, settings).await }).await
}
