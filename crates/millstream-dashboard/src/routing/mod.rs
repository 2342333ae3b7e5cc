//! The table of routes: router, access checks, links and tests are made from it.

pub(crate) mod guard;
mod refused;
pub(crate) mod table;

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use axum::Form;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};

use crate::access::Permission;
use crate::app::App;
use crate::failure::Failure;
use crate::reading::sampler;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::Page;
use crate::view::href::Href;

/// Largest body of a request: a payload that was edited, encoded for a form.
const MAX_BODY: usize = 4 << 20;

/// What a route's permission is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Nothing: it has no content of the queue.
    Open,
    /// Any right suffices: the page shows what the user may see.
    Any,
    /// A right to everything that is no topic.
    General,
    /// A right to the topic in the path.
    Topic,
    /// A right to what the action in the path is about.
    Action,
}

/// Line of the table.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) needs: Permission,
    pub(crate) scope: Scope,
    /// Title in the list of pages.
    pub(crate) nav: Option<&'static str>,
    /// Of a page that tabs refresh: the commands for each partition that it costs beside shared readings.
    pub(crate) live: Option<u64>,
    pub(crate) make: fn() -> MethodRouter<Arc<App>>,
}

impl Route {
    /// Number of slashes in the path.
    pub(crate) fn depth(&self) -> usize {
        self.path.matches('/').count()
    }
}

// The router makes much code for each type of handler that it is given. So there is one type for each kind of route, which
// calls the function of the route.
type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;
type Reader<T> = Arc<dyn Fn(Context) -> Answer<T> + Send + Sync>;
type Changer = Arc<dyn Fn(Context, Params) -> Answer<Href> + Send + Sync>;

/// Makes a page, with its tables in the order that a query has.
async fn arranged(handler: &Reader<Page>, cx: Context, query: &Params) -> Result<Page, Failure> {
    let here = cx.here();
    let mut page = handler(cx).await?;
    page.arrange(&query.pairs().collect::<Vec<_>>(), &here);
    Ok(page)
}

/// Makes the handler of a page.
pub(crate) fn page<F, Fut>(handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Page, Failure>> + Send + 'static,
{
    page_of(Arc::new(move |cx| Box::pin(handler(cx))))
}

fn page_of(handler: Reader<Page>) -> MethodRouter<Arc<App>> {
    get(move |cx: Context| async move {
        sampler::begin(&cx.app.reading, true);
        let shown = match cx.once_for_all(|| arranged(&handler, cx.clone(), &cx.query)).await {
            Err(failure) if failure.status.is_client_error() && !cx.query.is_empty() => {
                // Of a page that exists, the form for another query.
                let none = Params::default();
                let page = arranged(&handler, cx.with_query(none.clone()), &none).await.ok();
                let page = page.and_then(|page| refused::query(&cx, page, &failure));
                page.map(Arc::new).ok_or(failure)
            }
            shown => shown,
        };
        cx.show(shown)
    })
}

/// Makes the handler of an answer that is no page.
pub(crate) fn file<F, Fut>(handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, Failure>> + Send + 'static,
{
    file_of(Arc::new(move |cx| Box::pin(handler(cx))))
}

fn file_of(handler: Reader<Response>) -> MethodRouter<Arc<App>> {
    get(move |cx: Context| async move {
        match handler(cx.clone()).await {
            Ok(response) => response,
            Err(failure) => cx.show(Err(failure)),
        }
    })
}

/// Makes the handler of a change without a form to fill, after which the browser is sent to another page.
pub(crate) fn change<F, Fut>(handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Context, Params) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Href, Failure>> + Send + 'static,
{
    change_on(|_| ready(Err(Failure::missing("it has no page"))), handler)
}

/// Makes the handler of a change whose form is on a page: that page is shown again, with what was sent, if it is refused.
pub(crate) fn change_on<P, Made, F, Fut>(page: P, handler: F) -> MethodRouter<Arc<App>>
where
    P: Fn(Context) -> Made + Send + Sync + 'static,
    Made: Future<Output = Result<Page, Failure>> + Send + 'static,
    F: Fn(Context, Params) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Href, Failure>> + Send + 'static,
{
    change_of(Arc::new(move |cx| Box::pin(page(cx))), Arc::new(move |cx, sent| Box::pin(handler(cx, sent))))
}

fn change_of(page: Reader<Page>, handler: Changer) -> MethodRouter<Arc<App>> {
    post(move |cx: Context, form: Result<Form<Vec<(String, String)>>, FormRejection>| async move {
        let Form(fields) = match form {
            Ok(form) => form,
            Err(why) => return cx.show(Err(Failure::new(why.status(), why.body_text()))),
        };
        let sent = Params::new(fields);
        let failure = match handler(cx.clone(), sent.clone()).await {
            Ok(href) => return cx.redirect(&href),
            Err(failure) => failure,
        };
        // The page as it was, for the same selection: that is part of what was sent.
        let again = arranged(&page, cx.with_query(sent.clone()), &Params::default()).await;
        cx.show(again.map(|page| Arc::new(refused::change(&cx, page, &failure, &sent))).map_err(|_| failure))
    })
}

/// Headers of all answers.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    // With `no-referrer` browsers would send no origin either, and forms would be refused.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

async fn secured(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    // Files with a hash in their name say otherwise.
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Makes the router of all routes.
pub(crate) fn router(app: &Arc<App>) -> Router {
    sampler::begin(&app.reading, false);
    let mut router = Router::new();
    for route in table::ROUTES {
        let guarded = (route.make)().layer(from_fn_with_state((app.clone(), route), guard::guard));
        router = router.route(route.path, guarded);
    }
    let router = router.fallback(guard::missing);
    router.layer(DefaultBodyLimit::max(MAX_BODY)).layer(map_response(secured)).with_state(app.clone())
}
