//! Steps that are messages.

use super::*;

const PARTS: Topic<u64> = Topic::new("parts").partitions(3);
const TEXTS: Topic<String> = Topic::new("texts");

/// Doubles numbers; one that is refused is a dead letter until it is allowed.
async fn doubler(bench: &Bench, refused: Arc<AtomicU32>) -> millstream_runtime::Consumer {
    let handler = move |number: Delivery<u64>| {
        let refused = refused.clone();
        async move {
            if u64::from(refused.load(Ordering::Relaxed)) == number.payload {
                return Outcome::DeadLetter("refused".into());
            }
            Outcome::Reply(Reply::json(&(2 * number.payload)))
        }
    };
    let consumer = bench.consumer(PARTS, "d").concurrency(Concurrency::Unordered(4));
    consumer.start(handler).await.expect("a consumer")
}

#[tokio::test(start_paused = true)]
async fn a_flow_is_a_handler_whose_steps_are_messages() {
    for (mode, make) in MODES {
        let (bench, done) = (bench(), Done::default());
        let (parts, texts): (Arc<Producer<u64>>, Arc<Producer<String>>) =
            (Arc::new(bench.producer(PARTS).await), Arc::new(bench.producer(TEXTS).await));
        let doubles = doubler(&bench, Arc::new(AtomicU32::new(1_000))).await;
        let lengths =
            bench.consumer(TEXTS, "l").start(async |text: Delivery<String>| Reply::json(&text.payload.len()));
        let lengths = lengths.await.expect("a consumer");
        let noted = done.clone();
        let handler = move |number: Delivery<u64>| {
            let (done, parts, texts) = (noted.clone(), parts.clone(), texts.clone());
            async move {
                let steps = number.steps();
                let doubled: u64 = steps.then("then", parts.send(&number.payload)).await?;
                let text = "seven".to_owned();
                let both = steps.all("all").with(parts.send(&doubled)).with(texts.send(&text)).await?;
                let (again, length) = (both.get::<u64>(0)?, both.get::<usize>(1)?);
                let numbers: Vec<u64> = (1..=250).collect();
                let each = steps.each("each", numbers.iter().map(|number| parts.send(number))).await?;
                let sum: u64 = each.all::<u64>()?.iter().sum();
                assert!(each.get::<u64>(3)? == 8 && each.get::<u64>(249)? == 500, "in their order");
                let none =
                    steps.each("none", std::iter::empty::<millstream_runtime::SendFuture<'_, u64>>()).await?;
                assert_eq!(none.results(), []);
                done.note(format!("{doubled} {again} {length} {sum}"));
                Ok::<_, StepError>(())
            }
        };
        let consumer =
            make(bench.consumer(NUMBERS, "g")).retry(Never).start(handler).await.expect("a consumer");
        let id = bench.producer(NUMBERS).await.send(&5).await.expect("sent").id;
        done.has("10 20 5 62750").await;
        eventually(|| consumer.report().acked == 1, || format!("{:?}", consumer.report())).await;
        assert_eq!(stored(&bench, id).await, [], "{mode}");
        let report = doubles.shutdown().await;
        assert_eq!(report.acked, 252, "{mode}: each is sent once");
        consumer.shutdown().await;
        lengths.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_given_up_fails_its_step_until_it_is_replayed() {
    let (bench, done) = (bench(), Done::default());
    let refused = Arc::new(AtomicU32::new(3));
    let doubles = doubler(&bench, refused.clone()).await;
    let noted = done.clone();
    let parts = Arc::new(bench.producer(PARTS).await);
    let handler = move |number: Delivery<u64>| {
        let (done, parts) = (noted.clone(), parts.clone());
        async move {
            let numbers = [1u64, 2, 3, 4];
            let each = number.steps().each("each", numbers.iter().map(|it| parts.send(it))).await?;
            match each.all::<u64>() {
                Ok(all) => done.note(format!("{all:?}")),
                Err(error) => {
                    done.note(error.to_string());
                    return Err(error);
                }
            }
            Ok::<_, StepError>(())
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Never).start(handler).await.expect("a consumer");
    bench.producer(NUMBERS).await.send(&0).await.expect("sent");
    done.has("step \"each\": member 2 was given up after 1 attempts (rejected): refused").await;
    let letters = dead(&bench, "g").await;
    eventually(|| consumer.report().dead == 1, || format!("{:?}", consumer.report())).await;
    refused.store(0, Ordering::Relaxed);
    let (topic, group) = ("parts".parse().expect("name"), "d".parse().expect("name"));
    let of_parts = Admin::new(bench.backend.clone()).dead_letters(&topic, &group).await.expect("a topic");
    of_parts.replay_all().await.expect("replayed");
    eventually(|| doubles.report().acked == 4, || format!("{:?}", doubles.report())).await;
    sleep(SECOND).await;
    letters.replay_all().await.expect("replayed");
    done.has("[2, 4, 6, 8]").await;
    consumer.shutdown().await;
    doubles.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_goes_on_under_the_next_owner() {
    let (bench, done) = (bench(), Done::default());
    let (cable, linked) = link(&bench.backend);
    let doubles = doubler(&bench, Arc::new(AtomicU32::new(1_000))).await;
    let start = async |backend, who: &'static str| {
        let (done, parts) = (done.clone(), Arc::new(bench.producer(PARTS).await));
        let handler = move |number: Delivery<u64>| {
            let (done, parts) = (done.clone(), parts.clone());
            async move {
                done.note(format!("{who} begins"));
                let numbers = [1u64, 2, 3];
                let each = number.steps().each("each", numbers.iter().map(|it| parts.send(it))).await?;
                done.note(format!("{who}: {:?}", each.all::<u64>()?));
                Ok::<_, StepError>(())
            }
        };
        let consumer = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(Ignore));
        consumer
            .upkeep(millstream_delay::Promoter::new(&bench.backend, Default::default()))
            .start(handler)
            .await
            .expect("a consumer")
    };
    // The members end, and nobody takes the news to the batch before the owner is gone.
    cable.refuse("settle");
    let first = start(linked, "first").await;
    bench.producer(NUMBERS).await.send(&0).await.expect("sent");
    done.has("first begins").await;
    sleep(SECOND).await;
    cable.cut();
    drop(first);
    let second = start(bench.backend.clone(), "second").await;
    done.has("second: [2, 4, 6]").await;
    assert_eq!(doubles.report().acked, 3, "what was sent is not sent again");
    second.shutdown().await;
    doubles.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_else_ends_the_wait_for_members() {
    let (bench, done) = (bench(), Done::default());
    let (noted, parts) = (done.clone(), Arc::new(bench.producer(PARTS).await));
    let handler = move |number: Delivery<u64>| {
        let (done, parts) = (noted.clone(), parts.clone());
        async move {
            done.note("runs");
            let doubled: u64 = number.steps().then("double", parts.send(&number.payload)).await?;
            done.note(doubled.to_string());
            Ok::<_, StepError>(())
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").start(handler).await.expect("a consumer");
    let id = bench.producer(NUMBERS).await.send(&4).await.expect("sent").id;
    done.has("runs").await;
    sleep(SECOND).await;
    // A signal of the step's name is none that its members' batch sends.
    assert_eq!(signal(&bench, id, "double", "no").await, Signalled::Stored);
    sleep(60 * SECOND).await;
    assert_eq!(done.all(), ["runs"], "nobody handles the member");
    let doubles = doubler(&bench, Arc::new(AtomicU32::new(1_000))).await;
    done.has("8").await;
    assert_eq!(done.all(), ["runs", "runs", "8"]);
    consumer.shutdown().await;
    doubles.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failures_are_results_where_the_flow_says_so() {
    let (bench, done) = (bench(), Done::default());
    let (noted, parts) = (done.clone(), Arc::new(bench.producer(PARTS).await));
    let refused = Arc::new(AtomicU32::new(2));
    let doubles = doubler(&bench, refused.clone()).await;
    let handler = move |number: Delivery<u64>| {
        let (done, parts) = (noted.clone(), parts.clone());
        async move {
            let steps = number.steps();
            let numbers = [1u64, 2];
            let each = steps.each("each", numbers.iter().map(|it| parts.send(it))).settled().await?;
            let told: Vec<_> = (0..2).map(|at| each.get::<u64>(at).map_err(|it| it.to_string())).collect();
            done.note(format!("{told:?}"));
            // Longer than the batch is kept.
            steps.sleep("month", 30 * 24 * HOUR).await?;
            done.note("done");
            Ok::<_, StepError>(())
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Never).start(handler).await.expect("a consumer");
    bench.producer(NUMBERS).await.send(&0).await.expect("sent");
    let told = r#"[Ok(2), Err("step \"each\": member 1 was given up after 1 attempts (rejected): refused")]"#;
    done.has(told).await;
    refused.store(1_000, Ordering::Relaxed);
    eventually_late(&done, "done", 31 * 24 * HOUR).await;
    assert_eq!(done.all(), [told, told, "done"], "in each run the same");
    consumer.shutdown().await;
    doubles.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_where_nobody_can_wait() {
    let (bench, done) = (bench(), Done::default());
    let (noted, parts) = (done.clone(), Arc::new(bench.producer(PARTS).await));
    let together = move |numbers: Batch<u64>| {
        let (done, parts) = (noted.clone(), parts.clone());
        async move {
            for number in &numbers {
                let refused = number.steps().then::<u64>("double", parts.send(&number.payload)).await;
                assert_eq!(refused.expect_err("refused").kind(), Some(ErrorKind::Unsupported));
            }
            done.note("refused");
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").start_batch((10, MS(1)), together).await.expect("a consumer");
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    done.has("refused").await;
    let doubles = doubler(&bench, Arc::new(AtomicU32::new(1_000))).await;
    sleep(60 * SECOND).await;
    assert_eq!(doubles.report().acked, 0);
    consumer.shutdown().await;
    doubles.shutdown().await;
}
