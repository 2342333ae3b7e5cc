//! The answers that are figures: metrics and lag.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use millstream_core::{Error, ErrorKind, GroupName, TopicName};
use serde::Serialize;
use tokio::time::Instant;

use super::App;
use crate::lag::Lag;

/// How long an answer about all topics is given again: many autoscalers ask for each of their groups.
const FRESH: Duration = Duration::from_secs(1);

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.observer.show_consumers();
    app.sampler.tell_age();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.prometheus.render()).into_response()
}

#[derive(Serialize)]
struct Lags<'a> {
    groups: &'a [Lag],
}

pub(super) async fn lags(State(app): State<Arc<App>>) -> Response {
    let mut last = app.lags.lock().await;
    if last.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
        match app.observer.lags(&app.backend).await {
            Ok(all) => *last = Some((Instant::now(), all)),
            Err(error) => return failed(&error),
        }
    }
    let groups = last.as_ref().map_or(&[][..], |(_, all)| all);
    Json(Lags { groups }).into_response()
}

pub(super) async fn lag(
    State(app): State<Arc<App>>,
    Path((topic, group)): Path<(String, String)>,
) -> Response {
    let (topic, group) = match (TopicName::new(&topic), GroupName::new(&group)) {
        (Ok(topic), Ok(group)) => (topic, group),
        (Err(error), _) | (_, Err(error)) => return failed(&error),
    };
    match app.observer.lag(&app.backend, &topic, &group).await {
        Ok(Some(lag)) => Json(lag).into_response(),
        Ok(None) => failed(&Error::new(
            ErrorKind::NotFound,
            format!("topic {topic} has no group {group}, or is not there"),
        )),
        Err(error) => failed(&error),
    }
}

#[derive(Serialize)]
struct Failed {
    error: String,
    kind: &'static str,
}

/// Never a number that is not known: whoever scales by it has to decide what to do without one.
fn failed(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::InvalidName => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(Failed { error: error.to_string(), kind: error.kind().as_str() })).into_response()
}
