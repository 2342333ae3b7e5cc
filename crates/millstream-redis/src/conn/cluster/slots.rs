//! Slots of a cluster: the one that a key belongs to, and the owners of all.

use millstream_core::error::Result;
use redis::Value;

use crate::address::Address;
use crate::conn::replies::reply;
use crate::error::unexpected;

/// Number of slots of every cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of a key: a CRC of its hash tag if it has one, otherwise of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let tag = &key[open + 1..];
        let tag = &tag[..tag.iter().position(|byte| *byte == b'}')?];
        (!tag.is_empty()).then_some(tag)
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// The servers of a cluster that own slots, and which slots each of them owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    primaries: Vec<Primary>,
    /// Index of the owner of each slot; a number beyond the primaries for a slot without an owner.
    owners: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Primary {
    pub(crate) address: Address,
    /// Name that the node announces beside its address: that of its certificate, if the address is an IP.
    pub(crate) name: Option<String>,
}

const NOBODY: u16 = u16::MAX;

impl Topology {
    /// Parses a reply to `CLUSTER SLOTS` of the node at `asked`. A node that does not know the address under which it is
    /// reached leaves out the host.
    pub(crate) fn parse(slots: Value, asked: &Address) -> Result<Self> {
        let mut topology = Self { primaries: Vec::new(), owners: vec![NOBODY; usize::from(SLOTS)] };
        for range in reply::array(slots)? {
            let mut range = reply::array(range)?.into_iter();
            let mut next = || range.next().ok_or_else(|| unexpected("a range of slots that is too short"));
            let (first, last, primary) =
                (reply::int(next()?)?, reply::int(next()?)?, primary(next()?, asked)?);
            let range = usize::try_from(first).ok().zip(usize::try_from(last).ok());
            let owned = range.and_then(|(first, last)| topology.owners.get_mut(first..=last));
            let owned = owned.ok_or_else(|| unexpected(format_args!("slots {first} to {last}")))?;
            let known = topology.primaries.iter().position(|known| known.address == primary.address);
            let owner = known.unwrap_or_else(|| {
                topology.primaries.push(primary);
                topology.primaries.len() - 1
            });
            owned.fill(u16::try_from(owner).unwrap_or(NOBODY));
        }
        Ok(topology)
    }

    pub(crate) fn primaries(&self) -> &[Primary] {
        &self.primaries
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<&Primary> {
        let owner = self.owners.get(usize::from(slot))?;
        self.primaries.get(usize::from(*owner))
    }

    /// Records that a slot has moved.
    pub(crate) fn moved(&mut self, slot: u16, to: Address) {
        let known = self.primaries.iter().position(|known| known.address == to);
        let owner = known.unwrap_or_else(|| {
            self.primaries.push(Primary { address: to, name: None });
            self.primaries.len() - 1
        });
        if let Some(slot) = self.owners.get_mut(usize::from(slot)) {
            *slot = u16::try_from(owner).unwrap_or(NOBODY);
        }
    }
}

/// Parses `[host, port, id, [name, value, …]]`; the last one since version 7.
fn primary(node: Value, asked: &Address) -> Result<Primary> {
    let mut node = reply::array(node)?.into_iter();
    let mut next = || node.next().unwrap_or_default();
    let (host, port, _, more) = (next(), next(), next(), next());
    let host = match host {
        Value::Nil => String::new(),
        host => reply::text(host)?,
    };
    let port = reply::int(port)?;
    let port = u16::try_from(port).map_err(|_| unexpected(format_args!("port {port}")))?;
    // `?` is a node that does not know its own name.
    let address = match &*host {
        "" | "?" => Address { port, ..asked.clone() },
        host => Address::new(host, port),
    };
    let mut more = reply::pairs(more).unwrap_or_default().into_iter();
    let name = more.find_map(|(name, value)| {
        let is_name = reply::text(name).is_ok_and(|name| name == "hostname");
        is_name.then(|| reply::text(value).ok().filter(|name| !name.is_empty()))?
    });
    Ok(Primary { address, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // From the specification of Redis Cluster, and `CLUSTER KEYSLOT`.
        for (key, slot) in [
            ("123456789", 12_739),
            ("{user1000}.following", slot_of(b"user1000")),
            ("foo{}{bar}", slot_of(b"foo{}{bar}")),
            ("foo{{bar}}zap", slot_of(b"{bar")),
            ("foo{bar}{zap}", slot_of(b"bar")),
            ("", 0),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    fn node(host: &str, port: i64, more: &[&str]) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let more = more.iter().map(|word| text(word)).collect();
        Value::Array(vec![text(host), Value::Int(port), text("id"), Value::Array(more)])
    }

    fn range(first: i64, last: i64, node: Value) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn owners_are_read_from_what_nodes_of_several_versions_say() {
        let asked = Address::new("seed", 1);
        let slots = Value::Array(vec![
            range(0, 99, node("10.0.0.1", 7001, &["hostname", "a.example"])),
            range(100, 199, node("", 7002, &[])),
            range(300, 16_383, node("10.0.0.1", 7001, &["hostname", "a.example"])),
        ]);
        let mut topology = Topology::parse(slots, &asked).expect("a topology");
        assert_eq!(topology.primaries().len(), 2);
        let owner = |topology: &Topology, slot| topology.owner(slot).map(|it| it.address.to_string());
        assert_eq!(owner(&topology, 99).as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(owner(&topology, 100).as_deref(), Some("seed:7002"), "the host that was asked");
        assert_eq!(owner(&topology, 200), None, "without an owner");
        assert_eq!(topology.owner(0).and_then(|it| it.name.as_deref()), Some("a.example"));
        topology.moved(200, Address::new("new", 3));
        assert_eq!(owner(&topology, 200).as_deref(), Some("new:3"));
        topology.moved(0, Address::new("seed", 7002));
        assert_eq!((owner(&topology, 0).as_deref(), topology.primaries().len()), (Some("seed:7002"), 3));
    }

    #[test]
    fn nonsense_is_refused() {
        let asked = Address::new("seed", 1);
        for slots in [
            Value::Int(1),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, node("a", 1, &[]))]),
            Value::Array(vec![range(-1, 5, node("a", 1, &[]))]),
            Value::Array(vec![range(0, 5, node("a", 70_000, &[]))]),
        ] {
            Topology::parse(slots, &asked).expect_err("nonsense");
        }
    }
}
