//! What a message costs the runtime, in memory and on one thread, for a tool that counts instructions: `instructions <way> <messages>`.

use millstream::{Concurrency, Delivery, Millstream, Record, Topic};

const JOBS: Topic<bytes::Bytes> = Topic::raw("jobs");

#[tokio::main(flavor = "current_thread")]
async fn main() -> millstream::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, way, messages] = &args[..] else { panic!("instructions <way> <messages>") };
    let messages: u64 = messages.parse().expect("a number");
    let mq = Millstream::connect("memory://").await?;
    let (producer, payload) = (mq.producer(JOBS).await?, bytes::Bytes::from(vec![b'x'; 128]));
    let keys: Vec<String> = (0..64).map(|key| format!("key-{key}")).collect();
    let records = (0..messages as usize).map(|n| Record::new(&payload).key(&keys[n % keys.len()]));
    for sent in producer.send_all(records).await {
        sent?;
    }
    let concurrency = match &way[..] {
        "send" => return Ok(()),
        "unordered" => Concurrency::Unordered(64),
        "per-key" => Concurrency::PerKey(64),
        other => panic!("no way {other}"),
    };
    let consumer = mq.consumer(JOBS, "counting").concurrency(concurrency);
    let consumer = consumer.start(|_: Delivery<bytes::Bytes>| async {}).await?;
    consumer.wait_idle().await?;
    assert_eq!(consumer.shutdown().await.acked, messages);
    Ok(())
}
