//! One dead letter: why it died, its content, and the edit before a replay.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::Bytes;
use millstream::admin::{Edit, Failed, Replay, ShelfFilter, ShelfQuery};
use millstream::crates::core::{Fingerprint, Limits};
use millstream::{DeadLetter, MessageId, Partition};

use super::{Kind, Place, letter_href, message, open_letters};
use crate::access::Permission;
use crate::actions::{Order, shelf};
use crate::failure::Failure;
use crate::pages::messages::story;
use crate::pages::selection;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Button, Field, Form, Input};
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part};

/// Number of letters that are read to find the one beside another, and maximum number that is examined for it.
const BESIDE: usize = 200;
const LOOKS: u64 = 1_000;
/// Longest payload that can be edited in a form.
const EDITABLE: usize = 256 << 10;

/// Returns whether a browser sends a text back as it was: it makes all line breaks the same, and knows no NUL.
fn survives_a_form(text: &str) -> bool {
    let (breaks, pairs) = (text.matches('\n').count(), text.matches("\r\n").count());
    let returns = text.matches('\r').count();
    !text.contains('\0') && returns == pairs && (pairs == 0 || pairs == breaks)
}

/// Finds the letter in the path. To be edited, nothing of it may be hidden.
async fn find(cx: &Context, to_edit: bool) -> Result<(Place, DeadLetter), Failure> {
    let (partition, id) = cx.place()?;
    let place = Place::new(cx, Kind::Letters)?;
    if to_edit && (place.hidden.hides_payload() || place.hidden.hides_key()) {
        return Err(Failure::forbidden("messages of this topic are redacted: they cannot be edited here"));
    }
    let undecodable_error = place.hidden.undecodable_error();
    let filter = ShelfFilter { undecodable_error, ..ShelfFilter::one(partition, id) };
    let found = place.open(cx).await?.first(&filter, 1).await?.into_iter().find_map(Failed::letter);
    let why = "it was replayed or deleted, or its retention has dropped it";
    let missing =
        || Failure::missing(format!("there is no dead letter {id} in partition {partition}: {why}"));
    Ok((place, found.ok_or_else(missing)?))
}

/// Shows a letter.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let (place, letter) = find(&cx, false).await?;
    let (partition, id) = (letter.topic_partition.partition, letter.id.to_string());
    let mut page = place.page(format!("Dead letter {id}"), paths::LETTER);
    page = page.crumb("Dead letters", place.href(paths::DEAD));
    let fingerprint = Fingerprint::of(&letter.error);
    let same = place.href(paths::DEAD_LIST).with("fingerprint", fingerprint);
    let mut actions = Cell::default();
    if place.may(&cx, Permission::Operate) {
        let button = Button::new("Replay", id.as_str(), place.href(paths::DEAD_REPLAY));
        let button = button.with("id", id.as_str()).with("partition", partition.to_string());
        let ends = format!("{partition}:{id}");
        actions.buttons.push(button.with("expected", "1").with("confirm", "1").with("ends", ends));
    }
    let [newer, older] = beside(&cx, &place, &letter).await?;
    let step = |text: &str, to: Option<(Partition, MessageId)>| {
        let (partition, id) = to?;
        let href = letter_href(paths::LETTER, &topic, &group, partition.0, &id.to_string());
        Some((Text::from(text), selection::link(href, &cx.query)))
    };
    actions.links.extend(step("← newer", newer).into_iter().chain(step("older →", older)));
    if place.may(&cx, Permission::Admin) {
        let edit = letter_href(paths::LETTER_EDIT, &topic, &group, partition.0, &id);
        let purge = place.href(paths::DEAD_PURGE).with("id", &id).with("partition", partition);
        actions.links.extend([("Edit and replay…".into(), edit), ("Purge…".into(), purge)]);
    }
    page.actions = actions;
    page.push(Part::Code { title: "Error".to_owned(), text: Text::block(&letter.error) });
    page.push(Part::facts(
        "",
        vec![
            ("Died", Cell::time(letter.id.timestamp())),
            ("Attempts", Cell::count(u64::from(letter.attempts))),
            ("Reason", Cell::text(letter.reason.as_str())),
            ("Message", message(&topic, partition, letter.origin)),
            ("Partition", Cell::text(partition.to_string())),
            ("Letters with this error", Cell::link("list them", same)),
        ],
    ));
    page.push(Part::Table(story::attempts(&letter.history)));
    story::content(&mut page, &cx, letter.envelope(&Limits::NONE), &place.hidden);
    Ok(page)
}

/// Returns the letters beside this one in the list that the query selects: the newer and the older one.
async fn beside(
    cx: &Context,
    place: &Place,
    letter: &DeadLetter,
) -> Result<[Option<(Partition, MessageId)>; 2], Failure> {
    // The order of the list: the newest first, those of the same time by partition.
    let listed = |(partition, id): &(Partition, MessageId)| (Reverse(*id), *partition);
    let (at, shelf) = ((letter.topic_partition.partition, letter.id), place.open(cx).await?);
    let mut found = [None, None];
    for (newest_first, found) in [false, true].into_iter().zip(&mut found) {
        let mut filter = place.filter(&cx.query)?;
        let time = letter.id.timestamp();
        if newest_first {
            filter.before = Some(time.saturating_add(Duration::from_millis(1)));
        } else {
            filter.from = Some(time);
        }
        // Those of the same millisecond are among them.
        let query = ShelfQuery { filter, newest_first, limit: BESIDE, looks: LOOKS, ..ShelfQuery::default() };
        let items = shelf.page(&query).await?.items;
        let all = items.iter().map(|it| (it.facts().partition, it.facts().id));
        *found = if newest_first {
            all.filter(|it| listed(it) > listed(&at)).min_by_key(listed)
        } else {
            all.filter(|it| listed(it) < listed(&at)).max_by_key(listed)
        };
    }
    Ok(found)
}

/// Shows the form for an edit.
pub(crate) async fn form(cx: Context) -> Result<Page, Failure> {
    let (place, letter) = find(&cx, true).await?;
    let page = place.page(format!("Edit dead letter {}", letter.id), paths::LETTER_EDIT);
    let page = page.crumb("Dead letters", place.href(paths::DEAD));
    let (payload, key) = match letter.envelope(&Limits::NONE) {
        Ok(envelope) => (envelope.payload, envelope.key.unwrap_or_default()),
        Err(_) => (Bytes::new(), Bytes::new()),
    };
    let why = match (std::str::from_utf8(&payload), std::str::from_utf8(&key)) {
        (Ok(text), Ok(key)) if !survives_a_form(text) || key.contains(['\0', '\r', '\n']) => {
            "A browser would change the line breaks of this message"
        }
        (Ok(text), Ok(_)) if text.len() > EDITABLE => "The payload is larger than 256 KiB",
        (Ok(text), Ok(key)) => {
            // A browser sends line breaks as CR LF.
            let breaks = if text.contains("\r\n") { "crlf" } else { "lf" };
            let fields = vec![
                Field::new("payload", "Payload", text).input(Input::Area),
                Field::new("key", "Key", key).hint("empty: no key"),
                Field::new("header", "Set a header", "").hint("name=value"),
                Field::new("remove", "Remove a header", "").hint("name"),
            ];
            let form = Form::action("Edit and replay", cx.here(), fields, "Replay with these changes");
            let effect = "It goes back to the group as a first attempt, in the partition where it died.";
            let page = page.with(Part::notice(Tone::Plain, effect));
            return Ok(page.with(Part::Form(form.hide("breaks", breaks))));
        }
        _ => "The payload or the key is no text",
    };
    let text = format!("{why}: edit it with `millstream dlq replay --edit`.");
    Ok(page.with(Part::notice(Tone::Warn, text)))
}

/// Names what an edit changes, without its values.
fn edited(edit: &Edit) -> String {
    let header = |name: &String| format!("header {name}");
    let parts = [("payload", edit.payload.is_some()), ("key", edit.key.is_some())];
    let parts = parts.into_iter().filter(|(_, is_changed)| *is_changed).map(|(part, _)| part.to_owned());
    let set = edit.set_headers.iter().map(|(name, _)| header(name));
    let all: Vec<_> = parts.chain(set).chain(edit.remove_headers.iter().map(header)).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

/// Replays a letter with changes.
pub(crate) async fn edit(cx: Context, params: Params) -> Result<Href, Failure> {
    let (place, letter) = find(&cx, true).await?;
    let now = letter.envelope(&Limits::NONE).ok();
    let mut payload = params.raw("payload").ok_or_else(|| Failure::invalid("payload is missing"))?.to_owned();
    if params.raw("breaks") != Some("crlf") {
        payload = payload.replace("\r\n", "\n");
    }
    let payload =
        Some(Bytes::from(payload)).filter(|payload| now.as_ref().is_none_or(|now| now.payload != *payload));
    let key = params.text("key")?.map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let key = Some(key).filter(|key| now.as_ref().is_none_or(|now| now.key != *key));
    let mut edit = Edit { payload, key, ..Edit::default() };
    if let Some(header) = params.text("header")? {
        let (name, value) =
            header.split_once('=').ok_or_else(|| Failure::invalid("a header is name=value").of("header"))?;
        edit.set_headers.push((name.to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    }
    edit.remove_headers.extend(params.text("remove")?.map(str::to_owned));
    let partition = letter.topic_partition.partition;
    let filter = ShelfFilter::one(partition, letter.id);
    let subject = place.subject().select("id", letter.id.to_string());
    let subject = subject.select("partition", partition.to_string()).set("edited", edited(&edit));
    let settings = Replay { edit, limit: Some(1), ..Replay::default() };
    let queue = open_letters(&cx).await?;
    let order = Order::new("dlq replay", subject).expecting(Some(1));
    cx.act(order, |running| async move { shelf::replay(&running, &queue, &filter, settings).await }).await
}

#[cfg(test)]
mod tests {
    use super::survives_a_form;

    #[test]
    fn line_breaks_of_one_kind_survive() {
        for text in ["", "one line", "a\nb\n", "a\r\nb\r\n", "\u{1b}[31m"] {
            assert!(survives_a_form(text), "{text:?}");
        }
        for text in ["a\rb", "a\r\nb\n", "a\0b", "\r\r\n"] {
            assert!(!survives_a_form(text), "{text:?}");
        }
    }
}
