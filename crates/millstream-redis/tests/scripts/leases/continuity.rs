//! Which server has answered, in every script that judges: after a change of its role, and where it gives no name.

use std::time::Duration;

use millstream_core::continuity::{Continuity, UNNAMED};
use millstream_core::leases::{Acquired, Leases};
use millstream_core::schedule::Schedule;
use millstream_core::shared::{Shared, SharedMember};
use millstream_core::tasks::ClaimRequest;
use millstream_core::topic::Partition;

use crate::members::{SHORT, short};
use crate::server::{Bench, TTL};
use crate::tasks::{ask, shard};

/// Everything that one client may take from another: each of them has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    members: bool,
    lease: bool,
    entries: bool,
    tasks: bool,
}

const ALL: Taken = Taken { members: true, lease: true, entries: true, tasks: true };

fn member(bench: &Bench, name: &str) -> SharedMember {
    let consumer = name.parse().expect("a name");
    SharedMember::new(bench.spec.name.clone(), bench.group.clone(), consumer)
}

/// Leaves a member, a lease, an entry and a task to others, and returns the server's name.
async fn leave_behind(bench: &mut Bench) -> String {
    let server = bench.beat(&short("a"), true).await.server;
    bench.beat(&short("b"), true).await;
    let lease = bench.keys.lease(&bench.tp, &bench.group);
    bench.cmd(&format!("DEL {lease}")).await;
    bench.append_many(1).await;
    let mut reader =
        bench.backend.shared_reader(&member(bench, "one"), &[Partition(0)]).await.expect("a reader");
    assert_eq!(reader.fetch(1, Duration::ZERO).await.expect("fetched").len(), 1);
    bench.put_now(["t".into()]).await;
    let task = bench.claim(&ClaimRequest { hold: SHORT, ..ask("w", 1) }).await.tasks.remove(0);
    let ours = [(task.id, task.token)];
    let extended = bench.tasks().extend(&shard(), &ours, SHORT, true).await.expect("extended");
    assert_eq!((extended.ours, &extended.server), (vec![true], &server), "every script gives one name");
    // The claim is the last of them that expires.
    while bench.counts().await.expired == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server
}

/// Returns what a client takes to which `server` has replied without a gap for longer than a ttl.
async fn taken(bench: &Bench, server: &str) -> Taken {
    // The newest answer is that of this moment: nothing but the name decides.
    let record = async || {
        let (now, mut continuity) = (bench.backend.now().await.expect("a time"), Continuity::new(SHORT));
        [300, 200, 100, 0]
            .iter()
            .for_each(|ago| continuity.advance(server, now.saturating_sub(Duration::from_millis(*ago))));
        continuity
    };
    let a = short("a").with_continuity(record().await);
    let members = bench.beat(&a, false).await.members == 1;
    let continuity = record().await;
    let acquired =
        bench.backend.acquire(&bench.resource(), "a", "other", TTL, &continuity).await.expect("asked");
    let (two, continuity) = (member(bench, "two"), record().await);
    let claimed = bench.backend.claim(&two, Partition(0), &[], Duration::ZERO, 1, &continuity).await;
    let tasks = bench.claim(&ClaimRequest { continuity: record().await, ..ask("v", 1) }).await.tasks;
    Taken {
        members,
        lease: matches!(acquired, Acquired::Granted(_)),
        entries: !claimed.expect("claimed").abandoned.entries.is_empty(),
        tasks: !tasks.is_empty(),
    }
}

#[tokio::test]
async fn a_new_primary_lets_nobody_judge() {
    let mut bench = Bench::private(&[]).await;
    let before = leave_behind(&mut bench).await;
    // The process and its connections stay, and the history of its data is another one.
    bench.cmd("REPLICAOF 127.0.0.1 1").await;
    bench.cmd("REPLICAOF NO ONE").await;
    assert_eq!(taken(&bench, &before).await, Taken::default(), "by the record of the server before");
    let after = bench.beat(&short("a"), false).await.server;
    let run = |server: &str| server.split_once('.').expect("two words").0.to_owned();
    assert_eq!(run(&after), run(&before), "the same process");
    assert_eq!(taken(&bench, &after).await, ALL, "by the record of this server");
}

#[tokio::test]
async fn where_info_is_denied_gaps_alone_are_counted() {
    let mut bench = Bench::private(&[]).await;
    bench.cmd("ACL SETUSER default -info").await;
    assert_eq!(leave_behind(&mut bench).await, UNNAMED);
    assert_eq!(taken(&bench, "another").await, Taken::default(), "by the record of a server with a name");
    assert_eq!(taken(&bench, UNNAMED).await, ALL, "by a record without a gap");
}
