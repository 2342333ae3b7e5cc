//! Sentinels: which server is the primary of a service now.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use millstream_core::error::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::address::Address;
use crate::conn::dial::Dial;
use crate::conn::once::OneTask;
use crate::conn::replies::reply;
use crate::conn::request::Request;
use crate::conn::socket::Socket;
use crate::conn::terms::Tenure;
use crate::error::{unchanged, unexpected};

/// Maximum time to connect to one Sentinel and to get its answer: the next one may be reachable.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time for the reply to a request over a connection to a Sentinel.
const REPLY: Duration = Duration::from_secs(1);
/// Time after which the Sentinels are asked again: an announcement may be missed.
const INTERVAL: Duration = Duration::from_secs(1);

/// The Sentinels that watch a service.
///
/// One that is cut off from the others names the former primary, which is cut off with it, and what is written there is lost. So
/// more than half of them are asked, and the newest answer counts. Where fewer answer, that of those which do counts: a service
/// whose Sentinels are down goes on.
pub(crate) struct Sentinels {
    service: Arc<str>,
    all: Vec<Arc<Dial>>,
    /// Number of the one to ask or to listen to next, counted on for ever.
    next: AtomicUsize,
    /// The primary as it was last named, and the time of the question.
    named: Mutex<Option<(Address, Instant)>>,
    /// Number of the primary: another one for each change.
    number: watch::Sender<u64>,
    watch: OneTask,
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Arc<Dial>>, service: Arc<str>) -> Self {
        Self {
            service,
            all: sentinels,
            next: AtomicUsize::new(0),
            named: Mutex::default(),
            number: watch::Sender::new(0),
            watch: OneTask::default(),
        }
    }

    /// Starts a task that watches which server is the primary, as long as connections use it.
    pub(crate) fn watch(self: &Arc<Self>) {
        self.watch.start(|| follow(Arc::downgrade(self)));
    }

    /// Returns the primary, and the time for which it is one.
    pub(crate) async fn primary_and_tenure(&self) -> Result<(Address, Tenure)> {
        let primary = self.primary().await?;
        // Another answer may have come meanwhile: what is returned belongs together.
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let primary = named.as_ref().map_or(primary, |(named, _)| named.clone());
        Ok((primary, Tenure::new(self.number.subscribe())))
    }

    /// Checks that a server is still the primary, once a connection to it is open. One that was dead when it was named and
    /// has started since takes itself for the primary, until a Sentinel tells it otherwise.
    pub(crate) async fn confirm(&self, primary: &Address) -> Result<()> {
        let now = self.primary().await?;
        if now == *primary {
            return Ok(());
        }
        let why =
            format!("the server cannot be used: {now} has become the primary in the place of {primary}");
        Err(Error::new(ErrorKind::Unavailable, why))
    }

    /// Takes note of the primary, as the answer to the question of the time `asked`. Its number changes under the lock.
    fn name(&self, primary: &Address, asked: Instant) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.as_ref().is_some_and(|(_, newest)| asked < *newest) {
            return;
        }
        if let Some((before, _)) = named.replace((primary.clone(), asked))
            && before != *primary
        {
            tracing::info!(service = &*self.service, %before, %primary, "the primary has changed");
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Subscribes to the changes that a Sentinel announces. It tells all services apart by names, and so do we: by asking.
    async fn announcements(&self) -> Result<Socket> {
        let sentinel = self.turn().ok_or_else(none)?;
        let mut socket = sentinel.socket("sentinel").await?;
        let mut request = Request::default();
        request.add(&[b"SUBSCRIBE", b"+switch-master"]);
        socket.ask(&request, Duration::ZERO, REPLY).await?;
        Ok(socket)
    }

    /// Returns one Sentinel after the other.
    fn turn(&self) -> Option<&Arc<Dial>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.get(turn.checked_rem(self.all.len())?)
    }

    /// Asks one of the Sentinels, and if it does not name the primary that is known, more than half of them.
    async fn check(&self) -> Result<()> {
        let sentinel = self.turn().ok_or_else(none)?;
        let answer = timeout(REPLY_TIMEOUT, self.ask(sentinel)).await;
        let same = |named: &Address| {
            let known = self.named.lock().unwrap_or_else(PoisonError::into_inner);
            known.as_ref().is_some_and(|(known, _)| known == named)
        };
        match answer {
            Ok(Ok((_, named))) if same(&named) => Ok(()),
            _ => self.primary().await.map(drop),
        }
    }

    /// Asks the Sentinels for the address of the primary, until more than half have answered.
    async fn primary(&self) -> Result<Address> {
        let asked = Instant::now();
        let answers = self.all.iter().map(|sentinel| timeout(REPLY_TIMEOUT, self.ask(sentinel)));
        let mut answers: FuturesUnordered<_> = answers.collect();
        let (mut newest, mut answered, mut failed): (Option<(u64, Address)>, usize, _) = (None, 0, None);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(Ok((epoch, primary))) => {
                    answered += 1;
                    if newest.as_ref().is_none_or(|(newest, _)| epoch > *newest) {
                        newest = Some((epoch, primary));
                    }
                    if 2 * answered > self.all.len() {
                        break;
                    }
                }
                Ok(Err(error)) => failed = Some(error),
                Err(_) => {
                    let why = format!("a Sentinel gave no answer within {REPLY_TIMEOUT:?}");
                    failed = failed.or(Some(Error::new(ErrorKind::Unavailable, why)));
                }
            }
        }
        let Some((_, primary)) = newest else {
            let failed = failed.unwrap_or_else(none);
            return Err(failed.during(format_args!("ask Sentinels for the primary of {}", self.service)));
        };
        self.name(&primary, asked);
        Ok(primary)
    }

    /// Asks a Sentinel for the address of the primary, and the number of the fail-over that made it one.
    async fn ask(&self, sentinel: &Dial) -> Result<(u64, Address)> {
        let mut socket = sentinel.socket("sentinel").await?;
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        pipe.cmd("SENTINEL").arg("MASTER").arg(&*self.service);
        let mut request = Request::default();
        request.add_pipeline(&pipe);
        socket.ask(&request, Duration::ZERO, REPLY).await.map_err(unchanged)?;
        let mut replies = socket.replies();
        let (answer, state) = (replies.next()?.value()?, replies.next()?.value()?);
        if answer == Value::Nil {
            return Err(Error::new(ErrorKind::Unavailable, "the Sentinel does not know the service"));
        }
        let [host, port] = reply::tuple(reply::ok(answer)?)?;
        let (host, port) = (reply::text(host)?, reply::text(port)?);
        let port = port.parse().map_err(|_| unexpected(format_args!("port {port:?}")))?;
        Ok((epoch(state), Address::new(&host, port)))
    }
}

fn none() -> Error {
    Error::new(ErrorKind::InvalidConfig, "there is no Sentinel")
}

/// Returns the number of the fail-over that made the primary, from the state of the service; 0 if this user may not read it.
fn epoch(state: Value) -> u64 {
    let fields = reply::ok(state).and_then(reply::pairs).unwrap_or_default();
    let mut fields = fields.into_iter().filter_map(|(name, value)| Some((reply::text(name).ok()?, value)));
    let value = fields.find_map(|(name, value)| (name == "config-epoch").then_some(value));
    value.and_then(|value| reply::text(value).ok()?.parse().ok()).unwrap_or(0)
}

/// Asks for the primary when a Sentinel announces a change, and every [`INTERVAL`].
async fn follow(sentinels: Weak<Sentinels>) {
    let mut announcements = None;
    loop {
        let Some(sentinels) = sentinels.upgrade() else { return };
        if announcements.is_none() {
            announcements = sentinels.announcements().await.ok();
        }
        if let Err(error) = sentinels.check().await {
            tracing::debug!(%error, "the primary is not known");
        }
        drop(sentinels);
        match &mut announcements {
            Some(socket) => match socket.wait_readable(INTERVAL).await {
                Ok(_) => {}
                Err(_) => announcements = None,
            },
            None => tokio::time::sleep(INTERVAL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::RedisConfig;

    /// A Sentinel that names a primary by its port, and the fail-over that made it one. Without an epoch it hangs.
    async fn sentinel(primary: u16, epoch: Option<u64>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    while let Some(words) = command(&mut stream).await {
                        let Some(epoch) = epoch else { std::future::pending().await };
                        let answer = match &words[..] {
                            [_, word, _] if word == "MASTER" => {
                                let epoch = epoch.to_string();
                                format!("*2\r\n$12\r\nconfig-epoch\r\n${}\r\n{epoch}\r\n", epoch.len())
                            }
                            [_, word, _] if word == "GET-MASTER-ADDR-BY-NAME" => {
                                format!("*2\r\n$9\r\n127.0.0.1\r\n$4\r\n{primary}\r\n")
                            }
                            _ => "+OK\r\n".to_owned(),
                        };
                        stream.write_all(answer.as_bytes()).await.expect("written");
                    }
                });
            }
        });
        port
    }

    async fn command(stream: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<String>> {
        let mut words = Vec::new();
        let mut count = number(stream).await?;
        while count > 0 {
            let mut word = vec![0; number(stream).await? + 2];
            stream.read_exact(&mut word).await.ok()?;
            words.push(String::from_utf8_lossy(&word[..word.len() - 2]).into_owned());
            count -= 1;
        }
        Some(words)
    }

    /// Reads a line like `*3` or `$7`.
    async fn number(stream: &mut (impl AsyncBufReadExt + Unpin)) -> Option<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim().parse().ok()
    }

    async fn named(ports: &[u16]) -> Arc<Sentinels> {
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let url = format!("redis+sentinel://{}/main", hosts.join(","));
        let (dial, _) = Dial::new(&RedisConfig::new(url)).expect("valid");
        dial.sentinels.expect("Sentinels")
    }

    #[tokio::test]
    async fn one_that_is_cut_off_from_the_others_is_not_believed() {
        let stale = sentinel(7001, Some(3)).await;
        let [new, other] = [sentinel(7002, Some(4)).await, sentinel(7002, Some(4)).await];
        for order in [[stale, new, other], [new, stale, other], [new, other, stale]] {
            let sentinels = named(&order).await;
            for _ in 0..10 {
                let (primary, _) = sentinels.primary_and_tenure().await.expect("named");
                assert_eq!(primary.port, 7002, "{order:?}");
                // Whoever is asked in the meantime.
                sentinels.check().await.expect("asked");
            }
        }
    }

    #[tokio::test]
    async fn where_most_give_no_answer_the_others_count() {
        let [one, two, alive] =
            [sentinel(7001, None).await, sentinel(7001, None).await, sentinel(7003, Some(9)).await];
        let (primary, _) = named(&[one, two, alive]).await.primary_and_tenure().await.expect("named");
        assert_eq!(primary.port, 7003);
        let error = named(&[one, two]).await.primary_and_tenure().await.map(drop).expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
