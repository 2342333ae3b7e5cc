//! Waiting: a blocked `XREADGROUP` per partition and group, repeated every 5 s, for any number of members.

use std::time::Duration;

use anyhow::Result;
use redis::{Value, cmd};

use super::{CONSUMER, connect, create_group, keys};
use crate::args::Idle;
use crate::measure::{Measured, Stage};

/// Time to settle. The requests are the same from the first wait on.
const SETTLED: Duration = Duration::from_secs(6);

/// Waits, and counts the requests in the meantime.
pub(crate) async fn idle(stage: &Stage, of: &Idle) -> Result<Measured> {
    let mut readers = Vec::new();
    for key in keys(&stage.namespace, of.spread.partitions * of.topics) {
        for group in (0..of.groups).map(|group| format!("g{group}")) {
            let mut connection = connect(&stage.url).await?;
            create_group(&mut connection, &key, &group).await?;
            let key = key.clone();
            readers.push(tokio::spawn(async move {
                loop {
                    let mut read = cmd("XREADGROUP");
                    read.arg("GROUP").arg(&group).arg(CONSUMER).arg("BLOCK").arg(5_000);
                    read.arg("STREAMS").arg(&key).arg(">").query_async::<Value>(&mut connection).await?;
                }
                #[allow(unreachable_code, reason = "it says what kind of errors there are")]
                anyhow::Ok(())
            }));
        }
    }
    let settle = of.settle.min(SETTLED);
    let measured = stage.idle(settle, of.seconds, of.waits()).await?;
    for reader in readers {
        anyhow::ensure!(!reader.is_finished(), "a reader ended: {:?}", reader.await);
        reader.abort();
    }
    Ok(measured)
}
