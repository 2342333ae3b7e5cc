//! Failed log-ins: they are logged, and after too many of them the user has to wait, from the address that they came from.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use tokio::time::Instant;

use crate::proxies::Proxies;

/// Number of log-ins that may fail at once.
const BURST: u32 = 20;
/// Time after which one more may fail.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of users and addresses that are remembered; others share one count.
const KEPT: usize = 10_000;
/// What the others share. No client has it, and not that of hosts which do not say who the client is.
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
/// Longest name that is logged, in characters.
const LONGEST: usize = 64;

/// An address, and the hash of the name that was given: it may be long, and that of nobody.
type Who = (IpAddr, u64);

/// Counts failed log-ins by user and address, so that strangers behind the address of a proxy keep nobody else from it. An address is a
/// network of 64 bits in IPv6: a client has as many as it wants of those.
#[derive(Debug, Default)]
pub(crate) struct LogIns {
    failed: Mutex<HashMap<Who, Instant>>,
    hasher: RandomState,
    pub(crate) proxies: Proxies,
}

/// Returns the network of an address that a client has.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address.to_canonical(),
    }
}

/// Returns the count of these failures.
fn key(of: &HashMap<Who, Instant>, who: Who) -> Who {
    if of.len() >= KEPT && !of.contains_key(&who) { (OTHERS, 0) } else { who }
}

/// Number of counts of an address, over which the names that it tries are spread.
const NAMES: u64 = 64;

impl LogIns {
    pub(crate) fn behind(proxies: Proxies) -> Self {
        Self { proxies, ..Self::default() }
    }

    /// Address of the client; unspecified where the host does not say.
    fn address(&self, parts: &Parts) -> IpAddr {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0.ip());
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        network(self.proxies.client(peer, &parts.headers))
    }

    fn who(&self, parts: &Parts, user: &str) -> Who {
        // Names are free to invent: an address has a bounded number of counts.
        (self.address(parts), self.hasher.hash_one(user) % NAMES)
    }

    /// Returns whether the client may try as this user: otherwise the password is not even compared.
    pub(crate) fn may_try(&self, parts: &Parts, user: &str) -> bool {
        let (of, who) = (self.failed.lock().unwrap_or_else(PoisonError::into_inner), self.who(parts, user));
        // The time at which all of its failures are forgotten.
        of.get(&key(&of, who)).is_none_or(|clear| *clear <= Instant::now() + EVERY * (BURST - 1))
    }

    /// Records a failed log-in of this user.
    pub(crate) fn failed(&self, parts: &Parts, user: &str) {
        let (who, now) = (self.who(parts, user), Instant::now());
        let (address, user) = (who.0, user.chars().take(LONGEST).collect::<String>());
        tracing::warn!(target: "millstream_dashboard::audit", ?user, %address, "a log-in failed");
        let mut of = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if of.len() >= KEPT {
            of.retain(|_, clear| *clear > now);
        }
        let key = key(&of, who);
        let clear = of.entry(key).or_insert(now);
        *clear = (*clear).max(now) + EVERY;
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn from(address: &str) -> Parts {
        let address = SocketAddr::new(address.parse().expect("an address"), 5_000);
        Request::get("/").extension(ConnectInfo(address)).body(()).expect("a request").into_parts().0
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_are_not_remembered_wait_together() {
        let log_ins = LogIns::default();
        for host in 0..KEPT {
            let host = u32::try_from(host).expect("small");
            log_ins.failed(&from(&Ipv4Addr::from_bits(0x0a00_0000 + host).to_string()), "ann");
        }
        let mut guesses = 0;
        for network in 0..1_000 {
            let parts = from(&format!("2001:db8:0:{network:x}::1"));
            if log_ins.may_try(&parts, "ann") {
                log_ins.failed(&parts, "ann");
                guesses += 1;
            }
        }
        assert_eq!(guesses, BURST);
        assert!(log_ins.may_try(&from("10.0.0.1"), "ann"), "one that is remembered");
        let unknown = Request::get("/").body(()).expect("a request").into_parts().0;
        assert!(!log_ins.may_try(&unknown, "ann"), "it is one of the others, too");
        tokio::time::advance(EVERY * 2).await;
        log_ins.failed(&from("192.0.2.1"), "ann");
        assert!(
            log_ins.may_try(&unknown, "ann") && log_ins.may_try(&from("2001:db8::1"), "ann"),
            "there is room again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_behind_a_proxy_lock_out_nobody_but_themselves() {
        let log_ins = LogIns::default();
        for guess in 0..100 {
            log_ins.failed(&from("10.0.0.1"), "root");
            log_ins.failed(&from("10.0.0.1"), &format!("nobody-{guess}"));
        }
        assert!(!log_ins.may_try(&from("10.0.0.1"), "root"));
        assert!(log_ins.may_try(&from("10.0.0.1"), "ann"), "of the same address");
        assert!(log_ins.may_try(&from("10.0.0.2"), "root"));
        // A proxy that is trusted says who the client is.
        let log_ins = LogIns::behind(Proxies::parse(["10.0.0.0/24"]).expect("networks"));
        let through = |client: &str| {
            let mut parts = from("10.0.0.1");
            parts.headers.insert("x-forwarded-for", client.parse().expect("a value"));
            parts
        };
        for _ in 0..BURST {
            log_ins.failed(&through("192.0.2.7"), "ann");
        }
        assert!(
            !log_ins.may_try(&through("1.2.3.4, 192.0.2.7, 10.0.0.9"), "ann"),
            "what the client says is not believed"
        );
        assert!(log_ins.may_try(&through("192.0.2.8"), "ann"));
        assert!(!log_ins.may_try(&from("192.0.2.7"), "ann"), "without the proxy");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_guesses_has_to_wait() {
        let log_ins = LogIns::default();
        let mut guesses = 0;
        for _ in 0..1_000 {
            if log_ins.may_try(&from("10.0.0.1"), "ann") {
                log_ins.failed(&from("10.0.0.1"), "ann");
                guesses += 1;
            }
        }
        assert_eq!(guesses, BURST);
        assert!(log_ins.may_try(&from("10.0.0.2"), "ann"), "another address");
        tokio::time::advance(EVERY).await;
        assert!(log_ins.may_try(&from("::ffff:10.0.0.1"), "ann"), "the same address: one more");
        log_ins.failed(&from("::ffff:10.0.0.1"), "ann");
        assert!(!log_ins.may_try(&from("10.0.0.1"), "ann"));
        tokio::time::advance(EVERY * 100).await;
        for host in 0..BURST {
            log_ins.failed(&from(&format!("2001:db8::{host:x}")), "ann");
        }
        assert!(!log_ins.may_try(&from("2001:db8::ffff"), "ann"), "the same network");
        assert!(log_ins.may_try(&from("2001:db8:0:1::1"), "ann"));
    }
}
