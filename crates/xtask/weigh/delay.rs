//! A program of a user: a delay queue on Redis, without the facade.

use std::time::Duration;

use millstream_core::{Backend, Result};
use millstream_delay::{DelayQueue, Task};
use millstream_redis::{RedisBackend, RedisConfig};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

async fn send(mail: Task<Mail>) -> std::result::Result<(), String> {
    println!("to {}", mail.payload.to);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let redis = RedisBackend::connect(RedisConfig::new("redis://127.0.0.1")).await?;
    let mails = DelayQueue::<Mail>::new("mails").shards(4).open(&Backend::from(redis)).await?;
    let mail = Mail { to: "ada@example.org".into() };
    mails.schedule(&mail).delay(Duration::from_secs(60)).id("welcome-42").await?;
    let worker = mails.worker().concurrency(16).start(send).await?;
    tokio::signal::ctrl_c().await.expect("a signal handler");
    println!("{} done", worker.shutdown().await.done);
    Ok(())
}
