//! Handlers of the routes with figures: metrics and lag.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use millstream_core::{Error, ErrorKind, GroupName, Result, TopicName};
use serde::Serialize;

use crate::http::App;
use crate::sampling::lag::Lag;

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.observer.show_consumers();
    app.sampler.tell_age();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.prometheus.render()).into_response()
}

pub(super) async fn lags(State(app): State<Arc<App>>) -> Response {
    answer(app.lags.lags().await)
}

pub(super) async fn lag(
    State(app): State<Arc<App>>,
    Path((topic, group)): Path<(String, String)>,
) -> Response {
    match (TopicName::new(&topic), GroupName::new(&group)) {
        (Ok(topic), Ok(group)) => answer(app.lags.lag(&topic, &group).await),
        (Err(error), _) | (_, Err(error)) => answer::<Lag>(Err(error)),
    }
}

fn answer<T: Serialize>(answer: Result<T>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => {
            let failed = failed(&error);
            (failed.status, Json(failed)).into_response()
        }
    }
}

/// Error, in the form of the response.
#[derive(Debug, Serialize)]
struct Failed {
    #[serde(skip)]
    status: StatusCode,
    error: String,
    kind: &'static str,
}

/// Converts an error to a response without a number: an autoscaler must decide itself what to do when the lag is unknown.
fn failed(error: &Error) -> Failed {
    let status = match error.kind() {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::InvalidName => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Failed { status, error: error.to_string(), kind: error.kind().as_str() }
}
