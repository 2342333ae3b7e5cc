//! The catalog role: dictionaries of packed topics.

use bytes::Bytes;
use millstream_core::packing::{DictionaryName, MAX_DICTIONARY};
use millstream_core::{Capability, ErrorKind, PackCompression, Packing, TopicName, TopicSpec};

use super::suite;
use crate::case::{Verdict, Violation, equal, refused};
use crate::harness::Harness;

suite!("catalog":
    a_dictionary_is_kept_under_its_name needs [Dictionaries],
    a_dictionary_is_of_one_topic_and_goes_with_it needs [Dictionaries],
    what_cannot_be_a_dictionary_is_refused needs [Dictionaries],
);

/// Creates a topic whose packs use a dictionary.
async fn topic(h: &Harness) -> Result<TopicSpec, Violation> {
    let packing = Packing::new().compression(PackCompression::ZstdDictionary);
    let spec = TopicSpec::new(TopicName::new(h.unique("topic"))?, 1)?.with_packing(packing);
    let stored = h.backend.catalog().create_topic(&spec).await?;
    equal!(stored, spec, "the topic as created");
    Ok(stored)
}

/// Returns what begins as a dictionary of zstd with this id.
pub(in super::super) fn dictionary(id: u32, contents: &[u8]) -> Bytes {
    [&[0x37, 0xA4, 0x30, 0xEC], &id.to_le_bytes(), contents].concat().into()
}

const fn name(version: u32, id: u32) -> DictionaryName {
    DictionaryName { version, id }
}

async fn a_dictionary_is_kept_under_its_name(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let mut expected = topic(&h).await?;
    let topic = expected.name.clone();
    equal!(catalog.dictionary(&topic, name(1, 7)).await?, None, "a dictionary before the first one");
    let large: Vec<u8> = (8..MAX_DICTIONARY).map(|at| at as u8).collect();
    // The third is the first one again: it gets a version of its own.
    let dictionaries =
        [(7, dictionary(7, b"one")), (u32::MAX, dictionary(u32::MAX, &large)), (7, dictionary(7, b"one"))];
    let names: Vec<DictionaryName> = (1..).zip(&dictionaries).map(|(nth, (id, _))| name(nth, *id)).collect();
    for (named, (_, dictionary)) in names.iter().zip(&dictionaries) {
        equal!(catalog.store_dictionary(&expected, dictionary.clone()).await?, *named, "the name");
        expected.dictionary = Some(*named);
        equal!(catalog.topic(&topic).await?, expected, "the topic with a dictionary");
    }
    if h.backend.supports(Capability::Expand) {
        expected.partitions = 2;
        expected.earlier = vec![1];
        equal!(catalog.expand(&topic, 2).await?, expected, "the topic as grown");
    }
    equal!(catalog.create_topic(&expected).await?, expected, "the topic as created again");
    for (named, (_, dictionary)) in names.iter().zip(&dictionaries) {
        equal!(catalog.dictionary(&topic, *named).await?.as_ref(), Some(dictionary), "what was stored");
    }
    // Packs of a dictionary that was lost name its version and another id: they must not get the one that is there now.
    for other in [name(0, 7), name(4, 7), name(u32::MAX, 7), name(1, 8), name(2, 7), name(3, 8)] {
        equal!(catalog.dictionary(&topic, other).await?, None, "a dictionary that was not stored");
    }
    Ok(())
}

async fn a_dictionary_is_of_one_topic_and_goes_with_it(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (mine, other) = (topic(&h).await?, topic(&h).await?);
    let kept = catalog.store_dictionary(&mine, dictionary(1, b"mine")).await?;
    equal!(catalog.dictionary(&other.name, kept).await?, None, "a dictionary of another topic");
    equal!(catalog.store_dictionary(&other, dictionary(2, b"other")).await?, name(1, 2), "the name");
    catalog.delete_topic(&mine.name).await?;
    equal!(catalog.dictionary(&mine.name, kept).await?, None, "a dictionary of a deleted topic");
    let again = catalog.create_topic(&mine).await?;
    equal!(again.dictionary, None, "the dictionary of a new topic");
    equal!(catalog.dictionary(&mine.name, kept).await?, None, "a dictionary of a new topic");
    // One that was trained on messages of the deleted topic.
    let late = catalog.store_dictionary(&mine, dictionary(3, b"late")).await;
    refused(late, ErrorKind::NotFound, "a dictionary for the topic before")?;
    equal!(catalog.topic(&mine.name).await?, again, "the new topic");
    equal!(
        catalog.store_dictionary(&again, dictionary(4, b"new")).await?,
        name(1, 4),
        "the first name again"
    );
    let stored = Some(dictionary(2, b"other"));
    equal!(catalog.dictionary(&other.name, name(1, 2)).await?, stored, "the dictionary of the other one");
    Ok(())
}

async fn what_cannot_be_a_dictionary_is_refused(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = topic(&h).await?;
    let without_id = dictionary(0, b"d");
    let large = dictionary(1, &[0; MAX_DICTIONARY]);
    for bytes in [Bytes::new(), Bytes::from_static(b"a text"), without_id, large] {
        let stored = catalog.store_dictionary(&topic, bytes).await;
        refused(stored, ErrorKind::InvalidConfig, "what is no dictionary")?;
    }
    equal!(catalog.topic(&topic.name).await?, topic, "the topic after dictionaries that were refused");
    let plain = TopicSpec::new(TopicName::new(h.unique("topic"))?, 1)?;
    let plain = catalog.create_topic(&plain).await?;
    let stored = catalog.store_dictionary(&plain, dictionary(1, b"d")).await;
    refused(stored, ErrorKind::InvalidConfig, "a dictionary for a topic that uses none")?;
    let mut nowhere = topic;
    nowhere.name = TopicName::new(h.unique("topic"))?;
    let stored = catalog.store_dictionary(&nowhere, dictionary(1, b"d")).await;
    refused(stored, ErrorKind::NotFound, "a dictionary for an unknown topic")?;
    equal!(catalog.dictionary(&nowhere.name, name(1, 1)).await?, None, "a dictionary of an unknown topic");
    Ok(())
}
