//! Due times.

use std::time::Duration;

use integration_tests::chaos::mutants::Mutant;
use integration_tests::delays::clock::Clock;
use millstream_core::log::Settlement;
use millstream_core::schedule::Scheduling;
use millstream_core::{Due, OnConflict, Place, ScheduleId};

use super::scene::{Scene, entry};
use super::settlements::retry;

const DELAY: Duration = Duration::from_secs(600);

/// The clock of the client is 5 minutes behind.
#[test]
fn a_client_whose_clock_is_behind_has_messages_that_are_early() {
    let test = "times::a_client_whose_clock_is_behind_has_messages_that_are_early";
    let clock = Clock::new();
    clock.shift(-300);
    let mut scene = Scene::new(test, Mutant::ClientClock);
    scene.env.extend(clock.env());
    scene.run(
        async |stage| {
            let id = ScheduleId::new("delayed").expect("an id");
            let (place, fields) = (Place::from(stage.tp.clone()), entry(&stage.tp, "x").fields);
            let delayed =
                Scheduling { place, id, due: Due::In(DELAY), fields, on_conflict: OnConflict::Keep };
            stage.backend.schedule().schedule(&[delayed]).await.remove(0).expect("scheduled");
            stage.append(1).await;
            let lease = stage.lease(&stage.group, "owner").await;
            let (receipt, mut settlement) = retry(stage.read(&lease).await[0]);
            if let Settlement::Retry { due, .. } = &mut settlement {
                *due = Due::In(DELAY);
            }
            stage.backend.log().settle(&lease, &[(receipt, settlement)]).await.expect("settled");
            "done".into()
        },
        async |stage, _| {
            let now = stage.backend.schedule().now().await.expect("a time");
            let place = Place::from(stage.tp.clone());
            let delayed = stage.backend.schedule().scheduled(&place, None, 1).await.expect("listed");
            let key = stage.keys.retry_due(&stage.tp, &stage.group);
            let mut raw = integration_tests::fixture::raw_connection(&stage.url).await;
            let retries: Vec<(String, f64)> = redis::cmd("ZRANGE")
                .arg(key.as_str())
                .arg(&["0", "-1", "WITHSCORES"])
                .query_async(&mut raw)
                .await
                .expect("listed");
            let dues = [delayed[0].due.as_millis(), retries[0].1 as u64];
            // More than half of the delay is left, unless its beginning was 5 minutes ago. The judge comes at once.
            let least = now.as_millis() + (DELAY / 2).as_millis() as u64 + 60_000;
            let is_early = dues.map(|due| due < least);
            assert_eq!(is_early[0], is_early[1], "{dues:?} at {now:?}");
            is_early[0]
        },
    );
}
