//! One dead letter: why it died, its content, and the edit before a replay.

use bytes::Bytes;
use millstream::admin::{DeadLetterFilter, Edit, Replay};
use millstream::crates::core::{Fingerprint, Limits};
use millstream::{DeadLetter, Partition};

use super::{letter_href, open};
use crate::access::Permission;
use crate::actions::{Order, letters};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::messages::story;
use crate::pages::{group_href, group_page};
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Button, Field, Form, Input};
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part};

/// Longest payload that can be edited in a form.
const EDITABLE: usize = 256 << 10;

/// Returns whether a browser sends a text back as it was: it makes all line breaks the same, and knows no NUL.
fn survives_a_form(text: &str) -> bool {
    let (breaks, pairs) = (text.matches('\n').count(), text.matches("\r\n").count());
    let returns = text.matches('\r').count();
    !text.contains('\0') && returns == pairs && (pairs == 0 || pairs == breaks)
}

async fn find(cx: &Context) -> Result<DeadLetter, Failure> {
    let (partition, id) = cx.place()?;
    let mut found = open(cx).await?.get(partition, id).await?;
    found.iter_mut().for_each(|letter| cx.app.hidden_in_topic(&letter.topic_partition.topic).conceal(letter));
    let missing = || {
        let Partition(partition) = partition;
        Failure::missing(format!(
            "there is no dead letter {id} in partition {partition}: it was replayed or deleted, or its retention has \
             dropped it"
        ))
    };
    found.ok_or_else(missing)
}

/// Shows a letter.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let letter = find(&cx).await?;
    let hidden = cx.app.hidden_in_topic(&topic);
    let (partition, id) = (letter.topic_partition.partition.0, letter.id.to_string());
    let mut page = group_page(format!("Dead letter {id}"), &topic, &group, paths::LETTER)
        .crumb("Dead letters", group_href(paths::DEAD, &topic, &group));
    let origin = letter.origin.to_string();
    let fingerprint = Fingerprint::of(&letter.error);
    let same = group_href(paths::DEAD_LIST, &topic, &group).with("fingerprint", fingerprint);
    page.push(Part::facts(
        "",
        vec![
            ("Error", Cell::toned(Text::line(&letter.error), Tone::Bad)),
            ("Letters with this error", Cell::link("list them", same)),
            ("Fingerprint", Cell::mono(fingerprint.to_string())),
            ("Reason", Cell::text(letter.reason.as_str())),
            ("Attempts", Cell::count(u64::from(letter.attempts))),
            ("Died", Cell::time(letter.id.timestamp())),
            ("Partition", Cell::text(partition.to_string())),
            (
                "Message",
                Cell {
                    mono: true,
                    ..Cell::link(
                        origin.as_str(),
                        Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), &origin]),
                    )
                },
            ),
        ],
    ));
    page.push(Part::Table(story::attempts(&letter.history)));
    story::content(&mut page, letter.envelope(&Limits::NONE), &hidden);
    let on = |path| group_href(path, &topic, &group);
    let mut buttons = Vec::new();
    let one = |button: Button| {
        let button = button.with("id", id.as_str()).with("partition", partition.to_string());
        button.with("expected", "1").with("confirm", "1").with("ends", format!("{partition}:{id}"))
    };
    if cx.may(&topic, Permission::Operate) {
        buttons.push(one(Button::new("replay", id.as_str(), on(paths::DEAD_REPLAY))));
    }
    let mut cell = Cell::buttons(buttons);
    if cx.may(&topic, Permission::Admin) {
        let purge = on(paths::DEAD_PURGE).with("id", &id).with("partition", partition);
        cell = cell.and_links(vec![
            ("edit and replay…".into(), letter_href(paths::LETTER_EDIT, &topic, &group, partition, &id)),
            ("purge…".into(), purge),
        ]);
    }
    if cx.may(&topic, Permission::Operate) {
        page.push(Part::facts("Actions", vec![("This letter", cell)]));
    }
    Ok(page)
}

/// Shows the form for an edit.
pub(crate) async fn form(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let letter = find(&cx).await?;
    let hidden = cx.app.hidden_in_topic(&topic);
    if hidden.hides_payload() || hidden.hides_key() {
        return Err(Failure::forbidden("messages of this topic are redacted: they cannot be edited here"));
    }
    let (partition, id) = (letter.topic_partition.partition.0, letter.id.to_string());
    let mut page = group_page(format!("Edit dead letter {id}"), &topic, &group, paths::LETTER_EDIT)
        .crumb("Dead letters", group_href(paths::DEAD, &topic, &group));
    let (payload, key) = match letter.envelope(&Limits::NONE) {
        Ok(envelope) => (envelope.payload, envelope.key),
        Err(_) => (Bytes::new(), None),
    };
    let (Ok(text), Ok(key)) =
        (std::str::from_utf8(&payload), std::str::from_utf8(key.as_deref().unwrap_or_default()))
    else {
        let why = "The payload or the key is no text: edit it with `millstream dlq replay --edit`.";
        return Ok(page.with(Part::notice(Tone::Warn, why)));
    };
    if !survives_a_form(text) || key.contains(['\0', '\r', '\n']) {
        let why = "A browser would change the line breaks of this message: edit it with `millstream dlq replay --edit`.";
        return Ok(page.with(Part::notice(Tone::Warn, why)));
    }
    if text.len() > EDITABLE {
        let why = "The payload is larger than 256 KiB: edit it with `millstream dlq replay --edit`.";
        return Ok(page.with(Part::notice(Tone::Warn, why)));
    }
    page.push(Part::notice(
        Tone::Plain,
        "It goes back to the group as a first attempt, in the partition where it died.",
    ));
    // A browser sends line breaks as CR LF.
    let breaks = if text.contains("\r\n") { "crlf" } else { "lf" };
    let fields = vec![
        Field::new("payload", "Payload", text).input(Input::Area),
        Field::new("key", "Key", key).hint("empty: no key"),
        Field::new("header", "Set a header", "").hint("name=value"),
        Field::new("remove", "Remove a header", "").hint("name"),
    ];
    let action = letter_href(paths::LETTER_EDIT, &topic, &group, partition, &id);
    Ok(page.with(Part::Form(
        Form::action("Edit and replay", action, fields, "Replay with these changes").hide("breaks", breaks),
    )))
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
    let (topic, group) = (cx.topic()?, cx.group()?);
    let letter = find(&cx).await?;
    let hidden = cx.app.hidden_in_topic(&topic);
    if hidden.hides_payload() || hidden.hides_key() {
        return Err(Failure::forbidden("messages of this topic are redacted: they cannot be edited here"));
    }
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
    let Partition(partition) = letter.topic_partition.partition;
    let filter = DeadLetterFilter {
        partitions: Some(vec![Partition(partition)]),
        ids: Some(vec![letter.id]),
        ..DeadLetterFilter::default()
    };
    let subject = Subject::group(&topic, &group)
        .select("id", letter.id.to_string())
        .select("partition", partition.to_string())
        .set("edited", edited(&edit));
    let settings = Replay { edit, limit: Some(1), ..Replay::default() };
    let queue = open(&cx).await?;
    let order = Order::new("dlq replay", subject).expecting(Some(1));
    let app = cx.app.clone();
    cx.act(order, |running| async move {
        let done = letters::replay(&running, &queue, &filter, settings).await;
        app.reading.changed(&topic, Some(&group));
        done
    })
    .await
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
