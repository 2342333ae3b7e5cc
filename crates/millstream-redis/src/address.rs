//! Addresses: a server's host and port, and the URL forms that name several of them.

use std::fmt;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// Port of a server whose URL names none, and that of a Sentinel.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Host and port of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl Address {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Parses `host:port`, also with an IPv6 address, in brackets or as servers write it: the last colon counts.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Some(Self::new(host, port.parse().ok()?))
    }

    pub(crate) fn of(addr: &ConnectionAddr) -> Option<Self> {
        match addr {
            ConnectionAddr::Tcp(host, port) => Some(Self::new(host, *port)),
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a URL leads to the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// One server.
    One,
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<Address>),
    /// The primary that Sentinels name for a service.
    Sentinel(Vec<Address>, Arc<str>),
}

/// A URL, without what it says of TLS.
pub(crate) struct Parsed {
    pub(crate) place: Place,
    /// Credentials and database, and the address of the first server.
    pub(crate) info: ConnectionInfo,
}

/// Schemes of URLs with several addresses: the scheme, whether it asks for TLS, and whether the addresses are Sentinels.
const SCHEMES: [(&str, bool, bool); 8] = [
    ("redis+cluster", false, false),
    ("valkey+cluster", false, false),
    ("redis+cluster+tls", true, false),
    ("valkey+cluster+tls", true, false),
    ("redis+sentinel", false, true),
    ("valkey+sentinel", false, true),
    ("redis+sentinel+tls", true, true),
    ("valkey+sentinel+tls", true, true),
];

/// Whether a URL asks for TLS.
pub(crate) fn is_encrypted(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    matches!(scheme, "rediss" | "valkeys") || SCHEMES.iter().any(|(name, tls, _)| *name == scheme && *tls)
}

/// Parses a URL. An error never quotes it, since it may contain a password.
pub(crate) fn parse(url: &str) -> Result<Parsed> {
    let invalid = |why: &str| Error::new(ErrorKind::InvalidConfig, why.to_owned());
    let client = |url: &str| {
        // The client's own text may quote the URL: only its fixed category is shown.
        url.into_connection_info().map_err(|error| invalid(error.category()))
    };
    let encrypted = is_encrypted(url);
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let Some((.., sentinels)) = SCHEMES.iter().find(|(name, ..)| *name == scheme) else {
        // TLS is ours: the client need not know of it.
        let info = if encrypted { client(&format!("redis://{rest}"))? } else { client(url)? };
        return Ok(Parsed { place: Place::One, info });
    };
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let port = if *sentinels { SENTINEL_PORT } else { PORT };
    let mut addresses = Vec::with_capacity(4);
    for host in hosts.split(',') {
        let has_port =
            host.rsplit_once(':').is_some_and(|(before, _)| !before.contains(':') || before.ends_with(']'));
        let text = if has_port { host.to_owned() } else { format!("{host}:{port}") };
        let address = Address::parse(&text).filter(|address| !address.host.is_empty());
        addresses.push(address.ok_or_else(|| invalid("a host or port of the list cannot be used"))?);
    }
    let first = addresses.first().ok_or_else(|| invalid("there is no host"))?;
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let (service, db) = match (*sentinels, path.split_once('/')) {
        (true, Some((service, db))) => (service, db),
        (true, None) => (path, ""),
        (false, _) => ("", path),
    };
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let info = client(&format!("redis://{user}{first}/{db}{query}"))?;
    let place = if *sentinels {
        if service.is_empty() {
            return Err(invalid("the name of the service is missing: redis+sentinel://host,host/service"));
        }
        Place::Sentinel(addresses, service.into())
    } else {
        Place::Cluster(addresses)
    };
    Ok(Parsed { place, info })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_one_server_a_cluster_or_sentinels() {
        let list = |texts: &[&str]| texts.iter().filter_map(|text| Address::parse(text)).collect::<Vec<_>>();
        let cases = [
            ("redis://h:1/2", Place::One, false),
            ("rediss://h", Place::One, true),
            ("redis+cluster://a:1,b,[::1]:3", Place::Cluster(list(&["a:1", "b:6379", "[::1]:3"])), false),
            ("redis+cluster+tls://u:p@a", Place::Cluster(list(&["a:6379"])), true),
            ("redis+cluster://[::1]", Place::Cluster(list(&["[::1]:6379"])), false),
            ("redis+sentinel://a,b:7/main", Place::Sentinel(list(&["a:26379", "b:7"]), "main".into()), false),
            ("valkey+sentinel+tls://a/main/3", Place::Sentinel(list(&["a:26379"]), "main".into()), true),
        ];
        for (url, place, encrypted) in cases {
            let parsed = parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!((parsed.place, is_encrypted(url)), (place, encrypted), "{url}");
        }
        let parsed = parse("redis+sentinel://me:secret@a,b/main/3").expect("a URL");
        let settings = parsed.info.redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("me"), Some("secret"), 3)
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_a_quote() {
        let urls =
            ["redis+cluster://u:hunter2@", "redis+cluster://u:hunter2@a:x", "redis+cluster://u:hunter2@a,,b"];
        for url in urls.into_iter().chain(["redis+sentinel://u:hunter2@a", "redis+sentinel://u:hunter2@a/"]) {
            let error = parse(url).map(drop).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_address_is_read_as_it_is_shown() {
        for text in ["a:1", "[::1]:2", "10.0.0.1:65535"] {
            assert_eq!(Address::parse(text).expect(text).to_string(), text);
        }
        assert_eq!(Address::parse("::1:7001"), Some(Address::new("::1", 7001)), "as servers write it");
        assert_eq!(Address::parse("a"), None);
    }
}
