//! Steps whose owner ends, or stands still, or whose message dies.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_former_owner_begins_no_step_and_stores_none() {
    let (bench, done) = (bench(), Done::default());
    let (cable, linked) = link(&bench.backend);
    let gate = Arc::new(Semaphore::new(0));
    let start = async |backend, who: &'static str| {
        let (done, gate) = (done.clone(), gate.clone());
        let handler = move |number: Delivery<u64>| {
            let (done, gate) = (done.clone(), gate.clone());
            async move {
                let steps = number.steps();
                let waited = steps
                    .step("wait", || async {
                        done.note(format!("{who} waits"));
                        if who == "former" {
                            gate.acquire().await.expect("open").forget();
                        }
                        Ok::<_, BoxError>(who.to_owned())
                    })
                    .await;
                let waited = match waited {
                    Err(StepError::Refused(error)) => error.kind().to_string(),
                    other => other?,
                };
                done.note(format!("{who} has {waited}"));
                let next = steps.step("next", || async { done.noted(format!("{who} does more")) });
                if let Err(error) = next.await {
                    done.note(format!("{who}: {error}"));
                }
                Ok::<_, BoxError>(())
            }
        };
        let consumer = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore)).retry(Never);
        consumer.start(handler).await.expect("a consumer")
    };
    let former = start(linked, "former").await;
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    done.has("former waits").await;
    cable.freeze();
    let next = start(bench.backend.clone(), "next").await;
    done.has("next does more").await;
    gate.add_permits(10);
    cable.thaw();
    done.has("former has fenced").await;
    sleep(60 * SECOND).await;
    let all = done.all();
    assert!(!all.contains(&"former does more".to_owned()), "{all:?}");
    assert!(all.iter().any(|it| it.starts_with("former: ") && it.contains("lost")), "{all:?}");
    assert_eq!(all.iter().filter(|it| *it == "next waits").count(), 1, "{all:?}");
    former.shutdown().await;
    next.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_owner_has_done_is_not_done_again() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let (bench, done) = (bench(), Done::default());
        let (cable, linked) = link(&bench.backend);
        let start = async |backend, dies: bool| {
            let done = done.clone();
            let handler = move |number: Delivery<u64>| {
                let done = done.clone();
                async move {
                    let steps = number.steps();
                    steps.step("charge", || async { done.noted("charged") }).await?;
                    if dies {
                        done.note("hangs");
                        std::future::pending::<()>().await;
                    }
                    steps.step("ship", || async { done.noted("shipped") }).await?;
                    Ok::<_, BoxError>(())
                }
            };
            let consumer = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore)).sharing(sharing);
            let consumer = consumer.concurrency(Concurrency::Unordered(2)).retry(Never);
            consumer.start(handler).await.expect("a consumer")
        };
        let first = start(linked, true).await;
        let id = bench.producer(NUMBERS).await.send(&1).await.expect("sent").id;
        done.has("hangs").await;
        cable.cut();
        drop(first);
        let second = start(bench.backend.clone(), false).await;
        done.has("shipped").await;
        eventually(|| second.report().acked == 1, || format!("{:?}", second.report())).await;
        assert_eq!(done.all(), ["charged", "hangs", "shipped"], "{sharing:?}");
        assert_eq!(stored(&bench, id).await, [], "{sharing:?}");
        second.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_no_step() {
    // Half a lease, one, and two, while nobody dies.
    for seconds in [5, 10, 20] {
        let (bench, done) = (bench(), Done::default());
        let (cable, linked) = link(&bench.backend);
        let (noted, cut) = (done.clone(), cable.clone());
        let handler = move |number: Delivery<u64>| {
            let (done, cable) = (noted.clone(), cut.clone());
            async move {
                let steps = number.steps();
                let charge = async || {
                    if done.all().is_empty() {
                        cable.away.store(true, Ordering::Relaxed);
                    }
                    done.note("charged");
                    Ok::<_, BoxError>(())
                };
                steps.step("charge", charge).await?;
                done.note("stored");
                Ok::<_, BoxError>(())
            }
        };
        let consumer = ConsumerBuilder::new(linked, NUMBERS, "g", Arc::new(Ignore)).retry(Never);
        let consumer = consumer.lease_ttl(10 * SECOND).start(handler).await.expect("a consumer");
        bench.producer(NUMBERS).await.send(&1).await.expect("sent");
        done.has("charged").await;
        sleep(seconds * SECOND).await;
        assert_eq!(done.all(), ["charged"], "{seconds}: nothing goes on without the server");
        cable.away.store(false, Ordering::Relaxed);
        done.has("stored").await;
        let charged = done.all().iter().filter(|it| *it == "charged").count();
        // A lease that ended is lost, and its step may be done again: its effect was before its checkpoint.
        assert!(charged == 1 || seconds >= 10, "{seconds}: {:?}", done.all());
        consumer.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn steps_go_into_the_dead_letter_and_come_back_by_a_replay() {
    let (bench, done) = (bench(), Done::default());
    let (noted, is_open) = (done.clone(), Arc::new(AtomicU32::new(0)));
    let opened = is_open.clone();
    let handler = move |number: Delivery<u64>| {
        let (done, is_open) = (noted.clone(), opened.clone());
        async move {
            let steps = number.steps();
            let big = steps.step("big", || async {
                done.note("big");
                Ok::<_, BoxError>("x".repeat(100_000))
            });
            assert_eq!(big.await?.len(), 100_000);
            for page in 0..is_open.load(Ordering::Relaxed) {
                let fetch = async || done.noted(format!("page {page}"));
                steps.step(&format!("page-{page}"), fetch).await?;
            }
            if is_open.load(Ordering::Relaxed) < 2 {
                return Err("not yet".into());
            }
            done.note("done");
            Ok::<_, BoxError>(())
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Never).start(handler).await.expect("a consumer");
    let id = bench.producer(NUMBERS).await.send(&1).await.expect("sent").id;
    let letters = dead(&bench, "g").await;
    for round in 0..3 {
        let letter = loop {
            if let Some(letter) = letters.list(10).await.expect("listed").pop() {
                break letter;
            }
            sleep(SECOND).await;
        };
        let header = letter
            .envelope(&Limits::default())
            .expect("a message")
            .headers
            .get(STEPS_HEADER)
            .expect("its steps")
            .clone();
        let records = StepRecord::read(&header).expect("steps");
        assert_eq!(records.len(), 1 + usize::from(round == 1), "{round}: {records:?}");
        assert_eq!(stored(&bench, id).await, [], "{round}: they are in the letter");
        is_open.store(round + 1, Ordering::Relaxed);
        letters.replay_all().await.expect("replayed");
        if round == 1 {
            break;
        }
    }
    done.has("done").await;
    assert_eq!(done.all(), ["big", "page 0", "page 1", "done"]);
    consumer.shutdown().await;
}
