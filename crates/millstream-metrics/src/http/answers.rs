//! Handlers of the routes with figures: metrics and lag.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use millstream_core::{Error, ErrorKind, GroupName, Result, TopicName};
use serde::Serialize;
use tokio::time::timeout;

use crate::http::App;
use crate::sampling::lag::Lag;

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.observer.show_consumers();
    app.sampler.tell_age();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.prometheus.render()).into_response()
}

pub(super) async fn lags(State(app): State<Arc<App>>) -> Response {
    let lags = async { within(&app, app.observer.lags(&app.backend)).await.map_err(|error| failed(&error)) };
    answer(app.lags.get((), lags).await)
}

pub(super) async fn lag(
    State(app): State<Arc<App>>,
    Path((topic, group)): Path<(String, String)>,
) -> Response {
    let (topic, group) = match (TopicName::new(&topic), GroupName::new(&group)) {
        (Ok(topic), Ok(group)) => (topic, group),
        (Err(error), _) | (_, Err(error)) => return answer::<Lag>(Err(failed(&error))),
    };
    let question = (topic.clone(), group.clone());
    let lag = async {
        match within(&app, app.observer.lag(&app.backend, &topic, &group)).await {
            Ok(Some(lag)) => Ok(lag),
            Ok(None) => Err(failed(&Error::new(
                ErrorKind::NotFound,
                format!("topic {topic} has no group {group}, or does not exist"),
            ))),
            Err(error) => Err(failed(&error)),
        }
    };
    answer(app.lag.get(question, lag).await)
}

/// Limits the time of an answer: autoscalers do not wait long, and one request that hangs must not block all others.
async fn within<T>(app: &App, answer: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(app.config.timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("the backend gave no answer within {:?}", app.config.timeout);
            Err(Error::new(ErrorKind::Unavailable, why))
        }
    }
}

fn answer<T: Serialize>(answer: Result<T, Failed>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(failed) => (failed.status, Json(failed)).into_response(),
    }
}

/// Error, in the form of the response.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failed {
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
