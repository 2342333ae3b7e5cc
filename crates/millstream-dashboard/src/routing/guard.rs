//! The check before every handler: who asks, from where, and whether the route is allowed to them.

use std::sync::Arc;

use axum::extract::{OriginalUri, RawPathParams, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use millstream::TopicName;

use super::{Route, Scope, table};
use crate::access::Access;
use crate::app::App;
use crate::auth::Denied;
use crate::failure::Failure;
use crate::origin;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::href::{Href, segment};

/// Maximum length of a query: 200 ids that are checked have some 8 KB.
const MAX_QUERY: usize = 16 << 10;

/// Lets a request pass that its user may make.
pub(crate) async fn guard(
    State((app, route)): State<(Arc<App>, &'static Route)>,
    path: RawPathParams,
    OriginalUri(uri): OriginalUri,
    request: Request,
    next: Next,
) -> Response {
    // Links of a page repeat its query, and pages are kept by it.
    if uri.query().is_some_and(|query| query.len() > MAX_QUERY) {
        return StatusCode::URI_TOO_LONG.into_response();
    }
    let (mut parts, body) = request.into_parts();
    let path = path.iter().map(|(name, value)| (name.to_owned(), segment(value).to_owned())).collect();
    let query = form_fields(uri.query().unwrap_or_default());
    let context = |access: Access| Context {
        app: app.clone(),
        nav: nav(&access, route.path),
        access,
        route: route.path,
        depth: route.depth(),
        path: Params::new(path),
        query: Params::new(query),
        live: route.live,
        query_text: uri.query().unwrap_or_default().to_owned(),
        uri: uri.path().to_owned(),
    };
    let access = match app.auth.access(&parts, &app.log_ins) {
        Ok(access) => app.limited(access),
        Err(Denied { response: Some(response), .. }) => return *response,
        Err(Denied { why, .. }) => return context(Access::none("nobody")).show(Err(Failure::forbidden(why))),
    };
    let cx = context(access);
    let checked = match parts.method {
        // It is recorded who has read it.
        Method::GET | Method::HEAD if route.path == paths::DEAD_EXPORT => origin::check_read(&parts),
        Method::GET | Method::HEAD => Ok(()),
        _ => origin::check(&parts, &cx.app.origins),
    };
    if let Err(failure) = checked.map_err(Failure::forbidden).and_then(|()| allowed(&cx, route)) {
        return cx.show(Err(failure));
    }
    parts.extensions.insert(cx);
    next.run(Request::from_parts(parts, body)).await
}

/// Answers a request for a path that does not exist, with a page.
pub(crate) async fn missing(
    State(app): State<Arc<App>>,
    original: OriginalUri,
    request: Request,
) -> Response {
    let depth = request.uri().path().matches('/').count();
    let (parts, _) = request.into_parts();
    let context = |access: Access| Context {
        app: app.clone(),
        nav: nav(&access, ""),
        access,
        route: "",
        depth,
        path: Params::default(),
        query: Params::default(),
        live: None,
        query_text: String::new(),
        uri: original.0.path().to_owned(),
    };
    match app.auth.access(&parts, &app.log_ins) {
        Ok(access) => context(app.limited(access)).show(Err(Failure::missing("there is no such page"))),
        Err(Denied { response: Some(response), .. }) => *response,
        Err(Denied { why, .. }) => context(Access::none("nobody")).show(Err(Failure::forbidden(why))),
    }
}

/// Returns the pages that a user may see.
fn nav(access: &Access, here: &str) -> Vec<(&'static str, Href, bool)> {
    let is_shown = |route: &&Route| match route.scope {
        Scope::Any => access.is_any(),
        _ => access.allows(route.needs),
    };
    let all = table::ROUTES.iter().filter(is_shown);
    all.filter_map(|route| Some((route.nav?, Href::of(route.path, &[]), route.path == here))).collect()
}

/// Fails unless the user may use the route.
fn allowed(cx: &Context, route: &Route) -> Result<(), Failure> {
    let (access, needs) = (&cx.access, route.needs);
    let is_allowed = match route.scope {
        Scope::Open => true,
        Scope::Any => access.is_any(),
        Scope::General => access.allows(needs),
        Scope::Topic => {
            let topic: TopicName = cx.path.needed("topic")?;
            // The entries of the audit log are about all topics.
            let is_audit = topic.is_audit();
            access.allows_topic(&topic, needs) && (!is_audit || access.is_unlimited())
        }
        Scope::Action => {
            let missing = || {
                Failure::missing(
                    "this process knows no such action: those of others are in the audit log alone",
                )
            };
            let id = cx.path.text("id")?.unwrap_or_default();
            let action = cx.app.actions.get(id).ok_or_else(missing)?;
            match action.topic() {
                Some(topic) => access.allows_topic(topic, needs),
                None => access.allows(needs),
            }
        }
    };
    if is_allowed {
        Ok(())
    } else {
        Err(Failure::new(
            StatusCode::FORBIDDEN,
            format!("{} may not do this: it needs the right `{needs}`", access.user()),
        ))
    }
}

/// Decodes the fields of a query. Invalid bytes are replaced.
fn form_fields(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
        while at < bytes.len() {
            let hex = bytes.get(at + 1..at + 3).and_then(|it| std::str::from_utf8(it).ok());
            match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
                (b'%', Some(byte)) => {
                    out.push(byte);
                    at += 2;
                }
                (b'+', _) => out.push(b' '),
                (byte, _) => out.push(byte),
            }
            at += 1;
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(a, b)| (decode(a), decode(b)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded() {
        let fields = form_fields("key=a%26b+c&empty=&flag&bad=%zz%4&%C3%BC=%ff");
        let expected = [("key", "a&b c"), ("empty", ""), ("flag", ""), ("bad", "%zz%4"), ("ü", "\u{fffd}")];
        assert_eq!(fields, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
