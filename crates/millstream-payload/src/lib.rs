#![doc = include_str!("../README.md")]

#[cfg(feature = "claim-check")]
mod claim_check;
#[cfg(feature = "cloudevents")]
mod cloudevents;
#[cfg(feature = "zstd")]
mod compression;
#[cfg(feature = "encryption")]
mod encryption;
#[cfg(feature = "messagepack")]
mod messagepack;
#[cfg(feature = "protobuf")]
mod protobuf;
#[cfg(test)]
mod tests;

#[cfg(feature = "claim-check")]
pub use claim_check::{ClaimCheck, DirectoryStore, InvalidReference, PayloadReference, PayloadStore};
#[cfg(feature = "cloudevents")]
pub use cloudevents::{AttributeValue, CloudEvent, CloudEvents, InvalidEvent};
#[cfg(feature = "zstd")]
pub use compression::Compression;
#[cfg(feature = "encryption")]
pub use encryption::{Encryption, InvalidKey};
#[cfg(feature = "messagepack")]
pub use messagepack::MessagePack;
#[cfg(feature = "protobuf")]
pub use protobuf::Protobuf;
