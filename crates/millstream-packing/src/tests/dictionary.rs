//! Dictionaries: packs name the one that they need, are read with that alone, and within bounds.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use millstream_core::packing::DictionaryName;
use millstream_core::packing::{MAX_BYTES, MAX_DICTIONARY, PackCompression};
use millstream_core::wire::{FORM, Fields, PACK, PACK_MESSAGES};
use proptest::prelude::*;

use crate::{
    BadDictionary, Dictionary, NotTrained, Unpacked, Unreadable, dictionary_of, pack_with, train, unpack,
    unpack_with,
};

const WITH: PackCompression = PackCompression::ZstdDictionary;

fn message(fields: &[(&str, &[u8])]) -> Fields {
    let field = |(name, value): &(&str, &[u8])| {
        (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value))
    };
    fields.iter().map(field).collect()
}

fn entry(head: &str, data: &[u8]) -> Fields {
    message(&[(FORM, b"2"), (PACK, head.as_bytes()), (PACK_MESSAGES, data)])
}

fn event(number: u64) -> Fields {
    let payload = format!(
        "{{\"flight\":\"MS{}\",\"from\":\"HAM\",\"to\":\"VIE\",\"minutes\":{},\"status\":\"departed\",\"gate\":\"B{}\"}}",
        number.wrapping_mul(7_919) % 10_000,
        number % 180,
        number % 40
    );
    message(&[("payload", payload.as_bytes()), ("key", format!("MS{}", number % 500).as_bytes())])
}

fn events(from: u64, count: u64) -> Vec<Fields> {
    (from..from + count).map(event).collect()
}

/// A dictionary of such events.
fn dictionary(version: u32) -> Arc<Dictionary> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| train(events(0, 2_000).iter(), 4 << 10).expect("trained"));
    Arc::new(Dictionary::new(version, bytes).expect("a dictionary"))
}

fn read(entry: &Fields, dictionary: &Arc<Dictionary>) -> Result<Vec<Fields>, Unreadable> {
    match unpack_with(entry, |name| Some(dictionary.clone()).filter(|it| it.name() == name))? {
        Unpacked::Messages(messages) => Ok(messages),
        Unpacked::One => panic!("no pack"),
    }
}

fn data_of(entry: &Fields) -> &Bytes {
    &entry[2].1
}

#[test]
fn a_pack_with_a_dictionary_names_it_and_reads_back() {
    let dictionary = dictionary(3);
    for count in [1, 2, 10, 1_000] {
        let sent = events(9_000, count);
        let packed = pack_with(sent.iter(), WITH, Some(&*dictionary)).expect("packed");
        assert!(packed[1].1.starts_with(format!("{count} zstd:3 ").as_bytes()), "{:?}", packed[1]);
        assert_eq!(dictionary_of(&packed), Some(dictionary.name()));
        assert_eq!(read(&packed, &dictionary).expect("a pack"), sent);
        let plain = pack_with(sent.iter(), WITH, None).expect("packed");
        assert!(plain[1].1.starts_with(format!("{count} zstd ").as_bytes()), "without one, plain zstd");
        assert_eq!(dictionary_of(&plain), None);
        assert!(data_of(&packed).len() < data_of(&plain).len(), "{count} messages");
        if count == 1 {
            let plain: usize = sent[0].iter().map(|(_, value)| value.len()).sum();
            assert!(data_of(&packed).len() * 2 < plain, "{} of {plain} bytes", data_of(&packed).len());
        }
    }
    let other = pack_with(events(0, 3).iter(), PackCompression::Zstd, Some(&*dictionary)).expect("packed");
    assert_eq!(dictionary_of(&other), None, "it is for its own compression alone");
}

#[test]
fn without_its_dictionary_a_pack_is_not_read() {
    let (dictionary, other) = (dictionary(3), dictionary(4));
    let packed = pack_with(events(0, 5).iter(), WITH, Some(&*dictionary)).expect("packed");
    for result in [unpack(&packed), unpack_with(&packed, |_| Some(other.clone()))] {
        match result {
            Err(Unreadable::NoDictionary(name)) => assert_eq!(name, dictionary.name()),
            other => panic!("{other:?}"),
        }
    }
    // Another one under the same version: that of a topic which had the name before.
    let trained = train(events(50_000, 1_000).iter(), 2 << 10).expect("trained");
    let same = Arc::new(Dictionary::new(3, &trained).expect("a dictionary"));
    assert_ne!(same.name(), dictionary.name());
    let result = unpack_with(&packed, |_| Some(same.clone()));
    assert!(matches!(result, Err(Unreadable::NoDictionary(_))), "{result:?}");
}

#[test]
fn damage_is_found() {
    let dictionary = dictionary(3);
    let packed = pack_with(events(0, 5).iter(), WITH, Some(&*dictionary)).expect("packed");
    let data = data_of(&packed);
    let size = String::from_utf8_lossy(&packed[1].1).rsplit(' ').next().expect("a size").to_owned();
    for word in ["zstd:", "zstd:0", "zstd:+3", "zstd:3:3", "zstd:4294967296", "zstd:-1", "zstd:x"] {
        let result = read(&entry(&format!("5 {word} {size}"), data), &dictionary);
        assert!(matches!(result, Err(Unreadable::Damaged(_))), "{word}: {result:?}");
    }
    for word in ["lz4:3", "none:1", "zstd-dictionary", "zstd-dictionary:3", "brotli:3"] {
        let result = read(&entry(&format!("5 {word} {size}"), data), &dictionary);
        assert!(matches!(result, Err(Unreadable::Unknown(_))), "{word}: {result:?}");
    }
    // A frame that names no dictionary, and bytes that are none.
    let plain = zstd::bulk::compress(&[0; 100], 1).expect("compressed");
    for data in [&plain[..], b"", b"\x28\xb5\x2f\xfd", &data[..data.len() / 2], &data[..9]] {
        let result = read(&entry("5 zstd:3 100", data), &dictionary);
        assert!(matches!(result, Err(Unreadable::Damaged(_))), "{data:?}: {result:?}");
    }
    assert_eq!(read(&packed, &dictionary).expect("still read, after all that failed").len(), 5);
}

#[test]
fn no_more_comes_out_than_is_declared() {
    let dictionary = dictionary(1);
    let zeros = message(&[("payload", &vec![0; MAX_BYTES as usize - 10])]);
    let packed = pack_with([zeros].iter(), WITH, Some(&*dictionary)).expect("packed");
    for declared in [1, 1_000, MAX_BYTES - 10] {
        let result = read(&entry(&format!("1 zstd:1 {declared}"), data_of(&packed)), &dictionary);
        assert!(matches!(result, Err(Unreadable::Damaged(_))), "{declared}: {result:?}");
    }
}

#[test]
fn what_is_no_dictionary_is_refused() {
    let good = train(events(0, 2_000).iter(), 4 << 10).expect("trained");
    assert!(matches!(Dictionary::new(1, &vec![0; MAX_DICTIONARY + 1]), Err(BadDictionary::Size(_))));
    // The tables are cut off or changed, or it is plain text.
    let mut changed = good.clone();
    changed[8..60].fill(0xff);
    for bytes in [&b""[..], b"some text that messages have", &good[..4], &good[..9], &good[..40], &changed] {
        assert!(matches!(Dictionary::new(1, bytes), Err(BadDictionary::Form)), "{} bytes", bytes.len());
    }
}

#[test]
fn training_needs_messages_that_are_alike() {
    assert!(matches!(train(events(0, 3).iter(), 4 << 10), Err(NotTrained::Samples { messages: 3, .. })));
    assert!(matches!(train([].iter(), 4 << 10), Err(NotTrained::Samples { messages: 0, bytes: 0, .. })));
    for size in [0, MAX_DICTIONARY + 1] {
        assert_eq!(train(events(0, 1_000).iter(), size).expect_err("a size"), NotTrained::Size(size));
    }
    for size in [300, MAX_DICTIONARY] {
        let trained = train(events(0, 2_000).iter(), size).expect("trained");
        assert!(trained.len() <= size, "{} of {size} bytes", trained.len());
        Dictionary::new(1, &trained).expect("a dictionary");
    }
}

proptest! {
    #[test]
    fn messages_read_back(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 1..40)) {
        let sent: Vec<_> = payloads.iter().map(|one| message(&[("payload", one)])).collect();
        let dictionary = dictionary(1);
        let packed = pack_with(sent.iter(), WITH, Some(&*dictionary)).expect("packed");
        prop_assert_eq!(read(&packed, &dictionary).expect("a pack"), sent);
    }

    /// A byte of a pack is changed: it is refused, or other messages come, as many as it says.
    #[test]
    fn a_changed_byte_is_read_within_bounds(at: prop::sample::Index, bit in 0u32..8) {
        let dictionary = dictionary(1);
        let mut packed = pack_with(events(0, 20).iter(), WITH, Some(&*dictionary)).expect("packed");
        let mut data = packed[2].1.to_vec();
        let at = at.index(data.len());
        data[at] ^= 1 << bit;
        packed[2].1 = data.into();
        if let Ok(messages) = read(&packed, &dictionary) {
            prop_assert_eq!(messages.len(), 20);
        }
    }

    /// A byte of a dictionary is changed: it is refused, or one that does no harm.
    #[test]
    fn a_changed_dictionary_does_no_harm(at: prop::sample::Index, bit in 0u32..8) {
        let mut bytes = train(events(0, 500).iter(), 1 << 10).expect("trained");
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(changed) = Dictionary::new(1, &bytes) {
            let changed = Arc::new(changed);
            let packed = pack_with(events(0, 20).iter(), WITH, Some(&*changed));
            if let Ok(packed) = packed {
                prop_assert_eq!(read(&packed, &changed).map(|it| it.len()).ok(), Some(20));
            }
            let first = Arc::new(Dictionary::new(1, &train(events(0, 500).iter(), 1 << 10).expect("trained")).expect("a dictionary"));
            let packed = pack_with(events(0, 20).iter(), WITH, Some(&*first)).expect("packed");
            let _ = unpack_with(&packed, |_: DictionaryName| Some(changed.clone()));
        }
    }
}
