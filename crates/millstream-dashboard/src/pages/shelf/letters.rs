//! Dead letters of a group: grouped by error, and as a list.

use std::time::Duration;

use millstream::admin::{ShelfFilter, ShelfQuery};
use tokio::time::Instant;

use super::{Kind, Place};
use crate::access::Permission;
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::reading::counts::LetterCount;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part, Pick, Table};

/// Time after which no further letters are examined for a page of the list.
const BUDGET: Duration = Duration::from_millis(40);

/// Shows the errors of which letters died, the most frequent first.
pub(crate) async fn errors(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let place = Place::new(&cx, Kind::Letters)?;
    let snapshot = cx.app.reading.of_group(&topic, &group).await?;
    let total = snapshot.groups.get(&group).and_then(|it| it.stats.totals.dead);
    let undecodable_error = place.hidden.undecodable_error();
    let everything = ShelfFilter { undecodable_error, ..ShelfFilter::default() };
    let count = cx.app.reading.letters(&topic, &group, (Vec::new(), &everything)).await?;
    let (errors, others) = (count.errors.clone(), count.errors.others());
    let mut table = place.errors(&cx, errors, count.is_complete, empty(&count));
    let apart = format::count(table.rows.len() as u64);
    let apart = match count.is_complete {
        true => apart,
        false if count.looked_at == 0 => "being counted".to_owned(),
        false => format!("≥ {apart}"),
    };
    let mut page = place.page(format!("Dead letters of {group}"), paths::DEAD).live();
    page.push(Part::facts(
        "",
        vec![
            ("Dead letters", Cell::alarm(total, Tone::Warn)),
            ("Different errors", Cell::text(apart)),
            ("Counted", counted(&count, total)),
        ],
    ));
    let about = if count.is_complete {
        "Numbers, ids, times and quoted words in an error do not make it another error.".to_owned()
    } else {
        let newest = format::of(count.looked_at, "letter", "letters");
        format!("Of the newest {newest}. Older ones are not counted yet.")
    };
    table = table.note(about);
    if others > 0 {
        let letters = format::of(others, "letter has", "letters have");
        let text = format!("{letters} further errors, which are not counted apart.");
        page.push(Part::notice(Tone::Plain, text));
    }
    table = table.link("All letters", place.href(paths::DEAD_LIST));
    Ok(page.table(with_actions(&cx, &place, table)))
}

/// Says when letters were counted, or how far that is.
fn counted(count: &LetterCount, total: Option<u64>) -> Cell {
    if count.is_complete {
        return Cell::time(count.at);
    }
    let looked = format::count(count.looked_at);
    // The total is older, or younger, than the count.
    let of = total.filter(|total| *total >= count.looked_at).map(|it| format!(" of {}", format::count(it)));
    let text = format!("{looked}{} so far; counting goes on", of.unwrap_or_default());
    Cell::toned(text, Tone::Warn)
}

/// Says why there is no row.
fn empty(count: &LetterCount) -> &'static str {
    if count.is_complete {
        "No message died here."
    } else {
        "The letters are being counted: this page shows them in a few seconds."
    }
}

/// Adds the actions on everything that the query selects.
fn with_actions(cx: &Context, place: &Place, mut table: Table) -> Table {
    let with = |href| selection::link(href, &cx.query);
    let is_all = with(Href::default()).path().is_empty();
    let (which, of) = if is_all { ("", " all") } else { (" those that match", " those that match") };
    table.links.extend(place.actions(cx, Some(which), with));
    if place.hidden.is_none() {
        table = table.link(format!("Export{of}"), with(place.href(paths::DEAD_EXPORT)));
    }
    table
}

/// Shows letters that match, the newest first.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let place = Place::new(&cx, Kind::Letters)?;
    let limit = cx.query.clamped("limit", 1..=200, 50) as usize;
    let (filter, after) = (place.filter(&cx.query)?, cx.query.parsed("after")?);
    let query = ShelfQuery { filter, newest_first: true, limit, after, ..ShelfQuery::default() };
    let (began, mut found) = (Instant::now(), Vec::new());
    let mut walk = place.open(&cx).await?.walk_from(&query);
    while !walk.is_done() && (began.elapsed() < BUDGET || walk.looked_at() == 0) {
        found.extend(walk.run_once(limit).await?);
    }
    let here = place.href(paths::DEAD_LIST);
    let mut page = place.page(format!("Dead letters of {}", place.name()), paths::DEAD_LIST);
    let mut table = place.table("Letters, the newest first", &found, "No letter matches.");
    for row in &mut table.rows {
        // The letters beside it are those of this list.
        row[0].href = row[0].href.take().map(|href| selection::link(href, &cx.query));
    }
    let pick = |path| place.href(path);
    let buttons = [
        ("Replay…", pick(paths::DEAD_REPLAY), false, Permission::Operate),
        ("Purge…", pick(paths::DEAD_PURGE), true, Permission::Admin),
    ];
    let buttons = buttons.into_iter().filter(|it| place.may(&cx, it.3)).map(|it| (it.0, it.1, it.2));
    let buttons: Vec<_> = buttons.collect();
    if !buttons.is_empty() {
        for (row, it) in table.rows.iter_mut().zip(&found) {
            row[0].pick = Some(format!("{}:{}", it.facts().partition, it.facts().id));
        }
        table.pick = Some(Pick { name: selection::PICK, buttons });
    }
    table = table.note(format!("{} shown, {} examined", found.len(), format::count(walk.looked_at())));
    if let Some(next) = walk.cursor() {
        table = table.link(
            if found.len() == limit { "Next page" } else { "Search on" },
            selection::link(here.clone(), &cx.query).with("limit", limit).with("after", next),
        );
    }
    let mut fields = selection::fields(&cx.query, &place.hidden, true);
    fields.push(
        Field::new("limit", "Letters on a page", limit.to_string()).input(Input::Number { min: 1, max: 200 }),
    );
    page.push(Part::Form(Form::filter("Filter", here, fields).folding()));
    Ok(page.table(with_actions(&cx, &place, table)))
}
