#![doc = include_str!("../README.md")]

mod access;
mod actions;
mod app;
mod assets;
mod audit;
mod auth;
mod dashboard;
mod failure;
mod log_ins;
mod origin;
mod pages;
mod paths;
mod proxies;
mod reading;
mod redaction;
mod request;
mod routing;
mod serve;
mod view;

pub use access::{Access, Permission};
pub use auth::Users;
pub use dashboard::{Dashboard, RouteInfo, dashboard, routes};
pub use redaction::{Origin, Redaction};
pub use serve::Server;
