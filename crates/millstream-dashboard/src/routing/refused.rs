//! Forms that were refused: shown again with what was sent, and why.

use crate::failure::Failure;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::{Page, Part};

/// What a change that was refused begins with: the page says it once, and not beside the field.
const UNCHANGED: &str = "nothing was changed: ";

/// Returns the page of a change that was refused: the one with its form, filled with what was sent.
pub(crate) fn change(cx: &Context, mut page: Page, failure: &Failure, sent: &Params) -> Page {
    let here = cx.here();
    for part in &mut page.parts {
        if let Part::Form(form) = part
            && form.changes
            && form.action == here
        {
            form.refuse(|name| sent.raw(name).map(str::to_owned), beside(failure));
        }
    }
    let why = failure.why.strip_prefix(UNCHANGED).unwrap_or(&failure.why);
    explained(cx, page, failure, format!("Nothing was changed: {why}"))
}

/// Returns the page of a query that was refused: its form alone, filled with what was sent. `None` if the page, which was made
/// without the query, has no such form.
pub(crate) fn query(cx: &Context, mut page: Page, failure: &Failure) -> Option<Page> {
    let sent = &cx.query;
    // Nothing else of the page is about what was asked for.
    page.actions = Cell::default();
    page.parts.retain_mut(|part| match part {
        Part::Form(form) if !form.changes => {
            let is_it = match &failure.field {
                Some(field) => form.has(field),
                None => form.fields.iter().any(|field| sent.raw(field.name).is_some()),
            };
            if is_it {
                form.refuse(|name| sent.raw(name).map(str::to_owned), beside(failure));
            }
            is_it
        }
        _ => false,
    });
    (!page.parts.is_empty()).then(|| explained(cx, page, failure, failure.why.clone()))
}

/// Returns the field that was refused, and why.
fn beside(failure: &Failure) -> Option<(&str, &str)> {
    let why = failure.why.strip_prefix(UNCHANGED).unwrap_or(&failure.why);
    failure.field.as_deref().map(|field| (field, why))
}

fn explained(cx: &Context, mut page: Page, failure: &Failure, why: String) -> Page {
    page.status = failure.status;
    // What was typed is not to be replaced.
    page.live = false;
    let above = [Part::notice(Tone::Bad, why)].into_iter().chain(cx.way_back(failure.status));
    page.parts.splice(0..0, above);
    page
}
