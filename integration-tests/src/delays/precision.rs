//! The lateness of due items: by the server's clock when they are claimed or appended to the log, and at the handler.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream::{Consumer, Delivery, Millstream, Record, Topic};
use millstream_core::Backend;
use millstream_core::Timestamp;
use millstream_delay::{DelayQueue, Task, TaskRecord, Worker};

use super::recorder::witnessed;
use super::{Engine, quantile, spread, wall_ms_in, wall_us};
use crate::equipment::baseline::Echo;
use crate::server::Server;

const DUE: Topic<u64> = Topic::new("due").partitions(1);
/// Delay of parked messages: so long that no run handles them.
const FAR: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The side of the delay engine.
    pub engine: Engine,
    /// The number of tasks that become due.
    pub tasks: u64,
    /// The number of tasks that become due per second.
    pub per_second: u64,
    /// The number of other tasks that wait, and are due in a month.
    pub parked: u64,
}

/// The lateness of the tasks.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    /// By the server's clock, in whole milliseconds rounded down: at the claim, or at the id of its entry in the log.
    pub server_ms: Vec<i64>,
    /// From due to the handler, in microseconds, by the clock of this machine, which is the server's.
    pub handler_us: Vec<i64>,
    /// The same for a timer and a round trip at the same times, by anybody.
    pub baseline_us: Vec<i64>,
}

impl Lateness {
    /// Returns how many were early, by either clock.
    #[must_use]
    pub fn early(&self) -> usize {
        self.server_ms.iter().chain(&self.handler_us).filter(|late| **late < 0).count()
    }

    /// Returns a quantile of the lateness at the handler, in microseconds.
    ///
    /// # Panics
    /// If no task was handled.
    #[must_use]
    pub fn at_handler(&self, share: f64) -> i64 {
        at(&self.handler_us, share)
    }

    /// Returns a quantile of the lateness of the baseline, in microseconds.
    ///
    /// # Panics
    /// If there was none.
    #[must_use]
    pub fn of_baseline(&self, share: f64) -> i64 {
        at(&self.baseline_us, share)
    }

    /// Formats both latenesses for output.
    #[must_use]
    pub fn text(&self) -> String {
        let server: Vec<i64> = self.server_ms.iter().map(|ms| ms * 1_000).collect();
        format!(
            "server's clock: {}; at the handler: {}; baseline: {}; early {}",
            spread(&server),
            spread(&self.handler_us),
            spread(&self.baseline_us),
            self.early()
        )
    }
}

fn at(lateness: &[i64], share: f64) -> i64 {
    let mut sorted = lateness.to_vec();
    sorted.sort_unstable();
    quantile(&sorted, share)
}

/// Runs a measurement on a separate server.
///
/// # Panics
/// If anything fails, or a task is never handled.
pub async fn run(course: &Load) -> Lateness {
    let server = Server::start();
    let mut scene = Fixture::begin(&server, course.engine).await;
    park(&scene, course.parked).await;
    let lead = Duration::from_millis(6_000 + course.tasks / 4);
    let base = wall_ms_in(lead);
    let dues: Vec<u64> = (0..course.tasks).map(|nth| base + nth * 1_000 / course.per_second).collect();
    scene.schedule(&dues).await;
    assert!(wall_us() < base.cast_signed() * 1_000, "scheduling took longer than {lead:?}");
    scene.start().await;
    let mut echo = Echo::start().await;
    let (baseline_us, ()) = tokio::join!(echo.lateness(&dues), scene.until(dues.len()));
    Lateness { baseline_us, ..scene.end().await }
}

/// Lets all workers sleep until a distant time, then schedules an item that is due in 25 ms. Repeats this for all
/// rounds.
///
/// # Panics
/// As [`run`].
pub async fn asleep(engine: Engine, rounds: usize) -> Lateness {
    let server = Server::start();
    let mut scene = Fixture::begin(&server, engine).await;
    park(&scene, 1).await;
    scene.start().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut echo, mut baseline_us) = (Echo::start().await, Vec::new());
    for round in 1..=rounds {
        tokio::time::sleep(Duration::from_micros(fastrand::u64(20_000..60_000))).await;
        let due = [wall_ms_in(Duration::from_millis(25))];
        // What the request takes makes it late as well.
        let (late, ()) = tokio::join!(echo.lateness(&due), scene.schedule(&due));
        baseline_us.extend(late);
        scene.until(round).await;
    }
    Lateness { baseline_us, ..scene.end().await }
}

async fn park(scene: &Fixture, messages: u64) {
    let far = wall_ms_in(FAR);
    let dues: Vec<u64> = (0..messages).map(|nth| far + nth).collect();
    for dues in dues.chunks(20_000) {
        scene.schedule(dues).await;
    }
}

/// Both sides of the delay engine, as far as the measurements need them. A payload is the due time of its task.
struct Fixture {
    engine: Engine,
    mq: Millstream,
    queue: DelayQueue<u64>,
    claims: Arc<Mutex<Vec<i64>>>,
    late: Arc<Mutex<Lateness>>,
    consumer: Option<Consumer>,
    worker: Option<Worker>,
}

impl Fixture {
    async fn begin(server: &Server, engine: Engine) -> Self {
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        let (backend, claims): (Backend, _) = witnessed(mq.backend());
        let queue = DelayQueue::<u64>::new("due").open(&backend).await.expect("opened");
        Self { engine, mq, queue, claims, late: Arc::default(), consumer: None, worker: None }
    }

    async fn schedule(&self, dues: &[u64]) {
        match self.engine {
            Engine::Topic => {
                let producer = self.mq.producer(DUE).await.expect("a producer");
                let records = dues.iter().map(|due| Record::new(due).at(Timestamp::from_millis(*due)));
                let sent = producer.send_all_delayed(records).await;
                sent.into_iter().for_each(|sent| drop(sent.expect("sent")));
            }
            Engine::Queue => {
                let records = dues.iter().map(|due| TaskRecord::new(due).at(Timestamp::from_millis(*due)));
                let scheduled = self.queue.schedule_all(records).await;
                scheduled.into_iter().for_each(|one| drop(one.expect("scheduled")));
            }
        }
    }

    async fn start(&mut self) {
        let late = self.late.clone();
        let came = move |due: u64, entry: Option<u64>| {
            let at = wall_us();
            let mut late = late.lock().expect("lock");
            late.handler_us.push(at - due.cast_signed() * 1_000);
            late.server_ms.extend(entry.map(|entry| entry.cast_signed() - due.cast_signed()));
        };
        match self.engine {
            Engine::Topic => {
                let handler = move |delivery: Delivery<u64>| {
                    came(delivery.payload, Some(delivery.id().ms));
                    async {}
                };
                let consumer = self.mq.consumer(DUE, "g").start(handler).await;
                self.consumer = Some(consumer.expect("started"));
            }
            Engine::Queue => {
                let handler = move |task: Task<u64>| {
                    came(task.payload, None);
                    async {}
                };
                self.worker = Some(self.queue.worker().start(handler).await.expect("started"));
            }
        }
    }

    async fn until(&self, came: usize) {
        let deadline = Instant::now() + crate::HANG;
        while self.late.lock().expect("lock").handler_us.len() < came {
            assert!(Instant::now() < deadline, "not all came");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) -> Lateness {
        if let Some(consumer) = self.consumer {
            consumer.shutdown().await;
        }
        if let Some(worker) = self.worker {
            worker.shutdown().await;
        }
        let mut late = self.late.lock().expect("lock").clone();
        late.server_ms.append(&mut self.claims.lock().expect("lock"));
        late
    }
}
