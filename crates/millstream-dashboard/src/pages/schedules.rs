//! Recurring messages: their rules and next times.

use bytes::Bytes;
use millstream::delay::{DelayQueue, Recur, RecurringEntry, RecurringMessages, Rule};
use millstream::{Topic, TopicName};

use super::queues::{self, queue_page};
use super::{content, topic_page};
use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::Button;
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};
use millstream::crates::core::{Limits, wire};

/// Maximum number of rules of a page.
const SHOWN: usize = 200;
/// Maximum number of topics and queues whose rules the page of all of them reads.
const PLACES: usize = 50;

/// Where rules are stored.
enum Home {
    Topic(Box<RecurringMessages<Bytes>>),
    Queue(DelayQueue<Bytes>),
}

impl Home {
    async fn topic(cx: &Context, topic: &TopicName) -> Result<Self, Failure> {
        let spec = cx.admin().topic(topic).await?;
        let codec = Topic::raw("").codec();
        Ok(Self::Topic(Box::new(RecurringMessages::new(cx.app.mq.backend().clone(), spec, codec))))
    }

    /// Opens the topic or the delay queue in the path.
    async fn of(cx: &Context) -> Result<Self, Failure> {
        match cx.path.raw("topic") {
            Some(_) => Self::topic(cx, &cx.topic()?).await,
            None => Ok(Self::Queue(queues::open(cx, &cx.queue()?).await?)),
        }
    }

    async fn list(&self) -> Result<Vec<RecurringEntry>, Failure> {
        Ok(match self {
            Self::Topic(messages) => messages.list().await?,
            Self::Queue(queue) => queue.recurring_list().await?,
        })
    }

    fn recur(&self, id: &str) -> Recur<'_, Bytes> {
        match self {
            Self::Topic(messages) => messages.id(id),
            Self::Queue(queue) => queue.recurring(id),
        }
    }
}

/// Shows the rules of the topic or the delay queue in the path.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let entries = Home::of(&cx).await?.list().await?;
    let (page, hidden, may, change) = if cx.path.raw("topic").is_some() {
        let topic = cx.topic()?;
        let page = topic_page(format!("Schedules of {topic}"), &topic, paths::TOPIC_SCHEDULES);
        let change = Href::of(paths::TOPIC_SCHEDULES_CHANGE, &[topic.as_str()]);
        (page, cx.app.hidden_in_topic(&topic), cx.may(&topic, Permission::Operate), change)
    } else {
        let name = cx.queue()?;
        let page = queue_page(format!("Schedules of {name}"), &name, paths::QUEUE_SCHEDULES);
        let change = Href::of(paths::QUEUE_SCHEDULES_CHANGE, &[name.as_str()]);
        (page, cx.app.hidden_in_queue(&name), cx.access.allows(Permission::Operate), change)
    };
    Ok(page.table(rules(&entries, may.then_some(&change), &hidden)))
}

fn rules(entries: &[RecurringEntry], change: Option<&Href>, hidden: &Redaction) -> Table {
    let titles = ["Id", "Rule", "Next", "Then", "State", "Key", "Payload", ""];
    let mut table = Table::new("Recurring messages", &titles, "No message recurs here.");
    if entries.len() > SHOWN {
        table = table.note(format!("The first {SHOWN} of {}", format::count(entries.len() as u64)));
    }
    table.rows(entries.iter().take(SHOWN).map(|entry| {
        let id = entry.id.to_string();
        // A rule that a later version has written is shown as it is stored.
        let rule: Option<Rule> = entry.rule.parse().ok();
        let then = entry.next.zip(rule).and_then(|(next, rule)| rule.next_after(next));
        let state =
            if entry.paused { Cell::toned("paused", Tone::Warn) } else { Cell::toned("active", Tone::Good) };
        let [key, payload] = content(wire::decode_body(&entry.message, &Limits::NONE), hidden);
        let button = |label: &'static str, word: &str, href: &Href| {
            Button::new(label, id.as_str(), href.clone()).with("id", id.as_str()).with("change", word)
        };
        let buttons = change.into_iter().flat_map(|href| {
            let pause =
                if entry.paused { button("resume", "resume", href) } else { button("pause", "pause", href) };
            [button("run now", "now", href), pause]
        });
        vec![
            Cell::mono(Text::short(&id)),
            Cell::mono(Text::short(&entry.rule)),
            Cell::time_or_none(entry.next),
            Cell::time_or_none(then),
            state,
            key,
            payload,
            Cell::buttons(buttons.collect()),
        ]
    }))
}

/// Shows the next times of all topics and queues.
pub(crate) async fn all(cx: Context) -> Result<Page, Failure> {
    let topics = cx.app.reading.topics().await?;
    let may = |topic: &&TopicName| cx.may(topic, Permission::Read);
    let (mut rows, mut left) = (Vec::new(), PLACES);
    for topic in topics.iter().filter(may).take(PLACES) {
        left -= 1;
        let home = Cell::link(topic.as_str(), Href::of(paths::TOPIC_SCHEDULES, &[topic.as_str()]));
        rows.extend(
            Home::topic(&cx, topic)
                .await?
                .list()
                .await?
                .into_iter()
                .map(|entry| (home.clone(), "topic", entry)),
        );
    }
    let mut is_cut = topics.iter().filter(may).count() > PLACES;
    if cx.access.allows(Permission::Read) {
        let queues = cx.app.reading.queues().await?;
        is_cut |= queues.len() > left;
        for name in queues.iter().take(left) {
            let home = Cell::link(name.as_str(), Href::of(paths::QUEUE_SCHEDULES, &[name.as_str()]));
            let entries = Home::Queue(queues::open(&cx, name).await?).list().await?;
            rows.extend(entries.into_iter().map(|entry| (home.clone(), "delay queue", entry)));
        }
    }
    rows.sort_by_key(|(_, _, entry)| (entry.next.is_none(), entry.next));
    let mut page = Page::new("Schedules");
    if is_cut {
        let why = format!("Only the first {PLACES} topics and queues: the others have a page of their own.");
        page.push(Part::notice(Tone::Warn, why));
    }
    let titles = ["Next", "Id", "Of", "", "Rule", "State"];
    let mut table = Table::new("Recurring messages, the next ones first", &titles, "No message recurs.");
    table.columns[3].title = "Kind".into();
    Ok(page.table(table.rows(rows.into_iter().take(SHOWN).map(|(home, kind, entry)| {
        let state =
            if entry.paused { Cell::toned("paused", Tone::Warn) } else { Cell::toned("active", Tone::Good) };
        vec![
            Cell::time_or_none(entry.next),
            Cell::mono(Text::short(entry.id.as_str())),
            home,
            Cell::text(kind),
            Cell::mono(Text::short(&entry.rule)),
            state,
        ]
    }))))
}

/// Changes a rule.
pub(crate) async fn change(cx: Context, params: Params) -> Result<Href, Failure> {
    let (home, id) = (Home::of(&cx).await?, queues::id(&params)?);
    let subject = match cx.path.raw("topic") {
        Some(_) => Subject::topic(&cx.topic()?),
        None => Subject::queue(&cx.queue()?),
    };
    let what = match params.raw("change") {
        Some("pause") => "schedule pause",
        Some("resume") => "schedule resume",
        Some("now") => "schedule now",
        _ => return Err(Failure::invalid("change is pause, resume or now")),
    };
    let order = Order::new(what, subject.select("id", &*id));
    cx.act_once(order, "there is no such rule", async move {
        let recur = home.recur(&id);
        match what {
            "schedule pause" => recur.pause().await,
            "schedule resume" => recur.resume().await,
            _ => recur.run_now().await,
        }
    })
    .await
}
