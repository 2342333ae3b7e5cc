//! Messages that wait for a retry.

use millstream::admin::Failed;
use tokio::time::Duration;

use super::{Kind, Place};
use crate::access::Permission;
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Button, Field, Form, Input};
use crate::view::format;
use crate::view::{Page, Part};

/// Maximum number of retries that are examined for their errors, and the time for it.
const LOOKS: u64 = 5_000;
const BUDGET: Duration = Duration::from_millis(40);

/// Shows retries that wait, the next ones first.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let place = Place::new(&cx, Kind::Retries)?;
    let (topic, group, filter) = (cx.topic()?, cx.group()?, place.filter(&cx.query)?);
    let limit = cx.query.clamped("limit", 1..=200, 50) as usize;
    let shelf = place.open(&cx).await?;
    let mut page = place.page(format!("Retries of {group}"), paths::RETRIES).live();
    let (mut items, mut ready, mut note) = (Vec::new(), Vec::new(), "The first ones that match".to_owned());
    if filter.is_empty() {
        let waiting = cx.admin().waiting_retries(&topic, &group, limit).await?;
        for error in &waiting.errors {
            page.push(Part::notice(Tone::Bad, format!("partition {}: {}", error.partition.0, error.error)));
        }
        note = format!("{} of {}", waiting.retries.len(), format::known(waiting.total));
        for it in waiting.retries {
            ready.push(it.ready);
            items.push(Failed::Retry(it.retry));
        }
    } else {
        items = shelf.first(&filter, limit).await?;
    }
    let (groups, _, is_all) = place.by_error(&cx, &filter, (LOOKS, BUDGET)).await?;
    let mut errors = place.errors(&cx, groups, is_all, "Nothing waits for a retry.");
    errors.links = place.actions(&cx, Some(" all that match"), |href| selection::link(href, &cx.query));
    let title = "Waiting for a retry, the next ones first";
    let mut table = place.table(title, &items, "Nothing waits for a retry.").note(note);
    table.column("");
    let may = place.may(&cx, Permission::Operate);
    for (at, (row, it)) in table.rows.iter_mut().zip(&items).enumerate() {
        let (it, is_ready) = (it.facts(), ready.get(at) == Some(&true));
        let mut buttons = Vec::new();
        if is_ready {
            row[1] = Cell::toned("due: the group reads it next", Tone::Good);
        } else if may {
            let (id, partition) = (it.id.to_string(), it.partition.0.to_string());
            let button = Button::new("run now", id.as_str(), place.href(paths::RETRIES_NOW));
            let button = button.with("id", id).with("partition", partition);
            buttons.push(button.with("confirm", "1").with("expected", "1"));
        }
        row.push(Cell::buttons(buttons));
    }
    let mut fields = selection::fields(&cx.query, &place.hidden, false);
    fields.push(Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 200 }));
    page.push(Part::Table(errors));
    page.push(Part::Form(Form::filter("Filter", place.href(paths::RETRIES), fields).folding()));
    Ok(page.table(table))
}
