//! heartbeat, leave, roster, publish: who is in a group, whatever happens to members, keys and server.

pub(crate) mod together;

use std::time::Duration;

use millstream_core::catalog::Catalog;
use millstream_core::continuity::Continuity;
use millstream_core::error::ErrorKind;
use millstream_core::keys::Key;
use millstream_core::members::{Assignment, HeartbeatReply, Member, Members, Version};
use millstream_core::name::MemberId;
use millstream_core::topic::Partition;
use tokio::time::sleep;

use crate::server::Bench;

pub(crate) fn member(id: &str, incarnation: &str) -> Member {
    Member::new(MemberId::new(id).expect("name"), incarnation, Duration::from_secs(30))
}

/// Long enough for a few requests on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_millis(250);
const PAST_IT: Duration = Duration::from_millis(300);

pub(crate) fn short(id: &str) -> Member {
    Member::new(MemberId::new(id).expect("name"), "i", SHORT)
}

pub(crate) fn assignment(of: &[(&str, &[u32])]) -> Assignment {
    let one = |(id, list): &(&str, &[u32])| {
        (MemberId::new(id).expect("name"), list.iter().copied().map(Partition).collect())
    };
    of.iter().map(one).collect()
}

impl Bench {
    pub(crate) async fn beat(&self, member: &Member, joining: bool) -> HeartbeatReply {
        self.backend.heartbeat(&self.spec.name, &self.group, member, joining).await.expect("a pulse")
    }

    pub(crate) async fn publish(&self, version: Version, assignment: &Assignment) -> bool {
        self.backend.publish(&self.spec.name, &self.group, version, assignment).await.expect("an answer")
    }

    fn member_keys(&self) -> [Key; 4] {
        let (topic, group) = (&self.spec.name, &self.group);
        [
            self.keys.members(topic, group),
            self.keys.member(topic, group),
            self.keys.assignment(topic, group),
            self.keys.changes(topic, group),
        ]
    }
}

#[tokio::test]
async fn a_member_is_told_what_it_should_own_and_new_wishes_ask_anew() {
    let mut bench = Bench::new().await;
    let [members, texts, stored, _] = bench.member_keys();
    let (a, b) = (member("a", "a-1"), member("b", "b-1"));
    let first = bench.beat(&a, true).await;
    assert_eq!((first.members, first.partitions, first.assigned.clone()), (1, 1, None));
    assert!(first.next_expiry <= a.ttl && first.next_expiry > a.ttl / 2, "{first:?}");
    assert_eq!(bench.beat(&a, false).await.version, first.version);
    assert_eq!(bench.beat(&a, true).await.version, first.version, "the same request again");
    let both = bench.beat(&b, true).await;
    assert!(both.version > first.version && both.revision > first.revision && both.members == 2);

    assert!(!bench.publish(first.version, &assignment(&[("a", &[0])])).await, "not the newest any more");
    assert!(bench.publish(both.version, &assignment(&[("a", &[0])])).await);
    assert!(!bench.publish(both.version, &assignment(&[("b", &[0])])).await, "the first one wins");
    let pulse = bench.beat(&a, false).await;
    assert_eq!(pulse.assigned, Some(vec![Partition(0)]));
    assert!(pulse.revision > both.revision && pulse.version == both.version);
    assert_eq!(bench.beat(&b, false).await.assigned, Some(Vec::new()), "nothing, and that is known");

    let wanting = b.clone().at_most(1).pinned_to([Partition(0), Partition(2), Partition(1)]);
    let pulse = bench.beat(&wanting, false).await;
    assert!(pulse.version > both.version);
    assert_eq!(pulse.assigned, None);
    let text = format!("{:?}", bench.cmd(&format!("HGET {texts} b")).await);
    assert!(text.contains("b-1 30000 1 0-2"), "{text}");
    let roster = bench.backend.roster(&bench.spec.name, &bench.group).await.expect("a roster");
    assert_eq!((roster.version, roster.revision, roster.partitions), (pulse.version, pulse.revision, 1));
    let ids: Vec<_> = roster.members.iter().map(|member| member.id.to_string()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(roster.members[1].max_partitions, Some(1));
    assert_eq!((roster.assigned, roster.assignment), (Some(both.version), assignment(&[("a", &[0])])));

    bench.backend.leave(&bench.spec.name, &bench.group, &wanting).await.expect("left");
    let last = bench.beat(&a, false).await;
    assert!(last.version > pulse.version && last.members == 1 && last.assigned.is_none());
    assert!(bench.publish(last.version, &Assignment::new()).await, "nobody has to own anything");
    assert_eq!(bench.int(&format!("HLEN {stored}")).await, 1);
    assert_eq!(bench.int(&format!("ZCARD {members}")).await, 1);
    assert_eq!(bench.int(&format!("HLEN {texts}")).await, 3, "a, :version, :partitions");
}

#[tokio::test]
async fn an_id_is_taken_over_by_who_joins_and_by_nobody_else() {
    let bench = Bench::new().await;
    let (topic, group) = (&bench.spec.name, &bench.group);
    let (old, new) = (member("a", "old"), member("a", "new"));
    let before = bench.beat(&old, true).await;
    let error = bench.backend.heartbeat(topic, group, &new, false).await.expect_err("somebody has it");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(bench.beat(&new, true).await.version, before.version, "a restart alone moves nothing");
    let error = bench.backend.heartbeat(topic, group, &old, false).await.expect_err("taken over");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.to_string().contains("member id a"), "{error}");
    bench.backend.leave(topic, group, &old).await.expect("nothing to do");
    assert_eq!(bench.beat(&new, false).await.version, before.version, "it was not its own any more");
    bench.backend.leave(topic, group, &new).await.expect("left");
    bench.backend.leave(topic, group, &new).await.expect("left already");
    let roster = bench.backend.roster(topic, group).await.expect("a roster");
    assert!(roster.members.is_empty() && roster.version > before.version);

    let nowhere = "nowhere".parse().expect("name");
    let error = bench.backend.heartbeat(&nowhere, group, &old, true).await.expect_err("no topic");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let roster = bench.backend.roster(&nowhere, group).await.expect("a roster");
    assert_eq!((roster.partitions, roster.version, roster.members.len()), (0, Version(0), 0));
    let spaces = member("a", "two words");
    let error = bench.backend.heartbeat(topic, group, &spaces, true).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

/// A heartbeat of one that keeps the record of what it was answered.
async fn beat_with(bench: &Bench, member: &Member, continuity: &mut Continuity) -> HeartbeatReply {
    let pulse = bench.beat(&member.clone().with_continuity(continuity.clone()), false).await;
    continuity.advance(&pulse.server, pulse.now);
    pulse
}

#[tokio::test]
async fn the_dead_are_dropped_by_who_was_answered_for_a_ttl() {
    let mut bench = Bench::new().await;
    let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
    let (a, b) = (short("a"), short("b"));
    bench.beat(&a, true).await;
    let before = bench.beat(&b, true).await;
    assert!(bench.publish(before.version, &assignment(&[("a", &[0]), ("b", &[])])).await);
    sleep(PAST_IT).await;
    let roster = bench.backend.roster(&topic, &group).await.expect("a roster");
    assert_eq!((roster.members.len(), roster.living().count()), (2, 0), "overdue, and not dropped");

    // As after an outage of the server: all were silent, one is the first to come back.
    let mut continuity = Continuity::new(SHORT);
    let back = beat_with(&bench, &a, &mut continuity).await;
    assert_eq!((back.version, back.members), (before.version, 2), "nobody is dropped");
    assert_eq!(back.assigned, Some(vec![Partition(0)]));
    assert_eq!(back.next_expiry, SHORT, "until then it cannot do anything about the other");
    let info = format!("{:?}", bench.cmd("INFO").await);
    let (run, replica) = back.server.split_once('.').expect("two words");
    assert!(info.contains(run) && info.contains(replica) && run.len() == 40 && replica.len() == 40);
    assert_eq!(bench.beat(&b, false).await.version, before.version);
    let alone = loop {
        let pulse = beat_with(&bench, &a, &mut continuity).await;
        if pulse.members == 1 {
            break pulse;
        }
        assert_eq!(pulse.version, before.version);
        sleep(Duration::from_millis(10)).await;
    };
    assert!(
        alone.version > before.version && alone.now >= back.now.saturating_add(Duration::from_millis(250)),
        "{alone:?} after {back:?}"
    );
    let error = bench.backend.heartbeat(&topic, &group, &b, false).await.expect_err("it was dropped");
    assert_eq!(error.kind(), ErrorKind::NotMember, "{error}");
    let again = bench.beat(&b, true).await;
    assert!(again.version > alone.version && again.members == 2, "it is simply added again");
}

/// Nobody is dropped by requests that waited while the server stood still, nor after it was started again.
#[tokio::test]
async fn a_server_that_was_away_lets_nobody_judge() {
    let bench = Bench::private(&["--enable-debug-command", "yes"]).await;
    let (a, b) = (short("a"), short("b"));
    bench.beat(&a, true).await;
    bench.beat(&b, true).await;
    let mut continuity = Continuity::new(SHORT);
    let mut last = bench.beat(&a, false).await;
    let first = last.now;
    while last.now < first.saturating_add(Duration::from_millis(300)) {
        last = beat_with(&bench, &a, &mut continuity).await;
        bench.beat(&b, false).await;
        sleep(Duration::from_millis(10)).await;
    }
    assert!(continuity.is_whole());
    // It stands still for longer than a ttl, with a heartbeat of one that judged a moment ago in its socket.
    let sleeper = bench.url.clone();
    let still = tokio::spawn(async move {
        let mut raw = crate::server::raw_connection(&sleeper).await;
        redis::cmd("DEBUG").arg(&["SLEEP", "0.4"]).exec_async(&mut raw).await.expect("slept");
    });
    sleep(Duration::from_millis(50)).await;
    let late = beat_with(&bench, &a, &mut continuity).await;
    still.await.expect("no panic");
    assert!(late.now >= last.now.saturating_add(Duration::from_millis(300)), "it was not held up: {late:?}");
    assert_eq!(late.members, 2, "b had no chance to send a heartbeat");
    assert!(!continuity.is_whole(), "the gap begins a new ttl");
    assert_eq!(bench.beat(&b, false).await.members, 2);
    // Another server may have been away, however soon it answers.
    let mut known = Continuity::new(Duration::from_millis(2));
    (0..4).for_each(|ms| {
        known.advance(
            "of.before",
            late.now.saturating_sub(Duration::from_millis(4)).saturating_add(Duration::from_millis(ms)),
        );
    });
    sleep(PAST_IT).await;
    let now = bench.beat(&a, false).await;
    let mut elsewhere = Continuity::new(SHORT);
    for at in [300, 200, 100, 0] {
        elsewhere.advance("of.before", now.now.saturating_sub(Duration::from_millis(at)));
    }
    assert!(elsewhere.is_whole());
    assert_eq!(bench.beat(&a.clone().with_continuity(elsewhere.clone()), false).await.members, 2);
    // The same record, of this server, judges.
    let mut here = Continuity::new(SHORT);
    for at in [300, 200, 100, 0] {
        here.advance(&now.server, now.now.saturating_sub(Duration::from_millis(at)));
    }
    assert_eq!(bench.beat(&a.clone().with_continuity(here), false).await.members, 1);
}

#[tokio::test]
async fn after_a_flush_members_are_there_again_and_no_version_comes_twice() {
    let mut bench = Bench::private(&[]).await;
    let (a, b) = (member("a", "a-1"), member("b", "b-1"));
    bench.beat(&a, true).await;
    let before = bench.beat(&b, true).await;
    bench.cmd("FLUSHALL").await;
    // The clock carries on, as it does over every fail-over.
    sleep(Duration::from_millis(5)).await;
    let error =
        bench.backend.heartbeat(&bench.spec.name, &bench.group, &a, false).await.expect_err("no topic");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    bench.backend.create_topic(&bench.spec).await.expect("created");
    bench.beat(&a, true).await;
    let after = bench.beat(&b, true).await;
    assert!(after.version > before.version && after.revision > before.revision && after.members == 2);
    assert!(!bench.publish(before.version, &assignment(&[("a", &[0])])).await, "a plan from before");

    // Only the newest version was lost, as in a fail-over.
    let [_, texts, ..] = bench.member_keys();
    bench.cmd(&format!("HSET {texts} :version 7")).await;
    sleep(Duration::from_millis(5)).await;
    let changed = bench.beat(&b.clone().at_most(1), false).await;
    assert!(changed.version > after.version, "{changed:?}");
    // Or it is gone without the rest.
    bench.cmd(&format!("HDEL {texts} :version")).await;
    sleep(Duration::from_millis(5)).await;
    assert!(bench.beat(&b.clone().at_most(1), false).await.version > changed.version);
    // The clock went back, or somebody wrote nonsense: it grows all the same.
    bench.cmd(&format!("HSET {texts} :version 9007199254740000")).await;
    assert_eq!(bench.beat(&b, false).await.version, Version(9_007_199_254_740_001));
}

#[tokio::test]
async fn a_heartbeat_drops_a_bounded_number_of_dead_members() {
    let mut bench = Bench::new().await;
    let [members, texts, ..] = bench.member_keys();
    let a = member("a", "a-1");
    let before = bench.beat(&a, true).await;
    let mut pipe = redis::pipe();
    for n in 0..2_500 {
        pipe.cmd("ZADD").arg(members.as_str()).arg(1_000 + n).arg(format!("dead-{n}"));
        pipe.cmd("HSET").arg(texts.as_str()).arg(format!("dead-{n}")).arg("i 1000 - -");
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let mut last = before;
    let waits = bench.beat(&a, false).await;
    assert_eq!((waits.members, waits.next_expiry), (2_501, a.ttl), "it cannot do anything before");
    let judge = a.clone().with_continuity(Continuity::assured());
    for left in [1_501, 501, 1] {
        let pulse = bench.beat(&judge, false).await;
        assert_eq!(pulse.members, left);
        assert!(pulse.version > last.version);
        assert_eq!(pulse.next_expiry == Duration::ZERO, left > 1, "it tells that there is more to do");
        last = pulse;
    }
    assert_eq!(bench.int(&format!("HLEN {texts}")).await, 3);
    assert_eq!(bench.beat(&a, false).await.version, last.version);
}

#[tokio::test]
async fn a_clock_that_went_back_keeps_nobody_alive() {
    let mut bench = Bench::new().await;
    let [members, ..] = bench.member_keys();
    let a = member("a", "a-1");
    let dead = short("dead");
    bench.beat(&a, true).await;
    bench.beat(&dead, true).await;
    for name in ["dead", "a"] {
        bench.cmd(&format!("ZADD {members} 9007199254740000 {name}")).await;
    }
    assert_eq!(bench.beat(&a, false).await.members, 2);
    sleep(PAST_IT).await;
    assert_eq!(bench.beat(&a.clone().with_continuity(Continuity::assured()), false).await.members, 1);
}

#[tokio::test]
async fn a_topic_that_has_grown_makes_a_new_version() {
    let bench = Bench::new().await;
    let a = member("a", "a-1");
    let before = bench.beat(&a, true).await;
    assert!(bench.publish(before.version, &assignment(&[("a", &[0])])).await);
    bench.backend.expand(&bench.spec.name, 5).await.expect("expanded");
    let after = bench.beat(&a, false).await;
    assert!(after.version > before.version && after.partitions == 5 && after.assigned.is_none());
    assert_eq!(bench.beat(&a, false).await.version, after.version);
}

#[tokio::test]
async fn out_of_memory_members_come_and_go() {
    let mut bench = Bench::private(&[]).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    let (a, b) = (member("a", "a-1"), member("b", "b-1"));
    bench.beat(&a, true).await;
    let pulse = bench.beat(&b, true).await;
    let roster = bench.backend.roster(&bench.spec.name, &bench.group).await.expect("a roster");
    assert_eq!((roster.members.len(), roster.version), (2, pulse.version));
    assert!(bench.publish(pulse.version, &assignment(&[("a", &[0]), ("b", &[])])).await);
    assert_eq!(bench.beat(&a, false).await.assigned, Some(vec![Partition(0)]));
    bench.backend.leave(&bench.spec.name, &bench.group, &a).await.expect("left");
    assert_eq!(bench.beat(&b, false).await.members, 1);
}

#[tokio::test]
async fn a_foreign_type_is_named_and_nothing_is_changed() {
    let mut bench = Bench::new().await;
    let (a, b) = (member("a", "a-1"), member("b", "b-1"));
    let pulse = bench.beat(&a, true).await;
    assert!(bench.publish(pulse.version, &assignment(&[("a", &[0])])).await);
    let a = a.at_most(7);
    let pulse = bench.beat(&a, false).await;
    let (topic, group) = (bench.spec.name.clone(), bench.group.clone());
    let keys = bench.member_keys();
    for (at, broken) in keys.iter().enumerate() {
        bench.cmd(&format!("RENAME {broken} {broken}:aside")).await;
        bench.cmd(&format!("SET {broken} x")).await;
        let mut before = Vec::new();
        for key in &keys {
            before.push(bench.cmd(&format!("DUMP {key}")).await);
        }
        let plan = assignment(&[("a", &[0])]);
        let mut errors = vec![
            ("heartbeat", bench.backend.heartbeat(&topic, &group, &b, true).await.err()),
            ("roster", bench.backend.roster(&topic, &group).await.err()),
        ];
        if at != 2 {
            errors.push(("leave", bench.backend.leave(&topic, &group, &a).await.err()));
        }
        if at != 0 {
            let published = bench.backend.publish(&topic, &group, pulse.version, &plan).await;
            errors.push(("publish", published.err()));
        }
        for (verb, error) in errors {
            let error = error.unwrap_or_else(|| panic!("{verb} with {broken}"));
            assert_eq!(error.kind(), ErrorKind::WrongType, "{verb} with {broken}: {error}");
            assert!(error.to_string().contains(group.as_str()), "{error}");
        }
        for (key, before) in keys.iter().zip(before) {
            assert_eq!(bench.cmd(&format!("DUMP {key}")).await, before, "{key} while {broken} is foreign");
        }
        bench.cmd(&format!("RENAME {broken}:aside {broken}")).await;
    }
    assert_eq!(bench.beat(&a, false).await.version, pulse.version);
}
