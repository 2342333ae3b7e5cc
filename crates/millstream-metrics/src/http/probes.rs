//! Handlers of the probes: 200 or 503, with the reasons.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use crate::http::App;
use crate::probe::{self, Backend, Report};

/// Returns whether the process is live. Redis is not queried, since a restart of the process would not repair it.
pub(super) async fn livez(State(app): State<Arc<App>>) -> Response {
    let observer = &app.observer;
    answer(probe::live(&observer.consumers(), &observer.workers(), &observer.loops()))
}

/// Returns whether the process is ready: Redis answers, every consumer has joined its group, and every worker works.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let reached = match timeout(app.config.timeout, probe::reach(&app.backend)).await {
        Ok(Ok(())) => Backend::Reached,
        Ok(Err(error)) => Backend::Failed(error.to_string()),
        Err(_) => Backend::Failed(format!("no answer within {:?}", app.config.timeout)),
    };
    let observer = &app.observer;
    let (consumers, workers, loops) = (observer.consumers(), observer.workers(), observer.loops());
    answer(probe::ready(&reached, &consumers, &workers, &loops, app.config.consumers))
}

fn answer(report: Report) -> Response {
    let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}
