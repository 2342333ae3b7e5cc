//! The memory backend keeps the law, by a paused clock and by a real one.

use std::time::Duration;

use millstream_memory::MemoryBackend;
use millstream_testkit::{Harness, Violation, cases, run};
use mutants::{Broken, Mutant};
use tokio::runtime::Builder;

use crate::support::Console;

#[test]
fn memory_passes_every_case_by_a_paused_clock() {
    let mut violations = Vec::new();
    for case in cases() {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let verdict = runtime.block_on(async {
            let memory = MemoryBackend::new();
            let harness = Harness::new(memory.clone()).with_operator(Console(memory.operator()));
            (case.run)(harness).await
        });
        violations.extend(verdict.err().map(|violation| format!("{case:?}: {violation}")));
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

/// All at the same time, on one backend and several threads.
#[test]
fn memory_passes_every_case_by_a_real_clock() {
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let memory = MemoryBackend::new();
        let running: Vec<_> = cases()
            .into_iter()
            .map(|case| {
                let harness = Harness::new(memory.clone()).with_operator(Console(memory.operator()));
                tokio::spawn(async move { (case, (case.run)(harness).await) })
            })
            .collect();
        let mut violations = Vec::new();
        for case in running {
            let (case, verdict) = case.await.unwrap();
            violations.extend(verdict.err().map(|violation| format!("{case:?}: {violation}")));
        }
        assert!(violations.is_empty(), "{violations:#?}");
    });
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_kept() {
    let harness = Harness::new(MemoryBackend::new()).with_deadline(Duration::from_millis(100));
    let mut deadline = harness.wait_for("the end of the world");
    let started = tokio::time::Instant::now();
    let violation: Violation = loop {
        if let Err(violation) = deadline.pause().await {
            break violation;
        }
    };
    assert_eq!(violation.to_string(), "waited in vain for the end of the world");
    assert!(started.elapsed() < Duration::from_millis(120));
}

#[tokio::test(start_paused = true)]
async fn a_report_has_what_passed_what_did_not_and_what_was_left_out() {
    let report = run(&Harness::new(MemoryBackend::new()), 4, "").await;
    assert!(report.is_ok() && report.passed > 400, "{report}");
    assert!(report.left_out.iter().all(|case| case.needs_operator) && report.left_out.len() > 10);
    assert!(report.slowest.len() == 5 && report.slowest.is_sorted_by(|one, other| one.1 >= other.1));

    let one =
        run(&Harness::new(MemoryBackend::new()), 1, "log::an_acked_entry_is_never_handed_out_again").await;
    assert_eq!((one.passed, one.left_out.len()), (1, 0), "{one}");
    let broken = Broken::new(MemoryBackend::new(), Mutant::AlterForgotten);
    let broken = run(&Harness::new(broken), 1, "catalog::what_is_not_named_stays").await;
    assert!(!broken.is_ok() && broken.violated.len() == 1, "{broken}");
    assert!(
        broken.to_string().contains(
            "
catalog::what_is_not_named_stays: the topic as stored"
        ),
        "{broken}"
    );
    let none = run(&Harness::new(MemoryBackend::new()), 1, "no case has this name").await;
    assert!(!none.is_ok(), "nothing was run: {none}");
}
