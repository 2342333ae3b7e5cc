//! Disks that are full, and files that lost their end: 54 and 56 to 59.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use integration_tests::HANG;
use integration_tests::equipment::disk::Disk;
use integration_tests::history::figure;
use integration_tests::proxy::Proxy;
use integration_tests::server::Server;
use millstream::ErrorKind;

use super::{MS, Pair, Work, clients};

/// Sends until the server refuses, and checks that it was said honestly: as something that may pass.
async fn refused(pair: &mut Pair, code: &str) {
    let deadline = Instant::now() + HANG;
    while pair.refused.is_empty() {
        assert!(Instant::now() < deadline, "a full disk is noticed");
        pair.send_large(8, 2_000).await;
        tokio::time::sleep(MS(50)).await;
    }
    for (number, error) in &pair.refused {
        let honest =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unconfirmed | ErrorKind::Backpressure);
        assert!(honest, "{code}: {number}: {error:?}");
    }
}

/// 57: with `appendfsync everysec` every write is refused while the disk is full, those of consumers too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_all_goes_on_when_there_is_room() {
    let disk = Disk::new("4m");
    let builder = Server::builder().within(disk.path()).appendonly(true).arg("--appendfsync", "everysec");
    let server = builder.start();
    let mut pair = Pair::begin(&server.url(), Work { time_limit: MS(1_500), ..Work::default() }).await;
    let before = clients(&server);
    disk.fill();
    refused(&mut pair, "MISCONF").await;
    pair.tells("MISCONF").await;
    tokio::time::sleep(MS(3_000)).await;
    let during = clients(&server);
    disk.free();
    let began = Instant::now();
    pair.all_handled().await;
    let text = format!(
        "full disk, everysec: {} sends refused, {during} connections ({before} before), all handled {:.1?} after there was \
         room, {} handled again",
        pair.refused.len(),
        began.elapsed(),
        pair.doubled()
    );
    figure("fault", &text);
    assert!(during <= before + 4, "{during} connections, {before} before");
    pair.lives_on().await;
}

/// 58: with `appendfsync always` the server ends. Nothing that was confirmed is lost, and nobody calls it without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_on_a_full_disk_is_waited_for_without_haste() {
    let disk = Disk::new("4m");
    let builder = Server::builder().within(disk.path()).appendonly(true).arg("--appendfsync", "always");
    let mut server = builder.start();
    let proxy = Proxy::to(server.port());
    let mut pair = Pair::begin(&proxy.url(), Work { time_limit: MS(1_500), ..Work::default() }).await;
    let connections = proxy.connections();
    disk.fill();
    refused(&mut pair, "away").await;
    let away = async || server.try_cli(&["PING"]).is_err();
    integration_tests::eventually(away, "the server has ended").await;
    let before = proxy.accepted();
    let time = MS(4_000);
    tokio::time::sleep(time).await;
    let calls = proxy.accepted() - before;
    disk.free();
    server.restart();
    pair.all_handled().await;
    let text = format!(
        "full disk, always: {calls} calls in {time:?} for {connections} connections, {} handled again",
        pair.doubled()
    );
    figure("fault", &text);
    // Three kinds of waits share connections: who waits calls for itself all the same.
    let callers = connections as u64 + 3;
    assert!(calls <= callers * 40, "{calls} calls for {connections} connections in {time:?}");
    pair.lives_on().await;
}

/// 59: snapshots cannot be written, and the server takes no writes until one can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_fails_stops_writes_and_all_goes_on_after_one_that_does_not() {
    let disk = Disk::new("2m");
    let server = Server::builder().within(disk.path()).start();
    server.cli(&["CONFIG", "SET", "save", "3600 1000000"]);
    let mut pair = Pair::begin(&server.url(), Work { time_limit: MS(1_500), ..Work::default() }).await;
    let before = clients(&server);
    disk.fill();
    server.cli(&["BGSAVE"]);
    let failed = async || server.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err");
    integration_tests::eventually(failed, "the snapshot fails").await;
    refused(&mut pair, "MISCONF").await;
    pair.tells("MISCONF").await;
    tokio::time::sleep(MS(2_500)).await;
    let during = clients(&server);
    disk.free();
    server.cli(&["BGSAVE"]);
    pair.all_handled().await;
    figure(
        "fault",
        &format!("no snapshot: {} sends refused, {during} connections, {before} before", pair.refused.len()),
    );
    assert!(during <= before + 4, "{during} connections, {before} before");
    assert_eq!(pair.doubled(), 0, "nobody lost anything");
    pair.lives_on().await;
}

/// 56: the power goes, and with it the end of the file. What is lost is the end of each log; what was settled in that end comes
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_lost_its_end_loses_the_newest_and_repeats_what_was_settled() {
    let mut server = Server::builder().appendonly(true).start();
    let work = Work { takes: MS(120), ..Work::default() };
    let mut pair = Pair::begin(&server.url(), work).await;
    for _ in 0..10 {
        pair.send(60).await;
        tokio::time::sleep(MS(50)).await;
    }
    server.kill();
    let folder = server.dir().join("appendonlydir");
    let newest = fs::read_dir(folder).expect("files").map(|file| file.expect("a file").path());
    let newest =
        newest.filter(|path| path.to_string_lossy().contains(".incr.")).max().expect("an append-only file");
    let length = fs::metadata(&newest).expect("a length").len();
    fs::OpenOptions::new()
        .write(true)
        .open(&newest)
        .and_then(|file| file.set_len(length * 2 / 3))
        .expect("cut");
    server.restart();

    // What the server has lost it had not handed out: whatever is still there is handled.
    let mut ends = BTreeMap::new();
    for partition in 0..super::PARTITIONS {
        let log = format!("stream:topic:{{items:p:{partition}}}");
        let text = server.cli(&["XINFO", "STREAM", &log]);
        let id = text.lines().skip_while(|line| *line != "last-generated-id").nth(1).expect("an id");
        ends.insert(partition, id.parse::<millstream::MessageId>().expect("an id"));
    }
    let after = |number: &u64| pair.confirmed[number].1 > ends[&pair.confirmed[number].0];
    let lost: BTreeSet<u64> = pair.confirmed.keys().filter(|number| after(number)).copied().collect();
    assert!(!lost.is_empty(), "something is lost");
    pair.all_handled_but(&lost).await;
    let never = pair.missing();
    assert!(never.is_subset(&lost), "only the end is lost: {never:?}");
    let handled = pair.handled.lock().expect("lock").clone();
    let twice: Vec<_> = handled.iter().filter(|(_, calls)| calls.len() > 1).collect();
    let text = format!(
        "lost end of a file: {} lost, {} of them never handled, {} handled again",
        lost.len(),
        never.len(),
        twice.len()
    );
    figure("fault", &text);
    for (number, calls) in &handled {
        assert!(calls.len() <= 2, "{number} comes again at most once: {calls:?}");
    }
    pair.lives_on_but(&lost).await;
}

/// 54: without a file everything is gone. That is reported, and later messages are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_file_forgets_and_that_is_told() {
    let mut server = Server::start();
    let mut pair = Pair::begin(&server.url(), Work { takes: MS(100), ..Work::default() }).await;
    pair.send(200).await;
    server.kill();
    server.restart();
    let told = async || pair.told("GroupRestored") + pair.told("LeaseLost") + pair.told("TailLost") > 0;
    integration_tests::eventually(told, "the loss is told").await;
    let before: BTreeSet<u64> = pair.confirmed.keys().copied().collect();
    pair.lives_on_but(&before).await;
}
