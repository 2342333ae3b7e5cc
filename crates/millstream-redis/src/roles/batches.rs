//! The batches role: a hash and bits in the partition to which a batch sends its messages, and notes wherever members end.

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::batches::{
    BatchEventKind, BatchId, BatchNote, BatchParent, BatchSpec, BatchState, Batches, Block, BlockState,
    Confirmed, EndedMember, KEPT_ENDED, MAX_BLOCK, MAX_CALLBACK, MAX_ENDS, MAX_MEMBERS, MemberEnd,
    MemberState, Noted,
};
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::results::MessageResult;
use millstream_core::schedule::Place;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::error::unexpected;
use crate::scripts::script::{self, Call, Loaded};
use crate::scripts::times::ceil_ms;
use crate::stored::item;

/// Beginning of the field of a block.
const BLOCK: &str = "block:";
/// Field of a note for a message or task that waits for a batch.
const STEP: &str = "step";
/// State of a block that was confirmed.
const CONFIRMED: &str = "confirmed";
/// Bytes of bits that are read at once: of 65,536 members.
const PAGE: u32 = 8_192;
/// Numbers that are read at once of members that are missing, to end them.
const CLOSING: usize = MAX_ENDS;

#[async_trait]
impl Batches for RedisBackend {
    async fn create(&self, id: &BatchId, spec: &BatchSpec) -> Result<()> {
        let keys = &self.inner.keys;
        let keep = if spec.keep.is_zero() { KEPT_ENDED } else { spec.keep };
        let parent = spec.parent.as_ref().map(BatchParent::to_string).unwrap_or_default();
        let every = spec.callbacks.iter().find_map(|(kind, _)| match kind {
            BatchEventKind::Progress(percent) => Some(*percent),
            _ => None,
        });
        let call = self.inner.scripts.create_batch.call([&keys.batch(id), &keys.batches(&id.place)]);
        let mut call = call.arg(id.to_string()).arg(ceil_ms(keep)).arg(parent).arg(every.unwrap_or(0));
        for (kind, fields) in &spec.callbacks {
            let size: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
            if size > MAX_CALLBACK {
                let why =
                    format!("a message of a batch has {size} bytes, at most {MAX_CALLBACK} are allowed");
                return Err(Error::new(ErrorKind::TooLarge, why).at(&id.place));
            }
            let message = item::pack(&[], fields)?;
            call.push(kind.as_str());
            call.push(message);
        }
        self.on_batch("create", id, script::run_one(&self.inner.messages, call).await).map(drop)
    }

    async fn reserve(
        &self,
        id: &BatchId,
        block: Block,
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block> {
        let count = block.to.saturating_sub(block.from);
        if count > MAX_BLOCK {
            let why = format!("{count} members to reserve, {MAX_BLOCK} are allowed");
            return Err(Error::new(ErrorKind::InvalidConfig, why).at(&id.place));
        }
        let call = self.call_of(&self.inner.scripts.reserve_members, id);
        let mut call = call.arg(count).arg(format!("{:016x}", block.token)).arg(target);
        push_confirmed(&mut call, confirmed);
        match self.on_batch("reserve members of", id, script::run_one(&self.inner.messages, call).await)? {
            Value::Int(from) => {
                let from =
                    u32::try_from(from).map_err(|_| unexpected(format_args!("member {from} of a batch")))?;
                Ok(Block { from, to: from + count, ..block })
            }
            refusal => Err(refused(id, refusal)?),
        }
    }

    async fn seal(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState> {
        self.sealed_as("seal", id, confirmed).await
    }

    async fn end_members(&self, id: &BatchId, ends: &[EndedMember]) -> Result<Option<bool>> {
        let (done, dead): (Vec<_>, Vec<_>) = ends.iter().partition(|member| member.end == MemberEnd::Done);
        let mut call = self.call_of(&self.inner.scripts.end_members, id).arg(done.len()).arg(ends.len());
        let all = || done.iter().chain(&dead);
        all().for_each(|member| call.push(member.number));
        for (number, result) in all().filter_map(|member| Some((member.number, member.result.as_ref()?))) {
            call.push(number);
            call.push(result.to_wire());
        }
        let answer =
            self.on_batch("end members of", id, script::run_one(&self.inner.messages, call).await)?;
        reply::maybe(answer, |answer| Ok(reply::int(answer)? == 1))
    }

    async fn close(&self, id: &BatchId, dies: bool) -> Result<BatchState> {
        let mut state = self.sealed_as("close", id, &[]).await?;
        // Behind the last that was found, and once more from the front, since what was left out may have become a member.
        let mut from = Some(0).filter(|_| dies && state.missing() > 0);
        while let Some(at) = from {
            let (missing, next) = self.numbers(id, MemberState::Missing, at, CLOSING).await?;
            let ends: Vec<_> =
                missing.into_iter().map(|number| EndedMember::new(number, MemberEnd::Dead)).collect();
            if !ends.is_empty() {
                self.end_members(id, &ends).await?.ok_or_else(|| BatchState::is_gone(id))?;
            }
            from = next;
            if from.is_none() {
                state = self.state(id).await?.ok_or_else(|| BatchState::is_gone(id))?;
                from = Some(0).filter(|_| state.missing() > 0);
            }
        }
        Ok(state)
    }

    async fn state(&self, id: &BatchId) -> Result<Option<BatchState>> {
        let keys = &self.inner.keys;
        let mut ask = Pipeline::with_capacity(3);
        ask.cmd("HGETALL").arg(keys.batch(id).as_str());
        ask.cmd("ZSCORE").arg(keys.batches(&id.place).as_str()).arg(name(id));
        ask.cmd("TIME");
        let answers = self.inner.messages.send(&ask).await;
        let answers = answers.map_err(|error| error.during(format_args!("read batch {id}")).at(&id.place))?;
        let [fields, expires, now]: [Value; 3] =
            answers.try_into().map_err(|_| unexpected(format_args!("answers about batch {id}")))?;
        let (fields, now) = (reply::pairs(reply::ok(fields)?)?, reply::time(now)?);
        let expires = reply::maybe(reply::ok(expires)?, score)?;
        if fields.is_empty() || expires.is_none_or(|expires| expires <= now) {
            return Ok(None);
        }
        read_state(fields).map(Some)
    }

    async fn numbers(
        &self,
        id: &BatchId,
        state: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<u32>, Option<u32>)> {
        if from >= MAX_MEMBERS {
            return Ok((Vec::new(), None));
        }
        let keys = &self.inner.keys;
        let (mut found, mut page) = (Vec::new(), from / 8 / PAGE);
        loop {
            let first = page * PAGE;
            let mut ask = Pipeline::with_capacity(4);
            ask.cmd("HGET").arg(keys.batch(id).as_str()).arg("next");
            for stored in MemberState::STORED {
                ask.cmd("GETRANGE")
                    .arg(keys.batch_bits(id, stored).as_str())
                    .arg(first)
                    .arg(first + PAGE - 1);
            }
            let answers = self.inner.messages.send(&ask).await;
            let answers =
                answers.map_err(|error| error.during(format_args!("members of batch {id}")).at(&id.place))?;
            let [next, done, dead, left]: [Value; 4] =
                answers.try_into().map_err(|_| unexpected(format_args!("answers about batch {id}")))?;
            let next = u32::try_from(reply::number(&reply::ok(next)?)).unwrap_or(u32::MAX);
            let (done, dead, left) = (reply::bytes(done)?, reply::bytes(dead)?, reply::bytes(left)?);
            for number in from.max(first * 8)..next.min((first + PAGE) * 8) {
                let has = |bits: &Bytes| is_set(bits, number - first * 8);
                let is_wanted = match state {
                    MemberState::Missing => !has(&done) && !has(&dead) && !has(&left),
                    MemberState::Done => has(&done),
                    MemberState::Dead => has(&dead),
                    MemberState::LeftOut => has(&left),
                };
                if is_wanted && found.len() == limit {
                    return Ok((found, Some(number)));
                } else if is_wanted {
                    found.push(number);
                }
            }
            page += 1;
            if page * PAGE * 8 >= next {
                return Ok((found, None));
            }
        }
    }

    async fn results(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let mut ask = Pipeline::with_capacity(1);
        let command = ask.cmd("HMGET").arg(self.inner.keys.batch_results(id).as_str());
        for number in &numbers[..numbers.len().min(MAX_ENDS)] {
            command.arg(*number);
        }
        let found = self.inner.bulk.send(&ask).await;
        let found = found.map(|mut answers| answers.pop().unwrap_or_default()).and_then(reply::ok);
        let on = |error: Error| error.during(format_args!("results of batch {id}")).at(&id.place);
        let read =
            |result| reply::maybe_bytes(result)?.map(|wire| MessageResult::from_wire(&wire)).transpose();
        found.and_then(reply::array).and_then(|all| all.into_iter().map(read).collect()).map_err(on)
    }

    async fn list(&self, place: &TopicPartition, limit: usize) -> Result<Vec<BatchId>> {
        let on = |error: Error| error.during(format_args!("list batches of {place}")).at(place);
        let key = self.inner.keys.batches(place);
        // With a key of the partition: it is the time of the server that has it.
        let mut ask = Pipeline::with_capacity(2);
        ask.cmd("TIME");
        ask.cmd("ZCARD").arg(key.as_str());
        let mut answers = self.inner.messages.send(&ask).await.map_err(on)?.into_iter();
        let now = reply::time(answers.next().unwrap_or_default()).map_err(on)?;
        if reply::count(answers.next().unwrap_or_default()).map_err(on)? == 0 {
            return Ok(Vec::new());
        }
        let mut ask = Pipeline::with_capacity(1);
        let since = format!("({}", now.as_millis());
        ask.cmd("ZRANGE")
            .arg(key.as_str())
            .arg(since)
            .arg("+inf")
            .arg("BYSCORE")
            .arg("LIMIT")
            .arg(0)
            .arg(limit);
        let all = self.inner.messages.send(&ask).await.map_err(on)?.pop().unwrap_or_default();
        let names = reply::ok(all).and_then(reply::array).map_err(on)?;
        // What is no name was written by somebody else.
        let read = |name| format!("{place}/{}", reply::text(name).ok()?).parse().ok();
        Ok(names.into_iter().filter_map(read).collect())
    }

    async fn notes(&self, place: &Place, after: Option<MessageId>, limit: usize) -> Result<Vec<BatchNote>> {
        let key = self.inner.keys.batch_notes(place);
        let mut ask = Pipeline::with_capacity(1);
        let from = after.map_or_else(|| "-".to_owned(), |id| format!("({id}"));
        ask.cmd("XRANGE").arg(key.as_str()).arg(from).arg("+").arg("COUNT").arg(limit.min(MAX_ENDS));
        let on = |error: Error| {
            self.inner.servers.learn(&error);
            error.during(format_args!("read notes of batches at {place}"))
        };
        let found = self.inner.messages.send(&ask).await.map_err(on)?.pop().unwrap_or_default();
        let notes =
            reply::entries(reply::ok(found).map_err(on)?).map_err(on)?.into_iter().map(|(id, fields)| {
                let note = fields.as_ref().and_then(|fields| fields.first());
                BatchNote { id, said: note.and_then(|(batch, said)| read_note(batch, said)) }
            });
        Ok(notes.collect())
    }

    async fn forget(&self, place: &Place, notes: &[MessageId]) -> Result<()> {
        if notes.is_empty() {
            return Ok(());
        }
        let key = self.inner.keys.batch_notes(place);
        let mut ask = Pipeline::with_capacity(1);
        let command = ask.cmd("XDEL").arg(key.as_str());
        for id in notes {
            command.arg(Digits::id(*id).as_bytes());
        }
        let on = |error: Error| {
            self.inner.servers.learn(&error);
            error.during(format_args!("forget notes of batches at {place}"))
        };
        let answer = self.inner.messages.send(&ask).await.map_err(on)?.pop().unwrap_or_default();
        reply::ok(answer).map(drop).map_err(on)
    }
}

impl RedisBackend {
    /// Seals a batch: in portions, if many blocks are open.
    async fn sealed_as(&self, mode: &str, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState> {
        loop {
            let mut call = self.call_of(&self.inner.scripts.seal_batch, id).arg(mode);
            push_confirmed(&mut call, confirmed);
            match self.on_batch(mode, id, script::run_one(&self.inner.messages, call).await)? {
                answer if is(&answer, "ok") => {
                    return self.state(id).await?.ok_or_else(|| BatchState::is_gone(id));
                }
                answer if is(&answer, "more") => {}
                answer if is(&answer, "sealed") => return Err(BatchState::is_sealed_without(id)),
                refusal => return Err(refused(id, refusal)?),
            }
        }
    }

    fn call_of<'a>(&self, script: &'a Loaded, id: &BatchId) -> Call<'a> {
        let keys = &self.inner.keys;
        let [done, dead, left] = MemberState::STORED.map(|state| keys.batch_bits(id, state));
        let place = &id.place;
        let notes = keys.batch_notes(&place.clone().into());
        let (batch, results) = (keys.batch(id), keys.batch_results(id));
        let (batches, log) = (keys.batches(place), keys.log(place));
        let keys: [&Key; 8] = [&batch, &done, &dead, &left, &results, &batches, &log, &notes];
        script.call(keys).arg(id.to_string())
    }

    fn on_batch(&self, what: &str, id: &BatchId, answer: Result<Value>) -> Result<Value> {
        answer.and_then(reply::ok).map_err(|error| {
            self.inner.servers.learn(&error);
            error.during(format_args!("{what} batch {id}")).at(&id.place)
        })
    }
}

/// Name of a batch in the index of its partition.
fn name(id: &BatchId) -> String {
    format!("{:032x}", id.number)
}

fn push_confirmed(call: &mut Call<'_>, confirmed: &[Confirmed]) {
    for Confirmed { block, used, failed } in confirmed {
        call.push(block.from);
        call.push(block.to);
        call.push(format!("{:016x}", block.token));
        call.push(used);
        call.push(failed.len());
        for number in failed {
            call.push(number);
        }
    }
}

fn is(answer: &Value, word: &str) -> bool {
    matches!(answer, Value::BulkString(text) if text == word.as_bytes())
}

/// Returns the error that a script has answered with.
fn refused(id: &BatchId, answer: Value) -> Result<Error> {
    Ok(match &answer {
        answer if is(answer, "gone") => BatchState::is_gone(id),
        answer if is(answer, "sealed") => BatchState::is_sealed(id),
        answer if is(answer, "full") => BatchState::is_full(id),
        _ => {
            let [from, to] = reply::tuple(answer)?.map(|number| reply::number(&number));
            let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
            BatchState::is_lost(id, &Block { from: number(from), to: number(to), token: 0 })
        }
    })
}

fn is_set(bits: &Bytes, at: u32) -> bool {
    // Redis counts the bits of a byte from the highest.
    bits.get(at as usize / 8).is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0)
}

/// Parses a score, which is a number or text, by the version of the protocol.
fn score(value: Value) -> Result<Timestamp> {
    match value {
        Value::Double(ms) => Ok(Timestamp::from_millis(ms as u64)),
        other => reply::score_time(other),
    }
}

fn read_note(batch: &Bytes, said: &Bytes) -> Option<Noted> {
    let batch = std::str::from_utf8(batch).ok()?;
    if batch == STEP {
        let text = std::str::from_utf8(said).ok()?;
        return match BatchParent::read(&format!("{STEP} {text}"))? {
            BatchParent::Step(id, name) => Some(Noted::Complete(id, name)),
            BatchParent::Batch(_) => None,
        };
    }
    // Behind the number and the word there may be a result, which is no text.
    let mut words = said.splitn(3, |byte| *byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (number, end) = (word()?.parse().ok()?, MemberEnd::read(word()?)?);
    // A result that cannot be read does not keep the member from having ended.
    let result = words.next().and_then(|wire| MessageResult::from_wire(&said.slice_ref(wire)).ok());
    let member = EndedMember { number, end, result };
    Some(Noted::Ended(batch.parse().ok()?, member))
}

fn read_state(fields: Vec<(Value, Value)>) -> Result<BatchState> {
    let (mut state, mut next) = (BatchState::default(), 0);
    for (field, value) in fields {
        let field = reply::text(field)?;
        if field.starts_with("on:") {
            continue;
        }
        let number = u32::try_from(reply::number(&value)).unwrap_or(u32::MAX);
        let time = Some(Timestamp::from_millis(reply::number(&value))).filter(|time| time.as_millis() > 0);
        match &*field {
            "next" => next = number,
            "done" => state.done = number,
            "dead" => state.dead = number,
            "left" => state.left_out = number,
            "created" => state.created = time.unwrap_or_default(),
            "sealed" => state.sealed = time,
            "ended" => state.ended = time,
            "succeeded" => state.succeeded = number > 0,
            "parent" => state.parent = BatchParent::read(&reply::text(value)?),
            // What is no block was written by somebody else.
            block => state.blocks.extend(read_block(block, &reply::text(value)?)),
        }
    }
    state.members = next.saturating_sub(state.left_out);
    state.blocks.sort_by_key(|state| state.block.from);
    Ok(state)
}

fn read_block(field: &str, text: &str) -> Option<BlockState> {
    let from = field.strip_prefix(BLOCK)?.parse().ok()?;
    let mut words = text.splitn(4, ' ');
    let (to, token, state) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let block = Block { from, to, token: u64::from_str_radix(token, 16).ok()? };
    Some(BlockState { block, target: words.next()?.to_owned(), confirmed: state == CONFIRMED })
}
