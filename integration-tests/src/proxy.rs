//! A link to a server that can be made slow, late, silent, cut, or lose a reply while it is in use.
//!
//! The proxy listens on its own loopback port and forwards bytes between clients and the server. It uses only `std`,
//! with its own threads, so that a test's runtime does not affect it. It keeps the order of bytes, as a cable does.
//! All its connections share its [rate](Proxy::rate), separately in each direction.

mod replacing;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use replacing::Replacing;

/// Maximum size of a piece that is forwarded at once, in bytes.
const PIECE: usize = 16 << 10;
/// Maximum number of pieces in transit in one direction of a connection; further ones wait at their sender.
const WINDOW: usize = 64;
/// Maximum delay of a late timer that is made up for, so that a busy machine does not make the link slower than
/// configured.
const CATCH_UP: Duration = Duration::from_millis(20);

/// A direction of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server: requests.
    Up,
    /// From the server to the client: replies.
    Down,
}

/// The link to a server. Dropping it closes its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The port of the server.
    target: u16,
    /// Whether connections are accepted and kept.
    open: bool,
    /// Whether the proxy was dropped.
    ended: bool,
    frozen: [bool; 2],
    /// Bytes per second.
    rate: Option<u64>,
    /// The time when the link is free again, by direction.
    free_at: [Instant; 2],
    delay: Duration,
    /// The requests whose replies are to be lost: a part of their text, and how many of them remain.
    swallow: Option<(Vec<u8>, usize)>,
    swallowed: usize,
    /// What is replaced on new connections.
    replacing: Replacing,
    connections: HashMap<u64, Connection>,
    accepted: u64,
    bytes: [u64; 2],
}

#[derive(Debug)]
struct Connection {
    ends: [TcpStream; 2],
    /// Whether the next reply is to be lost, and the connection with it.
    swallowing: bool,
    /// The number of its directions that have not ended.
    open: u8,
}

impl Proxy {
    /// Creates a link to the server on a local port, without limits or faults.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = State {
            target,
            open: true,
            ended: false,
            frozen: [false; 2],
            rate: None,
            free_at: [Instant::now(); 2],
            delay: Duration::ZERO,
            swallow: None,
            swallowed: 0,
            replacing: Replacing::default(),
            connections: HashMap::new(),
            accepted: 0,
            bytes: [0; 2],
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        thread::spawn({
            let shared = shared.clone();
            move || listen(&listener, &shared)
        });
        Self { port, shared }
    }

    /// Returns the URL to which clients connect.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port of [`url`](Self::url).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Directs new connections to another server, as a host name with a changed address does. Existing connections
    /// stay.
    pub fn lead_to(&self, target: u16) {
        self.change(|state| state.target = target);
    }

    /// Limits the rate to this many bytes per second in each direction, for all connections together; `None` for no
    /// limit.
    pub fn rate(&self, bytes_per_second: Option<u64>) {
        self.change(|state| state.rate = bytes_per_second);
    }

    /// Delays everything by this much, in each direction. Throughput is unaffected with fewer than `WINDOW` pieces in
    /// transit.
    pub fn delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    /// Holds back everything in this direction, on old and new connections, as a network does that drops packets: no
    /// end is notified. The other direction is unaffected, so with [`Way::Down`] requests take effect and their
    /// replies do not arrive.
    pub fn freeze(&self, way: Way) {
        self.change(|state| state.frozen[way as usize] = true);
    }

    /// Forwards everything that was held back, and all further data.
    pub fn thaw(&self) {
        self.change(|state| state.frozen = [false; 2]);
    }

    /// Closes all connections; new ones are accepted.
    pub fn reset(&self) {
        self.change(State::close_all);
    }

    /// Closes all connections, and new ones immediately, until [`heal`](Self::heal).
    pub fn cut(&self) {
        self.change(|state| {
            state.open = false;
            state.close_all();
        });
    }

    /// Accepts connections again, and forwards everything.
    pub fn heal(&self) {
        self.change(|state| {
            state.open = true;
            state.frozen = [false; 2];
        });
    }

    /// Loses the replies of the next `times` requests that contain `part`, each with its connection: the requests are
    /// forwarded to the server, and the connection is closed when the server replies.
    pub fn swallow(&self, part: &str, times: usize) {
        self.change(|state| state.swallow = Some((part.as_bytes().to_vec(), times)));
    }

    /// Returns the number of replies lost by [`swallow`](Self::swallow).
    #[must_use]
    pub fn swallowed(&self) -> usize {
        self.shared.state().swallowed
    }

    /// Replaces arguments of requests on new connections: each by the other one of its pair.
    pub fn replace(&self, pairs: &[(String, String)]) {
        self.change(|state| state.replacing = Replacing::new(pairs));
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Returns the number of all connections so far, including those that a [cut](Self::cut) refused.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// Returns the number of bytes transferred in this direction.
    #[must_use]
    pub fn bytes(&self, way: Way) -> u64 {
        self.shared.state().bytes[way as usize]
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| {
            (state.open, state.ended) = (false, true);
            state.close_all();
        });
        // The listener checks its state when a client connects.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn close(&mut self, id: u64) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.ends.iter().for_each(|end| _ = end.shutdown(Shutdown::Both));
        }
    }

    fn close_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming().map_while(Result::ok) {
        let mut state = shared.state();
        if state.ended {
            return;
        }
        state.accepted += 1;
        if !state.open {
            continue;
        }
        // If the server is unreachable, it refuses connections, and so does the link.
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, state.target)) else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let id = state.accepted;
        let (Ok(up), Ok(down)) = (
            client.try_clone().and_then(|c| Ok((c, server.try_clone()?))),
            server.try_clone().and_then(|s| Ok((s, client.try_clone()?))),
        ) else {
            continue;
        };
        state.connections.insert(id, Connection { ends: [client, server], swallowing: false, open: 2 });
        for (way, (from, to)) in [(Way::Up, up), (Way::Down, down)] {
            let (sender, receiver) = sync_channel(WINDOW);
            let of_reader = shared.clone();
            thread::spawn(move || read(&of_reader, id, way, from, &sender));
            let of_writer = shared.clone();
            thread::spawn(move || write(&of_writer, id, way, to, &receiver));
        }
    }
}

fn read(shared: &Shared, id: u64, way: Way, mut from: TcpStream, to: &SyncSender<(Instant, Vec<u8>)>) {
    let mut piece = vec![0; PIECE];
    // The end of the previous piece, as the text searched for may be split over two pieces.
    let mut tail = Vec::new();
    let mut replacing = match way {
        Way::Up => shared.state().replacing.clone(),
        Way::Down => Replacing::default(),
    };
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let due = {
            let mut state = shared.state();
            if way == Way::Up {
                look(&mut state, id, &mut tail, &piece[..count]);
            }
            Instant::now() + state.delay
        };
        if to.send((due, replacing.pass(&piece[..count]))).is_err() {
            return;
        }
    }
}

/// Whether these bytes belong to a request whose reply is to be lost.
fn look(state: &mut State, id: u64, tail: &mut Vec<u8>, piece: &[u8]) {
    let State { swallow, connections, .. } = state;
    let Some((part, times)) = swallow else {
        tail.clear();
        return;
    };
    tail.extend_from_slice(piece);
    if *times > 0
        && let Some(connection) = connections.get_mut(&id)
        && !connection.swallowing
        && tail.windows(part.len()).any(|window| window == part)
    {
        connection.swallowing = true;
        *times -= 1;
        tail.clear();
    }
    let keep = tail.len().min(part.len().saturating_sub(1));
    tail.drain(..tail.len() - keep);
}

fn write(shared: &Shared, id: u64, way: Way, mut to: TcpStream, from: &Receiver<(Instant, Vec<u8>)>) {
    let at = way as usize;
    for (due, piece) in from {
        sleep_until(due);
        let free_at = {
            let mut state = shared.state();
            // Waiting here holds back the whole direction, as TCP does.
            while state.frozen[at] && state.connections.contains_key(&id) {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if way == Way::Down && state.connections.get(&id).is_some_and(|one| one.swallowing) {
                state.swallowed += 1;
                state.close(id);
                return;
            }
            state.bytes[at] += piece.len() as u64;
            state.rate.map(|rate| {
                let start =
                    state.free_at[at].max(Instant::now().checked_sub(CATCH_UP).unwrap_or_else(Instant::now));
                state.free_at[at] = start + Duration::from_secs_f64(piece.len() as f64 / rate as f64);
                state.free_at[at]
            })
        };
        free_at.into_iter().for_each(sleep_until);
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // An end is forwarded like data; the second one ends the connection.
    let _ = to.shutdown(Shutdown::Write);
    let mut state = shared.state();
    let over = state.connections.get_mut(&id).is_some_and(|connection| {
        connection.open -= 1;
        connection.open == 0
    });
    if over {
        state.close(id);
    }
}

fn sleep_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    fn ask(port: u16, command: &[&str]) -> redis::RedisResult<String> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_millis(300))?;
        connection.set_read_timeout(Some(Duration::from_millis(300)))?;
        redis::cmd(command[0]).arg(&command[1..]).query(&mut connection)
    }

    #[test]
    fn a_link_hands_on_and_can_be_cut_and_healed() {
        let server = Server::start();
        let proxy = Proxy::to(server.port());
        assert_eq!(ask(proxy.port(), &["SET", "k", "v"]).unwrap(), "OK");
        assert!(proxy.bytes(Way::Up) > 0 && proxy.bytes(Way::Down) > 0);
        let client = redis::Client::open(proxy.url()).unwrap();
        let mut kept = client.get_connection().unwrap();
        assert!(proxy.connections() >= 1);
        proxy.cut();
        assert!(redis::cmd("PING").query::<()>(&mut kept).is_err());
        assert!(ask(proxy.port(), &["PING"]).is_err());
        proxy.heal();
        assert_eq!(ask(proxy.port(), &["GET", "k"]).unwrap(), "v");
    }

    #[test]
    fn a_frozen_link_is_silent_and_what_went_up_took_effect() {
        let server = Server::start();
        let proxy = Proxy::to(server.port());
        let client = redis::Client::open(proxy.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        connection.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        proxy.freeze(Way::Down);
        assert!(redis::cmd("SET").arg(&["k", "v"]).query::<()>(&mut connection).unwrap_err().is_timeout());
        assert_eq!(server.cli(&["GET", "k"]), "v");
        proxy.freeze(Way::Up);
        assert!(ask(proxy.port(), &["SET", "k", "w"]).is_err());
        assert_eq!(server.cli(&["GET", "k"]), "v");
        proxy.thaw();
        assert_eq!(ask(proxy.port(), &["GET", "k"]).unwrap(), "v");
    }

    #[test]
    fn a_swallowed_reply_closes_its_connection_after_the_effect() {
        let server = Server::start();
        let proxy = Proxy::to(server.port());
        proxy.swallow("INCR", 1);
        assert!(ask(proxy.port(), &["INCR", "n"]).is_err());
        assert_eq!((server.cli(&["GET", "n"]), proxy.swallowed()), ("1".to_owned(), 1));
        assert_eq!(ask(proxy.port(), &["INCR", "n"]).unwrap(), "2");
    }

    #[test]
    fn rate_and_delay_are_kept() {
        let server = Server::start();
        server.cli(&["SET", "k", &"x".repeat(400_000)]);
        let proxy = Proxy::to(server.port());
        let client = redis::Client::open(proxy.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        proxy.rate(Some(1_000_000));
        let began = Instant::now();
        let value: String = redis::cmd("GET").arg("k").query(&mut connection).unwrap();
        let took = began.elapsed();
        assert_eq!(value.len(), 400_000);
        assert!(took >= Duration::from_millis(350), "400 kB at 1 MB/s took {took:?}");
        proxy.rate(None);
        proxy.delay(Duration::from_millis(50));
        let began = Instant::now();
        redis::cmd("PING").query::<()>(&mut connection).unwrap();
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(100), "50 ms each way took {took:?}");
    }
}
