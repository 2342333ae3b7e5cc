//! Mistakes of appending.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use integration_tests::chaos::mutants::{MAXLEN, Mutant};
use millstream::Millstream;
use millstream_core::log::{DedupId, DedupIdentity, Identity, Numbering};
use millstream_core::{Durability, TopicPartition};

use super::scene::{LINES, Scene, Stage, entry};

/// More than the length that the mutant leaves.
const SENT: usize = MAXLEN + 50;

async fn length(stage: &Stage) -> u64 {
    stage.backend.log().lengths(std::slice::from_ref(&stage.tp)).await.expect("a length")[0]
}

#[test]
fn a_log_loses_what_is_beyond_a_length() {
    Scene::new("appends::a_log_loses_what_is_beyond_a_length", Mutant::AppendMaxlen).run(
        async |stage| {
            let mq = Millstream::over(stage.backend.clone());
            let producer = mq.producer(LINES).await.expect("a producer");
            let sends = (0..SENT).map(|_| async {
                producer.send(&Bytes::from_static(b"x")).partition(0).await.expect("confirmed");
            });
            futures_util::future::join_all(sends).await;
            "sent".into()
        },
        async |stage, _| match length(&stage).await as usize {
            MAXLEN => true,
            SENT => false,
            other => panic!("{other} entries"),
        },
    );
}

/// One of two entries cannot be stored: its log has the wrong type.
async fn with_a_bad_entry(stage: Stage) -> String {
    let bad = TopicPartition::new(stage.topic.name.clone(), 1);
    let mut raw = integration_tests::fixture::raw_connection(&stage.url).await;
    let key = stage.keys.log(&bad);
    redis::cmd("DEL").arg(key.as_str()).query_async::<()>(&mut raw).await.expect("deleted");
    redis::cmd("SET").arg(key.as_str()).arg("x").query_async::<()>(&mut raw).await.expect("set");
    let batch = Arc::new(vec![entry(&stage.tp, "x"), entry(&bad, "x")]);
    let mut appender = stage.backend.log().appender(Durability::Stored).expect("an appender");
    appender.begin(batch);
    let results: Vec<_> = appender.finish().await.iter().map(Result::is_ok).collect();
    assert!(appender.finish().await.is_empty());
    redis::cmd("DEL").arg(key.as_str()).query_async::<()>(&mut raw).await.expect("deleted");
    format!("{results:?}")
}

#[test]
fn what_was_stored_of_a_batch_is_stored_again() {
    let test = "appends::what_was_stored_of_a_batch_is_stored_again";
    Scene::new(test, Mutant::WholeBatchResent).run(with_a_bad_entry, async |stage, said| {
        assert_eq!(said.as_deref(), Some("[true, false]"));
        match length(&stage).await {
            2 => true,
            1 => false,
            other => panic!("{other} entries"),
        }
    });
}

fn numbering() -> Numbering {
    Numbering { producer: 7, window: Duration::from_secs(600) }
}

async fn send_with_a_number(stage: &Stage) -> bool {
    let batch = [entry(&stage.tp, "x").with(Identity::Number(Arc::new(numbering()), 1))];
    stage.backend.log().append(&batch).await.remove(0).is_ok()
}

async fn send_with_an_id(stage: &Stage) -> String {
    let id = DedupId::new("order-1").expect("an id");
    let window = Duration::from_secs(600);
    let append = entry(&stage.tp, "x").with(DedupIdentity { id, window, earlier: Vec::new() });
    match stage.backend.log().append(&[append]).await.remove(0) {
        Ok(done) => format!("duplicate {}", done.is_duplicate),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// The judge is the producer that sends again: it is told that the message is stored.
#[test]
fn a_message_is_lost_if_the_process_dies_between_its_id_and_its_append() {
    let test = "appends::a_message_is_lost_if_the_process_dies_between_its_id_and_its_append";
    let steps = async |stage: Stage| send_with_an_id(&stage).await;
    Scene::new(test, Mutant::MarkerBeforeAppend).dying().run(steps, async |stage, _| {
        assert_eq!(send_with_an_id(&stage).await, "duplicate true");
        length(&stage).await == 0
    });
}

/// Without the mutant the producer that sends again is another one: its requests are known by their records. So the loss
/// is not compared by a repetition, but by what is stored.
#[test]
fn a_numbered_message_is_recorded_before_it_is_stored() {
    let test = "appends::a_numbered_message_is_recorded_before_it_is_stored";
    let steps = async |stage: Stage| format!("{}", send_with_a_number(&stage).await);
    Scene::new(test, Mutant::MarkerBeforeAppend)
        .dying()
        .run(steps, async |stage, _| length(&stage).await == 0);
}

/// So that the losses above are those of the death, and of nothing else.
#[test]
fn two_steps_store_the_message_if_the_process_lives() {
    let test = "appends::two_steps_store_the_message_if_the_process_lives";
    let scene = Scene::new(test, Mutant::MarkerBeforeAppend);
    let steps = async |stage: Stage| {
        format!("{}, {}", send_with_an_id(&stage).await, send_with_a_number(&stage).await)
    };
    let stored = async |stage: Stage, _: Option<String>| length(&stage).await == 2;
    if let Some((said, is_stored)) = scene.run_once(Some(scene.mutant), &steps, &stored) {
        assert_eq!((said.as_deref(), is_stored), (Some("duplicate false, true"), true));
    }
}
