//! A private PostgreSQL for one test, or one run of tests: free port, own folder, gone when the test is.
//!
//! Only `std`: `xtask` compiles this very file to start the server that a whole test run shares, and the tests of
//! `millstream-sql` do. Everything here blocks; a start takes about a second, most of it `initdb`.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

/// Maximum time for a server to start or to stop.
// That of `HANG`, which crates that include this file do not have.
const TIME_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// Where Debian has the programs, in a folder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Kills the server `$1` and removes its folder `$2` when the pipe breaks, which means that the process that started it has
/// ended. A line on the pipe ends the watchdog without doing either.
const WATCHDOG: &str = r#"read -r _ || { kill -9 "$1"; sleep 1; rm -rf "$2"; }"#;

/// Role of the URLs. It may do everything, and the server asks nobody for a password.
pub const USER: &str = "millstream";

/// Returns the URL of a server that tests share: `MILLSTREAM_TEST_POSTGRES` if set, otherwise one server for this process.
/// Create a database of your own on it.
#[must_use]
pub fn shared_url() -> String {
    static OWN: OnceLock<Postgres> = OnceLock::new();
    env::var("MILLSTREAM_TEST_POSTGRES").unwrap_or_else(|_| OWN.get_or_init(Postgres::start).url())
}

/// Finds the folder with the programs `postgres` and `initdb`: what `POSTGRES_BIN` names, then the search path, then the
/// newest version that Debian's packages installed.
#[must_use]
pub fn find_programs() -> Option<PathBuf> {
    let has_both = |dir: &PathBuf| dir.join("postgres").is_file() && dir.join("initdb").is_file();
    if let Some(named) = env::var_os("POSTGRES_BIN") {
        return Some(PathBuf::from(named)).filter(has_both);
    }
    let on_path = env::var_os("PATH").and_then(|path| env::split_paths(&path).find(has_both));
    // The programs find their other files by where they really are.
    let on_path =
        on_path.and_then(|dir| Some(fs::canonicalize(dir.join("postgres")).ok()?.parent()?.to_owned()));
    on_path.filter(has_both).or_else(|| {
        let version =
            |dir: &PathBuf| dir.file_name().and_then(OsStr::to_str).and_then(|it| it.parse::<u32>().ok());
        let versions = fs::read_dir(DEBIAN).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut versions: Vec<_> =
            versions.filter_map(|dir| Some((version(&dir)?, dir.join("bin")))).collect();
        versions.sort();
        versions.into_iter().map(|(_, dir)| dir).rfind(has_both)
    })
}

/// A PostgreSQL server on a loopback port. Dropping it stops it and removes its folder; if this process is killed first, a
/// watchdog does both.
///
/// It writes without waiting for the disk: what was committed survives a kill of the server, not one of the machine.
#[derive(Debug)]
pub struct Postgres {
    running: Option<Running>,
    programs: PathBuf,
    /// User and group that the server runs as, if it cannot be this process's own.
    user: Option<(u32, u32)>,
    port: u16,
    dir: PathBuf,
    settings: Vec<String>,
}

/// One run of the server process, and its watchdog.
#[derive(Debug)]
struct Running {
    server: Child,
    watchdog: Child,
}

impl Postgres {
    /// Starts a server.
    ///
    /// # Panics
    /// If PostgreSQL is not installed, or does not start; the message contains its log.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further settings: `["work_mem=16MB"]`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        let programs = find_programs().expect(
            "PostgreSQL not found: `cargo xtask test` says how to get it; or name the folder with postgres and \
             initdb in POSTGRES_BIN",
        );
        let dir = new_dir(&env::temp_dir());
        let user = other_user(&dir);
        if let Some((user, group)) = user {
            chown(&dir, Some(user), Some(group)).expect("the folder is given to the user of the server");
        }
        let settings = settings.iter().map(ToString::to_string).collect();
        let mut server = Self { running: None, programs, user, port: 0, dir, settings };
        let output = server.run_initdb();
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        for _ in 0..20 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("PostgreSQL does not start; its log:\n{}", server.log());
    }

    /// Returns `postgres://millstream@127.0.0.1:port/postgres`. It does not change with [`restart`](Self::restart).
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder with its data.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the id of the server's first process.
    ///
    /// # Panics
    /// If the server was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the server is running").server.id()
    }

    /// Returns the log of the server's current run.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("server.log")).unwrap_or_default()
    }

    /// Kills all its processes as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Kills the server if it is running and starts it again, with the same port, folder and settings.
    ///
    /// # Panics
    /// If it does not start; the message contains its log.
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + TIME_LIMIT;
        while !self.launch() {
            assert!(Instant::now() < deadline, "PostgreSQL does not start again; its log:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    /// Stops all its processes (SIGSTOP): connections stay open and receive no replies.
    pub fn pause(&self) {
        // The first process goes first, so that it starts no other.
        signal(self.pid(), "STOP");
        children(self.pid()).into_iter().for_each(|pid| signal(pid, "STOP"));
    }

    /// Continues a paused server (SIGCONT).
    pub fn resume(&self) {
        children(self.pid()).into_iter().for_each(|pid| signal(pid, "CONT"));
        signal(self.pid(), "CONT");
    }

    fn run_initdb(&self) -> Output {
        let mut command = self.program("initdb");
        command
            .args([
                "--username",
                USER,
                "--auth=trust",
                "--no-sync",
                "--encoding=UTF8",
                "--no-locale",
                "--pgdata",
            ])
            .arg(self.dir.join("data"))
            .stdin(Stdio::null());
        command.output().expect("initdb starts")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(&self.dir);
        // Somebody's own settings must not reach it.
        for (variable, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(variable);
        }
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    /// Starts the process and waits until it serves. Returns `false` if it ended instead.
    fn launch(&mut self) -> bool {
        let log = fs::File::create(self.dir.join("server.log")).expect("a log");
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.dir.join("data")).args(["-p", &self.port.to_string()]);
        let fixed = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "full_page_writes=off",
            "max_connections=120",
            "shared_buffers=64MB",
            "logging_collector=off",
            "lc_messages=C",
        ];
        for setting in fixed.into_iter().chain(self.settings.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // A signal to the whole process group of the tests must not reach it.
            .process_group(0)
            .spawn()
            .expect("postgres starts");
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &server.id().to_string()])
            .arg(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("sh starts");
        let mut running = Running { server, watchdog };
        let mut serves = false;
        wait_until(|| {
            serves = self.log().contains("ready to accept connections") && self.answers();
            serves || !matches!(running.server.try_wait(), Ok(None))
        });
        self.running = serves.then_some(running);
        serves
    }

    /// Sends a request for TLS, which every server answers with one byte, before any login.
    fn answers(&self) -> bool {
        let asked = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.set_read_timeout(Some(TIME_LIMIT))?;
            stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47])?;
            stream.read_exact(&mut [0])
        };
        asked().is_ok()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Before the server's process id can be reused.
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.watchdog.wait();
        let children = children(self.server.id());
        let _ = self.server.kill();
        let _ = self.server.wait();
        // They end by themselves when they notice, unless they were stopped.
        children.iter().for_each(|pid| try_signal(*pid, "KILL"));
        wait_until(|| !children.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()));
    }
}

/// PostgreSQL refuses to run as root. Returns the user and group that it runs as instead: those of `postgres`, or of
/// `nobody`. `None` if this process is not root, which the owner of a folder that it created shows.
fn other_user(dir: &Path) -> Option<(u32, u32)> {
    if fs::metadata(dir).expect("the folder").uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the list of users");
    let find = |name: &str| {
        let fields: Vec<_> =
            users.lines().find(|line| line.split(':').next() == Some(name))?.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    let user = find("postgres").or_else(|| find("nobody"));
    Some(user.expect("PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody`"))
}

/// Returns the processes that the server has started.
fn children(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program is in parentheses and may have any characters.
        line.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// Sends a signal with the shell, whose `kill` is built in.
fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("sh starts");
    // One that has ended by itself, such as a connection that was closed, is no fault.
    assert!(status.success() || !Path::new(&format!("/proc/{pid}")).exists(), "kill -{name} {pid}: {status}");
}

fn try_signal(pid: u32, name: &str) {
    let command = format!("kill -{name} {pid} 2>/dev/null");
    let _ = Command::new("sh").args(["-c", &command]).status();
}

/// Returns a port below the range that the system assigns to connections.
fn free_port() -> u16 {
    loop {
        let port = 30_000 + u16::try_from(random() % 2_700).expect("below 2,700");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

fn new_dir(parent: &Path) -> PathBuf {
    let dir = parent.join(format!("millstream-postgres-{}-{:016x}", process::id(), random()));
    fs::create_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    dir
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME_LIMIT;
    while !done() && Instant::now() < deadline {
        thread::sleep(POLL);
    }
}
