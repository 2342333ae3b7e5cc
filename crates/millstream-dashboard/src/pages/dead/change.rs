//! Replay and purge of all letters that match: counted, confirmed, and done in the background.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use millstream::admin::{DeadLetterFilter, Replay, ReplayTo};
use millstream::{DeadLetter, MessageId, Partition, TopicName};

use super::{letter_href, open};
use crate::access::Permission;
use crate::actions::{Order, letters};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::selection;
use crate::pages::{group_href, group_page};
use crate::paths;
use crate::reading::counts::SAMPLE;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Word that confirms an action whose extent is not known.
const ALL: &str = "all";

/// Fails unless the confirmation is what the form asked for.
pub(crate) fn confirmed(params: &Params, expected: &str) -> Result<(), Failure> {
    let typed = params.text("confirm")?.unwrap_or_default().replace([',', ' '], "");
    if typed == expected {
        Ok(())
    } else {
        Err(Failure::invalid(format!("nothing was changed: type {expected} to confirm")).of("confirm"))
    }
}

/// Asks before letters are replayed.
pub(crate) async fn confirm_replay(cx: Context) -> Result<Page, Failure> {
    let number = Field::new("limit", "How many of them", "").hint("the oldest first; empty: all that match");
    let rate = Field::new("rate", "Letters per second", "").hint("empty: no limit");
    let to = Field::new("to_topic", "To a topic", "").hint(
        "empty: back to the group, as first attempts. A name: as new messages for all groups of that topic",
    );
    confirm(cx, paths::DEAD_REPLAY, "Replay", vec![number, rate, to]).await
}

/// Asks before letters are deleted.
pub(crate) async fn confirm_purge(cx: Context) -> Result<Page, Failure> {
    confirm(cx, paths::DEAD_PURGE, "Purge", Vec::new()).await
}

async fn confirm(
    cx: Context,
    path: &'static str,
    verb: &str,
    mut fields: Vec<Field>,
) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let hidden = cx.app.hidden_in_topic(&topic);
    let filter = selection::letters(&cx.query, &hidden)?;
    let counted = count(&cx, &filter).await?;
    let letters = format::of(counted.matched, "dead letter", "dead letters");
    let what = if counted.so_far.is_none() { letters } else { format!("at least {letters}") };
    let mut page = group_page(format!("{verb} dead letters of {group}"), &topic, &group, path);
    if let Some(looked_at) = counted.so_far {
        // The script shows the progress, unless somebody types.
        page.live = true;
        let looked = format::count(looked_at);
        let text =
            format!("{looked} dead letters examined so far; counting goes on while this page is open.");
        page.push(Part::notice(Tone::Warn, text));
    }
    let (expected, ends) = if counted.so_far.is_none() {
        (counted.matched.to_string(), selection::write_ends(&counted.up_to))
    } else {
        (ALL.to_owned(), String::new())
    };
    let conditions = selection::conditions(&cx.query)?;
    if !conditions.is_empty() {
        let rows = conditions.into_iter().map(|(name, value)| (name.to_owned(), Cell::mono(value)));
        // A fingerprint says nothing to people.
        let example = counted.sample.first().map(|it| Cell::text(Text::short(&it.error)));
        let rows = rows.chain(example.map(|error| ("error of one of them".to_owned(), error)));
        page.push(Part::Facts { title: "Those that match".to_owned(), rows: rows.collect() });
    }
    if verb == "Purge" {
        page.push(Part::notice(Tone::Bad, "They are deleted permanently. An export can be imported again."));
    }
    if counted.matched > 0 {
        let other = if verb == "Purge" { "" } else { ", or the number of them that you chose," };
        fields.push(Field::new("confirm", format!("Type {expected}{other} to confirm"), "").required());
        let form = Form::action(format!("{verb} {what}"), group_href(path, &topic, &group), fields, verb);
        let form = if verb == "Purge" { form.danger() } else { form };
        let form = form.hide("expected", expected).hide("ends", ends);
        let form = match cx.query.raw("id") {
            Some(id) => form.hide("id", id),
            None => form,
        };
        page.push(Part::Form(selection::hide(form, &cx.query)));
    }
    let rows = counted.sample.iter().map(|letter| {
        let (partition, id) = (letter.topic_partition.partition.0, letter.id.to_string());
        vec![
            Cell {
                mono: true,
                ..Cell::link(id.as_str(), letter_href(paths::LETTER, &topic, &group, partition, &id))
            },
            Cell::time(letter.id.timestamp()),
            Cell::text(letter.reason.as_str()),
            Cell::text(Text::short(&letter.error)),
        ]
    });
    let titles = ["Letter", "Died", "Reason", "Error"];
    let (title, empty) = match counted.so_far {
        None => ("The oldest of them, which come first", "No letter matches."),
        Some(_) => ("Some of them", "No letter that matches was found yet."),
    };
    Ok(page.table(Table::new(title, &titles, empty).rows(rows)))
}

/// Dead letters that a confirmation is about.
struct Counted {
    matched: u64,
    /// Number of letters that were examined, if not all were. Then `matched` is a lower bound.
    so_far: Option<u64>,
    /// Newest matching letter of each partition: letters that die later are not part of the action.
    up_to: BTreeMap<Partition, MessageId>,
    /// The oldest ones, if all were examined.
    sample: Vec<DeadLetter>,
}

/// Counts the letters that match.
async fn count(cx: &Context, filter: &DeadLetterFilter) -> Result<Counted, Failure> {
    let queue = open(cx).await?;
    if filter.is_empty() {
        // The server knows their number. It is read first: what dies meanwhile is beyond it.
        let matched = queue.count().await?;
        let (up_to, mut sample) = tokio::try_join!(queue.newest(), queue.list(SAMPLE))?;
        let hidden = cx.app.hidden_in_topic(&cx.topic()?);
        sample.iter_mut().for_each(|letter| hidden.conceal(letter));
        return Ok(Counted { matched, so_far: None, up_to, sample });
    }
    let selected = (selection::key(&cx.query), filter);
    let count = cx.app.reading.letters(&cx.topic()?, &cx.group()?, selected).await?;
    Ok(Counted {
        matched: count.matched,
        so_far: (!count.is_complete).then_some(count.looked_at),
        up_to: count.up_to.clone(),
        sample: count.last.iter().rev().cloned().collect(),
    })
}

/// Reads the selection of a form that was confirmed.
fn selected(
    cx: &Context,
    params: &Params,
    topic: &TopicName,
    may_be_some: bool,
) -> Result<(DeadLetterFilter, Option<u64>), Failure> {
    let mut filter = selection::letters(params, &cx.app.hidden_in_topic(topic))?;
    let expected: String = params.needed("expected")?;
    // Whoever wants some of them types that number: what is confirmed is what happens.
    let some = params.text("limit")?.filter(|_| may_be_some);
    confirmed(params, some.map_or(&*expected, str::trim))?;
    if expected == ALL {
        return Ok((filter, None));
    }
    filter.up_to = Some(selection::read_ends(params.raw("ends").unwrap_or_default())?);
    let expected =
        expected.parse().map_err(|_| Failure::invalid("the selection is not valid: count again"))?;
    Ok((filter, Some(expected)))
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

/// Replays letters.
pub(crate) async fn replay(cx: Context, params: Params) -> Result<Href, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let (filter, expected) = selected(&cx, &params, &topic, true)?;
    let rate: Option<f64> = params.parsed("rate")?;
    // At most as many as were confirmed.
    let limit: Option<NonZeroU64> = params.parsed("limit")?;
    let expected = limit.map(NonZeroU64::get).into_iter().chain(expected).min();
    let mut subject = Subject::group(&topic, &group).select_all(selection::conditions(&params)?);
    if let Some(limit) = limit {
        subject = subject.set("limit", limit.to_string());
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
    let settings = Replay { to, rate, limit: expected, ..Replay::default() };
    let queue = open(&cx).await?;
    // Refuses invalid settings before the action begins.
    drop(queue.replayer(&filter, settings.clone()).await?);
    let order = Order::new("dlq replay", subject).expecting(expected);
    let app = cx.app.clone();
    cx.act(order, |running| async move {
        let done = letters::replay(&running, &queue, &filter, settings).await;
        app.reading.changed(&topic, Some(&group));
        done
    })
    .await
}

/// Deletes letters.
pub(crate) async fn purge(cx: Context, params: Params) -> Result<Href, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let (filter, expected) = selected(&cx, &params, &topic, false)?;
    let queue = open(&cx).await?;
    let subject = Subject::group(&topic, &group).select_all(selection::conditions(&params)?);
    let order = Order::new("dlq purge", subject).expecting(expected);
    let app = cx.app.clone();
    cx.act(order, |running| async move {
        let done = letters::purge(&running, &queue, &filter, expected).await;
        app.reading.changed(&topic, Some(&group));
        done
    })
    .await
}
