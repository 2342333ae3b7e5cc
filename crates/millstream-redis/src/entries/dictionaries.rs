//! Reads dictionaries of packed topics: those that packs name, once each, and the newest, which producers use. Puts back those that the
//! server has lost.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::name::TopicName;
use millstream_core::packing::{DictionaryName, MAX_DICTIONARY, PackCompression};
use millstream_core::sorted::{sort, sort_by};
use millstream_core::topic::TopicSpec;
use millstream_packing::Dictionary;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::appends::dictionaries::{Found, Used};
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script;

/// What is stored under a name.
enum Stored {
    Nothing,
    /// More bytes than a dictionary may have. They were not read.
    TooLarge(usize),
    Bytes(Bytes),
}

/// How a dictionary is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storing {
    /// Under the next version.
    Next,
    /// Under its own, since it was lost; as the newest, if it is.
    Lost,
    /// Under its own, for a log that may have packs of a producer that has used it for the topic before.
    Earlier,
}

impl Storing {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Next => "next",
            Self::Lost => "lost",
            Self::Earlier => "earlier",
        }
    }
}

/// What a dictionary that was asked for is.
enum ReadDictionaries {
    Missing,
    /// Not a dictionary of that name: something else, of this size in bytes.
    Unusable(usize),
    Usable(Arc<Dictionary>),
}

impl Inner {
    /// Keeps what producers need of a topic that was read or created: its packing, and its newest dictionary.
    ///
    /// A dictionary that cannot be read is left out: producers then pack without one, and try again when they read the topic again. Those
    /// that this process has and that the server has lost are put back, or nothing that was packed with them could be read any more.
    ///
    /// Boxed: usually there is nothing to read.
    pub(crate) fn learn<'a>(&'a self, topic: &'a TopicSpec) -> BoxFuture<'a, ()> {
        Box::pin(self.learned(topic))
    }

    async fn learned(&self, topic: &TopicSpec) {
        self.packings.learn(topic);
        let with = PackCompression::ZstdDictionary;
        let is_used = topic.packing.is_some_and(|packing| packing.compressed() == with);
        let dictionaries = self.packings.dictionaries();
        let Found { mut used, known, is_earlier } = dictionaries.known(&topic.name, topic.generation);
        if !is_used && known.is_empty() {
            return;
        }
        used.generation = topic.generation;
        // A topic whose packing was changed has packs of before.
        let way = if is_earlier { Storing::Earlier } else { Storing::Lost };
        if let Err(error) = self.put_back(topic, &known, way).await {
            // They stay known, and are looked for again. Until then producers may have to do without.
            tracing::warn!(topic = %topic.name, "it is not known whether dictionaries were lost: {error}");
            if !error.is_transient() {
                used.dictionary = None;
            }
        } else if is_used
            && let Err(error) = self.choose(topic, &mut used, if is_earlier { &[] } else { &known }).await
        {
            tracing::warn!(topic = %topic.name, "the newest dictionary cannot be read: {error}");
        }
        dictionaries.set_used(&topic.name, used);
    }

    /// Puts back those of these dictionaries that the server has lost, or of which it has something else.
    async fn put_back(&self, topic: &TopicSpec, known: &[Arc<Dictionary>], way: Storing) -> Result<()> {
        if known.is_empty() {
            return Ok(());
        }
        let names: Vec<DictionaryName> = known.iter().map(|it| it.name()).collect();
        let sizes = self.sizes(&topic.name, &names).await?;
        // In the order of their versions: the last one becomes the newest again, if that was lost too.
        let mut lost: Vec<_> =
            known.iter().zip(sizes).filter(|(it, size)| it.as_bytes().len() != *size).collect();
        sort_by(&mut lost, |(one, _), (other, _)| one.name().cmp(&other.name()));
        for (dictionary, size) in lost {
            let name = dictionary.name();
            self.store_dictionary(topic, dictionary.as_bytes(), way, name.version).await?;
            tracing::warn!(topic = %topic.name, dictionary = %name, size, "a dictionary was lost or damaged, and is put back");
        }
        // Its name in the settings may be lost without it.
        let newest = known.iter().max_by_key(|it| it.name());
        let is_newest = |name: DictionaryName| topic.dictionary.is_none_or(|it| it.version < name.version);
        if let Some(dictionary) = newest.filter(|it| way == Storing::Lost && is_newest(it.name())) {
            self.store_dictionary(topic, dictionary.as_bytes(), way, dictionary.name().version).await?;
        }
        Ok(())
    }

    /// Finds what producers are to use: the newest dictionary, if it can be read.
    async fn choose(&self, topic: &TopicSpec, used: &mut Used, known: &[Arc<Dictionary>]) -> Result<()> {
        // One that was put back can be newer than the settings that were read.
        let newest = known.iter().map(|it| it.name()).chain(topic.dictionary).max_by_key(|name| name.version);
        // Of two with one version that stands in the settings.
        let newest =
            topic.dictionary.filter(|it| newest.is_none_or(|newest| newest.version == it.version)).or(newest);
        let Some(name) = newest else {
            used.dictionary = None;
            return Ok(());
        };
        if let Some(dictionary) = known.iter().find(|it| it.name() == name) {
            (used.dictionary, used.unusable) = (Some(dictionary.clone()), None);
            return Ok(());
        }
        if let Some((unusable, size)) = used.unusable
            && unusable == name
            && self.sizes(&topic.name, &[name]).await? == [size]
        {
            return Ok(());
        }
        // Until it is read, the one before is as good as it was.
        match self.read_dictionaries(&topic.name, &[name]).await?.pop().unwrap_or(ReadDictionaries::Missing) {
            ReadDictionaries::Usable(dictionary) => {
                (used.dictionary, used.unusable) = (Some(dictionary), None);
            }
            ReadDictionaries::Unusable(size) => (used.dictionary, used.unusable) = (None, Some((name, size))),
            ReadDictionaries::Missing => {
                tracing::warn!(topic = %topic.name, dictionary = %name, "the newest dictionary is not there");
                used.dictionary = None;
            }
        }
        Ok(())
    }

    /// Stores a dictionary for a topic of this generation; `version` is the one that it has had, if it was there before.
    pub(crate) async fn store_dictionary(
        &self,
        topic: &TopicSpec,
        dictionary: &[u8],
        way: Storing,
        version: u32,
    ) -> Result<DictionaryName> {
        let (meta, dictionaries) =
            (self.keys.topic_meta(&topic.name), self.keys.topic_dictionaries(&topic.name));
        let during = |error: Error| {
            error.during(format_args!("store a dictionary of topic {}", topic.name)).at(&topic.name)
        };
        let id = DictionaryName::of(1, dictionary).map_or(0, |name| name.id);
        let call = self.scripts.store_dictionary.call([&meta, &dictionaries]).arg(dictionary).arg(id);
        let call = call.arg(topic.generation).arg(way.as_str()).arg(version);
        let version = script::run_one(&self.pool, call).await.and_then(reply::count).map_err(during)?;
        let name = u32::try_from(version).ok().and_then(|version| DictionaryName::of(version, dictionary));
        name.ok_or_else(|| during(unexpected("no version")))
    }

    /// Returns dictionaries that packs need. Those that are not known are read; one that is not there, or no
    /// dictionary, is missing in the result.
    pub(crate) async fn dictionaries_for(
        &self,
        topic: &TopicName,
        mut names: Vec<DictionaryName>,
    ) -> Result<Vec<Arc<Dictionary>>> {
        sort(&mut names);
        names.dedup();
        let (mut dictionaries, mut unknown) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match self.packings.dictionaries().get(topic, name) {
                Some(known) => dictionaries.push(known),
                None => unknown.push(name),
            }
        }
        if !unknown.is_empty() {
            let read = self.read_dictionaries(topic, &unknown).await?;
            dictionaries.extend(read.into_iter().filter_map(|read| match read {
                ReadDictionaries::Usable(dictionary) => Some(dictionary),
                ReadDictionaries::Missing | ReadDictionaries::Unusable(_) => None,
            }));
        }
        Ok(dictionaries)
    }

    /// Reads dictionaries, and keeps them. Boxed: it is rare, and its state would be in that of every reader.
    fn read_dictionaries<'a>(
        &'a self,
        topic: &'a TopicName,
        names: &'a [DictionaryName],
    ) -> BoxFuture<'a, Result<Vec<ReadDictionaries>>> {
        Box::pin(async { Ok(self.kept(topic, names, self.stored(topic, names).await?)) })
    }

    fn kept(
        &self,
        topic: &TopicName,
        names: &[DictionaryName],
        stored: Vec<Stored>,
    ) -> Vec<ReadDictionaries> {
        let read = names.iter().zip(stored).map(|(name, stored)| {
            let bytes = match stored {
                Stored::Nothing => return ReadDictionaries::Missing,
                Stored::TooLarge(size) => {
                    tracing::warn!(%topic, dictionary = %name, size, "a dictionary is too large");
                    return ReadDictionaries::Unusable(size);
                }
                Stored::Bytes(bytes) => bytes,
            };
            match Dictionary::new(name.version, &bytes) {
                Ok(dictionary) if dictionary.name() == *name => {
                    let dictionary = Arc::new(dictionary);
                    self.packings.dictionaries().add(topic, dictionary.clone());
                    ReadDictionaries::Usable(dictionary)
                }
                Ok(dictionary) => {
                    let is = dictionary.name();
                    tracing::warn!(%topic, dictionary = %name, %is, "another dictionary is stored under this name");
                    ReadDictionaries::Unusable(bytes.len())
                }
                Err(error) => {
                    tracing::warn!(%topic, dictionary = %name, "a dictionary cannot be used: {error}");
                    ReadDictionaries::Unusable(bytes.len())
                }
            }
        });
        read.collect()
    }

    /// Returns the bytes of a dictionary.
    pub(crate) async fn stored_dictionary(
        &self,
        topic: &TopicName,
        name: DictionaryName,
    ) -> Result<Option<Bytes>> {
        match self.stored(topic, &[name]).await?.pop() {
            None | Some(Stored::Nothing) => Ok(None),
            Some(Stored::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Stored::TooLarge(size)) => {
                let why = format!(
                    "topic {topic}: the stored dictionary {name} has {size} bytes; at most {MAX_DICTIONARY} are allowed"
                );
                Err(Error::new(ErrorKind::Protocol, why).at(topic))
            }
        }
    }

    /// Reads what is stored under these names, in two requests: a dictionary is read if it is not too large.
    async fn stored(&self, topic: &TopicName, names: &[DictionaryName]) -> Result<Vec<Stored>> {
        let sizes = self.sizes(topic, names).await?;
        let small = |size: usize| (1..=MAX_DICTIONARY).contains(&size);
        let wanted: Vec<_> =
            names.iter().zip(&sizes).filter(|(_, size)| small(**size)).map(|(name, _)| *name).collect();
        let mut read = if wanted.is_empty() {
            Vec::new()
        } else {
            self.fields(topic, "HGET", &wanted, reply::maybe_bytes).await?
        }
        .into_iter();
        let stored = sizes.into_iter().map(|size| match size {
            0 => Stored::Nothing,
            size if small(size) => read.next().flatten().map_or(Stored::Nothing, Stored::Bytes),
            size => Stored::TooLarge(size),
        });
        Ok(stored.collect())
    }

    /// Returns the sizes of dictionaries in bytes, 0 for one that is not there.
    async fn sizes(&self, topic: &TopicName, names: &[DictionaryName]) -> Result<Vec<usize>> {
        self.fields(topic, "HSTRLEN", names, reply::count).await
    }

    /// Reads something of the fields of these names in one request.
    async fn fields<T>(
        &self,
        topic: &TopicName,
        command: &str,
        names: &[DictionaryName],
        read: impl Fn(Value) -> Result<T>,
    ) -> Result<Vec<T>> {
        let key = self.keys.topic_dictionaries(topic);
        let mut pipe = Pipeline::with_capacity(names.len());
        for name in names {
            pipe.cmd(command).arg(key.as_str()).arg(name.to_string());
        }
        let during = |error: Error| error.during(format_args!("read {key}")).at(topic);
        let answers = self.pool.send(&pipe).await.map_err(during)?;
        answers.into_iter().map(|answer| read(answer).map_err(during)).collect()
    }
}
