//! Rows that are written, and rows that cannot be sent.

use std::collections::BTreeMap;
use std::time::Duration;

use integration_tests::databases::outbox::{stored, texts};
use integration_tests::eventually;
use millstream::sql::Outbox;
use millstream::{ErrorKind, Topic, TopicChange};

use super::{LINES, Scene, line, run};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_is_sent_once_with_everything_that_it_has() {
    for scene in Scene::both().await {
        let relay = scene.relay().await;
        let outbox = Outbox::new();
        let mut tx = scene.database.begin().await.expect("begun");
        let sent = outbox.send(&mut tx, &LINES, &line("kept"));
        let sent =
            sent.key("k").header("a", "1").header("a", [0xff, 0]).id("order-7").await.expect("written");
        assert_eq!(sent.message_id, "order-7");
        tx.commit().await.expect("committed");
        let mut tx = scene.database.begin().await.expect("begun");
        outbox.send(&mut tx, &LINES, &line("rolled back")).key("k").await.expect("written");
        tx.rollback().await;
        // The same id and key: a repetition by the program.
        let mut tx = scene.database.begin().await.expect("begun");
        outbox.send(&mut tx, &LINES, &line("repeated")).key("k").id("order-7").await.expect("written");
        outbox.send(&mut tx, &LINES, &line("last")).key("k").await.expect("written");
        tx.commit().await.expect("committed");
        eventually(async || texts(scene.mq.backend(), &LINES).await.contains(&"last".to_owned()), "sent")
            .await;
        assert_eq!(texts(scene.mq.backend(), &LINES).await, ["kept", "last"]);
        let all = stored(scene.mq.backend(), &LINES).await;
        let first = all.iter().flatten().next().expect("a message");
        assert_eq!(first.key.as_deref(), Some(&b"k"[..]));
        let values: Vec<_> = first.headers.get_all("a").map(|value| value.to_vec()).collect();
        assert_eq!(values, [b"1".to_vec(), vec![0xff, 0]]);
        eventually(async || scene.number("SELECT count(*) FROM millstream_outbox").await == 0, "deleted")
            .await;
        relay.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_plain_sql_needs_three_columns() {
    for scene in Scene::both().await {
        let relay = scene.relay().await;
        let bytes = scene.database.dialect() == millstream::sql::Dialect::Postgres;
        let payload = if bytes { "convert_to('plain', 'UTF8')" } else { "'plain'" };
        let key = if bytes { "'\\x6b'::bytea" } else { "x'6b'" };
        scene
            .run(&format!(
                "INSERT INTO millstream_outbox (topic, key, headers, payload) \
                 VALUES ('lines', {key}, '{{\"traceparent\": \"00-1\"}}', {payload})"
            ))
            .await;
        eventually(async || texts(scene.mq.backend(), &LINES).await == ["plain"], "sent").await;
        let all = stored(scene.mq.backend(), &LINES).await;
        assert_eq!(all.iter().flatten().next().expect("one").headers.get_str("traceparent"), Some("00-1"));
        relay.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_row_is_kept_with_its_reason_and_holds_nobody_back() {
    for scene in Scene::both().await {
        let postgres = scene.database.dialect() == millstream::sql::Dialect::Postgres;
        let of_zeros = |count: usize| match postgres {
            true => format!("decode(repeat('00', {count}), 'hex')"),
            false => format!("zeroblob({count})"),
        };
        let insert = |topic: &str, headers: &str, key: &str, payload: &str| {
            format!(
                "INSERT INTO millstream_outbox (message_id, topic, headers, key, payload) \
                 VALUES ('{topic}', '{topic}', {headers}, {key}, {payload});"
            )
        };
        let small = of_zeros(1);
        let key = if postgres { "'\\x6b'::bytea" } else { "x'6b'" };
        let good = |n: u32| {
            let payload = if postgres { format!("'{n}'::bytea") } else { format!("CAST('{n}' AS BLOB)") };
            format!("INSERT INTO millstream_outbox (topic, key, payload) VALUES ('lines', {key}, {payload});")
        };
        // All have one key, so that all are in one shard.
        let mut script = good(1);
        script += &insert("a b; DROP TABLE x", "NULL", key, &small);
        script += &insert("", "NULL", key, &small).replace("('', ", "('no-name', ");
        script += &insert("nosuch", "NULL", key, &small);
        script += &good(2);
        script += &insert("lines", "'[7]'", key, &small).replace("('lines', 'lines'", "('headers', 'lines'");
        script += &insert("lines", "NULL", key, &of_zeros((1 << 20) + 1))
            .replace("('lines', 'lines'", "('large', 'lines'");
        script += &insert("lines", "NULL", &of_zeros(2_000), &small)
            .replace("('lines', 'lines'", "('key', 'lines'");
        script += &good(3);
        scene.run(&script).await;

        let relay = scene.relay().await;
        eventually(
            async || scene.number("SELECT count(*) FROM millstream_outbox WHERE dead_at IS NULL").await == 0,
            "done",
        )
        .await;
        assert_eq!(texts(scene.mq.backend(), &LINES).await, ["1", "2", "3"]);
        let outbox = Outbox::new();
        let dead = outbox.dead(&scene.database, 0, 100).await.expect("listed");
        let kinds: BTreeMap<_, _> = dead
            .iter()
            .map(|row| (String::from_utf8_lossy(&row.message_id).into_owned(), row.kind.as_str()))
            .collect();
        let expected = [
            ("a b; DROP TABLE x", "invalid_name"),
            ("no-name", "invalid_name"),
            ("nosuch", "not_found"),
            ("headers", "decode"),
            ("large", "too_large"),
            ("key", "too_large"),
        ];
        assert_eq!(kinds, expected.iter().map(|(id, kind)| ((*id).to_owned(), *kind)).collect());
        assert_eq!(outbox.status(&scene.database).await.expect("a status").dead, 6);

        // Somebody creates the topic, and has its row sent again.
        let missing = Topic::<bytes::Bytes>::raw("nosuch");
        scene.mq.producer(missing.clone()).await.expect("a producer");
        let ids: Vec<i64> = dead.iter().filter(|row| row.kind == "not_found").map(|row| row.id).collect();
        assert_eq!(outbox.retry(&scene.database, &ids).await.expect("retried"), 1);
        eventually(async || stored(scene.mq.backend(), &missing).await[0].len() == 1, "sent").await;
        relay.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_before_the_transaction_sees_it() {
    for scene in Scene::both().await {
        let outbox = Outbox::new();
        let mut tx = scene.database.begin().await.expect("begun");
        let large = bytes::Bytes::from(vec![0; (1 << 20) + 1]);
        let error = outbox.send(&mut tx, &LINES, &large).await.expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        let error = outbox.send(&mut tx, LINES.named("a b"), &line("x")).await.expect_err("a bad name");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let error = outbox.send(&mut tx, &LINES, &line("x")).id("").await.expect_err("no id");
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        let error = outbox.send(&mut tx, &LINES, &line("x")).id("a\0b").await.expect_err("no text");
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        outbox.send(&mut tx, &LINES, &line("x")).await.expect("the transaction is as it was");
        tx.commit().await.expect("committed");
    }
    // The database refuses what has the wrong type, in the transaction of the writer.
    let scene = Scene::sqlite().await;
    for values in ["('lines', 7)", "(7, NULL)", "(x'00', x'00')"] {
        let mut tx = scene.database.begin().await.expect("begun");
        let done =
            run(&mut tx, &format!("INSERT INTO millstream_outbox (topic, payload) VALUES {values}")).await;
        done.expect_err(values);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_not_sent_before_it_is_due() {
    for scene in Scene::both().await {
        let relay = scene.relay().await;
        let outbox = Outbox::new();
        let mut tx = scene.database.begin().await.expect("begun");
        let begun = std::time::Instant::now();
        let delay = Duration::from_millis(700);
        outbox.send(&mut tx, &LINES, &line("later")).key("k").delay(delay).await.expect("written");
        outbox.send(&mut tx, &LINES, &line("now")).key("k").await.expect("written");
        tx.commit().await.expect("committed");
        eventually(async || texts(scene.mq.backend(), &LINES).await.len() == 2, "both are sent").await;
        assert!(begun.elapsed() >= delay, "sent after {:?}", begun.elapsed());
        assert_eq!(texts(scene.mq.backend(), &LINES).await, ["now", "later"]);
        relay.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_partition_holds_back_its_own_rows_only() {
    const BOUNDED: Topic<bytes::Bytes> = Topic::raw("bounded").max_length(2);
    for scene in Scene::both().await {
        let outbox = Outbox::new();
        let mut tx = scene.database.begin().await.expect("begun");
        for n in 0..5 {
            outbox.send(&mut tx, &BOUNDED, &line(&n.to_string())).key("k").await.expect("written");
        }
        outbox.send(&mut tx, &LINES, &line("free")).key("k").await.expect("written");
        tx.commit().await.expect("committed");
        let relay = scene.mq.outbox(&scene.database).topic(&LINES).topic(&BOUNDED).batch(2).start();
        let relay = relay.await.expect("a relay");
        eventually(async || texts(scene.mq.backend(), &LINES).await == ["free"], "the other topic").await;
        let full = texts(scene.mq.backend(), &BOUNDED).await.len();
        assert!(full < 5, "a batch more than the bound at most: {full}");
        let name = BOUNDED.spec().expect("valid").name;
        scene
            .mq
            .backend()
            .catalog()
            .alter_topic(&name, &TopicChange::new().max_length(None))
            .await
            .expect("altered");
        // A relay learns of it within a minute, and at once when it starts.
        relay.shutdown().await;
        let relay = scene.relay().await;
        eventually(async || texts(scene.mq.backend(), &BOUNDED).await.len() == 5, "all").await;
        assert_eq!(texts(scene.mq.backend(), &BOUNDED).await, ["0", "1", "2", "3", "4"]);
        relay.shutdown().await;
    }
}
