//! Figures of the outbox. To be run in release mode, on a machine that does nothing else.

use std::time::{Duration, Instant};

use integration_tests::databases::outbox::{postgres_url, stored};
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::Millstream;
use millstream::sql::{Database, Outbox, sqlx};
use millstream_core::inspect::{Range, Stream};
use millstream_core::{Limits, wire};

use super::{LINES, line};

const ROWS: i64 = 100_000;
const COMMITS: usize = 2_000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: it prints rates and latencies, which depend on the machine; run it in release"]
async fn rows_per_second_and_time_from_commit_to_stored() {
    let server = tokio::task::spawn_blocking(Server::start).await.expect("a server");
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let url = postgres_url().await;
    let (database, pool) = (
        Database::connect(&url).await.expect("connected"),
        sqlx::PgPool::connect(&url).await.expect("connected"),
    );
    let fill = "INSERT INTO millstream_outbox (topic, key, payload) \
                SELECT 'lines', int4send(n % 1000), decode(repeat('61', 128), 'hex') FROM generate_series(1, $1::int) n";
    sqlx::query(fill).bind(i32::try_from(ROWS).expect("small")).execute(&pool).await.expect("written");
    sqlx::query("VACUUM ANALYZE millstream_outbox").execute(&pool).await.expect("vacuumed");
    let begun = Instant::now();
    let relay = mq.outbox(&database).topic(&LINES).start().await.expect("a relay");
    let left = async || {
        let query = "SELECT EXISTS (SELECT 1 FROM millstream_outbox)";
        !sqlx::query_scalar::<_, bool>(query).fetch_one(&pool).await.expect("asked")
    };
    eventually(left, "all are sent").await;
    let rate = ROWS as f64 / begun.elapsed().as_secs_f64();
    println!("relayed {ROWS} rows of 128 bytes: {rate:.0} rows/s");
    assert_eq!(stored(mq.backend(), &LINES).await.iter().map(Vec::len).sum::<usize>() as i64, ROWS);

    // From the reply to the commit until the entry can be read.
    const TIMED: millstream::Topic<bytes::Bytes> = millstream::Topic::raw("timed");
    mq.producer(TIMED).await.expect("the topic exists");
    let place = TIMED.spec().expect("valid").iter().next().expect("a partition");
    let mut times = Vec::with_capacity(COMMITS);
    let mut after = Range::ALL;
    for n in 0..COMMITS {
        let mut tx = database.begin().await.expect("begun");
        Outbox::new().send(&mut tx, &TIMED, &line(&n.to_string())).key("k").await.expect("written");
        tx.commit().await.expect("committed");
        let committed = Instant::now();
        let inspect = mq.backend().inspect().expect("it can be inspected");
        loop {
            let page = inspect.entries(&place, &Stream::Log, after, 10).await.expect("a page");
            if let Some(last) = page.items.last() {
                after = after.behind(last.id);
                let message = wire::decode_body(&last.fields, &Limits::default()).expect("a message");
                assert_eq!(message.payload, n.to_string().as_bytes());
                break;
            }
        }
        times.push(committed.elapsed());
        // Commits come at any point of the relay's round.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..20_000))).await;
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("commit to stored, {COMMITS} commits: p50 {:?}, p99 {:?}, max {:?}", at(0.5), at(0.99), at(1.0));
    relay.shutdown().await;
}
