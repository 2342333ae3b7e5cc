//! What looking costs the server: as much for fifty tabs as for one.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use millstream::{Millstream, Start, Topic};
use millstream_dashboard::{Access, dashboard};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::server::Server;

/// Commands of clients that a server has received, as `MONITOR` shows them. Those of scripts are not among them.
struct Monitor(Arc<Mutex<Vec<String>>>);

impl Monitor {
    fn start(server: &Server) -> Self {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("it listens");
        stream.write_all(b"*1\r\n$7\r\nMONITOR\r\n").expect("written");
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "+OK");
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let list = seen.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok).filter(|line| !line.contains(" lua]")) {
                list.lock().expect("no panic").push(line);
            }
        });
        Self(seen)
    }

    /// Returns the number of commands so far with a key of this topic.
    fn commands(&self, server: &Server, topic: &str) -> usize {
        // The server shows commands in their order: once this one is there, all before it are.
        let mark = format!("{:016x}", fastrand::u64(..));
        server.cli(&["ECHO", &mark]);
        loop {
            let seen = self.0.lock().expect("no panic");
            if seen.iter().any(|line| line.contains(&mark)) {
                return seen.iter().filter(|line| line.contains(topic)).count();
            }
            drop(seen);
            thread::yield_now();
        }
    }
}

/// A server with a queue, and a dashboard of it.
struct Watched {
    server: Server,
    monitor: Monitor,
    router: Router,
}

impl Watched {
    async fn new() -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        for (name, partitions) in [("narrow", 2), ("wide", 64)] {
            let topic = Topic::<Bytes>::raw("t").named(name).partitions(partitions);
            let producer = mq.producer(topic).await.expect("a topic");
            producer.send(&Bytes::from_static(b"x")).await.expect("sent");
            for group in ["billing", "shipping"] {
                let (topic, group) = (name.parse().expect("a name"), group.parse().expect("a name"));
                mq.admin().create_group(&topic, &group, Start::Earliest).await.expect("created");
            }
        }
        let monitor = Monitor::start(&server);
        let router = dashboard(mq).access(|_| Access::read("ann")).router();
        Self { server, monitor, router }
    }

    /// Lets this number of tabs look at pages of all topics once.
    async fn look(&self, tabs: usize) {
        let mut paths = vec!["/overview".to_owned()];
        for topic in ["narrow", "wide"] {
            paths.push(format!("/topics/{topic}"));
            let group = ["", "/pending", "/retries", "/dead"];
            paths.extend(group.map(|page| format!("/topics/{topic}/groups/billing{page}")));
        }
        let ask = |path: &str| {
            let (router, request) = (self.router.clone(), Request::get(path).body(Body::empty()));
            async move {
                let answer = router.oneshot(request.expect("a request")).await.expect("it cannot fail");
                assert_eq!(answer.status(), StatusCode::OK);
                to_bytes(answer.into_body(), 16 << 20).await.expect("a body")
            }
        };
        for path in &paths {
            futures_util::future::join_all((0..tabs).map(|_| ask(path))).await;
        }
    }

    fn commands(&self, topic: &str) -> usize {
        self.monitor.commands(&self.server, topic)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_tabs_cost_as_much_as_one_and_five_commands_a_second() {
    let began = Instant::now();
    let (one, fifty) = (Watched::new().await, Watched::new().await);
    one.look(1).await;
    fifty.look(50).await;
    let looked = began.elapsed().as_secs_f64();
    let first = ["narrow", "wide"].map(|topic| (topic, one.commands(topic), fifty.commands(topic)));
    // One reading may fall into a period whole, though its commands are those of the seconds after it: 7 for each partition
    // with two groups, and some for the topic.
    let reading = |topic: &str| if topic == "wide" { 460.0 } else { 30.0 };
    for (topic, of_one, of_fifty) in first {
        // Where all this took seconds, what they look at was read again, like in any seconds.
        let again = if looked < 2.0 { 0.0 } else { 5.0 * looked + reading(topic) };
        assert!(
            of_one > 0 && of_fifty as f64 <= of_one as f64 * 1.1 + again,
            "{topic}: {of_one} of one, {of_fifty} of fifty, in {looked:.1} s"
        );
    }
    // Tabs ask again and again, far more often than the script does.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        tokio::join!(one.look(1), fifty.look(50));
    }
    let time = began.elapsed().as_secs_f64();
    for (topic, of_one, of_fifty) in first {
        let (of_one, of_fifty) = (one.commands(topic) - of_one, fifty.commands(topic) - of_fifty);
        let rates = [of_one, of_fifty].map(|commands| commands as f64 / time);
        println!("{topic}: {rates:.2?} commands/s of one tab and of fifty, {first:?} at the first look");
        let most = reading(topic);
        assert!(rates.iter().all(|rate| rate * time <= 5.0 * time + most), "{topic}: {rates:?} commands/s");
        assert!(of_fifty <= of_one + most as usize, "{topic}: {of_one} of one, {of_fifty} of fifty");
    }
    assert!(one.commands("narrow") > first[0].1, "it is read again");
}
