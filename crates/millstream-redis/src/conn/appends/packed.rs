//! Entries of packed topics: those of a partition that are appended together become one entry.
//!
//! The entries of a partition keep their order. A pack is appended by a script, which gives its messages their ids; what is alone is
//! a plain entry.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Keys;
use millstream_core::log::{Append, Receipt};
use millstream_core::name::TopicName;
use millstream_core::packing::{PackCompression, Packing};
use millstream_core::topic::{TopicPartition, TopicSpec};
use millstream_core::wire::Fields;
use millstream_packing::{pack_with, size};
use redis::{Cmd, Pipeline};

use crate::conn::appends::dictionaries::Dictionaries;
use crate::conn::appends::script::Script;
use crate::conn::request::{Digits, Request};
use crate::error::unexpected;

/// The topics that are known to be packed.
pub(crate) struct Packings {
    /// Whether there are any: without one, an append costs nothing more.
    any: AtomicBool,
    topics: RwLock<HashMap<TopicName, Packing>>,
    dictionaries: Dictionaries,
    script: Script,
    /// Whether the servers are a cluster. Then single entries of packed topics are appended by the script too: what keeps a pack from being
    /// stored while its slot moves (two keys, of which one is elsewhere) must keep those behind it from overtaking it.
    on_cluster: bool,
}

impl Packings {
    /// `code` is the source of `append_packed`.
    pub(crate) fn new(code: String, on_cluster: bool) -> Self {
        let (any, topics, dictionaries) =
            (AtomicBool::new(false), RwLock::default(), Dictionaries::default());
        Self { any, topics, dictionaries, script: Script::new(code), on_cluster }
    }

    /// Returns the dictionaries that are known.
    pub(crate) const fn dictionaries(&self) -> &Dictionaries {
        &self.dictionaries
    }

    /// Keeps the packing of a topic that was read or created.
    pub(crate) fn learn(&self, topic: &TopicSpec) {
        if topic.packing.is_none() && !self.any.load(Ordering::Acquire) {
            return;
        }
        let Some(packing) = topic.packing else { return self.forget(&topic.name) };
        self.topics.write().unwrap_or_else(PoisonError::into_inner).insert(topic.name.clone(), packing);
        self.any.store(true, Ordering::Release);
    }

    /// Forgets a topic that was deleted, or is not packed any more. One that is missing may be lost, and needs its dictionaries.
    pub(crate) fn forget(&self, topic: &TopicName) {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.remove(topic);
        self.dictionaries.forget(topic);
        self.any.store(!topics.is_empty(), Ordering::Release);
    }

    /// Whether a topic is known to be packed.
    pub(crate) fn is_packed(&self, topic: &TopicName) -> bool {
        self.of(topic).is_some()
    }

    /// Returns the packing of a topic, if it is known to have one.
    pub(crate) fn of(&self, topic: &TopicName) -> Option<Packing> {
        // Nearly always none is packed.
        let topics = || self.topics.read().unwrap_or_else(PoisonError::into_inner).get(topic).copied();
        if self.any.load(Ordering::Acquire) { topics() } else { None }
    }

    /// Divides entries into packs and single ones. `None` if all of them are single.
    pub(crate) fn divide<'a>(&self, entries: impl Iterator<Item = &'a Append>) -> Option<Division> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let entries: Vec<&Append> = entries.collect();
        let mut rows: Vec<Row> = Vec::new();
        // By partition: its packing, and the row that takes further entries.
        let mut known: HashMap<&TopicPartition, (Option<Packing>, Option<usize>)> = HashMap::new();
        for (at, append) in entries.iter().enumerate() {
            let tp = &append.topic_partition;
            let (packing, open) = known.entry(tp).or_insert_with(|| (self.of(&tp.topic), None));
            let bytes = size(&append.fields);
            let fits = |row: &Row, packing: &Packing| {
                row.at.len() < packing.messages() && row.bytes + bytes <= packing.bytes()
            };
            match (*packing, *open) {
                (Some(packing), Some(row)) if fits(&rows[row], &packing) => {
                    rows[row].at.push(at);
                    rows[row].bytes += bytes;
                }
                (packing, _) => {
                    // One that is larger than a pack stands by itself, and what comes behind it too.
                    *open = packing.filter(|packing| bytes <= packing.bytes()).map(|_| rows.len());
                    rows.push(Row { at: vec![at], bytes });
                }
            }
        }
        let mut commands = Vec::with_capacity(rows.len());
        for Row { at, .. } in rows {
            let packing = known.get(&entries[at[0]].topic_partition).and_then(|(packing, _)| *packing);
            let compression = packing.filter(|packing| at.len() >= packing.least()).map(|it| it.compressed());
            let messages = at.iter().map(|at| &entries[*at].fields);
            let topic = &entries[at[0]].topic_partition.topic;
            // A pack that cannot be made is none: its messages are stored one by one.
            match compression.and_then(|compression| self.pack(topic, messages, compression)) {
                Some(fields) if at.len() == 1 && !self.on_cluster => {
                    let topic_partition = entries[at[0]].topic_partition.clone();
                    commands.push(Command::Alone(at[0], Append::new(topic_partition, fields)));
                }
                Some(fields) => commands.push(Command::Pack { at, fields }),
                None if self.on_cluster && packing.is_some() => commands.extend(at.into_iter().map(|at| {
                    let fields = entries[at].fields.clone();
                    Command::Pack { at: vec![at], fields }
                })),
                None => commands.extend(at.into_iter().map(Command::One)),
            }
        }
        let all_single = commands.iter().all(|command| matches!(command, Command::One(_)));
        (!all_single).then_some(Division { commands })
    }

    /// Returns the entry that holds these messages; `None` if they are to be stored one by one.
    fn pack<'a>(
        &self,
        topic: &TopicName,
        mut messages: impl ExactSizeIterator<Item = &'a Fields> + Clone,
        compression: PackCompression,
    ) -> Option<Fields> {
        let with_dictionary = compression == PackCompression::ZstdDictionary;
        let dictionary = if with_dictionary { self.dictionaries.newest(topic) } else { None };
        if messages.len() > 1 {
            return pack_with(messages, compression, dictionary.as_deref()).ok();
        }
        // By itself a message is small enough only with a dictionary, and not always then. The server stores names of fields once for
        // many entries.
        let packed = pack_with(messages.clone(), compression, Some(dictionary.as_deref()?)).ok()?;
        let values = |fields: &Fields| fields.iter().map(|(_, value)| value.len()).sum::<usize>();
        (values(&packed) < values(messages.next()?)).then_some(packed)
    }

    /// Returns which commands carry the script: the first one of a request, or of each partition where these may be refused alone. `told` has
    /// those before.
    fn carries<'a>(&self, told: &mut Vec<&'a TopicPartition>, tp: &'a TopicPartition) -> bool {
        let first = if self.on_cluster { !told.contains(&tp) } else { told.is_empty() };
        if first {
            told.push(tp);
        }
        first
    }

    /// Adds the command that appends a pack, as words, with the script or its hash.
    fn words<'a>(
        &'a self,
        first: bool,
        count: &'a Digits,
        keys: &'a [millstream_core::keys::Key; 2],
        fields: &'a Fields,
    ) -> impl Iterator<Item = &'a [u8]> {
        let [command, script] =
            if first { ["EVAL", self.script.code()] } else { ["EVALSHA", self.script.sha()] };
        let head = [command.as_bytes(), script.as_bytes(), b"2", keys[0].as_str().as_bytes()];
        let head = head.into_iter().chain([keys[1].as_str().as_bytes(), count.as_bytes()]);
        head.chain(fields.iter().flat_map(|(name, value)| [&name[..], &value[..]]))
    }
}

/// Entries of one partition, by their positions, with their size in a pack.
struct Row {
    at: Vec<usize>,
    bytes: usize,
}

/// What the entries of a request are divided into, in the order in which they are appended.
pub(crate) struct Division {
    commands: Vec<Command>,
}

/// One command of a request.
enum Command {
    /// Appends the entry at this position.
    One(usize),
    /// Appends, in the place of the entry at this position, a pack of that one message.
    Alone(usize, Append),
    /// Appends those at these positions, which are one partition's, as this entry, by the script.
    Pack { at: Vec<usize>, fields: Fields },
}

impl Command {
    /// Returns the entry that a command appends by itself.
    fn single<'a, 'b: 'a>(&'a self, entry: &impl Fn(usize) -> &'b Append) -> &'a Append {
        match self {
            Self::Alone(_, append) => append,
            Self::One(at) => entry(*at),
            Self::Pack { at, .. } => entry(at[0]),
        }
    }
}

impl Division {
    /// Adds the commands to a request. With `asking`, an `ASKING` precedes each.
    pub(crate) fn add<'a>(
        &self,
        request: &mut Request,
        keys: &Keys,
        packings: &Packings,
        entry: impl Fn(usize) -> &'a Append,
        asking: bool,
    ) {
        let mut told = Vec::new();
        for command in &self.commands {
            if asking {
                request.add(&[b"ASKING"]);
            }
            match command {
                Command::One(_) | Command::Alone(..) => {
                    let Append { topic_partition, fields, .. } = command.single(&entry);
                    request.begin(3 + 2 * fields.len());
                    request.arg(b"XADD");
                    request.arg(keys.log(topic_partition).as_str().as_bytes());
                    request.arg(b"*");
                    for (name, value) in fields {
                        request.arg(name);
                        request.arg(value);
                    }
                }
                Command::Pack { at, fields } => {
                    let tp = &entry(at[0]).topic_partition;
                    let (keys, count) = ([keys.log(tp), keys.packs(tp)], Digits::number(at.len() as u64));
                    request.begin(6 + 2 * fields.len());
                    packings
                        .words(packings.carries(&mut told, tp), &count, &keys, fields)
                        .for_each(|word| request.arg(word));
                }
            }
        }
    }

    /// Adds the commands to a pipeline of the client; `one` makes that of a single entry.
    pub(crate) fn add_to_pipeline<'a>(
        &self,
        pipe: &mut Pipeline,
        keys: &Keys,
        packings: &Packings,
        entry: impl Fn(usize) -> &'a Append,
        one: impl Fn(&Append) -> Cmd,
    ) {
        let mut told = Vec::new();
        for command in &self.commands {
            match command {
                Command::One(_) | Command::Alone(..) => {
                    pipe.add_command(one(command.single(&entry)));
                }
                Command::Pack { at, fields } => {
                    let tp = &entry(at[0]).topic_partition;
                    let (keys, count) = ([keys.log(tp), keys.packs(tp)], Digits::number(at.len() as u64));
                    let mut cmd = Cmd::new();
                    for word in packings.words(packings.carries(&mut told, tp), &count, &keys, fields) {
                        cmd.arg(word);
                    }
                    pipe.add_command(cmd);
                }
            }
        }
    }

    /// Returns a result for each of `entries` entries; `next` reads the answer to the next command.
    pub(crate) fn results(
        &self,
        entries: usize,
        mut next: impl FnMut() -> Result<MessageId>,
    ) -> Vec<Result<MessageId>> {
        let mut results: Vec<_> = (0..entries).map(|_| Err(unexpected("no answer to an append"))).collect();
        for command in &self.commands {
            let answer = next();
            match command {
                Command::One(at) | Command::Alone(at, _) => results[*at] = answer,
                Command::Pack { at, .. } => {
                    let count = u32::try_from(at.len()).unwrap_or(u32::MAX);
                    let receipts = answer.and_then(|id| {
                        Receipt::of_pack(id, count)
                            .ok_or_else(|| unexpected("a pack whose id leaves no room"))
                    });
                    match receipts {
                        Ok(receipts) => {
                            for (at, receipt) in at.iter().zip(receipts) {
                                results[*at] = Ok(receipt.id);
                            }
                        }
                        Err(error) => at.iter().for_each(|at| results[*at] = Err(error.clone())),
                    }
                }
            }
        }
        results
    }
}
