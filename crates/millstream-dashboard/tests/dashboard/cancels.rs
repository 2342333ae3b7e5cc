//! Messages that are cancelled on their pages.

use millstream::{Delivery, Topic};
use millstream_dashboard::Access;

use super::support::Scene;

#[tokio::test]
async fn a_message_is_cancelled_on_its_page() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let topic = Topic::<bytes::Bytes>::raw("films").partitions(1);
    let consumer = scene.mq.consumer(&topic, "transcode").start(async |film: Delivery<bytes::Bytes>| {
        film.cancelled().await;
        Err::<(), _>("it stops")
    });
    let consumer = consumer.await.expect("started");
    let producer = scene.mq.producer(&topic).await.expect("a producer");
    let sent = producer.send(&bytes::Bytes::from_static(b"film")).await.expect("sent");
    let path = format!("/topics/films/messages/{}/{}", sent.partition, sent.id);
    assert!(scene.get(&path).await.body.contains("Cancel for all groups"));
    let page = scene.ended(scene.post(&format!("{path}/cancel"), &[]).await).await;
    let words = ["transcode: stopped, its handler has ended", "transcode: cancelled, no handler had begun"];
    assert!(words.iter().any(|words| page.contains(words)), "{page}");
    assert!(scene.get(&path).await.body.contains(">cancelled<"));
    consumer.shutdown().await;
}
