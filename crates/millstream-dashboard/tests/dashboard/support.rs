//! Requests to a router, without a network.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use millstream::Millstream;
use millstream_dashboard::{Access, dashboard};
use tower::ServiceExt;

use super::place::{self, Place};

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the target of a redirection.
    pub(crate) fn location(&self) -> &str {
        self.headers
            .get("location")
            .and_then(|it| it.to_str().ok())
            .unwrap_or_else(|| panic!("no location: {self:?}"))
    }
}

/// A queue with a router of its dashboard.
pub(crate) struct Scene {
    pub(crate) mq: Millstream,
    pub(crate) place: Place,
    pub(crate) router: Router,
    /// The same, as its host serves it.
    host: Router,
}

/// Layer of the host, which lets only those pass whom it knows.
async fn known(request: Request<Body>, next: Next) -> Response {
    if request.headers().contains_key("x-session") {
        next.run(request).await
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    }
}

impl Scene {
    pub(crate) async fn new(access: impl Fn() -> Access + Send + Sync + 'static) -> Self {
        Self::over(super::queue().await, access).await
    }

    /// A queue in which a verification finds something.
    pub(crate) async fn unsound(access: impl Fn() -> Access + Send + Sync + 'static) -> Self {
        Self::over(place::unsound(&super::queue().await), access).await
    }

    async fn over(mq: Millstream, access: impl Fn() -> Access + Send + Sync + 'static) -> Self {
        let place = place::fill(&mq).await;
        let router = dashboard(mq.clone()).access(move |_| access()).router();
        let host = if super::PREFIX.is_empty() {
            router.clone()
        } else {
            Router::new().nest_service(super::PREFIX, router.clone()).layer(from_fn(known))
        };
        Self { mq, place, router, host }
    }

    /// Checks that a change was begun, and returns the page of the action when it has ended.
    pub(crate) async fn ended(&self, answer: Answer) -> String {
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
        let id = answer.location().rsplit('/').next().unwrap_or_default().to_owned();
        let path = format!("/actions/{id}");
        let is_over = async || !self.get(&path).await.body.contains("running");
        place::eventually("it ends", is_over).await;
        self.get(&path).await.body
    }

    /// Pauses a group, so that there is an action.
    pub(crate) async fn act(&mut self) {
        let answer = self.post("/topics/orders/groups/billing/pause", &[]).await;
        self.place.action = answer.location().rsplit('/').next().unwrap_or_default().to_owned();
    }

    /// Returns a page. On a busy machine one that counts is asked for again until the count is complete.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = || Request::get(format!("{}{path}", super::PREFIX)).header("x-session", "ann");
        loop {
            let answer = ask(&self.host, request()).await;
            if !answer.body.contains("counting goes on") {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends a form as a browser sends one of the dashboard's pages.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let request = Request::post(format!("{}{path}", super::PREFIX))
            .header("x-session", "ann")
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded");
        answer(&self.host, request.body(Body::from(fields.join("&"))).expect("a request")).await
    }
}

pub(crate) async fn ask(router: &Router, request: axum::http::request::Builder) -> Answer {
    answer(router, request.body(Body::empty()).expect("a request")).await
}

pub(crate) async fn answer(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.expect("it cannot fail");
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, 16 << 20).await.expect("a body");
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8_lossy(&bytes).into_owned(),
    }
}
