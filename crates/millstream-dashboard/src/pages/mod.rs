//! The pages: each reads what it shows, and fills the parts of a [`Page`](crate::view::Page).

pub(crate) mod actions;
pub(crate) mod audit;
pub(crate) mod batches;
pub(crate) mod delayed;
pub(crate) mod find;
pub(crate) mod group;
pub(crate) mod limits;
pub(crate) mod locks;
pub(crate) mod messages;
pub(crate) mod overview;
pub(crate) mod pending;
pub(crate) mod queues;
pub(crate) mod reset;
pub(crate) mod schedules;
pub(crate) mod selection;
pub(crate) mod server;
pub(crate) mod shelf;
pub(crate) mod topic;
pub(crate) mod topics;

use std::fmt::Display;

use axum::response::Response;
use millstream::crates::core::{Envelope, QueueName};
use millstream::{GroupName, TopicName};

use crate::access::Permission;
use crate::audit::subject::Subject;
use crate::paths;
use crate::reading::health::Concern;
use crate::redaction::Redaction;
use crate::request::context::{Context, redirect};
use crate::view::Page;
use crate::view::cell::{Cell, Tone};
use crate::view::href::Href;
use crate::view::text::Text;

/// Sends the browser from the root to the overview. The last segment of the address is kept: a router that is nested at
/// `/mq` gets this request without a slash at its end.
pub(crate) async fn root(cx: Context) -> Response {
    let last = cx.uri.rsplit('/').next().unwrap_or_default();
    let to = paths::OVERVIEW.trim_start_matches('/');
    if last.is_empty() { redirect(to) } else { redirect(&format!("{last}/{to}")) }
}

pub(crate) fn topic_href(topic: &TopicName) -> Href {
    Href::of(paths::TOPIC, &[topic.as_str()])
}

pub(crate) fn group_href(path: &str, topic: &TopicName, group: &GroupName) -> Href {
    Href::of(path, &[topic.as_str(), group.as_str()])
}

/// A page below a topic.
pub(crate) fn topic_page(title: impl Into<Text>, topic: &TopicName, path: &'static str) -> Page {
    let mut page = Page::new(title)
        .crumb("Topics", Href::of(paths::OVERVIEW, &[]))
        .crumb(topic.as_str(), topic_href(topic));
    let tabs = [
        ("State", paths::TOPIC),
        ("Messages", paths::MESSAGES),
        ("Delayed", paths::DELAYED),
        ("Schedules", paths::TOPIC_SCHEDULES),
        ("Batches", paths::BATCHES),
        ("Memory", paths::TOPIC_MEMORY),
        ("Verify", paths::VERIFY),
    ];
    page.tabs = tabs
        .into_iter()
        .map(|(title, of)| (title, (of != path).then(|| Href::of(of, &[topic.as_str()]))))
        .collect();
    page
}

/// A page below a group.
pub(crate) fn group_page(
    title: impl Into<Text>,
    topic: &TopicName,
    group: &GroupName,
    path: &'static str,
) -> Page {
    let mut page = Page::new(title)
        .crumb("Topics", Href::of(paths::OVERVIEW, &[]))
        .crumb(topic.as_str(), topic_href(topic))
        .crumb(group.as_str(), group_href(paths::GROUP, topic, group));
    let tabs = [
        ("State", paths::GROUP),
        ("Dead letters", paths::DEAD),
        ("Retries", paths::RETRIES),
        ("Pending", paths::PENDING),
    ];
    page.tabs = tabs
        .into_iter()
        .map(|(title, of)| (title, (of != path).then(|| group_href(of, topic, group))))
        .collect();
    page
}

/// Maximum number of concerns that a cell names.
const NAMED: usize = 2;

/// Words for the state of something, and how it stands out. Its page has what does not fit.
pub(crate) fn state(concerns: &[Concern], page: Href) -> Cell {
    let Some(worst) = concerns.first() else { return Cell::chip("ok", Tone::Good) };
    let chips = concerns.iter().take(NAMED).map(|it| (Text::line(&it.text), it.tone)).collect();
    let cell = Cell { rank: Some(f64::from(worst.tone as u8)), ..Cell::chips(chips) };
    match concerns.len().saturating_sub(NAMED) {
        0 => cell,
        more => cell.and_links(vec![(format!("and {more} more").into(), page)]),
    }
}

/// Cells for the key and the payload of a message.
pub(crate) fn content(envelope: Result<Envelope, impl Display>, hidden: &Redaction) -> [Cell; 2] {
    match envelope.map(|envelope| hidden.apply(envelope)) {
        Ok(Envelope { key, payload, .. }) => {
            let key = key.map_or_else(Cell::none, |key| Cell::mono(Text::of_bytes(&key)));
            [key, Cell { mono: true, ..Cell::line(Text::of_bytes(&payload)) }]
        }
        Err(why) => [Cell::none(), Cell::toned(format!("no message: {why}"), Tone::Bad)],
    }
}

/// Returns what this user may see of the subject of an action.
pub(crate) fn seen(cx: &Context, mut subject: Subject) -> Subject {
    let topic = subject.topic.as_deref().and_then(|name| TopicName::new(name).ok());
    let queue = subject.queue.as_deref().and_then(|name| QueueName::new(name).ok());
    let hidden = topic.map(|topic| cx.app.hidden_in_topic(&topic));
    let hidden = hidden.or_else(|| queue.map(|queue| cx.app.hidden_in_queue(&queue)));
    if let Some(target) = subject.settings.get_mut("to_topic")
        && !TopicName::new(&*target).is_ok_and(|target| cx.may(&target, Permission::Read))
    {
        "(hidden)".clone_into(target);
    }
    subject.redacted(&hidden.unwrap_or_else(Redaction::none))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_what_it_is() {
        let concern = |text: &str, tone| Concern { tone, text: text.to_owned() };
        let all = [
            concern("no consumer runs", Tone::Bad),
            concern("2 dead letters", Tone::Warn),
            concern("paused", Tone::Warn),
        ];
        let page = || Href::of(paths::TOPIC, &["orders"]);
        let of = |count: usize| state(&all[..count], page());
        assert_eq!(of(0).chips, [("ok".into(), Tone::Good)]);
        let two = [("no consumer runs".into(), Tone::Bad), ("2 dead letters".into(), Tone::Warn)];
        assert_eq!((of(2).worst(), of(2).chips), (Tone::Bad, two.to_vec()));
        assert!(of(2).links.is_empty());
        assert_eq!(of(3).links, [("and 1 more".into(), page())]);
    }
}
