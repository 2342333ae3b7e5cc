//! Proxies in front of the dashboard that are trusted to say who the client is.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
use millstream::{Error, ErrorKind, Result};

/// Header in which a proxy appends the address that it was asked from.
const HEADER: &str = "x-forwarded-for";

/// Addresses of proxies that are trusted: networks, with the number of bits that are the same in all their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxies(Vec<(u128, u32)>);

/// Returns the bits of an address; those of IPv4 as they are mapped into IPv6.
fn bits(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Reads a hop of the header: an address, which some proxies write with a port, `1.2.3.4:5678` and `[::1]:80`, or in brackets.
fn hop(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|it| it.ip()))
}

impl Proxies {
    /// Reads addresses and networks: `10.0.0.7`, `10.0.0.0/8`, `fd00::/8`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the text.
    pub(crate) fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let read = |text: &str| {
            let (address, length) = text.split_once('/').unwrap_or((text, ""));
            let address: IpAddr = address.parse().ok()?;
            let all = if address.is_ipv4() { 32 } else { 128 };
            let length: u32 = if text.contains('/') { length.parse().ok()? } else { all };
            (length <= all).then(|| (bits(address), 128 - all + length))
        };
        let networks = texts.into_iter().map(|text| {
            read(text).ok_or_else(|| {
                let why = format!("{text:?} is no address of a proxy: 10.0.0.7, 10.0.0.0/8");
                Error::new(ErrorKind::InvalidConfig, why)
            })
        });
        Ok(Self(networks.collect::<Result<_>>()?))
    }

    /// Returns whether an address is that of a proxy.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let same = |(network, length): &(u128, u32)| {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            (network ^ bits(address)) & mask == 0
        };
        self.0.iter().any(same)
    }

    /// Returns the address of the client: the last one in front of the proxies, which alone is not what the client says itself.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let values = headers.get_all(HEADER).into_iter().filter_map(|value| value.to_str().ok());
        let mut hops: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
        let mut address = peer;
        while self.has(address)
            && let Some(before) = hops.pop().and_then(hop)
        {
            address = before;
        }
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_have_their_addresses() {
        let proxies = Proxies::parse(["10.1.0.0/16", "192.0.2.7", "fd00::/8"]).expect("networks");
        let has = |address: &str| proxies.has(address.parse().expect("an address"));
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "fd12::1"] {
            assert!(has(address), "{address}");
        }
        for address in ["10.2.0.1", "192.0.2.8", "fe80::1", "::1"] {
            assert!(!has(address), "{address}");
        }
        assert!(Proxies::parse(["0.0.0.0/0"]).expect("all").has("1.2.3.4".parse().expect("an address")));
        for wrong in ["", "proxy", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0/8"] {
            assert!(Proxies::parse([wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_client_is_the_last_hop_in_front_of_the_proxies_in_any_form() {
        let proxies = Proxies::parse(["10.0.0.0/8", "fd00::/8"]).expect("networks");
        let client = |hops: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, hops.parse().expect("a header"));
            proxies.client("10.0.0.1".parse().expect("an address"), &headers).to_string()
        };
        for (hops, expected) in [
            ("9.9.9.9, 192.0.2.7", "192.0.2.7"),
            ("9.9.9.9, 192.0.2.7:5678", "192.0.2.7"),
            ("192.0.2.7:80, 10.9.9.9:1234", "192.0.2.7"),
            ("[2001:db8::7]:80, [fd00::1]:443", "2001:db8::7"),
            ("[2001:db8::7], fd00::1", "2001:db8::7"),
            ("2001:db8::7", "2001:db8::7"),
            // What is no address says nothing, and neither does what is in front of it.
            ("192.0.2.7, unknown", "10.0.0.1"),
            ("192.0.2.7, 10.0.0.2:x", "10.0.0.1"),
            ("192.0.2.7, [10.0.0.2:80", "10.0.0.1"),
        ] {
            assert_eq!(client(hops), expected, "{hops}");
        }
    }
}
