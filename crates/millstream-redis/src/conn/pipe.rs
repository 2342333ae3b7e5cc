//! A connection of one user who does not wait: requests follow each other, and so do their answers.

use std::collections::VecDeque;
use std::io;

use millstream_core::error::Result;
use redis::{RedisError, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::conn::replies::resp::{Replies, Scanner};
use crate::conn::request::Request;
use crate::conn::socket::{Broken, Socket};
use crate::conn::stream::Stream;
use crate::conn::terms::{Tenure, Terms};
use crate::error::{Phase, translate};

/// Estimated size of a reply, in bytes.
const REPLY: usize = 32;
/// Maximum space reserved for replies that have not arrived, in bytes.
const ROOM: usize = 64 << 10;

/// A connection whose requests are sent without waiting for the replies to those before.
pub(crate) struct Pipe {
    stream: Stream,
    terms: Terms,
    /// What is not answered, the oldest first.
    requests: VecDeque<Request>,
    /// How many of them are sent as a whole.
    sent: usize,
    /// How much is sent of the one behind these.
    written: usize,
    /// Whether more of it may be sent than that: a write has failed behind its first bytes.
    may_be_sent: bool,
    /// Replies: those to the oldest request, and the beginning of the next ones.
    received: Vec<u8>,
    scanner: Scanner,
    /// Whether the scanner is at the replies to the oldest request.
    scanning: bool,
}

impl Pipe {
    pub(crate) fn new(socket: Socket) -> Self {
        let (stream, terms) = socket.into_parts();
        Self {
            stream,
            terms,
            requests: VecDeque::new(),
            sent: 0,
            written: 0,
            may_be_sent: false,
            received: Vec::new(),
            scanner: Scanner::default(),
            scanning: false,
        }
    }

    /// Whether the connection is of no use any more. To be asked while nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.is_left() || !self.received.is_empty() || self.stream.is_over()
    }

    pub(crate) fn tenure(&self) -> Option<&Tenure> {
        self.terms.tenure.as_ref()
    }

    /// Whether another server has become the primary, so that nothing more should be sent.
    pub(crate) fn is_left(&self) -> bool {
        self.terms.is_left()
    }

    /// Adds a request, to be sent by [`advance`](Self::advance).
    pub(crate) fn put(&mut self, request: Request) {
        if let Some(credentials) = self.terms.take_due() {
            self.requests.push_back(Request::of_login(&credentials));
        }
        self.requests.push_back(request);
    }

    /// Ends the connection at once, with what is on its way.
    pub(crate) fn abort(self) {
        self.stream.abort();
    }

    /// Returns the number of unanswered requests that the server may have received.
    pub(crate) fn begun(&self) -> usize {
        let begun = self.sent + usize::from(self.written > 0 || self.may_be_sent);
        self.requests.iter().take(begun).filter(|request| !request.is_login()).count()
    }

    /// Sends or receives something. Whether the oldest request is answered. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(crate) async fn advance(&mut self) -> Result<bool> {
        let failed = |error: io::Error| translate(&RedisError::from(error), Phase::Sent);
        self.step().await.map_err(|broken| broken.error(failed))
    }

    async fn step(&mut self) -> std::result::Result<bool, Broken> {
        while let Some(request) = self.requests.get(self.sent) {
            // A log-in goes alone: see `login.rs`.
            if self.sent > 0 && (request.is_login() || self.requests[self.sent - 1].is_login()) {
                break;
            }
            let rest = &request.bytes()[self.written..];
            let written = match self.stream.write(rest).await {
                Ok(written) => written,
                Err(error) => {
                    self.may_be_sent = self.stream.may_send_part();
                    return Err(error.into());
                }
            };
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            if written < rest.len() {
                self.written += written;
                return Ok(false);
            }
            let cut = self.written > 0;
            (self.sent, self.written) = (self.sent + 1, 0);
            if cut {
                // It took a while: the time for the answer begins now.
                return Ok(false);
            }
        }
        let Some(oldest) = self.requests.front() else { return Ok(false) };
        let is_login = oldest.is_login();
        if !self.scanning {
            self.scanner.begin(oldest.commands());
            self.scanning = true;
        }
        if self.scanner.scan_first(&self.received)? == 0 {
            return self.answered(is_login);
        }
        // TLS may keep what it has accepted.
        self.stream.flush().await?;
        self.received.reserve((REPLY * oldest.commands()).clamp(REPLY, ROOM));
        if self.stream.read_buf(&mut self.received).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed").into());
        }
        if self.scanner.scan_first(&self.received)? == 0 { self.answered(is_login) } else { Ok(false) }
    }

    /// Takes note that the oldest request is answered. Returns true if a user waits for it; the answer to a log-in is used here.
    fn answered(&mut self, is_login: bool) -> std::result::Result<bool, Broken> {
        if is_login {
            if let Value::ServerError(error) = self.replies().next()?.value()? {
                self.terms.refused(&error);
            }
            self.next();
        }
        Ok(!is_login)
    }

    /// The replies to the oldest request, once it is answered.
    pub(crate) fn replies(&self) -> Replies<'_> {
        self.scanner.replies(&self.received)
    }

    /// The replies to the oldest request were read.
    pub(crate) fn next(&mut self) {
        self.requests.pop_front();
        self.sent = self.sent.saturating_sub(1);
        self.received.drain(..self.scanner.end());
        self.scanning = false;
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::conn::login::tests::{changing, commands};

    struct Peer(TcpStream, Vec<u8>);

    impl Peer {
        /// The commands that have arrived.
        async fn received(&mut self) -> Vec<Vec<String>> {
            self.1.reserve(4_096);
            self.0.read_buf(&mut self.1).await.expect("something");
            commands(&mut self.1)
        }

        async fn say(&mut self, words: &str) {
            self.0.write_all(words.as_bytes()).await.expect("said");
        }
    }

    async fn open(terms: Terms) -> (Pipe, Peer) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (mut peer, _) = listener.accept().await.expect("a client");
        // Settings of a user without credentials: the names that a connection gets, and nothing else.
        let settings = redis::RedisConnectionInfo::default().set_lib_name("millstream", "1");
        let opening = Socket::open(Stream::Tcp(stream), &settings, "t", (false, terms));
        let (socket, ()) = tokio::join!(opening, async {
            peer.write_all(b"+OK\r\n+OK\r\n+OK\r\n").await.expect("said");
        });
        let mut peer = Peer(peer, Vec::new());
        assert_eq!(peer.received().await.len(), 3, "the names");
        (Pipe::new(socket.expect("open")), peer)
    }

    fn echo(word: &str) -> Request {
        let mut request = Request::default();
        request.add(&[b"ECHO", word.as_bytes()]);
        request
    }

    /// Sends what can be sent without waiting for an answer.
    async fn send(pipe: &mut Pipe) {
        tokio::select! {
            biased;
            answered = pipe.advance() => panic!("{answered:?}: nothing was answered"),
            () = ready(()) => {}
        }
    }

    async fn reply(pipe: &mut Pipe) -> Value {
        let answered = async { while !pipe.advance().await.expect("connected") {} };
        tokio::time::timeout(Duration::from_secs(30), answered).await.expect("an answer");
        let value = pipe.replies().next().expect("a reply").value().expect("a value");
        pipe.next();
        value
    }

    /// Some servers send no reply to a refused log-in behind other commands: it goes alone, whatever is to be sent.
    #[tokio::test]
    async fn a_log_in_between_requests_goes_alone_and_a_refused_one_shifts_no_reply() {
        let (login, terms) = changing().await;
        let (mut pipe, mut peer) = open(terms).await;
        pipe.put(echo("a"));
        login.credentials().await.expect("others");
        pipe.put(echo("b"));
        pipe.put(echo("c"));
        send(&mut pipe).await;
        assert_eq!(peer.received().await, [["ECHO", "a"]]);
        peer.say("+a\r\n").await;
        assert_eq!(reply(&mut pipe).await, Value::SimpleString("a".into()));
        send(&mut pipe).await;
        assert_eq!(peer.received().await, [["AUTH", "p1"]]);
        assert_eq!(pipe.begun(), 0, "a log-in is no request of a user");
        peer.say("-WRONGPASS no\r\n").await;
        let (b, received) = tokio::join!(reply(&mut pipe), async {
            let received = peer.received().await;
            peer.say("+b\r\n+c\r\n").await;
            received
        });
        assert_eq!(received[0], ["ECHO", "b"]);
        let values = [b, reply(&mut pipe).await];
        assert_eq!(values, ["b", "c"].map(|word| Value::SimpleString(word.into())));
        assert!(!pipe.is_over(), "a refused log-in leaves the connection as it was");
    }
}
