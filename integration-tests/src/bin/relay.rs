//! A relay of an outbox as a process, which tests kill.

use std::time::Duration;

use integration_tests::databases::outbox::Setup;
use millstream::Millstream;
use millstream::sql::Database;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // It ends with the process that started it.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let setup = std::env::args().nth(1).expect("a setup");
    let setup: Setup = serde_json::from_str(&setup).expect("a setup");
    let mq = Millstream::at(&setup.queue).namespace(&setup.namespace).await.expect("connected");
    let database = Database::connect(&setup.database).await.expect("connected");
    let relay = mq.outbox(&database).ttl(Duration::from_millis(setup.ttl_ms)).batch(setup.batch);
    let _relay = relay.start().await.expect("a relay");
    std::future::pending::<()>().await;
}
