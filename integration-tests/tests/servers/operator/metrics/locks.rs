//! Locks and terms of leaders.

use millstream_core::LockName;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Of four locks one is released, one dropped, one ended by an operator, one gone when it is released; one attempt is in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_counted_by_their_ends() {
    let scene = Fixture::at(&shared_url()).await;
    let lock = |name: &str| scene.mq.lock(name).ttl(HOUR);
    let held = lock("a").acquire().await.expect("acquired");
    assert!(lock("a").wait(Duration::from_millis(20)).acquire().await.is_err());
    held.release().await.expect("released");
    drop(lock("a").acquire().await.expect("acquired"));
    let refused = scene.mq.lock("b").ttl(Duration::from_secs(2)).acquire().await.expect("acquired");
    let name: LockName = "b".parse().expect("name");
    assert!(scene.mq.admin().release_lock(&name, refused.fence()).await.expect("ended"));
    refused.lost().await;
    let gone = lock("b").acquire().await.expect("acquired");
    assert!(scene.mq.admin().release_lock(&name, gone.fence()).await.expect("ended"));
    gone.release().await.expect("released");
    let kept = lock("c").acquire().await.expect("acquired");
    scene
        .sees(
            "five were granted, four have ended",
            &[
                ("locks_acquired_total", &[], 5.0),
                ("locks_ended_total", &[("end", "released")], 2.0),
                ("locks_ended_total", &[("end", "refused")], 1.0),
                ("locks_ended_total", &[("end", "gone")], 1.0),
                ("locks_busy_total", &[], 1.0),
                ("lock_wait_seconds_count", &[], 5.0),
                ("lock_held_seconds_count", &[], 4.0),
            ],
        )
        .await;
    drop(kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_of_leaders_are_counted() {
    let scene = Fixture::at(&shared_url()).await;
    let election = |name: &str| scene.mq.leader(name);
    for _ in 0..2 {
        election("scheduler").campaign().await.expect("elected").resign().await.expect("resigned");
    }
    let leads = election("reports").campaign().await.expect("elected");
    let of: [(&str, &str); 1] = [("election", "scheduler")];
    scene
        .sees(
            "two terms have ended, and one has not",
            &[
                ("leader_terms_begun_total", &of, 2.0),
                ("leader_terms_ended_total", &of, 2.0),
                ("leader_terms_ended_total", &[("election", "scheduler"), ("end", "released")], 2.0),
                ("leader_terms_begun_total", &[("election", "reports")], 1.0),
                ("leader_terms_begun_total", &[], 3.0),
                ("leader_terms_ended_total", &[], 2.0),
            ],
        )
        .await;
    drop(leads);
}
