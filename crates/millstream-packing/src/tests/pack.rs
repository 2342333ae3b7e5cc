//! Packs: what was packed reads back, and whatever an entry holds is read within bounds.

use bytes::Bytes;
use millstream_core::packing::{MAX_BYTES, MAX_MESSAGES, PackCompression};
use millstream_core::wire::{FORM, Fields, PACK, PACK_MESSAGES};
use proptest::prelude::*;

use crate::{NotPacked, Unpacked, Unreadable, pack, pack_alone, size, unpack};

const ALL: [PackCompression; 3] = [PackCompression::None, PackCompression::Lz4, PackCompression::Zstd];

fn message(fields: &[(&str, &[u8])]) -> Fields {
    let field = |(name, value): &(&str, &[u8])| {
        (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value))
    };
    fields.iter().map(field).collect()
}

fn entry(head: &str, data: &[u8]) -> Fields {
    message(&[(FORM, b"2"), (PACK, head.as_bytes()), (PACK_MESSAGES, data)])
}

fn messages(entry: &Fields) -> Vec<Fields> {
    match unpack(entry).expect("a pack") {
        Unpacked::Messages(messages) => messages,
        Unpacked::One => panic!("no pack"),
    }
}

/// The bytes that protocol.md shows.
#[test]
fn a_pack_without_compression_has_these_bytes() {
    let two = [message(&[("payload", b"a"), ("key", b"k")]), message(&[("payload", b""), ("h:x", b"1")])];
    let packed = pack(two.iter(), PackCompression::None).expect("packed");
    assert_eq!(packed, entry("2 none 16", b"\x06\x00\x01a\x01\x01k\x08\x00\x00\x05h:x\x011"));
    assert_eq!(messages(&packed), two);
    assert_eq!(two.iter().map(|one| size(one)).sum::<usize>(), 16);
}

#[test]
fn an_entry_that_is_no_pack_is_one_message() {
    for fields in [
        message(&[("payload", b"a")]),
        message(&[]),
        message(&[(FORM, b"1"), (PACK, b"1 none 1")]),
        message(&[(FORM, b"3")]),
        // Which form it is cannot be known.
        message(&[(FORM, b"2"), (FORM, b"2")]),
    ] {
        assert_eq!(unpack(&fields).expect("no pack"), Unpacked::One, "{fields:?}");
    }
}

#[test]
fn what_a_pack_cannot_hold_is_refused() {
    let small = message(&[("payload", b"a")]);
    let many = vec![small.clone(); MAX_MESSAGES as usize + 1];
    assert!(matches!(pack(many.iter(), PackCompression::None), Err(NotPacked::Count(1001))));
    assert!(matches!(pack([].iter(), PackCompression::None), Err(NotPacked::Count(0))));
    assert!(matches!(
        pack([small.clone(), message(&[])].iter(), PackCompression::None),
        Err(NotPacked::Fields)
    ));
    let large = message(&[("payload", &vec![b'a'; MAX_BYTES as usize])]);
    assert!(matches!(pack([large].iter(), PackCompression::Zstd), Err(NotPacked::Size(_))));
    assert_eq!(
        messages(&pack(many[1..].iter(), PackCompression::Lz4).expect("as many as may be")).len(),
        1000
    );
}

#[test]
fn damage_is_found() {
    let one = b"\x03\x00\x01a";
    assert_eq!(messages(&entry("1 none 4", one)).len(), 1);
    for head in [
        "",
        "1",
        "1 none",
        "1 none 4 4",
        "0 none 4",
        "1001 none 4",
        "1 none 0",
        "1 none 1048577",
        "+1 none 4",
        "1  none 4",
        "-1 none 4",
        "1 none 99999999999",
        "2 none 4",
        "1 none 3",
        "1 none 5",
        "1 zstd 4",
        "1 lz4 4",
        "x none 4",
    ] {
        let error = unpack(&entry(head, one)).expect_err(head);
        assert!(matches!(error, Unreadable::Damaged(_)), "{head}: {error}");
    }
    for data in [
        &b""[..],
        b"\x00",
        b"\x04\x00\x01a",
        b"\x03\x00\x01ab",
        b"\x03\x00\x02a",
        b"\xff\xff\xff\xff\xff\xff\xff\x00\x01a",
    ] {
        let head = format!("1 none {}", data.len().max(1));
        assert!(unpack(&entry(&head, data)).is_err(), "{data:?}");
    }
    for missing in [PACK, PACK_MESSAGES] {
        let mut fields = entry("1 none 4", one);
        fields.retain(|(name, _)| *name != *missing.as_bytes());
        assert!(matches!(unpack(&fields), Err(Unreadable::Damaged(_))), "without {missing}");
        fields = entry("1 none 4", one);
        fields.push(message(&[(missing, one)]).remove(0));
        assert!(matches!(unpack(&fields), Err(Unreadable::Damaged(_))), "{missing} twice");
    }
    let later = unpack(&entry("1 brotli 4", one)).expect_err("a later version's");
    assert!(matches!(later, Unreadable::Unknown(_)), "{later}");
}

/// 1 MiB of zeros is a few bytes: what comes out is bounded by what is declared, and that by the largest pack.
#[test]
fn no_more_comes_out_than_is_declared() {
    let zeros = vec![0; MAX_BYTES as usize];
    let lz4 = lz4_flex::block::compress(&zeros);
    let zstd = zstd::bulk::compress(&zeros, 1).expect("compressed");
    for (word, data) in [("lz4", lz4), ("zstd", zstd)] {
        for declared in [1, 1000, MAX_BYTES - 1] {
            let error =
                unpack(&entry(&format!("1 {word} {declared}"), &data)).expect_err("more than declared");
            assert!(matches!(error, Unreadable::Damaged(_)), "{error}");
        }
    }
}

proptest! {
    #[test]
    fn messages_read_back(
        payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 1..80),
        header in "[a-z]{0,20}",
    ) {
        let name = format!("h:{header}");
        let sent: Vec<_> = payloads.iter().map(|one| message(&[("payload", one), (&name, b"v")])).collect();
        for compression in ALL {
            let packed = pack(sent.iter(), compression).expect("packed");
            prop_assert_eq!(&messages(&packed), &sent);
        }
    }

    #[test]
    fn whatever_an_entry_holds_it_is_read_or_refused(
        count in 0u32..1200,
        size in 0u32..2000,
        data in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        for compression in ALL {
            let _ = unpack(&entry(&format!("{count} {} {size}", compression.as_str()), &data));
        }
    }

    /// A byte of a pack is changed: it is refused, or other messages come, as many as it says.
    #[test]
    fn a_changed_byte_is_read_within_bounds(at: prop::sample::Index, bit in 0u32..8) {
        let sent = vec![message(&[("payload", b"some payload"), ("key", b"some key")]); 20];
        for compression in ALL {
            let mut packed = pack(sent.iter(), compression).expect("packed");
            let mut data = packed[2].1.to_vec();
            let at = at.index(data.len());
            data[at] ^= 1 << bit;
            packed[2].1 = data.into();
            if let Ok(Unpacked::Messages(read)) = unpack(&packed) {
                prop_assert_eq!(read.len(), 20);
            }
        }
    }
}

/// A message that leaves a pack of little memory, which holds much.
#[cfg(all(feature = "lz4", feature = "zstd"))]
#[test]
fn a_message_alone_is_packed_as_its_pack_where_that_halves_it() {
    let payload = |bytes: Vec<u8>| vec![(Bytes::from_static(b"payload"), Bytes::from(bytes))];
    let noise = (0..2_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let many = vec![(Bytes::new(), Bytes::new()); 3_000];
    let cases = [
        (payload(vec![b' '; 2_000]), true),
        (many, true),
        (payload(noise), false),
        (payload(vec![b' '; 100]), false),
    ];
    for (message, smaller) in cases {
        for compression in [PackCompression::None, PackCompression::Lz4, PackCompression::Zstd] {
            let messages = vec![message.clone(); 3];
            let entry = pack(messages.iter(), compression).expect("packed");
            let alone = pack_alone(&entry, &message);
            assert_eq!(alone.is_some(), smaller && compression != PackCompression::None, "{compression:?}");
            if let Some(alone) = alone {
                assert_eq!(unpack(&alone).expect("read"), Unpacked::Messages(vec![message.clone()]));
            }
        }
    }
    assert_eq!(pack_alone(&payload(b"no pack".to_vec()), &payload(vec![b' '; 2_000])), None);
}
