//! Dead tasks of a delay queue.

use tokio::time::Duration;

use super::{Kind, Place};
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::request::context::Context;
use crate::view::cell::Tone;
use crate::view::form::Form;
use crate::view::format;
use crate::view::{Page, Part};

/// Maximum number of tasks that are examined for a page, and the time for it.
const LOOKS: u64 = 20_000;
const BUDGET: Duration = Duration::from_secs(3);

/// Shows dead tasks by error, and the first of them.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let place = Place::new(&cx, Kind::Tasks)?;
    let (groups, first, is_all) = place.by_error(&cx, &place.filter(&cx.query)?, (LOOKS, BUDGET)).await?;
    let mut page = place.page(format!("Dead tasks of {}", place.name()), paths::TASKS_DEAD);
    if !is_all {
        let why = format!("{} tasks were examined: there are more.", format::count(groups.count()));
        page.push(Part::notice(Tone::Warn, why));
    }
    let fields = selection::fields(&cx.query, &place.hidden, true);
    page.push(Part::Form(Form::filter("Filter", place.href(paths::TASKS_DEAD), fields).folding()));
    let mut table = place.errors(&cx, groups, is_all, "No task is dead.");
    table.links = place.actions(&cx, Some(" all that match"), |href| selection::link(href, &cx.query));
    page.push(Part::Table(table));
    Ok(page.table(place.table("The first of them", &first, "No task is dead.")))
}
