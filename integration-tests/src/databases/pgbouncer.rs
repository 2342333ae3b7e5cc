//! A private PgBouncer in front of a PostgreSQL: free port, own folder, gone when the test is.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::HANG;
use crate::databases::postgres::USER;

/// A PgBouncer. Dropping it ends it.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one in front of the server at this port, with further settings: `["pool_mode = session"]`.
    ///
    /// # Panics
    /// If it is not installed or does not start; the message contains its log.
    #[must_use]
    pub fn start(postgres: u16, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let path = |name: &str| folder.path().join(name);
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={postgres} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\nlogfile = {}\n\
             ignore_startup_parameters = extra_float_digits\n{}\n",
            path("log").display(),
            settings.join("\n"),
        );
        fs::write(path("pgbouncer.ini"), text).expect("written");
        let mut command = Command::new("pgbouncer");
        if fs::metadata(folder.path()).expect("the folder").uid() == 0 {
            // It refuses to run as root, and its user must read and write here.
            command.args(["-u", "nobody"]);
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("permitted");
        }
        command.arg(path("pgbouncer.ini")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process =
            command.spawn().expect("pgbouncer is installed: `cargo xtask test` says how to get it");
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let ended = process.try_wait().expect("its state").is_some();
            let log = || fs::read_to_string(path("log")).unwrap_or_default();
            assert!(!ended && began.elapsed() < HANG, "PgBouncer does not start:\n{}", log());
            std::thread::yield_now();
        }
        Self { process, port, _folder: folder }
    }

    /// Returns the URL of a database that has this URL at the server.
    ///
    /// # Panics
    /// If `url` names no database.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').expect("a database in the URL");
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the one that is installed keeps prepared statements in transactions: version 1.21 or newer.
///
/// # Panics
/// If it does not run.
#[must_use]
pub fn keeps_statements() -> bool {
    let output = Command::new("pgbouncer").arg("--version").output().expect("pgbouncer is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("1."));
    let minor = version.and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    minor.expect("PgBouncer 1.x.y") >= 21
}
