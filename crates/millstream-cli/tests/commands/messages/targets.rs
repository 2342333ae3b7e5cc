//! Topics to which nothing is sent.

use crate::support::cli::Cli;
use crate::support::feed::{feed, stored};
use crate::support::seed;

/// Every command that sends to a topic which an argument names.
#[tokio::test]
async fn the_audit_log_is_nobodys_target() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 2).await;
    seed::handled(&mq, 2, &[0, 1]).await;
    cli.ok("topic create millstream-audit");
    let line = br#"{"payload":"x","delay":"1h"}"#;
    for args in [
        "produce millstream-audit",
        "produce millstream-audit --format json",
        "produce millstream-audit --delay 1h",
        "dlq replay orders billing --all --to-topic millstream-audit --yes",
        "dlq replay orders billing --all --to-topic millstream-audit --to-partition 0 --yes",
        "schedule add millstream-audit daily --every 1h --payload x",
        "schedule add millstream-audit daily --cron 0_9_*_*_* --payload x",
    ] {
        let words: Vec<_> = args.split(' ').map(|word| word.replace('_', " ")).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let ran = feed(&cli, &words, line);
        assert_eq!(ran.code, Some(1), "{args}: {ran:?}");
        assert!(
            ran.stderr.contains("topic millstream-audit is the audit log of dashboards"),
            "{args}: {ran:?}"
        );
    }
    assert!(stored(&mq, "millstream-audit").await.is_empty());
    assert_eq!(cli.json("delayed list millstream-audit")["total"], 0);
    assert_eq!(cli.json("schedule list millstream-audit").as_array().map(Vec::len), Some(0));
    assert_eq!(cli.json("dlq count orders billing")["count"], 2, "the letters stay");
}
