//! Steps of a message for each group, or of a task: what is done, what it waits for, and signals.

use futures_util::stream::{self, StreamExt};
use millstream::admin::{WorkSteps, batch_of, step_word};
use millstream::crates::core::Capability;
use millstream::crates::core::steps::{StepKind, StepRecord, check_name};
use millstream::{GroupName, Signalled, TopicPartition, WorkId, WorkPlace};

use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::pages::batches;
use crate::paths;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form, Input};
use crate::view::format;
use crate::view::href::Href;
use crate::view::text::Text;
use crate::view::{Page, Part, Table};

/// Number of groups whose steps are read at the same time.
const AT_ONCE: usize = 8;

/// Adds the steps of a message or task to its page, if there are any. Returns the waits that a signal may end.
pub(crate) async fn add(
    page: &mut Page,
    cx: &Context,
    work: Vec<WorkId>,
    hidden: &Redaction,
) -> Result<Waits, Failure> {
    let mut waits = Waits(Vec::new());
    if !cx.app.mq.backend().supports(Capability::Steps) {
        return Ok(waits);
    }
    let admin = &cx.admin();
    let read = stream::iter(work).map(|id| async move {
        let steps = admin.steps(&id).await;
        (id, steps)
    });
    let read: Vec<_> = read.buffered(AT_ONCE).collect().await;
    let titles = ["Group", "Step", "What", "When", ">Size", "Value"];
    let mut table = Table::new("Steps", &titles, "").named("steps").paged(25);
    for (id, steps) in read {
        let steps = match steps {
            Ok(steps) => steps,
            // Somebody else's data does not hide the message.
            Err(error) if !error.is_transient() => {
                page.push(Part::notice(Tone::Warn, format!("Its steps cannot be read: {error}")));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let group = match &id.place {
            WorkPlace::Group(_, group) => Some(group),
            WorkPlace::Shard(_) => None,
        };
        table.rows.extend(steps.records.iter().map(|record| row(cx, group, &steps, record, hidden)));
        waits.0.extend(steps.waits().map(|wait| (group.cloned(), wait.name.clone())));
    }
    if !table.rows.is_empty() {
        page.push(Part::Table(table));
    }
    Ok(waits)
}

fn row(
    cx: &Context,
    group: Option<&GroupName>,
    steps: &WorkSteps,
    record: &StepRecord,
    hidden: &Redaction,
) -> Vec<Cell> {
    let (name, batch) = (record.step(), batch_of(record));
    let what = match record.kind {
        StepKind::Wait if steps.is_open(record) => Cell::toned("waits", Tone::Warn),
        StepKind::Wait => Cell::toned("waited", Tone::Dim),
        _ => Cell::text(step_word(record)),
    };
    let value = match batch {
        Some(batch) => batches::seen(cx, &batch),
        None if record.value.is_empty() || record.kind == StepKind::Wait => Cell::none(),
        None if hidden.hides_payload() => Cell::toned("redacted", Tone::Dim),
        None => Cell { mono: true, ..Cell::line(Text::of_bytes(&record.value)) },
    };
    vec![
        group.map_or_else(Cell::none, |group| Cell::text(group.as_str())),
        Cell::mono(Text::short(name)),
        what,
        Cell::time(record.at),
        Cell::bytes(if record.kind == StepKind::Wait { 0 } else { record.value.len() as u64 }),
        value,
    ]
}

/// Returns what is shown of the header of a dead letter that has its steps; `None` for what is none.
pub(crate) fn of_header(value: &bytes::Bytes) -> Option<Cell> {
    let records = StepRecord::read(value).ok().filter(|records| !records.is_empty())?;
    let mut names: Vec<&str> = Vec::new();
    for name in records.iter().map(StepRecord::step) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let steps = format::of(names.len() as u64, "step", "steps");
    Some(Cell::text(Text::short(&format!("{steps}: {}", names.join(", ")))))
}

/// Waits that have not ended, each with the group whose handler waits.
pub(crate) struct Waits(Vec<(Option<GroupName>, String)>);

impl Waits {
    /// Returns the form for a signal; `None` if nothing waits.
    pub(crate) fn form(&self, action: Href) -> Option<Form> {
        let (_, first) = self.0.first()?;
        let mut groups: Vec<String> =
            self.0.iter().filter_map(|(group, _)| Some(group.as_ref()?.to_string())).collect();
        groups.dedup();
        let mut fields = Vec::new();
        if let Some(group) = groups.first().cloned() {
            let choices = groups.into_iter().map(|group| (group.clone(), group)).collect();
            fields.push(Field::new("group", "Group", group).input(Input::Choice(choices)));
        }
        fields.push(Field::new("name", "Name of the wait", first).required());
        fields.push(Field::new("value", "What it says, as JSON", "null").required());
        Some(Form::action("Signal: what waits for it goes on", action, fields, "Send the signal"))
    }
}

/// Signals a message for one of its groups.
pub(crate) async fn message(cx: Context, params: Params) -> Result<Href, Failure> {
    let (topic, (partition, id)) = (cx.topic()?, cx.place()?);
    let group: GroupName = params.needed("group")?;
    let here = [partition.to_string(), id.to_string()];
    let subject = Subject::group(&topic, &group).select("partition", &*here[0]).select("id", &*here[1]);
    let page = Href::of(paths::MESSAGE, &[topic.as_str(), &here[0], &here[1]]);
    let id = WorkId::new(WorkPlace::Group(TopicPartition { topic, partition }, group), id);
    run(&cx, (subject, ("The message", page)), id, &params).await
}

/// Signals a message or task, and notes what became of it. What it says is not recorded.
pub(crate) async fn run(
    cx: &Context,
    (subject, page): (Subject, (&'static str, Href)),
    id: WorkId,
    params: &Params,
) -> Result<Href, Failure> {
    let name = params.raw("name").unwrap_or_default().to_owned();
    check_name(&name).map_err(|error| Failure::from(error).of("name"))?;
    let value = params.raw("value").unwrap_or_default().trim().to_owned();
    serde_json::from_str::<serde::de::IgnoredAny>(&value)
        .map_err(|error| Failure::invalid(format!("the value is no JSON: {error}")).of("value"))?;
    let admin = cx.admin();
    let order = Order::new("message signal", subject.select("name", &*name)).expecting(Some(1));
    cx.act(order.shown_at(page.0, page.1), |action| async move {
        let became = admin.signal(&id, &name, value).await?;
        let is_stored = matches!(became, Signalled::Woken | Signalled::Stored);
        action.set(u64::from(is_stored), u64::from(!is_stored));
        action.note(told(became));
        Ok(())
    })
    .await
}

fn told(became: Signalled) -> &'static str {
    match became {
        Signalled::Woken => "the message that waits for it is due now",
        Signalled::Stored => "it is stored: nobody waits for it at this moment",
        Signalled::Known => "one of this name had come before, and counts",
        Signalled::Late => "the time for it was over",
        _ => "there is no such message or task any more",
    }
}

#[cfg(test)]
mod tests {
    use millstream::Timestamp;

    use super::*;

    #[test]
    fn a_header_of_steps_is_shown_by_their_names() {
        let record = |kind, name: &str| StepRecord::new(kind, Timestamp::from_millis(1), name, "secret");
        let records = [
            record(StepKind::Done, "account"),
            record(StepKind::Wait, "confirmed"),
            record(StepKind::Signal, "confirmed"),
            record(StepKind::Done, "tips\u{1}"),
        ];
        let written: bytes::Bytes = StepRecord::write(&records).into();
        let shown = of_header(&written).expect("steps").text.to_string();
        assert_eq!(shown, "3 steps: account, confirmed, tips");
        assert!(of_header(&written.slice(1..)).is_none());
    }

    #[test]
    fn a_form_has_the_groups_that_wait() {
        let wait = |group: &str, name: &str| (Some(group.parse().expect("a name")), name.to_owned());
        let waits = Waits(vec![wait("billing", "paid"), wait("welcome", "a"), wait("welcome", "b")]);
        let fields = waits.form(Href::of(paths::QUEUES, &[])).expect("a form").fields;
        let choices = ["billing", "welcome"].map(|group| (group.to_owned(), group.to_owned()));
        assert_eq!(fields[0].input, Input::Choice(choices.to_vec()));
        assert_eq!((fields[0].value.as_str(), fields[1].value.as_str()), ("billing", "paid"));
        let of_task =
            Waits(vec![(None, "opened".to_owned())]).form(Href::of(paths::QUEUES, &[])).expect("a form");
        assert_eq!(of_task.fields.iter().map(|it| it.name).collect::<Vec<_>>(), ["name", "value"]);
        assert!(Waits(Vec::new()).form(Href::of(paths::QUEUES, &[])).is_none());
    }
}
