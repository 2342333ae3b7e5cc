#![doc = include_str!("../README.md")]

mod promoter;

pub use promoter::{Promoter, PromoterConfig};
