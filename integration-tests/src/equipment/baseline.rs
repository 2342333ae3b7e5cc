//! What the machine does for anybody at the moment: times of tests are compared with it, since other programs may keep its
//! processors busy.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::delays::wall_us;

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

    /// Returns the number of round trips per second, measured over this time. Each is a millisecond apart from the next one,
    /// so that it takes little from what is measured beside it.
    pub async fn rate(&mut self, time: Duration) -> f64 {
        let (began, mut count) = (Instant::now(), 0_u32);
        while began.elapsed() < time {
            self.round_trip().await;
            count += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        f64::from(count) / began.elapsed().as_secs_f64()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delays::wall_ms_in;

    #[tokio::test]
    async fn it_answers_and_is_never_early() {
        let mut echo = Echo::start().await;
        assert!(echo.rate(Duration::from_millis(50)).await > 0.0);
        let dues: Vec<u64> = (1..5).map(|nth| wall_ms_in(Duration::from_millis(nth * 3))).collect();
        let late = echo.lateness(&dues).await;
        assert!(late.len() == 4 && late.iter().all(|late| *late >= 0), "{late:?}");
    }
}
