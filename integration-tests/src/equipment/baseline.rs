//! What the machine does for anybody at the moment: times of tests are compared with it, since other programs may keep its
//! processors busy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle as Thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::delays::wall_us;
use crate::history::now_us;

/// A task that sends back each byte, at the other end of a connection over the loopback interface.
#[derive(Debug)]
pub struct Echo {
    stream: TcpStream,
    other: JoinHandle<()>,
}

impl Echo {
    /// Connects to a new one.
    ///
    /// # Panics
    /// If there is no port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let other = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
        });
        let stream = TcpStream::connect(address).await.expect("connected");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, other }
    }

    /// Sends a byte and waits until it comes back.
    ///
    /// # Panics
    /// If the connection breaks.
    pub async fn round_trip(&mut self) {
        let mut byte = [7];
        self.stream.write_all(&byte).await.expect("sent");
        self.stream.read_exact(&mut byte).await.expect("an answer");
    }

    /// Sleeps until each of these times, in milliseconds since 1970 and in their order, and makes a round trip. Returns how late
    /// each was done, in microseconds.
    pub async fn lateness(&mut self, dues: &[u64]) -> Vec<i64> {
        let mut late = Vec::with_capacity(dues.len());
        for due in dues {
            let due_us = due.cast_signed() * 1_000;
            if let Ok(left @ 1..) = u64::try_from(due_us - wall_us()) {
                tokio::time::sleep(Duration::from_micros(left)).await;
            }
            self.round_trip().await;
            late.push(wall_us() - due_us);
        }
        late
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.other.abort();
    }
}

/// A thread that wants a little of a processor again and again, and notes how much longer it took than it should. Where the
/// product promises something within a time, a test adds what the machine took away from everybody in just that time.
#[derive(Debug)]
pub struct Stalls {
    over: Arc<AtomicBool>,
    /// When each began, and how long it was, in microseconds.
    noted: Arc<Mutex<Vec<(u64, u64)>>>,
    thread: Option<Thread<()>>,
}

impl Stalls {
    /// It sleeps for this long,
    const SLEEP: Duration = Duration::from_millis(10);
    /// and then computes for as long as this takes on a processor of its own.
    const WORK: Duration = Duration::from_micros(300);

    /// Starts to measure.
    #[must_use]
    pub fn start() -> Self {
        let (over, noted) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<(u64, u64)>>>::default());
        let thread = std::thread::spawn({
            let (over, noted) = (over.clone(), noted.clone());
            move || {
                while !over.load(Ordering::Relaxed) {
                    let (at_us, began) = (now_us(), Instant::now());
                    std::thread::sleep(Self::SLEEP);
                    let from = own_time();
                    while own_time() - from < Self::WORK {
                        std::hint::spin_loop();
                    }
                    let lost = began.elapsed().saturating_sub(Self::SLEEP + Self::WORK);
                    let lost = u64::try_from(lost.as_micros()).unwrap_or(u64::MAX);
                    noted.lock().expect("lock").push((at_us, lost));
                }
            }
        });
        Self { over, noted, thread: Some(thread) }
    }

    /// Returns what was lost between two times of [`now_us`], all in all.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn between(&self, from_us: u64, to_us: u64) -> Duration {
        let noted = self.noted.lock().expect("lock");
        let touches = |at: u64, lost: u64| at <= to_us && at + lost + 20_000 >= from_us;
        let lost = noted.iter().filter(|(at, lost)| touches(*at, *lost)).map(|(_, lost)| lost);
        Duration::from_micros(lost.sum())
    }

    /// Returns what was lost since this time of [`now_us`].
    #[must_use]
    pub fn since(&self, from_us: u64) -> Duration {
        self.between(from_us, u64::MAX)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The processor time of this thread.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_takes_away_is_noted_where_it_was() {
        let stalls = Stalls::start();
        std::thread::sleep(Duration::from_millis(100));
        let at_us = now_us();
        stalls.noted.lock().expect("lock").push((at_us, 500_000));
        assert!(stalls.between(at_us, at_us + 1) >= Duration::from_millis(500));
        assert!(stalls.since(at_us + 300_000) >= Duration::from_millis(500), "it goes on");
        let before = stalls.between(0, at_us - 50_000);
        let all = stalls.noted.lock().expect("lock").len();
        assert!(all > 1 && before < stalls.since(0), "{all} notes, {before:?}");
    }
    use crate::delays::wall_ms_in;

    #[tokio::test]
    async fn it_answers_and_is_never_early() {
        let mut echo = Echo::start().await;
        echo.round_trip().await;
        let dues: Vec<u64> = (1..5).map(|nth| wall_ms_in(Duration::from_millis(nth * 3))).collect();
        let late = echo.lateness(&dues).await;
        assert!(late.len() == 4 && late.iter().all(|late| *late >= 0), "{late:?}");
    }
}
