//! Translates errors of the client into errors of Millstream. No other module does so.

use std::fmt;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind};
use millstream_core::leases::Lease;
use millstream_core::wire;
use redis::{RedisError, ServerError};

use crate::address::Address;

/// Progress of a request when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The connection was being opened: no request was sent, so nothing was done.
    Connecting,
    /// The request may have reached the server.
    Sent,
}

/// A node's answer that another one serves the slot: for good, or with `ask` for a key that has moved already. It is the
/// source of errors, by which the connections find out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) to: Address,
    pub(crate) ask: bool,
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} is at {}", self.slot, self.to)
    }
}

impl std::error::Error for Redirect {}

/// Returns the redirection that an error answer is. A node that does not know the address of another one leaves out the
/// host: it is that of the node that was `asked`.
pub(crate) fn redirection(error: &ServerError, asked: Option<&Address>) -> Option<Redirect> {
    parse_redirect(error.code(), error.details()?, asked)
}

fn parse_redirect(code: &str, detail: &str, asked: Option<&Address>) -> Option<Redirect> {
    let ask = match code {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    let mut words = detail.split_ascii_whitespace();
    let (slot, to) = (words.next()?.parse().ok()?, Address::parse(words.next()?)?);
    let to = match (&*to.host, asked) {
        ("" | "?", Some(asked)) => Address { port: to.port, ..asked.clone() },
        ("" | "?", None) => return None,
        _ => to,
    };
    Some(Redirect { slot, to, ask })
}

/// Returns the redirection that is the source of an error.
pub(crate) fn redirect(error: &Error) -> Option<&Redirect> {
    std::error::Error::source(error)?.downcast_ref::<Redirect>()
}

/// Returns the error with its meaning for a caller.
pub(crate) fn translate(error: &RedisError, phase: Phase) -> Error {
    #[cfg(feature = "tls")]
    if phase == Phase::Connecting
        && let Some(refused) = tls_refusal(error)
    {
        return refused;
    }
    let kind = classify(error, phase);
    let what = match kind {
        ErrorKind::Fenced => "the lease is lost",
        ErrorKind::NotMember => "it is not in the group",
        ErrorKind::GroupMissing => "the consumer group does not exist",
        ErrorKind::NotFound => "it does not exist",
        ErrorKind::Deleted => "it was deleted",
        ErrorKind::WrongType => "a key has the wrong type",
        ErrorKind::Backpressure => "the server is out of memory",
        ErrorKind::Unavailable if matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN")) => {
            let moved =
                error.code().zip(error.detail()).and_then(|(code, text)| parse_redirect(code, text, None));
            let error = Error::new(kind, format!("the slot is served by another node, or moves: {error}"));
            return match moved {
                Some(moved) => error.with_source(moved),
                None => error,
            };
        }
        ErrorKind::Unavailable if error.detail().is_some_and(|text| text.contains(MAX_CLIENTS)) => {
            "the server takes no more connections"
        }
        ErrorKind::Unavailable if phase == Phase::Connecting && error.code().is_none() => {
            "the server cannot be reached"
        }
        ErrorKind::Unavailable => "the server cannot serve now",
        ErrorKind::Unconfirmed => "no answer came, the request may or may not have been done",
        // The server's own text is about the refused command, not about the password.
        ErrorKind::Denied if error.code() == Some("NOAUTH") => {
            return Error::new(kind, "the server asks for a password, and none was given");
        }
        ErrorKind::Denied if error.code() == Some("NOPERM") => "this user lacks a permission",
        ErrorKind::Denied if error.code() == Some("DENIED") => "the server refuses this connection",
        ErrorKind::Denied => "the server refuses these credentials",
        ErrorKind::Unsupported => "the server lacks a required feature",
        ErrorKind::InvalidConfig => "the connection settings cannot be used",
        _ => "unexpected answer of the server",
    };
    // The text may be the server's, of any length.
    Error::new(kind, format!("{what}: {}", wire::cut(&error.to_string())))
}

/// Returns what is wrong with a TLS session and what to do, if that is why a connection failed.
#[cfg(feature = "tls")]
fn tls_refusal(error: &RedisError) -> Option<Error> {
    use std::{error::Error as _, io, sync::Arc};

    use tokio_rustls::rustls::{self, AlertDescription as Alert};

    let cause = error.source()?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    let cause = cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    let (kind, what, cure) = match cause {
        rustls::Error::InvalidCertificate(wrong) => {
            (ErrorKind::Denied, "the server's certificate is not trusted", certificate_cure(wrong))
        }
        // Others may pass: a proxy sends some of them while what is behind it is away.
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::CertificateRequired => (ErrorKind::Denied, REFUSES_TLS, CLIENT_CERTIFICATE),
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::AccessDenied => (
                ErrorKind::Denied,
                REFUSES_TLS,
                "it does not trust the client certificate: its CA, dates and use must suit the server",
            ),
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => (
                ErrorKind::Denied,
                REFUSES_TLS,
                "it asks for a client certificate, or has neither TLS 1.2 nor 1.3 with a cipher of ours",
            ),
            _ => (ErrorKind::Unavailable, "the TLS session failed", ""),
        },
        rustls::Error::InvalidMessage(_) => {
            (ErrorKind::Unavailable, "the server does not speak TLS at this port", "")
        }
        _ => (ErrorKind::Unavailable, "the TLS session failed", ""),
    };
    let cure = if cure.is_empty() { String::new() } else { format!("{cure}: ") };
    Some(Error::new(kind, format!("{what}: {cure}{cause}")))
}

/// How the verifier calls the certificate of a CA that a server shows as its own.
#[cfg(feature = "tls")]
pub(crate) const CA_AS_SERVER: &str = "CaUsedAsEndEntity";
#[cfg(feature = "tls")]
const REFUSES_TLS: &str = "the server refuses the TLS session";
#[cfg(feature = "tls")]
const CLIENT_CERTIFICATE: &str =
    "it asks for a client certificate, which TlsConfig::with_client or --tls-cert and --tls-key name";

/// Returns what is wrong with a certificate, and what to do.
#[cfg(feature = "tls")]
fn certificate_cure(wrong: &tokio_rustls::rustls::CertificateError) -> &'static str {
    use tokio_rustls::rustls::CertificateError as Wrong;

    match wrong {
        Wrong::Expired | Wrong::ExpiredContext { .. } => {
            "it has expired: renew it, or set the clock of this machine"
        }
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => {
            "it is not valid yet: set the clocks of this machine and of its authority"
        }
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
            "it has another name (subjectAltName; a common name does not count): use one of its names in the URL, or expect \
             one by TlsConfig::with_server_name or --tls-server-name"
        }
        Wrong::UnknownIssuer | Wrong::BadSignature => {
            "no trusted authority has signed it: name the certificate of its CA by TlsConfig::with_ca or --tls-ca"
        }
        Wrong::InvalidPurpose | Wrong::InvalidPurposeContext { .. } => {
            "it is not made for servers (extendedKeyUsage serverAuth)"
        }
        Wrong::Other(cause) if cause.to_string().contains(CA_AS_SERVER) => {
            "it is that of a CA: have the CA sign one for the server, or name exactly this one by TlsConfig::with_ca or \
             --tls-ca"
        }
        Wrong::Other(cause) if cause.to_string().contains("UnsupportedCertVersion") => {
            "it is of version 1, without names: make one of version 3 with a subjectAltName"
        }
        _ => "",
    }
}

/// Returns the error for an answer that did not come in time.
pub(crate) fn no_answer(limit: Duration) -> Error {
    let what = "the request may or may not have been done";
    Error::new(ErrorKind::Unconfirmed, format!("no answer came within {limit:?}, {what}"))
}

/// Returns the error of a request whose task ended abnormally.
pub(crate) fn never_sent() -> Error {
    Error::new(
        ErrorKind::Unconfirmed,
        "the task that sends ended abnormally, the request may or may not have been done",
    )
}

/// Returns the error of a request that changes nothing, such as a read or a question to a Sentinel. If its answer is missing, it is
/// not in doubt whether something was done: the caller can send again.
pub(crate) fn unchanged(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unconfirmed => Error::new(ErrorKind::Unavailable, format!("no answer: {error}")),
        _ => error,
    }
}

/// Translates an error that the server returned.
pub(crate) fn answered(error: ServerError) -> Error {
    translate(&RedisError::from(error), Phase::Sent)
}

/// Returns the error for an answer that the protocol does not allow. What it quotes of the answer is cut to 1,024 bytes.
pub(crate) fn unexpected(what: impl fmt::Display) -> Error {
    let what = what.to_string();
    Error::new(ErrorKind::Protocol, format!("unexpected answer of the server: {}", wire::cut(&what)))
}

/// Words of the error of a server that has as many connections as it takes, among those of other causes under `ERR`.
const MAX_CLIENTS: &str = "max number of clients";

fn classify(error: &RedisError, phase: Phase) -> ErrorKind {
    if let Some(code) = error.code() {
        return by_code(code, error.detail().unwrap_or_default());
    }
    match error.kind() {
        redis::ErrorKind::Io if phase == Phase::Connecting || error.is_connection_refusal() => {
            ErrorKind::Unavailable
        }
        redis::ErrorKind::Io => ErrorKind::Unconfirmed,
        redis::ErrorKind::AuthenticationFailed => ErrorKind::Denied,
        redis::ErrorKind::InvalidClientConfig => ErrorKind::InvalidConfig,
        redis::ErrorKind::RESP3NotSupported => ErrorKind::Unsupported,
        _ => ErrorKind::Protocol,
    }
}

fn known(code: &str) -> Option<ErrorKind> {
    Some(match code {
        "FENCED" => ErrorKind::Fenced,
        "NOMEMBER" => ErrorKind::NotMember,
        "NOGROUP" => ErrorKind::GroupMissing,
        "NOTOPIC" | "NOQUEUE" => ErrorKind::NotFound,
        "DELETED" => ErrorKind::Deleted,
        "WRONGTYPE" => ErrorKind::WrongType,
        "OOM" => ErrorKind::Backpressure,
        // Refused before anything was done, and temporary: a fail-over, a start, a full disk, a script of somebody
        // else, a slot that moves. A NOSCRIPT gets here only if somebody flushes scripts all the time.
        "MOVED" | "ASK" | "LOADING" | "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "BUSY"
        | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" | "NOSCRIPT" => ErrorKind::Unavailable,
        // A server in protected mode says DENIED.
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => ErrorKind::Denied,
        "NOPROTO" => ErrorKind::Unsupported,
        _ => return None,
    })
}

fn by_code(code: &str, detail: &str) -> ErrorKind {
    if let Some(kind) = known(code) {
        return kind;
    }
    // The cause is inside another error: of a script on a server before 7.0 ("ERR Error running script …: -OOM …"), or
    // of a transaction ("EXECABORT Transaction discarded because of: NOPERM …").
    if code == "EXECABORT" || detail.contains("rror running script") {
        let mut words = detail.split_whitespace().map(|word| word.trim_start_matches('-'));
        if let Some(kind) = words.find_map(known) {
            return kind;
        }
    }
    let says = |text: &str| detail.contains(text);
    if says("unknown command") || says("nknown subcommand") || says("unknown redis command") {
        ErrorKind::Unsupported
    } else if says(MAX_CLIENTS) {
        ErrorKind::Unavailable
    } else if says("can't run this command") || says("can't access at least one of the keys") {
        ErrorKind::Denied
    } else {
        ErrorKind::Protocol
    }
}

/// Replaces an error of the kind [`ErrorKind::Fenced`] by the lease's own error; returns any other unchanged.
pub(crate) fn fenced(error: Error, lease: &Lease) -> Error {
    match lease.partition() {
        _ if error.kind() == ErrorKind::Fenced => lease.fenced(),
        Ok((topic_partition, _)) => error.at(topic_partition),
        Err(_) => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_answer_is_quoted_up_to_a_length() {
        let error = unexpected(format_args!("{:?} instead of a score", "é".repeat(10_000))).to_string();
        assert!(error.contains("éé") && error.len() < 1_100, "{} bytes", error.len());
    }

    /// Parses an error line as the client does.
    fn wire(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply");
        match value {
            redis::Value::ServerError(error) => error.into(),
            other => panic!("{other:?} is no error"),
        }
    }

    #[test]
    fn what_servers_of_several_versions_answer() {
        let cases = [
            ("FENCED lease is lost", ErrorKind::Fenced),
            (
                "NOGROUP No such key 'k' or consumer group 'g' in XREADGROUP with GROUP option",
                ErrorKind::GroupMissing,
            ),
            ("NOTOPIC the topic is not there", ErrorKind::NotFound),
            ("NOQUEUE the queue is not there", ErrorKind::NotFound),
            ("DELETED the group was deleted", ErrorKind::Deleted),
            ("NOGROUP No such consumer group 'g' for key name 'k'", ErrorKind::GroupMissing),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", ErrorKind::WrongType),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value script: ab, on @user_script:9.",
                ErrorKind::WrongType,
            ),
            (
                "ERR Error running script (call to f_ab): @user_script:9: WRONGTYPE Operation against a key",
                ErrorKind::WrongType,
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Backpressure),
            (
                "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
                ErrorKind::Backpressure,
            ),
            (
                "ERR Error running script (call to f_ab): @user_script:3: @user_script: 3: -OOM command not allowed",
                ErrorKind::Backpressure,
            ),
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable),
            ("LOADING Valkey is loading the dataset in memory", ErrorKind::Unavailable),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
            ("CLUSTERDOWN Hash slot not served", ErrorKind::Unavailable),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                ErrorKind::Unavailable,
            ),
            ("TRYAGAIN Multiple keys request during rehashing of slot", ErrorKind::Unavailable),
            (
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                ErrorKind::Unavailable,
            ),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable),
            ("UNBLOCKED the stream key no longer exists", ErrorKind::Unavailable),
            ("NOSCRIPT No matching script. Please use EVAL.", ErrorKind::Unavailable),
            ("ERR max number of clients reached", ErrorKind::Unavailable),
            ("ERR max number of clients + cluster connections reached", ErrorKind::Unavailable),
            (
                "DENIED Redis is running in protected mode because protected mode is enabled",
                ErrorKind::Denied,
            ),
            ("NOAUTH Authentication required.", ErrorKind::Denied),
            ("WRONGPASS invalid username-password pair or user is disabled.", ErrorKind::Denied),
            ("NOPERM this user has no permissions to run the 'xadd' command", ErrorKind::Denied),
            ("NOPERM No permissions to access a key", ErrorKind::Denied),
            (
                "ERR The user executing the script can't run this command or subcommand script: ab",
                ErrorKind::Denied,
            ),
            ("EXECABORT Transaction discarded because of: NOPERM no permissions", ErrorKind::Denied),
            ("EXECABORT Transaction discarded because of previous errors.", ErrorKind::Protocol),
            ("ERR unknown command 'XADD', with args beginning with: 'k'", ErrorKind::Unsupported),
            ("ERR unknown command `XADD`, with args beginning with: `k`,", ErrorKind::Unsupported),
            ("ERR Unknown subcommand or wrong number of arguments for 'x'", ErrorKind::Unsupported),
            ("NOPROTO unsupported protocol version", ErrorKind::Unsupported),
            ("MOVED 1 127.0.0.1:7001", ErrorKind::Unavailable),
            ("ASK 1 127.0.0.1:7001", ErrorKind::Unavailable),
            ("CROSSSLOT Keys in request don't hash to the same slot", ErrorKind::Protocol),
            (
                "ERR The ID specified in XADD is equal or smaller than the target stream top item",
                ErrorKind::Protocol,
            ),
            ("ERR too many results to unpack script: ab, on @user_script:9.", ErrorKind::Protocol),
        ];
        for (line, kind) in cases {
            assert_eq!(translate(&wire(line), Phase::Sent).kind(), kind, "{line}");
        }
    }

    #[test]
    fn a_cut_before_sending_is_not_a_cut_after() {
        let cut = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset] {
            assert_eq!(translate(&cut(kind), Phase::Sent).kind(), ErrorKind::Unconfirmed, "{kind}");
            assert_eq!(translate(&cut(kind), Phase::Connecting).kind(), ErrorKind::Unavailable, "{kind}");
        }
        let refused = translate(&cut(io::ErrorKind::ConnectionRefused), Phase::Sent);
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.is_transient());
    }
}
