//! The audit role: scripts that check one page in one step, and plain commands for data that is spread over hash
//! slots.

mod catalog;
mod losses;

use async_trait::async_trait;
use millstream_core::Timestamp;
use millstream_core::audit::{Audit, Audited, Check, Fault, Finding, Loss, MAX_PAGE, Remedy, Scope};
use millstream_core::catalog::Catalog;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::Source;
use millstream_core::members::Members;
use millstream_core::name::GroupName;
use millstream_core::schedule::{Place, Schedule};
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::{CONSUMER, RedisBackend};
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::operations::repair::split;
use crate::queue::scheduling::{claims, states, word};
use crate::scripts::script;
use crate::stored::losses::StreamInfo;
use crate::stored::note;
use catalog::is_number;
use losses::last_read;

/// Minimum idle time of an entry in milliseconds, so that its consumer is not just about to settle it.
const IDLE_MS: u64 = 60_000;

#[async_trait]
impl Audit for RedisBackend {
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> Result<Audited> {
        if !scope.checks().contains(&check) {
            let why = format!("{scope} has no check {}", check.as_str());
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        match (scope, check) {
            (_, Check::Types) => self.types(scope).await,
            (_, Check::Losses) => self.losses_of(scope).await,
            (Scope::Topic(topic), _) => self.catalog_of(scope, topic).await,
            (Scope::Queue(queue), _) => self.queue_of(scope, queue).await,
            (Scope::Partition(tp), Check::Groups) => self.groups_of(scope, tp).await,
            (Scope::Partition(tp), _) => self.at_place(scope, &tp.clone().into(), check, after).await,
            (Scope::Shard(shard), _) => self.at_place(scope, &shard.clone().into(), check, after).await,
            (Scope::Group(tp, group), Check::Position) => self.position_of(scope, tp, group).await,
            (Scope::Group(tp, group), Check::Lease) => self.lease_of(scope, tp, group).await,
            (Scope::Group(tp, group), Check::Consumers) => self.consumers_of(scope, tp, group).await,
            (Scope::Group(tp, group), _) => self.in_group(scope, tp, group, check, after).await,
        }
    }

    async fn repair(&self, finding: &Finding) -> Result<bool> {
        match (&finding.scope, finding.fault) {
            (_, fault) if matches!(fault.remedy(), Remedy::Person | Remedy::Record) => Ok(false),
            (Scope::Topic(topic), _) => self.repair_topic(topic, finding.fault).await,
            (Scope::Queue(queue), _) => self.list_queue(queue).await,
            (Scope::Partition(tp), Fault::GroupForgotten) => self.list_group(tp, &finding.id).await,
            (Scope::Partition(tp), _) => self.repair_at(&tp.clone().into(), finding).await,
            (Scope::Shard(shard), _) => self.repair_at(&shard.clone().into(), finding).await,
            (Scope::Group(tp, group), Fault::UnreadMissing) => self.record_unread(tp, group).await,
            (Scope::Group(tp, group), Fault::GroupMissing | Fault::LogMissing) => {
                let still = self.position_of(&finding.scope, tp, group).await?;
                // A repair for another group may have created the log that was missing.
                let is_missing = |it: &Finding| matches!(it.fault, Fault::GroupMissing | Fault::LogMissing);
                if !still.findings.iter().any(is_missing) {
                    return Ok(false);
                }
                match self.restore_group(tp, group, MessageId::ZERO).await {
                    Err(error) if error.kind() == ErrorKind::Deleted => Ok(false),
                    other => other,
                }
            }
            (Scope::Group(tp, group), _) => self.repair_group(tp, group, finding).await,
        }
    }
}

/// Whether an epoch keeps every client from owning the partition: the script `acquire` counts up from a number that Lua
/// does not count exactly, or from none that is finite. Text that is no number counts as 0.
fn blocks(epoch: &[u8]) -> bool {
    let number = std::str::from_utf8(epoch).ok().and_then(|text| text.trim().parse::<f64>().ok());
    number.is_some_and(|number| number.is_nan() || number >= (1_u64 << 53) as f64)
}

fn audited(scope: &Scope, answer: Value) -> Result<Audited> {
    let [next, looked_at, found] = reply::tuple(answer)?;
    let findings = reply::array(found)?.into_iter().map(|finding| {
        let [fault, id, detail] = reply::tuple(finding)?;
        let (fault, id, detail) = (reply::text(fault)?, reply::text(id)?, reply::text(detail)?);
        let known = [
            Fault::RetryLost,
            Fault::RetryStranded,
            Fault::PendingAndParked,
            Fault::Ghost,
            Fault::RetryLeaked,
            Fault::NoteStray,
            Fault::BodyLost,
            Fault::BodyStranded,
            Fault::TaskTwice,
            Fault::StateStray,
            Fault::RuleStranded,
            Fault::RuleLost,
        ];
        let fault = known.into_iter().find(|known| known.as_str() == fault);
        let fault = fault.ok_or_else(|| unexpected("a fault that is not known"))?;
        Ok(Finding::new(fault, scope, id, with_times(&detail)))
    });
    let findings = findings.collect::<Result<_>>()?;
    let next = Some(reply::text(next)?).filter(|next| !next.is_empty());
    let mut audited = Audited::new(reply::count(looked_at)? as u64);
    (audited.findings, audited.next) = (findings, next);
    Ok(audited)
}

impl RedisBackend {
    /// Checks one page, in one call of the script. A check of both streams covers the log first, then the retry log.
    async fn in_group(
        &self,
        scope: &Scope,
        tp: &TopicPartition,
        group: &GroupName,
        check: Check,
        after: Option<&str>,
    ) -> Result<Audited> {
        let keys = &self.inner.keys;
        let (what, source) = match check {
            Check::Parked => ("parked", Source::Log),
            Check::ParkedBodies => ("parked_bodies", Source::Log),
            Check::Pending => ("pending", Source::Log),
            Check::PendingRetries => ("pending", Source::Retry),
            Check::RetryLog => ("retry_log", Source::Retry),
            _ => ("notes", after.map_or(Source::Log, |after| split(after).0)),
        };
        let after = match (check, after) {
            (Check::Notes, Some(after)) => split(after).1,
            (_, after) => after.unwrap_or_default(),
        };
        let call = self.inner.scripts.audit.call([
            &self.inner.stream(tp, group, source),
            &keys.retry_due(tp, group),
            &keys.retry_items(tp, group),
            &keys.held(tp, group),
            &keys.packs(tp),
            &keys.settled(tp, group),
        ]);
        let call = call.args([what, note::word(source), group.as_str(), after]).arg(MAX_PAGE);
        let mut page = audited(scope, script::run_one(&self.inner.looks, call).await?)?;
        if check == Check::Notes {
            page.next = match (page.next, source) {
                (Some(next), source) => Some(format!("{}:{next}", note::word(source))),
                (None, Source::Log) => Some("retry:".to_owned()),
                (None, Source::Retry) => None,
            };
        }
        Ok(page)
    }

    async fn at_place(
        &self,
        scope: &Scope,
        place: &Place,
        check: Check,
        after: Option<&str>,
    ) -> Result<Audited> {
        let keys = self.place_keys(place);
        let call = self.inner.scripts.audit_place.call(keys.each_ref());
        let call = call.args([word(place), check.as_str(), after.unwrap_or_default()]).arg(MAX_PAGE);
        audited(scope, script::run_one(&self.inner.looks, call).await?)
    }

    fn place_keys(&self, place: &Place) -> [Key; 6] {
        let keys = &self.inner.keys;
        let [recur, rules] = [keys.recur(place), keys.recur_items(place)];
        [keys.delay(place), keys.delay_items(place), claims(keys, place), states(keys, place), recur, rules]
    }

    async fn repair_at(&self, place: &Place, finding: &Finding) -> Result<bool> {
        let keys = self.place_keys(place);
        let call = self.inner.scripts.repair_place.call(keys.each_ref());
        let call = call.args([word(place), finding.fault.as_str(), &finding.id]);
        let done = reply::int(script::run_one(&self.inner.pool, call).await?)? == 1;
        if done && finding.fault == Fault::BodyLost {
            self.record_loss(&Self::scope_of(place), Loss::new(0, 1, 0, None)).await?;
        }
        Ok(done)
    }

    async fn ask(&self, pipe: &Pipeline) -> Result<Vec<Value>> {
        self.inner.looks.send(pipe).await
    }

    async fn position_of(&self, scope: &Scope, tp: &TopicPartition, group: &GroupName) -> Result<Audited> {
        let mut page = Audited::new(2);
        let known = self.listed(&self.inner.keys.topic_groups(&tp.topic), &[group.as_str()]).await?;
        let keys = [Source::Log, Source::Retry].map(|source| self.inner.stream(tp, group, source));
        let mut pipe = Pipeline::with_capacity(8);
        // Read the groups before the streams: so a position is never beyond the end that is read after it. The log is also
        // read before: entries that are appended or trimmed in between do not count as unread ones that are gone.
        pipe.cmd("XINFO").arg("STREAM").arg(keys[0].as_str());
        for key in &keys {
            pipe.cmd("XINFO").arg("GROUPS").arg(key.as_str());
        }
        for key in &keys {
            pipe.cmd("XINFO").arg("STREAM").arg(key.as_str());
        }
        // And before the consumers: what one of them reads in between is no position that nobody has read.
        pipe.cmd("XINFO").arg("CONSUMERS").arg(keys[0].as_str()).arg(group.as_str());
        pipe.cmd("HGET").arg(self.inner.keys.fence(tp, group).as_str()).arg("epoch");
        pipe.cmd("TIME");
        let [before, on_log, on_retry_log, log, retry_log, consumers, epoch, time] =
            reply::tuple(Value::Array(self.ask(&pipe).await?))?;
        // Without a key, `TIME` is that of any node. A later time is no mistake: reads seem to be newer.
        let now = match self.inner.servers.cluster() {
            Some(_) => self.now_at(&tp.clone().into()).await?,
            None => reply::time(time)?,
        };
        let read = last_read(consumers, epoch, now)?;
        let before = StreamInfo::read(before)?;
        let infos = [reply::group(on_log, group.as_str())?, reply::group(on_retry_log, group.as_str())?];
        let streams = [StreamInfo::read(log)?, StreamInfo::read(retry_log)?];
        // A group is created on log and retry log together: a retry log without a log shows that there was one.
        let log_missing = before.is_none() && streams[0].is_none() && infos[1].is_some();
        for (((source, key), info), stream) in
            [Source::Log, Source::Retry].into_iter().zip(&keys).zip(infos).zip(streams)
        {
            let word = note::word(source);
            match info {
                Some(info) => {
                    let end = stream.map_or(MessageId::MAX, |stream| stream.last);
                    if info.last_delivered > end {
                        let detail = format!("stands at {}, the end is {end}", info.last_delivered);
                        let id = format!("{word}:");
                        page.findings.push(Finding::new(Fault::PositionAhead, scope, id, detail));
                    }
                    if source == Source::Log && info.last_delivered <= end {
                        page.findings
                            .extend(self.skipped(scope, key, (info.last_delivered, end), read).await?);
                    }
                    if let Some(before) = before.filter(|_| source == Source::Log && !group.is_instance()) {
                        page.findings.extend(self.unread_missing(scope, (tp, group), &before, &info).await?);
                    }
                }
                // A group that is being deleted is reported with the topic: it must not be restored.
                None if known == [true] && !self.group_state(&tp.topic, group).await?.deleting => {
                    if source == Source::Log && log_missing {
                        let loss = self.log_lost(tp, group).await?;
                        page.findings.push(Finding::lost(Fault::LogMissing, scope, word, loss));
                    } else {
                        let detail = format!("not on {key}");
                        page.findings.push(Finding::new(Fault::GroupMissing, scope, word, detail));
                    }
                }
                None => {}
            }
        }
        Ok(page)
    }

    async fn lease_of(&self, scope: &Scope, tp: &TopicPartition, group: &GroupName) -> Result<Audited> {
        let (lease, fence) = (self.inner.keys.lease(tp, group), self.inner.keys.fence(tp, group));
        let mut pipe = Pipeline::with_capacity(4);
        // Read the fence before and after the lease: a grant changes both. (A transaction is refused when the server
        // is out of memory.)
        pipe.cmd("HGET").arg(fence.as_str()).arg("token");
        pipe.cmd("GET").arg(lease.as_str());
        pipe.cmd("PTTL").arg(lease.as_str());
        pipe.cmd("HMGET").arg(fence.as_str()).arg(&["token", "epoch", "ttl"]);
        let [before, held, left, after] = reply::tuple(Value::Array(self.ask(&pipe).await?))?;
        let [token, epoch, ttl] = reply::tuple(after)?;
        if reply::ok(before)? != token {
            return Ok(Audited::new(1));
        }
        let (held, token) = (reply::maybe_bytes(held)?, reply::maybe_bytes(token)?);
        let mut page = Audited::new(1);
        for (what, value) in [("epoch", epoch), ("ttl", ttl)] {
            if let Some(value) = reply::maybe_bytes(value)?
                && !is_number(&value)
            {
                let effect = if what == "epoch" && blocks(&value) {
                    "no consumer can own the partition"
                } else {
                    "the next owner replaces it"
                };
                let detail = format!("{what} is {:?}: {effect}", String::from_utf8_lossy(&value));
                page.findings.push(Finding::new(Fault::FenceDamaged, scope, fence.as_str(), detail));
            }
        }
        let why = match (&held, reply::int(left)?) {
            (None, _) => return Ok(page),
            (Some(_), -1) => "never ends",
            _ if held != token => "has a token that is not the fence's",
            _ => return Ok(page),
        };
        page.findings.push(Finding::new(Fault::LeaseBroken, scope, lease.as_str(), why));
        Ok(page)
    }

    /// Finds entries pending under names other than the owner's, where no living member would take them over.
    async fn consumers_of(&self, scope: &Scope, tp: &TopicPartition, group: &GroupName) -> Result<Audited> {
        let keys = &self.inner.keys;
        let mut page = Audited::default();
        let mut stray = Vec::new();
        let sources = [Source::Log, Source::Retry];
        let mut pipe = Pipeline::with_capacity(sources.len());
        for source in sources {
            let key = self.inner.stream(tp, group, source);
            pipe.cmd("XPENDING").arg(key.as_str()).arg(group.as_str());
        }
        for (source, answer) in sources.into_iter().zip(self.ask(&pipe).await?) {
            if reply::is_no_group(&answer) {
                continue;
            }
            let [_, _, _, consumers] = reply::tuple(answer)?;
            for consumer in reply::array(consumers)? {
                let [name, pending] = reply::tuple(consumer)?;
                let (name, pending) = (reply::text(name)?, reply::int(pending)?);
                page.looked_at += 1;
                if name != CONSUMER {
                    stray.push((source, name, pending));
                }
            }
        }
        if stray.is_empty() {
            return Ok(page);
        }
        let mut pipe = Pipeline::with_capacity(1 + stray.len());
        pipe.cmd("EXISTS").arg(keys.lease(tp, group).as_str());
        for (source, name, _) in &stray {
            let key = self.inner.stream(tp, group, *source);
            pipe.cmd("XPENDING").arg(key.as_str()).arg(group.as_str());
            pipe.arg("IDLE").arg(IDLE_MS).arg("-").arg("+").arg(1).arg(name);
        }
        let mut answers = self.ask(&pipe).await?.into_iter();
        let owned = reply::int(answers.next().unwrap_or_default())? == 1;
        if owned || self.roster(&tp.topic, group).await?.living().next().is_some() {
            return Ok(page);
        }
        for ((source, name, pending), idle) in stray.into_iter().zip(answers) {
            if !reply::array(idle)?.is_empty() {
                let id = format!("{}:{name}", note::word(source));
                page.findings.push(Finding::new(
                    Fault::ConsumerStray,
                    scope,
                    id,
                    format!("{pending} pending"),
                ));
            }
        }
        Ok(page)
    }
}

/// Writes the times in a script's words, which are milliseconds behind `due` and `until`, as times.
fn with_times(detail: &str) -> String {
    let mut is_time = false;
    let words = detail.split(' ').map(|word| {
        let (number, end) = word.strip_suffix(',').map_or((word, ""), |number| (number, ","));
        let time = number.parse().ok().filter(|_| is_time).map(Timestamp::from_millis);
        is_time = word == "due" || word == "until";
        time.map_or_else(|| word.to_owned(), |time| format!("{time}{end}"))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_times_and_other_numbers_stay() {
        let detail = "due 1795665388306, worked on until 1795665388307";
        let expected = format!(
            "due {}, worked on until {}",
            Timestamp::from_millis(1_795_665_388_306),
            Timestamp::from_millis(1_795_665_388_307)
        );
        assert_eq!(with_times(detail), expected);
        for same in ["7 pending", "without a due time", "pending under 12, parked until then", "due soon"] {
            assert_eq!(with_times(same), same);
        }
    }
}
