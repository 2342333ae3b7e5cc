//! Messages that were sent for later.

use std::time::Duration;

use millstream::DelayedMessages;

use super::queues::id;
use super::{content, topic_page};
use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::Cell;
use crate::view::form::{Button, Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Longest delay of a message that is rescheduled, in seconds: a year.
const FARTHEST: u64 = 366 * 86_400;

async fn open(cx: &Context) -> Result<DelayedMessages, Failure> {
    let topic = cx.admin().topic(&cx.topic()?).await?;
    Ok(DelayedMessages::new(cx.app.mq.backend().clone(), topic))
}

/// Shows delayed messages, the next ones first.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    let hidden = cx.app.hidden_in_topic(&topic);
    let limit = cx.query.clamped("limit", 1..=200, 50);
    let delayed = open(&cx).await?;
    let here = Href::of(paths::DELAYED, &[topic.as_str()]);
    let mut page = topic_page(format!("Delayed messages of {topic}"), &topic, paths::DELAYED);
    let titles = ["Id", "Due", ">Partition", "Key", "Payload", ""];
    let mut table = Table::new("Delayed, the next ones first", &titles, "No message is delayed.");
    let messages = match cx.query.text("id")? {
        Some(id) => delayed.get(id).await?.into_iter().collect(),
        None => {
            page = page.live();
            delayed.list(None, limit as usize).await?
        }
    };
    let waiting = delayed.count().await?;
    if waiting.total > 0 {
        table = table.note(format!("{} of {}", messages.len(), format::count(waiting.total)));
    }
    let on = |path| Href::of(path, &[topic.as_str()]);
    for message in messages {
        let id = message.id.to_string();
        let mut buttons = Vec::new();
        if cx.may(&topic, Permission::Operate) {
            buttons
                .push(Button::new("send now", id.as_str(), on(paths::DELAYED_NOW)).with("id", id.as_str()));
        }
        if cx.may(&topic, Permission::Admin) && cx.query.raw("id").is_some() {
            buttons.push(
                Button::new("cancel", id.as_str(), on(paths::DELAYED_CANCEL))
                    .with("id", id.as_str())
                    .danger(),
            );
        }
        let [key, payload] = content(message.envelope, &hidden);
        let open = here.clone().with("id", &id);
        table.rows.push(vec![
            Cell { mono: true, ..Cell::link(Text::short(&id), open) },
            Cell::time(message.due),
            Cell::text(message.topic_partition.partition.0.to_string()),
            key,
            payload,
            Cell::buttons(buttons),
        ]);
    }
    page.push(Part::Table(table));
    let fields = vec![
        Field::new("id", "Id", cx.query.raw("id").unwrap_or_default()),
        Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 200 }),
    ];
    page.push(Part::Form(Form::filter("Find", here, fields)));
    if let Some(id) = cx.query.raw("id").filter(|id| !id.is_empty())
        && cx.may(&topic, Permission::Operate)
    {
        let field = Field::new("delay", "Due in, seconds from now", "60")
            .input(Input::Number { min: 0, max: FARTHEST });
        let form = Form::action("Reschedule", on(paths::DELAYED_MOVE), vec![field.required()], "Reschedule");
        page.push(Part::Form(form.hide("id", id)));
    }
    Ok(page)
}

/// Makes a message due now, cancels it, or gives it another due time.
pub(crate) async fn change(cx: Context, params: Params) -> Result<Href, Failure> {
    let (topic, id, delayed) = (cx.topic()?, id(&params)?, open(&cx).await?);
    let mut subject = Subject::topic(&topic).select("id", &*id);
    let (what, due) = match cx.route {
        paths::DELAYED_NOW => ("delayed now", Some(Duration::ZERO)),
        paths::DELAYED_CANCEL => ("delayed cancel", None),
        _ => {
            let delay = params.clamped("delay", 0..=FARTHEST, 60);
            subject = subject.set("delay_seconds", delay.to_string());
            ("delayed reschedule", Some(Duration::from_secs(delay)))
        }
    };
    let order = Order::new(what, subject).expecting(Some(1));
    cx.act_once(order, "it does not wait (any more)", async move {
        match due {
            Some(delay) => delayed.reschedule(&id, delay).await,
            None => delayed.cancel(&id).await,
        }
    })
    .await
}
