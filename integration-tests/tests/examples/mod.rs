//! The examples of the facade run to their end, in memory and on Redis: each asserts its own result. So does the Python script of the
//! wire format, against the library.
//!
//! They are the programs that `cargo run --example` starts: built with the tests of the workspace, and not a second time here.

mod built;
mod outbox;
mod python;

use integration_tests::server;

/// Runs an example twice. Returns what it printed in memory.
async fn run(name: &'static str) -> String {
    let both = move || {
        let url = server::shared_url();
        [vec![], vec!["--url", &url]].map(|args| {
            let output = built::example(name).args(&args).output().expect("it starts");
            let (text, errors) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{name} {args:?}: {}\n{text}\n{errors}", output.status);
            text.into_owned()
        })
    };
    let both = tokio::task::spawn_blocking(both).await;
    let [in_memory, _] = both.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    in_memory
}

#[tokio::test]
async fn a_web_service_enqueues() {
    assert_eq!(run("web").await.trim(), "200 orders placed with 400 requests, 20000 cents billed");
}

#[tokio::test]
async fn a_web_request_waits_for_a_worker() {
    assert_eq!(run("quotes").await.trim(), "one quote at once, one later, one refused");
}

#[tokio::test]
async fn a_worker_ends_in_order() {
    assert_eq!(run("worker").await.trim(), "100 mails sent, 10 of them at the third attempt, 1 refused");
}

#[tokio::test]
async fn orders_expire_unless_paid() {
    assert!(run("orders").await.contains(" orders paid, "));
}

#[tokio::test]
async fn transfers_are_made_exactly_once() {
    assert!(run("transfer").await.starts_with("150 transfers, 300 messages, "));
}

#[tokio::test]
async fn a_backend_passes_the_core_suite() {
    assert!(run("backend").await.contains("100 orders handled, 100 archived"));
}

#[tokio::test]
async fn a_codec_and_a_layer_refuse_what_is_wrong() {
    let expected = r#"100 readings, on average 24.75 degrees; dead letters: ["rejected", "undecodable"]"#;
    assert_eq!(run("codec").await.trim(), expected);
}

#[tokio::test]
async fn policies_of_ones_own_decide() {
    let expected = r#"dead letters by tenant: {"acme": (3, None), "initech": (1, Some("visits.slow"))}"#;
    assert_eq!(run("policies").await.trim(), expected);
}

#[tokio::test]
async fn breaker() {
    assert!(run("breaker").await.contains("payments:all is open: "));
}

#[tokio::test]
async fn rates() {
    let refused = format!("\n{:<44}{:>8}\n", "refused since over a limit", 0);
    assert!(run("rates").await.contains(&refused));
}

#[tokio::test]
async fn signup() {
    let told = run("signup").await;
    assert!(told.ends_with("account 1 is welcome\n"), "{told}");
}

#[tokio::test]
async fn nightly() {
    let told = run("nightly").await;
    assert!(
        told.contains("100 %\nto accounting@example.com: complete of 1000, 990 done, 10 dead\n"),
        "{told}"
    );
    assert!(told.ends_with("all 1000 accounts are billed\n"), "{told}");
}

#[tokio::test]
async fn import() {
    let told = run("import").await;
    assert!(told.contains("1000000 rows are imported\nthe second one is stopped: "), "{told}");
    assert!(told.ends_with("cancelled from outside\n"), "{told}");
}

#[tokio::test]
async fn fair() {
    assert!(run("fair").await.contains("\nweight 3 "));
}

#[tokio::test]
async fn no_tenant_has_more_at_once_than_its_limit() {
    assert!(run("limits").await.contains("\nin all "));
}

#[tokio::test]
async fn tasks_have_their_effect_once_in_six_ways() {
    assert!(run("once").await.starts_with("240 tasks in six ways, each had its effect once\n"));
}
