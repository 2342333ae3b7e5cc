//! Who the user of a request is.

use std::fmt;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millstream::{Error, ErrorKind, Result};

use crate::access::{Access, Permission};
use crate::log_ins::LogIns;
use crate::origin;

/// Shortest password, in bytes.
const SHORTEST: usize = 12;

/// Users with passwords, who log in by the dialogue of their browser (HTTP Basic).
///
/// The passwords cross the network with every request: put TLS in front of it, or use it on this machine only.
#[derive(Clone)]
pub struct Users(Vec<User>);

#[derive(Clone)]
struct User {
    password: String,
    access: Access,
}

impl Users {
    /// Reads a list of users: a line for each, with a name, a right (`read`, `operate`, `admin` or `none`), a password of 12 or
    /// more characters, and rights to single topics. Empty lines and lines that start with `#` are skipped.
    ///
    /// ```
    /// # use millstream_dashboard::Users;
    /// let users = Users::parse("ann admin long-password-of-ann\nbob none another-password orders=operate")?;
    /// # let _ = users;
    /// # Ok::<(), millstream::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the line, and shows no password.
    pub fn parse(text: &str) -> Result<Self> {
        let mut users: Vec<User> = Vec::new();
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let bad = |why: &str| {
                Error::new(ErrorKind::InvalidConfig, format!("line {number} of the users: {why}"))
            };
            let mut words = line.split_whitespace();
            let (Some(name), Some(right), Some(password)) = (words.next(), words.next(), words.next()) else {
                return Err(bad("it needs a name, a right and a password"));
            };
            if name.contains(':') {
                return Err(bad("a name cannot contain a colon"));
            }
            if users.iter().any(|user| user.access.user() == name) {
                return Err(bad("the name stands there twice"));
            }
            if password.len() < SHORTEST {
                return Err(bad("the password is shorter than 12 bytes"));
            }
            let mut access =
                match permission(right).ok_or_else(|| bad("the right is read, operate, admin or none"))? {
                    Some(permission) => Access::with(name, permission),
                    None => Access::none(name),
                };
            for word in words {
                let (topic, right) =
                    word.split_once('=').ok_or_else(|| bad("a topic's right is TOPIC=RIGHT"))?;
                let right = permission(right)
                    .ok_or_else(|| bad("a topic's right is read, operate, admin or none"))?;
                access =
                    access.topic(topic.parse().map_err(|_| bad("the name of a topic is not valid"))?, right);
            }
            users.push(User { password: password.to_owned(), access });
        }
        if users.is_empty() {
            return Err(Error::new(ErrorKind::InvalidConfig, "the list of users is empty"));
        }
        Ok(Self(users))
    }

    fn find(&self, name: &str, password: &str) -> Option<Access> {
        // All users are compared, so the time does not show which names exist.
        let mut found = None;
        for user in &self.0 {
            let same = is_same(&user.password, password);
            if same && user.access.user() == name {
                found = Some(&user.access);
            }
        }
        found.cloned()
    }
}

/// Returns the name and the password of a request.
fn credentials(parts: &Parts) -> Option<(String, String)> {
    let header = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = header.split_once(' ')?;
    let decoded = STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let (name, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn permission(word: &str) -> Option<Option<Permission>> {
    match word {
        "none" => Some(None),
        "read" => Some(Some(Permission::Read)),
        "operate" => Some(Some(Permission::Operate)),
        "admin" => Some(Some(Permission::Admin)),
        _ => None,
    }
}

/// Compares two secrets in a time that depends on their lengths alone.
fn is_same(secret: &str, given: &str) -> bool {
    let differing = secret.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    secret.len() == given.len() && differing == 0
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|user| &user.access)).finish()
    }
}

/// Where the rights of a request come from.
#[derive(Clone)]
pub(crate) enum Auth {
    /// No authentication: only this machine may connect, with this right.
    Local(Permission),
    /// The host's function.
    Host(Arc<dyn Fn(&Parts) -> Access + Send + Sync>),
    /// A list of users.
    Users(Users),
}

/// Why a request has no user.
pub(crate) struct Denied {
    pub(crate) why: &'static str,
    /// Answer that asks the browser for a log-in.
    pub(crate) response: Option<Box<Response>>,
}

/// Asks the browser for a log-in.
fn log_in() -> Denied {
    let challenge = HeaderValue::from_static("Basic realm=\"millstream\", charset=\"UTF-8\"");
    let response = (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], "log in\n");
    Denied { why: "log in", response: Some(Box::new(response.into_response())) }
}

fn too_many() -> Denied {
    let (why, after) =
        ("too many log-ins of this user have failed from this address: wait", HeaderValue::from_static("5"));
    let response = (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, after)], format!("{why}\n"));
    Denied { why, response: Some(Box::new(response.into_response())) }
}

impl Auth {
    /// Returns the rights of the user of a request.
    pub(crate) fn access(&self, parts: &Parts, log_ins: &LogIns) -> Result<Access, Denied> {
        match self {
            Self::Local(permission) => match origin::check_local(parts) {
                Ok(()) => Ok(Access::with("local", *permission)),
                Err(why) => Err(Denied { why, response: None }),
            },
            Self::Host(access) => Ok(access(parts)),
            Self::Users(users) => {
                if let Some((name, password)) = credentials(parts) {
                    if !log_ins.may_try(parts, &name) {
                        return Err(too_many());
                    }
                    if let Some(access) = users.find(&name, &password) {
                        return Ok(access);
                    }
                    log_ins.failed(parts, &name);
                }
                Err(log_in())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn asked(credentials: &str) -> Parts {
        let header = format!("Basic {}", STANDARD.encode(credentials));
        Request::get("/").header("authorization", header).body(()).expect("a request").into_parts().0
    }

    #[test]
    fn users_have_the_rights_of_their_line() {
        let text = "# people\nann admin aaaaaaaaaaaa\n\nbob none bbbbbbbbbbbb orders=operate mails=read\n";
        let (auth, none) = (Auth::Users(Users::parse(text).expect("users")), LogIns::default());
        let ann = auth.access(&asked("ann:aaaaaaaaaaaa"), &none).ok().expect("ann");
        assert_eq!(ann, Access::admin("ann"));
        let bob = auth.access(&asked("bob:bbbbbbbbbbbb"), &none).ok().expect("bob");
        let orders = "orders".parse().expect("a name");
        assert!(bob.allows_topic(&orders, Permission::Operate) && !bob.allows(Permission::Read));
        for wrong in ["ann:bbbbbbbbbbbb", "ann:aaaaaaaaaaa", "ann:", "eve:aaaaaaaaaaaa", ":", "ann"] {
            let denied = auth.access(&asked(wrong), &none).err().and_then(|it| it.response).expect(wrong);
            assert_eq!(denied.status(), StatusCode::UNAUTHORIZED, "{wrong}");
        }
    }

    #[test]
    fn after_many_wrong_passwords_none_is_compared() {
        let auth = Auth::Users(Users::parse("ann admin aaaaaaaaaaaa").expect("users"));
        let log_ins = LogIns::default();
        let status = |credentials| match auth.access(&asked(credentials), &log_ins) {
            Ok(_) => StatusCode::OK,
            Err(denied) => denied.response.map_or(StatusCode::FORBIDDEN, |it| it.status()),
        };
        let wrong: Vec<_> = (0..30).map(|_| status("ann:wrong")).collect();
        assert_eq!(wrong[..20], [StatusCode::UNAUTHORIZED; 20]);
        assert_eq!(wrong[22..], [StatusCode::TOO_MANY_REQUESTS; 8]);
        assert_eq!(status("ann:aaaaaaaaaaaa"), StatusCode::TOO_MANY_REQUESTS, "guesses learn nothing");
    }

    #[test]
    fn a_wrong_line_is_named_and_no_password_is_shown() {
        for (text, part) in [
            ("", "empty"),
            ("ann admin", "line 1"),
            ("ann root aaaaaaaaaaaa", "right"),
            ("ann admin short", "shorter"),
            ("a:b admin aaaaaaaaaaaa", "colon"),
            ("ann admin aaaaaaaaaaaa\nann read aaaaaaaaaaaa", "twice"),
            ("ann admin aaaaaaaaaaaa orders", "TOPIC=RIGHT"),
            ("ann admin aaaaaaaaaaaa or/ders=read", "not valid"),
        ] {
            let error = Users::parse(text).expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains("aaaaaaaaaaaa"), "{error}");
        }
        let shown = format!("{:?}", Users::parse("ann admin aaaaaaaaaaaa").expect("users"));
        assert!(!shown.contains("aaaaaaaaaaaa"), "{shown}");
    }
}
