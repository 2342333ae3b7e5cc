//! `millstream topic train`: what is better is stored, and what is shown is what was measured.

use bytes::Bytes;
use millstream::{PackCompression, Packing, Record, Topic};
use serde_json::{Value, json};

use crate::support::cli::Cli;

/// A topic with so many messages that are alike.
async fn prepared(messages: u32) -> Cli {
    let cli = Cli::new();
    cli.ok("topic create events --packed zstd-dictionary --packed-min 1");
    let mq = cli.mq().await;
    let packing = Packing::new().compression(PackCompression::ZstdDictionary).min_messages(1);
    let producer = mq.producer(Topic::<Bytes>::raw("events").packed(packing)).await.expect("a producer");
    let payloads = (0..messages).map(|n| {
        Bytes::from(format!(
            "{{\"sensor\":\"s-{}\",\"site\":\"north\",\"unit\":\"celsius\",\"value\":{}}}",
            n.wrapping_mul(7_919) % 5_000,
            n % 97
        ))
    });
    let payloads: Vec<Bytes> = payloads.collect();
    for sent in producer.send_all(payloads.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    cli
}

#[tokio::test]
async fn a_better_dictionary_is_stored_and_a_dry_run_stores_none() {
    let cli = prepared(2_000).await;
    let dry = cli.json("topic train events --size 4096 --dry-run");
    assert_eq!(
        (&dry["version"], &dry["better"], &dry["dry_run"]),
        (&Value::Null, &json!(true), &json!(true))
    );
    assert_eq!(cli.json("topic describe events")["packing"]["dictionary"], Value::Null);

    let done = cli.json("topic train events --size 4096");
    assert_eq!(
        (&done["version"], &done["previous"], &done["dry_run"]),
        (&json!(1), &Value::Null, &json!(false))
    );
    assert_eq!((&done["messages"], &done["compared"]), (&json!(1_600), &json!(400)));
    assert!(done["size"].as_u64().is_some_and(|size| (256..=4_096).contains(&size)), "{done}");
    let packs = done["packs"].as_array().expect("a list");
    assert_eq!(packs.iter().map(|row| row["messages"].clone()).collect::<Vec<_>>(), [1, 10, 100]);
    for row in packs {
        let bytes = |name: &str| row[name].as_u64().expect("a number");
        // In large packs there is little left to gain.
        assert!(row["messages"] == 100 || bytes("after_bytes") < bytes("before_bytes"), "{row}");
        assert!(bytes("before_bytes") <= bytes("plain_bytes"), "{row}");
    }
    let described = cli.json("topic describe events");
    assert_eq!(described["packing"]["dictionary"], 1, "{described}");
    assert!(cli.ok("topic describe events").contains("zstd-dictionary of version 1, 1 to 500 messages"));

    // The same messages give no better one.
    let again = cli.json("topic train events --size 4096");
    assert_eq!(
        (&again["version"], &again["previous"], &again["better"]),
        (&Value::Null, &json!(1), &json!(false))
    );
    let text = cli.ok("topic train events --size 4096");
    assert!(text.contains("1,600 messages, not stored, since it saves less than 2 %"), "{text}");
    assert_eq!(cli.json("topic describe events")["packing"]["dictionary"], 1);
}

#[tokio::test]
async fn what_cannot_be_trained_is_said_and_nothing_is_stored() {
    let cli = prepared(50).await;
    for (args, expected) in [
        ("events", "50 messages that fit into packs: 100 are needed"),
        ("events --messages 99", "training on 99 messages: 100 to 100000 are allowed"),
        ("events --size 255", "a dictionary of 255 bytes: 256 to 65536 are allowed"),
        ("events --size 65537", "a dictionary of 65537 bytes"),
        ("nowhere", "does not exist"),
    ] {
        let error = cli.fails(1, &format!("topic train {args}"));
        assert!(error.contains(expected), "{args}: {error}");
    }
    cli.ok("topic create plain --packed zstd");
    let error = cli.fails(1, "topic train plain");
    assert!(error.contains("topic plain does not pack messages with zstd-dictionary"), "{error}");
    cli.fails(1, "topic create wrong --packed zstd --packed-min 1");
    cli.fails(2, "topic create wrong --packed-min 4");
    assert_eq!(cli.json("topic describe events")["packing"]["dictionary"], Value::Null);
}

#[tokio::test]
async fn the_packing_of_a_packed_topic_changes_and_what_is_not_named_stays() {
    let cli = Cli::new();
    cli.ok("topic create events --packed zstd --packed-min 7");
    let dry = cli.json("topic alter events --packed zstd-dictionary --dry-run");
    assert_eq!((&dry["changed"], &dry["packing"]["compression"]), (&json!(true), &json!("zstd-dictionary")));
    assert_eq!(cli.json("topic describe events")["packing"]["compression"], "zstd");
    let altered = cli.json("topic alter events --packed zstd-dictionary --packed-min 1");
    assert_eq!(altered["packing"]["min_messages"], 1, "{altered}");
    let altered = cli.json("topic alter events --packed lz4 --packed-min 9");
    assert_eq!(altered["packing"]["max_messages"], 500, "{altered}");
    let altered = cli.json("topic alter events --packed none");
    let packing = (&altered["packing"]["compression"], &altered["packing"]["min_messages"]);
    assert_eq!(packing, (&json!("none"), &json!(9)), "{altered}");
    assert_eq!(cli.json("topic alter events --packed none")["changed"], false);
    let error = cli.fails(1, "topic alter events --packed none --packed-min 1");
    assert!(error.contains("packs of at least 1 message"), "{error}");

    cli.ok("topic create plain");
    let error = cli.fails(1, "topic alter plain --packed zstd");
    assert!(error.contains("topic plain is not packed, and cannot become so"), "{error}");
}
