//! The example of the outbox runs, with PostgreSQL and Redis, and with nothing installed.

use integration_tests::databases::outbox::postgres_url;
use integration_tests::server::Server;

use super::built;

async fn output(database: Option<String>, queue: Option<String>) -> String {
    let run = move || {
        let mut command = built::example("outbox");
        command.env_remove("DATABASE_URL").env_remove("REDIS_URL");
        command.envs(database.map(|url| ("DATABASE_URL", url))).envs(queue.map(|url| ("REDIS_URL", url)));
        command.output().expect("it starts")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_bills_what_was_ordered() {
    let expected = "172 of 200 orders placed, 172580 cents billed";
    assert_eq!(output(None, None).await, expected, "on SQLite and in memory");
    let server = tokio::task::spawn_blocking(Server::start).await.expect("a server");
    let url = postgres_url().await;
    assert_eq!(output(Some(url), Some(server.url())).await, expected, "on PostgreSQL and Redis");
}
