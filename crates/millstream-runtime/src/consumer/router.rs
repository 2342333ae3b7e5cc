//! Several message types in one topic, each with its handler.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::codec::{Json, Raw};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::sorted::SortedMap;
use millstream_core::{BoxError, Codec, Headers, IntoOutcome, Topic};

use crate::consumer::{Consumer, ConsumerBuilder};
use crate::producer::TYPE_HEADER;
use millstream_engine::delivery::Delivery;
use millstream_engine::handler::{Answer, Call, ErasedHandler, Handle, Input, Verdict, typed};

/// Longest part of an unknown type that an error shows, in characters.
const SHOWN: usize = 64;

/// Handlers for several message types of one topic: a header names the type of each message.
///
/// The topic has raw bytes ([`Topic::raw`]), and each type has its own codec, by default JSON.
/// [`Producer::typed`](crate::Producer::typed) sends messages of one type. A message whose type has no handler, or that has no type, becomes
/// a dead letter with the reason [`Undecodable`](millstream_core::Reason::Undecodable), with its bytes as they were, unless there is a handler for
/// [others](Self::otherwise). So consumers learn a new type before producers send it; dead letters can be replayed.
///
/// Retries, order, limits and layers are those of the consumer: a route is chosen on each attempt, inside of the layers and of the
/// [`check`](ConsumerBuilder::check).
///
/// ```
/// use millstream_core::{Result, Topic};
/// use millstream_runtime::{Consumer, ConsumerBuilder, Delivery, Router};
/// use bytes::Bytes;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderCancelled;
///
/// async fn placed(order: Delivery<OrderPlaced>) -> std::result::Result<(), String> { Ok(()) }
/// async fn cancelled(order: Delivery<OrderCancelled>) -> std::result::Result<(), String> { Ok(()) }
///
/// # async fn example(orders: ConsumerBuilder<Bytes>) -> Result<Consumer> {
/// let router = Router::new().on("order.placed", placed).on("order.cancelled", cancelled);
/// orders.start_router(router).await
/// # }
/// ```
#[must_use = "a router does nothing until a consumer starts with it"]
pub struct Router {
    header: String,
    routes: SortedMap<String, Box<dyn Call>>,
    otherwise: Option<Box<dyn Call>>,
    /// Reported when the consumer starts.
    problems: Vec<String>,
}

impl Default for Router {
    fn default() -> Self {
        Self::new()
    }
}

impl Router {
    /// Creates a router without routes, by the header [`millstream-type`](TYPE_HEADER).
    pub fn new() -> Self {
        Self::by_header(TYPE_HEADER)
    }

    /// Creates a router by another header, for example `ce_type` of `CloudEvents`. If a message has several of this name, the first one
    /// counts.
    pub fn by_header(header: impl Into<String>) -> Self {
        Self { header: header.into(), routes: SortedMap::new(), otherwise: None, problems: Vec::new() }
    }

    /// Handles messages of this type, whose payload is JSON. Any handler that [`ConsumerBuilder::start`] takes will do, also one with
    /// [parts of the message](crate::extract) as arguments.
    pub fn on<T, F, Fut>(self, kind: impl Into<String>, handler: F) -> Self
    where
        T: Send + 'static,
        Json: Codec<T>,
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.on_with(kind, &Json, handler)
    }

    /// Handles messages of this type, whose payload has this codec.
    pub fn on_with<T, F, Fut>(
        mut self,
        kind: impl Into<String>,
        codec: &'static dyn Codec<T>,
        handler: F,
    ) -> Self
    where
        T: Send + 'static,
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let kind = kind.into();
        if kind.is_empty() {
            self.problems.push("a type of a router is empty".to_owned());
            return self;
        }
        if self.routes.contains_key(&kind) {
            self.problems.push(format!("type {kind:?} has two handlers in a router"));
        } else {
            self.routes.insert(kind, typed(codec, handler));
        }
        self
    }

    /// Handles messages whose type has no handler, or that have no type, as bytes. Default: they become dead letters. A second call
    /// replaces the first one.
    pub fn otherwise<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Delivery<Bytes>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.otherwise = Some(typed(&Raw, handler));
        self
    }

    /// Handles one message: for tests, with a delivery of [`test::delivery`](crate::test::delivery).
    ///
    /// ```
    /// use millstream_core::event::Cause;
    /// use millstream_runtime::{Delivery, Router, TYPE_HEADER, test};
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let router = Router::new().on("count", async |count: Delivery<u64>| if count.payload > 9 { Err("many") } else { Ok(()) });
    /// let handle = |kind: &'static str, payload: &'static str| {
    ///     router.handle(test::delivery(payload.into()).header(TYPE_HEADER, kind).build())
    /// };
    /// assert!(handle("count", "7").await.is_done());
    /// assert_eq!(handle("count", "10").await.cause(), Some(Cause::Error));
    /// assert_eq!(handle("count", "x").await.cause(), Some(Cause::Undecodable));
    /// assert_eq!(handle("name", "7").await.cause(), Some(Cause::Undecodable));
    /// # });
    /// ```
    pub async fn handle(&self, delivery: Delivery<Bytes>) -> Answer {
        let Delivery { payload, about } = delivery;
        Answer::new(self.call(Input { about, payload }, None).await)
    }

    async fn call(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        let route = self.kind(&input.about.headers).and_then(|kind| self.routes.get(kind));
        match route.or(self.otherwise.as_ref()) {
            Some(handler) => handler.one(input, timeout).await.into_verdict(),
            None => Some(Verdict::Undecodable(self.unknown(&input.about.headers))),
        }
    }

    /// The type of a message. `None` also for one that is not text, which no handler has.
    fn kind<'a>(&self, headers: &'a Headers) -> Option<&'a str> {
        headers.get_str(&self.header)
    }

    fn unknown(&self, headers: &Headers) -> BoxError {
        let header = &self.header;
        match (self.kind(headers), headers.get(header)) {
            (Some(kind), _) => {
                let shown: String = kind.chars().take(SHOWN).collect();
                let cut = if shown.len() < kind.len() { "…" } else { "" };
                format!("there is no handler for messages of the type {shown:?}{cut}").into()
            }
            (None, Some(_)) => format!("the header {header:?} is not text").into(),
            (None, None) => format!("there is no header {header:?}, which names the type").into(),
        }
    }

    fn into_handler(mut self) -> Result<ErasedHandler> {
        if self.routes.is_empty() && self.otherwise.is_none() {
            self.problems.push("a router has no handler".to_owned());
        }
        if self.header.is_empty() {
            self.problems.push("the header of a router has no name".to_owned());
        }
        if self.problems.is_empty() {
            return Ok(ErasedHandler::Each(Box::new(Arc::new(self))));
        }
        Err(Error::new(ErrorKind::InvalidConfig, self.problems.join("; ")))
    }
}

impl Handle for Router {
    fn replies(&self) -> bool {
        self.routes.values().chain(&self.otherwise).any(|handler| handler.replies())
    }

    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        self.call(input, timeout).await
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("header", &self.header)
            .field("types", &self.routes.keys().collect::<Vec<_>>())
            .field("otherwise", &self.otherwise.is_some())
            .finish()
    }
}

impl ConsumerBuilder<Bytes> {
    /// Starts the consumer with a handler for each message type: see [`Router`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a router without handlers, with two for one type, or with an empty type; those of
    /// [`start`](Self::start).
    pub async fn start_router(mut self, router: Router) -> Result<Consumer> {
        let handler = router.into_handler().unwrap_or_else(|error| {
            self.problem(error);
            // It is never called: a consumer with a problem does not start.
            ErasedHandler::Each(typed(&Raw, |_: Delivery<Bytes>| async {}))
        });
        self.launch(handler).await
    }
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Adds a topic with several message types to the same consumer, as [`also`](Self::also) adds one with a single type.
    pub fn also_router(mut self, topic: impl Borrow<Topic<Bytes>>, router: Router) -> Self {
        self.add(topic.borrow().spec(), router.into_handler());
        self
    }
}
