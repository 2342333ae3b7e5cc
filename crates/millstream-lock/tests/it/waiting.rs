//! Long holders, late replies, many clients that wait, and the events of locks, in memory under a paused clock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::{Event, Observer};
use millstream_lock::{AcquireError, Release};
use tokio::time::Instant;

use crate::support::faulty;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_lock_and_a_term_are_kept_for_an_hour() {
    let (locks, faulty, _) = faulty();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let term = locks.leader("scheduler").campaign().await.expect("elected");
    tokio::time::sleep(3_600 * SECOND).await;
    assert!(!held.is_lost() && !term.is_lost());
    assert!(locks.lock("a").try_acquire().await.expect("asked").is_none());
    assert_eq!(faulty.requests[0].load(Ordering::SeqCst), 3, "neither was acquired again");
    assert_eq!(held.release().await.expect("released"), Release::Released);
    assert_eq!(term.resign().await.expect("resigned"), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_comes_too_late_is_asked_for_again() {
    let (locks, faulty, _) = faulty();
    // As after an outage: the server has granted the lock, and its ttl has passed when the client receives the reply.
    faulty.late_ms.store(2_000, Ordering::SeqCst);
    let held = locks.lock("a").ttl(SECOND).acquire().await.expect("acquired");
    assert!(!held.is_lost(), "a lock that is lost when it is returned is of no use");
    held.release().await.expect("released");
    faulty.late_ms.store(2_000, Ordering::SeqCst);
    let late = locks.lock("a").ttl(SECOND).wait(SECOND).acquire().await;
    assert!(matches!(late, Err(AcquireError::Busy(_))), "there was no time left: {late:?}");
    let next = locks.lock("a").ttl(SECOND).wait(SECOND).acquire().await;
    assert!(next.is_ok(), "what was granted too late is released: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn an_observer_waits_for_a_leader_without_asking_all_the_time() {
    let (locks, faulty, _) = faulty();
    let election = locks.leader("scheduler");
    let mut watch = election.observe().await.expect("observed");
    let term = election.campaign().await.expect("elected");
    assert!(watch.changed().await.is_some());
    term.resign().await.expect("resigned");
    assert_eq!(watch.changed().await, None);
    let before = faulty.requests[1].load(Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    let asked = faulty.requests[1].load(Ordering::SeqCst) - before;
    assert!(asked <= 70, "{asked} requests in a minute in which nobody leads");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiting_clients_are_served_in_order_and_a_call_wakes_one_of_them() {
    const CLIENTS: u64 = 1_000;
    let (locks, faulty, _) = faulty();
    let held = locks.lock("a").acquire().await.expect("acquired");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..CLIENTS {
        let (locks, order) = (locks.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let held = locks.lock("a").acquire().await.expect("acquired");
            order.lock().expect("a lock").push(n);
            held.release().await.expect("released");
        }));
        // Also when they come at the same moment, each has its place.
        tokio::time::sleep(Duration::from_micros(1)).await;
    }
    tokio::time::sleep(SECOND).await;
    let before = [0, 2].map(|at| faulty.requests[at].load(Ordering::SeqCst));
    let begun = Instant::now();
    held.release().await.expect("released");
    for waiting in waiting {
        waiting.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("a lock"), (0..CLIENTS).collect::<Vec<_>>());
    let [asked, looked] = [0, 2].map(|at| faulty.requests[at].load(Ordering::SeqCst));
    // Beside that, each keeps its place by a request every 900 ms.
    let refreshed = (begun.elapsed().as_millis() as u64 / 900 + 1) * CLIENTS;
    assert!(asked - before[0] <= CLIENTS + refreshed, "{} requests for the lock", asked - before[0]);
    assert!(looked - before[1] <= 3 * CLIENTS, "{} looks at changes", looked - before[1]);
}

/// Events as words.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Observer for Seen {
    fn observe(&self, event: &Event<'_>) {
        let word = match *event {
            Event::LockAcquired { lock, election, waited, .. } => {
                format!("{lock} acquired {election:?} {}", waited.as_secs())
            }
            Event::LockEnded { lock, end, held, .. } => {
                format!("{lock} {} {}", end.as_str(), held.as_secs())
            }
            Event::LockBusy { lock, waited, .. } => format!("{lock} busy {}", waited.as_secs()),
            Event::Failing { operation, error, .. } => format!("{operation} {}", error.kind()),
            Event::Recovered { operation, .. } => format!("{operation} works"),
            _ => return,
        };
        self.0.lock().expect("a lock").push(word);
    }
}

impl Seen {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("a lock"))
    }
}

#[tokio::test(start_paused = true)]
async fn each_lock_begins_and_ends_with_one_event() {
    let (locks, faulty, backend) = faulty();
    let seen = Seen::default();
    let locks = locks.with_observer(seen.clone());
    let builder = |name: &str| locks.lock(name).ttl(3 * SECOND);
    let held = builder("a").acquire().await.expect("acquired");
    assert!(builder("a").wait(2 * SECOND).acquire().await.is_err());
    let next = tokio::spawn(builder("a").acquire());
    tokio::time::sleep(5 * SECOND).await;
    held.release().await.expect("released");
    drop(next.await.expect("no panic").expect("acquired"));
    let expected = ["a acquired None 0", "a busy 2", "a released 7", "a acquired None 5", "a released 0"];
    assert_eq!(seen.take(), expected);

    // Refused: an operator ends it.
    let held = builder("b").acquire().await.expect("acquired");
    let role = backend.locks().expect("locks");
    assert!(role.force_release(held.name(), held.fence()).await.expect("ended"));
    held.lost().await;
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
    assert_eq!(seen.take(), ["b acquired None 0", "b refused 1"]);

    // Gone: it is noticed by the release.
    let held = builder("c").acquire().await.expect("acquired");
    assert!(role.force_release(held.name(), held.fence()).await.expect("ended"));
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
    assert_eq!(seen.take(), ["c acquired None 0", "c gone 0"]);

    // Released behind an outage in which no renewal has succeeded since.
    let brief = builder("e").acquire().await.expect("acquired");
    faulty.fails.store(true, Ordering::SeqCst);
    while !seen.0.lock().expect("a lock").iter().any(|it| it == "renew lock unavailable") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    faulty.fails.store(false, Ordering::SeqCst);
    brief.release().await.expect("released");
    let told = ["e acquired None 0", "renew lock unavailable", "renew lock works", "e released 1"];
    assert_eq!(seen.take(), told);

    // Expired: the server is away. Before, it was away for a moment.
    let held = builder("d").acquire().await.expect("acquired");
    faulty.fails.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    faulty.fails.store(false, Ordering::SeqCst);
    tokio::time::sleep(SECOND).await;
    // However often it tried meanwhile.
    let mut told = seen.take();
    told.dedup();
    assert_eq!(told, ["d acquired None 0", "renew lock unavailable", "renew lock works"]);
    faulty.fails.store(true, Ordering::SeqCst);
    held.lost().await;
    tokio::time::sleep(SECOND).await;
    faulty.fails.store(false, Ordering::SeqCst);
    let ends = |seen: Vec<String>| seen.into_iter().filter(|it| !it.starts_with("renew")).collect::<Vec<_>>();
    assert_eq!(ends(seen.take()), ["d expired 3"]);
    drop(held);
    assert_eq!(ends(seen.take()), Vec::<String>::new(), "it has ended already");

    let term = locks.leader("scheduler").campaign().await.expect("elected");
    drop(term);
    assert_eq!(
        seen.take(),
        ["leader:scheduler acquired Some(\"scheduler\") 0", "leader:scheduler released 0"]
    );
}
