//! One server with an append-only file.

use std::path::{Path, PathBuf};

use super::Servers;
use crate::proxy::Proxy;
use crate::server::Server;

struct One(Server);

pub(super) fn start(folder: PathBuf, program: Option<&Path>) -> (Box<dyn Servers>, Vec<Proxy>) {
    let builder = Server::builder().appendonly(true).within(folder);
    let builder = match program {
        Some(path) => builder.program(path.to_owned()),
        None => builder,
    };
    let server = builder.start();
    let link = Proxy::to(server.port());
    (Box::new(One(server)), vec![link])
}

impl Servers for One {
    fn nodes(&self) -> Vec<&Server> {
        vec![&self.0]
    }

    fn nodes_mut(&mut self) -> Vec<&mut Server> {
        vec![&mut self.0]
    }

    fn url(&self, links: &[Proxy]) -> String {
        links[0].url()
    }

    fn primaries(&self) -> Vec<usize> {
        vec![0]
    }

    fn fail_over(&mut self, _primary: usize) {
        unreachable!("there are no replicas");
    }

    fn wait_replaced(&self, _primary: usize) {
        unreachable!("there are no replicas");
    }

    fn wait_whole(&self) {}

    fn move_slot(&mut self, _slot: u16) {
        unreachable!("there are no slots");
    }
}
