//! The arithmetic of `millstream plan`: what a load needs. The sections that are named are of docs/performance.md.

use std::time::Duration;

use millstream::crates::core::topic::MAX_PARTITIONS;
use schemars::JsonSchema;
use serde::Serialize;

use super::PlanArgs;
use crate::human;

/// Bytes of memory of a waiting message with 128 bytes ("Memory") and with 1 KiB of payload ("An example").
const WAITING: [f64; 2] = [143.0, 1_204.0];
/// The same in packs with zstd, 128 bytes ("Packed topics"). Larger ones are taken in proportion.
const PACKED: f64 = 33.0;
/// Server CPU of a send among many in µs, 128 bytes ("Planning") and 1 KiB ("An example").
const SEND: [f64; 2] = [1.2, 2.8];
/// The same of a read and a settlement, for each group (same sections).
const HANDLE: [f64; 2] = [1.4, 2.5];
/// Server CPU of a send and of a handling in packs, 128 bytes ("Packed topics", zstd). Larger ones in proportion.
const PACKED_CPU: [f64; 2] = [0.12, 0.22];
/// Server CPU of send, read and settlement of a message that comes alone, 128 bytes ("Latency").
const ALONE: f64 = 94.0;
/// The part of the send in it, measured with `millstream-bench produce --tasks 1 --messages 30000`.
const ALONE_SEND: f64 = 25.8;
/// Bytes of the network beside the payload ("An example": 55 MB/s for 50,000 of 1 KiB, so 1,100 each).
const WIRE: u64 = 76;
/// Share of a core that commands may take ("Planning").
const CORE: f64 = 0.6;
/// Share of a machine's memory that data may take: a save or rewrite copies what is written meanwhile ("Planning",
/// and "Server" in docs/guides/production.md).
const OF_MACHINE: f64 = 0.6;
/// Memory of a node in bytes ("An example").
const NODE: u64 = 64 << 30;
/// Rule: how far a group that keeps up is behind after a restart or a takeover, with the default retention.
const BEHIND: Duration = Duration::from_secs(60);
/// Rule: share of the time for which handlers may be busy before messages wait.
const BUSY: f64 = 0.8;
/// Rule: from so many partitions on, other ways are better.
const MANY_PARTITIONS: u64 = 1_000;
/// Largest payload in bytes for which packs pay: "a few KiB" (docs/guides/pack.md, "When it pays").
const PACKS_TO: u64 = 4_096;
/// Least messages a second of a partition for which they pay: "hundreds" (same table).
const PACKS_FROM: f64 = 100.0;
/// Connections of an instance: messages and leases 2, pool 4, large pages 4, producers 2 (docs/guides/tune.md, "Connections").
const CONNECTIONS: u64 = 2 + 4 + 4 + 2;
/// Partitions with a connection of their own; those beyond share some (same section).
const READERS: u64 = 64;
/// The connections that they share.
const SHARED: u64 = 3;
/// Default of `maxclients` of Redis.
const MAX_CLIENTS: u64 = 10_000;

/// What a load needs.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Plan {
    /// How long messages stay.
    pub(super) kept_ms: u64,
    /// Messages on the server at a time.
    pub(super) messages: u64,
    /// Whether they are counted as packed.
    pub(super) packs: bool,
    /// Bytes of the server's memory for a message.
    pub(super) message_bytes: u64,
    /// Bytes of the server's memory for all messages.
    pub(super) bytes: u64,
    /// Memory of the server's machine, of which data may take 0.6; each replica needs as much.
    pub(super) machine_bytes: u64,
    /// Server CPU of a message in µs, if many are sent and settled at a time.
    pub(super) cpu_us: f64,
    /// The same as a share of a core.
    pub(super) cpu: f64,
    /// Server CPU of a message in µs, if each is sent and settled alone.
    pub(super) alone_cpu_us: f64,
    /// The same as a share of a core.
    pub(super) alone_cpu: f64,
    /// Partitions that handlers and instances need at least.
    pub(super) partitions_needed: u64,
    /// Partitions to take: the next power of two up to 8, then the next multiple of 8.
    pub(super) partitions: u64,
    /// Handlers that can run at once, in all groups.
    pub(super) handlers: u64,
    /// Handlers that run at once on average, in all groups.
    pub(super) handlers_busy: f64,
    /// Connections that an instance opens at most.
    pub(super) instance_connections: u64,
    /// Connections of all instances of all groups.
    pub(super) connections: u64,
    /// Bytes a second to the server.
    pub(super) in_bytes_per_second: u64,
    /// Bytes a second to groups and replicas.
    pub(super) out_bytes_per_second: u64,
    /// Limits that are near.
    pub(super) near: Vec<NearLimit>,
}

/// A limit that is near.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NearLimit {
    /// `server_cpu`, `memory`, `partitions`, `handlers`, `connections` or `packing`.
    pub(super) limit: &'static str,
    /// What is near, and what helps.
    pub(super) advice: String,
}

/// Returns what a load needs. Figures that are too large for their type are its largest value.
pub(super) fn plan(load: &PlanArgs) -> Plan {
    let (rate, size) = (load.rate, load.size as u64);
    let (groups, instances) = (u64::from(load.groups), u64::from(load.instances).max(1));
    let concurrency = u64::from(load.concurrency);
    let kept_ms = human::ms(load.retention.unwrap_or_else(|| load.handler.saturating_add(BEHIND)));
    let messages = at_once(rate, kept_ms).ceil() as u64;

    let busy = at_once(rate, human::ms(load.handler));
    let partitions_needed = ((busy / concurrency as f64).ceil() as u64).max(instances);
    let partitions = rounded(partitions_needed);

    let packs = load.packed && size <= PACKS_TO && rate / partitions as f64 >= PACKS_FROM;
    let scale = size.max(128) as f64 / 128.0;
    let (message_bytes, cpu_us) = if packs {
        (PACKED * scale, (PACKED_CPU[0] + PACKED_CPU[1] * groups as f64) * scale)
    } else {
        // Below 128 bytes the overhead is that of 128 bytes.
        let bytes = on_line(size, WAITING) - 128_u64.saturating_sub(size) as f64;
        (bytes, on_line(size, SEND) + on_line(size, HANDLE) * groups as f64)
    };
    let message_bytes = message_bytes.ceil() as u64;
    let bytes = messages.saturating_mul(message_bytes);

    // Alone, a message costs much the same in a packed topic ("Packed topics"). A larger payload adds what it adds among many.
    let send = ALONE_SEND + on_line(size, SEND) - SEND[0];
    let handle = ALONE - ALONE_SEND + on_line(size, HANDLE) - HANDLE[0];
    let alone_cpu_us = send + handle * groups as f64;

    let owned = partitions.div_ceil(instances);
    let shared = if owned > READERS { SHARED } else { 0 };
    let instance_connections = CONNECTIONS + owned.min(READERS) + shared;
    let wire = if packs { message_bytes } else { size.saturating_add(WIRE) };
    let traffic = rate * wire as f64;
    let readers = groups.saturating_add(load.replicas.into());
    let mut plan = Plan {
        kept_ms,
        messages,
        packs,
        message_bytes,
        bytes,
        machine_bytes: (bytes as f64 / OF_MACHINE).round() as u64,
        cpu_us,
        cpu: rate * cpu_us / 1e6,
        alone_cpu_us,
        alone_cpu: rate * alone_cpu_us / 1e6,
        partitions_needed,
        partitions,
        handlers: partitions.saturating_mul(concurrency).saturating_mul(groups),
        handlers_busy: busy * groups as f64,
        instance_connections,
        connections: instance_connections.saturating_mul(instances).saturating_mul(groups),
        in_bytes_per_second: traffic.ceil() as u64,
        out_bytes_per_second: (traffic * readers as f64).ceil() as u64,
        near: Vec::new(),
    };
    plan.near = plan.limits(load);
    plan
}

/// Returns how many are there at once, if so many come a second and stay so long. Whole numbers stay exact.
fn at_once(rate: f64, ms: u64) -> f64 {
    rate * ms as f64 / 1_000.0
}

/// Returns the figure for a payload on the line through those of 128 bytes and of 1 KiB; below 128 bytes the former.
fn on_line(size: u64, [small, large]: [f64; 2]) -> f64 {
    small + size.saturating_sub(128) as f64 * (large - small) / 896.0
}

/// Rounds up to a power of two up to 8, then to a multiple of 8.
fn rounded(partitions: u64) -> u64 {
    if partitions <= 8 { partitions.next_power_of_two() } else { partitions.div_ceil(8).saturating_mul(8) }
}

impl Plan {
    /// Returns the limits that it comes near.
    fn limits(&self, load: &PlanArgs) -> Vec<NearLimit> {
        let mut near = Vec::new();
        let mut add = |limit: &'static str, advice: String| near.push(NearLimit { limit, advice });
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let may_pack = !load.packed && load.size as u64 <= PACKS_TO;
        let pack = if may_pack { "packed topics (--packed) or " } else { "" };
        if self.cpu > CORE {
            let needs = format!("{} of a core, where {} are for commands", percent(self.cpu), percent(CORE));
            let primaries = human::count((self.cpu / CORE).ceil() as u64);
            let advice = format!("{pack}a cluster of {primaries} primaries");
            add("server_cpu", format!("the server needs {needs}: {advice}"));
        } else if self.alone_cpu > CORE {
            let cpu = percent(self.alone_cpu);
            let advice = "send many at a time (`send_all`, one producer for all tasks)";
            add("server_cpu", format!("messages that come one at a time need {cpu} of a core: {advice}"));
        }
        if self.machine_bytes > NODE {
            let needs = human::bytes(self.machine_bytes);
            let primaries = human::count(self.machine_bytes.div_ceil(NODE));
            let advice = format!("a shorter retention or {pack}a cluster of {primaries} primaries of 64 GiB");
            add("memory", format!("the server needs {needs}: {advice}"));
        }
        let (partitions, most) = (human::count(self.partitions), u64::from(MAX_PARTITIONS));
        let advice = "more handlers at once in each (--concurrency), or shared mode";
        if self.partitions > most {
            let most = human::count(most);
            add("partitions", format!("{partitions} partitions, and a topic has at most {most}: {advice}"));
        } else if self.partitions > MANY_PARTITIONS {
            let cost = "each costs a lease, a read and a trim a second for each group";
            add("partitions", format!("{partitions} partitions, and {cost}: {advice}"));
        }
        let busy = self.handlers_busy / self.handlers as f64;
        if busy > BUSY {
            let advice = "more partitions, or more handlers at once in each (--concurrency)";
            add(
                "handlers",
                format!("handlers are busy {} of the time, so bursts wait: {advice}", percent(busy)),
            );
        }
        let clients = self.connections.saturating_mul(2);
        if clients > MAX_CLIENTS {
            let (clients, most) = (human::count(clients), human::count(MAX_CLIENTS));
            add("connections", format!("set `maxclients` to {clients} or more: its default is {most}"));
        }
        if load.packed && !self.packs {
            let advice = "they are for messages up to 4 KiB, and 100 a second or more in each partition";
            add("packing", format!("packs do not pay, and are not counted: {advice}"));
        }
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load that is near no limit.
    const QUIET: PlanArgs = PlanArgs {
        rate: 100.0,
        size: 128,
        retention: None,
        groups: 1,
        handler: Duration::from_millis(20),
        concurrency: 16,
        instances: 3,
        packed: false,
        replicas: 0,
    };

    fn is_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    /// "Capacity" in docs/guides/production.md: 2,000/s of 1 KiB, kept for a day.
    #[test]
    fn the_example_of_the_checklist_comes_out() {
        let day = Some(Duration::from_secs(86_400));
        let load = PlanArgs { rate: 2_000.0, size: 1_024, retention: day, ..QUIET };
        let it = plan(&load);
        assert_eq!((it.messages, it.message_bytes, it.bytes), (172_800_000, 1_204, 208_051_200_000));
        assert_eq!(it.machine_bytes, 346_752_000_000);
        is_near(it.cpu_us, 5.3);
        is_near(it.cpu, 0.0106);
        // 25.8 + 1.6 to send, 68.2 + 1.1 to handle.
        is_near(it.alone_cpu_us, 96.7);
        is_near(it.alone_cpu, 0.1934);
        // 40 handlers in 16 each are 2.5; two partitions on one of the three instances.
        assert_eq!((it.partitions_needed, it.partitions, it.handlers), (3, 4, 64));
        is_near(it.handlers_busy, 40.0);
        assert_eq!((it.instance_connections, it.connections), (14, 42));
        assert_eq!((it.in_bytes_per_second, it.out_bytes_per_second), (2_200_000, 2_200_000));
        let needs = [1, 8].map(|concurrency| plan(&PlanArgs { concurrency, ..load }).partitions_needed);
        assert_eq!(needs, [40, 5]);
    }

    /// "An example" in docs/performance.md: 50,000/s of 1 KiB, 3 groups, one of which stands still for ten minutes.
    #[test]
    fn the_example_of_the_cost_model_comes_out() {
        let (retention, handler) = (Some(Duration::from_secs(600)), Duration::from_millis(1));
        let load = PlanArgs { rate: 50_000.0, size: 1_024, groups: 3, replicas: 1, concurrency: 1, ..QUIET };
        let it = plan(&PlanArgs { retention, handler, ..load });
        assert_eq!((it.messages, it.bytes, it.machine_bytes), (30_000_000, 36_120_000_000, 60_200_000_000));
        is_near(it.cpu, 0.515);
        assert_eq!((it.partitions_needed, it.partitions, it.handlers), (50, 56, 168));
        // 19 partitions of an instance; 3 groups of 3.
        assert_eq!((it.instance_connections, it.connections), (31, 279));
        assert_eq!((it.in_bytes_per_second, it.out_bytes_per_second), (55_000_000, 220_000_000));
    }

    #[test]
    fn a_message_takes_what_was_measured_for_its_size() {
        let bytes = |rate, size, packed| plan(&PlanArgs { rate, size, packed, ..QUIET }).message_bytes;
        let sizes = [1, 128, 500, 1_024, 5_000].map(|size| bytes(2_000.0, size, false));
        assert_eq!(sizes, [16, 143, 584, 1_204, 5_913]);
        let packed = [1, 128, 500, 1_024, 5_000].map(|size| bytes(2_000.0, size, true));
        assert_eq!(packed, [33, 33, 129, 264, 5_913], "large ones are stored as they are");
        assert_eq!([399.0, 400.0].map(|rate| bytes(rate, 128, true)), [143, 33], "four partitions");
        let packs = plan(&PlanArgs { rate: 2_000.0, size: 256, groups: 2, packed: true, ..QUIET });
        is_near(packs.cpu_us, 1.12);
        assert_eq!(packs.in_bytes_per_second, 132_000);
        assert_eq!(plan(&PlanArgs { rate: 2_000.0, ..QUIET }).messages, 120_040, "a minute and 20 ms");
    }

    #[test]
    fn partitions_are_rounded_up_and_beyond_64_share_connections() {
        assert_eq!([1, 3, 5, 8, 9, 40, 41].map(rounded), [1, 4, 8, 8, 16, 40, 48]);
        let of_one = |rate| plan(&PlanArgs { rate, concurrency: 1, instances: 1, ..QUIET });
        let opened = [3_200.0, 3_600.0].map(|rate| (of_one(rate).partitions, of_one(rate).connections));
        assert_eq!(opened, [(64, 76), (72, 79)]);
    }

    #[test]
    fn limits_that_are_near_are_named() {
        let named = |load: PlanArgs| plan(&load).near.into_iter().map(|it| it.limit).collect::<Vec<_>>();
        let (ms, minute) = (Duration::from_millis(1), Duration::from_secs(60));
        assert!(named(QUIET).is_empty());
        let busy = PlanArgs { rate: 1e6, concurrency: 1_000, handler: ms, ..QUIET };
        assert_eq!(named(busy), ["server_cpu"]);
        let advice = plan(&busy).near.remove(0).advice;
        // 2.6 of a core in parts of 0.6.
        assert!(advice.contains("260 % of a core") && advice.contains("5 primaries"), "{advice}");
        let advice = plan(&PlanArgs { packed: true, ..busy }).near.remove(0).advice;
        assert!(advice.contains("one at a time need 9400 % of a core"), "0.34 in packs: {advice}");
        assert_eq!(named(PlanArgs { rate: 10_000.0, handler: ms, ..QUIET }), ["server_cpu"]);
        let kept = PlanArgs { retention: Some(Duration::from_secs(34 * 86_400)), ..QUIET };
        // 293.76 million of 143 bytes, in 0.6 of the machine: 65.2 GiB. And half of that.
        assert_eq!((named(kept), named(PlanArgs { rate: 50.0, ..kept })), (vec!["memory"], vec![]));
        let many = PlanArgs { concurrency: 1, ..QUIET };
        assert_eq!(named(PlanArgs { rate: 20.0, handler: minute, ..many }), ["partitions", "handlers"]);
        let most = plan(&PlanArgs { rate: 300.0, handler: minute, ..many }).near.remove(0).advice;
        assert!(most.contains("at most 16,384"), "{most}");
        assert_eq!(named(PlanArgs { instances: 500, ..QUIET }), ["connections"]);
        assert_eq!(named(PlanArgs { packed: true, ..QUIET }), ["packing"]);
    }

    #[test]
    fn nothing_overflows() {
        let years = Some(Duration::from_secs(3_650 * 86_400));
        let most = PlanArgs { rate: 1e7, size: 512 << 20, retention: years, groups: 1_000, ..QUIET };
        let it = plan(&PlanArgs { handler: Duration::from_secs(86_400), concurrency: 1, ..most });
        assert_eq!((it.messages, it.partitions), (3_153_600_000_000_000, 864_000_000_000));
        assert_eq!([it.bytes, it.machine_bytes], [u64::MAX; 2]);
        let none = plan(&PlanArgs { groups: 0, concurrency: 0, instances: 0, rate: f64::MAX, ..most });
        assert_eq!((none.partitions, none.messages), (u64::MAX, u64::MAX));
    }
}
