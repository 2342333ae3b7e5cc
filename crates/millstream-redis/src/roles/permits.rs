//! The permits role: all keys of limits are in one hash slot, since a message takes units of several in one step.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::continuity::Continuity;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::limits::{LimitBound, LimitPattern, LimitRules, PermitKey};
use millstream_core::permits::{
    Call, Calls, Exchange, Exchanged, Lead, OpenBreaker, PermitHolder, PermitPage, PermitState, Permits,
    PermitsRenewed, Reservation, Reserved, Step, Taken, TokenStep, check_exchange, check_reservation,
};
use millstream_core::rates::{HORIZON, LONGEST_PERIOD, RateRecord, RateState};
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::waits::changes::Change;
use crate::error::unexpected;
use crate::roles::leases::ttl_ms;
use crate::scripts::script::{self, Call as ScriptCall};

/// Keys that one call frees: half a millisecond of the server.
const FREED_AT_ONCE: usize = 250;
/// Calls that are read in one request.
const CALLS_AT_ONCE: usize = 500;
/// Field of the rules that has their version: no pattern begins with a colon.
const VERSION: &str = ":version";

#[async_trait]
impl Permits for RedisBackend {
    async fn renew(
        &self,
        holder: &PermitHolder,
        ttl: Duration,
        continuity: &Continuity,
        joining: bool,
    ) -> Result<PermitsRenewed> {
        let keys = &self.inner.keys;
        let (holders, ended, calls) = (keys.permit_holders(), keys.permit_ended(), keys.permit_calls());
        let call = self.inner.scripts.renew_permits.call([&holders, &ended, &calls]);
        let call = call.arg(holder.as_str()).arg(ttl_ms(ttl)).arg(continuity.to_string());
        let answer = script::run_one(&self.inner.leases, call.arg(u8::from(joining))).await;
        renewed(answer.map_err(|error| during(error, "renew", holder))?)
            .map_err(|error| during(error, "renew", holder))
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged> {
        check_exchange(exchange)?;
        let (keys, holder) = (&self.inner.keys, &exchange.holder);
        let (holders, units, rules) = (keys.permit_holders(), keys.permits(), keys.limit_rules());
        let (of, calls) = (keys.permits_of(holder), keys.permit_calls());
        let script = &self.inner.scripts.exchange_permits;
        let mut call = script.call([&holders, &units, &rules, &of, &calls]).arg(holder.as_str());
        call.extend([exchange.number, exchange.version]);
        let mut takes = 0;
        for step in &exchange.steps {
            match step {
                Step::Has(key, units) => call = call.args(["has", key.as_str()]).arg(*units),
                Step::Leaves(key) => call.extend(["leaves", key.as_str()]),
                Step::Takes(take) => {
                    takes += 1;
                    call = call.args(["takes", if take.waits { "w" } else { "n" }]).arg(take.wants.len());
                    for want in &take.wants {
                        call = call.arg(want.key.as_str()).arg(want.units).arg(want.at_most);
                    }
                }
            }
        }
        let during = |error| during(error, "exchange", holder);
        let answer = script::run_one(&self.inner.leases, call).await.map_err(during)?;
        exchanged(answer, exchange.version, takes).map_err(during)
    }

    async fn called(&self, holder: &PermitHolder, seen: MessageId, wait: Duration) -> Result<Calls> {
        let calls = self.inner.keys.permit_calls();
        let on = |error: Error| {
            self.inner.servers.learn(&error);
            during(error, "calls", holder)
        };
        let streams = [(&calls, seen)];
        let waiting = async { self.inner.changes.of(&calls).await?.wait(&streams, wait).await };
        if matches!(waiting.await.map_err(on)?, Change::Nothing) {
            return Ok(Calls { seen, ..Calls::default() });
        }
        let mut pipe = Pipeline::with_capacity(1);
        // With the last one that was read: if it is gone, others may have gone unread.
        pipe.cmd("XRANGE").arg(calls.as_str()).arg(seen.to_string()).arg("+").arg("COUNT").arg(CALLS_AT_ONCE);
        let found = self.inner.leases.send(&pipe).await.map_err(on)?.pop().unwrap_or_default();
        called(reply::ok(found).map_err(on)?, holder, seen).map_err(on)
    }

    async fn end(&self, holder: &PermitHolder) -> Result<bool> {
        let keys = &self.inner.keys;
        let (holders, units, ended) = (keys.permit_holders(), keys.permits(), keys.permit_ended());
        let (of, calls) = (keys.permits_of(holder), keys.permit_calls());
        let call = self.inner.scripts.end_permits.call([&holders, &units, &ended, &of, &calls]);
        let call = call.arg(holder.as_str()).arg(FREED_AT_ONCE);
        let answer =
            script::run_one(&self.inner.leases, call).await.map_err(|error| during(error, "end", holder))?;
        Ok(reply::int(answer)? == 1)
    }

    async fn limit_rules(&self) -> Result<LimitRules> {
        let rules = self.inner.keys.limit_rules();
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HGETALL").arg(rules.as_str());
        let on = |error: Error| error.during("rules of limits");
        let found = self.inner.leases.send(&pipe).await.map_err(on)?.pop().unwrap_or_default();
        read_rules(reply::ok(found).map_err(on)?).map_err(on)
    }

    async fn set_limit_rule(&self, pattern: &LimitPattern, bound: Option<LimitBound>) -> Result<u64> {
        let keys = &self.inner.keys;
        let call = self.inner.scripts.set_limit_rule.call([&keys.limit_rules(), &keys.permit_calls()]);
        let call =
            call.arg(pattern.to_string()).arg(bound.map(|bound| bound.to_string()).unwrap_or_default());
        let answer = script::run_one(&self.inner.leases, call).await;
        number(answer.map_err(|error| error.during(format_args!("set the limit {pattern}")))?)
    }

    async fn reserve(&self, reservation: &Reservation) -> Result<Reserved> {
        check_reservation(reservation)?;
        let (mut call, mut reserves) = (self.reserve_tokens(reservation.version), 0);
        for step in &reservation.steps {
            let breaks;
            let (what, key, amount, rate) = match step {
                TokenStep::Reserves { key, tokens, rate, waits } => {
                    reserves += 1;
                    (if *waits { "w" } else { "n" }, key, i64::from(*tokens), rate)
                }
                TokenStep::Charges { key, tokens, rate } => ("c", key, *tokens, rate),
                TokenStep::Closes { key, time, rate } => ("x", key, micros(*time), rate),
                TokenStep::Breaks { key, time, rate, reason } => {
                    breaks = format!("b{}", OpenBreaker::cut(reason));
                    (breaks.as_str(), key, micros(*time), rate)
                }
            };
            call = call.args([what, key.as_str()]).arg(amount);
            let (tokens, per) = (u64::from(rate.tokens()), rate.per().as_millis() as u64);
            call.extend([tokens, per, u64::from(rate.most_saved())]);
        }
        if reservation.steps.is_empty() {
            return Ok(Reserved::Done(Vec::new()));
        }
        let during = |error: Error| error.during("tokens of rates");
        let answer = script::run_one(&self.inner.leases, call).await.map_err(during)?;
        reserved(answer, reservation.version, reserves).map_err(during)
    }

    async fn drop_idle_rates(&self) -> Result<bool> {
        let during = |error: Error| error.during("idle rates");
        let answer = script::run_one(&self.inner.leases, self.reserve_tokens(0)).await.map_err(during)?;
        dropped(answer).map_err(during)
    }

    async fn rate_state(&self, key: &PermitKey) -> Result<Option<RateState>> {
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("HGET").arg(self.inner.keys.rates().as_str()).arg(key.as_str());
        pipe.cmd("TIME");
        let on = |error: Error| error.during(format_args!("rate of {key}"));
        let mut values = self.inner.leases.send(&pipe).await.map_err(on)?.into_iter();
        let mut next = || reply::ok(values.next().unwrap_or_default());
        let (record, [seconds, micros]) =
            (next().map_err(on)?, reply::tuple(next().map_err(on)?).map_err(on)?);
        let now_us = number(seconds).map_err(on)? * 1_000_000 + number(micros).map_err(on)?;
        let record = match record {
            Value::Nil => None,
            // What cannot be read counts as none.
            text => reply::text(text).ok().and_then(|text| RateRecord::parse(&text)),
        };
        Ok(record.and_then(|record| record.state(now_us)))
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("HGETALL").arg(self.inner.keys.breakers().as_str());
        let on = |error: Error| error.during("open breakers");
        let found = self.inner.leases.send(&pipe).await.map_err(on)?.pop().unwrap_or_default();
        let found = reply::pairs(reply::ok(found).map_err(on)?).map_err(on)?;
        // What cannot be read was written by another program, and counts as none.
        Ok(found.into_iter().filter_map(|(key, record)| open_breaker(key, record)).collect())
    }

    async fn usage(&self, from: u64, limit: usize) -> Result<PermitPage> {
        let keys = &self.inner.keys;
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("HKEYS").arg(keys.permit_holders().as_str());
        pipe.cmd("HSCAN").arg(keys.permits().as_str()).arg(from).arg("COUNT").arg(limit.clamp(1, 1_000));
        let on = |error: Error| error.during("permits in use");
        let mut values = self.inner.leases.send(&pipe).await.map_err(on)?.into_iter();
        let mut next = || reply::ok(values.next().unwrap_or_default());
        let alive: Vec<String> =
            reply::array(next()?)?.into_iter().map(reply::text).collect::<Result<_>>().map_err(on)?;
        let [cursor, found] = reply::tuple(next()?).map_err(on)?;
        let mut page = PermitPage::default();
        let cursor = number(cursor).map_err(on)?;
        page.next = (cursor != 0).then_some(cursor);
        for (key, record) in reply::pairs(found).map_err(on)? {
            // A record that nobody could have written is one that nobody reads: the next taker of the key replaces it.
            let (Ok(key), Ok(record)) = (reply::text(key)?.parse::<PermitKey>(), reply::text(record)) else {
                continue;
            };
            let state = state(key, &record, |holder| alive.iter().any(|it| it == holder));
            page.keys.extend(state.filter(|it| !it.held.is_empty() || !it.waiting.is_empty()));
        }
        Ok(page)
    }
}

impl RedisBackend {
    /// Begins a call about tokens, without steps.
    fn reserve_tokens(&self, version: u64) -> ScriptCall<'_> {
        let keys = &self.inner.keys;
        let call = self.inner.scripts.reserve_tokens.call([
            &keys.rates(),
            &keys.limit_rules(),
            &keys.permit_calls(),
            &keys.breakers(),
        ]);
        call.arg(version).arg(micros(HORIZON))
    }
}

fn open_breaker(key: Value, record: Value) -> Option<OpenBreaker> {
    let (key, record) = (reply::text(key).ok()?.parse().ok()?, reply::text(record).ok()?);
    let mut parts = record.splitn(3, ' ');
    let mut time = || Some(millstream_core::Timestamp::from_millis(parts.next()?.parse().ok()?));
    let (since, until) = (time()?, time()?);
    Some(OpenBreaker { key, since, until, reason: parts.next().unwrap_or_default().to_owned() })
}

fn during(error: Error, what: &str, holder: &PermitHolder) -> Error {
    match error.kind() {
        ErrorKind::Fenced => holder.fenced(),
        _ => error.during(format_args!("{what} permits of {holder}")),
    }
}

fn number(value: Value) -> Result<u64> {
    let text = reply::text(value)?;
    text.parse().map_err(|_| unexpected(format_args!("{text:?} instead of a number")))
}

fn renewed(answer: Value) -> Result<PermitsRenewed> {
    let [now, server, next, look_again, seen, ended] = reply::tuple(answer)?;
    let now = millstream_core::Timestamp::from_millis(number(now)?);
    let mut renewed = PermitsRenewed::new(reply::text(server)?, now);
    // -1: there is no other holder.
    renewed.next_expiry = reply::text(next)?.parse().ok().map(Duration::from_millis);
    renewed.look_again = reply::int(look_again)? == 1;
    renewed.seen = reply::id(seen)?;
    for holder in reply::array(ended)? {
        // Another program's member of the set is nobody's holder.
        renewed.ended.extend(PermitHolder::new(reply::text(holder)?).ok());
    }
    Ok(renewed)
}

fn exchanged(answer: Value, version: u64, takes: usize) -> Result<Exchanged> {
    let [current, rest] = reply::tuple(answer)?;
    if number(current)? != version {
        return read_rules(rest).map(Exchanged::Changed);
    }
    let mut taken = Vec::with_capacity(takes);
    for code in reply::array(rest)? {
        taken.push(match reply::int(code)? {
            0 => Taken::Granted,
            -1 => Taken::Contended,
            n if n > 0 => Taken::Short(n as usize - 1),
            n => return Err(unexpected(format_args!("{n} as the end of a take"))),
        });
    }
    if taken.len() != takes {
        return Err(unexpected(format_args!("{} answers to {takes} takes", taken.len())));
    }
    Ok(Exchanged::Done(taken))
}

/// Microseconds, at most those of the longest time.
fn micros(time: Duration) -> i64 {
    time.min(LONGEST_PERIOD).as_micros() as i64
}

/// Whether a quarter or more of the records that were looked at were dropped, of many: then there are more.
fn dropped(answer: Value) -> Result<bool> {
    let [_, counts] = reply::tuple(answer)?;
    let [left, dropped] = reply::tuple(counts)?;
    Ok(reply::int(left)? > 0 && reply::int(dropped)? >= 50)
}

fn reserved(answer: Value, version: u64, reserves: usize) -> Result<Reserved> {
    let [current, rest] = reply::tuple(answer)?;
    if number(current)? != version {
        return read_rules(rest).map(Reserved::Changed);
    }
    let mut leads = Vec::with_capacity(reserves);
    for found in reply::array(rest)? {
        let text = reply::text(found)?;
        let lead = match text.strip_prefix('~') {
            _ if text.is_empty() => Some(Lead::Never),
            Some(later) => later.parse().ok().map(Lead::Later),
            None => text.parse().ok().map(Lead::At),
        };
        leads.push(lead.ok_or_else(|| unexpected(format_args!("{text:?} as the lead of tokens")))?);
    }
    if leads.len() != reserves {
        return Err(unexpected(format_args!("{} answers to {reserves} reservations", leads.len())));
    }
    Ok(Reserved::Done(leads))
}

fn read_rules(found: Value) -> Result<LimitRules> {
    let mut rules = LimitRules::default();
    for (pattern, bound) in reply::pairs(found)? {
        let (pattern, bound) = (reply::text(pattern)?, reply::text(bound)?);
        if pattern == VERSION {
            rules.version = bound.parse().unwrap_or(0);
            continue;
        }
        match (pattern.parse(), bound.parse::<LimitBound>()) {
            (Ok(pattern), Ok(bound)) => rules.rules.push((pattern, bound)),
            // Written by another program. The others must not stop with it.
            _ => tracing::warn!(pattern, bound, "this rule of a limit cannot be read, and does not count"),
        }
    }
    Ok(rules)
}

/// Parses calls from the one at `seen` on.
fn called(found: Value, holder: &PermitHolder, seen: MessageId) -> Result<Calls> {
    let mut calls = Calls { seen, missed: true, ..Calls::default() };
    for (id, fields) in reply::entries(found)? {
        if id == seen {
            calls.missed = false;
            continue;
        }
        calls.seen = id;
        for (name, value) in fields.unwrap_or_default() {
            let value = String::from_utf8_lossy(&value);
            // '<holder> <key>', or what all have to know.
            let key = || {
                let (to, key) = value.split_once(' ')?;
                if to == holder.as_str() { key.parse::<PermitKey>().ok() } else { None }
            };
            match &name[..] {
                b"free" => calls.calls.extend(key().map(Call::Free)),
                b"wanted" => calls.calls.extend(key().map(Call::Wanted)),
                b"rules" => calls.calls.push(Call::Rules),
                b"closed" => calls.calls.extend(closed(&value)),
                _ => {}
            }
        }
    }
    Ok(calls)
}

/// Parses '<microseconds> <key>'.
fn closed(value: &str) -> Option<Call> {
    let (time, key) = value.split_once(' ')?;
    Some(Call::Closed(key.parse().ok()?, Duration::from_micros(time.parse().ok()?)))
}

/// Parses a record. Who is not `alive` has nothing.
fn state(key: PermitKey, record: &str, alive: impl Fn(&str) -> bool) -> Option<PermitState> {
    let mut parts = record.split('|');
    let mut state = PermitState::new(key, parts.next()?.parse().ok()?);
    let mut items = || Some(parts.next()?.split_terminator(';').filter_map(|item| item.split_once(' ')));
    for (holder, units) in items()?.filter(|(holder, _)| alive(holder)) {
        state.held.push((PermitHolder::new(holder).ok()?, units.parse().ok()?));
    }
    for (holder, _) in items()?.filter(|(holder, _)| alive(holder)) {
        state.waiting.push(PermitHolder::new(holder).ok()?);
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_without_those_who_ended() {
        let key: PermitKey = "tenant:acme".parse().expect("a key");
        let record = "3|a 2;b 1;|c 1 7!;a 4 9;";
        let read = state(key.clone(), record, |holder| holder != "b").expect("a record");
        let holder = |name| PermitHolder::new(name).expect("a name");
        assert_eq!((read.at_most, read.held), (3, vec![(holder("a"), 2)]));
        assert_eq!(read.waiting, [holder("c"), holder("a")]);
        for foreign in ["", "x", "3", "3|a 2", "x|a 2;|"] {
            assert_eq!(state(key.clone(), foreign, |_| true), None, "{foreign}");
        }
    }

    #[test]
    fn answers_to_takes_are_counted() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let answer = |codes: &[i64]| {
            Value::Array(vec![bulk("7"), Value::Array(codes.iter().map(|code| Value::Int(*code)).collect())])
        };
        let taken = exchanged(answer(&[0, -1, 2]), 7, 3).expect("an answer");
        assert_eq!(taken, Exchanged::Done(vec![Taken::Granted, Taken::Contended, Taken::Short(1)]));
        assert_eq!(exchanged(answer(&[0]), 7, 2).expect_err("one too few").kind(), ErrorKind::Protocol);
        assert!(exchanged(answer(&[-2]), 7, 1).is_err());
    }

    #[test]
    fn answers_to_reservations_are_counted() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let answer = |leads: &[&str]| {
            Value::Array(vec![bulk("7"), Value::Array(leads.iter().map(|lead| bulk(lead)).collect())])
        };
        let leads = vec![Lead::At(-5), Lead::Never, Lead::Later(7)];
        assert_eq!(reserved(answer(&["-5", "", "~7"]), 7, 3).expect("an answer"), Reserved::Done(leads));
        assert_eq!(reserved(answer(&["0"]), 7, 2).expect_err("one too few").kind(), ErrorKind::Protocol);
        assert!(reserved(answer(&["x"]), 7, 1).is_err());
        let key = "api:acme".parse().expect("a key");
        assert_eq!(closed("1500 api:acme"), Some(Call::Closed(key, Duration::from_micros(1_500))));
        assert_eq!([closed("x api:acme"), closed("1 api"), closed("")], [None, None, None]);
    }
}
