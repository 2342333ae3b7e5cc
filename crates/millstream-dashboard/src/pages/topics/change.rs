//! Changes of a topic: its settings, after a preview, and further partitions.

use millstream::crates::core::topic::MAX_PARTITIONS;
use millstream::{ErrorKind, TopicSpec};

use super::settings::Settings;
use super::{confirm, partitions, refuse_audit};
use crate::actions::Order;
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
use crate::view::{Page, Part, Table};

/// Shows the settings of a topic as a form, and the effect of new ones, which is to be confirmed.
pub(crate) async fn preview(cx: Context) -> Result<Page, Failure> {
    let topic = cx.topic()?;
    refuse_audit(&topic)?;
    let (spec, is_asked) = (cx.admin().topic(&topic).await?, cx.query.text("retention")?.is_some());
    let settings = if is_asked { Settings::of(&cx.query)? } else { Settings::from(&spec) };
    let here = Href::of(paths::TOPIC_ALTER, &[topic.as_str()]);
    let mut page = topic_page(format!("Change {topic}"), &topic, paths::TOPIC_ALTER);
    let mut ask = Form::filter("Settings", here.clone(), settings.fields(false));
    ask.submit = "Preview".to_owned();
    page.push(Part::Form(ask));
    if is_asked {
        let after = settings.change().of(spec.clone())?;
        if after == spec {
            page.push(Part::notice(Tone::Plain, "The topic has these settings already."));
        } else {
            effect(&mut page, &spec, &after);
            let fields = vec![confirm(&topic, "change it")];
            let form = Form::action("Change the settings", here, fields, "Change the settings").danger();
            page.push(Part::Form(settings.hide(form)));
        }
        return Ok(page);
    }
    if spec.partitions < MAX_PARTITIONS {
        let more = spec.partitions + 1;
        let hint = "Keys may be assigned to other partitions from then on, so later messages of a key can be handled before \
                    earlier ones. If that matters, let the groups settle all messages first.";
        let fields = vec![partitions(more.to_string(), more).hint(hint), confirm(&topic, "add partitions")];
        let title = format!(
            "Add partitions: it has {}, and can never have fewer again",
            format::count(u64::from(spec.partitions))
        );
        let to = Href::of(paths::TOPIC_EXPAND, &[topic.as_str()]);
        page.push(Part::Form(Form::action(title, to, fields, "Add partitions").danger()));
    }
    Ok(page)
}

fn effect(page: &mut Page, before: &TopicSpec, after: &TopicSpec) {
    let bound = |it: &TopicSpec| it.max_length.map_or_else(|| "no bound".to_owned(), format::count);
    let rows = [
        ("Entries are kept", format::retention(before.retention), format::retention(after.retention)),
        ("Producers hold back at", bound(before), bound(after)),
        (
            "Dead letters are kept",
            format::dead_letter_retention(before.dead_letter_retention),
            format::dead_letter_retention(after.dead_letter_retention),
        ),
        (
            "Messages are packed",
            format::packing(before.packing.as_ref()),
            format::packing(after.packing.as_ref()),
        ),
    ];
    let table = Table::new("Effect", &["Setting", "Now", "Then"], "Nothing changes.");
    page.push(Part::Table(table.rows(rows.into_iter().map(|(name, now, then)| {
        let tone = if now == then { Tone::Dim } else { Tone::Warn };
        vec![Cell::text(name), Cell::text(now), Cell::toned(then, tone)]
    }))));
    if after.retention != before.retention && after.retention.is_lossy() {
        let why =
            "Entries that the new rule does not keep are dropped for good, whether they were read or not.";
        page.push(Part::notice(Tone::Bad, why));
    }
    let (old, new) = (before.dead_letter_retention, after.dead_letter_retention);
    if new != old && !new.is_keep() {
        page.push(Part::notice(
            Tone::Bad,
            "Dead letters that the new rule does not keep are dropped for good.",
        ));
    }
    page.push(Part::notice(Tone::Plain, "Running consumers and producers apply the change within a minute."));
}

/// Changes the settings.
pub(crate) async fn alter(cx: Context, params: Params) -> Result<Href, Failure> {
    let topic = cx.topic()?;
    refuse_audit(&topic)?;
    let settings = Settings::of(&params)?;
    params.confirmed(topic.as_str())?;
    let admin = cx.admin();
    let order = Order::new("topic alter", settings.record(Subject::topic(&topic)));
    cx.act(order, |action| async move {
        admin.alter_topic(&topic, &settings.change()).await?;
        action.add(1);
        Ok(())
    })
    .await
}

/// Adds partitions.
pub(crate) async fn expand(cx: Context, params: Params) -> Result<Href, Failure> {
    let topic = cx.topic()?;
    refuse_audit(&topic)?;
    let count: u32 = params.needed("partitions")?;
    params.confirmed(topic.as_str())?;
    let before = cx.admin().topic(&topic).await?.partitions;
    if count <= before || count > MAX_PARTITIONS {
        let why = format!(
            "nothing was changed: the topic has {before} partitions, more are needed, at most {MAX_PARTITIONS}"
        );
        return Err(Failure::invalid(why).of("partitions"));
    }
    let admin = cx.admin();
    let order = Order::new("topic expand", Subject::topic(&topic).set("partitions", count.to_string()));
    cx.act(order, |action| async move {
        admin.expand_topic(&topic, count).await.map_err(|error| match error.kind() {
            ErrorKind::InvalidConfig => error.during("the topic has grown meanwhile"),
            _ => error,
        })?;
        action.add(u64::from(count - before));
        Ok(())
    })
    .await
}
