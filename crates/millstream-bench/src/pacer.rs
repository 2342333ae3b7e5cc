//! Sends at a fixed rate, independent of the replies (an open loop).
//!
//! Each message has a time at which it should be sent, and its latency is measured from then. A sender that is held
//! up therefore does not hide the delay: the messages that it could not send in the meantime are late relative to
//! their own times. This avoids coordinated omission.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// Delay of the first message, so that everything is ready.
const HEAD_START: Duration = Duration::from_millis(10);

/// Minimum sleep. At more than 10,000 messages per second, several are sent one right after the other: a thread that
/// woke up for each of them would need a whole core, which the server or the client would lack on a machine with few
/// cores. The messages that wait for the sleep are late by it, on both sides.
const NAP: Duration = Duration::from_micros(100);

/// The clock for the times in payloads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Returns the nanoseconds since the clock was created.
    pub(crate) fn now(self) -> u64 {
        Self::nanos(self.0.elapsed())
    }

    /// Returns how many nanoseconds before `now` the message with this payload should have been sent.
    pub(crate) fn since(self, now: u64, payload: &[u8]) -> u64 {
        let due = payload.first_chunk().map_or(0, |due| u64::from_le_bytes(*due));
        now.saturating_sub(due)
    }

    /// Returns a histogram of nanoseconds that grows as needed.
    pub(crate) fn histogram() -> Result<Histogram<u64>> {
        Ok(Histogram::new(3)?)
    }

    /// Converts a duration to nanoseconds.
    pub(crate) fn nanos(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The condition for sending the next message.
#[derive(Clone, Copy, Debug)]
enum Gate {
    /// One message per interval.
    Interval(Duration),
    /// One message whenever fewer sends than this are without a reply.
    Window(usize),
}

/// Determines when each message is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    gate: Gate,
    total: u64,
    clock: Clock,
}

impl Pacer {
    /// Creates a pacer for this many messages per second over this duration; at least one message.
    pub(crate) fn new(rate: f64, lasts: Duration) -> Self {
        let total = ((rate * lasts.as_secs_f64()).round() as u64).max(1);
        let gate = Gate::Interval(Duration::from_secs_f64(1.0 / rate));
        Self { gate, total, clock: Clock(Instant::now()) }
    }

    /// Creates a pacer that sends this many messages as fast as possible, with the same work for each, and with at
    /// most `window` of them without a reply. It measures the maximum rate.
    pub(crate) fn saturating(total: u64, window: usize) -> Self {
        Self { gate: Gate::Window(window), total, clock: Clock(Instant::now()) }
    }

    /// Returns the clock of the times in payloads.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns how many messages have a number with the remainder `number` when divided by `of`.
    pub(crate) fn total_of(&self, number: u64, of: u64) -> u64 {
        (self.total + of - 1 - number) / of
    }

    /// Sends all messages, each when it is due and without waiting for earlier ones, and then waits for all replies.
    /// The payloads are `like` this one, with the time at the start.
    ///
    /// # Errors
    /// The first error of a send.
    pub(crate) async fn run<F, Fut>(self, like: &Bytes, send: F) -> Result<u64>
    where
        F: Fn(u64, Bytes) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        let (failed, mut failures) = mpsc::unbounded_channel();
        let like = like.clone();
        // A separate thread, as the timers of the runtime have a resolution of milliseconds.
        let runtime = Handle::current();
        let pacing = tokio::task::spawn_blocking(move || {
            sleep_precisely();
            let window = Arc::new(Semaphore::new(match self.gate {
                Gate::Interval(_) => Semaphore::MAX_PERMITS,
                Gate::Window(window) => window,
            }));
            let first = self.clock.0.elapsed() + HEAD_START;
            for n in 0..self.total {
                if failed.is_closed() {
                    return;
                }
                let (due, permit) = match self.gate {
                    Gate::Interval(interval) => {
                        let due = first + interval.mul_f64(n as f64);
                        let early = due.saturating_sub(self.clock.0.elapsed());
                        if !early.is_zero() {
                            std::thread::sleep(early.max(NAP));
                        }
                        (due, None)
                    }
                    // The semaphore is never closed.
                    Gate::Window(_) => {
                        let permit = runtime.block_on(window.clone().acquire_owned()).ok();
                        (self.clock.0.elapsed(), permit)
                    }
                };
                let mut payload = like.to_vec();
                payload[..8].copy_from_slice(&Clock::nanos(due).to_le_bytes());
                let (sending, failed) = (send(n, payload.into()), failed.clone());
                runtime.spawn(async move {
                    let _until_answered = permit;
                    if let Err(error) = sending.await {
                        // The receiver is gone if an earlier error has ended the run.
                        let _ = failed.send(error);
                    }
                });
            }
        });
        // Returns `None` when every send has ended.
        if let Some(error) = failures.recv().await {
            return Err(error);
        }
        pacing.await?;
        Ok(self.total)
    }
}

/// Reduces the timer slack: by default, Linux extends the sleep of a thread by up to 50 µs.
fn sleep_precisely() {
    #[cfg(target_os = "linux")]
    // If it is refused, the latencies are slightly worse, on both sides.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static PAYLOAD: Bytes = Bytes::from_static(&[0; 16]);

    #[test]
    fn every_message_has_its_partition() {
        let pacer = Pacer::new(10.0, Duration::from_secs(1));
        assert_eq!(pacer.total, 10);
        assert_eq!((0..3).map(|n| pacer.total_of(n, 3)).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(Pacer::new(0.1, Duration::from_secs(1)).total, 1);
    }

    #[tokio::test]
    async fn latency_counts_from_the_time_that_was_meant() {
        let pacer = Pacer::new(1_000.0, Duration::from_millis(20));
        let clock = pacer.clock();
        let (seen, mut all) = mpsc::unbounded_channel();
        // A sender that blocks the pacer itself for 30 ms at the first message.
        let sent = pacer.run(&PAYLOAD, move |n, payload| {
            if n == 0 {
                std::thread::sleep(Duration::from_millis(30));
            }
            let late = clock.since(clock.now(), &payload);
            let _ = seen.send(late);
            async { Ok(()) }
        });
        assert_eq!(sent.await.unwrap(), 20);
        let mut late = Vec::new();
        while let Ok(one) = all.try_recv() {
            late.push(one / 1_000_000);
        }
        assert_eq!(late.len(), 20);
        assert!(late[0] >= 30 && late[10] >= 20, "the messages that were held up hide it: {late:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_window_bounds_what_has_no_answer() {
        let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let sent = Pacer::saturating(500, 3).run(&PAYLOAD, {
            let most = most.clone();
            move |_, _| {
                let (under_way, most) = (under_way.clone(), most.clone());
                most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                async move {
                    tokio::task::yield_now().await;
                    under_way.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }
            }
        });
        assert_eq!(sent.await.unwrap(), 500);
        let most = most.load(Ordering::SeqCst);
        assert!((1..=3).contains(&most), "{most} at once");
    }

    #[tokio::test]
    async fn nothing_is_early_and_what_a_nap_delays_is_late() {
        let pacer = Pacer::new(50_000.0, Duration::from_millis(20));
        let clock = pacer.clock();
        let (seen, mut all) = mpsc::unbounded_channel();
        let sent = pacer.run(&PAYLOAD, move |_, payload| {
            let _ = seen.send((clock.now(), clock.since(clock.now(), &payload)));
            async { Ok(()) }
        });
        assert_eq!(sent.await.unwrap(), 1_000);
        let (mut last, mut late) = (0, Vec::new());
        while let Ok((at, by)) = all.try_recv() {
            last = at;
            late.push(by);
        }
        // `since` is zero for messages that are early.
        assert!(late.iter().all(|by| *by > 0), "{late:?}");
        // From the clock's zero: a busy machine may send the first one late.
        let due = Clock::nanos(HEAD_START) + 19_900_000;
        assert!(last > due, "{last}: the last of 1,000 messages at 50,000/s was sent before it was due");
    }

    #[tokio::test]
    async fn an_error_of_a_send_is_returned() {
        let pacer = Pacer::new(1_000.0, Duration::from_millis(5));
        let sent = pacer.run(&PAYLOAD, |n, _| async move {
            anyhow::ensure!(n != 2, "no");
            Ok(())
        });
        assert_eq!(sent.await.unwrap_err().to_string(), "no");
    }
}
