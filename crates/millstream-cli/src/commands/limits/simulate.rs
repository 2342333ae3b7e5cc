//! `millstream limits simulate`.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::Rate;
use millstream::admin::{Flow, FlowOutcome, LimitBound, LimitPattern, LimitRules, Short, Simulation};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output, parse};

/// Simulates limits: takes rules and flows of messages, and draws who waits how long
///
/// Nothing is read from the server unless `--stored` says so, and nothing is changed. A flow is `KEYS=RATE`: the limits and keys under which its messages
/// come, and how many come; the burst of its rate comes at once. Of messages that wait, the one that came first begins first.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits simulate tenant:acme=50/s tenant:tiny=1/s --rule tenant=2
  millstream limits simulate tenant:acme,api:all=50/s tenant:tiny,api:all=1/s --rule tenant=4 --rule 'api=10/s burst 5'
  millstream limits simulate tenant:acme='100/m burst 20' --stored --takes 2s --for 1h")]
pub(super) struct LimitsSimulate {
    /// Limits and keys, `=`, and a rate: `tenant:acme,api:all=50/s`
    #[arg(required = true, value_name = "FLOW")]
    flows: Vec<Stated>,
    /// A rule, as `limits set` takes it: `tenant=2`, `tenant:acme=10`, `api=10/s`; may be given several times
    #[arg(long, value_name = "PATTERN=LIMIT")]
    rule: Vec<Rule>,
    /// Takes the rules of the server too, except for patterns that are given
    #[arg(long)]
    stored: bool,
    /// How long a handler takes
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse::duration)]
    takes: Duration,
    /// How many handlers run at once, in all
    #[arg(long, value_name = "N", default_value_t = 100)]
    handlers: usize,
    /// How long messages come
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = parse::duration)]
    time: Duration,
    /// Lets flows take turns by the time of their handlers, as fair tenants do
    #[arg(long)]
    fair: bool,
}

/// A flow as it is given.
#[derive(Clone, Debug)]
struct Stated(String, Flow);

impl FromStr for Stated {
    type Err = millstream::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (keys, rate) = parts(text)?;
        let needs =
            keys.split(',').filter(|key| !key.is_empty()).map(super::key).collect::<Result<_, _>>()?;
        Ok(Self(keys.to_owned(), Flow { needs, rate: rate.parse::<Rate>()?, takes: Duration::ZERO }))
    }
}

/// A rule as it is given.
#[derive(Clone, Debug)]
struct Rule(LimitPattern, LimitBound);

impl FromStr for Rule {
    type Err = millstream::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pattern, bound) = parts(text)?;
        Ok(Self(pattern.parse()?, bound.parse()?))
    }
}

fn parts(text: &str) -> Result<(&str, &str), millstream::Error> {
    // Keys may have one.
    text.rsplit_once('=').ok_or_else(|| {
        millstream::Error::new(
            millstream::ErrorKind::InvalidConfig,
            format!("{text:?} has no `=`: write tenant:acme=10/s"),
        )
    })
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct Simulated {
    flows: Vec<FlowView>,
    /// Milliseconds of each part of a course.
    part_ms: u64,
}

/// What became of a flow.
#[derive(Debug, Serialize, JsonSchema)]
struct FlowView {
    /// Its limits and keys.
    flow: String,
    /// Messages that came.
    sent: u64,
    /// Messages that began.
    begun: u64,
    /// Wait within which half of those began.
    p50_ms: u64,
    /// Wait within which 99 of 100 of those began.
    p99_ms: u64,
    /// Longest wait, also of those that have not begun.
    longest_ms: u64,
    /// Messages that had not begun at the end.
    waiting: u64,
    /// What they were short of last before they began, by the time that they had waited: limit and key, or `handlers`; `null` if none waited.
    short: Option<String>,
    /// Longest wait in each part of the time.
    course_ms: Vec<u64>,
}

impl FlowView {
    fn of(flow: &str, outcome: FlowOutcome) -> Self {
        let short = outcome.short.map(|short| match short {
            Short::Key(key) => key.to_string(),
            Short::Handlers => "handlers".to_owned(),
        });
        Self {
            flow: flow.to_owned(),
            sent: outcome.sent,
            begun: outcome.begun,
            p50_ms: human::ms(outcome.p50),
            p99_ms: human::ms(outcome.p99),
            longest_ms: human::ms(outcome.longest),
            waiting: outcome.waiting,
            short,
            course_ms: outcome.course.into_iter().map(human::ms).collect(),
        }
    }
}

impl LimitsSimulate {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let mut rules = if self.stored { cx.admin().limit_rules().await? } else { LimitRules::default() };
        // A pattern has one rule on a server. Here one for units and one for a rate may stand beside each other.
        rules.rules.retain(|(of_server, _)| self.rule.iter().all(|Rule(given, _)| given != of_server));
        rules.rules.extend(self.rule.into_iter().map(|Rule(pattern, bound)| (pattern, bound)));
        let flows = self.flows.iter().map(|Stated(_, flow)| Flow { takes: self.takes, ..flow.clone() });
        let (handlers, time, fair) = (self.handlers, self.time, self.fair);
        let outcomes = Simulation { flows: flows.collect(), rules, handlers, time, fair }.run()?;
        let flows = self.flows.iter().zip(outcomes).map(|(Stated(name, _), it)| FlowView::of(name, it));
        let flows: Vec<_> = flows.collect();
        let parts = flows.first().map_or(1, |flow| flow.course_ms.len() as u64);
        let view = Simulated { flows, part_ms: human::ms(self.time) / parts };
        cx.output.show(&view, Simulated::text)?;
        Ok(Exit::Done)
    }
}

impl Simulated {
    fn text(&self) -> String {
        let time = |ms| human::duration(Duration::from_millis(ms));
        // All by one scale, so that flows can be compared.
        let most = self.flows.iter().map(|flow| flow.longest_ms).max().unwrap_or(0).max(1);
        let rows = self.flows.iter().map(|flow| {
            [
                flow.flow.clone(),
                human::count(flow.sent),
                human::count(flow.begun),
                time(flow.p50_ms),
                time(flow.p99_ms),
                time(flow.longest_ms),
                human::count(flow.waiting),
                human::or_none(flow.short.as_ref(), Clone::clone),
                flow.course_ms.iter().map(|ms| human::step(*ms as f64 / most as f64)).collect(),
            ]
        });
        let titles = [
            "flow",
            ">sent",
            ">begun",
            ">p50",
            ">p99",
            ">longest",
            ">wait still",
            "short of",
            "longest wait over time",
        ];
        let table = output::table(&titles, rows);
        format!("{table}\neach step is {}, the highest one a wait of {}", time(self.part_ms), time(most))
    }
}
