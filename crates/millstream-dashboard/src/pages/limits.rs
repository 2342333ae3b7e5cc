//! Limits: what is in use, who waits, and the rules of operators.

use millstream::TopicName;
use millstream::admin::{LimitBound, LimitPattern, LimitRules, OpenBreaker, PermitKey, PermitState};

use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::redaction::Redaction;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Keys that are shown, those for which most consumers wait first.
const SHOWN: usize = 200;

/// Shows keys that are in use or waited for, and the rules.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let prefix = cx.query.text("prefix")?.unwrap_or_default().to_owned();
    let found = cx.app.reading.limits(&prefix).await?;
    let mut keys: Vec<&PermitState> = found.keys.iter().collect();
    let number = keys.len();
    keys.sort_by(|one, other| (other.waiting.len(), &one.key).cmp(&(one.waiting.len(), &other.key)));
    keys.truncate(SHOWN);
    let titles = ["Key", ">In use", ">At most", ">Consumers", ">That wait", "Who waits longest", ""];
    let mut used = Table::new("In use", &titles, "Nothing is in use, and nothing waits for a limit.");
    used.rows = keys.into_iter().map(|state| row(&cx, state, &found.rules)).collect();
    if number > SHOWN || found.more {
        let more = if found.more { "more than " } else { "" };
        used = used.note(format!("{} of {more}{number}: a prefix shows fewer.", number.min(SHOWN)));
    }
    let titles = ["Key", "Since", "Next try", "Reason", ""];
    let mut open = Table::new("Open breakers", &titles, "No breaker is open.");
    open.rows = found.breakers.iter().take(SHOWN).map(|it| breaker_row(&cx, it, &found.rules)).collect();
    let titles = ["Keys", "Limit", ""];
    let mut rules = Table::new("Rules", &titles, "No rule is set: what programs state counts.");
    rules.rows = found.rules.rules.iter().map(|(pattern, bound)| rule_row(&cx, pattern, *bound)).collect();
    if cx.access.allows(Permission::Admin) {
        rules = rules.link("Set a rule…", Href::of(paths::LIMIT_RULE, &[]));
    }
    let field = Field::new("prefix", "Begins with", prefix).hint("A limit and a colon, as in tenant:");
    let filter = Form::filter("Keys", Href::of(paths::LIMITS, &[]), vec![field]);
    Ok(Page::new("Limits").live().with(Part::Form(filter)).table(open).table(used).table(rules))
}

fn row(cx: &Context, state: &PermitState, rules: &LimitRules) -> Vec<Cell> {
    let used: u32 = state.held.iter().map(|(_, units)| units).sum();
    let most = rules.at_most(&state.key, state.at_most);
    let waiting = state.waiting.len() as u64;
    vec![
        Cell::mono(state.key.as_str()),
        Cell::count(used.into()),
        Cell::count(most.into()),
        Cell::count(state.held.len() as u64),
        Cell::alarm(Some(waiting), Tone::Warn),
        state.waiting.first().map_or_else(Cell::none, |first| Cell::mono(first.as_str())),
        set(
            cx,
            state.key.as_str(),
            rules.rules.iter().find(|it| it.0.to_string() == state.key.as_str()).map(|it| it.1),
        ),
    ]
}

fn breaker_row(cx: &Context, open: &OpenBreaker, rules: &LimitRules) -> Vec<Cell> {
    let key = open.key.as_str();
    vec![
        Cell::mono(key),
        Cell::time(open.since),
        Cell::time(open.until),
        Cell::toned(open.reason.clone(), Tone::Warn),
        set(cx, key, rules.rules.iter().find(|it| it.0.to_string() == key).map(|it| it.1)),
    ]
}

fn rule_row(cx: &Context, pattern: &LimitPattern, bound: LimitBound) -> Vec<Cell> {
    let pattern = pattern.to_string();
    let change = set(cx, &pattern, Some(bound));
    vec![Cell::mono(pattern), Cell::text(bound.to_string()), change]
}

/// A link to the form of a rule, for users with the right to set it.
fn set(cx: &Context, pattern: &str, bound: Option<LimitBound>) -> Cell {
    if !cx.access.allows(Permission::Admin) {
        return Cell::none();
    }
    let mut href = Href::of(paths::LIMIT_RULE, &[]).with("pattern", pattern);
    if let Some(bound) = bound {
        href = href.with("limit", bound);
    }
    Cell::links(vec![("set…".into(), href)])
}

/// A key of a limit as text. It is made of parts of a message: where some are hidden, only the limit is shown.
pub(crate) fn limit_key(cx: &Context, topic: &TopicName, key: &PermitKey) -> String {
    let hides_nothing = Redaction::none().covers(&cx.app.hidden_in_topic(topic));
    if hides_nothing { key.to_string() } else { key.parts().0.to_owned() }
}

/// Asks for a rule.
pub(crate) async fn form(cx: Context) -> Result<Page, Failure> {
    let pattern = cx.query.text("pattern")?.unwrap_or_default().to_owned();
    let bound = cx.query.text("limit")?.unwrap_or_default().to_owned();
    let mut page = Page::new("Set a rule").crumb("Limits", Href::of(paths::LIMITS, &[]));
    let why = "A rule precedes what programs state. All consumers see it at once; what runs goes on, also above a limit that was \
               lowered. 0 lets nothing begin.";
    page.push(Part::notice(Tone::Plain, why));
    let fields = vec![
        Field::new("pattern", "Keys", pattern)
            .hint("tenant: all of a limit; tenant:acme: one; tenant:eu/*: two levels")
            .required(),
        Field::new("limit", "Limit", bound)
            .hint("10: in use at once, at most; 10/s, 1000/90m or 10/s burst 20: a rate; empty: the rule is removed"),
    ];
    let form = Form::action("Rule", Href::of(paths::LIMIT_RULE, &[]), fields, "Set the rule");
    Ok(page.with(Part::Form(form)))
}

/// Sets a rule, or removes it.
pub(crate) async fn set_rule(cx: Context, params: Params) -> Result<Href, Failure> {
    let (pattern, bound): (LimitPattern, Option<LimitBound>) =
        (params.needed("pattern")?, params.parsed("limit")?);
    let admin = cx.admin();
    let (name, settings) = match bound {
        Some(bound) => ("limits set", Subject::limit(&pattern).set("limit", bound.to_string())),
        None => ("limits unset", Subject::limit(&pattern)),
    };
    let order = Order::new(name, settings).expecting(Some(1));
    let why = "the rules could not be changed";
    cx.act_once(order, why, async move { admin.set_limit(&pattern, bound).await.map(|_| true) }).await
}
