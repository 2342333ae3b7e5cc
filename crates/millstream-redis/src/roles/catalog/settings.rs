//! Settings of a topic: the fields of its meta hash.

use millstream_core::catalog::{FORMAT, FORMAT_OF_PACKED};
use millstream_core::dead_letters::DeadLetterRetention;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::name::TopicName;
use millstream_core::packing::{DictionaryName, PackCompression, Packing};
use millstream_core::topic::{MAX_PARTITIONS, Retention, TopicChange, TopicSpec};
use redis::{Pipeline, Value};

use super::deleting::Deletion;
use super::{Mode, groups};
use crate::backend::RedisBackend;
use crate::conn::replies::reply;
use crate::entries::dictionaries::Storing;
use crate::scripts::script;

/// Fields of a topic's meta hash.
const META: [&str; 10] = [
    "partitionCount",
    "format",
    "retention",
    "maxLength",
    "deleting",
    "reborn",
    "deadLetterRetention",
    "earlier",
    "packing",
    "dictionary",
];

/// What the field `retention` may hold, times in milliseconds.
const RETENTIONS: &str = "consumed, keep, consumed-after:<ms>, age:<ms> or length:<entries>";
/// What the field `deadLetterRetention` may hold, times in milliseconds.
const DEAD_LETTER_RETENTIONS: &str = "keep, age:<ms>, length:<entries> or both: age:<ms>,length:<entries>";
/// What the field `packing` may hold.
const PACKINGS: &str = "<none, lz4, zstd or zstd-dictionary>:<least messages>:<most messages>:<bytes>";
/// Maximum number of characters of a stored value that an error quotes.
const MAX_SHOWN: usize = 64;

/// Returns a stored value as an error quotes it.
fn shown(value: &Value) -> String {
    match reply::maybe_bytes(value.clone()) {
        Ok(None) => "missing".to_owned(),
        Ok(Some(bytes)) => {
            let text: String = String::from_utf8_lossy(&bytes).chars().take(MAX_SHOWN).collect();
            format!("{text:?}")
        }
        Err(_) => "no text".to_owned(),
    }
}

impl RedisBackend {
    /// Stores settings if there are none, and returns the stored ones.
    pub(super) async fn store_topic(&self, spec: &TopicSpec, mode: Mode) -> Result<TopicSpec> {
        spec.check()?;
        spec.packing.iter().try_for_each(|packing| built(&spec.name, *packing))?;
        let keys = &self.inner.keys;
        let (meta, deleted) = (keys.topic_meta(&spec.name), keys.topic_deleted(&spec.name));
        // All in one script, so that no reader sees half of the settings.
        let call = self.inner.scripts.create_topic.call([&meta, &deleted]);
        let call = call.arg(mode.as_str()).arg(spec.partitions).arg(format_of(spec.packing));
        let call =
            call.arg(spec.retention.to_string()).arg(spec.max_length.unwrap_or(0)).arg(spec.generation);
        let packing = spec.packing.map_or_else(|| "none".to_owned(), |packing| packing.to_string());
        let call = call.arg(spec.dead_letter_retention.to_string()).arg(packing);
        let answer = script::run_one(&self.inner.pool, call).await;
        let stored = answer.map_err(|error| match error.kind() {
            ErrorKind::Deleted => {
                Error::new(ErrorKind::Deleted, format!("topic {} was deleted", spec.name)).at(&spec.name)
            }
            _ => error.during(format_args!("create topic {}", spec.name)).at(&spec.name),
        })?;
        let stored = read(&spec.name, stored)?;
        self.inner.learn(&stored).await;
        Ok(stored)
    }

    /// Marks a topic as being deleted. Returns the deletion under way and, if the topic exists, the number of
    /// partitions that it has, or had when the deletion began.
    pub(super) async fn forget_settings(&self, name: &TopicName) -> Result<(Deletion, Option<u32>)> {
        let [deletion, partitions] = self.forget_topic(name, "begin", &Deletion::new()).await?;
        let deletion = Deletion(reply::text(deletion)?);
        if partitions == Value::Nil {
            return Ok((deletion, None));
        }
        // An invalid value counts as 0: then the list of partitions has their number.
        let partitions = u32::try_from(number(partitions).unwrap_or(0)).unwrap_or(u32::MAX);
        Ok((deletion, Some(partitions.min(MAX_PARTITIONS))))
    }

    /// Removes the settings of a topic and the mark with them, if the mark still names this deletion. Returns `false`
    /// otherwise.
    pub(super) async fn end_deletion(&self, name: &TopicName, deletion: &Deletion) -> Result<bool> {
        let [under_way, _] = self.forget_topic(name, "end", deletion).await?;
        Ok(Deletion::read(under_way)?.as_ref() == Some(deletion))
    }

    async fn forget_topic(&self, name: &TopicName, stage: &str, deletion: &Deletion) -> Result<[Value; 2]> {
        let keys = &self.inner.keys;
        let (meta, deleted) = (keys.topic_meta(name), keys.topic_deleted(name));
        let of_topic = [keys.topic_partitions(name), keys.topic_groups(name), keys.topic_dictionaries(name)];
        let [partitions, groups, dictionaries] = &of_topic;
        let call = self.inner.scripts.forget_topic.call([&meta, &deleted, partitions, groups, dictionaries]);
        let call = call.args([stage, deletion.as_str()]).arg(groups::millis());
        reply::tuple(script::run_one(&self.inner.pool, call).await?)
    }

    pub(super) async fn stored_topic(&self, name: &TopicName) -> Result<TopicSpec> {
        let meta = self.inner.keys.topic_meta(name);
        let mut pipe = Pipeline::new();
        command(&mut pipe, &meta);
        let stored = read(name, self.inner.one(&meta, &pipe).await?)?;
        self.inner.learn(&stored).await;
        Ok(stored)
    }

    /// Stores a dictionary under the next version.
    pub(super) async fn add_dictionary(
        &self,
        topic: &TopicSpec,
        dictionary: &[u8],
    ) -> Result<DictionaryName> {
        let stored = self.stored_topic(&topic.name).await?;
        // Of another topic the script says so.
        if stored.generation == topic.generation {
            stored.check_dictionary(dictionary)?;
        }
        let name = self.inner.store_dictionary(topic, dictionary, Storing::Next, 0).await?;
        // So that producers of this program use it at once. If that fails, they use it when they read the topic the next time.
        let _ = self.stored_topic(&topic.name).await;
        Ok(name)
    }

    /// Fails for a topic of a newer format, whose data this version does not know.
    pub(crate) async fn check_format(&self, name: &TopicName) -> Result<()> {
        let meta = self.inner.keys.topic_meta(name);
        let mut pipe = Pipeline::new();
        pipe.cmd("HGET").arg(meta.as_str()).arg("format");
        check_format(name, number(self.inner.one(&meta, &pipe).await?).unwrap_or(0))
    }

    pub(super) async fn store_change(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        let meta = self.inner.keys.topic_meta(name);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
        let mut stored: [Value; META.len()] = reply::tuple(self.inner.one(&meta, &pipe).await?)?;
        // What is changed may be invalid now. Everything else is checked, also the format: data of a newer version is not
        // changed. (A topic without any settings stays without them.)
        for (at, changed) in [
            (2, change.retention.is_some()),
            (3, change.max_length.is_some()),
            (6, change.dead_letter_retention.is_some()),
            (8, change.packing.is_some()),
        ] {
            if changed && stored[at] != Value::Nil {
                stored[at] = match at {
                    2 => Value::BulkString(b"keep".to_vec()),
                    8 => Value::BulkString(
                        Packing::new().compression(PackCompression::None).to_string().into(),
                    ),
                    _ => Value::Nil,
                };
            }
        }
        change.of(read(name, Value::Array(stored.into()))?)?;
        change.packing.iter().try_for_each(|packing| built(name, *packing))?;
        let retention = change.retention.map(|retention| retention.to_string()).unwrap_or_default();
        let max_length = change.max_length.map(|bound| bound.unwrap_or(0).to_string()).unwrap_or_default();
        let of_dead = change.dead_letter_retention.map(|retention| retention.to_string()).unwrap_or_default();
        let packing = change.packing.map(|packing| packing.to_string()).unwrap_or_default();
        let call = self.inner.scripts.alter_topic.call([&meta]);
        let call = call.args([&*retention, &*max_length, &*of_dead, &*packing]);
        script::run_one(&self.inner.pool, call).await?;
        self.stored_topic(name).await
    }
}

/// Fails for a compression that this program was built without.
fn built(name: &TopicName, packing: Packing) -> Result<()> {
    let with = packing.compressed();
    if millstream_packing::is_built(with) {
        return Ok(());
    }
    let with = with.as_str();
    let why = format!(
        "topic {name} packs messages with {with}, and this program was built without it: see the feature `packing`"
    );
    Err(Error::new(ErrorKind::Unsupported, why).at(name))
}

/// Adds the command whose reply [`read`] takes.
pub(super) fn command(pipe: &mut Pipeline, meta: &Key) {
    pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
}

pub(crate) fn read(name: &TopicName, meta: Value) -> Result<TopicSpec> {
    let [
        partitions,
        format,
        retention,
        max_length,
        deleting,
        generation,
        of_dead,
        earlier,
        packing,
        dictionary,
    ] = reply::tuple(meta)?;
    let nothing = [&partitions, &format, &retention].iter().all(|value| **value == Value::Nil);
    if nothing || deleting != Value::Nil {
        return Err(Error::new(ErrorKind::NotFound, format!("topic {name} does not exist")).at(name));
    }
    let damaged = |what: &str, value: &Value, allowed: &str| {
        let value = shown(value);
        let why = format!("topic {name}: the stored {what} is {value}; allowed is {allowed}");
        Error::new(ErrorKind::Protocol, why).at(name)
    };
    let number = |value: Value, what: &str, allowed: &str| {
        number(value.clone()).ok_or_else(|| damaged(what, &value, allowed))
    };
    // Check the format first: a newer one may give every other field another meaning.
    let format = number(format, "format", "a whole number")?;
    check_format(name, format)?;
    let count = format!("a whole number from 1 to {MAX_PARTITIONS}");
    let stored_partitions = partitions.clone();
    let partitions = u32::try_from(number(partitions, "partitionCount", &count)?).unwrap_or(u32::MAX);
    let text = reply::text(retention.clone()).map_err(|_| damaged("retention", &retention, RETENTIONS))?;
    // The kind is kept: a setting may be of a newer version.
    let kind_of = |error: Error, what: &str, value: &Value, allowed: &str| {
        Error::new(error.kind(), damaged(what, value, allowed).to_string()).at(name)
    };
    let retention =
        Retention::parse(&text).map_err(|error| kind_of(error, "retention", &retention, RETENTIONS))?;
    let max_length = match max_length {
        Value::Nil => None,
        stored => Some(number(stored, "maxLength", "a whole number")?).filter(|entries| *entries > 0),
    };
    let of_dead = match of_dead {
        Value::Nil => DeadLetterRetention::KEEP,
        stored => {
            let what = "deadLetterRetention";
            let text =
                reply::text(stored.clone()).map_err(|_| damaged(what, &stored, DEAD_LETTER_RETENTIONS))?;
            DeadLetterRetention::parse(&text)
                .map_err(|error| kind_of(error, what, &stored, DEAD_LETTER_RETENTIONS))?
        }
    };
    let packing = match packing {
        Value::Nil => None,
        stored => {
            let text = reply::text(stored.clone()).map_err(|_| damaged("packing", &stored, PACKINGS))?;
            let packing =
                Packing::parse(&text).map_err(|error| kind_of(error, "packing", &stored, PACKINGS))?;
            built(name, packing)?;
            Some(packing)
        }
    };
    let dictionary = match dictionary {
        Value::Nil => None,
        // Messages can be packed and read without it, so it stops nobody. A producer that knows its name sets it right.
        stored => {
            let name_of = reply::text(stored.clone()).ok().and_then(|text| text.parse().ok());
            if name_of.is_none() {
                tracing::warn!("{}", damaged("dictionary", &stored, "<version>:<id>, numbers from 1"));
            }
            name_of
        }
    };
    let generation =
        if generation == Value::Nil { 0 } else { number(generation, "reborn", "a whole number")? };
    let spec = TopicSpec::new(name.clone(), partitions)
        .map_err(|_| damaged("partitionCount", &stored_partitions, &count))?;
    // Numbers that are not of this form are left out: they only say where else an id may be.
    let earlier = if earlier == Value::Nil { String::new() } else { reply::text(earlier)? };
    let earlier: Vec<u32> = earlier.split(' ').filter_map(|number| number.parse().ok()).collect();
    let spec = spec.with_retention(retention).with_max_length(max_length);
    let spec = spec.with_dead_letter_retention(of_dead).with_generation(generation).with_packing(packing);
    Ok(spec.with_earlier(earlier).with_dictionary(dictionary))
}

/// Returns the format of a topic with this packing. Clients that do not know packs must not read it as if it had none.
const fn format_of(packing: Option<Packing>) -> u32 {
    match packing {
        None => FORMAT,
        Some(_) => FORMAT_OF_PACKED,
    }
}

fn check_format(name: &TopicName, format: u64) -> Result<()> {
    if format <= u64::from(FORMAT_OF_PACKED) {
        return Ok(());
    }
    let message = format!("topic {name} has format {format}, this version knows {FORMAT_OF_PACKED}");
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn number(value: Value) -> Option<u64> {
    reply::text(value).ok()?.parse().ok()
}
