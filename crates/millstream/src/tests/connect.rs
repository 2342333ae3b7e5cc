//! Settings of a connection, through the facade.

use std::time::Duration;

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
