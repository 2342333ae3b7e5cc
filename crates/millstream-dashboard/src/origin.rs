//! Whether a request comes from a page of the dashboard itself, and whether it comes from this machine.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

/// Headers that a proxy adds, beside all that begin with `x-forwarded-`.
const FORWARDED: [&str; 3] = ["forwarded", "via", "x-real-ip"];

/// Returns whether a request came through a proxy that says so.
fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| FORWARDED.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-"))
}

/// Returns why a page that is read is refused which another site may have made a browser ask for: what it reads is recorded.
pub(crate) fn check_read(parts: &Parts) -> Result<(), &'static str> {
    match text(&parts.headers, "sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err("the request comes from another site"),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Host of the request, with its port.
fn host(parts: &Parts) -> Option<&str> {
    parts
        .uri
        .authority()
        .map(axum::http::uri::Authority::as_str)
        .or_else(|| text(&parts.headers, header::HOST.as_str()))
}

/// Returns why a change is refused that another site may have sent, or that no browser has.
///
/// Browsers send `Sec-Fetch-Site` only to hosts that they consider secure, `Origin` with every form. A client that shows a
/// bearer token is no browser that a foreign site made send it.
pub(crate) fn check(parts: &Parts, allowed: &[String]) -> Result<(), &'static str> {
    let bearer = text(&parts.headers, "authorization")
        .is_some_and(|it| it.to_ascii_lowercase().starts_with("bearer "));
    match text(&parts.headers, "sec-fetch-site") {
        Some("same-origin") => return Ok(()),
        Some(_) => return Err("the request comes from another site"),
        None => {}
    }
    match text(&parts.headers, "origin") {
        Some(origin) if allowed.iter().any(|it| it.eq_ignore_ascii_case(origin)) => Ok(()),
        Some(origin) => {
            let of_origin = origin.split_once("://").map(|(_, host)| host);
            let same = of_origin.zip(host(parts)).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
            if same { Ok(()) } else { Err("the request comes from another site") }
        }
        None if bearer => Ok(()),
        None => Err("the request names no origin"),
    }
}

/// Name of a host without its port.
fn name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Returns whether a host is this machine. A foreign name that resolves to it is none: a page of another site could use it.
fn is_local_name(host: &str) -> bool {
    let name = name(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns why a request is refused while no authentication is configured: only this machine may ask then.
pub(crate) fn check_local(parts: &Parts) -> Result<(), &'static str> {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0.ip());
    match peer {
        Some(peer) if peer.is_loopback() => {}
        Some(_) => return Err("no authentication is configured, so only this machine may connect"),
        None => return Err("no authentication is configured, and the address of the client is unknown"),
    }
    if is_forwarded(&parts.headers) {
        return Err("no authentication is configured, and the request comes through a proxy");
    }
    match host(parts) {
        Some(host) if is_local_name(host) => Ok(()),
        _ => Err("no authentication is configured, and the host is not this machine"),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::post("/x"), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn only_pages_of_this_origin_may_send_changes() {
        let host = ("host", "mq.example:8080");
        let of =
            |headers: &[(&str, &str)]| check(&parts(headers), &["https://ops.example".to_owned()]).is_ok();
        assert!(of(&[host, ("sec-fetch-site", "same-origin")]));
        for site in ["cross-site", "same-site", "none"] {
            assert!(!of(&[host, ("sec-fetch-site", site), ("origin", "http://mq.example:8080")]), "{site}");
        }
        assert!(of(&[host, ("origin", "http://mq.example:8080")]));
        assert!(
            of(&[host, ("origin", "https://ops.example")]),
            "the origin of a proxy that changes the host"
        );
        for origin in
            ["null", "http://evil.example", "http://mq.example", "http://mq.example:8080.evil.example", ""]
        {
            assert!(!of(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(!of(&[host]), "no browser");
        assert!(of(&[host, ("authorization", "Bearer abc")]));
        assert!(!of(&[host, ("authorization", "Basic abc")]), "browsers add it to what other sites send");
        assert!(!of(&[host, ("authorization", "Bearer abc"), ("sec-fetch-site", "cross-site")]));
    }

    #[test]
    fn what_is_recorded_is_not_read_for_another_site() {
        let of = |headers: &[(&str, &str)]| check_read(&parts(headers)).is_ok();
        assert!(of(&[]) && of(&[("sec-fetch-site", "none")]) && of(&[("sec-fetch-site", "same-origin")]));
        assert!(!of(&[("sec-fetch-site", "cross-site")]) && !of(&[("sec-fetch-site", "same-site")]));
    }

    #[test]
    fn without_authentication_only_this_machine_may_ask() {
        let of = |peer: &str, headers: &[(&str, &str)]| {
            let mut parts = parts(headers);
            let peer: SocketAddr = peer.parse().expect("an address");
            parts.extensions.insert(ConnectInfo(peer));
            check_local(&parts).is_ok()
        };
        for host in ["localhost", "localhost:9465", "127.0.0.1:9465", "[::1]:9465", "LOCALHOST:1"] {
            assert!(of("127.0.0.1:5000", &[("host", host)]), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example:9465", "10.0.0.1:9465", "localhost.evil.example", ""]
        {
            assert!(!of("127.0.0.1:5000", &[("host", host)]), "{host}");
        }
        assert!(of("[::1]:5000", &[("host", "localhost")]));
        assert!(!of("10.0.0.2:5000", &[("host", "localhost")]));
        for header in
            ["x-forwarded-for", "X-Forwarded-Proto", "x-forwarded-port", "forwarded", "Via", "x-real-ip"]
        {
            assert!(
                !of("127.0.0.1:5000", &[("host", "localhost"), (header, "1.1 proxy")]),
                "a proxy: {header}"
            );
        }
        assert!(check_local(&parts(&[("host", "localhost")])).is_err(), "an unknown peer");
    }
}
