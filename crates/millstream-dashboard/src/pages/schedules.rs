//! Recurring messages: their rules and next times.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use millstream::delay::{DelayQueue, Recur, RecurringEntry, RecurringMessages};
use millstream::{Timestamp, Topic, TopicName};

use super::queues::{self, queue_page};
use super::{content, topic_page};
use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::reading::health;
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
    let mut entries = Home::of(&cx).await?.list().await?;
    entries.sort_by_key(|entry| (entry.next.is_none(), entry.next));
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

/// Says when it fires next, or why it does not.
fn next(entry: &RecurringEntry) -> Cell {
    let Some(next) = entry.next.filter(|_| !entry.paused) else {
        let (text, tone) = if entry.paused { ("paused", Tone::Warn) } else { ("never again", Tone::Dim) };
        return Cell { rank: Some(f64::MAX), ..Cell::chip(text, tone) };
    };
    let late = Timestamp::from(SystemTime::now()).saturating_duration_since(next);
    // Nobody fires it, or it has lost its place among those that become due.
    let Some(tone) = health::lateness(late) else { return Cell::time(next) };
    let late = Cell::chip(format!("late by {}", format::duration(late)), tone);
    Cell { rank: Some(next.as_millis() as f64), ..late }
}

/// Returns a rule in words: `every 10 min`, `daily at 09:00, Europe/Zurich (0 9 * * *)`. One that a later version has written stays
/// as it is stored.
fn words(rule: &str) -> String {
    let mut parts = rule.split(' ');
    match (parts.next(), parts.next()) {
        (Some("every"), Some(period)) => {
            let period = period.parse().map(|ms| format::duration(Duration::from_millis(ms)));
            period.map_or_else(|_| rule.to_owned(), |period| format!("every {period}"))
        }
        (Some("cron"), Some(zone)) => {
            // The policy for missed times may have words of its own; the pattern is at the end.
            let rest: Vec<&str> = parts.collect();
            let is_field =
                |it: &&&str| it.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '*' | '?'));
            let fields = rest.iter().rev().take(6).rev().skip_while(|it| !is_field(it)).copied();
            let fields: Vec<&str> = fields.collect();
            let pattern = &fields[fields.len().saturating_sub(5)..];
            match cron_words(pattern) {
                Some(words) if fields.len() == 5 => format!("{words}, {zone} ({})", pattern.join(" ")),
                _ => format!("{} ({zone})", fields.join(" ")),
            }
        }
        _ => rule.to_owned(),
    }
}

fn cron_words(pattern: &[&str]) -> Option<String> {
    const DAYS: [&str; 8] =
        ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let [minute, hour, day, month, weekday] = pattern else { return None };
    let number = |text: &str| text.parse::<usize>().ok();
    match (number(minute), number(hour), *day, *month, *weekday) {
        (Some(minute), Some(hour), day, "*", weekday) => {
            let at = format!("at {hour:02}:{minute:02}");
            match (day, weekday) {
                ("*", "*") => Some(format!("daily {at}")),
                ("*", "1-5") => Some(format!("Monday to Friday {at}")),
                ("*", weekday) => Some(format!("every {} {at}", DAYS.get(number(weekday)?)?)),
                (day, "*") => Some(format!("on day {} of the month {at}", number(day)?)),
                _ => None,
            }
        }
        (Some(minute), None, "*", "*", "*") if *hour == "*" => Some(format!("hourly at :{minute:02}")),
        (None, None, "*", "*", "*") if *hour == "*" => match minute.strip_prefix("*/") {
            Some(step) => Some(format!("every {} min", number(step)?)),
            None => (*minute == "*").then(|| "every minute".to_owned()),
        },
        _ => None,
    }
}

fn rules(entries: &[RecurringEntry], change: Option<&Href>, hidden: &Redaction) -> Table {
    let titles = ["Id", "When", "Next", "Key", "Payload", ""];
    let mut table = Table::new("Recurring messages", &titles, "No message recurs here.");
    if entries.len() > SHOWN {
        table = table.note(format!("The first {SHOWN} of {}", format::count(entries.len() as u64)));
    }
    table.rows(entries.iter().take(SHOWN).map(|entry| {
        let id = entry.id.to_string();
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
            Cell::text(Text::short(&words(&entry.rule))),
            next(entry),
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
    let mut places: Vec<(Cell, &str, Result<Home, Failure>)> = Vec::new();
    for topic in topics.iter().filter(may).take(PLACES) {
        let home = Cell::link(topic.as_str(), Href::of(paths::TOPIC_SCHEDULES, &[topic.as_str()]));
        places.push((home, "topic", Home::topic(&cx, topic).await));
    }
    let mut is_cut = topics.iter().filter(may).count() > PLACES;
    let mut failed: Vec<Failure> = Vec::new();
    if cx.access.allows(Permission::Read) {
        let left = PLACES - places.len();
        match cx.app.reading.queues().await {
            Ok(queues) => {
                is_cut |= queues.len() > left;
                for name in queues.iter().take(left) {
                    let home = Cell::link(name.as_str(), Href::of(paths::QUEUE_SCHEDULES, &[name.as_str()]));
                    places.push((home, "delay queue", queues::open(&cx, name).await.map(Home::Queue)));
                }
            }
            Err(error) => failed.push(error.into()),
        }
    }
    let mut rows = Vec::new();
    for (home, kind, place) in places {
        let list = match place {
            Ok(place) => place.list().await,
            Err(failure) => Err(failure),
        };
        match list {
            Ok(list) => rows.extend(list.into_iter().map(|entry| (home.clone(), kind, entry))),
            // What cannot be read of one hides no other.
            Err(failure) => failed.push(failure),
        }
    }
    rows.sort_by_key(|(_, _, entry)| (entry.next.is_none(), entry.next));
    let mut page = Page::new("Schedules");
    for failure in failed {
        page.push(Part::notice(Tone::Bad, failure.why));
    }
    if is_cut {
        let why = format!("Only the first {PLACES} topics and queues: the others have a page of their own.");
        page.push(Part::notice(Tone::Warn, why));
    }
    let titles = ["Id", "When", "Next", "Of", ""];
    let mut table = Table::new("Recurring messages, the next ones first", &titles, "No message recurs.");
    table.columns[4].title = "Kind".into();
    Ok(page.table(table.rows(rows.into_iter().take(SHOWN).map(|(home, kind, entry)| {
        vec![
            Cell::mono(Text::short(entry.id.as_str())),
            Cell::text(Text::short(&words(&entry.rule))),
            next(&entry),
            home,
            Cell::text(kind),
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

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn rules_are_words() {
        for (rule, expected) in [
            ("every 600000 anchor 1700000000000 skip", "every 10 min"),
            ("cron Europe/Zurich once 0 9 * * *", "daily at 09:00, Europe/Zurich (0 9 * * *)"),
            ("cron UTC once 30 7 * * 1", "every Monday at 07:30, UTC (30 7 * * 1)"),
            ("cron UTC all:5 grace:1000 30 7 * * 1-5", "Monday to Friday at 07:30, UTC (30 7 * * 1-5)"),
            ("cron UTC skip */10 * * * *", "every 10 min, UTC (*/10 * * * *)"),
            ("cron UTC once 15 * * * *", "hourly at :15, UTC (15 * * * *)"),
            ("cron UTC once 0 6 1 * *", "on day 1 of the month at 06:00, UTC (0 6 1 * *)"),
            ("cron UTC once 0 6 1 1 *", "0 6 1 1 * (UTC)"),
            ("whenever it suits", "whenever it suits"),
        ] {
            assert_eq!(words(rule), expected, "{rule}");
        }
    }
}
