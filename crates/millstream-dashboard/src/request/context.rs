//! What a handler receives: the application, the user, and the parameters.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millstream::admin::Admin;
use millstream::crates::core::QueueName;
use millstream::{GroupName, MessageId, Partition, TopicName};

use crate::access::{Access, Permission};
use crate::actions::{Action, Order};
use crate::app::App;
use crate::failure::Failure;
use crate::paths;
use crate::request::params::Params;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{self, Frame, Page, Part};

/// Context of a request. Cloning is cheap enough for one request.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) app: Arc<App>,
    pub(crate) access: Access,
    /// Path of the route, with placeholders. Empty if there is none.
    pub(crate) route: &'static str,
    /// Number of slashes in the path of the route.
    pub(crate) depth: usize,
    /// Pages that the user may see: title, link, and whether it is this one.
    pub(crate) nav: Vec<(&'static str, Href, bool)>,
    pub(crate) path: Params,
    pub(crate) query: Params,
    /// Of a page that tabs refresh: the commands for each partition that it costs beside shared readings.
    pub(crate) live: Option<u64>,
    /// Query as the client sent it.
    pub(crate) query_text: String,
    /// Path as the client sent it, with the prefix under which the dashboard is.
    pub(crate) uri: String,
}

impl Context {
    pub(crate) fn admin(&self) -> Admin {
        self.app.mq.admin()
    }

    /// Returns the topic in the path.
    ///
    /// # Errors
    /// An invalid name.
    pub(crate) fn topic(&self) -> Result<TopicName, Failure> {
        self.path.needed("topic")
    }

    /// Returns the group in the path.
    ///
    /// # Errors
    /// An invalid name.
    pub(crate) fn group(&self) -> Result<GroupName, Failure> {
        self.path.needed("group")
    }

    /// Returns the delay queue in the path.
    ///
    /// # Errors
    /// An invalid name.
    pub(crate) fn queue(&self) -> Result<QueueName, Failure> {
        self.path.needed("queue")
    }

    /// Returns the partition and the id in the path.
    ///
    /// # Errors
    /// Invalid ones.
    pub(crate) fn place(&self) -> Result<(Partition, MessageId), Failure> {
        Ok((Partition(self.path.needed("partition")?), self.path.needed("id")?))
    }

    /// Returns whether the user may do this with a topic.
    pub(crate) fn may(&self, topic: &TopicName, permission: Permission) -> bool {
        self.access.allows_topic(topic, permission)
    }

    /// Returns the same context with another query, for a page that is made once.
    pub(crate) fn with_query(&self, query: Params) -> Self {
        Self { query, live: None, ..self.clone() }
    }

    /// Returns the link to this path, without its query.
    pub(crate) fn here(&self) -> Href {
        Href::of(self.route, &self.path.values().collect::<Vec<_>>())
    }

    /// Returns the link out of a page that shows a failure: to the page above, if that may exist.
    pub(crate) fn way_back(&self, status: StatusCode) -> Option<Part> {
        let topic = self.topic().ok().filter(|topic| self.may(topic, Permission::Read));
        let (text, href) = match (topic, self.group(), self.queue()) {
            _ if !self.access.is_any() => return None,
            // It may be what was not found.
            _ if status == StatusCode::NOT_FOUND => {
                ("the overview".to_owned(), Href::of(paths::OVERVIEW, &[]))
            }
            (Some(topic), Ok(group), _) => {
                let href = Href::of(paths::GROUP, &[topic.as_str(), group.as_str()]);
                (format!("group {group}"), href)
            }
            (Some(topic), ..) => (format!("topic {topic}"), Href::of(paths::TOPIC, &[topic.as_str()])),
            (.., Ok(queue)) if self.access.allows(Permission::Read) => {
                (format!("delay queue {queue}"), Href::of(paths::QUEUE, &[queue.as_str()]))
            }
            _ => ("the overview".to_owned(), Href::of(paths::OVERVIEW, &[])),
        };
        Some(Part::Links(vec![(format!("Back to {text}").into(), href)]))
    }

    fn frame(&self) -> Frame {
        Frame {
            depth: self.depth,
            user: Text::short(self.access.user()),
            may: self.access.words(),
            nav: self.nav.clone(),
            wanted: if self.route == paths::FIND {
                self.query.raw("q").unwrap_or_default().to_owned()
            } else {
                String::new()
            },
        }
    }

    /// Runs an action in the background, and returns the page that shows it.
    ///
    /// # Errors
    /// Too many actions at a time, or an audit log that cannot be written.
    pub(crate) async fn act<F, Fut>(&self, order: Order, work: F) -> Result<Href, Failure>
    where
        F: FnOnce(Arc<Action>) -> Fut + Send,
        Fut: Future<Output = millstream::Result<()>> + Send + 'static,
    {
        let (app, subject) = (self.app.clone(), order.subject.clone());
        let and_then = |action| {
            let work = work(action);
            async move {
                let done = work.await;
                // Also after an error: a part may be done.
                if let Some(topic) = subject.topic.and_then(|name| TopicName::new(name).ok()) {
                    let group = subject.group.and_then(|name| GroupName::new(name).ok());
                    app.reading.changed(&topic, group.as_ref());
                }
                done
            }
        };
        let action = self.app.actions.run(self.access.user(), order, and_then).await?;
        self.app.reading.acted();
        Ok(Href::of(paths::ACTION, &[&action.id]))
    }

    /// Runs an action that is done, or not: then `why` says so.
    ///
    /// # Errors
    /// Those of [`act`](Self::act).
    pub(crate) async fn act_once<Fut>(
        &self,
        order: Order,
        why: &'static str,
        work: Fut,
    ) -> Result<Href, Failure>
    where
        Fut: Future<Output = millstream::Result<bool>> + Send + 'static,
    {
        self.act(order, |action| async move {
            let done = work.await?;
            action.set(u64::from(done), u64::from(!done));
            if !done {
                action.note(why);
            }
            Ok(())
        })
        .await
    }

    /// Makes a page, at most once for all tabs that refresh it.
    pub(crate) async fn once_for_all<Fut>(&self, make: impl FnOnce() -> Fut) -> Result<Arc<Page>, Failure>
    where
        Fut: Future<Output = Result<Page, Failure>>,
    {
        let Some(commands) = self.live else { return make().await.map(Arc::new) };
        let topic = match self.path.raw("topic") {
            Some(_) if commands > 0 => {
                let topic = self.topic()?;
                // Its partitions are known from the reading that all these pages use.
                let partitions = self.app.reading.topic(&topic).await?.topic.partitions;
                Some((topic, commands * u64::from(partitions)))
            }
            _ => None,
        };
        let address = format!("{}?{}", self.uri, self.query_text);
        let key = (address, self.access.anonymous());
        self.app.reading.page(key, topic, async || make().await).await
    }

    /// Answers with a page.
    pub(crate) fn show(&self, page: Result<Arc<Page>, Failure>) -> Response {
        let page = page.unwrap_or_else(|failure| {
            let mut page = failure.page();
            page.parts.extend(self.way_back(failure.status));
            Arc::new(page)
        });
        view::render(&page, &self.frame())
    }

    /// Sends the browser to another page, which it fetches by GET.
    pub(crate) fn redirect(&self, href: &Href) -> Response {
        redirect(&href.at_depth(self.depth))
    }
}

/// Sends the browser to a relative address.
pub(crate) fn redirect(location: &str) -> Response {
    match HeaderValue::from_str(location) {
        Ok(location) => (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl FromRequestParts<Arc<App>> for Context {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Self::Rejection> {
        // Without the guard nothing is answered.
        parts.extensions.get::<Self>().cloned().ok_or(StatusCode::FORBIDDEN)
    }
}
