//! `millstream limits list`.

use anyhow::Result;
use clap::Args;
use millstream::Timestamp;
use millstream::admin::{LimitRules, OpenBreaker, PermitState};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output, parse};

/// Lists the keys of limits of which something is in use or waited for, and open breakers
///
/// Those for which most consumers wait come first. A consumer that waits for a key may have many messages for it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream limits list
  millstream limits list --prefix tenant: --json | jq '.data.keys[] | select(.waiting > 0)'")]
pub(super) struct LimitsList {
    /// Shows only keys that begin so
    #[arg(long, default_value = "", value_name = "TEXT")]
    prefix: String,
    /// Maximum number of keys
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = parse::limit)]
    limit: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct LimitsListed {
    keys: Vec<KeyView>,
    /// How many keys are in use or waited for, those that are not shown included.
    total: usize,
    /// Breakers that are open, or of which it is not known whether they can be closed.
    breakers: Vec<BreakerView>,
}

/// A breaker that is not closed.
#[derive(Debug, Serialize, JsonSchema)]
struct BreakerView {
    /// Limit and key: `payments:acme`.
    key: String,
    /// Since when, in milliseconds since 1970.
    #[schemars(with = "u64")]
    since_ms: Timestamp,
    /// From when on a message tries whether it can be closed.
    #[schemars(with = "u64")]
    until_ms: Timestamp,
    /// Why it was opened last.
    reason: String,
}

impl BreakerView {
    fn of(open: OpenBreaker) -> Self {
        let OpenBreaker { key, since, until, reason } = open;
        Self { key: key.to_string(), since_ms: since, until_ms: until, reason }
    }
}

/// A key of a limit.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyView {
    /// Limit and key: `tenant:acme`.
    key: String,
    /// How many units may be in use at once: by the rule that counts, or as the last taker stated it.
    at_most: u32,
    /// How many are in use.
    in_use: u32,
    /// How many consumers have some.
    holders: usize,
    /// How many consumers wait for some.
    waiting: usize,
}

impl KeyView {
    fn of(state: &PermitState, rules: &LimitRules) -> Self {
        Self {
            key: state.key.to_string(),
            at_most: rules.at_most(&state.key, state.at_most),
            in_use: state.held.iter().map(|(_, units)| units).sum(),
            holders: state.held.len(),
            waiting: state.waiting.len(),
        }
    }
}

impl LimitsList {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let states = cx.admin().limits_of(&self.prefix).await?;
        let rules = cx.admin().limit_rules().await?;
        let total = states.len();
        let mut keys: Vec<KeyView> = states.iter().map(|state| KeyView::of(state, &rules)).collect();
        keys.sort_by(|one, other| (other.waiting, &one.key).cmp(&(one.waiting, &other.key)));
        keys.truncate(self.limit);
        let open = cx.admin().open_breakers().await?.into_iter();
        let open = open.filter(|it| it.key.as_str().starts_with(&self.prefix));
        let breakers: Vec<_> = open.take(self.limit).map(BreakerView::of).collect();
        let listed = LimitsListed { keys, total, breakers };
        cx.output.show(&listed, |listed| {
            let mut parts = Vec::new();
            if !listed.breakers.is_empty() {
                let rows = listed.breakers.iter().map(|it| {
                    let times = [it.since_ms, it.until_ms].map(human::time);
                    let [since, until] = times;
                    [it.key.clone(), since, until, it.reason.clone()]
                });
                parts.push(output::table(&["open breaker", "since", "next try from", "reason"], rows));
            }
            if listed.keys.is_empty() {
                parts.push("nothing is in use, and nothing waits for a limit".to_owned());
            } else {
                let rows = listed.keys.iter().map(|key| {
                    let numbers = [key.in_use as usize, key.at_most as usize, key.holders, key.waiting];
                    let [in_use, at_most, holders, waiting] = numbers.map(|n| human::count(n as u64));
                    [key.key.clone(), in_use, at_most, holders, waiting]
                });
                parts.push(output::table(&["key", ">in use", ">at most", ">holders", ">waiting"], rows));
            }
            parts.join("\n\n")
        })?;
        if listed.keys.len() < total {
            let shown = human::of(listed.keys.len() as u64, "key", "keys");
            cx.output.note(&format!("{shown} of {total}; --limit shows more, --prefix fewer"));
        }
        Ok(Exit::Done)
    }
}
