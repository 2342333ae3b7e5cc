//! Memory usage of partitions, as the server estimates it from samples.

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::inspect::{Structure, Usage};
use millstream_core::keys::Key;
use millstream_core::name::GroupName;
use millstream_core::schedule::Place;
use millstream_core::sorted::SortedMap;
use millstream_core::topic::{Partition, TopicPartition};
use redis::Pipeline;

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::scripts::script;

/// Number of sampled items of each structure.
const SAMPLES: usize = 5;
/// Approximate number of keys in one pipeline.
const CHUNK: usize = 250;

/// A key, and the command that counts its items; `None` if its items are those of the key before.
type Weighed = (Partition, Option<GroupName>, Structure, Key, Option<&'static str>);

/// Items and bytes of a structure, and why the items could not be counted.
type Total = (u64, u64, Option<String>);

pub(crate) async fn look(
    inner: &Inner,
    partitions: &[TopicPartition],
    groups: &[GroupName],
) -> Result<Vec<Usage>> {
    let mut totals: SortedMap<(Partition, Option<GroupName>, Structure), Total> = SortedMap::new();
    let mut keys = partitions.iter().flat_map(|tp| keys_of(inner, tp, groups)).collect::<Vec<_>>();
    let all: Vec<_> = partitions.iter().flat_map(|tp| groups.iter().map(move |group| (tp, group))).collect();
    for ((tp, group), reader) in all.iter().zip(inner.readers_of(&all).await?) {
        let gate = reader.map(|reader| inner.keys.gate(tp, group, &reader));
        keys.extend(gate.map(|gate| (tp.partition, Some((*group).clone()), Structure::Lease, gate, None)));
    }
    for chunk in keys.chunks(CHUNK) {
        let mut pipe = Pipeline::with_capacity(2 * chunk.len());
        for (_, _, _, key, counted) in chunk {
            pipe.cmd("MEMORY").arg("USAGE").arg(key.as_str()).arg("SAMPLES").arg(SAMPLES);
            match counted {
                Some(command) => pipe.cmd(command).arg(key.as_str()),
                None => pipe.cmd("EXISTS").arg(key.as_str()),
            };
        }
        let mut answers = inner.pool.send(&pipe).await?.into_iter();
        for (partition, group, structure, key, counted) in chunk {
            let on = |error: Error| error.during(format_args!("usage of {key}"));
            let bytes = match answers.next().unwrap_or_default() {
                redis::Value::Nil => 0,
                bytes => reply::count(bytes).map_err(on)? as u64,
            };
            // A key of a wrong type takes memory too, and hides no other structure.
            let (items, unreadable) = match reply::count(answers.next().unwrap_or_default()).map_err(on) {
                Err(error) if error.kind() == ErrorKind::WrongType => (0, Some(error.to_string())),
                items => (items? as u64, None),
            };
            if bytes > 0 {
                let total = totals.get_or_default((*partition, group.clone(), *structure));
                total.0 += if counted.is_some() { items } else { 0 };
                total.1 += bytes;
                total.2 = total.2.take().or(unreadable);
            }
        }
    }
    count_messages(inner, partitions, &mut totals).await?;
    let usage = totals.into_iter().map(|((partition, group, structure), (items, bytes, unreadable))| Usage {
        partition,
        group,
        structure,
        items,
        bytes,
        unreadable,
    });
    Ok(usage.collect())
}

impl Inner {
    /// Returns the word of the reader that begun last, with which its gate is named; `None` where there is none.
    pub(crate) async fn readers_of(
        &self,
        all: &[(&TopicPartition, &GroupName)],
    ) -> Result<Vec<Option<String>>> {
        let mut readers = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let mut pipe = Pipeline::with_capacity(chunk.len());
            for (tp, group) in chunk {
                pipe.cmd("HGET").arg(self.keys.fence(tp, group).as_str()).arg("reader");
            }
            for answer in self.pool.send(&pipe).await? {
                // A fence of another type is found elsewhere.
                readers.push(reply::text(answer).ok().filter(|reader| !reader.is_empty()));
            }
        }
        Ok(readers)
    }
}

/// Counts messages in the place of the entries of packed logs.
async fn count_messages(
    inner: &Inner,
    partitions: &[TopicPartition],
    totals: &mut SortedMap<(Partition, Option<GroupName>, Structure), Total>,
) -> Result<()> {
    let mut packed: Vec<_> = partitions.iter().filter(|tp| inner.packings.is_packed(&tp.topic)).collect();
    let readable = |tp: &&TopicPartition| {
        totals.get(&(tp.partition, None, Structure::Log)).is_some_and(|(.., unreadable)| unreadable.is_none())
    };
    packed.retain(readable);
    let all = [MessageId::ZERO; 2];
    let lengths = packed.iter().map(|tp| {
        let keys = [&inner.keys.log(tp), &inner.keys.packs(tp)];
        inner.scripts.length_packed.call(keys)
    });
    let lengths = script::run(&inner.pool, lengths.collect()).await;
    let missing = inner.missing_above(&packed.iter().map(|tp| (*tp, &all)).collect::<Vec<_>>()).await?;
    for ((tp, length), missing) in packed.iter().zip(lengths).zip(missing) {
        let length = length.and_then(reply::count);
        let length = length.map_err(|error| error.during(format_args!("usage of {tp}")));
        let Some(log) = totals.get_mut(&(tp.partition, None, Structure::Log)) else { continue };
        match length {
            // More than there were: packs that were appended, and deleted, since the length was read.
            Ok(length) => log.0 = (length as u64).saturating_sub(missing.above[0]),
            // Something else in the place of what counts its packs hides no other structure.
            Err(error) if error.kind() == ErrorKind::WrongType => log.2 = Some(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn keys_of(inner: &Inner, tp: &TopicPartition, groups: &[GroupName]) -> Vec<Weighed> {
    let (keys, place) = (&inner.keys, Place::from(tp.clone()));
    let of = |structure, key, counted| (tp.partition, None, structure, key, counted);
    let mut all = vec![
        of(Structure::Log, keys.log(tp), Some("XLEN")),
        of(Structure::Delayed, keys.delay(&place), Some("ZCARD")),
        of(Structure::Delayed, keys.delay_items(&place), None),
        of(Structure::Recurring, keys.recur(&place), None),
        of(Structure::Recurring, keys.recur_items(&place), Some("HLEN")),
    ];
    let packed = inner.packings.is_packed(&tp.topic);
    if packed {
        all.push(of(Structure::Log, keys.packs(tp), None));
    }
    for group in groups {
        let of = |structure, key, counted| (tp.partition, Some(group.clone()), structure, key, counted);
        all.extend([
            of(Structure::RetryLog, keys.retry_log(tp, group), Some("XLEN")),
            of(Structure::Parked, keys.retry_due(tp, group), Some("ZCARD")),
            of(Structure::Parked, keys.retry_items(tp, group), None),
            of(Structure::Notes, keys.held(tp, group), Some("HLEN")),
            of(Structure::DeadLetters, keys.dead_letters(tp, group), Some("XLEN")),
            of(Structure::Lease, keys.lease(tp, group), None),
            of(Structure::Lease, keys.fence(tp, group), Some("EXISTS")),
        ]);
        if packed {
            all.push(of(Structure::Notes, keys.settled(tp, group), None));
        }
    }
    all
}
