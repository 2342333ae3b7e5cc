//! Messages of a topic: browsing, filtering, and the payload of one.

pub(crate) mod cancel;
pub(crate) mod steps;
pub(crate) mod story;
pub(crate) mod work;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use millstream::admin::{Browse, Message, Range};
use millstream::crates::core::Limits;
use millstream::{MessageId, Partition};

use super::{content, topic_page};
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::Cell;
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Maximum number of entries that a search examines for a page.
const LOOKS: u64 = 5_000;

/// Shows messages that match.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    let hidden = cx.app.hidden_in_topic(&topic);
    let limit = cx.query.clamped("limit", 1..=200, 50);
    let newest_first = cx.query.raw("order") != Some("oldest");
    let mut filter = selection::message(&cx.query, &hidden)?;
    filter.id = cx.query.parsed::<MessageId>("id")?;
    let mut range = Range { newest_first, ..Range::ALL };
    if let Some(time) = selection::when(&cx.query, "from")? {
        range.after = MessageId::new(time.as_millis(), 0).previous();
    }
    if let Some(time) = selection::when(&cx.query, "until")? {
        range.before = MessageId::new(time.as_millis(), 0);
    }
    let partition: Option<u32> = cx.query.parsed("partition")?;
    let browse = Browse {
        partitions: partition.map(|partition| vec![Partition(partition)]),
        range,
        limit: limit as usize,
        after: cx.query.parsed("after")?,
        ..Browse::default()
    };
    let is_search = filter != millstream::admin::Filter::default();
    let found = if is_search {
        cx.admin().find(&topic, &browse, &filter, LOOKS).await?
    } else {
        cx.admin().messages(&topic, &browse).await?
    };
    let here = Href::of(paths::MESSAGES, &[topic.as_str()]);
    let mut page = topic_page(format!("Messages of {topic}"), &topic, paths::MESSAGES);
    let titles = ["Message", "Time", ">Partition", "Key", "Payload"];
    // The form above selects from all of them.
    let mut table = Table { filters: false, ..Table::new("Messages", &titles, "No message matches.") };
    if is_search {
        let looked = format::count(found.looked_at);
        table = table.note(format!("{} of {looked} examined", found.messages.len()));
    }
    table.rows = found.messages.iter().map(|message| row(&topic, message, &hidden)).collect();
    if let Some(next) = found.next {
        let order = if newest_first { "newest" } else { "oldest" };
        let next = selection::link(here.clone(), &cx.query)
            .with("order", order)
            .with("limit", limit)
            .with("after", next);
        table = table.link(if is_search { "Search on" } else { "Next page" }, next);
    }
    let value = |name: &str| cx.query.raw(name).unwrap_or_default().to_owned();
    let choices = [("newest", "newest first"), ("oldest", "oldest first")];
    let order = if newest_first { "newest" } else { "oldest" };
    let mut fields = vec![
        Field::new("order", "Order", order).input(Input::Choice(
            choices.map(|(value, label)| (value.to_owned(), label.to_owned())).to_vec(),
        )),
        Field::new("id", "Id", value("id")),
    ];
    let of_message = ["partition", "key", "header", "payload", "from", "until"];
    fields.extend(
        selection::fields(&cx.query, &hidden, false).into_iter().filter(|it| of_message.contains(&it.name)),
    );
    fields.push(Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 200 }));
    page.push(Part::Form(Form::filter("Filter", here, fields).folding()));
    Ok(page.table(table))
}

fn row(topic: &millstream::TopicName, message: &Message, hidden: &crate::redaction::Redaction) -> Vec<Cell> {
    let (partition, id) = (message.topic_partition.partition.0, message.stored.id);
    let story = Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), &id.to_string()]);
    let [key, payload] = content(message.decode(&Limits::NONE).envelope, hidden);
    vec![
        Cell { mono: true, ..Cell::link(id.to_string(), story) },
        Cell::time(id.timestamp()),
        Cell::text(partition.to_string()),
        key,
        payload,
    ]
}

/// Finds a message in the log.
pub(crate) async fn find(cx: &Context) -> Result<Option<Message>, Failure> {
    let (partition, id) = cx.place()?;
    let range = Range { after: id.previous(), before: id.next(), newest_first: false };
    let browse = Browse { partitions: Some(vec![partition]), range, limit: 1, ..Browse::default() };
    let found = cx.admin().messages(&cx.topic()?, &browse).await?;
    Ok(found.messages.into_iter().next())
}

/// Sends the payload of a message, byte for byte, as a file.
pub(crate) async fn payload(cx: Context) -> Result<Response, Failure> {
    let topic = cx.topic()?;
    if cx.app.hidden_in_topic(&topic).hides_payload() {
        return Err(Failure::forbidden("payloads of this topic are redacted"));
    }
    let (partition, id) = cx.place()?;
    let missing = || Failure::missing(format!("message {id} is not in the log of partition {}", partition.0));
    let message = find(&cx).await?.ok_or_else(missing)?;
    let envelope = message.decode(&Limits::NONE).envelope;
    let envelope = envelope.map_err(|why| Failure::invalid(format!("no message: {why}")))?;
    let name = format!("attachment; filename=\"{topic}-{}-{id}\"", partition.0);
    let headers =
        [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, envelope.payload).into_response())
}
