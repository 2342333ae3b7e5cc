//! Idempotent calls: the work of a key is done once, and its result is returned again, whatever is lost, slow or dropped.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::idempotency::{Begun, Idempotency, Marker, Operation};
use millstream_core::{Backend, Error, ErrorKind, Event, Observer, Result};
use millstream_memory::MemoryBackend;
use millstream_runtime::{CallError, IdempotentCalls};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

const HOUR: Duration = Duration::from_secs(3_600);
const TTL: Duration = Duration::from_secs(30);

/// Markers whose requests fail when the test says so.
struct Faulty {
    inner: Arc<dyn Idempotency>,
    /// The server is away until then.
    away: Mutex<Option<Instant>>,
    /// The next begins and completions take effect, and their replies are lost.
    lose: AtomicUsize,
    /// Notified by each begin.
    begun: Notify,
    /// Time that a begin takes behind its effect.
    slow: Mutex<Duration>,
}

impl Faulty {
    fn before(&self) -> Result<()> {
        match *self.away.lock().expect("lock") {
            Some(until) if Instant::now() < until => Err(Error::new(ErrorKind::Unavailable, "away")),
            _ => Ok(()),
        }
    }

    fn after<T>(&self, reply: Result<T>) -> Result<T> {
        match self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::new(ErrorKind::Unconfirmed, "lost")),
            Err(_) => reply,
        }
    }

    fn away_for(&self, time: Duration) {
        *self.away.lock().expect("lock") = Some(Instant::now() + time);
    }
}

#[async_trait]
impl Idempotency for Faulty {
    async fn begin(&self, operation: &Operation, holder: &str, token: &str, ttl: Duration) -> Result<Begun> {
        self.before()?;
        let begun = self.inner.begin(operation, holder, token, ttl).await;
        self.begun.notify_one();
        let slow = *self.slow.lock().expect("lock");
        sleep(slow).await;
        self.after(begun)
    }

    async fn extend(&self, markers: &[Marker]) -> Vec<Result<()>> {
        if let Err(error) = self.before() {
            return vec![Err(error); markers.len()];
        }
        self.inner.extend(markers).await
    }

    async fn complete(&self, marker: &Marker, result: &[u8], retention: Duration) -> Result<()> {
        self.before()?;
        self.after(self.inner.complete(marker, result, retention).await)
    }

    async fn abandon(&self, marker: &Marker) -> Result<()> {
        self.before()?;
        self.inner.abandon(marker).await
    }
}

/// Calls over markers that can fail, and the number of times that their work was done.
struct Place {
    faulty: Arc<Faulty>,
    calls: IdempotentCalls,
    done: Arc<AtomicUsize>,
    /// How often it was told that a marker was lost.
    lost: Arc<AtomicUsize>,
}

/// Counts markers that were lost.
struct Lost(Arc<AtomicUsize>);

impl Observer for Lost {
    fn observe(&self, event: &Event<'_>) {
        if let Event::CallMarkerLost { calls } = event {
            assert_eq!(*calls, "charges");
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn place() -> Place {
    let backend = Backend::from(MemoryBackend::new());
    let inner = backend.idempotency().expect("the role").clone();
    let (away, lose, slow) = (Mutex::default(), AtomicUsize::new(0), Mutex::default());
    let faulty = Arc::new(Faulty { inner, away, lose, begun: Notify::new(), slow });
    let backend = backend.with_idempotency(faulty.clone());
    let calls = IdempotentCalls::new(&backend, "charges").lease_ttl(TTL).retention(HOUR * 24).wait(HOUR * 2);
    let lost = Arc::new(AtomicUsize::new(0));
    let calls = calls.with_observer(Lost(lost.clone()));
    Place { faulty, calls, done: Arc::default(), lost }
}

impl Place {
    /// Work that takes a time and returns how often it was done.
    fn work(&self, takes: Duration) -> impl Future<Output = Result<usize, io::Error>> + Send + use<> {
        let done = self.done.clone();
        async move {
            sleep(takes).await;
            Ok(done.fetch_add(1, Ordering::SeqCst) + 1)
        }
    }

    async fn run(&self, takes: Duration) -> (usize, bool) {
        let called = self.calls.run("key", || self.work(takes)).await.expect("a result");
        assert!(called.not_kept.is_none(), "{called:?}");
        (called.value, called.is_duplicate)
    }

    fn times_done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_calls_with_one_key_do_its_work_once_and_return_its_result() {
    let place = place();
    let results = join_all((0..1_000).map(|_| place.run(Duration::from_secs(3)))).await;
    assert!(results.iter().all(|(value, _)| *value == 1), "{results:?}");
    assert_eq!(results.iter().filter(|(_, is_duplicate)| !is_duplicate).count(), 1);
    assert_eq!(place.run(Duration::ZERO).await, (1, true));
    let other = place.calls.run("other key", || place.work(Duration::ZERO)).await.expect("a result");
    assert_eq!((other.value, place.times_done()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn work_of_an_hour_keeps_its_key_and_a_call_that_does_not_wait_is_refused() {
    let place = place();
    let impatient = place.calls.clone().wait(Duration::ZERO);
    let refused = async {
        sleep(HOUR / 2).await;
        impatient.run("key", || place.work(Duration::ZERO)).await
    };
    let late = async {
        sleep(HOUR / 2).await;
        place.run(Duration::ZERO).await
    };
    let (first, refused, late) = tokio::join!(place.run(HOUR), refused, late);
    assert_eq!((first, late), ((1, false), (1, true)));
    match refused {
        Err(CallError::Running { holder, expires_in }) => {
            assert!(holder.starts_with("pid-") && expires_in <= TTL, "{holder} {expires_in:?}");
        }
        other => panic!("{other:?}"),
    }
    // Known for the retention, and no longer.
    sleep(HOUR * 23).await;
    assert_eq!(place.run(Duration::ZERO).await, (1, true));
    sleep(HOUR * 2).await;
    assert_eq!(place.run(Duration::ZERO).await, (2, false));
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_panics_or_is_dropped_runs_again_at_once() {
    let place = place();
    let calls = place.calls.clone().wait(Duration::ZERO);
    let failed = calls.run("key", || async { Err::<usize, _>("no") }).await;
    assert!(matches!(failed, Err(CallError::Work("no"))), "{failed:?}");

    let panics = calls
        .run("key", || async { std::hint::black_box(None::<Result<usize, &str>>).expect("in the work") });
    assert!(std::panic::AssertUnwindSafe(panics).catch_unwind().await.is_err());
    tokio::task::yield_now().await;

    let dropped = timeout(Duration::from_secs(60), calls.run("key", || place.work(HOUR))).await;
    assert!(dropped.is_err());
    tokio::task::yield_now().await;

    // Dropped while its marker is being begun: the begin has taken effect.
    *place.faulty.slow.lock().expect("lock") = Duration::from_secs(2);
    let dropped = timeout(Duration::from_secs(1), calls.run("key", || place.work(HOUR))).await;
    assert!(dropped.is_err());
    sleep(Duration::from_secs(2)).await;
    *place.faulty.slow.lock().expect("lock") = Duration::ZERO;

    let done = calls.run("key", || place.work(Duration::ZERO)).await.expect("a result");
    assert_eq!((done.value, done.is_duplicate), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_behind_its_work_keeps_the_result() {
    let place = place();
    let (completing, away) = (Arc::new(Notify::new()), place.faulty.clone());
    let work = || {
        let work = place.work(Duration::ZERO);
        let completing = completing.clone();
        async move {
            let done = work.await;
            away.away_for(Duration::from_secs(10));
            completing.notify_one();
            done
        }
    };
    tokio::select! {
        called = place.calls.run("key", work) => panic!("{called:?}"),
        () = async { completing.notified().await; sleep(Duration::from_secs(1)).await } => {}
    }
    assert_eq!(place.run(Duration::ZERO).await, (1, true));
}

#[tokio::test(start_paused = true)]
async fn replies_that_are_lost_change_nothing() {
    let place = place();
    place.faulty.lose.store(1, Ordering::SeqCst);
    let (faulty, work) = (place.faulty.clone(), place.work(Duration::ZERO));
    let losing = || async move {
        faulty.lose.store(3, Ordering::SeqCst);
        work.await
    };
    let called = place.calls.run("key", losing).await.expect("a result");
    assert!(!called.is_duplicate && called.not_kept.is_none(), "{called:?}");
    assert_eq!(place.run(Duration::ZERO).await, (1, true));
}

#[tokio::test(start_paused = true)]
async fn outages_in_which_nobody_dies_do_no_work_twice() {
    for outage in [TTL / 2, TTL, TTL * 2] {
        for came in [Duration::from_secs(1), TTL / 4, TTL / 3 + outage / 2] {
            let place = place();
            // The server goes away while the work runs. Another call waits by then, or comes meanwhile.
            let goes_away = async {
                sleep(TTL / 3).await;
                place.faulty.away_for(outage);
            };
            let late = async {
                sleep(came).await;
                place.run(Duration::ZERO).await
            };
            let (first, late, ()) = tokio::join!(place.run(TTL * 4), late, goes_away);
            assert_eq!((first, late), ((1, false), (1, true)), "{outage:?}, {came:?}");
        }
        // It is away when the work ends.
        let place = place();
        let ends = async {
            sleep(Duration::from_secs(1)).await;
            place.faulty.away_for(outage);
        };
        let (first, ()) = tokio::join!(place.calls.run("key", || place.work(Duration::from_secs(2))), ends);
        let first = first.expect("a result");
        let expected = (outage > TTL).then_some(ErrorKind::Unconfirmed);
        assert_eq!(first.not_kept.map(|error| error.kind()), expected, "{outage:?}");
        // The completion goes on in the background.
        assert_eq!(place.run(Duration::ZERO).await, (1, true), "{outage:?}");
    }
    // Nothing waits for longer than it is to, and no work is begun without a marker.
    let place = place();
    place.faulty.away_for(HOUR);
    let (calls, asked) = (place.calls.clone().wait(TTL), Instant::now());
    let refused = calls.run("key", || place.work(Duration::ZERO)).await;
    assert!(matches!(&refused, Err(CallError::Store(error)) if error.kind() == ErrorKind::Unavailable));
    assert!((TTL..TTL * 2).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    assert_eq!(place.times_done(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_was_taken_over_is_reported_with_the_value() {
    let place = place();
    let takes_over = async {
        sleep(Duration::from_secs(1)).await;
        // Somebody deletes the marker, and another process begins.
        let operation =
            Operation::new("charges".parse().expect("a name"), "_calls".parse().expect("a name"), "key");
        let operation = operation.expect("an operation");
        let role = &place.faulty.inner;
        let Ok(Begun::Running { holder, .. }) = role.begin(&operation, "b", "t", TTL).await else {
            panic!("it runs")
        };
        assert_eq!(holder, format!("pid-{}", std::process::id()));
        place.faulty.away_for(TTL * 3);
        sleep(TTL * 2).await;
        let begun = role.begin(&operation, "b", "t", HOUR).await.expect("an answer");
        assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
    };
    let (called, ()) = tokio::join!(place.calls.run("key", || place.work(TTL * 5)), takes_over);
    let called = called.expect("the work was done");
    assert_eq!((called.value, called.is_duplicate), (1, false));
    assert_eq!(called.not_kept.map(|error| error.kind()), Some(ErrorKind::Fenced));
    assert_eq!(place.lost.load(Ordering::SeqCst), 1, "told once");
}

/// The work ends during the outage, as a success or as a failure: no later extension shows that it is over.
#[tokio::test(start_paused = true)]
async fn calls_that_end_in_an_outage_report_its_end() {
    for fails in [false, true] {
        let mut place = place();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = told.clone();
        place.calls = place.calls.with_observer(move |event: &Event<'_>| {
            let is_failing = match event {
                Event::Failing { operation: "extend marker", .. } => true,
                Event::Recovered { operation: "extend marker", .. } => false,
                _ => return,
            };
            tells.lock().expect("lock").push(is_failing);
        });
        let work = async || {
            place.faulty.away_for(TTL * 3 / 4);
            sleep(TTL / 2).await;
            if fails { Err(io::Error::other("no")) } else { place.work(Duration::ZERO).await }
        };
        let called = place.calls.run("key", work).await;
        assert_eq!(called.is_err(), fails);
        // An abandonment is tried once: then the next call shows it.
        assert_eq!(place.run(TTL).await, (1, !fails));
        let told = told.lock().expect("lock").clone();
        assert_eq!(told.iter().filter(|is_failing| !**is_failing).count(), 1, "{told:?}");
        assert!(told.len() > 1 && !told[told.len() - 1], "{told:?}");
    }
}

/// No extension notices it: the completion does.
#[tokio::test(start_paused = true)]
async fn a_marker_that_was_taken_over_at_the_end_is_told_too() {
    let place = place();
    let operation =
        Operation::new("charges".parse().expect("a name"), "_calls".parse().expect("a name"), "key");
    let operation = operation.expect("an operation");
    let taken = async || {
        let role = &place.faulty.inner;
        place.faulty.away_for(TTL * 2);
        sleep(TTL + TTL / 2).await;
        let begun = role.begin(&operation, "b", "t", HOUR).await.expect("an answer");
        assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
        Ok::<usize, io::Error>(1)
    };
    let called = place.calls.run("key", taken).await.expect("the work was done");
    // The end is not confirmed while the server is away; the loss is reported when it answers again.
    assert_eq!(called.not_kept.map(|error| error.kind()), Some(ErrorKind::Fenced));
    assert_eq!(place.lost.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_kept_or_read_is_an_error_of_the_later_calls() {
    let place = place();
    let large = || async { Ok::<_, io::Error>("x".repeat(1 << 20)) };
    let called = place.calls.run("large", large).await.expect("the work was done");
    assert_eq!((called.value.len(), called.is_duplicate), (1 << 20, false));
    assert_eq!(called.not_kept.map(|error| error.kind()), Some(ErrorKind::TooLarge));
    let again = place.calls.run("large", large).await;
    assert!(matches!(&again, Err(CallError::Unreadable(error)) if error.kind() == ErrorKind::Decode));

    let called = place.calls.run("text", || async { Ok::<_, io::Error>("seven".to_owned()) }).await;
    assert!(called.expect("a result").not_kept.is_none());
    let number = place.calls.run("text", || async { Ok::<u64, io::Error>(7) }).await;
    match number {
        Err(CallError::Unreadable(error)) => assert!(error.to_string().contains("another type"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_refused_before_the_work() {
    let place = place();
    let backend = Backend::from(MemoryBackend::new());
    let named = |name: &str| IdempotentCalls::new(&backend, name);
    let ms = Duration::from_micros(1);
    for (calls, key, kind) in [
        (named("a name"), "k".to_owned(), ErrorKind::InvalidName),
        (named("n"), String::new(), ErrorKind::InvalidName),
        (named("n"), "k".repeat(257), ErrorKind::TooLarge),
        (named("n").lease_ttl(ms), "k".into(), ErrorKind::InvalidConfig),
        (named("n").retention(ms), "k".into(), ErrorKind::InvalidConfig),
        (named("n").retention(Duration::MAX), "k".into(), ErrorKind::InvalidConfig),
    ] {
        match calls.run(key, || place.work(Duration::ZERO)).await {
            Err(CallError::Store(error)) => assert_eq!(error.kind(), kind, "{calls:?}"),
            other => panic!("{calls:?}: {other:?}"),
        }
    }
    assert!(named("n").wait(Duration::MAX).run("k", || place.work(Duration::ZERO)).await.is_ok());
    assert_eq!(place.times_done(), 1);
}
