//! Training of dictionaries: on messages of a topic's logs, and compared on others of them.

use millstream_core::inspect::Range;
use millstream_core::packing::{MAX_DICTIONARY, PackCompression};
use millstream_core::wire::Fields;
use millstream_core::{Capability, Error, ErrorKind, Packing, Result, TopicName, TopicSpec};
use millstream_packing::{Dictionary, pack_with, size, train};

use crate::Admin;
use crate::reading::messages::Browse;

/// Smallest size of a dictionary in bytes, by zstd.
const MIN_SIZE: usize = 256;
/// Bytes of messages at which sampling stops (32 MiB): five hundred times the largest dictionary.
const MAX_SAMPLE: usize = 32 << 20;
/// Each fifth message is held out of the training, for the comparison.
const HELD_OUT: usize = 5;
/// A dictionary is stored if it saves at least one byte in 50: each stays until the topic is deleted.
const GAIN: u64 = 50;
/// Numbers of messages in the packs that are compared, beside the least that the topic packs.
const COMPARED: [usize; 2] = [10, 100];
/// Number of messages that are read at once.
const PORTION: usize = 500;

/// How a dictionary is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Training {
    /// Number of messages to read, the newest of the topic; [`MIN_MESSAGES`](Self::MIN_MESSAGES) to
    /// [`MAX_MESSAGES`](Self::MAX_MESSAGES). Default: 10,000. At 32 MiB of messages no more are read.
    pub messages: usize,
    /// Largest size of the dictionary in bytes, 256 to [`MAX_DICTIONARY`]. Default: 16 KiB.
    pub size: usize,
    /// Whether to train and compare only, without storing anything. Default: no.
    pub dry_run: bool,
}

impl Training {
    /// Least number of messages that are trained on.
    pub const MIN_MESSAGES: usize = 100;
    /// Largest number of messages that are trained on.
    pub const MAX_MESSAGES: usize = 100_000;

    /// Trains on 10,000 messages a dictionary of up to 16 KiB.
    #[must_use]
    pub const fn new() -> Self {
        Self { messages: 10_000, size: 16 << 10, dry_run: false }
    }
}

impl Default for Training {
    fn default() -> Self {
        Self::new()
    }
}

/// Dictionary that was trained, compared with what producers use now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trained {
    /// Number of messages that it was trained on.
    pub messages: usize,
    /// Number of other messages, on which it was compared.
    pub compared: usize,
    /// Size of the dictionary, in bytes.
    pub size: usize,
    /// Version of the dictionary that producers used before; `None` for none.
    pub previous: Option<u32>,
    /// Sizes of the messages held out, in packs of different numbers; the first is the least number that the topic packs.
    pub packs: Vec<PackedSize>,
    /// Version under which it was stored; `None` if it was not.
    pub version: Option<u32>,
}

impl Trained {
    /// Whether it is better than what producers use now: in the smallest packs that they make, it saves at least 2 % of the bytes.
    #[must_use]
    pub fn is_better(&self) -> bool {
        let first = self.packs.first();
        first.is_some_and(|it| it.after.saturating_mul(GAIN) <= it.before.saturating_mul(GAIN - 1))
    }
}

/// Bytes that messages take in the values of entries, in packs of some number of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackedSize {
    /// Number of messages in a pack.
    pub messages: usize,
    /// Bytes of all messages, one an entry and not compressed.
    pub plain: u64,
    /// Bytes in packs as producers make them now.
    pub before: u64,
    /// Bytes in packs with the new dictionary.
    pub after: u64,
}

impl Admin {
    /// Trains a dictionary for the packs of a topic on messages of its logs, compares it on other messages of them, and stores it if
    /// it is [better](Trained::is_better) than what producers use now. These take it when they next read the topic's settings, within a
    /// minute by default.
    ///
    /// Messages that are too large for a pack are left out.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], also if the topic was deleted meanwhile, whatever has its name by now. [`ErrorKind::InvalidConfig`] for a topic whose packing uses no
    /// [dictionary](PackCompression::ZstdDictionary), for limits that are not allowed, and if the logs have too few messages, or
    /// messages that have nothing in common. [`ErrorKind::Unsupported`] for a backend that keeps no dictionaries. Transient ones.
    pub async fn train_topic(&self, topic: &TopicName, training: Training) -> Result<Trained> {
        self.backend.require(Capability::Dictionaries)?;
        let spec = self.backend.catalog().topic(topic).await?;
        let packing = checked(&spec, training)?;
        // One that cannot be used is none: producers pack without it.
        let current = match spec.dictionary {
            None => None,
            Some(name) => match self.backend.catalog().dictionary(topic, name).await {
                Err(error) if error.kind() == ErrorKind::Protocol => None,
                bytes => bytes?.and_then(|bytes| Dictionary::new(name.version, &bytes).ok()),
            },
        };
        let previous = current.as_ref().map(|it| it.name().version);
        let sample = self.sample(topic, packing, training.messages).await?;
        if sample.len() < Training::MIN_MESSAGES {
            let why = format!(
                "the logs of topic {topic} have {} messages that fit into packs: {} are needed",
                sample.len(),
                Training::MIN_MESSAGES
            );
            return Err(Error::new(ErrorKind::InvalidConfig, why).at(topic));
        }
        let work = move || work(&sample, packing, current.as_ref(), training.size);
        // It takes seconds: other tasks of the thread must not wait for it.
        let worked = tokio::task::spawn_blocking(work).await;
        let worked = worked
            .map_err(|error| Error::new(ErrorKind::Closed, "the training was cut off").with_source(error))?;
        let (bytes, mut trained) = worked.map_err(|error| error.at(topic))?;
        trained.previous = previous;
        if !training.dry_run && trained.is_better() {
            let stored = self.backend.catalog().store_dictionary(&spec, bytes.into()).await?;
            trained.version = Some(stored.version);
        }
        Ok(trained)
    }

    /// Returns the newest messages of a topic that fit into packs.
    async fn sample(&self, topic: &TopicName, packing: Packing, messages: usize) -> Result<Vec<Fields>> {
        let mut browse = Browse { limit: messages, ..Browse::default() };
        browse.range = Range { newest_first: true, ..Range::ALL };
        let mut walk = self.walk(topic, &browse).await?;
        let (mut sample, mut bytes) = (Vec::new(), 0);
        while sample.len() < messages && bytes < MAX_SAMPLE {
            let page = walk.run_once(PORTION).await?;
            if page.is_empty() {
                break;
            }
            for message in page {
                let size = size(&message.stored.fields);
                if size <= packing.bytes() {
                    bytes += size;
                    sample.push(message.stored.fields);
                }
            }
        }
        sample.truncate(messages);
        Ok(sample)
    }
}

/// Returns the packing of a topic that uses dictionaries, if the limits are allowed.
fn checked(spec: &TopicSpec, training: Training) -> Result<Packing> {
    let invalid = |why: String| Err(Error::new(ErrorKind::InvalidConfig, why).at(&spec.name));
    let (least, most) = (Training::MIN_MESSAGES, Training::MAX_MESSAGES);
    if !(least..=most).contains(&training.messages) {
        return invalid(format!("training on {} messages: {least} to {most} are allowed", training.messages));
    }
    if !(MIN_SIZE..=MAX_DICTIONARY).contains(&training.size) {
        let size = training.size;
        return invalid(format!("a dictionary of {size} bytes: {MIN_SIZE} to {MAX_DICTIONARY} are allowed"));
    }
    let with = PackCompression::ZstdDictionary;
    match spec.packing.filter(|packing| packing.compressed() == with) {
        Some(packing) => Ok(packing),
        None => invalid(format!("topic {} does not pack messages with {}", spec.name, with.as_str())),
    }
}

/// Trains on a sample and compares. Returns the dictionary too.
fn work(
    sample: &[Fields],
    packing: Packing,
    current: Option<&Dictionary>,
    size: usize,
) -> Result<(Vec<u8>, Trained)> {
    let invalid = |why: String| Error::new(ErrorKind::InvalidConfig, why);
    let part = |held: bool| {
        let of = sample.iter().enumerate().filter(move |(at, _)| (at % HELD_OUT == 0) == held);
        of.map(|(_, message)| message)
    };
    let bytes = train(part(false), size).map_err(|error| invalid(error.to_string()))?;
    // The version does not matter: nothing of it is stored.
    let dictionary = Dictionary::new(1, &bytes).map_err(|error| invalid(error.to_string()))?;
    let held: Vec<&Fields> = part(true).collect();
    let mut numbers = vec![packing.least()];
    numbers.extend(COMPARED.into_iter().filter(|it| *it > packing.least() && *it <= packing.messages()));
    let packs = numbers.into_iter().map(|messages| {
        let portions = portions(&held, messages, packing.bytes());
        let of = |dictionary| portions.iter().map(|messages| packed(messages, packing, dictionary)).sum();
        let plain = held.iter().map(|message| values(message)).sum();
        PackedSize { messages, plain, before: of(current), after: of(Some(&dictionary)) }
    });
    let trained = Trained {
        messages: sample.len() - held.len(),
        compared: held.len(),
        size: bytes.len(),
        previous: None,
        packs: packs.collect(),
        version: None,
    };
    Ok((bytes, trained))
}

/// Divides messages into packs.
fn portions<'a>(held: &[&'a Fields], messages: usize, bytes: usize) -> Vec<Vec<&'a Fields>> {
    let mut portions: Vec<Vec<&Fields>> = Vec::new();
    let mut room = 0;
    for message in held {
        let takes = size(message);
        match portions.last_mut().filter(|last| last.len() < messages && takes <= room) {
            Some(last) => last.push(message),
            None => {
                portions.push(vec![message]);
                room = bytes;
            }
        }
        room = room.saturating_sub(takes);
    }
    portions
}

/// Returns the bytes that messages take as one entry, or as entries of their own where a pack of them is not made.
fn packed(messages: &[&Fields], packing: Packing, dictionary: Option<&Dictionary>) -> u64 {
    let plain = messages.iter().map(|message| values(message)).sum();
    let pack = pack_with(messages.iter().copied(), packing.compressed(), dictionary);
    let Ok(pack) = pack.map(|fields| values(&fields)) else { return plain };
    match (messages, dictionary) {
        ([_], None) => plain,
        ([_], Some(_)) => plain.min(pack),
        _ => pack,
    }
}

fn values(fields: &Fields) -> u64 {
    fields.iter().map(|(_, value)| value.len() as u64).sum()
}
