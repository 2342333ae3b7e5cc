//! A program of a user: a lock on Redis, without the facade.

use std::error::Error;
use std::time::Duration;

use millstream_core::Backend;
use millstream_lock::LockClient;
use millstream_redis::{RedisBackend, RedisConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis = RedisBackend::connect(RedisConfig::new("redis://127.0.0.1")).await?;
    let locks = LockClient::new(&Backend::from(redis));
    let held = locks.lock("invoice:42").ttl(Duration::from_secs(10)).acquire().await?;
    println!("pass {} on to the store that the lock guards", held.fence());
    held.release().await?;
    Ok(())
}
