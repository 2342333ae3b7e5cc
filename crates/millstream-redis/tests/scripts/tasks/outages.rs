//! Claims that ran out while nobody could reach the server: after a restart, and for a request that waited in its socket.

use std::process::Command;
use std::time::Duration;

use millstream_core::Continuity;
use millstream_core::tasks::{ClaimRequest, Claimed, ClaimedTask};
use millstream_redis::RedisConfig;

use crate::server::{Bench, Server};
use crate::tasks::{ask, shard};

const HOLD: Duration = Duration::from_millis(400);

/// A worker that keeps its record.
struct Asker {
    name: &'static str,
    continuity: Continuity,
}

impl Asker {
    fn new(name: &'static str) -> Self {
        Self { name, continuity: Continuity::new(HOLD) }
    }

    async fn asks(&mut self, bench: &Bench) -> millstream_core::Result<Claimed> {
        let ask = ClaimRequest {
            hold: HOLD,
            crash_limit: 1,
            continuity: self.continuity.clone(),
            ..ask(self.name, 5)
        };
        let claimed = bench.tasks().claim(&shard(), &ask).await?;
        if !claimed.server.is_empty() {
            self.continuity.advance(&claimed.server, claimed.now);
        }
        Ok(claimed)
    }

    /// Until it has been answered for a hold without a gap; meanwhile the task is kept.
    async fn is_whole(&mut self, bench: &Bench, task: &ClaimedTask) {
        while !self.continuity.is_whole() {
            tokio::time::sleep(HOLD / 10).await;
            keep(bench, task).await;
            assert!(self.asks(bench).await.expect("an answer").tasks.is_empty(), "it is kept");
        }
    }
}

/// Its handler goes on. Gives back the server's time.
async fn keep(bench: &Bench, task: &ClaimedTask) -> u64 {
    let ours = [(task.id.clone(), task.token.clone())];
    let kept = bench.tasks().extend(&shard(), &ours, HOLD, true).await.expect("an answer");
    assert_eq!(kept.ours, [true], "nobody has taken it");
    kept.now.as_millis()
}

#[tokio::test]
async fn after_restarts_nothing_is_taken_from_the_living_and_the_dead_are_replaced() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().to_str().expect("text");
    let extra = ["--appendonly", "yes", "--appendfsync", "always", "--dir", path];
    let mut server = Server::start(&extra);
    let port = server.port;
    let bench = Bench::at(RedisConfig::new(server.url()), None).await;
    bench.put_now(["t".into()]).await;
    let task = bench.claim(&ClaimRequest { hold: HOLD, ..ask("w", 1) }).await.tasks.remove(0);
    let (mut asker, mut kept) = (Asker::new("v"), 0);
    for _ in 0..3 {
        asker.is_whole(&bench, &task).await;
        drop(server);
        tokio::time::sleep(HOLD * 5 / 4).await;
        server = Server::again(port, &extra);
        // The first answers: the connection may have to be opened again.
        let claimed = loop {
            if let Ok(claimed) = asker.asks(&bench).await {
                break claimed;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!((claimed.tasks.len(), claimed.crashed), (0, 0), "its worker lives");
        assert!(!asker.continuity.is_whole(), "another process answers");
        assert_eq!(bench.counts().await.expired, 1);
        kept = keep(&bench, &task).await;
    }
    // Now it dies.
    let (mut claimed, mut untold) = (Claimed::default(), 0);
    while claimed.crashed + claimed.tasks.len() == 0 {
        tokio::time::sleep(claimed.next.min(HOLD / 20)).await;
        claimed = asker.asks(&bench).await.expect("an answer");
        untold += usize::from(claimed.server.is_empty());
    }
    assert_eq!((claimed.tasks.len(), claimed.crashed), (0, 1), "a handler had begun, and the limit is 1");
    assert!(
        claimed.now.as_millis() - kept >= HOLD.as_millis() as u64,
        "{} after {kept}",
        claimed.now.as_millis()
    );
    assert!(untold > 0, "a record that is new enough stands as it is");
}

#[tokio::test]
async fn a_request_that_waited_in_a_paused_server_takes_nothing_over() {
    let mut bench = Bench::private(&[]).await;
    let info: String = redis::from_redis_value(bench.cmd("INFO server").await).expect("text");
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a process").to_owned();
    let signal = |signal: &str| {
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
    };
    bench.put_now(["t".into()]).await;
    let task = bench.claim(&ClaimRequest { hold: HOLD, ..ask("w", 1) }).await.tasks.remove(0);
    let mut asker = Asker::new("v");
    asker.is_whole(&bench, &task).await;
    signal("-STOP");
    let goes_on = async {
        tokio::time::sleep(HOLD * 2).await;
        signal("-CONT");
    };
    // Sent by somebody whose record is whole, carried out when the claim has run out.
    let (claimed, ()) = tokio::join!(asker.asks(&bench), goes_on);
    let claimed = claimed.expect("an answer");
    assert_eq!((claimed.tasks.len(), claimed.crashed), (0, 0), "its worker lives");
    assert!(!asker.continuity.is_whole(), "a gap");
    keep(&bench, &task).await;
}
