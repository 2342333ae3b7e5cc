//! Hours and days of a paused clock over `memory://`, where consumers that have nothing to do cost next to nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::crates::core::Backend;
use crate::crates::memory::MemoryBackend;
use crate::delay::Task;
use crate::{Consumer, Delivery, Fixed, Millstream, Record, Topic};

const LINES: Topic<String> = Topic::new("lines").partitions(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn consume(mq: &Millstream, counted: &Arc<AtomicUsize>) -> Consumer {
    let counted = counted.clone();
    let handler = move |line: Delivery<String>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { if line.attempt() == 1 && line.payload == "late" { Err("later") } else { Ok(()) } }
    };
    mq.consumer(LINES, "g").retry(Fixed::new(30 * HOUR)).start(handler).await.expect("started")
}

#[cfg(feature = "cron")]
#[tokio::test(start_paused = true)]
async fn a_rule_fires_each_hour_of_a_week() {
    let (mq, counted) = (Millstream::connect("memory://").await.expect("a queue"), Arc::default());
    let consumer = consume(&mq, &counted).await;
    sleep(HOUR).await;
    let recurring = mq.recurring(&LINES).await.expect("the topic");
    recurring.id("hourly").cron("0 * * * *", "UTC").payload(&"tick".to_owned()).await.expect("put");
    sleep(7 * 24 * HOUR).await;
    assert_eq!(counted.load(Ordering::Relaxed), 7 * 24);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_due_after_days_comes_on_time() {
    let (mq, counted) = (Millstream::connect("memory://").await.expect("a queue"), Arc::default());
    let (consumer, lines) = (consume(&mq, &counted).await, mq.producer(LINES).await.expect("a producer"));
    let started = Instant::now();
    sleep(HOUR).await;
    for (text, delay) in [("one", 50), ("two", 3), ("late", 20)] {
        let text = text.to_owned();
        let sent = lines.send_all_delayed([Record::new(&text).delay(delay * HOUR)]).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    }
    for (hours, count) in [(3, 1), (20, 2), (50, 4)] {
        let due = started + HOUR * (hours + 1);
        sleep(due - Instant::now() - Duration::from_secs(1)).await;
        // The retry is due as the last one is.
        assert_eq!(
            counted.load(Ordering::Relaxed),
            if hours == 50 { 2 } else { count - 1 },
            "before {hours} h"
        );
        sleep(Duration::from_secs(2)).await;
        assert_eq!(counted.load(Ordering::Relaxed), count, "after {hours} h");
    }
    consumer.wait_idle_with_delayed().await.expect("idle");
}

#[tokio::test(start_paused = true)]
async fn tasks_that_are_due_after_days_come_on_time() {
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let mails = mq.delay_queue::<u64>("mails").await.expect("a queue");
    let (done, started) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let worker = || {
        let done = done.clone();
        mails.worker().start(move |task: Task<u64>| {
            done.lock().expect("lock").push((task.payload, started.elapsed().as_secs()));
            async {}
        })
    };
    let (first, second) = (worker().await.expect("started"), worker().await.expect("started"));
    sleep(HOUR * 5).await;
    mails.schedule(&1).delay(HOUR * 50).await.expect("scheduled");
    mails.schedule(&2).delay(HOUR * 3).await.expect("scheduled");
    sleep(HOUR * 4).await;
    // The one that waits for the next task is one of both.
    first.shutdown().await;
    sleep(HOUR * 60).await;
    mails.pause().await.expect("paused");
    mails.schedule(&3).await.expect("scheduled");
    sleep(HOUR * 30).await;
    mails.resume().await.expect("resumed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        *done.lock().expect("lock"),
        [(2, 8), (1, 55), (3, 99)].map(|(task, hours)| (task, hours * 3_600))
    );
    second.shutdown().await;
}

/// Measures the CPU time of a virtual hour: `cargo test --workspace --lib how_much_an_hour_costs -- --ignored --nocapture`.
#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
#[ignore = "a measurement: it prints how much CPU time is used, which depends on the machine"]
async fn how_much_an_hour_costs() {
    fn cpu() -> Duration {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
        Duration::from_nanos(stat.split(' ').next().expect("a number").parse().expect("a number"))
    }
    let queues = [
        ("renewed", 24, Millstream::over(Backend::from(MemoryBackend::new()))),
        ("memory://", 10_000, Millstream::connect("memory://").await.expect("a queue")),
    ];
    for (name, hours, mq) in queues {
        let (counted, before) = (Arc::default(), cpu());
        let consumer = consume(&mq, &counted).await;
        sleep(hours * HOUR).await;
        println!("{name}: an hour of an idle consumer costs {:?}", (cpu() - before) / hours);
        let (lines, before) = (mq.producer(LINES).await.expect("a producer"), cpu());
        sleep(hours * HOUR).await;
        println!("{name}: and beside a producer {:?}", (cpu() - before) / hours);
        lines.send(&"late".to_owned()).await.expect("sent");
        let before = cpu();
        consumer.wait_idle().await.expect("idle");
        println!("{name}: and while somebody waits for a retry {:?}", (cpu() - before) / 30);
        consumer.shutdown().await;
        let mails = mq.delay_queue::<String>("mails").await.expect("a queue");
        let worker = mails.worker().start(|_: Task<String>| async {}).await.expect("started");
        let before = cpu();
        sleep(hours * HOUR).await;
        println!("{name}: an hour of an idle worker of a delay queue costs {:?}", (cpu() - before) / hours);
        worker.shutdown().await;
    }
}
