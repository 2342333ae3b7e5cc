//! Results of messages: waits for them, and the words of settlements that store them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::batches::{BatchMember, Demand, MemberEnd};
use millstream_core::cancels::WorkPlace;
use millstream_core::error::{Error, Result};
use millstream_core::keys::Key;
use millstream_core::log::Source;
use millstream_core::name::GroupName;
use millstream_core::results::{MessageResult, ResultId, StoredResult};
use millstream_core::schedule::Place;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::settling::Right;
use crate::backend::RedisBackend;
use crate::conn::cluster::routed::Routed;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::conn::waits::changes::{Change, Changes, is_there};
use crate::scripts::script::Call;
use crate::scripts::times::ceil_ms;
use crate::stored::note;

/// Maximum number of results of one call of a script, and the size in bytes at which it takes no further one (1 MiB).
pub(super) const CALL: (usize, usize) = (100, 1 << 20);

/// Result of a settlement, as the scripts take it.
pub(crate) struct Storing {
    pub(crate) key: Key,
    /// For how many milliseconds the result is kept, and the note for a batch.
    pub(crate) keep: String,
    pub(crate) result: Vec<u8>,
    /// Id under which the steps are that are dropped with it.
    pub(crate) steps: Option<Box<str>>,
}

impl RedisBackend {
    /// Returns what is to be stored with a settlement at a place.
    pub(crate) fn storing(&self, place: impl Into<Place>, stored: &StoredResult) -> Storing {
        let StoredResult { demand: Demand { result: request, member, steps }, result } = stored;
        let (keys, place) = (&self.inner.keys, place.into());
        let mut keep = request.map_or(0, |request| ceil_ms(request.keep)).to_string();
        let mut is_kept = request.is_some();
        if let Some(BatchMember { batch, number, keeps_result, .. }) = member {
            let kept = if *keeps_result { " +" } else { "" };
            is_kept |= keeps_result;
            keep += &format!(" {batch} {number} {}{kept}", MemberEnd::of(result).as_str());
        }
        // Of one that nobody asks for the key is not used, and the script needs one: that of the notes is in the same slot.
        let key = match request {
            Some(request) => keys.result(&ResultId::new(place, request.number)),
            None => keys.batch_notes(&place),
        };
        let result = if is_kept { result.to_wire() } else { Vec::new() };
        Storing { key, keep, result, steps: steps.clone() }
    }

    /// Builds the calls that acknowledge entries of one stream and store their results, each with its number of entries.
    pub(super) fn ack_with_results(
        &self,
        right: Right<'_>,
        (tp, group, source): (&TopicPartition, &GroupName, Source),
        acks: &[(Digits, Storing)],
    ) -> Vec<(Call<'_>, usize)> {
        let keys = &self.inner.keys;
        let (fence, held, stream) =
            (keys.fence(tp, group), keys.held(tp, group), self.inner.stream(tp, group, source));
        let notes = keys.batch_notes(&tp.clone().into());
        let steps = keys.steps(&WorkPlace::Group(tp.clone(), group.clone()));
        let [mode, who] = right.words();
        let calls = portions(acks, CALL.0, |(_, storing)| storing.result.len()).map(|some| {
            let rows: Vec<_> = some.iter().map(|(_, storing)| [storing.key.clone()]).collect();
            let keys = [&fence, &stream, &held, &notes, &steps];
            let call = self.inner.scripts.ack_with_result.call_with_rows(keys, &rows);
            let mut call = call.args([mode, who, group.as_str(), note::word(source)]);
            for (id, storing) in some {
                call.push(id.as_bytes());
                call.push(&*storing.keep);
                call.push(&storing.result[..]);
                call.push(storing.steps.as_deref().unwrap_or_default());
            }
            (call, some.len())
        });
        calls.collect()
    }

    /// Waits for a result on the one connection on which all callers of a process wait, one to each server. The server remembers that the
    /// key was read, and sends one notice when it changes: a result that comes before the look is found by it, and for one behind it there is a notice.
    pub(super) async fn result_within(&self, id: &ResultId, wait: Duration) -> Result<Option<MessageResult>> {
        let key = self.inner.keys.result(id);
        let on = |error: Error| self.about(error, "result", id);
        let mut look = Pipeline::with_capacity(1);
        look.cmd("GET").arg(key.as_str());
        let deadline = Instant::now().checked_add(wait);
        let mut left = wait;
        while !left.is_zero() {
            match self.change(&self.inner.results, &key, (&look, &is_there), left).await.map_err(on)? {
                Change::Found(found) => return read(found).map_err(on),
                Change::Maybe => {
                    // Not on the connection of the waits: the server would remember the key for as long as the result is kept, and a large
                    // one would keep others waiting.
                    let found = self.inner.bulk.send(&look).await.map_err(on)?.pop().unwrap_or_default();
                    if let Some(result) = reply::ok(found).and_then(read).map_err(on)? {
                        return Ok(Some(result));
                    }
                }
                Change::Nothing => {}
            }
            left = deadline.map_or(wait, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
        }
        let found = self.inner.bulk.send(&look).await.map_err(on)?.pop().unwrap_or_default();
        reply::ok(found).and_then(read).map_err(on)
    }

    /// Returns an error of a read with what was read.
    pub(super) fn about(&self, error: Error, what: &str, id: &ResultId) -> Error {
        self.inner.servers.learn(&error);
        let error = error.during(format_args!("{what} {id}"));
        match &id.place {
            Place::Partition(topic_partition) => error.at(topic_partition),
            Place::Shard(_) => error,
        }
    }

    /// Waits for a change of a key at the server that has it. A key that does not exist is not moved with its slot, so its former owner sends
    /// nothing: then the wait ends.
    pub(crate) async fn change(
        &self,
        waits: &Routed<Changes>,
        key: &Key,
        look: (&Pipeline, &(dyn Fn(&Value) -> bool + Sync)),
        wait: Duration,
    ) -> Result<Change> {
        let mut moves = self.inner.servers.moves();
        let line = waits.of(key).await?;
        let keys = [key];
        let mut change = pin!(line.changed(&keys, look, wait));
        loop {
            let Some(moves) = &mut moves else { return change.await };
            tokio::select! {
                biased;
                change = &mut change => return change,
                Ok(()) = moves.changed() => {
                    if !Arc::ptr_eq(&waits.of(key).await?, &line) {
                        return Ok(Change::Maybe);
                    }
                }
            }
        }
    }
}

/// Divides what is settled into portions, one for each call: of at most `most`, and with 1 MiB of results.
pub(crate) fn portions<T>(
    mut all: &[T],
    most: usize,
    size: impl Fn(&T) -> usize,
) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = all.iter().take(most).take_while(|item| {
            let has_room = bytes < CALL.1;
            bytes += size(item);
            has_room
        });
        let (some, rest) = all.split_at(fits.count());
        all = rest;
        (!some.is_empty()).then_some(some)
    })
}

fn read(found: Value) -> Result<Option<MessageResult>> {
    match found {
        Value::Nil => Ok(None),
        other => MessageResult::from_wire(&reply::bytes(other)?).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_bounded_by_results_and_by_bytes() {
        let tp = TopicPartition::new("t".parse().expect("a name"), 0);
        let key = millstream_core::keys::Keys::new().result(&ResultId::new(tp, 7));
        let sizes = |count: usize, bytes: usize| {
            let storing = |_| Storing {
                key: key.clone(),
                keep: "1".to_owned(),
                result: vec![b'+'; bytes],
                steps: None,
            };
            let all: Vec<_> = (0..count).map(storing).collect();
            portions(&all, CALL.0, |storing: &Storing| storing.result.len())
                .map(<[_]>::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(0, 1), [0_usize; 0]);
        assert_eq!(sizes(250, 10), [100, 100, 50]);
        assert_eq!(sizes(3, 1 << 20), [1, 1, 1]);
        assert_eq!(sizes(5, 1 << 19), [2, 2, 1]);
    }
}
