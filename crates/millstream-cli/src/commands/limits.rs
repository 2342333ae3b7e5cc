//! `millstream limits`.

mod list;
mod simulate;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::admin::{LimitBound, LimitPattern, PermitKey};
use millstream::crates::core::members::Member;
use millstream::crates::core::running::WaitingMessage;
use millstream::{MessageId, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Failed;
use crate::commands::{DryRun, Running};
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
use crate::{human, output, parse};
use list::{LimitsList, LimitsListed};
use simulate::{LimitsSimulate, Simulated};

/// Lists, shows and sets limits on how much is handled at once
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits list --prefix tenant:
  millstream limits show tenant:acme
  millstream limits set tenant:acme 5")]
pub(crate) struct Limits {
    #[command(subcommand)]
    what: LimitsCommand,
}

#[derive(Debug, Subcommand)]
enum LimitsCommand {
    List(LimitsList),
    Show(LimitsShow),
    Why(LimitsWhy),
    Rules(LimitsRules),
    Simulate(LimitsSimulate),
    Set(LimitsSet),
    Unset(LimitsUnset),
    Close(LimitsClose),
    Open(LimitsOpen),
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("limits list", of::<LimitsListed>()),
    ("limits show", of::<LimitShown>()),
    ("limits why", of::<WhyView>()),
    ("limits rules", of::<RulesView>()),
    ("limits simulate", of::<Simulated>()),
    ("limits set", of::<LimitChanged>()),
    ("limits unset", of::<LimitChanged>()),
    ("limits close", of::<RateClosed>()),
    ("limits open", of::<RateClosed>()),
];

impl Limits {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            LimitsCommand::List(it) => Box::pin(it.run(cx)),
            LimitsCommand::Show(it) => Box::pin(it.run(cx)),
            LimitsCommand::Why(it) => Box::pin(it.run(cx)),
            LimitsCommand::Rules(it) => Box::pin(it.run(cx)),
            LimitsCommand::Simulate(it) => Box::pin(it.run(cx)),
            LimitsCommand::Set(it) => Box::pin(it.run(cx)),
            LimitsCommand::Unset(it) => Box::pin(it.run(cx)),
            LimitsCommand::Close(it) => Box::pin(close(cx, it.key, it.time, it.dry.dry_run)),
            LimitsCommand::Open(it) => Box::pin(close(cx, it.key, Duration::ZERO, it.dry.dry_run)),
        }
    }
}

/// Shows who has units of a key, who waits, and which rule counts
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits show tenant:acme
  millstream limits show tenant:eu/acme --json | jq .data.rule")]
struct LimitsShow {
    /// Limit and key, as `limits list` shows them; a limit alone is that of all messages
    #[arg(value_name = "LIMIT:KEY", value_parser = key)]
    key: PermitKey,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LimitShown {
    key: String,
    /// How many units may be in use at once: by the rule that counts, or as the last taker stated it; `null` if neither is known.
    at_most: Option<u32>,
    /// The rule that counts for the key; `null` if what programs state counts.
    rule: Option<RuleView>,
    /// How far the tokens of a rate limit are reserved; `null` if none are, and the key is not closed.
    rate: Option<RateView>,
    /// Consumers that have units.
    held: Vec<HeldView>,
    /// Consumers that wait, in the order of their turns.
    waiting: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RateView {
    /// Milliseconds until all tokens that are reserved are free.
    ahead_ms: u64,
    /// Milliseconds between two tokens.
    interval_ms: f64,
    /// Milliseconds for which the key is closed; 0 if it is not.
    closed_ms: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct HeldView {
    holder: String,
    units: u32,
}

/// A rule of a limit.
#[derive(Debug, Serialize, JsonSchema)]
struct RuleView {
    /// The keys that it is for: `tenant`, `tenant:acme`, `tenant:eu/*`.
    pattern: String,
    /// How many units may be in use at once; `null` for a rate.
    at_most: Option<u32>,
    /// How many tokens become free in a time, as `10/s`; `null` for units.
    rate: Option<String>,
}

impl RuleView {
    fn of((pattern, bound): &(LimitPattern, LimitBound)) -> Self {
        let rate = bound.rate().map(|rate| rate.to_string());
        Self { pattern: pattern.to_string(), at_most: bound.units(), rate }
    }

    fn bound(&self) -> String {
        self.rate.clone().unwrap_or_else(|| human::or_none(self.at_most, |most| most.to_string()))
    }
}

/// Parses a key; a limit alone has the only key of all messages.
fn key(text: &str) -> Result<PermitKey, millstream::Error> {
    if text.contains(':') { text.parse() } else { format!("{text}:all").parse() }
}

impl LimitsShow {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, key) = (cx.admin(), self.key);
        let state = admin.limits_of(key.as_str()).await?.into_iter().find(|state| state.key == key);
        let rules = admin.limit_rules().await?;
        let rule = rules.rule(&key).map(RuleView::of);
        let by_rule = rules.rule(&key).and_then(|(_, bound)| bound.units());
        let at_most = by_rule.or(state.as_ref().map(|state| state.at_most));
        let rate = admin.rate_state(&key).await?.map(|state| RateView {
            ahead_ms: human::ms(state.ahead),
            interval_ms: state.interval.as_secs_f64() * 1e3,
            closed_ms: human::ms(state.closed),
        });
        let held = |(holder, units): &(_, u32)| HeldView { holder: format!("{holder}"), units: *units };
        let shown = LimitShown {
            key: key.to_string(),
            at_most,
            rule,
            rate,
            held: state.iter().flat_map(|state| state.held.iter().map(held)).collect(),
            waiting: state.iter().flat_map(|state| state.waiting.iter().map(ToString::to_string)).collect(),
        };
        cx.output.show(&shown, LimitShown::text)?;
        Ok(Exit::Done)
    }
}

impl LimitShown {
    fn text(&self) -> String {
        let rule = self.rule.as_ref().map(|rule| format!("{} = {}", rule.pattern, rule.bound()));
        let mut lines = vec![
            ("key", self.key.clone()),
            ("at most", human::or_none(self.at_most, |most| most.to_string())),
            ("rule", rule.unwrap_or_else(|| "none: what programs state counts".to_owned())),
        ];
        if let Some(rate) = &self.rate {
            let ahead = human::duration(Duration::from_millis(rate.ahead_ms));
            lines.push(("tokens", format!("reserved for {ahead}, one each {:.3} ms", rate.interval_ms)));
            if rate.closed_ms > 0 {
                lines.push((
                    "closed",
                    format!("for {}", human::duration(Duration::from_millis(rate.closed_ms))),
                ));
            }
        }
        lines.extend(self.held.iter().map(|held| ("has", format!("{} {}", held.units, held.holder))));
        lines.extend(self.waiting.iter().map(|holder| ("waits", holder.clone())));
        output::list(lines)
    }
}

/// Shows the messages of a group that wait for limits, or why one does
///
/// Each consumer names the 20 that have waited longest, for a second or longer, with its heartbeats: three times per ttl of a lease.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits why orders billing
  millstream limits why orders billing 1767225600000-0
  millstream limits why orders billing --json | jq -r '.data.messages[].key' | sort | uniq -c")]
struct LimitsWhy {
    #[command(flatten)]
    of: GroupOf,
    /// Id of a message in the log
    id: Option<MessageId>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WhyView {
    topic: String,
    group: String,
    /// Messages that wait, longest first.
    messages: Vec<WaitingView>,
    /// How many more wait that consumers did not name.
    unnamed: u64,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

/// A message that waits for units of a limit.
#[derive(Debug, Serialize, JsonSchema)]
struct WaitingView {
    /// Its id in the log.
    id: String,
    partition: u32,
    /// The consumer that has read it.
    member: String,
    /// What it waits for: limit and key.
    key: String,
    /// Since when, by the server's clock.
    #[schemars(with = "u64")]
    since_ms: Timestamp,
    /// How many units of the key are in use now.
    in_use: u32,
    /// How many may be in use at once; `null` if nothing is in use, and no rule is set, as for a rate limit.
    at_most: Option<u32>,
}

impl LimitsWhy {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let Self { of: GroupOf { topic, group }, id } = &self;
        self.of.known(cx).await?;
        let admin = cx.admin();
        let owners = admin.owners(topic, group).await?;
        let mut found = owners.waiting();
        found.retain(|(_, it)| id.is_none_or(|id| it.message.origin == id));
        let states = if found.is_empty() { Vec::new() } else { admin.limits_of("").await? };
        let rules = admin.limit_rules().await?;
        let view = |(member, it): &(&Member, &WaitingMessage)| {
            let state = states.iter().find(|state| state.key == it.key);
            let rule = rules.rule(&it.key).and_then(|(_, bound)| bound.units());
            WaitingView {
                id: it.message.origin.to_string(),
                partition: it.message.partition.0,
                member: member.id.to_string(),
                key: it.key.to_string(),
                since_ms: it.message.since,
                in_use: state.map_or(0, |state| state.held.iter().map(|(_, units)| units).sum()),
                at_most: rule.or(state.map(|state| state.at_most)),
            }
        };
        let failed = |error: &str| Failed::in_group(topic, group, error);
        let shown = WhyView {
            topic: topic.to_string(),
            group: group.to_string(),
            messages: found.iter().map(view).collect(),
            unnamed: owners.waiting_unnamed(),
            errors: owners.reasons().map(failed).collect(),
        };
        cx.output.show(&shown, WhyView::text)?;
        Failed::end(cx, &shown.errors)
    }
}

impl WhyView {
    fn text(&self) -> String {
        if self.messages.is_empty() {
            let unnamed = human::count(self.unnamed);
            return format!(
                "no consumer names it among those that wait for limits; {unnamed} wait without a name"
            );
        }
        let rows = self.messages.iter().map(|it| {
            let most = human::or_none(it.at_most, |most| human::count(most.into()));
            [
                it.id.clone(),
                it.partition.to_string(),
                it.key.clone(),
                human::time(it.since_ms),
                human::count(it.in_use.into()),
                most,
                human::member(&it.member),
            ]
        });
        let table = output::table(
            &["message", ">partition", "waits for", "since", ">in use", ">at most", "consumer"],
            rows,
        );
        match self.unnamed {
            0 => table,
            more => format!("{table}\n{} more wait", human::count(more)),
        }
    }
}

/// Lists the rules that operators have set
///
/// They precede what programs state. Of several rules for a key the most specific one counts.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits rules
  millstream limits rules --json | jq .data.version")]
struct LimitsRules {}

#[derive(Debug, Serialize, JsonSchema)]
struct RulesView {
    /// Grows with each change; 0 if no rule was ever set.
    version: u64,
    rules: Vec<RuleView>,
}

impl LimitsRules {
    async fn run(self, cx: &Context) -> Result<Exit> {
        let rules = cx.admin().limit_rules().await?;
        let mut view =
            RulesView { version: rules.version, rules: rules.rules.iter().map(RuleView::of).collect() };
        view.rules.sort_by(|one, other| one.pattern.cmp(&other.pattern));
        cx.output.show(&view, |view| match view.rules.is_empty() {
            true => "there are no rules: what programs state counts".to_owned(),
            false => {
                let rows = view.rules.iter().map(|rule| [rule.pattern.clone(), rule.bound()]);
                output::table(&["pattern", ">limit"], rows)
            }
        })?;
        Ok(Exit::Done)
    }
}

/// Sets how many units of the keys of a pattern may be in use at once, or their rate
///
/// All consumers see it at once. What runs goes on, also above the new limit; 0 lets nothing begin. A number counts for limits on what is
/// in use at once, a rate for rate limits. The pattern `tenant` is for
/// all keys of that limit, `tenant:acme` for one, and `tenant:eu/*` for all of two levels whose first is `eu`. Copy a key from
/// `limits list`: most bytes that are no letters and digits are `%XX`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits set tenant 2
  millstream limits set tenant:acme 10
  millstream limits set mail-api 10/s
  millstream limits set mail-api '1000/h burst 50'
  millstream limits set 'tenant:*/gpu' 0 --dry-run")]
struct LimitsSet {
    /// Keys that the rule is for: `LIMIT`, `LIMIT:KEY` or `LIMIT:LEVEL/*`
    pattern: LimitPattern,
    /// How many units may be in use at once, 0 to 1000000; or a rate: tokens, `/`, a whole number of ms, s, m, h or d, and maybe `burst N`
    #[arg(value_name = "LIMIT")]
    bound: LimitBound,
    #[command(flatten)]
    dry: DryRun,
}

/// Removes a rule: a less specific one counts, or what programs state
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits unset tenant:acme")]
struct LimitsUnset {
    /// Keys that the rule is for
    pattern: LimitPattern,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LimitChanged {
    pattern: String,
    /// What the rule was before, a number or a rate, as text; `null` if there was none.
    before: Option<String>,
    /// What it is now; `null` if there is none.
    now: Option<String>,
    dry_run: bool,
}

impl LimitsSet {
    async fn run(self, cx: &Context) -> Result<Exit> {
        change(cx, &self.pattern, Some(self.bound), self.dry.dry_run).await
    }
}

impl LimitsUnset {
    async fn run(self, cx: &Context) -> Result<Exit> {
        change(cx, &self.pattern, None, self.dry.dry_run).await
    }
}

/// Lets nobody spend tokens of a key of a rate limit for a time, as an API means that says "not now"
///
/// What was reserved before is void. A key that is closed for longer already stays so. Hold a breaker open with `limits set KEY 0`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits close mail-api 10m")]
struct LimitsClose {
    /// Limit and key; a limit alone is that of all messages
    #[arg(value_name = "LIMIT:KEY", value_parser = key)]
    key: PermitKey,
    /// How long, up to 31 days
    #[arg(value_parser = parse::duration)]
    time: Duration,
    #[command(flatten)]
    dry: DryRun,
}

/// Opens a key of a rate limit that is closed for a time
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits open mail-api")]
struct LimitsOpen {
    /// Limit and key; a limit alone is that of all messages
    #[arg(value_name = "LIMIT:KEY", value_parser = key)]
    key: PermitKey,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RateClosed {
    key: String,
    /// Milliseconds for which the key is closed now; 0 if it is open.
    closed_ms: u64,
    dry_run: bool,
}

async fn close(cx: &Context, key: PermitKey, time: Duration, dry_run: bool) -> Result<Exit> {
    let admin = cx.admin();
    if dry_run {
        cx.output.note("dry run: nothing was done. How it is now:");
    } else {
        to_the_end(admin.close_rate(&key, time)).await?;
    }
    let closed = admin.rate_state(&key).await?.map_or(Duration::ZERO, |state| state.closed);
    let changed = RateClosed { key: key.to_string(), closed_ms: human::ms(closed), dry_run };
    cx.output.show(&changed, |changed| match changed.closed_ms {
        0 => format!("{} is open", changed.key),
        ms => format!("{} is closed for {}", changed.key, human::duration(Duration::from_millis(ms))),
    })?;
    Ok(Exit::Done)
}

async fn change(
    cx: &Context,
    pattern: &LimitPattern,
    now: Option<LimitBound>,
    dry_run: bool,
) -> Result<Exit> {
    let admin = cx.admin();
    let rules = admin.limit_rules().await?;
    let before = rules.rules.iter().find(|(other, _)| other == pattern).map(|(_, bound)| *bound);
    if dry_run {
        cx.output.note("dry run: nothing was done. What would change:");
    } else if before != now {
        to_the_end(admin.set_limit(pattern, now)).await?;
    }
    let text = |bound: Option<LimitBound>| bound.map(|bound| bound.to_string());
    let changed =
        LimitChanged { pattern: pattern.to_string(), before: text(before), now: text(now), dry_run };
    cx.output.show(&changed, |changed| {
        let of = |bound: &Option<String>| bound.clone().unwrap_or_else(|| "no rule".to_owned());
        format!("{}: {} -> {}", changed.pattern, of(&changed.before), of(&changed.now))
    })?;
    Ok(Exit::Done)
}
