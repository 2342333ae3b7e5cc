//! Counts the requests of clients with `MONITOR`. The server's own counter includes commands that scripts run, which
//! cost no round trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use tokio::task::JoinHandle;

/// Counts requests from its creation on. Only for servers with little traffic, since it receives every command.
pub(crate) struct Requests {
    seen: Arc<AtomicU64>,
    /// Ends when the connection ends.
    watching: JoinHandle<()>,
}

impl Requests {
    pub(crate) async fn watch(url: &str) -> Result<Self> {
        let client = redis::Client::open(url).context("--url")?;
        let monitor = client.get_async_monitor().await.context("MONITOR")?;
        let seen = Arc::new(AtomicU64::new(0));
        let counted = seen.clone();
        let watching = tokio::spawn(async move {
            let mut lines = monitor.into_on_message::<String>();
            while let Some(line) = lines.next().await {
                counted.fetch_add(u64::from(is_request(&line)), Ordering::Relaxed);
            }
        });
        Ok(Self { seen, watching })
    }

    /// Returns the number of requests so far.
    pub(crate) fn count(&self) -> Result<u64> {
        ensure!(!self.watching.is_finished(), "the connection of MONITOR has ended");
        Ok(self.seen.load(Ordering::Relaxed))
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Whether a line is a request: `<time> [<database> <address>] "<command>" …`, where the address of a command of a
/// script is `lua`. `INFO` is sent by the probe and does not count.
fn is_request(line: &str) -> bool {
    let Some((client, command)) = line.split_once("] ") else { return false };
    !client.ends_with(" lua") && !command.to_ascii_lowercase().starts_with("\"info\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_runs_and_what_the_probe_asks_is_no_request() {
        assert!(is_request(r#"1339518083.107412 [0 127.0.0.1:60866] "XREAD" "BLOCK" "5000""#));
        assert!(is_request(r#"1339518083.107412 [0 [::1]:60866] "evalsha" "c0ffee""#));
        assert!(!is_request(r#"1339518083.107412 [0 lua] "HGET" "fence" "token""#));
        assert!(!is_request(r#"1339518083.107412 [0 127.0.0.1:60866] "INFO" "cpu""#));
        assert!(!is_request("OK"));
    }
}
