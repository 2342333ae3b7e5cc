//! Topics as a whole: they are created here, and changed, deleted and verified in the modules below.

pub(crate) mod change;
pub(crate) mod delete;
mod settings;
pub(crate) mod verify;

use millstream::crates::core::topic::MAX_PARTITIONS;
use millstream::{ErrorKind, TopicName, TopicSpec};

use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::form::{Field, Form, Input};
use crate::view::href::Href;
use crate::view::{Page, Part};
use settings::Settings;

/// Fails for an audit log. Users of the dashboard cannot change or delete it: it records what they do.
fn refuse_audit(topic: &TopicName) -> Result<(), Failure> {
    if topic.is_audit() {
        let why = format!("topic {topic} is the audit log: only `millstream topic` changes or deletes it");
        return Err(Failure::forbidden(why));
    }
    Ok(())
}

/// The field in which the name of the topic is typed.
fn confirm(topic: &TopicName, to: &str) -> Field {
    Field::new("confirm", format!("Type the name of the topic, {topic}, to {to}"), "").required()
}

fn partitions(value: String, min: u32) -> Field {
    let bounds = Input::Number { min: u64::from(min), max: u64::from(MAX_PARTITIONS) };
    Field::new("partitions", "Partitions", value).input(bounds).required()
}

/// Shows the form of a new topic.
pub(crate) async fn form(cx: Context) -> Result<Page, Failure> {
    let raw = |name: &str| cx.query.raw(name).unwrap_or_default().to_owned();
    let name = Field::new("name", "Name", raw("name")).hint("1 to 128 characters of A-Z a-z 0-9 . _ -");
    let number = partitions("1".to_owned(), 1)
        .hint("As many consumers of a group can work at the same time. The number can grow, not shrink.");
    let mut fields = vec![name.required(), number];
    fields.extend(Settings::default().fields(true));
    let form = Form::action("Settings", Href::of(paths::TOPIC_CREATE, &[]), fields, "Create the topic");
    let page = Page::new("Create a topic").crumb("Topics", Href::of(paths::OVERVIEW, &[]));
    Ok(page.with(Part::Form(form)))
}

/// Creates a topic, unless there is one.
pub(crate) async fn create(cx: Context, params: Params) -> Result<Href, Failure> {
    let name: TopicName = params.needed("name")?;
    let count: u32 = params.needed("partitions")?;
    let settings = Settings::of(&params)?;
    // The rights of the route are those to everything without rights of its own, which a topic may have.
    if !cx.may(&name, Permission::Admin) {
        return Err(Failure::forbidden(format!(
            "{} may not do this: it needs the right `admin`",
            cx.access.user()
        )));
    }
    refuse_audit(&name)?;
    let spec = TopicSpec::new(name.clone(), count).map_err(|why| Failure::from(why).of("partitions"))?;
    let spec = settings.apply(spec);
    spec.check()?;
    name.check_new().map_err(|why| Failure::from(why).of("name"))?;
    let admin = cx.admin();
    match admin.topic(&name).await {
        Ok(_) => {
            let why = format!("nothing was changed: topic {name} exists already");
            return Err(Failure::new(axum::http::StatusCode::CONFLICT, why).of("name"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let subject = settings.record(Subject::topic(&name)).set("partitions", count.to_string());
    let app = cx.app.clone();
    cx.act(Order::new("topic create", subject), |action| async move {
        let stored = admin.create_topic(&spec).await?;
        app.reading.listed(&name);
        // The first settings win.
        if stored == spec.with_generation(stored.generation) {
            action.add(1);
        } else {
            action.skip(1);
            action.note("it was created at the same time by another process, with other settings");
        }
        Ok(())
    })
    .await
}
