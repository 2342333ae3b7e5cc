//! A consumer that is made to be killed: it writes every start and end of a handler to a file that survives it.
//!
//! `victim URL NAMESPACE TOPIC PARTITIONS SINK`: one line per event, each in one write, so that a kill leaves
//! whole lines: `S <number> <key> <attempt> <pid>` and `D <number> <pid>`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use millstream::{Delivery, Fixed, Millstream, Outcome, Topic};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, namespace, topic, partitions, sink] =
        <[String; 5]>::try_from(args).map_err(|_| anyhow::anyhow!("five arguments are needed"))?;
    let sink: Arc<File> = Arc::new(OpenOptions::new().append(true).open(&sink).context("opening the sink")?);
    let numbers = Topic::<u64>::new("numbers").named(topic).partitions(partitions.parse()?);
    let pid = std::process::id();
    let mq = Millstream::at(url).namespace(namespace).await?;
    mq.consumer(numbers, "g")
        .lease_ttl(Duration::from_millis(200))
        .prefetch(16)
        .retry(Fixed::new(Duration::from_millis(5)).attempts(3))
        .run(move |delivery: Delivery<u64>| {
            let sink = sink.clone();
            async move {
                let number = *delivery;
                let key = delivery.key().map(|key| String::from_utf8_lossy(key).into_owned());
                let started =
                    format!("S {number} {} {} {pid}\n", key.unwrap_or_default(), delivery.attempt());
                (&*sink).write_all(started.as_bytes())?;
                // Work of about a millisecond, so that kills meet running handlers.
                tokio::time::sleep(Duration::from_millis(number % 3)).await;
                if number % 33 == 5 && delivery.attempt() == 1 {
                    return Ok(Outcome::retry("the first attempt fails"));
                }
                if number % 500 == 499 {
                    return Ok(Outcome::dead_letter("never works"));
                }
                (&*sink).write_all(format!("D {number} {pid}\n").as_bytes())?;
                Ok::<_, std::io::Error>(Outcome::Ack)
            }
        })
        .await?;
    Ok(())
}
