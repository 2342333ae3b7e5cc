//! `claim_dead`, `settle_dead`, `put_dead`: what is kept for how long, what large letters cost, and a server that is full.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::dead_letters::{
    Claim, DeadLetter, DeadLetterAction, DeadLetterRetention, DeadLetters, Reason, TrimBy,
};
use millstream_core::error::ErrorKind;
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::inspect::{MAX_PAGE_BYTES, Range};
use millstream_core::wire::Fields;
use redis::Value;

use crate::server::{Bench, message};

const HOLD: Duration = Duration::from_secs(60);

fn claim(by: &str) -> Claim {
    Claim { by: by.into(), hold: HOLD, left_too: false }
}

/// Puts so many letters with this body; gives back their ids.
pub(crate) async fn bury(bench: &Bench, count: u64, body: &Fields) -> Vec<MessageId> {
    let letter = |number| DeadLetter {
        id: MessageId::new(number, 1),
        reason: Reason::Exhausted,
        attempts: 2,
        error: "boom".into(),
        origin: MessageId::new(number, 2),
        topic_partition: bench.tp.clone(),
        group: bench.group.clone(),
        history: History::default(),
        body: body.clone(),
    };
    let letters: Vec<_> = (1..=count).map(letter).collect();
    let put = bench.backend.put(&bench.tp, &bench.group, &letters, true).await.expect("put");
    put.into_iter().map(|id| id.expect("put")).collect()
}

/// Runs every script of the role.
pub(crate) async fn life(bench: &mut Bench) {
    let ids = bury(bench, 4, &message("x")).await;
    let (tp, group) = (&bench.tp, &bench.group);
    assert_eq!(bench.backend.claim(tp, group, &ids[..3], &claim("a")).await.expect("claimed"), ids[..3]);
    let deeds = [
        (ids[0], DeadLetterAction::ReplayAs(message("y"))),
        (ids[1], DeadLetterAction::Purge),
        (ids[2], DeadLetterAction::Leave(HOLD)),
        (ids[3], DeadLetterAction::Replay),
    ];
    assert_eq!(bench.backend.settle(tp, group, Some("a"), &deeds).await.expect("settled"), ids);
    let kept = DeadLetterRetention::length(1_000);
    for by in [TrimBy::DryRun, TrimBy::Owner(&bench.lease), TrimBy::Operator] {
        assert_eq!(bench.backend.trim(tp, group, kept, by).await.expect("trimmed").dropped(), 0);
    }
    assert!(bench.backend.purge_through(tp, group, MessageId::MAX).await.expect("purged") >= 1);
    // What came back is not what the rest of the life is about.
    let retry_log = bench.retry_log();
    bench.cmd(&format!("XTRIM {retry_log} MAXLEN 0")).await;
}

#[tokio::test]
async fn claims_and_imports_are_forgotten_by_themselves() {
    let mut bench = Bench::new().await;
    let ids = bury(&bench, 3, &message("x")).await;
    let claims = bench.keys.dead_claims(&bench.tp, &bench.group);
    let imports = bench.keys.dead_imports(&bench.tp, &bench.group);
    let ttl = bench.int(&format!("TTL {imports}")).await;
    assert!((7 * 86_400 - 60..=7 * 86_400).contains(&ttl), "{ttl} s");
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    bench.backend.claim(&tp, &group, &ids, &claim("a")).await.expect("claimed");
    let ttl = bench.int(&format!("PTTL {claims}")).await;
    assert!((30_000..=60_000).contains(&ttl), "{ttl} ms");
    let brief = Claim { hold: Duration::from_secs(1), ..claim("a") };
    bench.backend.claim(&tp, &group, &ids[..1], &brief).await.expect("claimed");
    assert!(bench.int(&format!("PTTL {claims}")).await > 30_000, "the longest claim says how long");
    let leave = [(ids[0], DeadLetterAction::Leave(2 * HOLD))];
    bench.backend.settle(&tp, &group, Some("a"), &leave).await.expect("left");
    assert!(bench.int(&format!("PTTL {claims}")).await > 90_000);
    bench.backend.settle(&tp, &group, Some("a"), &ids.map_to(DeadLetterAction::Purge)).await.expect("purged");
    assert_eq!(bench.backend.purge(&tp, &group, &ids).await.expect("purged"), 1, "what was left is nobody's");
    assert_eq!(bench.int(&format!("EXISTS {claims}")).await, 0, "nothing is left of what is settled");
}

trait MapTo {
    fn map_to(&self, deed: DeadLetterAction) -> Vec<(MessageId, DeadLetterAction)>;
}

impl MapTo for Vec<MessageId> {
    fn map_to(&self, deed: DeadLetterAction) -> Vec<(MessageId, DeadLetterAction)> {
        self.iter().map(|id| (*id, deed.clone())).collect()
    }
}

/// How often scripts were called so far.
async fn calls(bench: &mut Bench) -> u64 {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut bench.raw).await.expect("info");
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).expect("a count");
    line.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number")
}

#[tokio::test]
async fn large_letters_are_dealt_with_a_few_at_a_time() {
    let mut bench = Bench::private(&[]).await;
    let body: Fields = vec![(Bytes::from_static(b"payload"), Bytes::from(vec![b'x'; 512 << 10]))];
    let ids = bury(&bench, 24, &body).await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let page = bench.backend.list(&tp, &group, Range::ALL, 1_000).await.expect("listed");
    let bytes: usize = page.items.iter().map(|letter| letter.body[0].1.len()).sum();
    assert!(page.more && bytes <= MAX_PAGE_BYTES + (6 << 20), "{bytes} bytes in a page");

    let before = calls(&mut bench).await;
    assert_eq!(bench.backend.claim(&tp, &group, &ids, &claim("a")).await.expect("claimed"), ids);
    let claimed = calls(&mut bench).await;
    // And one that the server does not know the script yet.
    assert_eq!(claimed - before, 12 + 1, "two letters are 1 MiB");
    let replays = ids.map_to(DeadLetterAction::Replay);
    assert_eq!(bench.backend.settle(&tp, &group, Some("a"), &replays).await.expect("replayed"), ids);
    assert_eq!(calls(&mut bench).await - claimed, 12 + 1);
    let retry_log = bench.retry_log();
    assert_eq!(bench.int(&format!("XLEN {retry_log}")).await, 24);
}

#[tokio::test]
async fn a_page_of_letters_ends_soon_after_its_bytes_are_full() {
    let bench = Bench::new().await;
    let body: Fields = vec![(Bytes::from_static(b"payload"), Bytes::from(vec![b'x'; 100 << 10]))];
    bury(&bench, 60, &body).await;
    let page = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 1_000).await.expect("listed");
    let bytes: usize = page.items.iter().map(|letter| letter.body[0].1.len()).sum();
    // Each command reads about 256 KiB, so a page is not much more than it may be.
    assert!(page.more && bytes <= MAX_PAGE_BYTES + (512 << 10), "{bytes} bytes in a page");
    assert!(bytes >= MAX_PAGE_BYTES - (512 << 10), "{bytes} bytes in a page that is not the last");
}

/// Nobody settles these letters, so their claims only run out.
#[tokio::test]
async fn claims_that_ran_out_are_forgotten_while_claims_go_on() {
    let mut bench = Bench::new().await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let claims = bench.keys.dead_claims(&tp, &group);
    let ids = bury(&bench, 201, &message("x")).await;
    // The longest claim keeps the hash itself.
    bench.backend.claim(&tp, &group, &ids[200..], &claim("a")).await.expect("claimed");
    let brief = Claim { hold: Duration::from_millis(1), ..claim("b") };
    assert_eq!(bench.backend.claim(&tp, &group, &ids[..200], &brief).await.expect("claimed"), ids[..200]);
    // Each claim looks at a hundred others, any of them.
    let mut left = i64::MAX;
    for _ in 0..1_000 {
        bench.backend.claim(&tp, &group, &ids[200..], &claim("a")).await.expect("claimed");
        left = bench.int(&format!("HLEN {claims}")).await;
        if left == 1 {
            break;
        }
    }
    assert_eq!(left, 1, "the claim that holds");
}

#[tokio::test]
async fn a_full_server_refuses_a_replay_and_no_purge() {
    let mut bench = Bench::private(&[]).await;
    let ids = bury(&bench, 2, &message("x")).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let refused = bench.backend.replay(&tp, &group, &ids).await.expect_err("refused");
    assert!(refused.is_transient(), "{refused}");
    bench.backend.claim(&tp, &group, &ids, &claim("a")).await.expect_err("refused");
    assert_eq!(bench.backend.purge(&tp, &group, &ids[..1]).await.expect("purged"), 1);
    bench.cmd("CONFIG SET maxmemory 0").await;
    assert_eq!(bench.backend.replay(&tp, &group, &ids).await.expect("replayed"), 1);
}

#[tokio::test]
async fn a_foreign_type_loses_nothing() {
    let mut bench = Bench::new().await;
    let ids = bury(&bench, 2, &message("x")).await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let (retry_log, claims) = (bench.retry_log(), bench.keys.dead_claims(&tp, &group));
    bench.cmd(&format!("DEL {retry_log}")).await;
    bench.cmd(&format!("SET {retry_log} theirs")).await;
    let refused = bench.backend.replay(&tp, &group, &ids).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::WrongType);
    bench.cmd(&format!("DEL {retry_log}")).await;
    bench.cmd(&format!("SET {claims} theirs")).await;
    for refused in [
        bench.backend.replay(&tp, &group, &ids).await.map(|_| ()),
        bench.backend.claim(&tp, &group, &ids, &claim("a")).await.map(|_| ()),
    ] {
        assert_eq!(refused.expect_err("refused").kind(), ErrorKind::WrongType);
    }
    assert_eq!(bench.backend.list(&tp, &group, Range::ALL, 9).await.expect("listed").items.len(), 2);
}

#[tokio::test]
async fn a_claim_from_a_clock_that_went_back_holds_no_longer_than_it_asked() {
    let mut bench = Bench::new().await;
    let ids = bury(&bench, 2, &message("x")).await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let claims = bench.keys.dead_claims(&tp, &group);
    let Value::Array(time) = bench.cmd("TIME").await else { panic!("no time") };
    let Value::BulkString(seconds) = &time[0] else { panic!("no seconds") };
    let now: u64 = std::str::from_utf8(seconds).expect("text").parse().expect("a number");
    // Until in an hour, of one who asked for ten seconds; and what is no claim at all.
    let until = (now + 3_600) * 1_000;
    bench.raw_hset(&claims, ids[0], &format!("{until} 10000 somebody")).await;
    bench.raw_hset(&claims, ids[1], "what is this").await;
    assert_eq!(bench.backend.claim(&tp, &group, &ids, &claim("a")).await.expect("claimed"), ids);
}

impl Bench {
    pub(crate) async fn raw_hset(&mut self, key: &millstream_core::keys::Key, id: MessageId, value: &str) {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(key.as_str()).arg(id.to_string()).arg(value);
        cmd.exec_async(&mut self.raw).await.expect("set");
    }
}

/// Claims go on, so the hash never ends by itself; the letters were deleted behind our back.
#[tokio::test]
async fn claims_of_letters_that_were_purged_are_forgotten_while_claims_go_on() {
    let mut bench = Bench::new().await;
    let (tp, group) = (bench.tp.clone(), bench.group.clone());
    let (dlq, claims) = (bench.dlq(), bench.keys.dead_claims(&tp, &group));
    let ids = bury(&bench, 1_000, &message("x")).await;
    assert_eq!(bench.backend.claim(&tp, &group, &ids, &claim("a")).await.expect("claimed").len(), 1_000);
    bench.cmd(&format!("XTRIM {dlq} MAXLEN 0")).await;
    for round in 0..20 {
        let one = bury(&bench, 1, &message("x")).await;
        let claimed = bench.backend.claim(&tp, &group, &one, &claim("a")).await.expect("claimed");
        assert_eq!(claimed, one, "round {round}");
    }
    let left = bench.int(&format!("HLEN {claims}")).await;
    assert_eq!(left, 20, "those whose letters are there");
}
