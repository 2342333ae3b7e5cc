//! The time between two requests that should have been one.

use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// Environment variable that says what happens between two requests that should have been one: a pause of this many
/// milliseconds, or with `die` the end of the process. Default: 20 ms, so that some kills of a run come in between.
pub const GAP: &str = "MILLSTREAM_MUTANT_GAP";

const DEFAULT: Duration = Duration::from_millis(20);

/// Waits between two requests.
///
/// # Panics
/// If [`GAP`] is neither a number nor `die`.
pub(super) async fn pass() {
    let pause = match std::env::var(GAP) {
        Err(_) => DEFAULT,
        Ok(word) if word == "die" => {
            kill_process(getpid(), Signal::KILL).expect("killed");
            std::future::pending().await
        }
        Ok(ms) => Duration::from_millis(ms.parse().expect("milliseconds, or `die`")),
    };
    tokio::time::sleep(pause).await;
}
