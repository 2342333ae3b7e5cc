//! Known faults of servers, by product and version.

use std::fmt;

/// Severity of a fault, and of a [report](crate::Report).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It may cause a failure.
    Warn,
    /// It causes a failure, or will.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Error => "error",
        })
    }
}

/// Server version, as precise as the known faults need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl Version {
    /// Parses `8.2.1`, also with a suffix.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
    }
}

/// Known fault, and the versions that have it: from the first one, up to but not including the one that fixes it.
#[derive(Debug)]
pub(crate) struct Known {
    product: &'static str,
    from: Version,
    mended: Version,
    pub(crate) level: Level,
    pub(crate) what: &'static str,
    pub(crate) advice: &'static str,
}

const fn fault(
    product: &'static str,
    from: (u32, u32, u32),
    mended: (u32, u32, u32),
    level: Level,
    what: &'static str,
    advice: &'static str,
) -> Known {
    let (from, mended) = (Version(from.0, from.1, from.2), Version(mended.0, mended.1, mended.2));
    Known { product, from, mended, level, what, advice }
}

const REMOTE: &str = "XACKDEL lets a client run code on the server (CVE-2025-62507)";
const TRIM: &str =
    "with several groups, ACKED and DELREF of XADD, XTRIM and XDELEX delete the wrong entries or none";
const RIGHTS: &str = "XREAD and XREADGROUP pass over key permissions of ACLs";
const BLOCKED: &str = "memory is used after it was freed when clients block on one key, as readers do";
const NAME: &str = "a certificate whose common name has a NUL logs in as another user (mutual TLS)";

/// Stands for the version that mends a fault, where there is none yet.
const OPEN: (u32, u32, u32) = (u32::MAX, 0, 0);

static FAULTS: [Known; 19] = [
    fault(
        "redis",
        (0, 0, 0),
        (7, 0, 0),
        Level::Error,
        "lag is not known before 7.0",
        "Upgrade to 7.0 or newer",
    ),
    fault("redis", (8, 2, 0), (8, 2, 3), Level::Error, REMOTE, "Upgrade to 8.2.9 or newer"),
    fault("redis", (8, 2, 0), (8, 2, 7), Level::Warn, TRIM, "Upgrade to 8.2.9 or newer; we do not use them"),
    fault("redis", (8, 4, 0), (8, 4, 4), Level::Warn, TRIM, "Upgrade to 8.4.6 or newer; we do not use them"),
    fault("redis", (8, 2, 0), (8, 2, 9), Level::Warn, RIGHTS, "Upgrade to 8.2.9 or newer"),
    fault("redis", (8, 2, 0), (8, 2, 9), Level::Warn, BLOCKED, "Upgrade to 8.2.9 or newer"),
    fault("redis", (8, 4, 0), (8, 4, 6), Level::Warn, RIGHTS, "Upgrade to 8.4.6 or newer"),
    fault("redis", (8, 4, 0), (8, 4, 6), Level::Warn, BLOCKED, "Upgrade to 8.4.6 or newer"),
    fault("redis", (8, 6, 0), (8, 6, 6), Level::Warn, RIGHTS, "Upgrade to 8.6.6 or newer"),
    fault("redis", (8, 6, 0), (8, 6, 6), Level::Warn, BLOCKED, "Upgrade to 8.6.6 or newer"),
    fault("redis", (8, 6, 0), (8, 6, 6), Level::Warn, NAME, "Upgrade to 8.6.6 or newer"),
    fault("redis", (8, 8, 0), (8, 8, 2), Level::Warn, RIGHTS, "Upgrade to 8.8.2 or newer"),
    fault("redis", (8, 8, 0), (8, 8, 2), Level::Warn, BLOCKED, "Upgrade to 8.8.2 or newer"),
    fault("redis", (8, 8, 0), (8, 8, 2), Level::Warn, NAME, "Upgrade to 8.8.2 or newer"),
    fault("redis", (8, 10, 0), (8, 10, 1), Level::Warn, RIGHTS, "Upgrade to 8.10.1 or newer"),
    fault("redis", (8, 10, 0), (8, 10, 1), Level::Warn, BLOCKED, "Upgrade to 8.10.1 or newer"),
    fault("redis", (8, 10, 0), (8, 10, 1), Level::Warn, NAME, "Upgrade to 8.10.1 or newer"),
    fault(
        "redis",
        (8, 6, 0),
        (8, 6, 2),
        Level::Warn,
        "ids for XADD … IDMP are lost or doubled by restarts and replicas",
        "Upgrade to 8.6.6 or newer; we do not use them",
    ),
    // Measured with 8.0.1 and 9.1.2: docs/reliability.md.
    fault(
        "valkey",
        (8, 0, 0),
        OPEN,
        Level::Warn,
        "with `appendfsync everysec` WAITAOF answers before the file is synced",
        "Set `appendfsync always` if messages are sent with Durability::Fsynced",
    ),
];

/// Returns the faults of a version.
pub(crate) fn known(product: &str, version: Version) -> Vec<&'static Known> {
    FAULTS
        .iter()
        .filter(|fault| fault.product == product && fault.from <= version && version < fault.mended)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(product: &str, version: &str) -> usize {
        known(product, Version::parse(version).expect("a version")).len()
    }

    #[test]
    fn a_fault_is_told_up_to_the_version_that_mends_it() {
        assert_eq!(["7.0.15", "8.0.2", "8.2.9", "8.6.6", "8.10.1"].map(|it| count("redis", it)), [0; 5]);
        assert_eq!(
            ["6.2.14", "8.2.1", "8.2.3", "8.2.8", "8.4.5", "8.6.5", "8.8.1", "8.10.0"]
                .map(|it| count("redis", it)),
            [1, 4, 3, 2, 2, 3, 3, 3]
        );
        assert_eq!(
            ["7.2.4", "8.0.1", "9.1.2"].map(|it| count("valkey", it)),
            [0, 1, 1],
            "Redis' faults are not Valkey's"
        );
    }

    #[test]
    fn versions_are_read_as_servers_write_them() {
        assert_eq!(Version::parse("8.2.1"), Some(Version(8, 2, 1)));
        assert_eq!(Version::parse("8.4-RC1"), Some(Version(8, 4, 0)));
        assert_eq!(Version::parse("9.1.2+build"), Some(Version(9, 1, 2)));
        assert_eq!([Version::parse(""), Version::parse("x.y")], [None; 2]);
    }
}
