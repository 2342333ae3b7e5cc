//! Repairs leave what they do not repair as it was.

use millstream_core::audit::{Audit, Check, Fault, Scope};
use redis::Value;

use crate::server::Bench;

/// Nobody is handed anything by a repair: the count says how often a handler may have begun.
#[tokio::test]
async fn a_stray_consumers_entries_keep_their_counts() {
    let mut bench = Bench::private(&[]).await;
    bench.append_many(3).await;
    let log = bench.log();
    bench.cmd(&format!("XREADGROUP GROUP billing gone COUNT 3 STREAMS {log} >")).await;
    let lease = bench.keys.lease(&bench.tp, &bench.group);
    bench.cmd(&format!("DEL {lease}")).await;
    let before = counts(&mut bench, 120_000).await;
    assert_eq!(before, [1, 1, 1]);
    let scope = Scope::Group(bench.tp.clone(), bench.group.clone());
    let found = bench.backend.audit(&scope, Check::Consumers, None).await.expect("looked at").findings;
    assert_eq!(found.iter().map(|it| it.fault).collect::<Vec<_>>(), [Fault::ConsumerStray]);
    assert!(bench.backend.repair(&found[0]).await.expect("repaired"));
    assert_eq!(counts(&mut bench, 0).await, [1, 1, 1]);
    let owners = bench.int(&format!("XLEN {log}")).await;
    assert_eq!(owners, 3, "nothing is gone");
}

/// How often each entry was handed out; first they are made so old.
async fn counts(bench: &mut Bench, idle_ms: u64) -> Vec<i64> {
    let log = bench.log();
    if idle_ms > 0 {
        let Value::Array(rows) = bench.cmd(&format!("XPENDING {log} billing - + 10")).await else {
            return Vec::new();
        };
        for row in rows {
            let Value::Array(row) = row else { continue };
            let id: String = redis::from_redis_value(row[0].clone()).expect("an id");
            bench.cmd(&format!("XCLAIM {log} billing gone 0 {id} IDLE {idle_ms} JUSTID")).await;
        }
    }
    let Value::Array(rows) = bench.cmd(&format!("XPENDING {log} billing - + 10")).await else {
        return Vec::new();
    };
    let count = |row: Value| match row {
        Value::Array(row) => redis::from_redis_value(row[3].clone()).expect("a count"),
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(count).collect()
}
