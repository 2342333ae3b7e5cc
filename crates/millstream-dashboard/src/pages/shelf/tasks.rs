//! Dead tasks of a delay queue.

use millstream::crates::core::error_groups::ErrorGroups;
use tokio::time::{Duration, Instant};

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
/// Number of tasks that are shown.
const SHOWN: usize = 50;
/// Maximum number of errors that are counted apart.
const GROUPS: usize = 200;

/// Shows dead tasks by error, and the first of them.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let place = Place::new(&cx, Kind::Tasks)?;
    let (began, mut groups, mut first) = (Instant::now(), ErrorGroups::new(GROUPS), Vec::new());
    let mut walk = place.open(&cx).await?.walk(&place.filter(&cx.query)?, None).await?;
    while !walk.is_done() && walk.looked_at() < LOOKS && began.elapsed() < BUDGET {
        for task in walk.run_once(SHOWN).await? {
            let facts = task.facts();
            groups.add(facts.error, facts.at, facts.named());
            if first.len() < SHOWN {
                first.push(task);
            }
        }
    }
    let mut page = place.page(format!("Dead tasks of {}", place.name()), paths::TASKS_DEAD);
    if !walk.is_done() {
        let why = format!("{} tasks were examined: there are more.", format::count(walk.looked_at()));
        page.push(Part::notice(Tone::Warn, why));
    }
    let fields = selection::fields(&cx.query, &place.hidden, true);
    page.push(Part::Form(Form::filter("Filter", place.href(paths::TASKS_DEAD), fields).folding()));
    let mut table = place.errors(&cx, groups, walk.is_done(), "No task is dead.");
    table.links = place.actions(&cx, Some(" all that match"), |href| selection::link(href, &cx.query));
    page.push(Part::Table(table));
    Ok(page.table(place.table("The first of them", &first, "No task is dead.")))
}
