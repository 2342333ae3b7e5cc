//! Messages that wait for a retry: now, or never.

use millstream::admin::{RetryQueue, RetrySelection};
use millstream::crates::core::Limits;
use millstream::crates::core::schedule::RetryAction;
use millstream::crates::core::wire;

use super::{content, group_href, group_page};
use crate::access::Permission;
use crate::actions::{Order, retries as work};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::selection;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Button, Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Maximum number of retries that one action changes: their ids are kept meanwhile.
const MOST: u64 = 1_000_000;

async fn open(cx: &Context) -> Result<RetryQueue, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    cx.app.reading.of_group(&topic, &group).await?;
    Ok(cx.admin().retries(&topic, &group).await?)
}

/// Shows retries that wait, the next ones first.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let hidden = cx.app.hidden_in_topic(&topic);
    let filter = selection::retries(&cx.query, &hidden)?;
    let limit = cx.query.clamped("limit", 1..=200, 50);
    let here = group_href(paths::RETRIES, &topic, &group);
    let mut page = group_page(format!("Retries of {group}"), &topic, &group, paths::RETRIES).live();
    let titles = [">Partition", "Message", "Due", "Next attempt", "Last error", "Key", "Payload", ""];
    let mut table =
        Table::new("Waiting for a retry, the next ones first", &titles, "Nothing waits for a retry.");
    let may = cx.may(&topic, Permission::Operate);
    let mut push = |partition: u32, parked: &millstream::crates::core::inspect::Parked, ready: bool| {
        let id = parked.origin.to_string();
        let story = Href::of(paths::MESSAGE, &[topic.as_str(), &partition.to_string(), &id]);
        let due = if ready {
            Cell::toned("due: the group reads it next", Tone::Good)
        } else {
            Cell::time(parked.due)
        };
        let [key, payload] = content(wire::decode_body(&parked.body, &Limits::NONE), &hidden);
        let mut buttons = Vec::new();
        if may && !ready {
            let on = |path| group_href(path, &topic, &group);
            buttons.push(
                Button::new("run now", id.as_str(), on(paths::RETRIES_NOW))
                    .with("id", id.as_str())
                    .with("partition", partition.to_string())
                    .with("confirm", "1")
                    .with("expected", "1"),
            );
        }
        table.rows.push(vec![
            Cell::text(partition.to_string()),
            Cell { mono: true, ..Cell::link(id.as_str(), story) },
            due,
            Cell::text(parked.attempt.to_string()),
            Cell::text(Text::short(&parked.error)),
            key,
            payload,
            Cell::buttons(buttons),
        ]);
    };
    if filter.is_empty() {
        cx.app.reading.of_group(&topic, &group).await?;
        let waiting = cx.admin().waiting_retries(&topic, &group, limit as usize).await?;
        for retry in &waiting.retries {
            push(retry.partition.0, &retry.parked, retry.ready);
        }
        for error in &waiting.errors {
            page.push(Part::notice(Tone::Bad, format!("partition {}: {}", error.partition.0, error.error)));
        }
        let shown = waiting.retries.len();
        table = table.note(format!("{shown} of {}", format::known(waiting.total)));
    } else {
        for retry in open(&cx).await?.list(&filter, limit as usize).await? {
            push(retry.topic_partition.partition.0, &retry.parked, false);
        }
        table = table.note("The first ones that match");
    }
    if may {
        let on = |path| selection::link(group_href(path, &topic, &group), &cx.query);
        table = table.link("Run all that match now…", on(paths::RETRIES_NOW));
        if cx.may(&topic, Permission::Admin) {
            table = table.link("Give up all that match…", on(paths::RETRIES_KILL));
        }
    }
    let mut fields = selection::fields(&cx.query, &hidden, false);
    fields.push(Field::new("limit", "Number", limit.to_string()).input(Input::Number { min: 1, max: 200 }));
    page.push(Part::Form(Form::filter("Filter", here, fields).folding()));
    Ok(page.table(table))
}

/// Asks before retries are run now.
pub(crate) async fn confirm_now(cx: Context) -> Result<Page, Failure> {
    confirm(cx, paths::RETRIES_NOW, "Run now", "They are due at once, as their next attempts.").await
}

/// Asks before retries are given up.
pub(crate) async fn confirm_kill(cx: Context) -> Result<Page, Failure> {
    confirm(cx, paths::RETRIES_KILL, "Give up", "They become dead letters with the reason killed.").await
}

async fn confirm(cx: Context, path: &'static str, verb: &'static str, effect: &str) -> Result<Page, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let hidden = cx.app.hidden_in_topic(&topic);
    let filter = selection::retries(&cx.query, &hidden)?;
    let selected = open(&cx).await?.select(&filter, Some(MOST), 10, |_| {}).await?;
    let count = selected.count();
    let what = format::of(count, "retry", "retries");
    let mut page = group_page(format!("{verb}: {what} of {group}"), &topic, &group, path);
    page.push(Part::notice(Tone::Plain, effect));
    if count > 0 {
        let field = Field::new("confirm", format!("Type {count} to confirm"), "").required();
        let form =
            Form::action(format!("{verb}: {what}"), group_href(path, &topic, &group), vec![field], verb);
        let form = if path == paths::RETRIES_KILL { form.danger() } else { form };
        page.push(Part::Form(selection::hide(form.hide("expected", count.to_string()), &cx.query)));
    }
    let rows = selected.sample.iter().map(|retry| {
        vec![
            Cell::mono(retry.parked.origin.to_string()),
            Cell::time(retry.parked.due),
            Cell::text(Text::short(&retry.parked.error)),
        ]
    });
    Ok(page.table(
        Table::new("The first of them", &["Message", "Due", "Last error"], "No retry matches.").rows(rows),
    ))
}

/// Makes retries due now.
pub(crate) async fn now(cx: Context, params: Params) -> Result<Href, Failure> {
    settle(cx, params, RetryAction::Release).await
}

/// Gives retries up.
pub(crate) async fn kill(cx: Context, params: Params) -> Result<Href, Failure> {
    settle(cx, params, RetryAction::Kill).await
}

async fn settle(cx: Context, params: Params, action: RetryAction) -> Result<Href, Failure> {
    let (topic, group) = (cx.topic()?, cx.group()?);
    let hidden = cx.app.hidden_in_topic(&topic);
    let filter = selection::retries(&params, &hidden)?;
    let expected: u64 = params.needed("expected")?;
    super::dead::change::confirmed(&params, &expected.to_string())?;
    let queue = open(&cx).await?;
    // Never more than were confirmed.
    let selected: RetrySelection = queue.select(&filter, Some(expected), 0, |_| {}).await?;
    let what = match action {
        RetryAction::Release => "retries now",
        RetryAction::Kill => "retries kill",
    };
    let subject = Subject::group(&topic, &group).select_all(selection::conditions(&params)?);
    let order = Order::new(what, subject).expecting(Some(expected));
    let app = cx.app.clone();
    cx.act(order, |running| async move {
        work::settle(&running, &queue, selected, action).await?;
        app.reading.changed(&topic, Some(&group));
        Ok(())
    })
    .await
}
