//! All cases over a queue on a server.

#[path = "calls.rs"]
mod calls;
#[path = "live.rs"]
mod live;
#[path = "pages.rs"]
mod pages;
#[path = "../place.rs"]
#[allow(dead_code)]
mod place;
#[path = "site.rs"]
mod site;
#[path = "work.rs"]
mod work;

/// Whether axe-core examines the pages, which takes most of the time: their form is the same over each backend.
const AXE: bool = true;

/// Address of the servers.
fn url() -> String {
    crate::server::shared_url()
}
