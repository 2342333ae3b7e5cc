//! Dictionaries of packed topics that were read, for producers and readers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use millstream_core::name::TopicName;
use millstream_core::packing::DictionaryName;
use millstream_packing::Dictionary;

/// Number of dictionaries that are kept of a topic. One that is needed beyond them is read again.
const KEPT: usize = 8;

/// Dictionaries by topic.
#[derive(Default)]
pub(crate) struct Dictionaries(RwLock<HashMap<TopicName, KnownDictionaries>>);

/// The dictionaries of a topic.
#[derive(Default)]
struct KnownDictionaries {
    used: Used,
    /// Whether producers have asked for it since it was set.
    is_asked_for: AtomicBool,
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
    /// The newest dictionary of the topic, with its size in bytes, if it is none that can be used: it is not read again.
    pub(crate) unusable: Option<(DictionaryName, usize)>,
}

/// What is known of a topic.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) used: Used,
    /// Dictionaries that its packs may need.
    pub(crate) known: Vec<Arc<Dictionary>>,
    /// Whether these are those of a topic that had its name before.
    pub(crate) is_earlier: bool,
}

impl Dictionaries {
    /// Returns the dictionary that producers of a topic use.
    pub(crate) fn newest(&self, topic: &TopicName) -> Option<Arc<Dictionary>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let KnownDictionaries { used, is_asked_for, .. } = known.get(topic)?;
        is_asked_for.store(used.dictionary.is_some(), Ordering::Relaxed);
        used.dictionary.clone()
    }

    /// Returns what is known of a topic of this generation.
    pub(crate) fn known(&self, topic: &TopicName, generation: u64) -> Found {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(KnownDictionaries { used, is_asked_for, all }) = known.get(topic) else {
            return Found::default();
        };
        if generation <= used.generation {
            // A smaller one is that of a topic whose settings were lost.
            return Found { used: used.clone(), known: all.iter().cloned().collect(), is_earlier: false };
        }
        // Another topic, which has nothing of the one before but packs that were sent here until now.
        let known = used.dictionary.iter().filter(|_| is_asked_for.load(Ordering::Relaxed)).cloned();
        Found { used: Used::default(), known: known.collect(), is_earlier: true }
    }

    /// Sets what producers of a topic use. What was read for a topic that had its name before is dropped.
    pub(crate) fn set_used(&self, topic: &TopicName, used: Used) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(topic.clone()).or_default();
        if used.generation > known.used.generation {
            known.all.clear();
            known.all.extend(used.dictionary.clone());
        }
        (known.used, known.is_asked_for) = (used, AtomicBool::new(false));
    }

    /// Returns the dictionary of this name, if it is known.
    pub(crate) fn get(&self, topic: &TopicName, name: DictionaryName) -> Option<Arc<Dictionary>> {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let all = &mut known.get_mut(topic)?.all;
        let at = all.iter().position(|it| it.name() == name)?;
        let found = all.remove(at)?;
        all.push_back(found.clone());
        Some(found)
    }

    /// Keeps a dictionary that was read.
    pub(crate) fn add(&self, topic: &TopicName, dictionary: Arc<Dictionary>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let KnownDictionaries { used, all, .. } = known.entry(topic.clone()).or_default();
        all.retain(|it| it.name() != dictionary.name());
        if all.len() == KEPT {
            // Not the one that producers use: it is to be put back if the server loses it.
            let used = used.dictionary.as_ref().map(|it| it.name());
            let at = usize::from(all.front().map(|it| it.name()) == used);
            all.remove(at);
        }
        all.push_back(dictionary);
    }

    /// Drops those of a topic that uses none.
    pub(crate) fn forget(&self, topic: &TopicName) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }
}
