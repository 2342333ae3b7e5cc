//! `millstream scaler`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::{Running, fed, topic};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_listens_until_a_signal_comes() {
    let cli = Cli::new();
    let mut scaler = Running::new(&cli, &["scaler", "--address", "127.0.0.1:0", "--json"]);
    let said = envelope::data(&scaler.line());
    let address: SocketAddr = said["address"].as_str().and_then(|it| it.parse().ok()).expect("an address");
    // It speaks HTTP/2 without TLS: the preface with empty settings is answered with settings. The calls have tests of their own.
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("sent");
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("a frame");
    assert_eq!(head[3], 4, "settings: {head:?}");
    drop(stream);
    scaler.signal(Signal::TERM);
    assert_eq!(scaler.ended(), Some(0));
}

#[tokio::test]
async fn a_trigger_can_be_checked() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 2).await;
    cli.ok("group create orders billing --from earliest");
    fed(&cli, &["produce", "orders"], "a\nb\nc\n");
    let answer = cli.ok("scaler --check topic=orders,group=billing,targetValue=2 --json");
    assert_eq!(envelope::data(&answer), json!({"active": true, "backlog": 3, "target": 2}));
    let text = cli.ok("scaler --check topic=orders,group=billing,targetValue=2,activationTargetValue=3");
    assert!(text.starts_with("not active: backlog 3, target 2: 2 replicas"), "{text}");
    assert!(cli.fails(1, "scaler --check topic=orders,group=billing").contains("lack targetValue"));
    assert!(cli.fails(1, "scaler --check topic=orders,group=none,targetValue=1").contains("no group none"));
    assert!(cli.fails(2, "scaler --interval 1ms").contains("at least 100ms"));
}
