//! Dictionaries of packed topics that were read, for producers and readers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use millstream_core::name::TopicName;
use millstream_core::packing::DictionaryName;
use millstream_packing::Dictionary;

/// Number of dictionaries that are kept of a topic, beside the one that producers use. One that is needed beyond them is read again.
const KEPT: usize = 8;

/// Dictionaries by topic.
#[derive(Default)]
pub(crate) struct Dictionaries(RwLock<HashMap<TopicName, Known>>);

/// The dictionaries of a topic.
#[derive(Default)]
struct Known {
    used: Used,
    /// Those that were read, the one that was needed last behind the others.
    all: VecDeque<Arc<Dictionary>>,
}

/// What producers of a topic use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    /// Generation of the topic that it was read for.
    pub(crate) generation: u64,
    /// `None` to pack without one.
    pub(crate) dictionary: Option<Arc<Dictionary>>,
    /// The newest dictionary of the topic, if it is none that can ever be used: it is not read again.
    pub(crate) unusable: Option<DictionaryName>,
}

impl Dictionaries {
    /// Returns the dictionary that producers of a topic use.
    pub(crate) fn newest(&self, topic: &TopicName) -> Option<Arc<Dictionary>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(topic)?.used.dictionary.clone()
    }

    /// Returns what producers of a topic use.
    pub(crate) fn used(&self, topic: &TopicName) -> Used {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(topic).map(|known| known.used.clone()).unwrap_or_default()
    }

    /// Sets what producers of a topic use.
    pub(crate) fn set_used(&self, topic: &TopicName, used: Used) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(topic.clone()).or_default().used = used;
    }

    /// Returns the dictionary of this name, if it is known.
    pub(crate) fn get(&self, topic: &TopicName, name: DictionaryName) -> Option<Arc<Dictionary>> {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Known { used, all } = known.get_mut(topic)?;
        let Some(at) = all.iter().position(|it| it.name() == name) else {
            return used.dictionary.clone().filter(|it| it.name() == name);
        };
        let found = all.remove(at)?;
        all.push_back(found.clone());
        Some(found)
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
