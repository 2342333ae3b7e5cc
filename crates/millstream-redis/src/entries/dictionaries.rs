//! Reads dictionaries of packed topics: those that packs name, once each, and the newest, which producers use.

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::name::TopicName;
use millstream_core::packing::{MAX_DICTIONARY, PackCompression};
use millstream_core::topic::TopicSpec;
use millstream_core::wire::Fields;
use millstream_packing::{Dictionary, DictionaryName, dictionary_of};
use redis::Pipeline;

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;

/// What is stored under a version.
enum Stored {
    Nothing,
    /// More bytes than a dictionary may have. They were not read.
    TooLarge(usize),
    Bytes(Bytes),
}

impl Inner {
    /// Keeps what producers need of a topic that was read or created: its packing, and its newest dictionary. One that cannot be read is
    /// left out: producers then pack without a dictionary, and try again when they read the topic again.
    pub(crate) async fn learn(&self, topic: &TopicSpec) {
        self.packings.learn(topic);
        let with = PackCompression::ZstdDictionary;
        if topic.packing.is_none_or(|packing| packing.compressed() != with) {
            return;
        }
        let dictionaries = self.packings.dictionaries();
        if dictionaries.is_current(topic) {
            return;
        }
        let newest = match topic.dictionary {
            None => None,
            // It is read also if one of that version is known: it may be that of an earlier topic of the name.
            Some(version) => match self.read_dictionary(&topic.name, version).await {
                Ok(Some(dictionary)) => Some(dictionary),
                Ok(None) => {
                    tracing::warn!(topic = %topic.name, version, "the newest dictionary cannot be used");
                    None
                }
                Err(error) => {
                    tracing::warn!(topic = %topic.name, version, "the newest dictionary cannot be read: {error}");
                    None
                }
            },
        };
        dictionaries.set_newest(topic, newest);
    }

    /// Returns the dictionaries that are needed for these entries. Those that are not known are read; one that is not there, or no
    /// dictionary, is missing in the result.
    pub(crate) async fn dictionaries_for<'a>(
        &self,
        topic: &TopicName,
        entries: impl Iterator<Item = &'a Fields>,
    ) -> Result<Vec<Arc<Dictionary>>> {
        let mut names: Vec<DictionaryName> = Vec::new();
        for name in entries.filter_map(|entry| dictionary_of(entry)) {
            // A page has packs of one dictionary, or few.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut dictionaries = Vec::with_capacity(names.len());
        for name in names {
            let known = self.packings.dictionaries().get(topic, name);
            dictionaries.extend(match known {
                Some(known) => Some(known),
                None => self.read_dictionary(topic, name.version).await?.filter(|read| read.name() == name),
            });
        }
        Ok(dictionaries)
    }

    /// Reads a dictionary, and keeps it. `None` if there is none, or none that can be used.
    async fn read_dictionary(&self, topic: &TopicName, version: u32) -> Result<Option<Arc<Dictionary>>> {
        let bytes = match self.stored(topic, version).await? {
            Stored::Nothing => return Ok(None),
            Stored::TooLarge(size) => {
                tracing::warn!(%topic, version, size, "a dictionary is too large");
                return Ok(None);
            }
            Stored::Bytes(bytes) => bytes,
        };
        match Dictionary::new(version, &bytes) {
            Ok(dictionary) => {
                let dictionary = Arc::new(dictionary);
                self.packings.dictionaries().add(topic, dictionary.clone());
                Ok(Some(dictionary))
            }
            Err(error) => {
                tracing::warn!(%topic, version, "a dictionary cannot be used: {error}");
                Ok(None)
            }
        }
    }

    /// Returns the bytes of a dictionary.
    pub(crate) async fn stored_dictionary(&self, topic: &TopicName, version: u32) -> Result<Option<Bytes>> {
        match self.stored(topic, version).await? {
            Stored::Nothing => Ok(None),
            Stored::Bytes(bytes) => Ok(Some(bytes)),
            Stored::TooLarge(size) => {
                let why = format!(
                    "topic {topic}: the stored dictionary {version} has {size} bytes; at most {MAX_DICTIONARY} are allowed"
                );
                Err(Error::new(ErrorKind::Protocol, why).at(topic))
            }
        }
    }

    async fn stored(&self, topic: &TopicName, version: u32) -> Result<Stored> {
        let key = self.keys.topic_dictionaries(topic);
        let during = |error: Error| error.during(format_args!("read {key}")).at(topic);
        let ask = async |command: &str| {
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd(command).arg(key.as_str()).arg(version);
            Ok(self.pool.send(&pipe).await?.pop().unwrap_or_default())
        };
        let size = reply::count(ask("HSTRLEN").await?).map_err(during)?;
        if size > MAX_DICTIONARY {
            return Ok(Stored::TooLarge(size));
        }
        if size == 0 {
            return Ok(Stored::Nothing);
        }
        let bytes = reply::maybe_bytes(ask("HGET").await?).map_err(during)?;
        Ok(bytes.map_or(Stored::Nothing, Stored::Bytes))
    }
}
