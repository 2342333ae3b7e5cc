//! The catalog role: dictionaries of packed topics.

use bytes::Bytes;
use millstream_core::packing::MAX_DICTIONARY;
use millstream_core::{Capability, ErrorKind, PackCompression, Packing, TopicName, TopicSpec};

use super::suite;
use crate::case::{Verdict, Violation, equal, refused};
use crate::harness::Harness;

suite!("catalog":
    a_dictionary_is_kept_under_its_version needs [Dictionaries],
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

async fn a_dictionary_is_kept_under_its_version(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let mut expected = topic(&h).await?;
    let name = expected.name.clone();
    equal!(catalog.dictionary(&name, 1).await?, None, "a dictionary before the first one");
    let large: Vec<u8> = (0..MAX_DICTIONARY).map(|at| at as u8).collect();
    let dictionaries = [Bytes::from_static(b"one"), Bytes::from(large), Bytes::from_static(b"one")];
    for (nth, dictionary) in (1..).zip(&dictionaries) {
        equal!(catalog.store_dictionary(&name, dictionary.clone()).await?, nth, "the version");
        expected.dictionary = Some(nth);
        equal!(catalog.topic(&name).await?, expected, "the topic with a dictionary");
    }
    if h.backend.supports(Capability::Expand) {
        expected.partitions = 2;
        expected.earlier = vec![1];
        equal!(catalog.expand(&name, 2).await?, expected, "the topic as grown");
    }
    equal!(catalog.create_topic(&expected).await?, expected, "the topic as created again");
    for (nth, dictionary) in (1..).zip(&dictionaries) {
        equal!(catalog.dictionary(&name, nth).await?.as_ref(), Some(dictionary), "what was stored");
    }
    for other in [0, 4, u32::MAX] {
        equal!(catalog.dictionary(&name, other).await?, None, "a version that was not stored");
    }
    Ok(())
}

async fn a_dictionary_is_of_one_topic_and_goes_with_it(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (mine, other) = (topic(&h).await?, topic(&h).await?);
    catalog.store_dictionary(&mine.name, Bytes::from_static(b"mine")).await?;
    equal!(catalog.dictionary(&other.name, 1).await?, None, "a dictionary of another topic");
    equal!(catalog.store_dictionary(&other.name, Bytes::from_static(b"other")).await?, 1, "the version");
    catalog.delete_topic(&mine.name).await?;
    equal!(catalog.dictionary(&mine.name, 1).await?, None, "a dictionary of a deleted topic");
    let again = catalog.create_topic(&mine).await?;
    equal!(again.dictionary, None, "the dictionary of a new topic");
    equal!(catalog.dictionary(&mine.name, 1).await?, None, "a dictionary of a new topic");
    let kept = Some(Bytes::from_static(b"other"));
    equal!(catalog.dictionary(&other.name, 1).await?, kept, "the dictionary of the other one");
    Ok(())
}

async fn what_cannot_be_a_dictionary_is_refused(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = topic(&h).await?;
    for bytes in [Bytes::new(), Bytes::from(vec![0; MAX_DICTIONARY + 1])] {
        let stored = catalog.store_dictionary(&topic.name, bytes).await;
        refused(stored, ErrorKind::InvalidConfig, "a dictionary of a size that is not allowed")?;
    }
    equal!(catalog.topic(&topic.name).await?, topic, "the topic after dictionaries that were refused");
    let plain = TopicSpec::new(TopicName::new(h.unique("topic"))?, 1)?;
    catalog.create_topic(&plain).await?;
    let stored = catalog.store_dictionary(&plain.name, Bytes::from_static(b"d")).await;
    refused(stored, ErrorKind::InvalidConfig, "a dictionary for a topic that uses none")?;
    let nowhere = TopicName::new(h.unique("topic"))?;
    let stored = catalog.store_dictionary(&nowhere, Bytes::from_static(b"d")).await;
    refused(stored, ErrorKind::NotFound, "a dictionary for an unknown topic")?;
    equal!(catalog.dictionary(&nowhere, 1).await?, None, "a dictionary of an unknown topic");
    Ok(())
}
