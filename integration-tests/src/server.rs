//! A private `redis-server` for one test: free port, own folder, gone when the test is.
//!
//! Only `std`, since `xtask` compiles this very file to start the server that a whole test run shares.
//! Everything here blocks; each call takes a few milliseconds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// How long anything may take before it counts as hung. It is no promise of the product: a machine that is slow, or busy with
/// something else, has to come round within it. `crates/xtask/nextest.toml` ends tests later than that.
pub const HANG: Duration = Duration::from_secs(120);

/// Maximum time for a server to start, to stop, or to reply to one command.
const TIME_LIMIT: Duration = HANG;
/// For an answer. Shorter: some tests ask servers that are stopped.
const ANSWER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// Kills the server `$1` and removes its folder `$2` when the pipe breaks, which means that the process that started
/// it has ended, for whatever reason. A line on the pipe ends the watchdog without doing either.
const WATCHDOG: &str = r#"read -r _ || { kill -9 "$1"; rm -rf "$2"; }"#;

/// Returns the URL of a server that tests share: `MILLSTREAM_TEST_REDIS` if set, otherwise one server for this
/// process. Use a unique namespace on it, and do not change its settings or other tests' keys.
#[must_use]
pub fn shared_url() -> String {
    static OWN: OnceLock<Server> = OnceLock::new();
    env::var("MILLSTREAM_TEST_REDIS").unwrap_or_else(|_| OWN.get_or_init(Server::start).url())
}

/// A `redis-server` (or the program that `REDIS_SERVER` names) on a loopback port. Dropping it kills it and removes
/// its folder; if this process is killed first, a watchdog does both.
#[derive(Debug)]
pub struct Server {
    running: Option<Running>,
    program: PathBuf,
    port: u16,
    tls: Option<Tls>,
    dir: PathBuf,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
    /// While it is down, no other test may take its ports: nodes of a cluster that find another node at an address forget who
    /// was there, and never agree that it has failed.
    reserved: Vec<Reservation>,
}

/// Port on which a server uses TLS, and the arguments for that.
#[derive(Clone, Debug)]
struct Tls {
    port: u16,
    args: Vec<String>,
}

/// The settings of a [`Server`] before it starts.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    program: Option<PathBuf>,
    appendonly: bool,
    within: Option<PathBuf>,
    sentinel: Option<String>,
    tls: Option<Vec<String>>,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
}

/// One run of the server process, and its watchdog.
#[derive(Debug)]
struct Running {
    server: Child,
    watchdog: Child,
}

impl Builder {
    /// Sets whether writes go to the append-only file, so that they survive [`Server::kill`]. Default: no.
    #[must_use]
    pub fn appendonly(mut self, yes: bool) -> Self {
        self.appendonly = yes;
        self
    }

    /// Adds an argument of `redis-server`, such as `--maxmemory 64mb`.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Opens a second port, with TLS: the server's certificate and key are `server.pem` and `server.key` in `folder`, and
    /// `ca.pem` there signs those of clients, which need none.
    #[must_use]
    pub fn tls(mut self, folder: &Path) -> Self {
        let file = |name: &str| folder.join(name).display().to_string();
        let files = [("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem")];
        let files = files.iter().flat_map(|(what, name)| [format!("--tls-{what}-file"), file(name)]);
        self.tls = Some(files.chain(["--tls-auth-clients".to_owned(), "no".to_owned()]).collect());
        self
    }

    /// Runs the server as a Sentinel, with these lines of configuration.
    #[must_use]
    pub fn sentinel(mut self, lines: &[&str]) -> Self {
        self.sentinel = Some(lines.join("\n"));
        self
    }

    /// Sets the program. Default: what `REDIS_SERVER` names, or `redis-server`.
    #[must_use]
    pub fn program(mut self, path: PathBuf) -> Self {
        self.program = Some(path);
        self
    }

    /// Sets the folder in which the server's folder is created. Default: the one for temporary files.
    #[must_use]
    pub fn within(mut self, folder: PathBuf) -> Self {
        self.within = Some(folder);
        self
    }

    /// Adds an environment variable of the server's process.
    #[must_use]
    pub fn env(mut self, name: &str, value: PathBuf) -> Self {
        self.env.push((name.to_owned(), value));
        self
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, or if it does not start; the message contains its log.
    #[must_use]
    pub fn start(self) -> Server {
        let mut args = vec!["--appendonly".to_owned(), if self.appendonly { "yes" } else { "no" }.to_owned()];
        // With the default, `everysec`, a server whose disk is busy holds back what it writes to the file for up to two
        // seconds although it has replied, and a kill loses that. With `no` all is written before the reply, to the page
        // cache, which outlives the process.
        args.extend(["--appendfsync".to_owned(), "no".to_owned()]);
        args.extend(self.args);
        let dir = new_dir(&self.within.unwrap_or_else(env::temp_dir));
        if let Some(lines) = self.sentinel {
            // A Sentinel keeps its state in its configuration file, which comes before all arguments.
            let file = dir.join("sentinel.conf");
            fs::write(&file, lines).expect("written");
            args.insert(0, file.display().to_string());
            args.push("--sentinel".to_owned());
        }
        let program = self.program.or_else(|| env::var_os("REDIS_SERVER").map(PathBuf::from));
        let program = program.unwrap_or_else(|| "redis-server".into());
        let (env, reserved) = (self.env, Vec::new());
        let mut server = Server { running: None, program, port: 0, tls: None, dir, args, env, reserved };
        for _ in 0..20 {
            let (port, reserved) = free_port();
            (server.port, server.reserved) = (port, vec![reserved]);
            server.tls = self.tls.clone().map(|args| {
                let (port, reserved) = free_port();
                server.reserved.push(reserved);
                Tls { port, args }
            });
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server does not start; its log:\n{}", server.log());
    }
}

impl Server {
    /// Starts a server with neither snapshots nor an append-only file.
    ///
    /// # Panics
    ///
    /// As [`Builder::start`].
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns the settings of a new server.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns `redis://127.0.0.1:port`. It does not change with [`restart`](Self::restart).
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port that the server listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port on which the server uses TLS, if it was [asked to](Builder::tls).
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        self.tls.as_ref().map(|tls| tls.port)
    }

    /// Whether the process was started and not stopped or killed since.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the id of the server process.
    ///
    /// # Panics
    ///
    /// If the server was stopped or killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the server is running").server.id()
    }

    /// Returns the server's folder, with its data files and `server.log`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the log of the server's current run.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("server.log")).unwrap_or_default()
    }

    /// Kills the server as a crash would (SIGKILL). Connections break, and data that is not in the append-only file
    /// is lost.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Requests the server to shut down (SIGTERM), and kills it if it does not.
    pub fn stop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        signal(running.server.id(), "TERM");
        signal(running.server.id(), "CONT");
        wait_until(|| !matches!(running.server.try_wait(), Ok(None)));
    }

    /// Kills the server if it is running and starts it again, with the same port, folder and settings.
    ///
    /// # Panics
    ///
    /// If it does not start; the message contains its log.
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + TIME_LIMIT;
        while !self.launch() {
            assert!(Instant::now() < deadline, "redis-server does not start again; its log:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    /// Stops the process (SIGSTOP): connections stay open and receive no replies.
    ///
    /// # Panics
    ///
    /// If the server is not running.
    pub fn pause(&self) {
        signal(self.pid(), "STOP");
        let stat = format!("/proc/{}/stat", self.pid());
        wait_until(|| !fs::read_to_string(&stat).is_ok_and(|line| !line.contains(") T ")));
    }

    /// Continues a paused server (SIGCONT).
    ///
    /// # Panics
    ///
    /// If the server is not running.
    pub fn resume(&self) {
        signal(self.pid(), "CONT");
    }

    /// Sends one command on a separate connection and returns the reply as `redis-cli` prints it to a pipe: text
    /// unchanged, nil as nothing, one element per line.
    ///
    /// # Panics
    ///
    /// If the connection breaks, or the reply is an error.
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{}: {error}", command.join(" ")))
    }

    /// Same as [`cli`](Self::cli), for commands that may fail.
    ///
    /// # Errors
    ///
    /// The error of the connection, or the error reply.
    pub fn try_cli(&self, command: &[&str]) -> io::Result<String> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        (&stream).write_all(request.as_bytes())?;
        reply(&mut BufReader::new(stream))
    }

    /// Starts the process and waits until it serves. Returns `false` if it ended instead, most likely because another
    /// process took the port in the meantime.
    fn launch(&mut self) -> bool {
        let _ = fs::remove_file(self.dir.join("server.log"));
        let mut args = self.args.clone();
        if let Some(Tls { port, args: files }) = &self.tls {
            // Before the arguments of the test, which may replace some.
            let at = usize::from(args.first().is_some_and(|arg| !arg.starts_with("--")));
            let port = ["--tls-port".to_owned(), port.to_string()];
            args.splice(at..at, port.into_iter().chain(files.iter().cloned()));
        }
        let mut running = Running::start(&self.program, self.port, &self.dir, &args, &self.env);
        // The log confirms that *this* server has the port, which a reply on the port does not.
        let mut served = false;
        wait_until(|| {
            let log = self.log();
            let said = log.contains("Ready to accept connections") || log.contains("Sentinel ID is");
            served = said && self.answers();
            served || !matches!(running.server.try_wait(), Ok(None))
        });
        self.running = served.then_some(running);
        served
    }

    fn answers(&self) -> bool {
        match self.try_cli(&["PING"]) {
            Ok(_) => true,
            Err(error) => error.to_string().starts_with("NOAUTH"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Running {
    fn start(binary: &Path, port: u16, dir: &Path, args: &[String], env: &[(String, PathBuf)]) -> Self {
        // A configuration file is the first argument.
        let (file, args) = args.split_at(usize::from(args.first().is_some_and(|arg| !arg.starts_with("--"))));
        let server = Command::new(binary)
            .args(file)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
            .args(["--logfile", "server.log", "--dir"])
            .arg(dir)
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = match server {
            Ok(server) => server,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                panic!("redis-server not found: `cargo xtask test` says how to get it")
            }
            Err(error) => panic!("{}: {error}", binary.display()),
        };
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &server.id().to_string()])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the whole process group of the tests must not reach it.
            .process_group(0)
            .spawn()
            .expect("sh starts");
        Self { server, watchdog }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Before the server's process id can be reused.
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.watchdog.wait();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// What keeps a port from other tests: a socket with a name that has the port in it. The system removes it with its process.
#[cfg(target_os = "linux")]
type Reservation = std::os::unix::net::UnixListener;
/// Nothing keeps ports elsewhere.
#[cfg(not(target_os = "linux"))]
type Reservation = ();

/// Reserves a port among all tests on this machine; `None` if another test has it.
#[cfg(target_os = "linux")]
fn reserve(port: u16) -> Option<Reservation> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    let name = SocketAddr::from_abstract_name(format!("millstream-test-port-{port}")).expect("a short name");
    UnixListener::bind_addr(&name).ok()
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: u16) -> Option<Reservation> {
    Some(())
}

/// Returns a port below the range that the system assigns to connections: within that range, a client that keeps
/// trying to reach a killed server could be assigned the server's own port and keep it. A cluster's bus port (+10000)
/// fits as well, and is no other server's port.
fn free_port() -> (u16, Reservation) {
    let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = 10_000 + u16::try_from(random % 10_000).expect("below 10,000");
        if let Some(reserved) = reserve(port)
            && free(port)
            && free(port + 10_000)
        {
            return (port, reserved);
        }
    }
}

fn new_dir(parent: &Path) -> PathBuf {
    loop {
        let random = RandomState::new().build_hasher().finish();
        let dir = parent.join(format!("millstream-{random:016x}"));
        match fs::create_dir(&dir) {
            Ok(()) => return dir,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", dir.display()),
        }
    }
}

/// Sends a signal with the shell, whose `kill` is built in: a minimal machine has no program of that name.
fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("sh starts");
    assert!(status.success(), "kill -{name} {pid}: {status}");
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME_LIMIT;
    while !done() && Instant::now() < deadline {
        thread::sleep(POLL);
    }
}

/// Reads one reply in version 2 of the protocol.
fn reply(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let count = || rest.parse::<i64>().map_err(io::Error::other);
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => Err(io::Error::other(rest.to_owned())),
        "$" => {
            let Ok(length) = usize::try_from(count()?) else { return Ok(String::new()) };
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => {
            let elements: io::Result<Vec<_>> = (0..count()?).map(|_| reply(from)).collect();
            Ok(elements?.join("\n"))
        }
        _ => Err(io::Error::other(format!("not a reply: {line:?}"))),
    }
}
