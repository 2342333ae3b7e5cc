//! Steps of handlers: what is done stays done, whatever ends a run; and a wait holds nothing.

mod flows;
mod owners;
mod waits;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::link::link;
use super::support::*;
use millstream_admin::{Admin, CancelState};
use millstream_core::codec::{Codec, Json};
use millstream_core::event::Ignore;
use millstream_core::policy::{Fixed, Never};
use millstream_core::schedule::RetryAction;
use millstream_core::steps::{STEPS_HEADER, Signalled, StepKind, StepRecord};
use millstream_core::{
    BoxError, ErrorKind, GroupName, LimitKey, Limits, MessageId, Outcome, Reply, Topic, WorkId,
};
use millstream_runtime::extract::{Payload, State, with_state};
use millstream_runtime::{
    Batch, Concurrency, ConsumerBuilder, Delivery, Limit, Producer, RetryOrder, Sharing, StepError, Steps,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// What handlers did, in their order.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<String>>>);

impl Done {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().expect("lock").push(what.into());
    }

    /// Notes it as what a step does.
    fn noted(&self, what: impl Into<String>) -> Result<(), BoxError> {
        self.note(what);
        Ok(())
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("lock").clone()
    }

    async fn has(&self, what: &str) {
        eventually(|| self.all().iter().any(|it| it == what), || format!("{what} in {:?}", self.all())).await;
    }
}

/// Waits for what comes late: up to this time.
async fn eventually_late(done: &Done, what: &str, within: Duration) {
    let until = Instant::now() + within;
    while !done.all().iter().any(|it| it == what) && Instant::now() < until {
        sleep(SECOND).await;
    }
    done.has(what).await;
}

fn work(id: MessageId) -> WorkId {
    WorkId::message(&partition(), id, "g").expect("an id")
}

async fn stored(bench: &Bench, id: MessageId) -> Vec<StepRecord> {
    bench.backend.steps().expect("steps").read(&work(id)).await.expect("read").1
}

async fn signal(bench: &Bench, id: MessageId, name: &str, value: &str) -> Signalled {
    let value = Codec::<String>::encode(&Json, &value.to_owned()).expect("json");
    bench.backend.steps().expect("steps").signal(&work(id), name, value).await.expect("signalled")
}

type Make = fn(ConsumerBuilder<u64>) -> ConsumerBuilder<u64>;

const MODES: [(&str, Make); 4] = [
    ("owned", |it| it.concurrency(Concurrency::Serial)),
    ("in the order of keys", |it| it.concurrency(Concurrency::Serial).retry_order(RetryOrder::BlockKey)),
    ("unordered", |it| it.concurrency(Concurrency::Unordered(4))),
    ("shared", |it| it.concurrency(Concurrency::Unordered(4)).sharing(Sharing::Shared)),
];

#[tokio::test(start_paused = true)]
async fn a_step_that_is_done_does_not_run_again() {
    for (mode, make) in MODES {
        let (bench, done) = (bench(), Done::default());
        let noted = done.clone();
        let handler = move |number: Delivery<u64>| {
            let done = noted.clone();
            async move {
                let steps = number.steps();
                let first: u32 = steps
                    .step("first", || async {
                        done.note("first");
                        Ok::<_, BoxError>(number.attempt())
                    })
                    .await?;
                done.note(format!("attempt {} knows {first}", number.attempt()));
                let fails = number.attempt() == 2;
                steps
                    .step("second", || async {
                        done.note("second");
                        if fails { Err("the bank is away") } else { Ok(()) }
                    })
                    .await?;
                if number.attempt() < 4 {
                    return Err("once more".into());
                }
                Ok::<_, BoxError>(())
            }
        };
        let consumer = make(bench.consumer(NUMBERS, "g")).retry(Fixed::new(MS(50)).attempts(5));
        let consumer = consumer.start(handler).await.expect("a consumer");
        let id = bench.producer(NUMBERS).await.send(&1).key("k").await.expect("sent").id;
        done.has("attempt 4 knows 1").await;
        eventually(|| consumer.report().acked == 1, || format!("{:?}", consumer.report())).await;
        let expected = [
            "first",
            "attempt 1 knows 1",
            "second",
            "attempt 2 knows 1",
            "attempt 3 knows 1",
            "attempt 4 knows 1",
        ];
        assert_eq!(done.all(), expected, "{mode}");
        assert_eq!(stored(&bench, id).await, [], "{mode}: they are gone with the message");
        consumer.shutdown().await;
    }
}

/// Waits once for so long, and notes when it goes on.
fn sleeper(
    done: &Done,
    time: Duration,
) -> impl Fn(Delivery<u64>) -> futures_util::future::BoxFuture<'static, Result<(), StepError>> + Send + Sync + use<>
{
    let done = done.clone();
    move |number: Delivery<u64>| {
        let done = done.clone();
        Box::pin(async move {
            done.note(format!("{} begins", number.payload));
            if number.payload == 1 {
                number.steps().sleep("nap", time).await?;
            }
            done.note(format!("{} ends, attempt {}", number.payload, number.attempt()));
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_is_used_once_in_a_run_and_has_its_rules() {
    let (bench, done) = (bench(), Done::default());
    let noted = done.clone();
    let handler = move |number: Delivery<u64>| {
        let done = noted.clone();
        async move {
            let steps = number.steps();
            let run = async |name: &str| steps.step(name, || async { Ok::<_, BoxError>(1u32) }).await;
            run("a").await.expect("the first");
            for (name, kind) in [("a", "exists"), ("", "invalid_name"), ("a\nb", "invalid_name")] {
                let Err(StepError::Refused(error)) = run(name).await else { panic!("{name:?}") };
                assert_eq!(error.kind().to_string(), kind, "{name:?}: {error}");
            }
            // Also of another handle on the same run, and of a wait.
            let again = number.steps().step("a", || async { Ok::<_, BoxError>(1u32) }).await;
            assert!(matches!(again, Err(StepError::Refused(error)) if error.kind() == ErrorKind::Exists));
            let nap = steps.sleep("a", SECOND).await;
            assert!(matches!(nap, Err(StepError::Refused(error)) if error.kind() == ErrorKind::Exists));
            let large = steps.step("large", || async { Ok::<_, BoxError>("x".repeat(300_000)) }).await;
            assert!(matches!(large, Err(StepError::Refused(error)) if error.kind() == ErrorKind::TooLarge));
            done.note("done");
        }
    };
    let consumer = bench.consumer(NUMBERS, "g").retry(Never).start(handler).await.expect("a consumer");
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    done.has("done").await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_of_another_shape_is_an_error_and_runs_nothing() {
    let (bench, done) = (bench(), Done::default());
    let noted = done.clone();
    let handler = move |number: Delivery<u64>| {
        let done = noted.clone();
        async move {
            let steps = number.steps();
            if number.attempt() == 1 {
                steps.step("a", || async { Ok::<_, BoxError>("text".to_owned()) }).await?;
                return Err("a new version is deployed".into());
            }
            let read = steps.step("a", || async { Ok::<u32, BoxError>(7) }).await;
            assert!(matches!(read, Err(StepError::Refused(error)) if error.kind() == ErrorKind::Decode));
            done.note("refused");
            Ok::<_, BoxError>(())
        }
    };
    let consumer =
        bench.consumer(NUMBERS, "g").retry(Fixed::new(MS(10))).start(handler).await.expect("a consumer");
    bench.producer(NUMBERS).await.send(&1).await.expect("sent");
    done.has("refused").await;
    consumer.shutdown().await;
}
