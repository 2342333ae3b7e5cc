//! A network of its own, in which packets can be dropped.

use std::io;
use std::process::Command;

use rustix::thread::UnshareFlags;

/// The loopback network of a thread and of all that the thread starts from then on: threads, processes, servers.
///
/// It needs the right to make a network namespace, and the program `nft`. Nothing of it is left when the last of its
/// processes has ended.
#[derive(Debug)]
pub struct Network(());

impl Network {
    /// Moves this thread to a network of its own, which has loopback addresses and nothing else.
    ///
    /// # Errors
    /// If this process has no right to, or if there are no packet filters.
    pub fn private() -> io::Result<Self> {
        // `unshare_unsafe` is about file descriptors, which this thread goes on sharing; and unsafe code is forbidden here.
        #[expect(deprecated, reason = "safe for a network namespace")]
        rustix::thread::unshare(UnshareFlags::NEWNET)?;
        call("ip", &["link", "set", "lo", "up"])?;
        call("nft", &["add", "table", "inet", "faults"])?;
        call("nft", &["add", "chain", "inet", "faults", "input", "{ type filter hook input priority 0; }"])?;
        Ok(Self(()))
    }

    /// Drops each packet of TCP to and from this port with a chance of `percent`. TCP sends it again, after 200 ms or more.
    ///
    /// # Panics
    /// If the filter does not accept it.
    pub fn drop_packets(&self, port: u16, percent: u32) {
        // A comparison that is always true is none that `nft` accepts.
        let chance =
            if percent < 100 { format!("numgen random mod 100 < {percent} ") } else { String::new() };
        for side in ["dport", "sport"] {
            let rule = format!("tcp {side} {port} {chance}drop");
            call("nft", &["add", "rule", "inet", "faults", "input", &rule]).expect("a rule");
        }
    }

    /// Drops nothing any more.
    ///
    /// # Panics
    /// If the filter does not accept it.
    pub fn drop_nothing(&self) {
        call("nft", &["flush", "chain", "inet", "faults", "input"]).expect("no rules");
    }
}

fn call(program: &str, args: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", args.join(" "), text.trim())))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::Network;

    #[test]
    fn packets_are_dropped_until_none_are() {
        let network = Network::private().expect("the right to make a network, and nft");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");

        network.drop_packets(port, 100);
        client.write_all(b"x").expect("written");
        server.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        assert!(server.read(&mut [0]).is_err(), "a packet arrived that was to be dropped");

        network.drop_nothing();
        server.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        assert_eq!(server.read(&mut [0]).expect("it was sent again"), 1);
    }
}
