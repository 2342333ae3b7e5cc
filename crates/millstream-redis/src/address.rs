//! Addresses: a server's host and port, and the URL forms that name several of them.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

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

/// What the forms of a URL are, as an error says it.
const FORMS: &str = "the forms are redis://[user:password@]host[:port][/database], redis+cluster://host[,host…], \
                     redis+sentinel://host[,host…]/service[/database] and unix:///path; over TLS rediss://, \
                     redis+cluster+tls:// and redis+sentinel+tls://";
const ENCODE: &str = "a character of the user or password ends that part of a URL: percent-encode it, / as %2F, ? as %3F, \
                      # as %23, @ as %40, % as %25";

/// What the scheme of a URL names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    Socket,
    Cluster,
    Sentinel,
}

/// Returns what the scheme names, and whether it asks for TLS.
fn form(url: &str) -> Option<(Form, bool)> {
    let scheme = url.trim_start().split_once("://")?.0.to_ascii_lowercase();
    let kind = scheme.strip_prefix("redis").or_else(|| scheme.strip_prefix("valkey"));
    Some(match kind.unwrap_or(&scheme) {
        "" => (Form::One, false),
        "s" if kind.is_some() => (Form::One, true),
        "+unix" => (Form::Socket, false),
        "unix" if kind.is_none() => (Form::Socket, false),
        "+cluster" => (Form::Cluster, false),
        "+cluster+tls" => (Form::Cluster, true),
        "+sentinel" => (Form::Sentinel, false),
        "+sentinel+tls" => (Form::Sentinel, true),
        _ => return None,
    })
}

/// Whether a URL asks for TLS.
pub(crate) fn is_encrypted(url: &str) -> bool {
    form(url).is_some_and(|(_, encrypted)| encrypted)
}

/// Parses a URL: each part of it is used, or refused. An error names the part and the cure, and quotes nothing that may be
/// a piece of a password.
pub(crate) fn parse(url: &str) -> Result<Parsed> {
    parts(url.trim()).map_err(|why| Error::new(ErrorKind::InvalidConfig, why))
}

type Part<T> = std::result::Result<T, String>;

fn parts(url: &str) -> Part<Parsed> {
    if url.starts_with(['"', '\'']) || url.ends_with(['"', '\'']) {
        return Err("the quotes are a part of it, as `docker --env-file` keeps them: leave them out".into());
    }
    let Some((_, rest)) = url.split_once("://") else { return Err(format!("it has no scheme: {FORMS}")) };
    let Some((form, _)) = form(url) else { return Err(format!("the scheme is not known: {FORMS}")) };
    if rest.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return Err("it has a space or a line break inside: in a password, a space is %20".into());
    }
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if form != Form::Socket && behind.contains('@') {
        return Err(ENCODE.into());
    }
    match behind.split_once('#') {
        Some((_, "insecure")) => {
            return Err("it ends with #insecure: certificates are always checked, name a CA instead".into());
        }
        Some(_) => return Err("what is behind # is not used: in a user, password or path, # is %23".into()),
        None => {}
    }
    let (path, query) = behind.split_once('?').unwrap_or((behind, ""));
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = match user.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user, None),
    };
    let mut user = Some(decode(user)?).filter(|user| !user.is_empty());
    let mut password = password.map(decode).transpose()?;
    if user.is_none() {
        // As a template writes it whose variables are empty.
        password = password.filter(|password| !password.is_empty());
    }
    let socket = form == Form::Socket;
    let mut db = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(&value.replace('+', " "))?;
        let twice = match name {
            "db" => db.replace(value).is_some(),
            "user" if socket => user.replace(value).is_some(),
            "pass" if socket => password.replace(value).is_some(),
            _ => return Err(unknown(name, query, socket)),
        };
        if twice {
            return Err(format!("{name} is given twice"));
        }
    }
    let (place, addr, in_path) = if socket {
        if !hosts.is_empty() || path.len() < 2 {
            return Err("the path of a socket is absolute, behind three slashes: unix:///path".into());
        }
        (Place::One, ConnectionAddr::Unix(decode(path)?.into()), "")
    } else {
        let (place, first, in_path) = servers(form, hosts, path.trim_matches('/'))?;
        (place, ConnectionAddr::Tcp(first.host.to_string(), first.port), in_path)
    };
    if !in_path.is_empty() && db.replace(in_path.to_owned()).is_some() {
        return Err("the database is given twice, behind a / and as db".into());
    }
    let mut settings = RedisConnectionInfo::default();
    if let Some(db) = db {
        settings = settings.set_db(database(&db)?);
    }
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    let info = addr.into_connection_info().map_err(|error| error.category().to_owned())?;
    Ok(Parsed { place, info: info.set_redis_settings(settings) })
}

/// Returns the servers, the first address, and the part of the path that is a database.
fn servers<'a>(form: Form, hosts: &str, path: &'a str) -> Part<(Place, Address, &'a str)> {
    let mut addresses = Vec::with_capacity(4);
    for text in hosts.split(',') {
        addresses.push(server(text, if form == Form::Sentinel { SENTINEL_PORT } else { PORT })?);
    }
    let first = addresses[0].clone();
    Ok(match form {
        Form::Sentinel => {
            let (service, db) = path.split_once('/').unwrap_or((path, ""));
            if service.is_empty() {
                let why = "the name of the service is missing: redis+sentinel://host[,host…]/service";
                return Err(why.into());
            }
            (Place::Sentinel(addresses, decode(service)?.into()), first, db)
        }
        Form::Cluster => (Place::Cluster(addresses), first, path),
        _ if addresses.len() > 1 => {
            let why =
                "several hosts are for redis+cluster:// (its nodes) and redis+sentinel:// (its Sentinels)";
            return Err(why.into());
        }
        _ => (Place::One, first, path),
    })
}

/// Parses the host and port of a server. Neither is quoted: where `host` is missing in `user:password@host`, they are not
/// what they seem to be.
fn server(text: &str, port: u16) -> Part<Address> {
    let brackets = "an IPv6 address stands in brackets: redis://[::1]:6379";
    let (host, end) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, end) = text.split_once(']').ok_or(brackets)?;
            let host: Ipv6Addr = host.parse().map_err(|_| brackets)?;
            (host.to_string(), end)
        }
        None => {
            let (host, end) = text.split_at(text.find(':').unwrap_or(text.len()));
            (host.to_owned(), end)
        }
    };
    if host.is_empty() {
        return Err("the host is missing: redis://[user:password@]host[:port]".into());
    }
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte)) {
        return Err("the host has a character that no name of a host has".into());
    }
    if host == "::" || host == "0.0.0.0" {
        return Err("a server listens at the host, but none is reached there: name its address".into());
    }
    let port = match end.strip_prefix(':') {
        None if end.is_empty() => port,
        Some(more) if more.contains(':') => return Err(brackets.into()),
        digits => number(digits.unwrap_or_default()).filter(|port| *port > 0).ok_or(
            "what is behind the host is no port, a number from 1 to 65535; a password stands before the host: \
             redis://user:password@host:port",
        )?,
    };
    Ok(Address::new(&host, port))
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    // Not with a sign.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn database(text: &str) -> Part<i64> {
    number::<u32>(text).map(i64::from).ok_or_else(|| {
        "the database, behind the / or as db, is not a number, as in redis://host:6379/0".into()
    })
}

/// Returns the error for a part of a query that is not used. Its name is quoted unless it may be a piece of a password.
fn unknown(name: &str, query: &str, socket: bool) -> String {
    let used = if socket { "db, user and pass are" } else { "db alone is" };
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    let name =
        if is_name && !query.contains("pass") { format!("{name} ") } else { "a part behind ? ".into() };
    let cure = "the program sets timeouts and all else; in a password, & is %26 and ? is %3F";
    format!("{name}is not used in a URL, {used}: {cure}")
}

/// Decodes the percent-encoding of a part.
fn decode(text: &str) -> Part<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, mut tail)) = rest.split_first() {
        let mut byte = first;
        if first == b'%' {
            let digit = |at: usize| char::from(*tail.get(at)?).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                return Err("a % stands without two hexadecimal digits: percent-encode it, % as %25".into());
            };
            // At most 255.
            (byte, tail) = ((high * 16 + low) as u8, &tail[2..]);
        }
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| "a part with % is not UTF-8 when it is decoded".into())
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

    /// User, password and database of a URL.
    fn login(url: &str) -> (Option<String>, Option<String>, i64) {
        let parsed = parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let settings = parsed.info.redis_settings();
        let text = |text: Option<&str>| text.map(str::to_owned);
        (text(settings.username()), text(settings.password()), settings.db())
    }

    #[test]
    fn each_part_is_used() {
        let cases: [(&str, Option<&str>, Option<&str>, i64); 17] = [
            ("redis://h", None, None, 0),
            (" redis://h/5/\n", None, None, 5),
            ("REDIS://h?db=5", None, None, 5),
            ("redis+cluster://a,b?db=5", None, None, 5),
            ("redis+sentinel://a/main?db=5", None, None, 5),
            ("redis://ann:@h", Some("ann"), Some(""), 0),
            ("redis://:@h", None, None, 0),
            ("redis://ann@h", Some("ann"), None, 0),
            ("redis://:p@ss@h", None, Some("p@ss"), 0),
            ("redis://a%40b:p%40ss%2Fw%23rd%251%3f@h/1", Some("a@b"), Some("p@ss/w#rd%1?"), 1),
            ("redis+cluster://:p%2Fw@a,b", None, Some("p/w"), 0),
            ("redis+sentinel://:p%2Fw@a,b/main/2", None, Some("p/w"), 2),
            ("unix:///run/s?db=3&user=ann&pass=p%26w+x", Some("ann"), Some("p&w x"), 3),
            ("redis+unix:///run/s?pass=x@y&db=0", None, Some("x@y"), 0),
            ("unix://ann:pw@/run/s", Some("ann"), Some("pw"), 0),
            ("valkeys://:pw@[::1]:7/2", None, Some("pw"), 2),
            ("redis://:%C3%A9@h", None, Some("é"), 0),
        ];
        for (url, user, password, db) in cases {
            let expected = (user.map(str::to_owned), password.map(str::to_owned), db);
            assert_eq!(login(url), expected, "{url}");
        }
        let socket = parse("unix:///run/a%20b").expect("a URL");
        assert_eq!(socket.info.addr(), &ConnectionAddr::Unix("/run/a b".into()));
        let service = parse("redis+sentinel://a/my%2Fmain").expect("a URL");
        assert!(matches!(service.place, Place::Sentinel(_, service) if &*service == "my/main"));
    }

    #[test]
    fn what_a_url_cannot_be_is_told_with_its_part_and_the_cure_and_without_a_password() {
        let cases = [
            ("", "has no scheme"),
            ("hunter2@h:6379", "has no scheme: the forms are redis://"),
            ("unix:/run/hunter2", "has no scheme"),
            ("http://u:hunter2@h", "scheme is not known: the forms are"),
            ("redis-sentinel://u:hunter2@h", "redis+sentinel://host"),
            ("rediss+cluster://h", "redis+cluster+tls://"),
            ("redisunix:///run/s", "unix:///path"),
            ("\"redis://:hunter2@h\"", "quotes are a part of it"),
            ("'redis://:hunter2@h'", "quotes are a part of it"),
            ("redis://:hunter2@h\"", "quotes are a part of it"),
            ("redis://:p@ss/w#rd%1hunter2@h:6379/0", "percent-encode it, / as %2F"),
            ("redis://:hun/ter2@h", "/ as %2F"),
            ("redis://:hun?ter2@h", "? as %3F"),
            ("redis://:hun#ter2@h", "# as %23"),
            ("redis+cluster://:hun/hunter2@a,b", "/ as %2F"),
            ("redis+sentinel://:hun?hunter2@a/main", "? as %3F"),
            ("redis://:hunter2%1@h", "% as %25"),
            ("redis://hunter2%zz:x@h", "% as %25"),
            ("redis://:hunter2%ff@h", "not UTF-8"),
            ("redis://:hun ter2@h", "a space is %20"),
            ("redis://:hun\nter2@h", "line break"),
            ("redis://:hunter2@h/abc", "is not a number"),
            ("redis://:hunter2@h/-1", "is not a number"),
            ("redis://:hunter2@h/0/1", "is not a number"),
            ("redis://h?db=five", "is not a number"),
            ("redis://h?db=", "is not a number"),
            ("redis://h/1?db=1", "given twice"),
            ("redis://h?db=1&db=2", "db is given twice"),
            ("unix://ann:hunter2@/run/s?pass=x", "pass is given twice"),
            ("redis://:hunter2@h:65536", "no port, a number from 1 to 65535"),
            ("redis://:hunter2@h:0", "from 1 to 65535"),
            ("redis://:hunter2@h:", "from 1 to 65535"),
            ("redis://:hunter2@h:+1", "from 1 to 65535"),
            ("redis://ann:hunter2", "password stands before the host"),
            ("redis://:hunter2", "the host is missing"),
            ("redis://", "the host is missing"),
            ("redis:///0", "the host is missing"),
            ("redis+cluster://u:hunter2@", "the host is missing"),
            ("redis+cluster://u:hunter2@a,,b", "the host is missing"),
            ("redis+cluster://u:hunter2@a:x", "from 1 to 65535"),
            ("redis+cluster://u:hunter2@a,b:65536", "from 1 to 65535"),
            ("redis://:hunter2@::1", "the host is missing"),
            ("redis://fe80::1", "stands in brackets"),
            ("redis://[::1", "stands in brackets"),
            ("redis://[hunter2]", "stands in brackets"),
            ("redis://:hunter2@0.0.0.0", "name its address"),
            ("redis+cluster://a,[::]:1", "name its address"),
            ("redis://:hunter2@<host>", "has a character"),
            ("redis://a%20b", "has a character"),
            ("redis://:hunter2@a,b", "are for redis+cluster://"),
            ("redis+sentinel://u:hunter2@a", "name of the service is missing"),
            ("redis+sentinel://u:hunter2@a/", "name of the service is missing"),
            ("redis+sentinel://a/main/x", "is not a number"),
            ("rediss://:hunter2@h/0#insecure", "certificates are always checked"),
            ("redis://h#0", "behind # is not used"),
            ("redis://h?timeout=5s", "timeout is not used in a URL, db alone is"),
            ("redis://h?protocol=resp3", "protocol is not used"),
            ("redis://h?socket_timeout=1&db=2", "socket_timeout is not used"),
            ("redis://h?user=ann&pass=hunter2", "a part behind ? is not used"),
            ("redis://h?password=x&hunter2", "a part behind ? is not used"),
            ("unix:///run/s?timeout=1", "timeout is not used in a URL, db, user and pass are"),
            ("unix:///run/s?pass=x&hunter2", "in a password, & is %26"),
            ("unix://run/s", "behind three slashes"),
            ("unix://", "behind three slashes"),
            ("unix:///run/s#hunter2", "# is %23"),
        ];
        for (url, says) in cases {
            let error = parse(url).map(drop).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let text = error.to_string();
            assert!(text.contains(says) && !text.contains("hunter2"), "{url}: {text}");
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
