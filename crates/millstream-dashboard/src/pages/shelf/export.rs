//! Export of dead letters as lines of JSON, which `millstream dlq import` reads.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use uuid::Uuid;

use super::{Kind, Place, open_letters};
use crate::actions::{Order, Refused};
use crate::audit::entry::EXPORT;
use crate::audit::exports::Exporting;
use crate::failure::Failure;
use crate::pages::selection;
use crate::request::context::Context;

/// Number of letters of one step.
const STEP: usize = 200;

/// Sends the letters that match, as they are read.
pub(crate) async fn lines(cx: Context) -> Result<Response, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let place = Place::new(&cx, Kind::Letters)?;
    if !place.hidden.is_none() {
        return Err(Failure::forbidden("messages of this topic are redacted, and an export has all of them"));
    }
    let filter = place.filter(&cx.query)?;
    let queue = open_letters(&cx).await?;
    let walk = queue.walk(&filter, None).await?;
    let subject = place.subject().select_all(selection::conditions(&cx.query)?);
    let entry = Order::new(EXPORT, subject).entry(&Uuid::new_v4().simple().to_string(), cx.access.user());
    let exporting = Exporting::begin(&cx.app.audit, entry).await.map_err(Refused::NotRecorded)?;
    let lines = stream::try_unfold(
        (queue, walk, exporting, 0_u64),
        |(queue, mut walk, mut exporting, sent)| async move {
            if walk.is_done() {
                exporting.end("done", None).await;
                return Ok::<_, millstream::Error>(None);
            }
            let lines = match queue.export(&mut walk, STEP).await {
                Ok(lines) => lines,
                Err(error) => {
                    exporting.end("failed", Some(error.to_string())).await;
                    return Err(error);
                }
            };
            let sent = sent + lines.len() as u64;
            // A client that ends the connection drops the stream.
            exporting.progress(sent);
            let mut text = lines.join("\n");
            if !text.is_empty() {
                text.push('\n');
            }
            Ok(Some((Bytes::from(text), (queue, walk, exporting, sent))))
        },
    );
    let name = format!("attachment; filename=\"{topic}-{group}-dead-letters.jsonl\"");
    let headers =
        [(header::CONTENT_TYPE, "application/jsonl".to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(lines)).into_response())
}
