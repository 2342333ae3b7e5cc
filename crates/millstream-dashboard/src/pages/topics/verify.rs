//! Verification of a topic: whether every message is in exactly one place, and the repair of what is not.

use std::sync::Arc;

use millstream::admin::{Repaired, Verdict, advice};
use millstream::{ErrorKind, TopicName};

use super::confirm;
use crate::access::Permission;
use crate::actions::verified::{KEPT, Outcome};
use crate::actions::{Action, Order};
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::topic_page;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::Form;
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Words of the command line.
const VERIFY: &str = "verify";
const REPAIR: &str = "verify --repair";
/// What a page says of results. They are not stored: a result of yesterday says little about today, and verifying again is cheap.
const UNVERIFIED: &str = "This process of the dashboard has not verified the topic. Results are kept by the process that verified, \
                          until it ends; who has verified is in the audit log.";
const KEPT_HERE: &str =
    "This result is kept by this process of the dashboard, until it ends: other processes do not show it.";

/// Shows the last result.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    // A topic that cannot be read is one to verify.
    if let Err(error) = cx.app.reading.topic(&topic).await
        && error.kind() == ErrorKind::NotFound
        && !cx.app.reading.topics().await?.contains(&topic)
    {
        return Err(error.into());
    }
    let mut page = topic_page(format!("Verify {topic}"), &topic, paths::VERIFY);
    let what = "Checks that every message of this topic is in exactly one place, while consumers run. Messages that are not read \
                yet are not examined.";
    page.push(Part::notice(Tone::Plain, what));
    let running = running(&cx, &topic);
    if let Some(action) = &running {
        page.live = true;
        let items = action.state().examined.unwrap_or_default();
        let text = format!("It is running: {} examined", format::of(items, "item", "items"));
        page.push(Part::facts(
            "",
            vec![("Now", Cell::toned(text, Tone::Warn).to(Href::of(paths::ACTION, &[&action.id])))],
        ));
    }
    let last = cx.app.verifications.last(&topic);
    let is_idle = running.is_none();
    let of = |path| Href::of(path, &[topic.as_str()]);
    if is_idle && cx.may(&topic, Permission::Operate) {
        page.push(Part::Form(Form::action("Verify the topic", of(paths::VERIFY), Vec::new(), "Verify now")));
    }
    let is_broken = last.as_ref().is_some_and(|last| !last.is_repaired);
    if is_idle && is_broken && cx.may(&topic, Permission::Admin) {
        let title = "Repair what can be repaired: no message is lost, some may be handled twice";
        let fields = vec![confirm(&topic, "repair it")];
        page.push(Part::Form(Form::action(title, of(paths::REPAIR), fields, "Repair").danger()));
    }
    match &last {
        Some(outcome) => {
            result(&mut page, outcome);
            page.push(Part::notice(Tone::Plain, KEPT_HERE));
        }
        None if is_idle => {
            page.push(Part::notice(Tone::Plain, UNVERIFIED));
        }
        None => {}
    }
    Ok(page)
}

fn running(cx: &Context, topic: &TopicName) -> Option<Arc<Action>> {
    cx.app.actions.all().into_iter().find(|action| {
        [VERIFY, REPAIR].contains(&action.order.what)
            && action.topic() == Some(topic)
            && action.state().ended.is_none()
    })
}

fn result(page: &mut Page, outcome: &Outcome) {
    let words = match outcome {
        _ if outcome.is_cut => {
            Cell::toned("not everything was examined, there are too many findings", Tone::Bad)
        }
        _ if outcome.is_sound => Cell::toned("sound", Tone::Good),
        _ if outcome.is_repaired => Cell::toned("no fault is left, but entries were lost", Tone::Warn),
        _ => Cell::toned("not sound", Tone::Bad),
    };
    let mut facts = vec![
        ("Result", words),
        ("Findings", Cell::count(outcome.findings())),
        ("Items examined", Cell::count(outcome.examined)),
    ];
    if !outcome.lost.is_nothing() {
        facts.push(("Lost before", Cell::toned(outcome.lost.to_string(), Tone::Bad)));
    }
    facts.push(("Verified", Cell::time(outcome.at)));
    facts.push(("By", Cell::text(Text::short(&outcome.user))));
    page.push(Part::facts("Last result", facts));
    let mut titles = vec!["Fault", ">Found"];
    titles.extend(outcome.is_repair.then_some(">Repaired"));
    titles.push("What to do");
    let table = Table::new("By fault", &titles, "Nothing is wrong.");
    page.push(Part::Table(table.rows(outcome.faults.iter().map(|(fault, found)| {
        let mut row = vec![Cell::mono(fault.as_str()), Cell::count(found.count)];
        row.extend(outcome.is_repair.then(|| Cell::count(found.repaired)));
        // The advice begins with the name of the fault.
        let advice = advice(*fault);
        row.push(Cell::text(advice.split_once(": ").map_or(advice.as_str(), |(_, advice)| advice)));
        row
    }))));
    if outcome.faults.is_empty() {
        return;
    }
    let title = format!("Findings, the first {KEPT} of each fault");
    let titles = ["Fault", "Where", "Of what", "Details", "State"];
    let findings = outcome.faults.values().flat_map(|found| &found.first);
    page.push(Part::Table(Table::new(title, &titles, "").rows(findings.map(row))));
}

fn row(Verdict { finding, repaired }: &Verdict) -> Vec<Cell> {
    let state = match repaired {
        Repaired::NotAsked => Cell::toned("not repaired", Tone::Bad),
        Repaired::Yes => Cell::toned("repaired", Tone::Good),
        Repaired::Gone => Cell::toned("gone by itself", Tone::Good),
        Repaired::Still => Cell::toned("still there after the repair", Tone::Bad),
        Repaired::Person => Cell::toned("to be repaired by hand", Tone::Bad),
        Repaired::Record => Cell::toned("record of a loss", Tone::Warn),
    };
    vec![
        Cell::mono(finding.fault.as_str()),
        Cell::text(finding.scope.to_string()),
        Cell::mono(Text::short(&finding.id)),
        Cell::text(Text::short(&finding.detail)),
        state,
    ]
}

/// Verifies the topic.
pub(crate) async fn check(cx: Context, _: Params) -> Result<Href, Failure> {
    let topic = cx.topic()?;
    begin(cx, topic, VERIFY).await
}

/// Verifies the topic, and repairs what can be repaired.
pub(crate) async fn repair(cx: Context, params: Params) -> Result<Href, Failure> {
    let topic = cx.topic()?;
    params.confirmed(topic.as_str())?;
    begin(cx, topic, REPAIR).await
}

async fn begin(cx: Context, topic: TopicName, what: &'static str) -> Result<Href, Failure> {
    if let Some(action) = running(&cx, &topic) {
        if action.order.what == what {
            return Ok(Href::of(paths::ACTION, &[&action.id]));
        }
        let why = format!("nothing was changed: {} of this topic is running", action.order.what);
        return Err(Failure::new(axum::http::StatusCode::CONFLICT, why));
    }
    let (admin, app, of) = (cx.admin(), cx.app.clone(), topic.clone());
    let order = Order::new(what, Subject::topic(&topic))
        .shown_at("The findings", Href::of(paths::VERIFY, &[topic.as_str()]));
    cx.act(order, |action| async move { app.verifications.run(admin, &of, what == REPAIR, &action).await })
        .await
}
