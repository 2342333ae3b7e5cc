//! The members role: one cheap script per operation, and a plain wait for changes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use millstream_core::Timestamp;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::members::{
    Assignment, GroupMembers, HeartbeatReply, Member, Members, Revision, Version, Watch,
};
use millstream_core::name::{GroupName, MemberId, TopicName};
use millstream_core::sorted::{SortedMap, sort_by};
use redis::Value;

use crate::backend::{Inner, RedisBackend};
use crate::conn::replies::reply;
use crate::conn::waits::changes::Change;
use crate::error::{never_sent, unexpected};
use crate::roles::catalog::gone;
use crate::roles::leases::ttl_ms;
use crate::scripts::gather::Beat;
use crate::scripts::script;
use crate::stored::{ranges, running};

/// Maximum length of an incarnation, in bytes.
const MAX_INCARNATION: usize = 128;
/// Hash field that holds a version: no member can have a name with a colon.
const VERSION: &str = ":version";
/// Stands for "no limit" and for "none" in the stored fields of a member.
const NOTHING: &str = "-";

#[async_trait]
impl Members for RedisBackend {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        let keys = GroupKeys::new(&self.inner, topic, group);
        let GroupKeys { members, member: said, assignment, changes, meta, state } = keys;
        let beat = Beat {
            keys: [members, said, assignment, changes, meta, state],
            args: [
                member.id.as_str().to_owned(),
                incarnation(member)?.to_owned(),
                ttl_ms(member.ttl).to_string(),
                wishes(member)?,
                u8::from(joining).to_string(),
                member.generation.map(|generation| generation.to_string()).unwrap_or_default(),
                member.continuity.to_string(),
            ],
        };
        self.inner.ask_nodes(&member.continuity);
        let answer = self.inner.beat(beat, joining).await.map_err(|error| match error.kind() {
            ErrorKind::Fenced => {
                let what = format!("another instance of {group} on {topic} has the member id {}", member.id);
                Error::new(ErrorKind::Fenced, what)
            }
            ErrorKind::NotMember => {
                let what = format!("member {} is not in {group} on {topic}", member.id);
                Error::new(ErrorKind::NotMember, what).at(topic)
            }
            ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("topic {topic} does not exist")).at(topic)
            }
            ErrorKind::Deleted if error.to_string().contains("created again") => {
                let what = format!("topic {topic} was deleted, and created again since");
                Error::new(ErrorKind::Deleted, what).at(topic)
            }
            ErrorKind::Deleted => gone(topic, group),
            _ => error.during(format_args!("heartbeat of {} in {group} on {topic}", member.id)).at(topic),
        })?;
        pulse(answer).map_err(|error| error.during(format_args!("heartbeat in {group} on {topic}")).at(topic))
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        let keys = GroupKeys::new(&self.inner, topic, group);
        let call = self.inner.scripts.leave.call([&keys.members, &keys.member, &keys.changes]);
        let call = call.args([member.id.as_str(), incarnation(member)?]);
        script::run_one(&self.inner.leases, call).await.map(drop)
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        let keys = GroupKeys::new(&self.inner, topic, group);
        let script = &self.inner.scripts.roster;
        let call = script.call([&keys.members, &keys.member, &keys.assignment, &keys.changes, &keys.meta]);
        let answer = script::run_one(&self.inner.pool, call).await?;
        roster(answer).map_err(|error| error.during(format_args!("members of {group} on {topic}")).at(topic))
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        let keys = GroupKeys::new(&self.inner, topic, group);
        let version = version.0.to_string();
        let script = &self.inner.scripts.publish;
        let mut call = script.call([&keys.member, &keys.assignment, &keys.changes]).arg(&version);
        for (id, partitions) in assignment {
            call = call.arg(id.as_str()).arg(ranges::write(partitions)?);
        }
        let call = call.arg(VERSION).arg(&version);
        Ok(reply::int(script::run_one(&self.inner.pool, call).await?)? == 1)
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        let changes = self.inner.keys.changes(topic, group);
        Ok(Box::new(StreamWatch { inner: self.inner.clone(), changes }))
    }
}

/// Number of heartbeats in a call: it takes the server about a millisecond.
const BEATS_AT_ONCE: usize = 32;

impl Inner {
    async fn beat(self: &Arc<Self>, beat: Beat, joining: bool) -> Result<Value> {
        // A node that does not answer must not delay the heartbeats at other nodes. One that joins is sent at once, so that no
        // `leave` that follows overtakes it.
        if joining || self.at_once(BEATS_AT_ONCE) == 1 {
            return script::run_one(&self.leases, self.beat_call(&[&beat])).await;
        }
        let (inner, beat) = (self.clone(), Arc::new(beat));
        let send = move |all: Vec<Arc<Beat>>| async move { inner.beat_all(&all).await }.boxed();
        let spawn = |task| self.leases.spawn(task);
        match self.beats.ask(beat.clone(), spawn, send).await.unwrap_or_else(|| Err(never_sent()))? {
            answer @ Value::Array(_) => Ok(answer),
            // Once more alone, for the server's own error: the others do not wait for that.
            _ => script::run_one(&self.leases, self.beat_call(&[&beat])).await,
        }
    }

    fn beat_call(&self, beats: &[&Beat]) -> script::Call<'_> {
        let rows: Vec<[Key; 6]> = beats.iter().map(|beat| beat.keys.clone()).collect();
        let mut call = self.scripts.heartbeat.call_with_rows([], &rows);
        beats.iter().flat_map(|beat| &beat.args).for_each(|arg| call.push(arg));
        call
    }

    /// Sends heartbeats in one pipeline. What is no array is the text of an error, or nil: that one is to be sent alone.
    async fn beat_all(&self, all: &[Arc<Beat>]) -> Vec<Result<Value>> {
        let all: Vec<&Beat> = all.iter().map(|beat| &**beat).collect();
        let calls = all.chunks(BEATS_AT_ONCE).map(|some| self.beat_call(some)).collect();
        let together = script::run(&self.leases, calls).await;
        let mut answers = Vec::with_capacity(all.len());
        for (some, answer) in all.chunks(BEATS_AT_ONCE).zip(together) {
            let one = some.len() == 1;
            match answer.and_then(reply::array) {
                Ok(values) if one => answers.push(Ok(Value::Array(values))),
                Ok(values) if values.len() == some.len() => answers.extend(values.into_iter().map(Ok)),
                Err(error) if one || !self.is_for_alone(&error) => {
                    answers.extend(some.iter().map(|_| Err(error.clone())));
                }
                Ok(_) | Err(_) => answers.extend(some.iter().map(|_| Ok(Value::Nil))),
            }
        }
        answers
    }
}

/// Keys of one group's members. All are in the hash slot of the topic.
struct GroupKeys {
    members: Key,
    member: Key,
    assignment: Key,
    changes: Key,
    meta: Key,
    state: Key,
}

impl GroupKeys {
    fn new(inner: &Inner, topic: &TopicName, group: &GroupName) -> Self {
        let keys = &inner.keys;
        Self {
            members: keys.members(topic, group),
            member: keys.member(topic, group),
            assignment: keys.assignment(topic, group),
            changes: keys.changes(topic, group),
            meta: keys.topic_meta(topic),
            state: keys.group_state(topic, group),
        }
    }
}

fn incarnation(member: &Member) -> Result<&str> {
    let word = member.incarnation.as_str();
    if word.is_empty() || word.len() > MAX_INCARNATION || word.contains(char::is_whitespace) {
        let why = format!("the incarnation {word:?} is not 1 to {MAX_INCARNATION} bytes without spaces");
        return Err(Error::new(ErrorKind::InvalidConfig, why));
    }
    Ok(word)
}

/// Formats the settings of a member that are stored behind its incarnation and ttl, and what it runs.
fn wishes(member: &Member) -> Result<String> {
    let most = member.max_partitions.map_or_else(|| NOTHING.to_owned(), |most| most.to_string());
    let pins = ranges::write(&member.pinned)?;
    let (pins, running) = (if pins.is_empty() { NOTHING } else { &pins }, running::write(&member.running));
    Ok(if running.is_empty() { format!("{most} {pins}") } else { format!("{most} {pins} {running}") })
}

/// Parses the stored fields of a member. Words behind those that this version knows are ignored.
fn member(id: &MemberId, text: &str) -> Result<Member> {
    let bad = || unexpected(format_args!("member {id} is stored as {text:?}"));
    let mut words = text.split(' ');
    let mut next = || words.next().filter(|word| !word.is_empty()).ok_or_else(bad);
    let (incarnation, ttl, most, pins) = (next()?, next()?, next()?, next()?);
    let ttl = Duration::from_millis(ttl.parse().map_err(|_| bad())?);
    let mut member = Member::new(id.clone(), incarnation, ttl);
    if most != NOTHING {
        member = member.at_most(most.parse().map_err(|_| bad())?);
    }
    if pins != NOTHING {
        member = member.pinned_to(ranges::read(pins)?);
    }
    member.running = words.next().map(running::read).unwrap_or_default();
    Ok(member)
}

fn number<T: std::str::FromStr>(value: Value, what: &str) -> Result<T> {
    let text = reply::text(value)?;
    text.parse().map_err(|_| unexpected(format_args!("{text:?} instead of {what}")))
}

fn pulse(answer: Value) -> Result<HeartbeatReply> {
    let [version, revision, members, partitions, next_ms, assigned, paused, server, now] =
        reply::tuple(answer)?;
    let mut pulse = HeartbeatReply::new(
        Version(number(version, "a version")?),
        Revision(reply::id(revision)?),
        number(members, "a number of members")?,
        number(partitions, "a number of partitions")?,
    );
    pulse.next_expiry = Duration::from_millis(number(next_ms, "milliseconds")?);
    pulse.paused = reply::int(paused)? == 1;
    (pulse.server, pulse.now) = (reply::text(server)?, Timestamp::from_millis(number(now, "milliseconds")?));
    if assigned != Value::Nil {
        pulse.assigned = Some(ranges::read(&reply::text(assigned)?)?);
    }
    Ok(pulse)
}

/// Splits a hash into the fields that are named after members, and its version. Other fields are ignored.
fn by_member(hash: Value) -> Result<(SortedMap<MemberId, String>, Option<Version>)> {
    let (mut texts, mut version) = (SortedMap::new(), None);
    for (name, value) in reply::pairs(hash)? {
        let name = reply::text(name)?;
        if name == VERSION {
            version = Some(Version(number(value, "a version")?));
        } else if let Ok(id) = MemberId::new(&name) {
            texts.insert(id, reply::text(value)?);
        }
    }
    Ok((texts, version))
}

fn roster(answer: Value) -> Result<GroupMembers> {
    let [all, said, assignment, revision, partitions, now] = reply::tuple(answer)?;
    let now = Timestamp::from_millis(number(now, "milliseconds")?);
    let (mut said, version) = by_member(said)?;
    let (assignment, assigned) = by_member(assignment)?;
    let mut roster = GroupMembers::default();
    roster.version = version.unwrap_or_default();
    roster.revision = Revision(reply::id(revision)?);
    if partitions != Value::Nil {
        roster.partitions = number(partitions, "a number of partitions")?;
    }
    for (id, expires) in reply::pairs(all)? {
        let id = reply::text(id)?;
        let id =
            MemberId::new(&id).map_err(|error| unexpected(format_args!("an invalid member: {error}")))?;
        // A member without its stored fields is incomplete: skip it. Its next heartbeat stores them and makes a new
        // version.
        if let Some(text) = said.remove(&id) {
            let member = member(&id, &text)?;
            let beat_at = number::<u64>(expires, "milliseconds")?.saturating_sub(ttl_ms(member.ttl));
            roster.last_heartbeats.insert(id, now.saturating_duration_since(Timestamp::from_millis(beat_at)));
            roster.members.push(member);
        }
    }
    sort_by(&mut roster.members, |one, other| one.id.cmp(&other.id));
    roster.assigned = assigned;
    let assignment = assignment.into_iter().map(|(id, text)| Ok((id, ranges::read(&text)?)));
    roster.assignment = assignment.collect::<Result<_>>()?;
    Ok(roster)
}

/// Waits for changes.
struct StreamWatch {
    inner: Arc<Inner>,
    changes: Key,
}

#[async_trait]
impl Watch for StreamWatch {
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()> {
        let streams = [(&self.changes, seen.0)];
        // Any change ends the wait: of a group that is deleted, the stream may be gone before there is time to look.
        let waiting = async { self.inner.watches.of(&self.changes).await?.wait(&streams, wait).await };
        let changed = waiting.await.and_then(|change| match change {
            Change::Found(found) => reply::streams(found).map(drop),
            Change::Maybe | Change::Nothing => Ok(()),
        });
        changed.map_err(|error| {
            self.inner.servers.learn(&error);
            error.during(format_args!("wait for {}", self.changes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::MessageId;
    use millstream_core::log::Source;
    use millstream_core::running::{Running, RunningMessage, WaitingMessage};
    use millstream_core::topic::Partition;

    fn id(name: &str) -> MemberId {
        MemberId::new(name).expect("name")
    }

    #[test]
    fn what_a_member_says_is_read_back() {
        let plain = Member::new(id("a"), "i-1", Duration::from_millis(1_500));
        let wanting = plain.clone().at_most(3).pinned_to([Partition(7), Partition(8)]);
        let (at, entry) = (Timestamp::from_millis(5), MessageId::new(4, 1));
        let (partition, source, origin) = (Partition(7), Source::Retry, MessageId::new(3, 0));
        let one = RunningMessage { partition, source, entry, origin, attempt: 2, since: at };
        let running =
            |messages, more| plain.clone().running(Running { messages, more, ..Running::default() });
        let waits = |key: &str| WaitingMessage { message: one, key: key.parse().expect("a key") };
        let waiting = Running {
            waiting: vec![waits("t:eu/a,b"), waits("t:~+1")],
            more_waiting: 3,
            ..Running::default()
        };
        let said = [
            (plain.clone(), "i-1 1500 - -"),
            (wanting, "i-1 1500 3 7-8"),
            (running(vec![one], 0), "i-1 1500 - - retry/7/2/5/4-1/3-0"),
            (
                running(vec![one, RunningMessage { source: Source::Log, ..one }], 9),
                "i-1 1500 - - retry/7/2/5/4-1/3-0,log/7/2/5/4-1/3-0,+9",
            ),
            (
                plain.clone().running(waiting),
                "i-1 1500 - - ~retry/7/2/5/4-1/3-0/t:eu/a%2Cb,~retry/7/2/5/4-1/3-0/t:~+1,~+3",
            ),
        ];
        for (said, text) in said {
            let written =
                format!("{} {} {}", said.incarnation, ttl_ms(said.ttl), wishes(&said).expect("valid"));
            assert_eq!(written, text);
            assert_eq!(member(&id("a"), text).expect(text), said);
            assert_eq!(member(&id("a"), &format!("{text} word-of-tomorrow")).expect(text), said);
        }
        for odd in [
            "",
            "x",
            "log",
            "log/x/2/5/4-1/3-0",
            "moon/7/2/5/4-1/3-0",
            "log/7/2/5/4-1",
            "+x",
            ",,/,",
            "~+x",
            "~",
            "~log/7/2/5/4-1/3-0",
            "~log/7/2/5/4-1/3-0/no key",
        ] {
            assert_eq!(running::read(odd), Running::default(), "{odd}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "i", "i 1 -", "i x - -", "i 1 x -", "i 1 - x", " 1 - -", "i 1 - 0-99999"] {
            assert_eq!(member(&id("a"), text).expect_err(text).kind(), ErrorKind::Protocol, "{text}");
        }
        for word in ["", "a b", "a\n", &"x".repeat(129)] {
            let member = Member::new(id("a"), word, Duration::from_secs(1));
            assert_eq!(incarnation(&member).expect_err(word).kind(), ErrorKind::InvalidConfig);
        }
        let bulk = |text: &str| Value::BulkString(text.into());
        for at in 0..9 {
            let numbers = [bulk("7"), bulk("5-0"), Value::Int(1), bulk("4"), Value::Int(9)];
            let mut values =
                [&numbers[..], &[Value::Nil, Value::Int(0), bulk("a.b"), bulk("1700000000000")]].concat();
            pulse(Value::Array(values.clone())).expect("a pulse");
            // The server's name for itself may be any text.
            values[at] = if at == 7 { Value::Nil } else { bulk("x") };
            assert_eq!(
                pulse(Value::Array(values)).expect_err("nonsense").kind(),
                ErrorKind::Protocol,
                "{at}"
            );
        }
    }
}
