//! Shared parts of the tests on real servers: [`server::Server`], a private `redis-server`, and
//! [`server::shared_url`], one server for all tests that need only a namespace of their own; [`databases::postgres::Postgres`] is a
//! private PostgreSQL. For tests with several
//! processes: the `member` binary ([`member`], [`process`], [`fixture`]), the events that its processes record
//! ([`history`]), and the checks of these events ([`owners`], [`order`], [`monitor`]). [`proxy`] is a link that is
//! slow, late or cut; [`equipment::baseline`] is what times are compared with; [`delays`] tests the delay engine; [`console`] deletes data of a memory backend.
//!
//! The tests themselves are in `tests/`. `cargo xtask test` says what they need, and runs them.

pub mod batches;
pub mod cancels;
pub mod chaos;
pub mod cluster;
pub mod console;
pub mod crew;
pub mod databases;
pub mod delays;
mod docs;
pub mod equipment;
pub mod fixture;
pub mod history;
pub mod locker;
pub mod member;
pub mod monitor;
pub mod order;
pub mod owners;
pub mod process;
pub mod proxy;
#[path = "../../crates/millstream-metrics/src/tests/support/scrape.rs"]
pub mod scrape;
pub mod server;
pub mod steps;

pub use server::HANG;

use std::time::{Duration, Instant};

/// Waits until a condition holds, checking it every few milliseconds.
///
/// # Panics
/// If it does not hold within [`HANG`].
pub async fn eventually(mut holds: impl AsyncFnMut() -> bool, what: &str) {
    let deadline = Instant::now() + HANG;
    while !holds().await {
        assert!(Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpStream;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    use std::{env, thread};

    use crate::server::{Server, shared_url};

    #[test]
    fn a_server_answers_on_its_own_port_and_leaves_nothing_behind() {
        let server = Server::start();
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
        assert_eq!(server.cli(&["PING"]), "PONG");
        assert_eq!(server.cli(&["CONFIG", "GET", "appendonly"]), "appendonly\nno");
        assert!(server.cli(&["INFO", "server"]).contains(&format!("process_id:{}\r\n", server.pid())));

        let (pid, dir) = (server.pid(), server.dir().to_owned());
        drop(server);
        assert!(!dir.exists(), "{} is still there", dir.display());
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "server {pid} is still running");
    }

    #[test]
    fn two_servers_at_once_know_nothing_of_each_other() {
        let (one, two) = (Server::start(), Server::start());
        assert_ne!(one.port(), two.port());
        one.cli(&["SET", "k", "one"]);
        assert_eq!(two.cli(&["EXISTS", "k"]), "0");
    }

    #[test]
    fn what_the_append_only_file_holds_survives_a_kill() {
        let mut server = Server::builder().appendonly(true).start();
        let port = server.port();
        server.cli(&["SET", "k", "kept"]);
        server.kill();
        assert!(server.try_cli(&["PING"]).is_err());
        server.restart();
        assert_eq!(server.port(), port);
        assert_eq!(server.cli(&["GET", "k"]), "kept");
    }

    #[test]
    fn a_server_without_a_file_forgets_at_a_restart() {
        let mut server = Server::start();
        server.cli(&["SET", "k", "lost"]);
        server.stop();
        server.restart();
        assert_eq!(server.cli(&["GET", "k"]), "");
    }

    #[test]
    fn a_paused_server_answers_when_it_is_resumed() {
        let server = Server::start();
        server.pause();
        thread::scope(|scope| {
            let asked = scope.spawn(|| server.cli(&["PING"]));
            thread::sleep(Duration::from_millis(20));
            assert!(!asked.is_finished(), "a paused server answered");
            server.resume();
            assert_eq!(asked.join().unwrap(), "PONG");
        });
    }

    #[test]
    fn arguments_reach_the_server() {
        let server = Server::builder().arg("--maxmemory", "64mb").arg("--cluster-enabled", "yes").start();
        assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"]), format!("maxmemory\n{}", 64 << 20));
        assert!(server.cli(&["INFO", "cluster"]).contains("cluster_enabled:1"));
    }

    #[test]
    fn an_error_reply_is_an_error() {
        let error = Server::start().try_cli(&["NOSUCH"]).unwrap_err();
        assert!(error.to_string().contains("unknown command"), "{error}");
    }

    #[test]
    fn the_shared_server_is_one() {
        assert_eq!(shared_url(), shared_url());
    }

    /// Runs this test binary again as the process that is killed.
    #[test]
    fn a_killed_process_leaves_no_server_behind() {
        const VICTIM: &str = "MILLSTREAM_TEST_VICTIM";
        if env::var_os(VICTIM).is_some() {
            let server = Server::start();
            println!("\nserver {} {}", server.port(), server.dir().display());
            thread::sleep(Duration::from_secs(60));
            return;
        }
        let mut victim = Command::new(env::current_exe().unwrap())
            .args(["--exact", "tests::a_killed_process_leaves_no_server_behind", "--nocapture"])
            .env(VICTIM, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("server ")).expect("the victim started a server");
        let [port, dir] = line["server ".len()..].splitn(2, ' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let port = port.parse::<u16>().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

        victim.kill().unwrap();
        victim.wait().unwrap();
        let deadline = Instant::now() + crate::HANG;
        while TcpStream::connect(("127.0.0.1", port)).is_ok() || Path::new(dir).exists() {
            assert!(Instant::now() < deadline, "the server on {port} in {dir} outlives its process");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
