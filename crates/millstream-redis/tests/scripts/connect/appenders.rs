//! Many producers of one process: at most two connections, and what each of them knows of what it has sent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Appender, Durability, Log};
use redis::Value;
use tokio::time::timeout;

use crate::server::{Bench, message};

const LONG: Duration = Duration::from_secs(60);

fn appender(bench: &Bench) -> Box<dyn Appender> {
    bench.backend.appender(Durability::Stored).expect("an appender")
}

fn batch(bench: &Bench, payloads: &[&str]) -> Arc<Vec<Append>> {
    let append = |text: &&str| Append::new(bench.tp.clone(), message(text));
    Arc::new(payloads.iter().map(append).collect())
}

async fn finish(appender: &mut Box<dyn Appender>) -> Vec<Result<MessageId, ErrorKind>> {
    let results = timeout(LONG, appender.finish()).await.expect("an answer");
    results.into_iter().map(|result| result.map(|it| it.id).map_err(|error| error.kind())).collect()
}

/// Ids of the connections of producers.
async fn connections(bench: &mut Bench) -> Vec<String> {
    let text: String = redis::from_redis_value(bench.cmd("CLIENT LIST").await).expect("a list");
    let ours = text.lines().filter(|line| line.contains("name=millstream:producer"));
    ours.filter_map(|line| line.split(' ').find_map(|word| word.strip_prefix("id=")))
        .map(str::to_owned)
        .collect()
}

async fn stored(bench: &mut Bench) -> Vec<String> {
    let Value::Array(entries) = bench.cmd(&format!("XRANGE {} - +", bench.log())).await else {
        panic!("no entries")
    };
    let payload = |entry: Value| {
        let (_, fields): (String, Vec<(String, String)>) = redis::from_redis_value(entry).expect("an entry");
        fields[0].1.clone()
    };
    entries.into_iter().map(payload).collect()
}

#[tokio::test]
async fn many_producers_have_two_connections_and_each_keeps_its_order() {
    const PRODUCERS: usize = 100;
    let mut bench = Bench::private(&[]).await;
    let mut appenders: Vec<_> = (0..PRODUCERS).map(|_| appender(&bench)).collect();
    for round in 0..5 {
        for (number, appender) in appenders.iter_mut().enumerate() {
            appender.begin(batch(&bench, &[&format!("{number}:{round}:a"), &format!("{number}:{round}:b")]));
            appender.begin(batch(&bench, &[]));
            appender.begin(batch(&bench, &[&format!("{number}:{round}:c")]));
        }
        for results in join_all(appenders.iter_mut().map(|appender| async {
            [finish(appender).await, finish(appender).await, finish(appender).await]
        }))
        .await
        {
            assert!(matches!(&results.map(|all| all.len()), [2, 0, 1]));
        }
        assert_eq!(connections(&mut bench).await.len(), 2);
    }
    let stored = stored(&mut bench).await;
    assert_eq!(stored.len(), PRODUCERS * 5 * 3);
    for number in 0..PRODUCERS {
        let theirs: Vec<_> = stored.iter().filter(|text| text.starts_with(&format!("{number}:"))).collect();
        assert!(theirs.is_sorted(), "{theirs:?}");
    }
}

/// The one that sends alone uses the same connection as the one before.
#[tokio::test]
async fn producers_that_take_turns_have_one_connection() {
    let mut bench = Bench::private(&[]).await;
    let mut appenders: Vec<_> = (0..10).map(|_| appender(&bench)).collect();
    for number in 0..100 {
        let appender = &mut appenders[number % 10];
        appender.begin(batch(&bench, &["x"]));
        assert!(finish(appender).await[0].is_ok());
    }
    assert_eq!(connections(&mut bench).await.len(), 1);
    // One is dropped while something is under way: the connection goes with it, and the next one gets another.
    let before = connections(&mut bench).await;
    appenders[0].begin(batch(&bench, &["y"]));
    drop(appenders.remove(0));
    appenders[0].begin(batch(&bench, &["z"]));
    assert!(finish(&mut appenders[0]).await[0].is_ok());
    assert_ne!(connections(&mut bench).await, before);
}

#[tokio::test]
async fn a_cut_of_the_shared_connection_is_told_honestly_to_each() {
    let mut bench = Bench::private(&[]).await;
    let mut appenders: Vec<_> = (0..3).map(|_| appender(&bench)).collect();
    // The first one takes its connection, the others share one.
    for (number, appender) in appenders.iter_mut().enumerate() {
        appender.begin(batch(&bench, &[&format!("{number}:0")]));
    }
    for appender in &mut appenders {
        assert!(finish(appender).await[0].is_ok());
    }
    bench.cmd("CLIENT PAUSE 60000 WRITE").await;
    for (number, appender) in appenders.iter_mut().enumerate() {
        for nth in 1..4 {
            appender.begin(batch(&bench, &[&format!("{number}:{nth}")]));
        }
    }
    for appender in &mut appenders {
        assert!(timeout(Duration::from_millis(20), appender.finish()).await.is_err(), "paused");
    }
    for id in connections(&mut bench).await {
        bench.cmd(&format!("CLIENT KILL ID {id}")).await;
    }
    bench.cmd("CLIENT UNPAUSE").await;
    let mut told = Vec::new();
    for (number, appender) in appenders.iter_mut().enumerate() {
        let first = finish(appender).await;
        // Before it knows of the others: it must not overtake them.
        appender.begin(batch(&bench, &[&format!("{number}:4")]));
        told.push((format!("{number}:1"), first));
        for nth in 2..5 {
            told.push((format!("{number}:{nth}"), finish(appender).await));
        }
    }
    let stored: BTreeSet<_> = stored(&mut bench).await.into_iter().collect();
    for (text, results) in told {
        assert!(
            matches!(results[..], [Err(ErrorKind::Unconfirmed | ErrorKind::Unavailable)]),
            "{text} {results:?}"
        );
        let refused = results[0] == Err(ErrorKind::Unavailable);
        assert!(!refused || !stored.contains(&text), "{text} is stored, and said not to be");
        assert!(refused || !text.ends_with(":4"), "{text} came after the cut");
    }
    for appender in &mut appenders {
        appender.begin(batch(&bench, &["after"]));
    }
    for appender in &mut appenders {
        assert!(finish(appender).await[0].is_ok(), "both go on");
    }
}

#[tokio::test]
async fn connections_that_nobody_uses_are_closed() {
    let mut bench = Bench::private(&[]).await;
    let mut appenders: Vec<_> = (0..2).map(|_| appender(&bench)).collect();
    for _ in 0..2 {
        for appender in &mut appenders {
            appender.begin(batch(&bench, &["x"]));
        }
        for appender in &mut appenders {
            assert!(finish(appender).await[0].is_ok());
        }
        assert_eq!(connections(&mut bench).await.len(), 2);
        // The time of idle connections passes.
        tokio::time::pause();
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(61)).await;
            tokio::task::yield_now().await;
        }
        tokio::time::resume();
        timeout(LONG, async {
            while !connections(&mut bench).await.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("closed");
    }
}
