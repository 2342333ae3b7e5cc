//! Tests by what the crate exports. One program with the unit tests: each costs its own linking.

#[cfg(feature = "claim-check")]
mod claim_check;
#[cfg(feature = "cloudevents")]
mod cloudevents;
#[cfg(all(feature = "messagepack", feature = "protobuf"))]
mod codecs;
#[cfg(all(feature = "zstd", feature = "encryption"))]
mod layers;
