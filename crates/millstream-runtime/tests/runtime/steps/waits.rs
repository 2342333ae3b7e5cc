//! Waits of handlers: they hold nothing, end in time, and lose no signal.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sleep_holds_no_slot_uses_no_attempt_and_ends_in_time() {
    for (mode, make) in MODES {
        let (bench, done) = (bench(), Done::default());
        let limit = Limit::new("one", |_| LimitKey::new(["all"]).ok()).at_most(1);
        let consumer = make(bench.consumer(NUMBERS, "g")).retry(Never).limit(limit);
        let consumer = consumer.start(sleeper(&done, 72 * HOUR)).await.expect("a consumer");
        let producer = bench.producer(NUMBERS).await;
        let began = Instant::now();
        producer.send(&1).key("k").await.expect("sent");
        done.has("1 begins").await;
        producer.send(&2).key("k").await.expect("sent");
        done.has("2 ends, attempt 1").await;
        assert!(began.elapsed() < HOUR, "{mode}: a later message of its key passes");
        eventually_late(&done, "1 ends, attempt 1", 73 * HOUR).await;
        let took = began.elapsed();
        assert!(took >= 72 * HOUR && took < 72 * HOUR + 60 * SECOND, "{mode}: {took:?}");
        assert_eq!(done.all().iter().filter(|it| *it == "1 begins").count(), 2, "{mode}: {:?}", done.all());
        let report = consumer.shutdown().await;
        assert_eq!((report.acked, report.snoozed, report.retried), (2, 1, 0), "{mode}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_ends_its_wait_whenever_it_comes() {
    for (mode, make) in MODES {
        let (bench, done) = (bench(), Done::default());
        let (noted, gate) = (done.clone(), Arc::new(Semaphore::new(0)));
        let opened = gate.clone();
        let handler = move |number: Delivery<u64>| {
            let (done, gate) = (noted.clone(), opened.clone());
            async move {
                let steps = number.steps();
                done.note(format!("{} begins", number.payload));
                if number.payload == 1 {
                    gate.acquire().await.expect("open").forget();
                }
                let said: Option<String> = steps.signal("approved", HOUR).await?;
                done.note(format!("{}: {said:?}", number.payload));
                Ok::<_, StepError>(())
            }
        };
        let consumer = make(bench.consumer(NUMBERS, "g")).start(handler).await.expect("a consumer");
        let producer = bench.producer(NUMBERS).await;
        let ids = [1, 2, 3, 4].map(|_| MessageId::ZERO);
        let mut ids = ids;
        // It comes before the wait.
        ids[0] = producer.send(&1).await.expect("sent").id;
        done.has("1 begins").await;
        assert_eq!(signal(&bench, ids[0], "other", "no").await, Signalled::Stored, "{mode}");
        assert_eq!(signal(&bench, ids[0], "approved", "early").await, Signalled::Stored, "{mode}");
        assert_eq!(signal(&bench, ids[0], "approved", "again").await, Signalled::Known, "{mode}");
        gate.add_permits(10);
        done.has("1: Some(\"early\")").await;
        // While it waits.
        ids[1] = producer.send(&2).await.expect("sent").id;
        done.has("2 begins").await;
        sleep(60 * SECOND).await;
        let asked = Instant::now();
        assert_eq!(signal(&bench, ids[1], "approved", "in time").await, Signalled::Woken, "{mode}");
        done.has("2: Some(\"in time\")").await;
        assert!(
            asked.elapsed() < SECOND,
            "{mode}: at once, and not when its time is over: {:?}",
            asked.elapsed()
        );
        // Too late.
        ids[2] = producer.send(&3).await.expect("sent").id;
        done.has("3 begins").await;
        sleep(HOUR).await;
        done.has("3: None").await;
        // Of one that is done, and of one that never was.
        sleep(SECOND).await;
        assert_eq!(signal(&bench, ids[1], "approved", "late").await, Signalled::Gone, "{mode}");
        assert_eq!(signal(&bench, MessageId::new(1, 1), "approved", "no").await, Signalled::Gone, "{mode}");
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_outside_of_the_handler_is_refused() {
    let (bench, done) = (bench(), Done::default());
    let noted = done.clone();
    let spawns = move |number: Delivery<u64>| {
        let done = noted.clone();
        async move {
            let steps = number.steps();
            let nap = tokio::spawn(async move { steps.sleep("nap", HOUR).await });
            let refused = nap.await.expect("no panic");
            assert!(
                matches!(refused, Err(StepError::Refused(error)) if error.kind() == ErrorKind::Unsupported)
            );
            done.note("spawned");
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Never).start(spawns).await.expect("a consumer");
    let producer = bench.producer(NUMBERS).await;
    producer.send(&1).await.expect("sent");
    done.has("spawned").await;
    consumer.shutdown().await;
    let noted = done.clone();
    let together = move |numbers: Batch<u64>| {
        let done = noted.clone();
        async move {
            for number in &numbers {
                let steps = number.steps();
                steps.step("a", || async { Ok::<_, BoxError>(()) }).await.expect("a step");
                let nap = number.steps().sleep("nap", HOUR).await;
                assert!(
                    matches!(nap, Err(StepError::Refused(error)) if error.kind() == ErrorKind::Unsupported)
                );
                done.note("together");
            }
        }
    };
    let consumer = bench.consumer(NUMBERS, "h").start_batch((10, MS(1)), together).await.expect("a consumer");
    producer.send(&2).await.expect("sent");
    done.has("together").await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_is_cancelled_and_never_comes_back() {
    let (bench, done) = (bench(), Done::default());
    let consumer = bench.consumer(NUMBERS, "g").start(sleeper(&done, HOUR)).await.expect("a consumer");
    let id = bench.producer(NUMBERS).await.send(&1).await.expect("sent").id;
    done.has("1 begins").await;
    sleep(SECOND).await;
    assert_eq!(stored(&bench, id).await.first().map(|it| it.kind), Some(StepKind::Wait));
    let admin = Admin::new(bench.backend.clone());
    let ends = admin.cancel_message(&partition(), id).await.expect("cancelled");
    assert!(matches!(ends[..], [ref end] if end.state == CancelState::Cancelled), "{ends:?}");
    assert_eq!(stored(&bench, id).await, [], "with its steps");
    sleep(2 * HOUR).await;
    assert_eq!(done.all(), ["1 begins"]);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_handler_waits_too() {
    let (bench, done) = (bench(), Done::default());
    let consumer = bench.consumer(NUMBERS, "g").idempotent(millstream_runtime::Idempotent::by_message_id());
    let consumer = consumer.start(sleeper(&done, HOUR)).await.expect("a consumer");
    let began = Instant::now();
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    eventually_late(&done, "1 ends, attempt 1", 2 * HOUR).await;
    let took = began.elapsed();
    assert!(took >= HOUR && took < HOUR + 60 * SECOND, "its marker is not in its way: {took:?}");
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_ask_for_its_steps_before_it_begins() {
    let (bench, done) = (bench(), Done::default());
    let noted = done.clone();
    let closure = move |number: Delivery<u64>| {
        let (steps, done) = (number.steps(), noted.clone());
        async move {
            steps.sleep("nap", HOUR).await?;
            done.note(format!("closure {}", number.payload));
            Ok::<_, StepError>(())
        }
    };
    async fn argument(
        State(done): State<Done>,
        steps: Steps,
        Payload(number): Payload<u64>,
    ) -> Result<(), StepError> {
        steps.sleep("nap", HOUR).await?;
        done.note(format!("argument {number}"));
        Ok(())
    }
    let first = bench.consumer(NUMBERS, "g").start(closure).await.expect("a consumer");
    let second = bench.consumer(NUMBERS, "h").start(with_state(done.clone(), argument)).await;
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    eventually_late(&done, "closure 1", 2 * HOUR).await;
    eventually_late(&done, "argument 1", 2 * HOUR).await;
    first.shutdown().await;
    second.expect("a consumer").shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_behind_a_wait_has_attempts_of_its_own() {
    let (bench, done) = (bench(), Done::default());
    let noted = done.clone();
    let handler = move |number: Delivery<u64>| {
        let done = noted.clone();
        async move {
            let steps = number.steps();
            if number.attempt() < 3 && !done.all().contains(&"sleeps".to_owned()) {
                return Err("before".into());
            }
            done.note("sleeps");
            steps.sleep("nap", HOUR).await?;
            done.note(format!("attempt {} behind it", number.attempt()));
            if number.attempt() < 3 { Err("behind".into()) } else { Ok::<_, BoxError>(()) }
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(10)).attempts(3));
    let consumer = consumer.start(handler).await.expect("a consumer");
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    eventually_late(&done, "attempt 3 behind it", 2 * HOUR).await;
    eventually(|| consumer.report().acked == 1, || format!("{:?}", consumer.report())).await;
    assert!(done.all().contains(&"attempt 1 behind it".to_owned()), "{:?}", done.all());
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_came_in_time_counts_however_late_the_handler_looks() {
    let (bench, done) = (bench(), Done::default());
    let (noted, gate) = (done.clone(), Arc::new(Semaphore::new(0)));
    let opened = gate.clone();
    let handler = move |number: Delivery<u64>| {
        let (done, gate) = (noted.clone(), opened.clone());
        async move {
            let steps = number.steps();
            steps.step("first", || async { Ok::<_, BoxError>(()) }).await?;
            if done.all().len() == 1 {
                // An operator has released it: the run is longer than what is left of the wait.
                done.note("works");
                gate.acquire().await.expect("open").forget();
            } else {
                done.note("begins");
            }
            let said: Option<String> = steps.signal("approved", HOUR).await?;
            done.note(format!("{said:?}"));
            Ok::<_, StepError>(())
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").start(handler).await.expect("a consumer");
    let id = bench.producer(NUMBERS).await.send(&1).await.expect("sent").id;
    done.has("begins").await;
    sleep(SECOND).await;
    let group = GroupName::new("g").expect("a name");
    let (tp, schedule) = (partition(), bench.backend.schedule());
    let released = schedule.settle_retries(&tp, &group, &[id], RetryAction::Release).await;
    assert_eq!(released.expect("released"), [true]);
    done.has("works").await;
    assert_eq!(signal(&bench, id, "approved", "in time").await, Signalled::Stored);
    sleep(2 * HOUR).await;
    assert_eq!(signal(&bench, id, "approved", "late").await, Signalled::Known);
    gate.add_permits(1);
    done.has("Some(\"in time\")").await;
    consumer.shutdown().await;
}
