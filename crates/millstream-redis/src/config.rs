//! Configuration of the backend: validated as a whole, and printed without its password.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::name::Namespace;

use crate::address::{self, Parsed, Place};
use crate::credentials::CredentialsProvider;

/// Shortest and longest timeout allowed. The longest is far above any sensible one, and no sum of timeouts overflows
/// with it.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// Reaction to a server that may lose messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRisk {
    /// The settings are not read.
    Ignore,
    /// Every [`Risk`](crate::Risk) is logged as a warning when connecting.
    #[default]
    Warn,
    /// Connecting fails with [`ErrorKind::InvalidConfig`], which lists every risk. It fails as well if the settings
    /// cannot be read.
    Refuse,
}

/// Configuration of the connection to a Redis or Valkey server.
///
/// ```
/// use std::time::Duration;
/// use millstream_redis::RedisConfig;
///
/// let config = RedisConfig::new("redis://127.0.0.1:6379/0").with_response_timeout(Duration::from_secs(2));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// URL of the servers. No default.
    ///
    /// - One server: `redis://[user:password@]host[:port][/database]`, or `unix:///path/to/socket`, with user and
    ///   password before the path or as `?user=…&pass=…`.
    /// - A Redis Cluster, by some of its nodes: `redis+cluster://[user:password@]host[:port][,host[:port]…]`.
    /// - The primary of a Sentinel service: `redis+sentinel://[user:password@]host[:port][,…]/service[/database]`. User
    ///   and password are those of the primary.
    ///
    /// Over TLS (feature `tls`): `rediss://`, `redis+cluster+tls://`, `redis+sentinel+tls://`. Each scheme may begin with
    /// `valkey` instead of `redis`. The database may also be given as `?db=…`.
    ///
    /// Each part is used or refused. In user, password and service `@ : / ? # %` are percent-encoded, as `%40 %3A %2F %3F
    /// %23 %25`.
    pub url: String,
    /// Prefix of all keys, with which tenants can share a server. Default: none.
    pub namespace: Option<Namespace>,
    /// Maximum time for opening a connection, log-in included. Default: 5 s. At least 1 ms and at most a day.
    pub connect_timeout: Duration,
    /// Maximum time for an answer, not counting a wait for messages. Reads of messages apply it to the beginning of
    /// the answer and then each time until more of it arrives, so a large page on a slow link has the time that it
    /// needs.
    ///
    /// Default: 5 s. Use more where the server is far away or runs long commands of others, and less where a fail-over
    /// must be noticed sooner. At least 1 ms and at most a day.
    pub response_timeout: Duration,
    /// Maximum number of connections for catalog, statistics and dead letters, at least 1. Default: 4.
    pub pool_size: usize,
    /// Maximum number of connections of a process to one node for reading owned partitions. The readers of further
    /// partitions (all of them with 0) share one more connection, on which they wait for notices of changed keys, and read in small pages;
    /// those that have more to read take turns with connections of their own, after five seconds at the latest. Default: 64.
    pub max_reader_connections: usize,
    /// Reaction to a server that may lose messages: no persistence, eviction, replicas that are not waited for.
    /// Default: warnings.
    pub on_risk: OnRisk,
    /// Certificates for TLS; `None` for those of the system. Only with a URL that asks for TLS. Default: `None`.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// Source of user and password, instead of those in the URL. The user of the URL is used if it returns none. Default:
    /// `None`.
    pub credentials: Option<Arc<dyn CredentialsProvider>>,
    /// Source of user and password for Sentinels, if they ask for any. Default: `None`.
    pub sentinel_credentials: Option<Arc<dyn CredentialsProvider>>,
    /// Puts `#!lua` in front of every script, so that the server refuses undeclared keys. For tests: a server that is
    /// out of memory refuses such scripts, acknowledgements included. Default: false.
    #[doc(hidden)]
    pub strict_scripts: bool,
    /// Ignores the lag of groups that the server reports, as on a server that reports none: every lag that is not
    /// obvious is counted. For tests. Default: false.
    #[doc(hidden)]
    pub count_lag: bool,
    /// Maximum number of entries of one partition that one call counts for the lag of a group, half of them on each
    /// side of the group. A longer count continues in the next call. For tests. Default: 20,000.
    #[doc(hidden)]
    pub lag_budget: u64,
}

/// Certificates for TLS, in PEM format. The server's certificate must be valid for the host of the URL.
///
/// ```no_run
/// use millstream_redis::{RedisConfig, TlsConfig};
///
/// # fn config() -> std::io::Result<RedisConfig> {
/// let tls = TlsConfig::new()
///     .with_ca(std::fs::read("ca.pem")?)
///     .with_client(std::fs::read("client.pem")?, std::fs::read("client.key")?);
/// # Ok(
/// RedisConfig::new("rediss://redis.internal:6380").with_tls(tls)
/// # )
/// # }
/// ```
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct TlsConfig {
    /// Certificates of the authorities that are trusted, instead of those of the system. Default: those of the system.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate, with its chain, and its private key. Default: none.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that every server's certificate must have, instead of the host of its address. For servers that are
    /// reached by IP addresses or through a tunnel. Default: the host; for a node of a cluster the host name that it
    /// announces (`cluster-announce-hostname`), if it does.
    pub server_name: Option<String>,
}

#[cfg(feature = "tls")]
impl TlsConfig {
    /// Returns the defaults: the authorities of the system, and no client certificate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities, and not those of the system.
    #[must_use]
    pub fn with_ca(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca: Some(pem.into()), ..self }
    }

    /// Presents this certificate, followed by its chain, to a server that asks for one. `key` is its private key.
    #[must_use]
    pub fn with_client(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { client: Some((certificate.into(), key.into())), ..self }
    }

    /// Expects this name in every server's certificate, instead of the host of its address.
    #[must_use]
    pub fn with_server_name(self, server_name: impl Into<String>) -> Self {
        Self { server_name: Some(server_name.into()), ..self }
    }
}

/// Omits the certificates and the key.
#[cfg(feature = "tls")]
impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

impl RedisConfig {
    /// Returns the defaults for a server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            namespace: None,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(5),
            pool_size: 4,
            max_reader_connections: 64,
            on_risk: OnRisk::default(),
            #[cfg(feature = "tls")]
            tls: None,
            credentials: None,
            sentinel_credentials: None,
            strict_scripts: false,
            count_lag: false,
            lag_budget: 20_000,
        }
    }

    /// Returns the configuration with a prefix for all keys.
    #[must_use]
    pub fn with_namespace(self, namespace: Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// Returns the configuration with another timeout for opening a connection.
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Returns the configuration with another timeout for an answer.
    #[must_use]
    pub fn with_response_timeout(self, response_timeout: Duration) -> Self {
        Self { response_timeout, ..self }
    }

    /// Returns the configuration with another pool size.
    #[must_use]
    pub fn with_pool_size(self, pool_size: usize) -> Self {
        Self { pool_size, ..self }
    }

    /// Returns the configuration with another limit for the connections of readers.
    #[must_use]
    pub fn with_max_reader_connections(self, max_reader_connections: usize) -> Self {
        Self { max_reader_connections, ..self }
    }

    /// Returns the configuration with another reaction to a server that may lose messages.
    #[must_use]
    pub fn with_on_risk(self, on_risk: OnRisk) -> Self {
        Self { on_risk, ..self }
    }

    /// Returns the configuration with certificates for TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(self, tls: TlsConfig) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Returns the configuration with a source of user and password, instead of those in the URL.
    #[must_use]
    pub fn with_credentials(self, provider: impl CredentialsProvider + 'static) -> Self {
        Self { credentials: Some(Arc::new(provider)), ..self }
    }

    /// Returns the configuration with a source of user and password for Sentinels.
    #[must_use]
    pub fn with_sentinel_credentials(self, provider: impl CredentialsProvider + 'static) -> Self {
        Self { sentinel_credentials: Some(Arc::new(provider)), ..self }
    }

    /// Returns the configuration with `#!lua` in front of every script. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_strict_scripts(self, strict_scripts: bool) -> Self {
        Self { strict_scripts, ..self }
    }

    /// Returns the configuration for a server that does not report the lag of groups. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_count_lag(self, count_lag: bool) -> Self {
        Self { count_lag, ..self }
    }

    /// Returns the configuration with another number of entries counted in one call. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_lag_budget(self, lag_budget: u64) -> Self {
        Self { lag_budget, ..self }
    }

    /// Checks the whole configuration; [`RedisBackend::connect`](crate::RedisBackend::connect) does this first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists every problem.
    pub fn validate(&self) -> Result<()> {
        self.parsed().map(drop)
    }

    pub(crate) fn parsed(&self) -> Result<Parsed> {
        let mut problems = Problems::new("redis config");
        let parsed = address::parse(&self.url).map_err(|error| {
            let why = format!("url {:?} cannot be used: {error}", self.redacted_url());
            Error::new(ErrorKind::InvalidConfig, why)
        });
        let parsed = problems.take(parsed);
        let encrypted = self.is_encrypted();
        problems.require(!encrypted || cfg!(feature = "tls"), || {
            "url needs TLS, which this build does not have: enable the feature `tls`".into()
        });
        #[cfg(feature = "tls")]
        problems.require(encrypted || self.tls.is_none(), || {
            "tls is set, and url does not ask for TLS, as rediss:// or redis+cluster+tls:// do".into()
        });
        let (user, in_url, at_sentinels) = parsed.as_ref().map_or((false, false, false), |parsed| {
            let settings = parsed.info.redis_settings();
            let at_sentinels = matches!(parsed.place, Place::Sentinel(..));
            (settings.username().is_some(), settings.password().is_some(), at_sentinels)
        });
        problems.require(!user || in_url || self.credentials.is_some(), || {
            "url names a user and no password, and credentials are not set: redis://user:password@host".into()
        });
        problems.require(!in_url || self.credentials.is_none(), || {
            "credentials are set, and url has a password too: use one of them".into()
        });
        let unused = parsed.is_some() && !at_sentinels;
        problems.require(!unused || self.sentinel_credentials.is_none(), || {
            "sentinel_credentials are set, and url does not name Sentinels".into()
        });
        for (name, timeout) in
            [("connect_timeout", self.connect_timeout), ("response_timeout", self.response_timeout)]
        {
            problems.require((SHORTEST..=LONGEST).contains(&timeout), || {
                format!("{name} is {timeout:?}, {SHORTEST:?} to {LONGEST:?} are allowed")
            });
        }
        problems.require(self.pool_size >= 1, || "pool_size is 0, at least 1 is needed".into());
        problems.finish()?;
        parsed.ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "invalid redis config"))
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        address::is_encrypted(&self.url)
    }

    /// Returns the URL without user, password and query (which has the password of a `unix://` URL).
    pub(crate) fn redacted_url(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        // A text with other characters is no scheme: a user and a password may stand in it.
        let is_scheme = !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
        let scheme = if is_scheme { format!("{scheme}://") } else { String::new() };
        // A question mark or a slash may be part of an unescaped password: everything in front of the last @ of the
        // whole text is left out. Behind a question mark an @ may also be a part of the query, and then it stands in front
        // of the rest of a password.
        let hidden = self.url.rsplit_once('@');
        let mask = if hidden.is_some() { "***@" } else { "" };
        let host = match hidden {
            Some((before, _)) if before.contains('?') => "***",
            Some((_, host)) => host,
            None if lacks_host(rest) => "***",
            None => rest,
        };
        format!("{scheme}{mask}{}", host.split('?').next().unwrap_or_default())
    }
}

/// Whether the host is missing in front of a colon, or what is behind it is no port: it may be a password without its host.
fn lacks_host(rest: &str) -> bool {
    let hosts = rest.split(['/', '?', '#']).next().unwrap_or_default();
    hosts.split(',').filter_map(|host| host.rsplit_once(':')).any(|(host, port)| {
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) || port.ends_with(']');
        host.is_empty() || !is_port
    })
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("url", &self.redacted_url())
            .field("credentials", &self.credentials.is_some())
            .field("namespace", &self.namespace)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("pool_size", &self.pool_size)
            .field("max_reader_connections", &self.max_reader_connections)
            .field("on_risk", &self.on_risk)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_printed() {
        let urls = [
            "redis://user:hunter2@host:1/0",
            "redis+cluster://user:hunter2@a,b:1",
            "redis+sentinel://user:hunter2@a,b:1/main",
            "rediss://user:hunter2@host:1/0#insecure",
            "redis://:hunter2@host",
            "redis://:hun?hunter2@host",
            "redis://:a/hunter2@host/0",
            "unix:///run/redis.sock?user=u&pass=hunter2",
            "nonsense://:hunter2@host",
            "user:hunter2@host",
            "user:hunter2@redis://host",
            "redis:hunter2://host",
            "unix:///run/redis.sock?user=u&pass=x@hunter2",
            "redis://host/0?pass=x@hunter2&user=u",
            "redis://ann:hunter2",
            "redis://:hunter2/0",
            "rediss://hunter2:hunter2/0",
            "redis:hunter2",
        ];
        for url in urls {
            let config = RedisConfig::new(url);
            let shown = format!("{config:?} {}", config.redacted_url());
            assert!(!shown.contains("hunter2"), "{url}: {shown}");
            if let Err(error) = config.validate() {
                assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
            }
        }
        assert_eq!(RedisConfig::new("redis://u:p@host:1/2").redacted_url(), "redis://***@host:1/2");
        assert_eq!(RedisConfig::new("redis://host:1/2").redacted_url(), "redis://host:1/2");
        assert_eq!(RedisConfig::new("unix:///run/s?pass=p").redacted_url(), "unix:///run/s");
        assert_eq!(
            RedisConfig::new("redis+cluster://a,[::1],b:1").redacted_url(),
            "redis+cluster://a,[::1],b:1"
        );
        assert_eq!(RedisConfig::new("localhost:6379").redacted_url(), "localhost:6379");
    }

    #[test]
    fn a_user_alone_is_refused_unless_its_password_comes_from_elsewhere() {
        let config = RedisConfig::new("redis://ann@h");
        let error = config.validate().expect_err("no password").to_string();
        assert!(error.contains("names a user and no password"), "{error}");
        assert!(config.with_credentials(crate::Credentials::password("pw")).validate().is_ok());
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let config = RedisConfig::new("http://host")
            .with_connect_timeout(Duration::ZERO)
            .with_response_timeout(Duration::ZERO)
            .with_pool_size(0);
        let error = config.validate().expect_err("four problems");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(error.problems().len(), 4, "{error}");
        let for_ever = RedisConfig::new("redis://host").with_response_timeout(Duration::MAX);
        assert!(for_ever.validate().is_err(), "sums would overflow");
    }
}
