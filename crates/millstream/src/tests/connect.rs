//! Settings of a connection, through the facade.

use std::time::Duration;

use millstream_core::Capability;
use millstream_memory::MemoryBackend;

use crate::{ErrorKind, Millstream};

#[tokio::test]
async fn settings_of_connections_reach_the_backend_and_are_checked() {
    let builder = Millstream::at("redis://127.0.0.1:1").connect_timeout(Duration::ZERO);
    let builder = builder.response_timeout(Duration::from_secs(200_000)).pool_size(0);
    let error = builder.await.expect_err("all three are out of range");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    for setting in ["connect_timeout is 0ns", "response_timeout is 200000s", "pool_size"] {
        assert!(error.to_string().contains(setting), "{setting}: {error}");
    }
}

#[tokio::test]
async fn a_queue_in_memory_has_no_connections_and_ignores_their_settings() {
    let builder = Millstream::at("memory://").connect_timeout(Duration::ZERO).pool_size(0);
    builder.max_reader_connections(0).response_timeout(Duration::ZERO).await.expect("connected");
}

#[tokio::test]
async fn what_was_left_out_when_it_was_compiled_names_its_feature() {
    const LEFT_OUT: &[(Capability, &str)] = &[(Capability::Locks, "lock"), (Capability::Pins, "admin")];
    let all = Millstream::connect("memory://").await.expect("connected").backend().clone();
    let backend = all.without(Capability::Locks).without(Capability::Pins).without(Capability::Audit);
    let backend = backend.compiled_without(LEFT_OUT);
    let wrapped = backend.wrapped(MemoryBackend::new());
    for backend in [backend, wrapped] {
        let locks = backend.locks().err().expect("left out");
        assert_eq!(locks.kind(), ErrorKind::Unsupported);
        assert_eq!(
            locks.to_string(),
            "compiled without the feature `lock`: this backend has no locks (role `locks`)"
        );
        let pins = backend.require(Capability::Pins).expect_err("left out");
        assert!(pins.to_string().starts_with("compiled without the feature `admin`: "), "{pins}");
        let audit = backend.audit().err().expect("missing");
        assert_eq!(audit.to_string(), "this backend has no audit of stored data (role `audit`)");
        assert!(backend.inspect().is_ok());
    }
}
