//! Proxies in front of the dashboard that are trusted to say who the client is.

use std::net::IpAddr;

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
            && let Some(Ok(before)) = hops.pop().map(str::parse)
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
}
