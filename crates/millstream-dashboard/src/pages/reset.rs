//! Moving a group to another position, or to those of a file, with a preview of the effect; and that file.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use millstream::admin::{SeekPreview, parse_positions};
use millstream::{Error, ErrorKind, MessageId, Partition, Start, Timestamp, TopicName};

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

/// Number of positions that the audit log has.
const LOGGED: usize = 20;

/// New position of a group.
enum Target {
    /// The same for all partitions.
    All(Start),
    /// That of each partition behind an id; others stay.
    Each(BTreeMap<Partition, MessageId>),
}

impl Target {
    fn starts(positions: &BTreeMap<Partition, MessageId>) -> BTreeMap<Partition, Start> {
        positions.iter().map(|(partition, id)| (*partition, Start::After(*id))).collect()
    }
}

/// Reads the position of a form.
fn target(params: &Params, topic: &TopicName) -> Result<Option<Target>, Failure> {
    let start = match params.text("to")? {
        None => return Ok(None),
        Some("earliest") => Start::Earliest,
        Some("latest") => Start::Latest,
        Some("time") => {
            let time: Timestamp =
                when(params, "time")?.ok_or_else(|| Failure::invalid("time is missing").of("time"))?;
            Start::At(time)
        }
        Some("id") => Start::After(params.needed("id")?),
        Some("positions") => {
            let positions = parse_positions(topic, params.raw("positions").unwrap_or_default());
            let refused = |error: Error| Failure::invalid(error.to_string()).of("positions");
            return Ok(Some(Target::Each(positions.map_err(refused)?)));
        }
        Some(other) => return Err(Failure::invalid(format!("{other:?} is no position")).of("to")),
    };
    Ok(Some(Target::All(start)))
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
    let lines = Field::new("positions", "Topic, partition and position", raw("positions"))
        .input(Input::Area)
        .hint("A line for each partition, as the downloaded file has them: orders,0,1700000000000-0. Others stay.");
    let from_file = Form::action("Positions of a file", here.clone(), vec![lines], "Preview");
    page.push(Part::Form(from_file.hide("to", "positions")));
    let target = match target(&cx.query, &topic) {
        // They were sent by the form, beside which it is said.
        Err(failure) if failure.field.as_deref() == Some("positions") => return Ok(page),
        target => target?,
    };
    let Some(target) = target else { return Ok(page) };
    let preview = match &target {
        Target::All(start) => cx.admin().reset_group_preview(&topic, &group, *start).await?,
        Target::Each(positions) => {
            cx.admin().reset_partitions_preview(&topic, &group, &Target::starts(positions)).await?
        }
    };
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
    let form = match target {
        Target::Each(_) => form.hide("to", "positions").hide("positions", raw("positions")),
        Target::All(Start::At(time)) => form.hide("to", "time").hide("time", time.to_string()),
        Target::All(_) => form.hide("to", raw("to")).hide("id", raw("id")),
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
    // First, since its preview shows positions that cannot be read.
    let target = target(&params, &topic)?;
    params.confirmed(group.as_str())?;
    let target = target.ok_or_else(|| Failure::invalid("to is missing").of("to"))?;
    let to = match &target {
        Target::All(Start::Earliest) => "the oldest entry".to_owned(),
        Target::All(Start::Latest) => "the newest entry".to_owned(),
        Target::All(Start::At(time)) => time.to_string(),
        Target::All(Start::After(id)) => format!("behind {id}"),
        Target::All(_) => "another position".to_owned(),
        Target::Each(positions) => {
            let some = positions.iter().take(LOGGED);
            let some: Vec<_> = some.map(|(partition, id)| format!("{partition} behind {id}")).collect();
            let more = if positions.len() > LOGGED { ", …" } else { "" };
            format!("{} partitions: {}{more}", positions.len(), some.join(", "))
        }
    };
    let order = Order::new("group reset", Subject::group(&topic, &group).set("to", to));
    let admin = cx.admin();
    cx.act(order, |action| async move {
        // The compiler cannot prove that this future may move between threads, so it stays on one.
        let (runtime, of) = (tokio::runtime::Handle::current(), (topic.clone(), group.clone()));
        let moved = tokio::task::spawn_blocking(move || match target {
            Target::All(start) => runtime.block_on(admin.reset_group(&of.0, &of.1, start)),
            Target::Each(positions) => {
                let starts = Target::starts(&positions);
                runtime.block_on(admin.reset_partitions(&of.0, &of.1, &starts))
            }
        });
        moved.await.map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))??;
        action.add(1);
        Ok(())
    })
    .await
}

/// Sends the positions of the group, as the form and `millstream group reset --from-file` read them.
pub(crate) async fn export(cx: Context) -> Result<Response, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let mut lines = String::new();
    for (partition, id) in cx.admin().group_positions(&topic, &group).await? {
        let _ = writeln!(lines, "{topic},{partition},{id}");
    }
    let name = format!("attachment; filename=\"{topic}-{group}-positions.csv\"");
    let headers =
        [(header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, lines).into_response())
}
