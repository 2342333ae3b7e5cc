//! Moving a group to another position, with a preview of the effect.

use millstream::admin::SeekPreview;
use millstream::{Error, ErrorKind, Start, Timestamp};

use super::group_page;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::group_href;
use crate::pages::selection::when;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Reads the position of a form.
fn start(params: &Params) -> Result<Option<Start>, Failure> {
    match params.text("to")? {
        None => Ok(None),
        Some("earliest") => Ok(Some(Start::Earliest)),
        Some("latest") => Ok(Some(Start::Latest)),
        Some("time") => {
            let time: Timestamp =
                when(params, "time")?.ok_or_else(|| Failure::invalid("time is missing").of("time"))?;
            Ok(Some(Start::At(time)))
        }
        Some("id") => Ok(Some(Start::After(params.needed("id")?))),
        Some(other) => Err(Failure::invalid(format!("{other:?} is no position")).of("to")),
    }
}

/// Shows the effect of a reset, and asks for a confirmation.
pub(crate) async fn preview(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let here = group_href(paths::RESET, &topic, &group);
    let raw = |name: &str| cx.query.raw(name).unwrap_or_default().to_owned();
    let choices = [
        ("earliest", "the oldest entry"),
        ("latest", "the newest entry: skip all"),
        ("time", "a time"),
        ("id", "behind an id"),
    ];
    let choices = choices.map(|(value, label)| (value.to_owned(), label.to_owned())).to_vec();
    let fields = vec![
        Field::new("to", "Move to", raw("to")).input(Input::Choice(choices)),
        Field::new("time", "Time", raw("time"))
            .hint("2026-01-31T12:00Z, or 2h for two hours ago; with “a time”"),
        Field::new("id", "Id", raw("id")).hint("1700000000000-0; with “behind an id”"),
    ];
    let mut page = group_page(format!("Move {group}"), &topic, &group, paths::RESET);
    let mut ask = Form::filter("Position", here.clone(), fields);
    ask.submit = "Preview".to_owned();
    page.push(Part::Form(ask));
    let Some(start) = start(&cx.query)? else { return Ok(page) };
    let preview = cx.admin().reset_group_preview(&topic, &group, start).await?;
    let sum = |figure: fn(&SeekPreview) -> u64| preview.iter().map(figure).sum::<u64>();
    let (reread, skipped, pending) = (sum(|it| it.reread), sum(|it| it.skipped), sum(|it| it.pending));
    page.push(Part::facts(
        "Effect",
        vec![
            ("Handled again", Cell::text(limited(reread))),
            (
                "Never handled",
                Cell::toned(limited(skipped), if skipped > 0 { Tone::Bad } else { Tone::Plain }),
            ),
            ("Pending entries that are forgotten", Cell::count(pending)),
        ],
    ));
    let members = cx.app.reading.topic(&topic).await?.groups.get(&group).and_then(|it| it.stats.members);
    if members.is_some_and(|members| members > 0) {
        let why = "Consumers of the group are running: it cannot be moved before they are stopped.";
        page.push(Part::notice(Tone::Warn, why));
    }
    let confirm =
        Field::new("confirm", format!("Type the name of the group, {group}, to move it"), "").required();
    let form = Form::action("Move the group", here, vec![confirm], "Move the group").danger();
    // A time that is relative to now would be another one when it is confirmed.
    let form = match start {
        Start::At(time) => form.hide("to", "time").hide("time", time.to_string()),
        _ => form.hide("to", raw("to")).hide("id", raw("id")),
    };
    page.push(Part::Form(form));
    let titles = [">Partition", "Position now", ">Handled again", ">Never handled", ">Pending"];
    Ok(page.table(Table::new("By partition", &titles, "There is no partition.").rows(preview.iter().map(
        |it| {
            vec![
                Cell::text(it.partition.0.to_string()),
                it.position.map_or_else(Cell::none, |id| Cell::mono(id.to_string())),
                Cell::text(limited(it.reread)),
                Cell::text(limited(it.skipped)),
                Cell::count(it.pending),
            ]
        },
    ))))
}

fn limited(number: u64) -> String {
    if number >= SeekPreview::LIMIT {
        format!("≥ {}", format::count(number))
    } else {
        format::count(number)
    }
}

/// Moves the group.
pub(crate) async fn reset(cx: Context, params: Params) -> Result<Href, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    if params.text("confirm")?.map(str::trim) != Some(group.as_str()) {
        return Err(Failure::invalid(format!("nothing was changed: type {group} to confirm")).of("confirm"));
    }
    let start = start(&params)?.ok_or_else(|| Failure::invalid("to is missing").of("to"))?;
    let to = match start {
        Start::Earliest => "the oldest entry".to_owned(),
        Start::Latest => "the newest entry".to_owned(),
        Start::At(time) => time.to_string(),
        Start::After(id) => format!("behind {id}"),
        _ => "another position".to_owned(),
    };
    let order = Order::new("group reset", Subject::group(&topic, &group).set("to", to));
    let (admin, app) = (cx.admin(), cx.app.clone());
    cx.act(order, |action| async move {
        // The compiler cannot prove that this future may move between threads, so it stays on one.
        let (runtime, of) = (tokio::runtime::Handle::current(), (topic.clone(), group.clone()));
        let moved =
            tokio::task::spawn_blocking(move || runtime.block_on(admin.reset_group(&of.0, &of.1, start)));
        moved.await.map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))??;
        action.add(1);
        app.reading.changed(&topic, Some(&group));
        Ok(())
    })
    .await
}
