//! Moves of a group: to a position, and to those of a file.

use axum::http::StatusCode;
use millstream::{GroupName, Start, TopicName};
use millstream_dashboard::Access;

use super::support::Scene;

const BILLING: &str = "/topics/orders/groups/billing";

fn names() -> (TopicName, GroupName) {
    ("orders".parse().expect("a name"), "billing".parse().expect("a name"))
}

#[tokio::test]
async fn a_group_is_moved_after_a_preview() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let path = format!("{BILLING}/reset");
    let preview = scene.get(&format!("{path}?to=earliest")).await;
    assert!(
        preview.body.contains("Handled again") && preview.body.contains("Never handled"),
        "{}",
        preview.body
    );
    let refused = scene.post(&path, &[("to", "earliest"), ("confirm", "yes")]).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let page = scene.ended(scene.post(&path, &[("to", "earliest"), ("confirm", "billing")]).await).await;
    assert!(page.contains("done"), "{page}");
    let (topic, group) = names();
    let stats = scene.mq.admin().group_stats(&topic, &group).await.expect("stats");
    assert_eq!(stats.totals.lag, Some(5));
    assert_eq!(Start::default(), Start::Earliest);
}

#[tokio::test]
async fn positions_go_to_a_file_and_back() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let (path, (topic, group), admin) = (format!("{BILLING}/reset"), names(), scene.mq.admin());
    let file = scene.get(&format!("{BILLING}/positions/export")).await;
    let name = file.headers.get("content-disposition").and_then(|it| it.to_str().ok()).expect("a name");
    assert_eq!(name, "attachment; filename=\"orders-billing-positions.csv\"");
    let saved = admin.group_positions(&topic, &group).await.expect("positions");
    assert_eq!(millstream::admin::parse_positions(&topic, &file.body).expect("positions"), saved);
    let unknown = scene.get("/topics/orders/groups/unknown/positions/export").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(scene.get(BILLING).await.body.contains("positions/export"), "a link to it");
    admin.reset_group(&topic, &group, Start::Earliest).await.expect("moved");
    let moved = admin.group_positions(&topic, &group).await.expect("positions");
    assert_ne!(moved, saved);

    // A preview first, which changes nothing and has the lines for the confirmation.
    let preview = scene.post(&path, &[("to", "positions"), ("positions", &file.body)]).await;
    assert_eq!(preview.status, StatusCode::BAD_REQUEST);
    for shown in ["Never handled", "type billing to confirm", file.body.lines().next().expect("a line")] {
        assert!(preview.body.contains(shown), "{shown}: {}", preview.body);
    }
    for (lines, why) in [
        ("mails,0,1-0", "it is of topic"),
        ("orders,0", "is not a topic, a partition and a position"),
        ("", "the positions are empty"),
        ("orders,7,1-0", "partition"),
        ("orders,0,99999999999999-0", "ahead"),
    ] {
        let fields = [("to", "positions"), ("positions", lines), ("confirm", "billing")];
        let refused = scene.post(&path, &fields).await;
        let refused = if refused.status.is_redirection() { scene.ended(refused).await } else { refused.body };
        assert!(refused.contains(why), "{lines:?}: {refused}");
    }
    assert_eq!(admin.group_positions(&topic, &group).await.expect("positions"), moved);

    // One partition alone, then all.
    let one = file.body.lines().next().expect("a line");
    for lines in [one, &*file.body] {
        let fields = [("to", "positions"), ("positions", lines), ("confirm", "billing")];
        let page = scene.ended(scene.post(&path, &fields).await).await;
        assert!(page.contains("done"), "{page}");
        let partition = saved.keys().next().expect("a partition");
        let now = admin.group_positions(&topic, &group).await.expect("positions");
        assert_eq!(now[partition], saved[partition]);
    }
    assert_eq!(admin.group_positions(&topic, &group).await.expect("positions"), saved);
    assert!(scene.get("/audit").await.body.contains("2 partitions: 0 behind"), "the log has where to");
}
