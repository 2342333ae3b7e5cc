//! Batches of messages to schedule: split into bounded script calls, with the parsers of the answers.

use std::fmt::Write;

use millstream_core::cancels::WorkPlace;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::schedule::{Due, OnConflict, Place, Placed, ScheduleId, Scheduling};
use millstream_core::sorted::SortedMap;
use redis::Value;

use crate::backend::Inner;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script::Call;
use crate::scripts::times::due;
use crate::stored::item;

/// Maximum number of messages of one script call, and its approximate maximum of bytes (1 MiB), since the server does
/// nothing else meanwhile.
const CALL: (usize, usize) = (100, 1 << 20);
/// Maximum number of messages of one pipeline, and its approximate maximum of bytes (4 MiB): the answer must arrive
/// within the response timeout.
pub(crate) const PIPELINE: (usize, usize) = (1_000, 4 << 20);

/// Returns the first argument of the scripts that serve both kinds of places.
pub(crate) fn word(place: &Place) -> &'static str {
    match place {
        Place::Partition(_) => "partition",
        Place::Shard(_) => "shard",
    }
}

/// Returns the key of the task states. A partition has none: a key of the same hash slot is passed instead, and is not
/// used.
pub(crate) fn states(keys: &Keys, place: &Place) -> Key {
    match place {
        Place::Partition(_) => keys.delay_items(place),
        Place::Shard(shard) => keys.task_states(shard),
    }
}

/// Returns the key of the claimed tasks. A partition has none: a key of the same hash slot is passed instead, and is
/// not used.
pub(crate) fn claims(keys: &Keys, place: &Place) -> Key {
    match place {
        Place::Partition(_) => keys.delay(place),
        Place::Shard(shard) => keys.claims(shard),
    }
}

/// Returns the key of the completed tasks. A partition has none: a key of the same hash slot is passed instead, and is not
/// used.
fn finished(keys: &Keys, place: &Place) -> Key {
    match place {
        Place::Partition(_) => keys.delay(place),
        Place::Shard(shard) => keys.finished(shard),
    }
}

pub(crate) fn conflict(on_conflict: OnConflict) -> &'static str {
    match on_conflict {
        OnConflict::Keep => "keep",
        OnConflict::Replace => "replace",
        OnConflict::Reject => "reject",
        OnConflict::Debounce => "debounce",
        OnConflict::KeepLast => "last",
    }
}

/// Parses the result of a script for one message to store.
pub(crate) fn placed(value: Value, what: impl std::fmt::Display) -> Result<Placed> {
    match reply::int(value)? {
        1 => Ok(Placed::New),
        2 => Ok(Placed::Replaced),
        0 => Ok(Placed::Kept),
        3 => Ok(Placed::Done),
        -1 => Err(Error::new(ErrorKind::Exists, format!("{what} already exists"))),
        other => Err(unexpected(format_args!("{other} instead of what became of {what}"))),
    }
}

/// Messages of one place that go into one call.
pub(crate) struct Portion<'a> {
    pub(crate) place: &'a Place,
    /// Position of each message in the batch, and its item.
    pub(crate) messages: Vec<(usize, Vec<u8>)>,
    pub(crate) bytes: usize,
}

impl Portion<'_> {
    pub(crate) fn call<'i>(&self, inner: &'i Inner, batch: &[Scheduling]) -> Call<'i> {
        let (keys, place) = (&inner.keys, self.place);
        let mut call = inner.scripts.schedule.call([
            &keys.delay(place),
            &keys.delay_items(place),
            &states(keys, place),
            &claims(keys, place),
            &keys.recur(place),
            &keys.wake(place),
            &finished(keys, place),
            &steps(keys, place),
        ]);
        let messages = || self.messages.iter().filter_map(|(index, item)| Some((batch.get(*index)?, item)));
        call.push(word(place));
        call.push(terms(messages().map(|(message, _)| message)));
        for (message, item) in messages() {
            call.push(message.id.as_str());
            call.push(&item[..]);
        }
        call
    }
}

/// Returns the key of the steps of a shard's tasks; a partition has none here, and a script needs one.
pub(crate) fn steps(keys: &Keys, place: &Place) -> Key {
    match place {
        Place::Partition(_) => keys.delay_items(place),
        Place::Shard(shard) => keys.steps(&WorkPlace::Shard(shard.clone())),
    }
}

/// Parses an id; `None` if it cannot be one of ours.
pub(crate) fn known(id: &[u8]) -> Option<ScheduleId> {
    std::str::from_utf8(id).ok().and_then(|id| ScheduleId::new(id).ok())
}

/// Formats due times and conflict policies for the script: `count due conflict` for each run of messages that have the
/// same ones. A bulk is then one term, where two words per message would cost the server as much as the message
/// itself.
fn terms<'a>(messages: impl Iterator<Item = &'a Scheduling>) -> String {
    let mut terms = String::new();
    let mut add = |count: usize, (at, on_conflict): (Due, OnConflict)| {
        let between = if terms.is_empty() { "" } else { " " };
        // Writing to a `String` cannot fail.
        let _ = write!(terms, "{between}{count} {} {}", due(at), conflict(on_conflict));
    };
    let mut open: Option<(usize, (Due, OnConflict))> = None;
    for message in messages {
        let term = (message.due, message.on_conflict);
        open = match open {
            Some((count, same)) if same == term => Some((count + 1, term)),
            Some((count, other)) => {
                add(count, other);
                Some((1, term))
            }
            None => Some((1, term)),
        };
    }
    open.into_iter().for_each(|(count, term)| add(count, term));
    terms
}

/// Parses the outcome of each message. For a bulk of new messages the script returns a single 1.
pub(crate) fn outcomes(answer: Value, count: usize) -> Result<Vec<Result<Placed>>> {
    if matches!(answer, Value::Int(1)) {
        return Ok((0..count).map(|_| Ok(Placed::New)).collect());
    }
    let values = exactly(answer, count)?;
    Ok(values.into_iter().map(|value| placed(value, "it")).collect())
}

/// Parses an array of exactly `count` values.
pub(crate) fn exactly(answer: Value, count: usize) -> Result<Vec<Value>> {
    let values = reply::array(answer)?;
    if values.len() == count {
        return Ok(values);
    }
    Err(unexpected(format_args!("{} answers to {count} questions", values.len())))
}

/// Splits a batch by place, each part in the order of the batch. Also returns the messages that cannot be scheduled,
/// with the reason.
pub(crate) fn portions(batch: &[Scheduling]) -> (Vec<Portion<'_>>, Vec<(usize, Error)>) {
    let (mut portions, mut refused) = (Vec::<Portion<'_>>::new(), Vec::new());
    let mut open = SortedMap::<&Place, usize>::new();
    for (index, message) in batch.iter().enumerate() {
        let item = match item::pack(&[], &message.fields) {
            Ok(item) => item,
            Err(error) => {
                refused.push((index, error));
                continue;
            }
        };
        let size = item.len() + message.id.as_str().len();
        let current = open.get(&message.place).and_then(|at| portions.get_mut(*at));
        match current.filter(|portion| portion.messages.len() < CALL.0 && portion.bytes + size <= CALL.1) {
            Some(portion) => {
                portion.messages.push((index, item));
                portion.bytes += size;
            }
            None => {
                open.insert(&message.place, portions.len());
                portions.push(Portion { place: &message.place, messages: vec![(index, item)], bytes: size });
            }
        }
    }
    (portions, refused)
}

/// Returns the first portions that make one pipeline: at least one.
pub(crate) fn pipeline<'p, 'a>(portions: &'p [Portion<'a>]) -> &'p [Portion<'a>] {
    let (mut messages, mut bytes) = (0, 0);
    let fits = portions.iter().take_while(|portion| {
        let first = messages == 0;
        messages += portion.messages.len();
        bytes += portion.bytes;
        first || messages <= PIPELINE.0 && bytes <= PIPELINE.1
    });
    &portions[..fits.count()]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millstream_core::topic::TopicPartition;

    use millstream_core::Timestamp;

    use super::*;

    fn scheduling(partition: u32, id: usize, bytes: usize) -> Scheduling {
        Scheduling {
            place: TopicPartition::new("t".parse().expect("name"), partition).into(),
            id: id.to_string().parse().expect("id"),
            due: Due::NOW,
            fields: vec![(Bytes::from("payload"), Bytes::from(vec![0; bytes]))],
            on_conflict: OnConflict::Keep,
        }
    }

    #[test]
    fn a_batch_is_divided_by_place_and_by_size() {
        let mut batch: Vec<_> = (0..250).map(|n| scheduling(n as u32 % 2, n, 10)).collect();
        batch.push(scheduling(7, 250, 3 << 20));
        batch.push(scheduling(7, 251, 1));
        batch[4].fields.clear();
        let (portions, refused) = portions(&batch);
        let sizes: Vec<_> = portions.iter().map(|portion| portion.messages.len()).collect();
        assert_eq!(sizes, [100, 100, 25, 24, 1, 1]);
        assert_eq!((refused.len(), refused[0].0), (1, 4));
        let mut seen: Vec<usize> =
            portions.iter().flat_map(|p| p.messages.iter().map(|(index, _)| *index)).collect();
        assert!(portions.iter().all(|p| p.messages.is_sorted_by_key(|(index, _)| *index)));
        seen.push(4);
        seen.sort_unstable();
        assert_eq!(seen, (0..252).collect::<Vec<_>>(), "each once");
    }

    #[test]
    fn terms_are_told_once_for_those_that_share_them() {
        let with = |at, on_conflict| Scheduling { due: at, on_conflict, ..scheduling(0, 0, 1) };
        let hour = Due::In(std::time::Duration::from_secs(3_600));
        let batch = [
            with(hour, OnConflict::Keep),
            with(hour, OnConflict::Keep),
            with(hour, OnConflict::Replace),
            with(Due::At(Timestamp::from_millis(5)), OnConflict::Replace),
            with(hour, OnConflict::Keep),
        ];
        let told = "2 +3600000000 keep 1 +3600000000 replace 1 5 replace 1 +3600000000 keep";
        assert_eq!(terms(batch.iter()), told);
        assert_eq!(terms(batch[..1].iter()), "1 +3600000000 keep");
        assert_eq!(terms([].iter()), "");
    }

    #[test]
    fn of_new_ones_in_bulk_the_script_says_only_that() {
        let ok =
            |answer| outcomes(answer, 2).expect("an answer").into_iter().map(Result::ok).collect::<Vec<_>>();
        assert_eq!(ok(Value::Int(1)), [Some(Placed::New); 2]);
        let each = Value::Array(vec![Value::Int(2), Value::Int(-1)]);
        assert_eq!(ok(each.clone()), [Some(Placed::Replaced), None]);
        assert_eq!(outcomes(each, 3).expect_err("too few").kind(), ErrorKind::Protocol);
        assert_eq!(outcomes(Value::Int(2), 1).expect_err("no answer").kind(), ErrorKind::Protocol);
    }

    #[test]
    fn a_pipeline_is_bounded_and_never_empty() {
        let many: Vec<_> = (0..2_500).map(|n| scheduling(0, n, 1)).collect();
        assert_eq!(pipeline(&portions(&many).0).len(), 10);
        let large: Vec<_> = (0..3).map(|n| scheduling(0, n, 3 << 20)).collect();
        assert_eq!(pipeline(&portions(&large).0).len(), 1);
        assert!(pipeline(&[]).is_empty());
    }
}
