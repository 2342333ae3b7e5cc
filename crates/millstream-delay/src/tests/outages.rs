//! The server is unreachable for all workers: no claim is lost because of it, and a worker that dies is still replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_core::Backend;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::tests::support::link::Link;
use crate::tests::support::{MS, SECS, Seen, eventually, memory, open};
use crate::{Task, Worker};

const HOLD: Duration = Duration::from_secs(10);

/// Workers with a link each, whose handlers end on request.
struct Workers {
    backend: Backend,
    links: Vec<Arc<Link>>,
    workers: Vec<Worker>,
    /// Tasks that were begun, with their crashes, and when.
    seen: Seen<(u64, u32, Instant)>,
    go: Arc<Notify>,
    hold: Duration,
}

impl Workers {
    async fn new(workers: usize, room: usize) -> Self {
        Self::holding(HOLD, workers, room).await
    }

    async fn holding(hold: Duration, workers: usize, room: usize) -> Self {
        let (links, seen, go) = (Vec::new(), Seen::default(), Arc::default());
        let mut team = Self { backend: memory(), links, workers: Vec::new(), seen, go, hold };
        for _ in 0..workers {
            team.join(room).await;
        }
        team
    }

    async fn join(&mut self, room: usize) {
        let link = Arc::new(Link::default());
        let queue = open(&link.over(&self.backend), 1).await;
        let (tell, go) = (self.seen.clone(), self.go.clone());
        let worker = queue.worker().hold(self.hold).concurrency(room).start(move |task: Task<u64>| {
            tell.push((task.payload, task.crashes(), Instant::now()));
            let go = go.clone();
            async move { go.notified().await }
        });
        self.workers.push(worker.await.expect("starts"));
        self.links.push(link);
    }

    async fn schedule(&self, number: u64) {
        open(&self.backend, 1).await.schedule(&number).await.expect("scheduled");
    }

    async fn away(&self, time: Duration) {
        self.links.iter().for_each(|link| link.away.store(true, Ordering::Relaxed));
        tokio::time::sleep(time).await;
        self.links.iter().for_each(|link| link.away.store(false, Ordering::Relaxed));
    }

    fn begun(&self, number: u64) -> Vec<(u32, Instant)> {
        let all = self.seen.all().into_iter();
        all.filter(|(begun, ..)| *begun == number).map(|(_, crashes, at)| (crashes, at)).collect()
    }

    async fn end(self) -> (u64, u64, u64) {
        // One stays for each handler that ends later.
        for _ in 0..100 {
            self.go.notify_waiters();
            self.go.notify_one();
            tokio::time::sleep(MS(50)).await;
        }
        let queue = open(&self.backend, 1).await;
        let counts = queue.count().await.expect("counts");
        let (mut done, mut stale) = (0, 0);
        for worker in self.workers {
            let report = worker.shutdown_within(SECS(1)).await;
            done += report.done;
            stale += report.stale;
        }
        (done, stale, counts.dead + counts.claimed + counts.waiting.total)
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_nobody_a_claim_however_long_it_is_and_however_often_it_comes() {
    for tenths in [3, 5, 7, 9, 11, 14, 17, 25] {
        let mut team = Workers::new(3, 2).await;
        for number in 0..4 {
            team.schedule(number).await;
        }
        team.seen.reach(4).await;
        for outage in 0..3 {
            tokio::time::sleep(MS(2_345)).await;
            team.away(HOLD * tenths / 10).await;
            if outage == 1 {
                team.join(2).await;
            }
            tokio::time::sleep(HOLD * 5 / 2).await;
        }
        assert_eq!(
            team.seen.len(),
            4,
            "{tenths} tenths of a hold: each has one handler: {:?}",
            team.seen.all()
        );
        assert_eq!(team.end().await, (4, 0, 0), "{tenths} tenths of a hold: done, stale and left");
    }
}

#[tokio::test(start_paused = true)]
async fn who_died_in_an_outage_is_replaced_within_two_holds_of_its_end() {
    // The last ones are so long that pauses between attempts have grown beyond the hold, if that does not bound them.
    let outages = [5, 9, 14, 25].map(|tenths| (HOLD, HOLD * tenths / 10));
    for (hold, outage) in outages.into_iter().chain([(SECS(1), SECS(20)); 5]) {
        let team = Workers::holding(hold, 3, 1).await;
        team.schedule(1).await;
        team.seen.reach(1).await;
        team.schedule(2).await;
        team.seen.reach(2).await;
        let busy = |nth: &usize| team.workers[*nth].progress().running == 1;
        let dead = (0..3).find(busy).expect("somebody has it");
        tokio::time::sleep(MS(4_321)).await;
        team.links[dead].cut();
        team.away(outage).await;
        let end = Instant::now();
        eventually(|| team.seen.len() == 3, "the dead one is replaced").await;
        let (number, crashes, at) = team.seen.all()[2];
        assert_eq!(crashes, 1, "one died over {number}");
        assert!(
            at - end >= hold / 2,
            "{outage:?} of {hold:?}: the survivors had time to answer again: {:?}",
            at - end
        );
        assert!(at - end <= hold * 2, "{outage:?} of {hold:?}: {:?}", at - end);
        tokio::time::sleep(hold * 4).await;
        assert_eq!(team.seen.len(), 3, "nobody else is doubled");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_outage_the_dead_are_replaced_within_a_hold() {
    // The others have slept for long when it claims, and it dies at once: nothing but its call makes them come.
    for after in [0, 1_000, 7_300, 14_900, 31_000] {
        let team = Workers::new(3, 1).await;
        tokio::time::sleep(MS(after)).await;
        team.schedule(1).await;
        team.seen.reach(1).await;
        let busy = |nth: &usize| team.workers[*nth].progress().running == 1;
        let dead = (0..3).find(busy).expect("somebody has it");
        team.links[dead].cut();
        let died = Instant::now();
        eventually(|| team.seen.len() == 2, "the dead one is replaced").await;
        let took = team.begun(1)[1].1 - died;
        assert!(took >= HOLD - MS(100) && took <= HOLD + SECS(1), "{after}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_judges_nobody_at_first_and_who_was_without_room_judges_at_once() {
    let mut team = Workers::new(2, 1).await;
    team.schedule(1).await;
    team.schedule(2).await;
    team.seen.reach(2).await;
    let (one, another) = (team.begun(1)[0].1, team.begun(2)[0].1);
    assert!(another - one <= SECS(1));
    team.links[0].cut();
    // The other one has no room, for as long as the claim of the dead one is overdue.
    tokio::time::sleep(HOLD * 2).await;
    let joined = Instant::now();
    team.join(1).await;
    tokio::time::sleep(HOLD / 2).await;
    assert_eq!(team.seen.len(), 2, "who has just come judges nobody");
    let freed = Instant::now();
    // Both handlers end; the dead one says so to nobody.
    team.go.notify_waiters();
    eventually(|| team.seen.len() == 3, "the dead one is replaced").await;
    let at = team.seen.all()[2].2;
    assert!(
        at - freed <= SECS(1),
        "its renewals were answered: {:?}, {:?} after one joined",
        at - freed,
        at - joined
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_alone_loses_its_claim() {
    let team = Workers::new(2, 1).await;
    team.schedule(1).await;
    team.seen.reach(1).await;
    let busy = |nth: &usize| team.workers[*nth].progress().running == 1;
    let alone = (0..2).find(busy).expect("somebody has it");
    team.links[alone].away.store(true, Ordering::Relaxed);
    tokio::time::sleep(HOLD + SECS(1)).await;
    assert_eq!(team.begun(1).len(), 2, "another one has it");
}
