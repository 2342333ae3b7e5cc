//! Dictionaries are trained on what the logs hold, over a queue in memory.

use bytes::Bytes;
use millstream_core::log::Append;
use millstream_core::{
    Backend, Envelope, ErrorKind, PackCompression, Packing, TopicName, TopicPartition, TopicSpec, wire,
};
use millstream_memory::MemoryBackend;

use crate::{Admin, Training};

const WITH: Packing = Packing::new().compression(PackCompression::ZstdDictionary).max_bytes(1_000);

struct Stage {
    backend: Backend,
    admin: Admin,
    topic: TopicName,
}

impl Stage {
    async fn new(packing: Packing) -> Self {
        let backend = Backend::from(MemoryBackend::new());
        let admin = Admin::new(backend.clone());
        let topic: TopicName = "orders".parse().expect("a name");
        let spec = TopicSpec::new(topic.clone(), 2).expect("a topic").with_packing(packing);
        admin.create_topic(&spec).await.expect("created");
        Self { backend, admin, topic }
    }

    /// Appends messages with these payloads, on both partitions in turn.
    async fn append<T: Into<Bytes>>(&self, payloads: impl Iterator<Item = T>) {
        let entries = payloads.enumerate().map(|(at, payload)| {
            Append::new(
                TopicPartition::new(self.topic.clone(), at as u32 % 2),
                wire::encode(&Envelope::new(payload)),
            )
        });
        for result in self.backend.log().append(&entries.collect::<Vec<_>>()).await {
            result.expect("appended");
        }
    }
}

fn event(n: u32) -> String {
    format!(
        "{{\"order\":{},\"customer\":\"c-{}\",\"state\":\"paid\",\"currency\":\"EUR\"}}",
        n * 7_919 % 9_973,
        n % 300
    )
}

fn training() -> Training {
    let mut training = Training::new();
    training.size = 4 << 10;
    training
}

#[tokio::test]
async fn a_dictionary_is_compared_on_other_messages_and_stored_if_it_is_better() {
    let stage = Stage::new(WITH).await;
    stage.append((0..1_000).map(event)).await;
    let mut dry = training();
    dry.dry_run = true;
    let tried = stage.admin.train_topic(&stage.topic, dry).await.expect("trained");
    assert!(tried.is_better() && tried.version.is_none(), "{tried:?}");
    assert_eq!((tried.messages, tried.compared, tried.previous), (800, 200, None));
    assert_eq!(stage.admin.topic(&stage.topic).await.expect("a topic").dictionary, None);

    let trained = stage.admin.train_topic(&stage.topic, training()).await.expect("trained");
    assert_eq!(trained.version, Some(1));
    assert_eq!(trained.packs.iter().map(|it| it.messages).collect::<Vec<_>>(), [4, 10, 100]);
    for size in &trained.packs {
        // In large packs there is little left to gain.
        assert!(size.messages == 100 || size.after < size.before, "{size:?}");
        assert!(size.before < size.plain, "{size:?}");
    }
    let name = stage.admin.topic(&stage.topic).await.expect("a topic").dictionary.expect("a name");
    let stored = stage.backend.catalog().dictionary(&stage.topic, name).await.expect("read").expect("stored");
    assert_eq!(stored.len(), trained.size);

    // The logs have other messages by now, of which the new one knows more.
    let other = |n: u32| {
        format!("<measure station=\"{}\" kind=\"wind\" unit=\"knots\">{}</measure>", n * 7_919 % 997, n % 60)
    };
    stage.append((0..4_000).map(other)).await;
    let mut newest = training();
    newest.messages = 2_000;
    let second = stage.admin.train_topic(&stage.topic, newest).await.expect("trained");
    assert_eq!((second.messages, second.previous, second.version), (1_600, Some(1), Some(2)));
    assert!(
        stage.backend.catalog().dictionary(&stage.topic, name).await.expect("read").is_some(),
        "it stays"
    );
}

#[tokio::test]
async fn a_dictionary_that_cannot_be_used_counts_as_none() {
    let stage = Stage::new(WITH.min_messages(1)).await;
    stage.append((0..500).map(event)).await;
    // It has the header of one, and nothing else.
    let spec = stage.admin.topic(&stage.topic).await.expect("a topic");
    let none = Bytes::from_static(&[0x37, 0xA4, 0x30, 0xEC, 1, 0, 0, 0]);
    stage.backend.catalog().store_dictionary(&spec, none).await.expect("stored");
    let trained = stage.admin.train_topic(&stage.topic, training()).await.expect("trained");
    assert_eq!((trained.previous, trained.version), (None, Some(2)));
    assert_eq!(trained.packs[0].before, trained.packs[0].plain, "single messages were not packed");
}

#[tokio::test]
async fn messages_without_anything_in_common_get_no_dictionary() {
    let stage = Stage::new(WITH).await;
    // Bytes of which each is as frequent as any other: not even their frequencies are something in common.
    let random = |n: u64| {
        let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(100).collect::<Vec<u8>>()
    };
    stage.append((1..1_000).map(random)).await;
    match stage.admin.train_topic(&stage.topic, training()).await {
        Ok(trained) => assert!(!trained.is_better() && trained.version.is_none(), "{trained:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}"),
    }
}

#[tokio::test]
async fn what_is_too_large_for_a_pack_is_left_out() {
    let stage = Stage::new(WITH).await;
    let large = "x".repeat(2_000);
    stage.append((0..150).map(|n| if n % 2 == 0 { large.clone() } else { event(n) })).await;
    let error = stage.admin.train_topic(&stage.topic, training()).await.expect_err("too few");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("75 messages that fit into packs"), "{error}");
}
