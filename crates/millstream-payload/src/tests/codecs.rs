//! The codecs for `MessagePack` and protobuf.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use millstream_core::event::Ignore;
use millstream_core::policy::Never;
use millstream_core::{Backend, BoxError, Codec, ErrorKind, Topic};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery, ProducerBuilder};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{MessagePack, Protobuf};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Order {
    number: u64,
    customer: Option<String>,
    lines: Vec<(String, i32)>,
    kind: Kind,
    notes: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Kind {
    #[default]
    Plain,
    Gift(String),
    Split {
        parts: u8,
    },
}

/// The same order for prost.
#[derive(Clone, PartialEq, prost::Message)]
struct Proto {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(string, tag = "2")]
    customer: String,
    #[prost(bytes = "bytes", tag = "3")]
    scan: Bytes,
    #[prost(message, optional, boxed, tag = "4")]
    before: Option<Box<Proto>>,
}

fn order() -> Order {
    Order {
        number: u64::MAX,
        customer: Some("planted".to_owned()),
        lines: vec![("ä".repeat(40), -1), (String::new(), i32::MIN)],
        kind: Kind::Split { parts: 7 },
        notes: BTreeMap::from([("weight".to_owned(), 1.5)]),
    }
}

fn proto() -> Proto {
    Proto { number: 7, customer: "planted".to_owned(), scan: Bytes::from_static(&[0, 255]), before: None }
}

fn decode<T>(codec: &impl Codec<T>, bytes: impl Into<Bytes>) -> Result<T, BoxError> {
    codec.decode(&bytes.into())
}

fn why<T: std::fmt::Debug>(decoded: Result<T, BoxError>) -> String {
    decoded.expect_err("refused").to_string()
}

fn joined(parts: &[&[u8]]) -> Bytes {
    parts.concat().into()
}

#[tokio::test(start_paused = true)]
async fn values_pass_through_a_topic() {
    const PACKED: Topic<Order> = Topic::with_codec("packed", &MessagePack).partitions(1);
    const PROTO: Topic<Proto> = Topic::with_codec("proto", &Protobuf).partitions(1);
    let backend = Backend::from(MemoryBackend::new());
    let packed = ProducerBuilder::new(backend.clone(), PACKED, Arc::new(Ignore)).await.expect("a producer");
    let protos = ProducerBuilder::new(backend.clone(), PROTO, Arc::new(Ignore)).await.expect("a producer");
    packed.send(&order()).await.expect("stored");
    protos.send(&proto()).await.expect("stored");
    let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let (first, second) = (seen.clone(), seen.clone());
    let builder = ConsumerBuilder::new(backend, PACKED, "g", Arc::new(Ignore)).retry(Never);
    let builder = builder.also(PROTO, move |delivery: Delivery<Proto>| {
        second.lock().expect("lock").1.push(delivery.into_payload());
        async {}
    });
    let consumer = builder.start(move |delivery: Delivery<Order>| {
        first.lock().expect("lock").0.push(delivery.into_payload());
        async {}
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    assert_eq!(*seen.lock().expect("lock"), (vec![order()], vec![proto()]));
}

#[test]
fn messagepack_has_names_of_fields_so_that_types_can_grow() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Old {
        number: u64,
        dropped: String,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct New {
        #[serde(default)]
        added: Vec<u8>,
        number: u64,
    }
    let bytes = MessagePack.encode(&Old { number: 7, dropped: "x".to_owned() }).expect("encodes");
    // A map of two: "number" to 7, "dropped" to "x".
    assert_eq!(&bytes[..], b"\x82\xa6number\x07\xa7dropped\xa1x");
    assert_eq!(decode::<New>(&MessagePack, bytes).expect("decodes"), New { added: vec![], number: 7 });
}

#[test]
fn messagepack_refuses_what_is_behind_the_value_and_what_is_cut() {
    let whole = MessagePack.encode(&order()).expect("encodes");
    let length = whole.len() + 1;
    let expected =
        format!("invalid MessagePack at byte {} of {length}: there are bytes behind the value", whole.len());
    assert_eq!(why(decode::<Order>(&MessagePack, joined(&[&whole, &[0xc0]]))), expected);
    for end in 0..whole.len() {
        let text = why(decode::<Order>(&MessagePack, whole.slice(..end)));
        assert!(text.starts_with("invalid MessagePack at byte "), "{end}: {text}");
    }
    assert_eq!(
        why(decode::<u64>(&MessagePack, Bytes::new())),
        "invalid MessagePack at byte 0 of 0: the payload ends too early"
    );
}

#[test]
fn errors_of_messagepack_say_where_and_nothing_of_the_payload() {
    // serde's own texts quote all of these: an unexpected value, an unknown variant, an unknown field.
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        number: u64,
    }
    let planted = MessagePack.encode(&"planted".to_owned()).expect("encodes");
    let map = joined(&[&[0x81], &planted, &[1]]);
    for text in [
        why(decode::<u64>(&MessagePack, planted.clone())),
        why(decode::<Kind>(&MessagePack, planted)),
        why(decode::<Strict>(&MessagePack, map)),
    ] {
        assert!(text.ends_with("the value does not fit the type") && !text.contains("planted"), "{text}");
    }
    assert!(why(decode::<String>(&MessagePack, &b"\xa1\xff"[..])).ends_with("a string is not UTF-8"));
}

#[test]
fn messagepack_survives_claims_and_depth() {
    // 4 Gi elements, and 4 GiB of bytes, in five bytes.
    for claim in [0xdd, 0xdf, 0xc6, 0xdb] {
        let bytes = [claim, 0xff, 0xff, 0xff, 0xff];
        assert!(decode::<Vec<u64>>(&MessagePack, bytes.to_vec()).is_err());
        assert!(decode::<Tree>(&MessagePack, bytes.to_vec()).is_err());
        assert!(decode::<String>(&MessagePack, bytes.to_vec()).is_err());
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Tree(Vec<Tree>);
    let deep = why(decode::<Tree>(&MessagePack, vec![0x91; 100_000]));
    assert!(deep.ends_with("nested more than 128 levels deep"), "{deep}");
    let tree = |levels| (1..levels).fold(Tree(vec![]), |inner, _| Tree(vec![inner]));
    let bytes = MessagePack.encode(&tree(128)).expect("encodes");
    assert_eq!(decode::<Tree>(&MessagePack, bytes).expect("decodes"), tree(128));
    let bytes = MessagePack.encode(&tree(129)).expect("encodes");
    assert!(why(decode::<Tree>(&MessagePack, bytes)).ends_with("128 levels deep"));
}

#[test]
fn protobuf_refuses_bytes_that_are_no_fields() {
    let whole = Protobuf.encode(&proto()).expect("encodes");
    // A field of number 0, one that is cut, one of a wire type that does not exist, and a number that is too large.
    for tail in
        [&[0, 0][..], &[0x12, 9, 1], &[0x0f], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]]
    {
        let bytes = joined(&[&whole, tail]);
        let expected = format!("the payload of {} bytes is not a protobuf message of this type", bytes.len());
        assert_eq!(why(decode::<Proto>(&Protobuf, bytes)), expected, "{tail:?}");
    }
    // As the format has it: unknown fields are skipped, and what is missing has its default.
    assert_eq!(decode::<Proto>(&Protobuf, joined(&[&whole, &[0x78, 1]])).expect("decodes"), proto());
    assert_eq!(decode::<Proto>(&Protobuf, Bytes::new()).expect("decodes"), Proto::default());
    // `before` in `before`, 101 times.
    let nested = (0..101).fold(Vec::new(), |inner: Vec<u8>, _| {
        let mut outer = vec![0x22];
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend(inner);
        outer
    });
    assert!(decode::<Proto>(&Protobuf, nested).is_err());
}

#[test]
fn bytes_of_protobuf_are_parts_of_the_payload() {
    let whole = Protobuf.encode(&proto()).expect("encodes");
    let scan = decode::<Proto>(&Protobuf, whole.clone()).expect("decodes").scan;
    assert!(whole.as_ptr_range().contains(&scan.as_ptr()), "not copied");
}

#[tokio::test]
async fn a_value_that_cannot_be_written_is_not_sent() {
    #[derive(Deserialize)]
    struct Fails;
    impl Serialize for Fails {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("cannot be written"))
        }
    }
    const TOPIC: Topic<Fails> = Topic::with_codec("fails", &MessagePack).partitions(1);
    let backend = Backend::from(MemoryBackend::new());
    let producer = ProducerBuilder::new(backend, TOPIC, Arc::new(Ignore)).await.expect("a producer");
    let error = producer.send(&Fails).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Encode);
    assert!(error.to_string().contains("cannot encode as messagepack"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in vec(any::<u8>(), 0..64)) {
        if let Ok(value) = decode::<Order>(&MessagePack, bytes.clone()) {
            let again = decode::<Order>(&MessagePack, MessagePack.encode(&value).expect("encodes"));
            prop_assert_eq!(format!("{:?}", again.expect("decodes")), format!("{value:?}"));
        }
        if let Ok(value) = decode::<Proto>(&Protobuf, bytes) {
            let again = decode::<Proto>(&Protobuf, Protobuf.encode(&value).expect("encodes"));
            prop_assert_eq!(again.expect("decodes"), value);
        }
    }

    #[test]
    fn numbers_and_texts_are_what_they_were(number in any::<u64>(), text in ".{0,300}", line in any::<i32>()) {
        let order = Order { number, customer: Some(text.clone()), lines: vec![(text.clone(), line)], ..order() };
        let bytes = MessagePack.encode(&order).expect("encodes");
        prop_assert_eq!(decode::<Order>(&MessagePack, bytes).expect("decodes"), order);
        let proto = Proto { number, customer: text, ..proto() };
        let bytes = Protobuf.encode(&proto).expect("encodes");
        prop_assert_eq!(decode::<Proto>(&Protobuf, bytes).expect("decodes"), proto);
    }
}
