//! Connection of one user: no background task, no queue, one request at a time and then its replies.
//!
//! Beside the system calls it costs a look at the length of each value. Where many users share a connection, the
//! client's own are used instead ([`crate::conn::connection`]).

use std::io;
use std::time::{Duration, Instant};

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{RedisConnectionInfo, RedisError, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::conn::replies::reply;
use crate::conn::replies::resp::{Replies, Scanner};
use crate::conn::request::Request;
use crate::conn::stream::Stream;
use crate::conn::stream::first_words::refusal;
use crate::conn::terms::{Terms, during};
use crate::credentials::Credentials;
use crate::error::{Phase, no_answer, translate, unchanged};

/// Minimum free space for a read, in bytes.
const ROOM: usize = 4 << 10;
/// Maximum space that is reserved for announced bytes, in bytes.
const ANNOUNCED: usize = 1 << 20;
/// Buffer size that a connection may keep during a blocking request, in bytes.
const KEPT: usize = 16 << 10;

pub(crate) struct Socket {
    stream: Stream,
    terms: Terms,
    scanner: Scanner,
    /// Bytes received of the replies to the last request.
    received: Vec<u8>,
    /// Length of the replies to the request before.
    last: usize,
    /// Time from the first bytes of the last replies to their end.
    took: Duration,
}

impl Socket {
    /// Logs in and names the connection; with `checked`, checks that the server is a primary.
    pub(crate) async fn open(
        stream: Stream,
        settings: &RedisConnectionInfo,
        role: &str,
        (checked, terms): (bool, Terms),
    ) -> Result<Self> {
        let (scanner, received) = (Scanner::default(), Vec::new());
        let mut socket = Self { stream, terms, scanner, received, last: 0, took: Duration::ZERO };
        let mut request = Request::default();
        if let Some(password) = settings.password() {
            match settings.username() {
                Some(user) => request.add(&[b"AUTH", user.as_bytes(), password.as_bytes()]),
                None => request.add(&[b"AUTH", password.as_bytes()]),
            }
        }
        let login = request.commands();
        if settings.db() != 0 {
            request.add(&[b"SELECT", settings.db().to_string().as_bytes()]);
        }
        let needed = request.commands();
        if checked {
            request.add(&[b"ROLE"]);
        }
        // The replies to these are ignored: a user without the permission does without names.
        request.add(&[b"CLIENT", b"SETNAME", format!("millstream:{role}").as_bytes()]);
        for (what, word) in [("LIB-NAME", settings.lib_name()), ("LIB-VER", settings.lib_ver())] {
            if let Some(word) = word {
                request.add(&[b"CLIENT", b"SETINFO", what.as_bytes(), word.as_bytes()]);
            }
        }
        let failed = |error: io::Error| translate(&RedisError::from(error), Phase::Connecting);
        // The caller limits the time of the whole call.
        let exchanged = socket.exchange(&request, Duration::MAX, Duration::MAX).await;
        if let Err(broken) = exchanged {
            // A server that takes no connection says why and closes it, before it has read anything.
            let said = if socket.received.is_empty() { socket.stream.unread() } else { socket.received };
            return Err(match broken {
                Broken::Io(error) => refusal(&said).unwrap_or_else(|| failed(error)),
                Broken::Reply(error) => error,
            });
        }
        let mut replies = socket.replies();
        for command in 0..needed {
            if let Value::ServerError(error) = replies.next()?.value()? {
                let error = translate(&RedisError::from(error), Phase::Connecting);
                return Err(if command < login { denied(error) } else { error });
            }
        }
        if checked {
            check_primary(replies.next()?.value()?)?;
        }
        Ok(socket)
    }

    /// Sends a request and waits for its replies: up to `block + limit` for the first bytes, then up to `limit` each
    /// time for more of them. So a large answer on a slow link has the time that it needs, and one that stalls ends.
    ///
    /// After an error, or if the future was dropped, the server may still send the rest of these replies, so the
    /// connection cannot be used again.
    pub(crate) async fn ask(&mut self, request: &Request, block: Duration, limit: Duration) -> Result<()> {
        if !block.is_zero() {
            self.shrink();
        }
        let failed = |error: io::Error| translate(&RedisError::from(error), Phase::Sent);
        let tenure = self.terms.tenure.clone();
        if let Some(credentials) = self.terms.take_due() {
            // Whatever happens now, the request itself has not been sent.
            during(tenure.as_ref(), self.log_in(&credentials, limit)).await.map_err(unchanged)?;
        }
        let answer = async {
            let answer = self.exchange(request, block + limit, limit).await;
            answer.map_err(|broken| broken.error(failed))
        };
        during(tenure.as_ref(), answer).await
    }

    /// Logs in again, with other credentials.
    async fn log_in(&mut self, credentials: &Credentials, limit: Duration) -> Result<()> {
        let request = Request::of_login(credentials);
        // The connection is open, but an error here means the same: the request that comes behind has done nothing.
        let failed = |error: io::Error| translate(&RedisError::from(error), Phase::Connecting);
        self.exchange(&request, limit, limit).await.map_err(|broken| broken.error(failed))?;
        if let Value::ServerError(error) = self.replies().next()?.value()? {
            self.terms.refused(&error);
        }
        Ok(())
    }

    /// Frees the memory of large replies. They cannot be read afterwards.
    pub(crate) fn shrink(&mut self) {
        if self.received.capacity() > KEPT {
            self.received = Vec::new();
        }
    }

    /// Returns the size of the last replies in bytes, and how long they took to arrive after their first bytes.
    pub(crate) fn weight(&self) -> (usize, Duration) {
        (self.received.len(), self.took)
    }

    /// Returns whether the connection cannot take another request.
    pub(crate) fn is_over(&self) -> bool {
        self.stream.is_over() || self.terms.is_left()
    }

    /// Waits for bytes that come without a request. Returns whether some came in this time.
    pub(crate) async fn wait_readable(&mut self, limit: Duration) -> Result<bool> {
        self.received.clear();
        let failed = |error: io::Error| translate(&RedisError::from(error), Phase::Sent);
        match timeout(limit, self.stream.read_buf(&mut self.received)).await {
            Err(_) => Ok(false),
            Ok(Ok(0)) => Err(failed(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Ok(found) => found.map(|_| true).map_err(failed),
        }
    }

    /// Returns the stream, between two requests, and what it depends on.
    pub(crate) fn into_parts(self) -> (Stream, Terms) {
        (self.stream, self.terms)
    }

    /// Returns the replies to the last request.
    pub(crate) fn replies(&self) -> Replies<'_> {
        self.scanner.replies(&self.received)
    }

    async fn exchange(
        &mut self,
        request: &Request,
        first: Duration,
        next: Duration,
    ) -> std::result::Result<(), Broken> {
        self.received.clear();
        self.scanner.begin(request.commands());
        let begin = async {
            self.stream.write_all(request.bytes()).await?;
            self.stream.flush().await?;
            self.receive(1).await
        };
        let mut missing = timeout(first, begin).await.map_err(|_| no_answer(first))??;
        self.took = Duration::ZERO;
        if missing > 0 {
            let begun = Instant::now();
            while missing > 0 {
                // A limit per read, not for the whole answer: a connection that keeps receiving is alive.
                missing = timeout(next, self.receive(missing)).await.map_err(|_| stalled(next))??;
            }
            self.took = begun.elapsed();
        }
        self.last = self.received.len();
        Ok(())
    }

    /// Waits for more bytes and returns the minimum number that is missing then.
    async fn receive(&mut self, missing: usize) -> std::result::Result<usize, Broken> {
        let come = self.received.len();
        if self.received.capacity() - come < ROOM {
            // Once anything has arrived, reserve the size of the last replies: the next ones are likely as large.
            let likely = if come == 0 { 0 } else { self.last.saturating_sub(come) };
            self.received.reserve(missing.max(likely).clamp(ROOM, ANNOUNCED));
        }
        if self.stream.read_buf(&mut self.received).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed").into());
        }
        Ok(self.scanner.scan(&self.received)?)
    }
}

/// Checks a reply to `ROLE`: a Sentinel that was cut off may name the previous primary. A user without the permission
/// goes without the check.
pub(crate) fn check_primary(role: Value) -> Result<()> {
    let Value::Array(role) = role else { return Ok(()) };
    match role.into_iter().next().map(reply::text) {
        Some(Ok(role)) if role != "master" => {
            let why = format!(
                "the server cannot be used: it is a {role}, the Sentinels have not agreed on a primary yet"
            );
            Err(Error::new(ErrorKind::Unavailable, why))
        }
        _ => Ok(()),
    }
}

fn stalled(limit: Duration) -> Error {
    let what = "the request may have been done";
    Error::new(
        ErrorKind::Unconfirmed,
        format!("a reply ended half-way, nothing arrived for {limit:?}, {what}"),
    )
}

/// Reason why an exchange ended early.
pub(crate) enum Broken {
    Io(io::Error),
    /// The received bytes are no reply, or nothing arrived in time.
    Reply(Error),
}

impl Broken {
    pub(crate) fn error(self, of_io: impl FnOnce(io::Error) -> Error) -> Error {
        match self {
            Self::Io(error) => of_io(error),
            Self::Reply(error) => error,
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Reply(error)
    }
}

/// Turns a failed log-in into [`ErrorKind::Denied`], whatever the wording, unless the server reports that it cannot
/// serve now.
fn denied(error: Error) -> Error {
    if error.kind() == ErrorKind::Protocol {
        Error::new(ErrorKind::Denied, format!("the server refuses these credentials: {error}"))
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::conn::login::tests::changing;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Starts a server that sends the next words after each request, and closes the connection behind the last ones if
    /// `hang_up` is set.
    async fn server(words: &[&[&[u8]]], hang_up: bool) -> (ConnectionInfo, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let words: Vec<Vec<Vec<u8>>> =
            words.iter().map(|pieces| pieces.iter().map(|piece| piece.to_vec()).collect()).collect();
        let received = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            stream.set_nodelay(true).expect("set");
            let mut received = Vec::new();
            for pieces in words {
                received.reserve(4_096);
                stream.read_buf(&mut received).await.expect("a request");
                for piece in pieces {
                    stream.write_all(&piece).await.expect("said");
                    tokio::task::yield_now().await;
                }
            }
            if !hang_up {
                while stream.read_buf(&mut received).await.is_ok_and(|read| read > 0) {}
            }
            received
        });
        let info = format!("redis://127.0.0.1:{port}").into_connection_info().expect("an address");
        (info, received)
    }

    /// Connects with the credentials of `url`.
    async fn open(info: &ConnectionInfo, url: &str, role: &str) -> Result<Socket> {
        let settings = url.into_connection_info().expect("a url").redis_settings().clone();
        let ConnectionAddr::Tcp(host, port) = info.addr() else { panic!("{info:?} is no TCP") };
        let stream = Stream::Tcp(TcpStream::connect((&**host, *port)).await.expect("connected"));
        Socket::open(stream, &settings.set_lib_name("millstream", "1"), role, (false, Terms::default())).await
    }

    fn ping(times: usize) -> Request {
        let mut request = Request::default();
        (0..times).for_each(|_| request.add(&[b"PING"]));
        request
    }

    async fn refused(words: &[u8], url: &str) -> Error {
        let (info, _received) = server(&[&[words]], true).await;
        open(&info, url, "t").await.map(drop).expect_err("refused")
    }

    #[tokio::test]
    async fn the_log_in_is_said_in_one_go_and_names_may_be_refused() {
        let no: &[u8] = b"-NOPERM no\r\n-NOPERM no\r\n-ERR unknown subcommand\r\n";
        let (info, received) = server(&[&[b"+OK\r\n+OK\r\n", no]], true).await;
        open(&info, "redis://ann:pw@h/3", "reader").await.map(drop).expect("open");
        let mut expected = redis::pipe();
        expected.cmd("AUTH").arg("ann").arg("pw").cmd("SELECT").arg(3);
        expected.cmd("CLIENT").arg("SETNAME").arg("millstream:reader");
        expected.cmd("CLIENT").arg("SETINFO").arg("LIB-NAME").arg("millstream");
        expected.cmd("CLIENT").arg("SETINFO").arg("LIB-VER").arg("1");
        assert_eq!(received.await.expect("received"), expected.get_packed_pipeline());
    }

    #[tokio::test]
    async fn why_there_is_no_connection_has_its_kind() {
        let rest = "+OK\r\n+OK\r\n+OK\r\n";
        let cases = [
            ("-WRONGPASS invalid username-password pair or user is disabled.\r\n", ErrorKind::Denied),
            ("-ERR AUTH <password> called without any password configured\r\n", ErrorKind::Denied),
            ("-ERR max number of clients reached\r\n", ErrorKind::Unavailable),
            ("-MASTERDOWN Link with MASTER is down\r\n", ErrorKind::Unavailable),
            ("HTTP/1.1 400 Bad Request\r\n", ErrorKind::Protocol),
        ];
        for (answer, kind) in cases {
            let error = refused(format!("{answer}{rest}").as_bytes(), "redis://:hunter2@h").await;
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let no_database = format!("-ERR DB index is out of range\r\n{rest}");
        assert_eq!(refused(no_database.as_bytes(), "redis://h/99").await.kind(), ErrorKind::Protocol);
        let loading = format!("-LOADING Redis is loading the dataset in memory\r\n{rest}");
        assert_eq!(refused(loading.as_bytes(), "redis://h/1").await.kind(), ErrorKind::Unavailable);
        assert_eq!(refused(b"", "redis://h").await.kind(), ErrorKind::Unavailable, "hung up");
        assert_eq!(
            refused(b"-ERR max number of clients reached\r\n", "redis://h").await.kind(),
            ErrorKind::Unavailable
        );
    }

    #[tokio::test]
    async fn replies_come_however_they_are_cut_and_the_next_ones_too() {
        let hello: &[&[u8]] = &[b"+OK\r\n+OK\r\n+OK\r\n"];
        let cut: &[&[u8]] = &[b"+PO", b"NG\r", b"\n$3\r\nab", b"c\r\n"];
        let (info, _received) = server(&[hello, cut, &[b"+A\r\n"]], false).await;
        let mut socket = open(&info, "redis://h", "t").await.expect("open");
        socket.ask(&ping(2), Duration::ZERO, LIMIT).await.expect("replies");
        let mut replies = socket.replies();
        let values = [(); 2].map(|()| replies.next().expect("a reply").value().expect("a value"));
        assert_eq!(values, [Value::SimpleString("PONG".into()), Value::BulkString(b"abc".into())]);
        assert!(replies.next().is_err(), "no more");
        socket.ask(&ping(1), LIMIT, LIMIT).await.expect("replies");
        assert_eq!(
            socket.replies().next().expect("one").value().expect("a"),
            Value::SimpleString("A".into())
        );
    }

    #[tokio::test]
    async fn a_cut_a_stall_and_garbage_are_told_apart() {
        let hello: &[&[u8]] = &[b"+OK\r\n+OK\r\n+OK\r\n"];
        let garbage: &[&[u8]] = &[b"$3\r\nabcde"];
        let half: &[&[u8]] = &[b"$99\r\nab"];
        for (words, hang_up, kind) in [
            (&[hello, half][..], true, ErrorKind::Unconfirmed),
            (&[hello, half][..], false, ErrorKind::Unconfirmed),
            (&[hello, garbage][..], false, ErrorKind::Protocol),
            // Closed between two requests.
            (&[hello][..], true, ErrorKind::Unconfirmed),
        ] {
            let (info, _received) = server(words, hang_up).await;
            let mut socket = open(&info, "redis://h", "t").await.expect("open");
            let limit = Duration::from_millis(if hang_up { 5_000 } else { 50 });
            let error = socket.ask(&ping(1), Duration::ZERO, limit).await.expect_err("no reply");
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    /// The limit applies to progress: a slow answer is read to its end, one that stalls half-way is not.
    #[tokio::test]
    async fn the_limit_of_an_answer_is_one_of_its_progress() {
        let hello: &[&[u8]] = &[b"+OK\r\n+OK\r\n+OK\r\n"];
        for stalls in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.expect("a client");
                stream.set_nodelay(true).expect("set");
                let mut received = Vec::with_capacity(4_096);
                stream.read_buf(&mut received).await.expect("a log-in");
                stream.write_all(hello[0]).await.expect("said");
                stream.read_buf(&mut received).await.expect("a request");
                stream.write_all(b"$10\r\n").await.expect("said");
                for byte in b"abcdefghij" {
                    tokio::time::sleep(LIMIT / 100).await;
                    stream.write_all(&[*byte]).await.expect("said");
                    if stalls {
                        std::future::pending::<()>().await;
                    }
                }
                stream.write_all(b"\r\n").await.expect("said");
            });
            let info = format!("redis://127.0.0.1:{port}").into_connection_info().expect("an address");
            let mut socket = open(&info, "redis://h", "t").await.expect("open");
            // Shorter than the whole answer takes, and longer than one byte takes.
            let limit = LIMIT / 20;
            let answer = socket.ask(&ping(1), Duration::ZERO, limit).await;
            if stalls {
                let error = answer.expect_err("no more came");
                assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
            } else {
                answer.expect("an answer");
                let (bytes, took) = socket.weight();
                assert!(bytes == 17 && took > limit, "{bytes} bytes in {took:?}");
            }
            server.abort();
        }
    }

    /// A request that was not sent has not been done, and its sender must be told.
    #[tokio::test]
    async fn a_log_in_without_an_answer_says_that_the_request_was_not_sent() {
        let hello: &[&[u8]] = &[b"+OK\r\n+OK\r\n+OK\r\n"];
        let (login, terms) = changing().await;
        let (info, received) = server(&[hello], false).await;
        let ConnectionAddr::Tcp(host, port) = info.addr() else { panic!("{info:?} is no TCP") };
        let stream = Stream::Tcp(TcpStream::connect((&**host, *port)).await.expect("connected"));
        let settings = redis::RedisConnectionInfo::default().set_lib_name("millstream", "1");
        let mut socket = Socket::open(stream, &settings, "t", (false, terms)).await.expect("open");
        login.credentials().await.expect("others");
        let error = socket.ask(&ping(1), LIMIT, LIMIT / 100).await.expect_err("no answer to the log-in");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        drop(socket);
        let received = String::from_utf8(received.await.expect("received")).expect("words");
        assert!(received.contains("AUTH") && !received.contains("PING"), "{received}");
    }

    #[tokio::test]
    async fn what_a_large_reply_took_is_given_back_before_a_wait() {
        let hello: &[&[u8]] = &[b"+OK\r\n+OK\r\n+OK\r\n"];
        let large = [&b"$1000000\r\n"[..], &[b'x'; 1_000_000], b"\r\n"].concat();
        let (info, _received) = server(&[hello, &[&large], &[b"+A\r\n"]], false).await;
        let mut socket = open(&info, "redis://h", "t").await.expect("open");
        socket.ask(&ping(1), Duration::ZERO, LIMIT).await.expect("a reply");
        assert!(socket.received.capacity() < 3_000_000);
        socket.ask(&ping(1), LIMIT, LIMIT).await.expect("a reply");
        assert!(socket.received.capacity() <= KEPT, "{}", socket.received.capacity());
    }
}
