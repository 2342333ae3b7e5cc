//! A private `redis-server`: on a free loopback port, with a folder of its own, gone with its value.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::args::Aof;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// Kills the server `$1` and removes its folder `$2` when the pipe breaks: when this process is gone, however it went.
/// A line on the pipe calls it off.
const WATCHDOG: &str = r#"read -r _ || { kill -9 "$1"; rm -rf "$2"; }"#;

/// A server that runs.
#[derive(Debug)]
pub(super) struct Server {
    port: u16,
    /// Killed by its id when it is dropped.
    server: Child,
    /// It acts when its pipe closes, which is when this is dropped.
    watchdog: Child,
    /// Last, so that it is removed when nobody writes into it any more.
    dir: TempDir,
}

impl Server {
    /// Starts `redis-server`, or what `REDIS_SERVER` names.
    pub(super) async fn start(aof: Aof) -> Result<Self> {
        for _ in 0..20 {
            if let Some(server) = Self::launch(free_port()?, aof).await? {
                return Ok(server);
            }
        }
        bail!("redis-server does not start: no free port");
    }

    /// Where it is.
    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its folder.
    #[cfg(test)]
    pub(super) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// `None` if somebody else took the port in between.
    async fn launch(port: u16, aof: Aof) -> Result<Option<Self>> {
        let dir = TempDir::with_prefix("millstream-bench-").context("no temporary folder")?;
        let binary = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let (appendonly, fsync) = match aof {
            Aof::No => ("no", "no"),
            Aof::Everysec | Aof::Always => ("yes", aof.name()),
        };
        let spawned = Command::new(&binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
            .args(["--appendonly", appendonly, "--appendfsync", fsync])
            // It would be rewritten during the one run or the other, as chance has it.
            .args(["--auto-aof-rewrite-percentage", "0", "--logfile", "server.log", "--dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C is for us: we clean up, and then it ends.
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
        let deadline = Instant::now() + PATIENCE;
        // The log says that *this* server has the port, which an answer on the port does not.
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
        Ok(Some(Self { port, server, watchdog, dir }))
    }

    /// Kills it, and waits until it is gone.
    pub(super) async fn stop(mut self) -> Result<()> {
        // Before the server's id is free for another process.
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            pipe.write_all(b"done\n").await.context("watchdog")?;
        }
        self.watchdog.wait().await.context("watchdog")?;
        self.server.kill().await.context("redis-server")?;
        self.dir.close().context("the server's folder")
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
