//! The work on one message that asks for its result: how far its handler is, what it says, and what came of it.

use std::time::Duration;

use millstream::crates::core::results::ResultRequest;
use millstream::crates::core::{Capability, Headers, Place};
use millstream::{MessageResult, ResultId, Timestamp};

use crate::failure::Failure;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::format;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Adds the work on a message or task with these headers to its page, which is live until there is a result.
pub(crate) async fn add(
    page: &mut Page,
    cx: &Context,
    place: impl Into<Place>,
    (headers, appended): (&Headers, Timestamp),
    hidden: &Redaction,
) -> Result<(), Failure> {
    let backend = cx.app.mq.backend();
    let Some(request) = ResultRequest::of(headers).filter(|_| backend.supports(Capability::Results)) else {
        return Ok(());
    };
    let (id, log) = (ResultId::new(place, request.number), backend.log());
    let read = async {
        let lines = log.progress(&id, 0, Duration::ZERO).await?;
        Ok::<_, millstream::Error>((lines, log.result(&id, Duration::ZERO).await?))
    };
    let (lines, result) = match read.await {
        Ok(read) => read,
        // Somebody else's data under the number of the sender does not hide the message.
        Err(error) if !error.is_transient() => {
            page.push(Part::notice(Tone::Warn, format!("The work on it cannot be read: {error}")));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let secret = hidden.hides_payload();
    let text = |text: &str| match (text.is_empty(), secret) {
        (true, _) => Cell::none(),
        (false, true) => Cell::toned("redacted", Tone::Dim),
        (false, false) => Cell::text(Text::line(text)),
    };
    let mut facts = Vec::new();
    if let Some(last) = lines.last() {
        let done = last.fraction.map_or_else(Cell::none, Cell::fraction);
        facts.push(("Progress", done));
        facts.push(("Said", Cell::time(last.at)));
    }
    facts.push((
        "Result",
        result.as_ref().map_or_else(|| Cell::toned("none: not yet, or not any longer", Tone::Dim), told),
    ));
    if let Some(MessageResult::Failed { error, .. }) = &result {
        facts.push(("Error", text(error)));
    }
    page.push(Part::facts("Work", facts));
    let rows = lines.iter().rev().filter(|line| !line.text.is_empty()).map(|line| {
        vec![
            Cell::time(line.at),
            Cell::count(u64::from(line.attempt)),
            line.fraction.map_or_else(Cell::none, Cell::fraction),
            text(&line.text),
        ]
    });
    let titles = ["Time", ">Attempt", "Done", "Text"];
    let table = Table::new("What its handler says", &titles, "Nothing so far.").named("lines").paged(25);
    page.push(Part::Table(table.rows(rows)));
    // A result that is not there for longer than it is kept does not come.
    let newest = lines.last().map_or(appended, |line| line.at);
    let now = backend.schedule().now().await?;
    page.live |= result.is_none() && now.saturating_duration_since(newest) < request.keep;
    Ok(())
}

/// Returns what came of a message, without the content of a reply.
fn told(result: &MessageResult) -> Cell {
    match result {
        MessageResult::Replied(reply) => {
            Cell::toned(format!("replied, {}", format::bytes(reply.len() as u64)), Tone::Good)
        }
        MessageResult::Done => Cell::toned("done, without a reply", Tone::Good),
        MessageResult::Failed { reason, attempts, .. } => {
            Cell::toned(format!("failed: {reason}, attempts: {attempts}"), Tone::Bad)
        }
    }
}
