//! A private `redis-server`: on a free loopback port, with its own folder, removed when dropped.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};
use millstream::TlsConfig;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::args::Aof;
use crate::measure::Secure;

/// Maximum time for a server to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// Kills the server `$1` and removes its folder `$2` when the pipe breaks, which means that this process has ended,
/// for whatever reason. A line on the pipe ends the watchdog without doing either.
const WATCHDOG: &str = r#"read -r _ || { kill -9 "$1"; rm -rf "$2"; }"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    /// Its second port, if it speaks TLS.
    secure: Option<Secure>,
    /// The server process, killed by its id on drop.
    server: Child,
    /// The watchdog, which acts when its pipe closes, that is, when this is dropped.
    watchdog: Child,
    /// The folder. The last field, so that it is removed after all processes that write to it have ended.
    dir: TempDir,
}

impl Server {
    /// Starts `redis-server`, or the program that `REDIS_SERVER` names; with `tls` on a second port, with a certificate
    /// that is made for it.
    pub(crate) async fn start(aof: Aof, tls: bool) -> Result<Self> {
        for _ in 0..20 {
            let secure_port = if tls { Some(free_port()?) } else { None };
            if let Some(server) = Self::launch(free_port()?, secure_port, aof).await? {
                return Ok(server);
            }
        }
        bail!("redis-server does not start: no free port");
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns where it speaks TLS.
    pub(crate) fn secure(&self) -> Option<&Secure> {
        self.secure.as_ref()
    }

    /// Returns its folder.
    #[cfg(test)]
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Starts the process. Returns `None` if another process took a port in the meantime.
    async fn launch(port: u16, secure_port: Option<u16>, aof: Aof) -> Result<Option<Self>> {
        let dir = TempDir::with_prefix("millstream-bench-").context("no temporary folder")?;
        let binary = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let (appendonly, fsync) = match aof {
            Aof::No => ("no", "no"),
            Aof::Everysec | Aof::Always => ("yes", aof.name()),
        };
        let mut secure = None;
        let mut secure_args = Vec::new();
        if let Some(port) = secure_port {
            let authority = certificate(dir.path()).context("no certificate")?;
            let tls = TlsConfig::new().with_ca(authority);
            secure = Some(Secure { url: format!("rediss://127.0.0.1:{port}"), tls });
            secure_args = arguments(dir.path(), port);
        }
        let spawned = Command::new(&binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
            .args(["--appendonly", appendonly, "--appendfsync", fsync])
            // Otherwise it would be rewritten during some runs and not during others.
            .args(["--auto-aof-rewrite-percentage", "0", "--logfile", "server.log", "--dir"])
            .arg(dir.path())
            .args(secure_args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must reach this process only: it cleans up, and then stops the server.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut server = match spawned {
            Ok(server) => server,
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "there is no {}: install Redis 7.0 or newer, name its server in REDIS_SERVER, or pass the --url of \
                 one that runs",
                binary.display()
            ),
            Err(error) => return Err(error).with_context(|| binary.display().to_string()),
        };
        let id = server.id().context("redis-server ended at once")?;
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &id.to_string()])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("sh does not start")?;
        let log = || fs::read_to_string(dir.path().join("server.log")).unwrap_or_default();
        let deadline = Instant::now() + START_TIMEOUT;
        // The log confirms that *this* server has the port, which a reply on the port does not.
        while !log().contains("Ready to accept connections") {
            if server.try_wait()?.is_some() {
                let log = log();
                if log.contains("Address already in use") {
                    return Ok(None);
                }
                bail!("redis-server ended; its log:\n{log}");
            }
            if Instant::now() > deadline {
                bail!("redis-server does not start; its log:\n{}", log());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(Some(Self { port, secure, server, watchdog, dir }))
    }

    /// Kills the server, and waits until it has ended.
    pub(crate) async fn stop(mut self) -> Result<()> {
        // Before the server's process id can be reused.
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            pipe.write_all(b"done\n").await.context("watchdog")?;
        }
        self.watchdog.wait().await.context("watchdog")?;
        self.server.kill().await.context("redis-server")?;
        self.dir.close().context("the server's folder")
    }
}

/// Writes a certificate for the loopback address, which is signed with its own key, and that key into a folder. Returns
/// the certificate: who trusts it trusts this server alone.
fn certificate(dir: &Path) -> Result<String> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    fs::write(dir.join(CERTIFICATE), cert.pem())?;
    fs::write(dir.join(KEY), signing_key.serialize_pem())?;
    Ok(cert.pem())
}

const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";

/// Returns the arguments of a server that has these files. Clients need no certificate.
fn arguments(dir: &Path, port: u16) -> Vec<OsString> {
    let certificate = dir.join(CERTIFICATE).into_os_string();
    let mut arguments =
        vec!["--tls-port".into(), port.to_string().into(), "--tls-auth-clients".into(), "no".into()];
    arguments.extend([
        "--tls-cert-file".into(),
        certificate.clone(),
        "--tls-ca-cert-file".into(),
        certificate,
    ]);
    arguments.extend(["--tls-key-file".into(), dir.join(KEY).into_os_string()]);
    arguments
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
