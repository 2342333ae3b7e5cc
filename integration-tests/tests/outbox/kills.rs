//! Relays that are killed and stopped anywhere: every row is stored once, and each key keeps its order.

use std::collections::BTreeMap;
use std::time::Duration;

use integration_tests::databases::outbox::{Setup, postgres_url, stored};
use integration_tests::eventually;
use integration_tests::process::Process;
use integration_tests::server::shared_url;
use millstream::Millstream;
use millstream::sql::{Database, Outbox, sqlx};

use super::{LINES, line};

const KEYS: u32 = 12;
const WRITERS: u32 = 3;
const ROUNDS: u32 = 120;

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_stopped_relays_lose_nothing_and_store_nothing_twice() {
    let seed = std::env::var("MILLSTREAM_SEED")
        .map_or_else(|_| fastrand::u64(..), |text| text.parse().expect("a seed"));
    println!("MILLSTREAM_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let namespace = format!("outbox-{}", uuid::Uuid::new_v4().simple());
    let queue = tokio::task::spawn_blocking(shared_url).await.expect("a server");
    let mq = Millstream::at(&queue).namespace(&namespace).await.expect("connected");
    mq.producer(LINES).await.expect("the topic exists");
    let url = postgres_url().await;
    let database = Database::connect(&url).await.expect("connected");
    let pool = sqlx::PgPool::connect(&url).await.expect("connected");
    sqlx::query("CREATE TABLE counters (key int PRIMARY KEY, n int NOT NULL)")
        .execute(&pool)
        .await
        .expect("made");
    let fill = format!("INSERT INTO counters SELECT k, 0 FROM generate_series(0, {}) k", KEYS - 1);
    sqlx::query(&fill).execute(&pool).await.expect("filled");

    // Writers of a key are serialised by its row; some roll back, and some commit late.
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (database, mut random) =
                (database.clone(), fastrand::Rng::with_seed(seed ^ u64::from(writer + 1)));
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let mut tx = database.begin().await.expect("begun");
                    if random.bool() {
                        // Its number is older than those of transactions that write before it.
                        sqlx::query("SELECT pg_current_xact_id()")
                            .execute(tx.postgres().expect("PostgreSQL"))
                            .await
                            .expect("a number");
                    }
                    let key = random.u32(0..KEYS);
                    for _ in 0..random.u32(1..4) {
                        let next = "UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n";
                        let next = sqlx::query_scalar(next).bind(i32::try_from(key).expect("small"));
                        let n: i32 =
                            next.fetch_one(tx.postgres().expect("PostgreSQL")).await.expect("counted");
                        let sent = Outbox::new().send(&mut tx, &LINES, &line(&n.to_string()));
                        sent.key(key.to_string()).await.expect("written");
                    }
                    if random.u32(0..5) == 0 {
                        tx.rollback().await;
                    } else {
                        tx.commit().await.expect("committed");
                    }
                }
            })
        })
        .collect();

    let setup = Setup { queue, namespace, database: url, ttl_ms: 400, batch: 7 };
    let start = || Process::start(env!("CARGO_BIN_EXE_relay"), &setup);
    let mut relays: Vec<Process> = (0..3).map(|_| start()).collect();
    let count = async || stored(mq.backend(), &LINES).await.iter().map(Vec::len).sum::<usize>();
    let mut seen = 0;
    for _ in 0..12 {
        // Not before something was sent since the last one: it is killed at work, and not while it starts.
        let rows = async || {
            sqlx::query_scalar::<_, i64>("SELECT count(*) FROM millstream_outbox")
                .fetch_one(&pool)
                .await
                .expect("counted")
        };
        let mut now = seen;
        eventually(
            async || {
                now = count().await;
                now > seen || (rows().await == 0 && writers.iter().all(tokio::task::JoinHandle::is_finished))
            },
            "progress",
        )
        .await;
        seen = now;
        let victim = random.usize(0..relays.len());
        if random.bool() {
            relays[victim].kill();
            relays[victim] = start();
        } else {
            relays[victim].stop();
            // Longer than the ttl: its shards are taken meanwhile.
            tokio::time::sleep(Duration::from_millis(random.u64(300..700))).await;
            relays[victim].resume();
        }
    }
    for writer in writers {
        writer.await.expect("all is written");
    }
    let rows = async || {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM millstream_outbox")
            .fetch_one(&pool)
            .await
            .expect("counted");
        left == 0
    };
    eventually(rows, "all rows are sent").await;

    let expected: Vec<(i32, i32)> =
        sqlx::query_as("SELECT key, n FROM counters ORDER BY key").fetch_all(&pool).await.expect("counted");
    let mut sent: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for message in stored(mq.backend(), &LINES).await.into_iter().flatten() {
        let number =
            |bytes: &[u8]| std::str::from_utf8(bytes).expect("text").parse::<i32>().expect("a number");
        sent.entry(number(&message.key.expect("a key"))).or_default().push(number(&message.payload));
    }
    for (key, n) in expected {
        let of_key = sent.remove(&key).unwrap_or_default();
        assert_eq!(of_key, (1..=n).collect::<Vec<_>>(), "key {key}");
    }
    assert!(sent.is_empty());
}
