//! Dictionaries of packed topics that were read, for producers and readers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use millstream_core::name::TopicName;
use millstream_core::topic::TopicSpec;
use millstream_packing::{Dictionary, DictionaryName};

/// Number of dictionaries that are kept of a topic; one that is needed beyond them is read again.
const KEPT: usize = 8;

/// Dictionaries by topic.
#[derive(Default)]
pub(crate) struct Dictionaries(RwLock<HashMap<TopicName, Known>>);

/// The dictionaries of a topic.
#[derive(Default)]
struct Known {
    /// The one that producers use, with the generation of the topic that it was read for.
    newest: Option<(u64, Arc<Dictionary>)>,
    /// Those that were read, the last one last.
    all: VecDeque<Arc<Dictionary>>,
}

impl Dictionaries {
    /// Returns the dictionary that producers of a topic use.
    pub(crate) fn newest(&self, topic: &TopicName) -> Option<Arc<Dictionary>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(topic)?.newest.as_ref().map(|(_, dictionary)| dictionary.clone())
    }

    /// Whether producers use the newest dictionary of a topic, or none if it has none.
    pub(crate) fn is_current(&self, topic: &TopicSpec) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let newest = known.get(&topic.name).and_then(|known| known.newest.as_ref());
        newest.map(|(generation, it)| (*generation, it.name().version))
            == topic.dictionary.map(|version| (topic.generation, version))
    }

    /// Sets the dictionary that producers use.
    pub(crate) fn set_newest(&self, topic: &TopicSpec, dictionary: Option<Arc<Dictionary>>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(topic.name.clone()).or_default().newest = dictionary.map(|it| (topic.generation, it));
    }

    /// Returns the dictionary of this name, if it is known.
    pub(crate) fn get(&self, topic: &TopicName, name: DictionaryName) -> Option<Arc<Dictionary>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(topic)?.all.iter().find(|it| it.name() == name).cloned()
    }

    /// Keeps a dictionary that was read.
    pub(crate) fn add(&self, topic: &TopicName, dictionary: Arc<Dictionary>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let all = &mut known.entry(topic.clone()).or_default().all;
        all.retain(|it| it.name() != dictionary.name());
        if all.len() == KEPT {
            all.pop_front();
        }
        all.push_back(dictionary);
    }

    /// Drops those of a topic that uses none.
    pub(crate) fn forget(&self, topic: &TopicName) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }
}
