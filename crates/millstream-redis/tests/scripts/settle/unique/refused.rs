//! `append_unique` where a server refuses it, or a key is foreign, and what a deletion leaves.

use std::time::Duration;

use millstream_core::catalog::{Catalog, Start};
use millstream_core::error::ErrorKind;
use millstream_core::log::Log;
use millstream_core::schedule::Schedule;
use millstream_redis::{Access, RedisBackend, RedisConfig, acl};

use crate::server::{Bench, fetch, message, retry};
use crate::settle::unique::{item, settle_all, stored};

#[tokio::test]
async fn a_server_that_is_full_or_has_a_foreign_key_stores_nothing() {
    let mut bench = Bench::private(&[]).await;
    let (unique, log) = (bench.keys.unique(&bench.tp), bench.log());
    let batch = [item(&bench.tp, "a", message("x"))];
    bench.cmd("CONFIG SET maxmemory 1").await;
    let refused = bench.backend.append(&batch).await.remove(0).expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::Backpressure, "{refused}");
    bench.cmd("CONFIG SET maxmemory 0").await;
    bench.cmd(&format!("SET {unique} x")).await;
    let refused = bench.backend.append(&batch).await.remove(0).expect_err("foreign");
    assert_eq!(refused.kind(), ErrorKind::WrongType, "{refused}");
    assert!(refused.to_string().contains(unique.as_str()), "{refused}");
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 0);
    bench.cmd(&format!("DEL {unique}")).await;
    let first = stored(&bench, "a").await;
    // A retry is moved once all the same.
    let mut reader = bench.reader().await;
    let mut entries = fetch(&mut reader, 1).await.entries;
    entries.extend(fetch(&mut reader, 1).await.entries);
    assert_eq!(bench.settle(&[(entries[0].receipt, retry(Duration::ZERO, 2, first))]).await, (1, 0));
    bench.cmd(&format!("DEL {unique}")).await;
    bench.cmd(&format!("SET {unique} x")).await;
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.backend.promote(&bench.lease, 9).await.expect("promoted").moved, 1);
    let (retry_log, due) = (bench.retry_log(), bench.keys.retry_due(&bench.tp, &bench.group));
    assert_eq!(bench.int(&format!("XLEN {retry_log}")).await, 1);
    assert_eq!(bench.int(&format!("EXISTS {due}")).await, 0);
}

#[tokio::test]
async fn a_producer_without_the_rights_is_denied_and_stores_nothing() {
    let mut bench = Bench::private(&[]).await;
    let (log, unique) = (bench.log(), bench.keys.unique(&bench.tp));
    let port = bench.url.rsplit(':').next().expect("a port").to_owned();
    let topic = [bench.spec.name.clone()];
    let batch = [item(&bench.tp, "a", message("x"))];
    for access in [Access::Producer, Access::UniqueProducer] {
        let rules = acl(access, Some(&bench.namespace), &topic);
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("sender").arg("reset").arg("on").arg(">pw").arg(&rules);
        command.exec_async(&mut bench.raw).await.expect("a user");
        let config = RedisConfig::new(format!("redis://sender:pw@127.0.0.1:{port}"));
        let sender = RedisBackend::connect(config.with_namespace(bench.namespace.clone())).await;
        let sender = sender.expect("connected");
        let result = sender.append(&batch).await.remove(0);
        if access == Access::Producer {
            assert_eq!(result.expect_err("denied").kind(), ErrorKind::Denied);
            assert_eq!(bench.int(&format!("XLEN {log}")).await, 0);
            assert_eq!(bench.int(&format!("EXISTS {unique}")).await, 0);
        } else {
            assert!(!result.expect("sent").is_duplicate);
            settle_all(&bench).await;
            let again = [item(&bench.tp, "a", message("x"))];
            assert!(!sender.append(&again).await.remove(0).expect("sent").is_duplicate);
        }
    }
    // With half of the commands it does nothing either.
    for denied in ["-hset", "-xadd", "-hdel", "-zmscore"] {
        redis::cmd("ACL")
            .arg(&["SETUSER", "sender", denied])
            .exec_async(&mut bench.raw)
            .await
            .expect("a user");
        let config = RedisConfig::new(format!("redis://sender:pw@127.0.0.1:{port}"));
        let sender = RedisBackend::connect(config.with_namespace(bench.namespace.clone())).await;
        let sender = sender.expect("connected");
        let length = bench.int(&format!("XLEN {log}")).await;
        let refused = sender.append(&[item(&bench.tp, denied, message("x"))]).await.remove(0);
        assert_eq!(refused.expect_err("denied").kind(), ErrorKind::Denied, "{denied}");
        assert_eq!(bench.int(&format!("XLEN {log}")).await, length, "{denied}");
        let allowed = denied.replace('-', "+");
        redis::cmd("ACL")
            .arg(&["SETUSER", "sender", &allowed])
            .exec_async(&mut bench.raw)
            .await
            .expect("a user");
    }
}

#[tokio::test]
async fn a_deleted_group_and_topic_leave_no_record() {
    let mut bench = Bench::new().await;
    let id = stored(&bench, "a").await;
    let mut reader = bench.reader().await;
    let mut entries = fetch(&mut reader, 1).await.entries;
    entries.extend(fetch(&mut reader, 1).await.entries);
    assert_eq!(bench.settle(&[(entries[0].receipt, retry(Duration::ZERO, 2, id))]).await, (1, 0));
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.backend.promote(&bench.lease, 9).await.expect("promoted").moved, 1);
    let (unique, notes) = (bench.keys.unique(&bench.tp), bench.keys.unique_retry(&bench.tp, &bench.group));
    assert_eq!(bench.int(&format!("EXISTS {unique} {notes}")).await, 2);
    let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
    bench
        .backend
        .create_group(&bench.spec, &"other".parse().expect("a name"), Start::Latest)
        .await
        .expect("a group");
    assert!(bench.backend.delete_group(&topic, &group).await.expect("deleted"));
    assert_eq!(bench.int(&format!("EXISTS {notes}")).await, 0);
    stored(&bench, "a").await;
    assert!(bench.backend.delete_topic(&topic).await.expect("deleted"));
    assert_eq!(bench.int(&format!("EXISTS {unique}")).await, 0);
}
