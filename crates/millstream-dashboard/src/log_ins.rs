//! Failed log-ins: they are logged, and an address that has too many of them has to wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use tokio::time::Instant;

/// Number of log-ins that may fail at once.
const BURST: u32 = 20;
/// Time after which one more may fail.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of addresses that are remembered; others share one count.
const KEPT: usize = 10_000;
/// What the others share. No client has it, and not that of hosts which do not say who the client is.
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
/// Longest name that is logged, in characters.
const LONGEST: usize = 64;

/// Counts failed log-ins by address. An address is a network of 64 bits in IPv6: a client has as many as it wants of those.
#[derive(Debug, Default)]
pub(crate) struct LogIns(Mutex<HashMap<IpAddr, Instant>>);

/// Address of the client, or of the proxy in front; unspecified where the host does not say.
fn address(parts: &Parts) -> IpAddr {
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    match parts.extensions.get::<ConnectInfo<SocketAddr>>().map_or(unknown, |it| it.0.ip()) {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address.to_canonical(),
    }
}

/// Returns the address under which failures of this one are counted.
fn key(of: &HashMap<IpAddr, Instant>, address: IpAddr) -> IpAddr {
    if of.len() >= KEPT && !of.contains_key(&address) { OTHERS } else { address }
}

impl LogIns {
    /// Returns whether the client may try: otherwise its password is not even compared.
    pub(crate) fn may_try(&self, parts: &Parts) -> bool {
        let of = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The time at which all of its failures are forgotten.
        of.get(&key(&of, address(parts))).is_none_or(|clear| *clear <= Instant::now() + EVERY * (BURST - 1))
    }

    /// Records a failed log-in of this user.
    pub(crate) fn failed(&self, parts: &Parts, user: &str) {
        let (address, now) = (address(parts), Instant::now());
        let user: String = user.chars().take(LONGEST).collect();
        tracing::warn!(target: "millstream_dashboard::audit", ?user, %address, "a log-in failed");
        let mut of = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if of.len() >= KEPT {
            of.retain(|_, clear| *clear > now);
        }
        let key = key(&of, address);
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
            if log_ins.may_try(&parts) {
                log_ins.failed(&parts, "ann");
                guesses += 1;
            }
        }
        assert_eq!(guesses, BURST);
        assert!(log_ins.may_try(&from("10.0.0.1")), "one that is remembered");
        let unknown = Request::get("/").body(()).expect("a request").into_parts().0;
        assert!(!log_ins.may_try(&unknown), "it is one of the others, too");
        tokio::time::advance(EVERY * 2).await;
        log_ins.failed(&from("192.0.2.1"), "ann");
        assert!(log_ins.may_try(&unknown) && log_ins.may_try(&from("2001:db8::1")), "there is room again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_guesses_has_to_wait() {
        let log_ins = LogIns::default();
        let mut guesses = 0;
        for _ in 0..1_000 {
            if log_ins.may_try(&from("10.0.0.1")) {
                log_ins.failed(&from("10.0.0.1"), "ann");
                guesses += 1;
            }
        }
        assert_eq!(guesses, BURST);
        assert!(log_ins.may_try(&from("10.0.0.2")), "another address");
        tokio::time::advance(EVERY).await;
        assert!(log_ins.may_try(&from("::ffff:10.0.0.1")), "the same address: one more");
        log_ins.failed(&from("::ffff:10.0.0.1"), "ann");
        assert!(!log_ins.may_try(&from("10.0.0.1")));
        tokio::time::advance(EVERY * 100).await;
        for host in 0..BURST {
            log_ins.failed(&from(&format!("2001:db8::{host:x}")), "ann");
        }
        assert!(!log_ins.may_try(&from("2001:db8::ffff")), "the same network");
        assert!(log_ins.may_try(&from("2001:db8:0:1::1")));
    }
}
